"""An exercise as a sheet to fill in, and as a key: text, YAML, JSON, CSV, HTML, LaTeX."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.classroom.arithmetic.render import TEX, Style, formula_latex, strip_quotes
from heedful.classroom.exercises.number_exercises import NumberQuestion, Owner, Problem, new_problem
from heedful.core.errors import InputError
from heedful.core.files import missing_file

ROWS_OF_WORDS = ("Q", "K", "V", "X", "E", "memory", "above")
FILL_IN = (
    "Fill in the numbers behind the equals signs, those of a vector parted by spaces. Then: heed grade FILE"
)


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


def sheet_title(problem: Problem, key: bool) -> str:
    return f"{'Key of exercise' if key else 'Exercise'} {problem.exercise.name}, for {problem.seed}"


def head_lines(problem: Problem, key: bool) -> list[str]:
    """Return the lines above the questions."""
    given = [f"  {name}: {text}" for name, text in given_texts(problem)]
    due = [f"Due: {problem.header['due']}"] if "due" in problem.header else []
    about = [sheet_title(problem, key), *due, problem.exercise.task]
    return [*about, "Given:", *given, *([] if key else [FILL_IN])]


def question_line(question: NumberQuestion) -> str:
    return f"{question.prompt}: {strip_quotes(question.line.formula)}   ({question.answer_format})"


def text_sheet(problem: Problem, key: bool) -> str:
    """Lines of `number = answer`; those that begin with # are for the reader."""
    out = [f"# {line}" for line in head_lines(problem, key)]
    out += ["", *(f"{name}: {value}" for name, value in problem.header.items())]
    for question in problem.questions:
        answer = key_text(question) if key else ""
        out += ["", f"# {question_line(question)}", f"{question.number} = {answer}".rstrip()]
    if key:
        out += ["", *(f"# {line}".rstrip() for line in problem.derivation.text(problem.digits).splitlines())]
    return "\n".join(out) + "\n"


def yaml_sheet(problem: Problem, key: bool) -> str:
    """Return a sheet as YAML: answers by the numbers of their questions."""
    out = [f"# {line}" for line in head_lines(problem, key)]
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


# A sheet as a page: HTML that saves the answers as JSON by itself, and LaTeX to print.


STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;
color-scheme:light dark}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.35rem .6rem;vertical-align:top;
border-bottom:1px solid #8884;overflow-wrap:anywhere}input{font:inherit;width:100%;box-sizing:border-box}
code,.given td+td,input{font-family:ui-monospace,monospace}@media print{button{display:none}}"""
SCRIPT = """document.querySelector("form").addEventListener("submit",e=>{e.preventDefault();
const s=JSON.parse(document.getElementById("sheet").textContent);s.answers={};
for(const i of document.querySelectorAll("input"))s.answers[i.name]=i.value;
const a=document.createElement("a"),b=new Blob([JSON.stringify(s,null,2)+"\\n"],{type:"application/json"});
a.href=URL.createObjectURL(b);
a.download=s.exercise+"-"+s.seed.replace(/[^\\w.-]+/g,"_")+".json";a.click();URL.revokeObjectURL(a.href)});"""


def html_sheet(problem: Problem, key: bool) -> str:
    """One file without anything from outside; the key has the worked solution below."""
    escape = html.escape
    title = sheet_title(problem, key)
    rows = []
    for q in problem.questions:
        blank = (
            f'<input name="{q.number}" autocomplete="off" aria-label="answer {q.number}: {escape(q.prompt)}">'
        )
        answer = f"<code>{escape(key_text(q))}</code>" if key else blank
        formula = formula_mathml(q.line.formula)
        rows.append(
            f"<tr><th scope=row>{q.number}</th><td>{escape(q.prompt)}<br>{formula}</td>"
            f"<td>{escape(q.answer_format)}</td><td>{answer}</td></tr>"
        )
    sheet = json.dumps(problem.header).replace("<", "\\u003c")
    given_rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in given_texts(problem)
    )
    table = "<table><thead><tr><th>step</th><th>find</th><th>as</th><th>answer</th></tr></thead><tbody>"
    save = "<p><button>Save my answers</button> then: <code>heed grade FILE.json</code></p>"
    end = problem.derivation.html(problem.digits) if key else f"{save}</form>"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>"
        f"<p>{escape(problem.exercise.task)}</p><table class=given>{given_rows}</table>"
        f"{'' if key else '<form>'}{table}{''.join(rows)}</tbody></table>{end}"
        + (
            ""
            if key
            else f'<script type="application/json" id="sheet">{sheet}</script><script>{SCRIPT}</script>'
        )
        + "</html>\n"
    )


def latex_sheet(problem: Problem, key: bool) -> str:
    """A document for pdflatex with blanks, or with the key and the worked solution."""
    plain = lambda text: text.translate(TEX)
    title = sheet_title(problem, key)
    out = [
        r"\documentclass[11pt]{article}",
        r"\usepackage[utf8]{inputenc}\usepackage[T1]{fontenc}\usepackage{amsmath}\usepackage[margin=2cm]{geometry}",
        r"\setlength{\parindent}{0pt}\allowdisplaybreaks",
        r"\begin{document}",
        rf"\section*{{{plain(title)}}}",
        plain(problem.exercise.task),
        r"\begin{itemize}",
        *(rf"\item {plain(name)}: {{\ttfamily {plain(value)}}}" for name, value in given_texts(problem)),
        r"\end{itemize}",
        r"\begin{enumerate}",
    ]
    for q in problem.questions:
        blank = rf"\underline{{\hspace{{{min(12, 2 + q.count)}cm}}}}"
        answer = rf"{{\ttfamily {plain(key_text(q))}}}" if key else blank
        step = rf"{plain(q.prompt)}: ${formula_latex(q.line.formula)}$ ({plain(q.answer_format)})"
        out.append(rf"\item {step}\\[1ex] {answer}")
    out.append(r"\end{enumerate}")
    if key:
        out.append(problem.derivation.latex(problem.digits))
    return "\n".join([*out, r"\end{document}"]) + "\n"


# Formulas as MathML, which browsers set by themselves: indices below, powers above, roots around.


TOKEN = re.compile(r'"[^"]*"|log₂|[A-Za-z]+|\d+(?:\.\d+)?|[^\W\d_]|_\{|\S|\s+')
GAP = "\u2009"  # a thin space
ABOVE = {"²": "<mn>2</mn>", "ᵀ": "<mo>⊤</mo>", "′": "<mo>′</mo>"}
CLOSING = {"(": ")", "_{": "}"}


def formula_mathml(formula: str) -> str:
    """Return a formula such as `w = exp(s) / Σ exp(s)` as a math element; quoted parts are words."""
    pieces = TOKEN.findall(formula)
    tokens = []
    for before, token, after in zip(["", *pieces], pieces, [*pieces[1:], ""], strict=False):
        if not token.isspace():
            tokens.append(token)
        elif re.search(r"[\w)²ᵀ}]$", before) and re.match(r"[\w(√]", after):
            tokens.append(GAP)  # between two factors; operators bring their own
    row, rest = read_row(tokens, "")
    return f"<math>{row}{''.join(f'<mo>{html.escape(token)}</mo>' for token in rest)}</math>"


def read_row(tokens: list[str], end: str) -> tuple[str, list[str]]:
    """Read up to the token `end`; return one mrow and the tokens that are left."""
    parts = []
    while tokens and tokens[0] != end:
        part, tokens = read_part(tokens)
        parts.append(part)
    return f"<mrow>{''.join(parts)}</mrow>", tokens[1:]


def read_part(tokens: list[str]) -> tuple[str, list[str]]:
    """Read one letter, number, sign or group with what stands below and above it."""
    token, rest = tokens[0], tokens[1:]
    if token == "√" and rest:
        under, rest = read_row(rest[1:], ")") if rest[0] == "(" else read_part(rest)
        part = f"<msqrt>{under}</msqrt>"
    elif token == "(":
        inside, rest = read_row(rest, CLOSING[token])
        part = f"<mrow><mo>(</mo>{inside}<mo>)</mo></mrow>"
    else:
        part = one_token(token)
    if rest[:1] == ["_{"]:
        below, rest = read_row(rest[1:], CLOSING["_{"])
        part = f"<msub>{part}{below}</msub>"
    elif rest[:1] == ["_"] and len(rest) > 1:
        part, rest = f"<msub>{part}{one_token(rest[1])}</msub>", rest[2:]
    if rest and rest[0] in ABOVE:
        part, rest = f"<msup>{part}{ABOVE[rest[0]]}</msup>", rest[1:]
    return part, rest


def one_token(token: str) -> str:
    """Return one token as an identifier, a number, words or an operator."""
    if token.startswith('"'):
        return f"<mtext>&nbsp;{html.escape(token.strip(chr(34)))}&nbsp;</mtext>"
    if token == GAP:
        return '<mspace width="0.2em"/>'
    if token == "log₂":
        return "<msub><mi>log</mi><mn>2</mn></msub>"
    kind = "mn" if token[0].isdigit() else "mi" if token.isalpha() and token not in "Σ" else "mo"
    return f"<{kind}>{html.escape(token)}</{kind}>"


FORMATS: dict[str, Callable[[Problem, bool], str]] = {
    "text": text_sheet,
    "yaml": yaml_sheet,
    "json": json_sheet,
    "csv": csv_sheet,
    "html": html_sheet,
    "latex": latex_sheet,
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


# A filled sheet read from a file: the problem it belongs to, and its answers by their numbers.


READ = (".txt", ".yaml", ".yml", ".json", ".csv")
LARGEST_SHEET = 1_000_000  # bytes
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
    if path.stat().st_size > LARGEST_SHEET:
        raise InputError(f"{path} is too large for a sheet", hint="give the file that heed exercise wrote")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8", hint="save it as UTF-8") from None
    fields = parse_sheet(text, path.suffix.lower(), str(path))
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
        raise InputError(f"{path} {whose}", hint="its teacher grades it: heed grade FOLDER --class FILE")
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
            raise InputError(f"{name} has a YAML alias", hint="write every answer out")  # they may multiply
        fields = json.loads(text) if suffix == ".json" else yaml.safe_load(text)
    except InputError:
        raise
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{name} cannot be read: {' '.join(str(error).split())[:200]}") from None
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
    comma = (
        ";" if lines and lines[0].count(";") > lines[0].count(",") else ","
    )  # as some spreadsheets save it
    for row in csv.reader(io.StringIO(text), delimiter=comma):
        if row and row[0].strip() in FIELDS and len(row) > 1:
            fields[row[0].strip()] = row[1].strip()
        elif row and row[0].strip().isdigit():
            fields["answers"][row[0].strip()] = " ".join(row[2:]).strip()
    return fields


def check_answers(problem: Problem, answers: Any, name: str) -> dict[int, Any]:
    """Answers by number, all of them to questions that there are."""
    if answers is not None and not isinstance(answers, Mapping):
        raise InputError(f"{name}: answers must name the question of each, as 1: [0.5, 0.25]")
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
