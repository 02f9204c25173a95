"""An exercise as a sheet to fill in, and as a key: text, YAML, JSON, CSV, HTML, LaTeX."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from heedful.classroom.arithmetic.render import Style, strip_quotes
from heedful.classroom.exercises.numbers import NumberQuestion, Problem
from heedful.classroom.exercises.sheets_pages import html_sheet, latex_sheet

ROWS_OF_WORDS = ("Q", "K", "V", "X", "E", "memory", "above")
FILL_IN = (
    "Fill in the numbers behind the equals signs, those of a vector parted by spaces. Then: heed grade FILE"
)


def format_value(value: Any, digits: int = 4) -> str:
    """A given value in one line: words as they are, numbers without needless digits."""
    if isinstance(value, list):
        inner = [format_value(v, digits) for v in value]
        return "[" + " ".join(inner) + "]" if value and not isinstance(value[0], str) else " ".join(inner)
    return Style(digits, None).value(float(value)) if isinstance(value, int | float) else str(value)


def given_texts(problem: Problem) -> list[tuple[str, str]]:
    """Return the given values, each in one line; rows that belong to words stand behind them."""
    out = []
    for name, value in problem.given_values:
        key = "keys" if name == "K" and "keys" in problem.values else "words" if name == "E" else "tokens"
        words = problem.values.get(key, [])
        if name in ROWS_OF_WORDS and len(words) == len(value):
            rows = (f"{word} {format_value(row)}" for word, row in zip(words, value, strict=True))
            out.append((name, "   ".join(rows)))
        else:
            out.append((name, format_value(value)))
    return out


def key_numbers(question: NumberQuestion) -> list[float]:
    """The right answer, rounded to the digits asked for."""
    return [round(float(x), question.digits) + 0.0 for x in question.line.value.ravel()]


def key_text(question: NumberQuestion) -> str:
    """The right answer as it would be written on a sheet."""
    return " ".join(f"{x:.{question.digits}f}".rstrip("0").rstrip(".") for x in key_numbers(question))


def head_lines(problem: Problem, key: bool) -> list[str]:
    """Return the lines above the questions."""
    title = f"{'Key of exercise' if key else 'Exercise'} {problem.exercise.name}, for {problem.seed}"
    given = [f"  {name}: {text}" for name, text in given_texts(problem)]
    return [title, problem.exercise.task, "Given:", *given, *([] if key else [FILL_IN])]


def question_line(question: NumberQuestion) -> str:
    return f"{question.prompt}: {strip_quotes(question.line.formula)}   ({question.answer_format})"


def text_sheet(problem: Problem, key: bool) -> str:
    """Lines of `number = answer`; those that begin with # are for the reader."""
    out = [f"# {line}" for line in head_lines(problem, key)]
    out += ["", f"exercise: {problem.exercise.name}", f"seed: {problem.seed}", f"digits: {problem.digits}"]
    for question in problem.questions:
        answer = key_text(question) if key else ""
        out += ["", f"# {question_line(question)}", f"{question.number} = {answer}".rstrip()]
    if key:
        out += ["", *(f"# {line}".rstrip() for line in problem.derivation.text(problem.digits).splitlines())]
    return "\n".join(out) + "\n"


def yaml_sheet(problem: Problem, key: bool) -> str:
    """Return a sheet as YAML: answers by the numbers of their questions."""
    out = [f"# {line}" for line in head_lines(problem, key)]
    quoted = lambda text: json.dumps(text, ensure_ascii=False)
    out += [
        f"exercise: {problem.exercise.name}",
        f"seed: {quoted(problem.seed)}",
        f"digits: {problem.digits}",
    ]
    out.append("answers:")
    for question in problem.questions:
        answer = "[" + ", ".join(key_text(question).split()) + "]" if key else "[]"
        out += [f"  # {question_line(question)}", f"  {question.number}: {answer}"]
    return "\n".join(out) + "\n"


def json_sheet(problem: Problem, key: bool) -> str:
    """Return a sheet as JSON, with the given values and the questions beside the answers."""
    questions = {
        str(q.number): {"step": q.prompt, "formula": strip_quotes(q.line.formula), "wanted": q.answer_format}
        for q in problem.questions
    }
    answers = {str(q.number): key_numbers(q) if key else [] for q in problem.questions}
    sheet = {
        "exercise": problem.exercise.name, "seed": problem.seed, "digits": problem.digits,
        "task": problem.exercise.task, "given": dict(problem.given_values), "questions": questions,
        "answers": answers,
    }  # fmt: skip
    return json.dumps(sheet, indent=2, ensure_ascii=False) + "\n"


def csv_sheet(problem: Problem, key: bool) -> str:
    """Return a sheet as CSV: three rows that name it, then number, question, answer."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(
        [["exercise", problem.exercise.name], ["seed", problem.seed], ["digits", problem.digits]]
    )
    writer.writerows([["given", f"{name}: {text}"] for name, text in given_texts(problem)])
    writer.writerow(["number", "question", "answer"])
    for question in problem.questions:
        writer.writerow([question.number, question_line(question), key_text(question) if key else ""])
    return out.getvalue()


FORMATS: dict[str, Callable[[Problem, bool], str]] = {
    "text": text_sheet,
    "yaml": yaml_sheet,
    "json": json_sheet,
    "csv": csv_sheet,
    "html": lambda problem, key: html_sheet(problem, key, given_texts(problem), key_text),
    "latex": lambda problem, key: latex_sheet(problem, key, given_texts(problem), key_text),
}
SUFFIXES = {
    ".txt": "text",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".csv": "csv",
    ".html": "html",
    ".tex": "latex",
}
