"""An exercise as a sheet to fill in, and as a key: text, YAML, JSON, CSV, HTML, LaTeX."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from heedful.classroom.arithmetic.render import TEX, Style, formula_latex, formula_mathml, strip_quotes
from heedful.classroom.exercises.number_exercises import NumberQuestion, Owner, Problem, new_problem
from heedful.classroom.text_files import describe_yaml_error, fill_template, read_submission
from heedful.core.errors import InputError
from heedful.core.files import missing_file

ROWS_OF_WORDS = ("Q", "K", "V", "X", "E", "memory", "above")
FILL_IN = {
    "text": "Write each answer after its =, with spaces between numbers. Then run: heed grade FILE",
    "yaml": "Write each answer into its brackets, with commas between numbers. Then run: heed grade FILE",
}


def is_blank(response: Any) -> bool:
    """Return whether nothing was answered."""
    if isinstance(response, str):
        return not response.strip(" \t\r\n[]?_.")
    return response is None or (isinstance(response, Sequence) and all(is_blank(part) for part in response))


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
    given = [f"  {name}: {text}" for name, text in given_texts(problem)]
    due = [f"Due: {problem.header['due']}"] if "due" in problem.header else []
    title = f"{'Key of exercise' if key else 'Exercise'} {problem.exercise.name}, for {problem.seed}"
    return [title, *due, problem.exercise.task, "Given:", *given]


def question_line(question: NumberQuestion) -> str:
    return f"{question.prompt}: {strip_quotes(question.line.formula)}   ({question.answer_format})"


def text_sheet(problem: Problem, key: bool) -> str:
    """Lines of `number = answer`; those that begin with # are for the reader."""
    out = [f"# {line}" for line in [*head_lines(problem, key), *([] if key else [FILL_IN["text"]])]]
    out += ["", *(f"{name}: {value}" for name, value in problem.header.items())]
    for question in problem.questions:
        answer = key_text(question) if key else ""
        out += ["", f"# {question_line(question)}", f"{question.number} = {answer}".rstrip()]
    if key:
        out += ["", *(f"# {line}".rstrip() for line in problem.derivation.text(problem.digits).splitlines())]
    return "\n".join(out) + "\n"


def yaml_sheet(problem: Problem, key: bool) -> str:
    """Return a sheet as YAML: answers by the numbers of their questions."""
    out = [f"# {line}" for line in [*head_lines(problem, key), *([] if key else [FILL_IN["yaml"]])]]
    out += [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in problem.header.items()]
    out.append("answers:")
    for question in problem.questions:
        answer = "[" + ", ".join(key_text(question).split()) + "]" if key else "[]"
        out += [f"  # {question_line(question)}", f"  {question.number}: {answer}"]
    return "\n".join(out) + "\n"


def json_sheet(problem: Problem, key: bool) -> str:
    """Return a sheet as JSON, with the given values and the questions next to the answers."""
    questions = {
        str(q.number): {"step": q.prompt, "formula": strip_quotes(q.line.formula), "wanted": q.answer_format}
        for q in problem.questions
    }
    answers = {str(q.number): key_numbers(q) if key else [] for q in problem.questions}
    sheet = problem.header | {
        "task": problem.exercise.task, "given": dict(problem.given_values), "questions": questions,
        "answers": answers,
    }  # fmt: skip
    return json.dumps(sheet, indent=2, ensure_ascii=False) + "\n"


def csv_sheet(problem: Problem, key: bool) -> str:
    """Return a sheet as CSV: three rows that name it, then number, question, answer."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(problem.header.items())
    writer.writerows([["given", f"{name}: {text}"] for name, text in given_texts(problem)])
    writer.writerow(["number", "question", "answer"])
    for question in problem.questions:
        writer.writerow([question.number, question_line(question), key_text(question) if key else ""])
    return out.getvalue()


def typeset_sheet(template: str, problem: Problem, key: bool) -> str:
    """A page without anything from outside that saves its answers as JSON, or a document for pdflatex."""
    return fill_template(
        template, problem=problem, key=key, title=head_lines(problem, key)[0], given=given_texts(problem),
        key_text=key_text, mathml=formula_mathml, latex=formula_latex, plain=lambda text: text.translate(TEX),
    )  # fmt: skip


FORMATS: dict[str, Callable[[Problem, bool], str]] = {
    "text": text_sheet, "yaml": yaml_sheet, "json": json_sheet, "csv": csv_sheet,
    "html": partial(typeset_sheet, "sheet.html"), "latex": partial(typeset_sheet, "sheet.tex"),
}  # fmt: skip
SUFFIXES = {
    ".txt": "text", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".csv": "csv", ".html": "html",
    ".tex": "latex",
}  # fmt: skip


# A filled sheet read from a file: the problem it belongs to, and its answers by their numbers.


READ = (".txt", ".yaml", ".yml", ".json", ".csv")
ANSWER = re.compile(r"\s*(\d+)\s*=(.*)")
FIELDS = ("exercise", "seed", "digits", "class", "due")
HEADER = re.compile(rf"\s*({'|'.join(FIELDS)})\s*:(.*)")


def read_sheet(path: Path, owner: Owner | None = None) -> tuple[Problem, dict[int, Any]]:
    """The problem a sheet names, drawn again, and what was answered; `owner` is the class it belongs to."""
    if not path.exists():
        raise missing_file(path)
    if path.is_dir() or path.suffix.lower() not in READ:
        raise InputError(
            f"{path} is not a filled sheet", hint=f"its name ends in {', '.join(READ)}, or in .py for code"
        )
    fields = parse_sheet(read_submission(path), path.suffix.lower(), str(path))
    answers = fields.pop("answers", None)
    for name in ("exercise", "seed"):
        if is_blank(fields.get(name)):
            raise InputError(
                f"{path} does not say its {name}", hint="keep the lines that heed exercise wrote"
            )
    digits = fields.get("digits")
    if digits is not None and not str(digits).strip().isdigit():
        raise InputError(
            f"{path}: digits: {digits} is not a whole number", hint="keep the line that heed exercise wrote"
        )
    class_name = str(fields.get("class") or "").strip()
    if class_name != (owner.name if owner else ""):
        whose = f"belongs to the class {class_name!r}" if class_name else "belongs to no class"
        raise InputError(f"{path} {whose}", hint="the teacher grades it with heed grade FOLDER --class FILE")
    problem = new_problem(
        str(fields["exercise"]).strip(), str(fields["seed"]).strip(), None if digits is None else int(digits),
        owner,
    )  # fmt: skip
    return problem, check_answers(problem, answers, str(path))


def parse_sheet(text: str, suffix: str, name: str) -> dict[str, Any]:
    """The fields of a sheet: exercise, seed, digits, answers."""
    if suffix == ".csv":
        return parse_csv(text)
    if suffix == ".txt":
        return parse_text(text)
    import yaml

    try:
        if suffix != ".json" and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise InputError(f"{name} has a YAML alias", hint="write out every answer")  # they may multiply
        fields = json.loads(text) if suffix == ".json" else yaml.safe_load(text)
    except InputError:
        raise
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{name} cannot be read: {describe_yaml_error(error)}") from None
    if not isinstance(fields, dict):
        raise InputError(f"{name} is not a sheet", hint="it must name its exercise, its seed and its answers")
    return dict(fields)


def parse_text(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"answers": {}}
    for line in text.splitlines():
        if line_match := HEADER.fullmatch(line):
            fields[line_match[1]] = line_match[2].strip()
        elif line_match := ANSWER.fullmatch(line):
            fields["answers"][line_match[1]] = line_match[2].strip()
    return fields


def parse_csv(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"answers": {}}
    lines = text.splitlines()
    # Some spreadsheets save semicolons.
    comma = ";" if lines and lines[0].count(";") > lines[0].count(",") else ","
    for row in csv.reader(io.StringIO(text), delimiter=comma):
        if row and row[0].strip() in FIELDS and len(row) > 1:
            fields[row[0].strip()] = row[1].strip()
        elif row and row[0].strip().isdigit():
            fields["answers"][row[0].strip()] = " ".join(row[2:]).strip()
    return fields


def check_answers(problem: Problem, answers: Any, name: str) -> dict[int, Any]:
    """Answers by number, all of them to questions that there are."""
    if answers is not None and not isinstance(answers, Mapping):
        raise InputError(f"{name}: answers need the number of their question, as in 1: [0.5, 0.25]")
    by_number: dict[int, Any] = {}
    count = len(problem.questions)
    for key, answer in (answers or {}).items():
        if not str(key).strip().isdigit() or not 1 <= int(key) <= count:
            raise InputError(
                f"{name} has an answer to {key!r}", hint=f"{problem.exercise.name} has questions 1 … {count}"
            )
        by_number[int(key)] = answer
    if all(is_blank(answer) for answer in by_number.values()):
        raise InputError(f"{name} has no answers yet", hint="fill in the numbers, then grade it")
    return by_number
