"""A worked calculation as a small tree of values: what was put in, by which formula, what came out.

The numbers of a line are an expression (`Tree`) that is evaluated in float64 to give its result, so that what
is printed is what was computed. `render` writes it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from heedful.errors import HeedfulError, InputError, nearest

MATRIX_WIDTH = 64  # rows and columns of a shortened matrix
Value = Any  # a float, a tuple of floats (a vector) or a tuple of those (a matrix)


@dataclass(frozen=True)
class Operation:
    """One operation on numbers or on other operations."""

    name: str
    args: tuple[Tree, ...]


Tree = Operation | Value


def _by_torch(fn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: fn(torch.from_numpy(np.atleast_1d(x))).numpy().reshape(np.shape(x))


# What each operation is. The sign of an infix one is its name; the others are written as functions.
INFIX: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "×": lambda a, b: a * b,  # a number times anything
    "⊙": lambda a, b: a * b,  # entry by entry
    "·": lambda a, b: a @ b,  # a dot product, or a matrix times a vector
    "/": lambda a, b: a / b,
    "^": lambda a, b: a**b,
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "√": np.sqrt,
    "exp": np.exp,
    "ln": np.log,
    "σ": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "sum": np.sum,
    "mean": np.mean,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
    "gelu": _by_torch(F.gelu),
    "gelu_tanh": _by_torch(lambda x: F.gelu(x, approximate="tanh")),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def evaluate(tree: Tree) -> np.ndarray:
    """The value of an expression, in float64."""
    if not isinstance(tree, Operation):
        return np.asarray(tree, dtype=np.float64)
    values = [evaluate(a) for a in tree.args]
    if tree.name in INFIX:
        out = values[0]
        for value in values[1:]:
            out = INFIX[tree.name](out, value)
        return np.asarray(out)
    return np.asarray(FUNCTIONS[tree.name](values[0]))


def op(name: str, *args: Tree | np.ndarray | torch.Tensor) -> Operation:
    """An operation on numbers, arrays or operations."""
    return Operation(name, tuple(a if isinstance(a, Operation) else frozen(a) for a in args))


def frozen(value: Any) -> Value:
    """An array as nested tuples of plain floats."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()
    return _tuples(np.asarray(value, dtype=np.float64).tolist())


def _tuples(values: Any) -> Value:
    return tuple(map(_tuples, values)) if isinstance(values, list) else values


@dataclass(frozen=True)
class Line:
    """label: formula = operands = result. A line without operands is something given."""

    label: str
    formula: str
    operands: Tree | None
    result: Value

    @property
    def value(self) -> np.ndarray:
        return np.asarray(self.result, dtype=np.float64)

    def to_dict(self, width: int | None = None) -> dict[str, Any]:
        return {
            "label": self.label, "formula": self.formula, "result": tree_dict(self.result, width),
            "operands": None if self.operands is None else tree_dict(self.operands, width),
        }  # fmt: skip


def tree_dict(tree: Tree, width: int | None = None) -> Any:
    """Return a value or an expression for JSON: nested lists, {"op", "of"}; infinite numbers by their names.

    Of a vector with more entries than `width` the ends are kept, of a matrix at most MATRIX_WIDTH rows and
    columns; between them stands how many are left out.
    """
    if isinstance(tree, Operation):
        most = len(tree.args) if width is None else 4 * min(width, MATRIX_WIDTH)
        kept = [tree_dict(a, width) for a in tree.args[:most]]
        more = [f"… {len(tree.args) - most} more …"] if len(tree.args) > most else []  # a sum over many keys
        return {"op": tree.name, "of": [*kept, *more]}
    if not isinstance(tree, tuple):
        return tree if math.isfinite(tree) else str(tree)
    if width is not None and tree and isinstance(tree[0], tuple):
        width = min(width, MATRIX_WIDTH)
    if width is None or len(tree) <= width:
        return [tree_dict(v, width) for v in tree]
    first, last = max(1, width - width // 3), max(1, width // 3)
    ends = [[tree_dict(v, width) for v in part] for part in (tree[:first], tree[-last:])]
    return [*ends[0], f"… {len(tree) - first - last} more …", *ends[1]]


@dataclass(frozen=True)
class Derivation:
    """A calculation: lines, and sections that are calculations themselves.

    `check` is the greatest difference from what a model computed, where one did.
    """

    title: str
    lines: tuple[Line | Derivation, ...]
    note: str = ""
    check: float | None = None

    def walk(self) -> Iterator[Line]:
        """Every line, those of sections included."""
        for line in self.lines:
            yield from line.walk() if isinstance(line, Derivation) else (line,)

    def __getitem__(self, label: str) -> np.ndarray:
        """The result of the first line with this label."""
        for line in self.walk():
            if line.label == label:
                return line.value
        known = [line.label for line in self.walk() if line.label]
        raise InputError(f"no line {label!r}", hint=nearest(label, known) or "there are " + ", ".join(known))

    def to_dict(self, width: int | None = None) -> dict[str, Any]:
        """Return it for JSON; `width` shortens vectors with more entries than that."""
        lines = [line.to_dict(width) for line in self.lines]
        return {"title": self.title, "note": self.note, "check": self.check, "lines": lines}

    def render(self, form: str, digits: int = 4, width: int | None = None) -> str:
        """Write it as text, markdown, latex or html; `width` shortens vectors with more entries than that."""
        from heedful.inspect.render import FORMATS

        return FORMATS[form](self, digits, width)

    def text(self, digits: int = 4, width: int | None = None) -> str:
        return self.render("text", digits, width)

    def markdown(self, digits: int = 4, width: int | None = None) -> str:
        return self.render("markdown", digits, width)

    def latex(self, digits: int = 4, width: int | None = None) -> str:
        return self.render("latex", digits, width)

    def html(self, digits: int = 4, width: int | None = None) -> str:
        return self.render("html", digits, width)

    def __str__(self) -> str:
        return self.text(width=16)

    def _repr_html_(self) -> str:
        return self.html(width=16)


@dataclass
class Sheet:
    """Lines as they are worked out; what a line gives is an array for the next."""

    lines: list[Line | Derivation] = field(default_factory=list)
    worst: float | None = None

    def add_given(self, label: str, formula: str, value: Any) -> np.ndarray:
        """Something that is put in."""
        line = Line(label, formula, None, frozen(value))
        self.lines.append(line)
        return line.value

    def line(self, label: str, formula: str, tree: Operation) -> np.ndarray:
        """Something that follows."""
        result = evaluate(tree)
        self.lines.append(Line(label, formula, tree, frozen(result)))
        return result

    def section(self, derivation: Derivation) -> Derivation:
        self.lines.append(derivation)
        self.worst = derivation.check if self.worst is None else max(self.worst, derivation.check or 0.0)
        return derivation

    def compare(self, quantity: str, mine: np.ndarray, theirs: torch.Tensor) -> None:
        """Against what the model computed, to the precision it computes in; more is a fault of ours."""
        other = theirs.detach().cpu().double().numpy()
        gap = float(np.abs(mine - other).max())
        unit = {torch.float64: 1e-6, torch.float32: 1e-4}.get(theirs.dtype, 5e-2)
        if not gap <= unit * max(1.0, float(np.abs(other).max())):
            raise HeedfulError(
                f"the worked {quantity} differs from the model's by {gap:.2g}", hint="please report this"
            )
        self.worst = gap if self.worst is None else max(self.worst, gap)

    def finish(self, title: str, note: str = "") -> Derivation:
        return Derivation(title, tuple(self.lines), note, self.worst)
