"""A worked calculation as text, Markdown, LaTeX or HTML: one walk, four ways to write a number and a sign."""

from __future__ import annotations

import html as web
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from heedful.inspect.worked import INFIX, Derivation, Line, Operation, Tree, Value

STRENGTH = {"+": 1, "-": 1, "×": 2, "⊙": 2, "·": 2, "/": 2, "^": 3}


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
    """How numbers, vectors and operations look."""

    digits: int
    wide: int | None
    row: Callable[[list[str]], str] = lambda entries: "[" + " ".join(entries) + "]"
    apply: Callable[[str, str], str] = lambda name, inside: f"{name}({inside})"
    join: Callable[[str, list[str]], str] = lambda sign, parts: (
        f" {sign} " if sign in "+-" else sign if sign in "·^" else f" {sign} "
    ).join(parts)
    scalar: Callable[[str], str] = lambda shown: shown

    def value(self, value: Value) -> str:
        """A number, a vector or a matrix; long ones are cut in the middle where a limit is set."""
        if not isinstance(value, tuple):
            return self.scalar(number(value, self.digits))
        entries = [self.value(v) for v in value]
        if self.wide is None or len(entries) <= self.wide:
            return self.row(entries)
        kept = max(1, self.wide // 2)
        return self.row([*entries[:kept], "…", *entries[-kept // 2 :]]) + f"({len(entries)})"

    def cells(self, line: Line) -> tuple[str, str, str | None, str]:
        """Label, formula, numbers and result of a line; no numbers where it is given."""
        numbers = None if line.operands is None else self.tree(line.operands)
        return line.label, line.formula, numbers, self.value(line.result)

    def tree(self, tree: Tree, outer_strength: int = 0, first: bool = True) -> str:
        """An expression, with parentheses where the one around it binds more strongly."""
        if not isinstance(tree, Operation):
            shown = self.value(tree)
            return f"({shown})" if shown.startswith("-") and not first else shown
        if tree.name not in INFIX:
            return self.apply(tree.name, self.tree(tree.args[0]))
        mine = STRENGTH[tree.name]
        # What stands to the right of a minus or a stroke keeps its parentheses: a - (b - c).
        parts = [self.tree(a, mine + (i > 0), i == 0) for i, a in enumerate(tree.args)]
        shown = self.join(tree.name, parts)
        return f"({shown})" if mine < outer_strength else shown


def render_text(derivation: Derivation, digits: int = 4, width: int | None = None, level: int = 0) -> str:
    """Lines of `label: formula = numbers = result`; what is given has ≔ in place of the numbers."""
    style, pad = Style(digits, width), "  " * level
    out = [f"{pad}{derivation.title}", f"{pad}{'─' * len(derivation.title)}"]
    for before, line in zip((None, *derivation.lines), derivation.lines, strict=False):
        if isinstance(line, Derivation):
            out += ["", render_text(line, digits, width, level + 1)]
            continue
        out += [""] * isinstance(before, Derivation)
        label, formula, numbers, result = style.cells(line)
        middle = " ≔ " if numbers is None else f" = {numbers} = "
        out.append(f"{pad}{label}: {formula}{middle}{result}")
    return "\n".join(out + _foot(derivation, level, pad))


def _foot(derivation: Derivation, level: int, pad: str) -> list[str]:
    out = ["", *(f"{pad}{line}" for line in derivation.note.splitlines())] if derivation.note else []
    if derivation.check is not None and level == 0:
        out += ["", f"checked: at most {derivation.check:.1e} from what the model computed"]
    return out


def render_markdown(derivation: Derivation, digits: int = 4, width: int | None = None, level: int = 2) -> str:
    """A heading, a table of steps, the note."""
    style, out = Style(digits, width), [f"{'#' * level} {_cell(derivation.title)}", ""]
    for is_section, lines in itertools.groupby(derivation.lines, lambda line: isinstance(line, Derivation)):
        if is_section:
            for line in lines:
                out += ["", render_markdown(cast(Derivation, line), digits, width, min(6, level + 1)), ""]
            continue
        out += ["| step | formula | numbers | result |", "|---|---|---|---|"]
        for label, formula, numbers, result in map(style.cells, cast(Iterator[Line], lines)):
            shown = "given" if numbers is None else f"`{_cell(numbers)}`"
            out.append(f"| {_cell(label)} | {_cell(formula)} | {shown} | `{_cell(result)}` |")
    if derivation.note:
        out += ["", derivation.note]
    if derivation.check is not None and level == 2:
        out += ["", f"*Checked: at most {derivation.check:.1e} from what the model computed.*"]
    return "\n".join(out)


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")


ESCAPED = {letter: "\\" + letter for letter in "{}_%&#$"}
ESCAPED |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
SIGNS = {
    "√": r"\surd", "σ": r"\sigma", "γ": r"\gamma", "β": r"\beta", "ε": r"\varepsilon", "η": r"\eta",
    "Σ": r"\Sigma", "∂": r"\partial", "·": r"\cdot", "×": r"\times", "⊙": r"\odot", "ᵀ": r"^\top", "−": "-",
    "²": "^2", "≤": r"\le", "θ": r"\theta", "α": r"\alpha", "→": r"\to", "Π": r"\Pi", "∞": r"\infty",
    "₁": "_1", "₂": "_2", "′": "'", "≔": ":=", "Ġ": r"\dot{G}", "▁": r"\_",
}  # fmt: skip
TEX = str.maketrans(ESCAPED | {letter: f"${sign}$" for letter, sign in SIGNS.items()})

TEX_SIGN = {"×": r" \times ", "⊙": r" \odot ", "·": r" \cdot ", "+": " + ", "-": " - ", "^": "^", "/": " / "}
TEX_NAME = {"√": r"\sqrt", "exp": r"\exp", "ln": r"\ln", "σ": r"\sigma", "tanh": r"\tanh", "sin": r"\sin",
            "cos": r"\cos"}  # fmt: skip


def _tex_row(entries: list[str]) -> str:
    deep = entries and entries[0].startswith(r"\begin")
    inner = [e.removeprefix(r"\begin{bmatrix} ").removesuffix(r" \end{bmatrix}") for e in entries]
    return r"\begin{bmatrix} " + (r" \\ " if deep else " & ").join(inner) + r" \end{bmatrix}"


def _tex_apply(name: str, inside: str) -> str:
    if name == "√":
        return rf"\sqrt{{{inside}}}"
    called = TEX_NAME.get(name) or rf"\operatorname{{{name.replace('_', ' ')}}}"
    return rf"{called}\left({inside}\right)"


def _tex_join(sign: str, parts: list[str]) -> str:
    if sign == "/" and len(parts) == 2:
        return rf"\frac{{{parts[0]}}}{{{parts[1]}}}"
    if sign == "^":
        return f"{{{parts[0]}}}^{{{parts[1]}}}"
    return TEX_SIGN[sign].join(parts)


def _tex_scalar(value: str) -> str:
    mantissa, _, power = value.replace("∞", r"\infty").partition("e")
    return rf"{mantissa} \cdot 10^{{{power}}}" if power else mantissa


def render_latex(derivation: Derivation, digits: int = 4, width: int | None = None, level: int = 0) -> str:
    """Headings and displayed equations; needs amsmath."""
    style = Style(digits, width, _tex_row, _tex_apply, _tex_join, _tex_scalar)
    out = [rf"\{'sub' * min(level, 2)}section*{{{derivation.title.translate(TEX)}}}"]
    for line in derivation.lines:
        if isinstance(line, Derivation):
            out.append(render_latex(line, digits, width, level + 1))
            continue
        label, formula, numbers, result = style.cells(line)
        said = rf"\text{{{label.translate(TEX)}: {formula.translate(TEX)}}}"
        middle = "" if numbers is None else f" &= {numbers} \\\\"
        out.append(rf"\begin{{align*}} {said}{middle} &= {result} \end{{align*}}")
    return "\n".join(out + ([derivation.note.translate(TEX)] if derivation.note else []))


def render_html(derivation: Derivation, digits: int = 4, width: int | None = None, level: int = 3) -> str:
    """A section with a table; no script and no style, so that a page may give it its own."""
    style, said = Style(digits, width), web.escape
    out = [f'<section class="worked"><h{level}>{said(derivation.title)}</h{level}>']
    head = "<tr><th>step</th><th>formula</th><th>numbers</th><th>result</th></tr>"
    for is_section, lines in itertools.groupby(derivation.lines, lambda line: isinstance(line, Derivation)):
        if is_section:
            out += [render_html(cast(Derivation, line), digits, width, min(6, level + 1)) for line in lines]
            continue
        rows = [
            "".join(
                f"<td>{said('given' if cell is None else cell)}</td>"
                for cell in style.cells(cast(Line, line))
            )
            for line in lines
        ]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        out.append(f"<table><thead>{head}</thead><tbody>{body}</tbody></table>")
    if derivation.note:
        out.append(f"<p>{said(derivation.note)}</p>")
    if derivation.check is not None and level == 3:
        out.append(f"<p>Checked: at most {derivation.check:.1e} from what the model computed.</p>")
    return "".join(out) + "</section>"


FORMATS: dict[str, Callable[[Derivation, int, int | None], str]] = {
    "text": render_text,
    "markdown": render_markdown,
    "latex": render_latex,
    "html": render_html,
}
