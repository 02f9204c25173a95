"""Formulas as LaTeX and as MathML, from one line of plain text such as `w = exp(s) / Σ exp(s)`.

The language is that of web/src/figures/formula.tsx. Words that are not mathematics stand in "…".
"""

from __future__ import annotations

import html
import re


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
