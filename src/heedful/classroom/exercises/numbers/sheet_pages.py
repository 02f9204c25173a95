"""A sheet as a page: HTML that saves the answers as JSON by itself, and LaTeX to print."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Sequence

from heedful.classroom.arithmetic.render import TEX, formula_latex
from heedful.classroom.exercises.numbers.numbers import NumberQuestion, Problem

GivenTexts = Sequence[tuple[str, str]]
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


def html_sheet(
    problem: Problem, key: bool, given_texts: GivenTexts, key_text: Callable[[NumberQuestion], str]
) -> str:
    """One file without anything from outside; the key has the worked solution below."""
    escape = html.escape
    title = f"{'Key of exercise' if key else 'Exercise'} {problem.exercise.name}, for {problem.seed}"
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
    head = {"exercise": problem.exercise.name, "seed": problem.seed, "digits": problem.digits}
    sheet = json.dumps(head).replace("<", "\\u003c")
    given_rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in given_texts
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


def latex_sheet(
    problem: Problem, key: bool, given_texts: GivenTexts, key_text: Callable[[NumberQuestion], str]
) -> str:
    """A document for pdflatex with blanks, or with the key and the worked solution."""
    plain = lambda text: text.translate(TEX)
    title = f"{'Key of exercise' if key else 'Exercise'} {problem.exercise.name}, for {problem.seed}"
    out = [
        r"\documentclass[11pt]{article}",
        r"\usepackage[utf8]{inputenc}\usepackage[T1]{fontenc}\usepackage{amsmath}\usepackage[margin=2cm]{geometry}",
        r"\setlength{\parindent}{0pt}\allowdisplaybreaks",
        r"\begin{document}",
        rf"\section*{{{plain(title)}}}",
        plain(problem.exercise.task),
        r"\begin{itemize}",
        *(rf"\item {plain(name)}: {{\ttfamily {plain(value)}}}" for name, value in given_texts),
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
    found = TOKEN.findall(formula)
    tokens = []
    for before, token, after in zip(["", *found], found, [*found[1:], ""], strict=False):
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
