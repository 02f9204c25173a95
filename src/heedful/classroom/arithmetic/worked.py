"""A worked calculation as a small tree of values: what was put in, by which formula, what came out.

The numbers of a line are an expression (`Tree`) that is evaluated in float64 to give its result, so that what
is printed is what was computed. An operand that is the result of an earlier line refers to it, so that a line
can be evaluated again with another number in that place (`substitutions` of `evaluate_tree`). `render` writes
it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from heedful.core.errors import HeedfulError, InputError, nearest

MATRIX_WIDTH = 64  # rows and columns of a shortened matrix
NAMED_SIZE = 16  # entries of a given matrix that is written by its name where it is used
Value = Any  # a float, a tuple of floats (a vector) or a tuple of those (a matrix)


AUTOGRAD = "the gradients of autograd"


@dataclass(frozen=True)
class Operation:
    """One operation on numbers, on results of lines or on other operations."""

    name: str
    args: tuple[Tree, ...]


@dataclass(frozen=True)
class Reference:
    """The result of an earlier line as an operand."""

    line: Line = field(repr=False)


Tree = Operation | Reference | Value


class Quantity(np.ndarray):
    """The result of a line as an array that knows its line; what is computed of it does not."""

    line: Line | None

    def __array_finalize__(self, source: object) -> None:
        self.line = None


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
    "⊗": np.multiply.outer,  # every entry of a times every entry of b
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "√": np.sqrt,
    "exp": np.exp,
    "ln": np.log,
    "log₂": lambda x: np.log2(x, where=np.asarray(x) > 0, out=np.zeros_like(x)),  # 0 log 0 is 0
    "σ": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "sum": np.sum,
    "mean": np.mean,
    "min": np.min,
    "max": np.max,
    "ceil": np.ceil,
    "floor": np.floor,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
    "gelu": _by_torch(F.gelu),
    "gelu_tanh": _by_torch(lambda x: F.gelu(x, approximate="tanh")),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "ᵀ": np.transpose,
    "norm": np.linalg.norm,
}
# Numbers put together or taken apart: written as the numbers that come of it.
ARRANGEMENTS: dict[str, Callable[..., Any]] = {
    "row": lambda *entries: np.stack(entries),
    "concat": lambda *vectors: np.concatenate(vectors),
    "entry": lambda x, index: x[int(index)],
    "slice": lambda x, first, last: x[int(first) : int(last)],
}


def evaluate_tree(tree: Tree, substitutions: Mapping[int, np.ndarray] | None = None) -> np.ndarray:
    """The value of an expression, in float64.

    `substitutions` has other results for some lines, by the id of the line; lines in between are evaluated
    again.
    """
    if isinstance(tree, Reference):
        line = tree.line
        if substitutions is None or line.operands is None:
            return line.value if substitutions is None else substitutions.get(id(line), line.value)
        return (
            substitutions[id(line)]
            if id(line) in substitutions
            else evaluate_tree(line.operands, substitutions)
        )
    if not isinstance(tree, Operation):
        return np.asarray(tree, dtype=np.float64)
    values = [evaluate_tree(a, substitutions) for a in tree.args]
    if tree.name in ARRANGEMENTS:
        return np.asarray(ARRANGEMENTS[tree.name](*values))
    if tree.name in INFIX:
        out = values[0]
        for value in values[1:]:
            out = INFIX[tree.name](out, value)
        return np.asarray(out)
    return np.asarray(FUNCTIONS[tree.name](values[0]))


def op(name: str, *args: Tree | np.ndarray | torch.Tensor) -> Operation:
    """An operation on numbers, arrays, results of lines or operations."""
    return Operation(name, tuple(map(as_operand, args)))


def as_operand(value: Tree | np.ndarray | torch.Tensor) -> Tree:
    """A result of a line as a reference to it, an array as plain numbers."""
    if isinstance(value, Quantity) and value.line is not None:
        return Reference(value.line)
    return value if isinstance(value, Operation | Reference) else frozen(value)


def entry(quantity: np.ndarray, index: int) -> Operation:
    """One entry of a vector, or one row of a matrix."""
    return op("entry", quantity, float(index))


def frozen(value: Any) -> Value:
    """An array as nested tuples of plain floats."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()
    return _tuples(np.asarray(value, dtype=np.float64).tolist())


def _tuples(values: Any) -> Value:
    return tuple(map(_tuples, values)) if isinstance(values, list) else values


@dataclass(frozen=True)
class Line:
    """label: formula = operands = result unit. A line without operands is something given.

    The formula is in the language of web/src/figures/formula.tsx; words that are not mathematics stand in
    "…".
    """

    label: str
    formula: str
    operands: Tree | None
    result: Value
    unit: str = ""  # bits, nats; most numbers have none

    @property
    def value(self) -> np.ndarray:
        return np.asarray(self.result, dtype=np.float64)

    def to_dict(self, width: int | None = None) -> dict[str, Any]:
        return {
            "label": self.label, "formula": self.formula, "result": tree_dict(self.result, width),
            "operands": None if self.operands is None else tree_dict(self.operands, width), "unit": self.unit,
        }  # fmt: skip


def tree_dict(tree: Tree, width: int | None = None) -> Any:
    """Return a value or an expression for JSON: nested lists, {"op", "of"}; infinite numbers by their names.

    An operand that is a large matrix of an earlier line is {"name"}.
    Of a vector with more entries than `width` the ends are kept, of a matrix at most MATRIX_WIDTH rows and
    columns; between them stands how many are left out.
    """
    if (name := matrix_name(tree)) is not None:
        return {"name": name}
    if is_arrangement(tree):
        return tree_dict(frozen(evaluate_tree(tree)), width)
    if isinstance(tree, Operation):
        most = len(tree.args) if width is None else 4 * min(width, MATRIX_WIDTH)
        arguments = [tree_dict(a, width) for a in tree.args[:most]]
        more = [f"… {len(tree.args) - most} more …"] if len(tree.args) > most else []  # a sum over many keys
        return {"op": tree.name, "of": [*arguments, *more]}
    if not isinstance(tree, tuple):
        tree = cast(float, tree)
        return tree if math.isfinite(tree) else str(tree)
    if width is not None and tree and isinstance(tree[0], tuple):
        width = min(width, MATRIX_WIDTH)
    if width is None or len(tree) <= width:
        return [tree_dict(v, width) for v in tree]
    first, last = max(1, width - width // 3), max(1, width // 3)
    ends = [[tree_dict(v, width) for v in part] for part in (tree[:first], tree[-last:])]
    return [*ends[0], f"… {len(tree) - first - last} more …", *ends[1]]


def matrix_name(tree: Tree) -> str | None:
    """The name by which a large given matrix is written where it is used; its own line has its numbers."""
    if not isinstance(tree, Reference) or tree.line.operands is not None:
        return None
    return tree.line.label if tree.line.value.ndim == 2 and tree.line.value.size > NAMED_SIZE else None


def is_arrangement(tree: Tree) -> bool:
    """Return whether an expression is written as the numbers that come of it."""
    return isinstance(tree, Reference) or (isinstance(tree, Operation) and tree.name in ARRANGEMENTS)


@dataclass(frozen=True)
class Derivation:
    """A calculation: lines, and sections that are calculations themselves.

    `check` is the greatest difference from what a model or autograd computed; `check_source` says which did.
    """

    title: str
    lines: tuple[Line | Derivation, ...]
    note: str = ""
    check: float | None = None
    check_source: str = "what the model computed"

    def walk(self) -> Iterator[Line]:
        """Every line, those of sections included."""
        for line in self.lines:
            yield from line.walk() if isinstance(line, Derivation) else (line,)

    def __getitem__(self, label: str) -> np.ndarray:
        """The result of the first line with this label."""
        for line in self.walk():
            if line.label == label:
                return line.value
        labels = [line.label for line in self.walk() if line.label]
        raise InputError(
            f"no line {label!r}", hint=nearest(label, labels) or "there are " + ", ".join(labels)
        )

    def to_dict(self, width: int | None = None) -> dict[str, Any]:
        """Return it for JSON; `width` shortens vectors with more entries than that."""
        lines = [line.to_dict(width) for line in self.lines]
        return {
            "title": self.title, "note": self.note, "check": self.check, "check_source": self.check_source,
            "lines": lines,
        }  # fmt: skip

    def render(self, form: str, digits: int = 4, width: int | None = None) -> str:
        """Write it as text, markdown, latex or html; `width` shortens vectors with more entries than that."""
        from heedful.classroom.arithmetic.render import FORMATS

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
    """Lines as they are worked out; the result of a line is an array for the next."""

    lines: list[Line | Derivation] = field(default_factory=list)
    worst: float | None = None
    check_source: str = "what the model computed"

    def add_given(self, label: str, formula: str, value: Any) -> Quantity:
        """Something that is put in; the result of an earlier line stays tied to that line."""
        source = as_operand(value) if isinstance(value, Quantity) and value.line is not None else None
        return self._append(Line(label, formula, source, frozen(value)))

    def line(self, label: str, formula: str, tree: Operation, unit: str = "") -> Quantity:
        """Something that follows."""
        return self._append(Line(label, formula, tree, frozen(evaluate_tree(tree)), unit))

    def _append(self, line: Line) -> Quantity:
        self.lines.append(line)
        return self.reference(line)

    @staticmethod
    def reference(line: Line) -> Quantity:
        """The result of a line as an operand for others."""
        result = line.value.view(Quantity)
        result.line = line
        return result

    def last(self) -> Quantity:
        """The result of the last line."""
        line = self.lines[-1]
        assert isinstance(line, Line)
        return self.reference(line)

    def section(self, derivation: Derivation) -> Derivation:
        self.lines.append(derivation)
        if derivation.check is not None:
            self.worst = max(self.worst or 0.0, derivation.check)
            self.check_source = derivation.check_source
        return derivation

    def compare(self, quantity: str, mine: np.ndarray, theirs: torch.Tensor) -> None:
        """Compare with what the model or autograd computed, to the precision it computes in."""
        other = theirs.detach().cpu().double().numpy()
        gap = float(np.abs(mine - other).max())
        unit = {torch.float64: 1e-6, torch.float32: 1e-4}.get(theirs.dtype, 5e-2)
        if not gap <= unit * max(1.0, float(np.abs(other).max())):
            raise HeedfulError(
                f"the worked {quantity} differs from {self.check_source} by {gap:.2g}",
                hint="please report this",
            )
        self.worst = gap if self.worst is None else max(self.worst, gap)

    def finish(self, title: str, note: str = "") -> Derivation:
        return Derivation(title, tuple(self.lines), note, self.worst, self.check_source)
