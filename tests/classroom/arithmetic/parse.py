"""Reads the printed arithmetic back: from text to numbers, with how far rounding may have moved the result.

The grammar is that of the text alone; nothing of the library is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import torch
from torch import Tensor

TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?(?:e-?\d+)?|∞|[A-Za-z_][A-Za-z_0-9]*₂?|[√σᵀ]|[-+×⊙⊗·/^()\[\]])")
STRENGTH = {"+": 1, "-": 1, "×": 2, "⊙": 2, "⊗": 2, "·": 2, "/": 2, "^": 3}
UNIT = re.compile(r" (bits|nats|steps|%)$")
APPLY = {
    "√": torch.sqrt,
    "exp": torch.exp,
    "ln": torch.log,
    "log₂": lambda x: torch.where(x > 0, x, 1).log2(),
    "norm": torch.linalg.vector_norm,
    "σ": torch.sigmoid,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "sum": torch.sum,
    "mean": torch.mean,
    "min": torch.min,
    "max": torch.max,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x) ** 2,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


@dataclass
class Reader:
    """Recursive descent. Every number is a leaf, so that a derivative says what half a digit of it does."""

    words: list[str]
    digits: int  # how many were printed at most: a number with fewer decimals is exact
    leaves: list[Tensor] = field(default_factory=list)
    halves: list[Tensor] = field(default_factory=list)  # half a unit of the last printed digit, or 0
    names: dict[str, str] = field(default_factory=dict)  # matrices that stand on a line of their own
    at: int = 0

    def take(self) -> str:
        self.at += 1
        return self.words[self.at - 1]

    def peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def expression(self, around: int = 1) -> Tensor:
        left = self.atom()
        while self.peek() == "ᵀ":
            self.take()
            left = left.t()
        while STRENGTH.get(self.peek(), 0) >= around:
            sign = self.take()
            right = self.expression(STRENGTH[sign] + 1)
            left = combine(sign, left, right)
        return left

    def atom(self) -> Tensor:
        word = self.take()
        if word == "-":
            return -self.atom()
        if word == "(":
            inside = self.expression()
            assert self.take() == ")"
            return inside
        if word == "[":
            return self.leaf(*self.entries())
        if word in APPLY:
            assert self.take() == "("
            inside = self.expression()
            assert self.take() == ")"
            return APPLY[word](inside)
        if word in self.names:
            inner = parse(self.names[word], self.digits)
            value = inner.expression()
            self.leaves += inner.leaves
            self.halves += inner.halves
            return value
        return self.leaf(*self.number(word))

    def entries(self) -> tuple[list, list]:
        """What stands between brackets: numbers, or rows of them; and the half digit of each."""
        values, halves = [], []
        while (word := self.take()) != "]":
            sign = -1.0 if word == "-" else 1.0
            value, half = self.entries() if word == "[" else self.number(self.take() if sign < 0 else word)
            values.append(value if word == "[" else sign * value)
            halves.append(half)
        return values, halves

    def number(self, word: str) -> tuple[float, float]:
        if word == "∞":
            return float("inf"), 0.0
        mantissa, _, power = word.partition("e")
        decimals = len(mantissa.partition(".")[2])
        rounded = decimals >= self.digits - bool(power)
        return float(word), 0.5 * 10.0 ** (int(power or 0) - decimals) if rounded else 0.0

    def leaf(self, value: object, half: object) -> Tensor:
        self.leaves.append(torch.tensor(value, dtype=torch.float64, requires_grad=True))
        self.halves.append(torch.tensor(half, dtype=torch.float64))
        return self.leaves[-1]


def combine(sign: str, a: Tensor, b: Tensor) -> Tensor:
    if sign == "·":
        return a @ b
    if sign == "⊗":
        return torch.outer(a, b)
    return {"+": a.add, "-": a.sub, "×": a.mul, "⊙": a.mul, "/": a.div, "^": a.pow}[sign](b)


def parse(text: str, digits: int) -> Reader:
    words, at = [], 0
    while at < len(text.rstrip()):
        found = TOKEN.match(text, at)
        assert found, f"cannot read {text[at:]!r}"
        words.append(found[1])
        at = found.end()
    return Reader(words, digits)


def check_lines(lines: list[str], digits: int, first: int = 0, every: int = 1) -> int:
    """How many printed lines, one in `every`, give their printed results; each that has numbers must."""
    names: dict[str, str] = {}
    count = 0
    for n, line in enumerate(lines):
        if " ≔ [[" in line:
            names[line.strip().partition(":")[0]] = line.partition(" ≔ ")[2]
        count += n % every == first % every and check_line(line, digits, names)
    return count


def check_line(line: str, digits: int, names: dict[str, str] | None = None) -> bool:
    """Whether the numbers of a printed line give its printed result, to the printed precision.

    `names` has the matrices that are written by name. Each printed number may be off by half its last digit:
    the result by the sum of what that does, to first order with some room for the second, and by its own half
    digit.
    """
    if " ≔ " in line or line.count(" = ") < 2:
        return False
    numbers, result = UNIT.sub("", line).split(" = ")[-2:]
    left, right = parse(numbers, digits), parse(result, digits)
    left.names = names or {}
    got, said = left.expression().flatten(), right.expression().flatten()
    assert left.at == len(left.words), line
    own = right.halves[0].flatten()
    finite = torch.isfinite(said.detach())
    assert torch.equal(torch.isfinite(got.detach()), finite), line
    for i in torch.nonzero(finite).flatten().tolist():
        slopes = torch.autograd.grad(got[i], left.leaves, retain_graph=True, allow_unused=True)
        pairs = zip(slopes, left.halves, strict=True)
        room = sum(float((g.nan_to_num().abs() * h).sum()) for g, h in pairs if g is not None)
        gap = abs(float(got[i].detach() - said[i].detach()))
        assert gap <= 1.2 * room + 1.01 * float(own[i]) + 1e-9, (line, i)
    return True
