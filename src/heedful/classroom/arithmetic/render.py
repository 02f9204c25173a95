"""A worked calculation as text, Markdown, LaTeX or HTML: one walk, four ways to write a number and a sign.

A formula is one line of plain text such as `w = exp(s) / Σ exp(s)`, in the language of
web/src/figures/formula.tsx. Words that are not mathematics stand in "…".
"""

from __future__ import annotations

import html
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from heedful.classroom.arithmetic.worked import (
    INFIX,
    Derivation,
    Expression,
    Line,
    Operation,
    is_arrangement,
    matrix_name,
)


def strip_quotes(formula: str) -> str:
    """A formula as plain text: without the quotation marks around words that are not mathematics."""
    return formula.replace('"', "")


ESCAPED = {letter: "\\" + letter for letter in "{}_%&#$"}
ESCAPED |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
SIGNS = {
    "√": r"\surd", "σ": r"\sigma", "γ": r"\gamma", "β": r"\beta", "ε": r"\varepsilon", "η": r"\eta",
    "Σ": r"\Sigma", "∂": r"\partial", "·": r"\cdot", "×": r"\times", "⊙": r"\odot", "ᵀ": r"^\top", "−": "-",
    "²": "^2", "≤": r"\le", "θ": r"\theta", "α": r"\alpha", "→": r"\to", "Π": r"\Pi", "∞": r"\infty",
    "₁": "_1", "₂": "_2", "′": "'", "≔": ":=", "Ġ": r"\dot{G}", "▁": r"\_", "⊗": r"\otimes", "τ": r"\tau",
    "δ": r"\delta", "μ": r"\mu", "λ": r"\lambda", "≈": r"\approx", "‖": r"\Vert", "…": r"\dots",
    "ω": r"\omega", "⌈": r"\lceil", "⌉": r"\rceil", "⌊": r"\lfloor", "⌋": r"\rfloor",
}  # fmt: skip
TEX = str.maketrans(ESCAPED | {letter: f"${sign}$" for letter, sign in SIGNS.items()})


def formula_latex(formula: str) -> str:
    """A formula in LaTeX's mathematical mode: words upright, quoted ones as text."""
    out = []
    for piece in re.findall(r'"[^"]*"|√|sqrt(?=\()|[A-Za-z]{2,}|.', formula):
        if piece.startswith('"') and len(piece) > 1:
            out.append(rf"\text{{{piece.strip(chr(34)).translate(TEX)}}}")
        elif len(piece) > 1 and piece != "sqrt":
            out.append(rf"\operatorname{{{piece}}}" if piece in FUNCTION_WORDS else rf"\mathrm{{{piece}}}")
        else:
            out.append(
                {"√": r"\surd ", "sqrt": r"\surd "}.get(piece)
                or SIGNS.get(piece, piece) + " " * (piece in SIGNS)
            )
    return "".join(out).replace("%", r"\%").replace("&", r"\&").replace("#", r"\#")


FUNCTION_WORDS = (
    "softmax", "exp", "tanh", "sin", "cos", "mean", "var", "max", "relu", "gelu", "silu", "norm", "concat",
)  # fmt: skip


# Formulas as MathML, which browsers set by themselves: indices below, powers above, roots around.


TOKEN = re.compile(r'"[^"]*"|log₂|[A-Za-z]+|\d+(?:\.\d+)?|[^\W\d_]|_\{|\S|\s+')
GAP = "\u2009"  # a thin space
ABOVE = {"²": "<mn>2</mn>", "ᵀ": "<mo>⊤</mo>", "′": "<mo>′</mo>"}
PARENTHESES = [f'<mo stretchy="false">{sign}</mo>' for sign in "()"]  # of the height of a letter
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
        part = f"<mrow>{PARENTHESES[0]}{inside}{PARENTHESES[1]}</mrow>"
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


# A calculation, line by line.


Cells = tuple[str, str, str | None, str]  # label, formula, numbers (None where it is given) and result
STRENGTH = {"+": 1, "-": 1, "×": 2, "⊙": 2, "·": 2, "/": 2, "⊗": 2, "^": 3}


def number(value: float, digits: int) -> str:
    """Exact numbers short (1, 0.5), others with all digits (0.3333), small ones with a power (1e-5)."""
    if math.isinf(value):
        return "-∞" if value < 0 else "∞"
    if abs(value) < 1e-12:
        return "0"
    small = abs(value) < 10.0 ** (1 - digits)
    shown = f"{value:.{digits - 1}e}" if small else f"{value:.{digits}f}"
    exact = abs(float(shown) - value) <= 1e-12 * (abs(value) if small else max(1.0, abs(value)))
    mantissa, _, power = shown.partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if exact and "." in mantissa else mantissa
    return f"{mantissa}e{int(power)}" if power else mantissa


@dataclass(frozen=True)
class Style:
    """How numbers, vectors and operations are written: as plain text."""

    digits: int
    width: int | None  # entries of a vector before it is cut

    def row(self, entries: list[str]) -> str:
        """A vector of entries, or a matrix of rows."""
        return "[" + " ".join(entries) + "]"

    def apply(self, name: str, inside: str) -> str:
        """A function of something."""
        return inside + "ᵀ" if name == "ᵀ" else f"{name}({inside})"

    def join(self, sign: str, parts: list[str]) -> str:
        """Operands with a sign between them."""
        return (sign if sign in "·^" else f" {sign} ").join(parts)

    def scalar(self, text: str) -> str:
        """One number."""
        return text

    def words(self, text: str) -> str:
        """Words behind a number."""
        return text

    def symbol(self, name: str) -> str:
        """The name of a matrix."""
        return name

    def value(self, value: np.ndarray | float) -> str:
        """A number, a vector or a matrix; long ones are cut in the middle where a limit is set."""
        entries = np.asarray(value)
        if entries.ndim == 0:
            return self.scalar(number(float(entries), self.digits))
        if self.width is None or len(entries) <= self.width:
            return self.row([self.value(v) for v in entries])
        ends = max(1, self.width // 2)
        first, last = ([self.value(v) for v in part] for part in (entries[:ends], entries[-ends // 2 :]))
        return self.row([*first, "…", *last]) + f"({len(entries)})"

    def cells(self, line: Line) -> Cells:
        """Label, formula, numbers and result of a line; no numbers where it is given or only put together."""
        given = line.operands is None or is_arrangement(line.operands)
        result = self.value(line.value) + (f" {self.words(line.unit)}" if line.unit else "")
        return line.label, line.formula, None if given else self.tree(line.operands), result

    def tree(self, tree: Expression | None, outer_strength: int = 0, first: bool = True) -> str:
        """An expression, with parentheses where the one around it binds more strongly."""
        assert tree is not None
        if (name := matrix_name(tree)) is not None:
            return self.symbol(name)
        if not isinstance(tree, Operation) or is_arrangement(tree):
            shown = self.value(tree.value)
            return f"({shown})" if shown.startswith("-") and not first else shown
        if tree.name not in INFIX:
            return self.apply(tree.name, self.tree(tree.args[0], 4 if tree.name == "ᵀ" else 0))
        mine = STRENGTH[tree.name]
        # What stands to the right of a minus or a stroke keeps its parentheses: a - (b - c).
        parts = [self.tree(a, mine + (i > 0), i == 0) for i, a in enumerate(tree.args)]
        shown = self.join(tree.name, parts)
        return f"({shown})" if mine < outer_strength else shown


def render_text(
    derivation: Derivation, digits: int = 4, width: int | None = None, level: int = 0,
    columns: int | None = None,
) -> str:  # fmt: skip
    """Lines of `label: formula = numbers = result`; what is given has ≔ in place of the numbers.

    What does not fit into `columns` goes on below, each part on its own lines, broken between numbers.
    """
    style, pad = Style(digits, width), "  " * level
    titles = wrap_parts([derivation.title], pad, columns) if columns else [f"{pad}{derivation.title}"]
    out = [*titles, f"{pad}{'─' * (max(map(len, titles)) - len(pad))}"]
    for before, line in zip((None, *derivation.lines), derivation.lines, strict=False):
        if isinstance(line, Derivation):
            out += ["", render_text(line, digits, width, level + 1, columns)]
            continue
        out += [""] * isinstance(before, Derivation)
        label, formula, numbers, result = style.cells(line)
        parts = [f"{pad}{label}: {strip_quotes(formula)}", *([] if numbers is None else [f"= {numbers}"])]
        parts.append(f"{'≔' if numbers is None else '='} {result}")
        whole = " ".join(parts)
        out += [whole] if columns is None or len(whole) <= columns else wrap_parts(parts, pad, columns)
    return "\n".join(out + _foot(derivation, level, pad, columns))


def wrap_parts(parts: list[str], pad: str, columns: int) -> list[str]:
    """Return each part on its own lines of at most `columns` letters, broken at spaces."""
    out: list[str] = []
    for n, part in enumerate(parts):
        first, rest = (pad if n == 0 else f"{pad}    "), f"{pad}      "
        out += textwrap.wrap(
            part.strip(), columns, initial_indent=first, subsequent_indent=rest, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
    return out


def _foot(derivation: Derivation, level: int, pad: str, columns: int | None) -> list[str]:
    out = ["", *(f"{pad}{line}" for line in derivation.note.splitlines())] if derivation.note else []
    if columns is not None:
        out = [short for line in out for short in textwrap.wrap(line, columns, subsequent_indent=pad) or [""]]
    if derivation.check is not None and level == 0:
        out += ["", f"checked: {describe_check(derivation)}"]
    return out


def describe_check(derivation: Derivation) -> str:
    """Return in words how far the calculation is from what it was compared with."""
    return f"at most {derivation.check:.1e} from {derivation.check_source}"


def table_blocks(derivation: Derivation, style: Style) -> Iterator[Derivation | list[Cells]]:
    """Yield the sections of a calculation, and the cells of the lines that stand between them."""
    for is_section, lines in itertools.groupby(derivation.lines, lambda line: isinstance(line, Derivation)):
        if is_section:
            yield from cast(Iterator[Derivation], lines)
        else:
            yield [style.cells(line) for line in cast(Iterator[Line], lines)]


def render_markdown(derivation: Derivation, digits: int = 4, width: int | None = None, level: int = 2) -> str:
    """A heading, a table of steps, the note."""
    style, out = Style(digits, width), [f"{'#' * level} {_cell(derivation.title)}", ""]
    for block in table_blocks(derivation, style):
        if isinstance(block, Derivation):
            out += ["", render_markdown(block, digits, width, min(6, level + 1)), ""]
            continue
        out += ["| step | formula | numbers | result |", "|---|---|---|---|"]
        for label, formula, numbers, result in block:
            shown = "given" if numbers is None else f"`{_cell(numbers)}`"
            out.append(f"| {_cell(label)} | {_cell(strip_quotes(formula))} | {shown} | `{_cell(result)}` |")
    if derivation.note:
        out += ["", derivation.note]
    if derivation.check is not None and level == 2:
        out += ["", f"*Checked: {describe_check(derivation)}.*"]
    return "\n".join(out)


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")


TEX_SIGN = {"×": r" \times ", "⊙": r" \odot ", "·": r" \cdot ", "+": " + ", "-": " - ", "^": "^", "/": " / ",
            "⊗": r" \otimes "}  # fmt: skip
TEX_NAME = {"exp": r"\exp", "ln": r"\ln", "σ": r"\sigma", "tanh": r"\tanh", "sin": r"\sin", "cos": r"\cos",
            "log₂": r"\log_2"}  # fmt: skip
MATRIX = (r"\begin{bmatrix} ", r" \end{bmatrix}")


class LatexStyle(Style):
    """Numbers, vectors and operations in LaTeX's mathematical mode."""

    def row(self, entries: list[str]) -> str:
        between = r" \\ " if entries and entries[0].startswith(MATRIX[0]) else " & "
        inner = [entry.removeprefix(MATRIX[0]).removesuffix(MATRIX[1]) for entry in entries]
        return MATRIX[0] + between.join(inner) + MATRIX[1]

    def apply(self, name: str, inside: str) -> str:
        if name == "√":
            return rf"\sqrt{{{inside}}}"
        if name == "ᵀ":
            return inside + r"^{\top}"
        if name == "norm":
            return rf"\left\Vert {inside} \right\Vert"
        called = TEX_NAME.get(name) or rf"\operatorname{{{name.replace('_', ' ')}}}"
        return rf"{called}\left({inside}\right)"

    def join(self, sign: str, parts: list[str]) -> str:
        if sign == "/" and len(parts) == 2:
            return rf"\frac{{{parts[0]}}}{{{parts[1]}}}"
        return f"{{{parts[0]}}}^{{{parts[1]}}}" if sign == "^" else TEX_SIGN[sign].join(parts)

    def scalar(self, text: str) -> str:
        mantissa, _, power = text.replace("∞", r"\infty").partition("e")
        return rf"{mantissa} \cdot 10^{{{power}}}" if power else mantissa

    def words(self, text: str) -> str:
        return rf"\ \text{{{text.translate(TEX)}}}"

    def symbol(self, name: str) -> str:
        return formula_latex(name)


def render_latex(derivation: Derivation, digits: int = 4, width: int | None = None, level: int = 0) -> str:
    """Headings and displayed equations; needs amsmath."""
    style = LatexStyle(digits, width)
    out = [rf"\{'sub' * min(level, 2)}section*{{{derivation.title.translate(TEX)}}}"]
    for line in derivation.lines:
        if isinstance(line, Derivation):
            out.append(render_latex(line, digits, width, level + 1))
            continue
        label, formula, numbers, result = style.cells(line)
        equation = rf"\text{{{label.translate(TEX)}: }} {formula_latex(formula)}"
        middle = "" if numbers is None else f" &= {numbers} \\\\"
        out.append(rf"\begin{{align*}} {equation}{middle} &= {result} \end{{align*}}")
    return "\n".join(out + ([derivation.note.translate(TEX)] if derivation.note else []))


def render_html(derivation: Derivation, digits: int = 4, width: int | None = None, level: int = 3) -> str:
    """A section with a table; no script and no style, so that a page may give it its own."""
    style, escape = Style(digits, width), html.escape
    out = [f'<section class="worked"><h{level}>{escape(derivation.title)}</h{level}>']
    head = "<tr><th>step</th><th>formula</th><th>numbers</th><th>result</th></tr>"
    column = lambda cell: f"<td>{escape('given' if cell is None else strip_quotes(cell))}</td>"
    for block in table_blocks(derivation, style):
        if isinstance(block, Derivation):
            out.append(render_html(block, digits, width, min(6, level + 1)))
            continue
        body = "".join(f"<tr>{''.join(map(column, cells))}</tr>" for cells in block)
        out.append(f"<table><thead>{head}</thead><tbody>{body}</tbody></table>")
    if derivation.note:
        out.append(f"<p>{escape(derivation.note)}</p>")
    if derivation.check is not None and level == 3:
        out.append(f"<p>Checked: {escape(describe_check(derivation))}.</p>")
    return "".join(out) + "</section>"


FORMATS: dict[str, Callable[[Derivation, int, int | None], str]] = {
    "text": render_text,
    "markdown": render_markdown,
    "latex": render_latex,
    "html": render_html,
}
