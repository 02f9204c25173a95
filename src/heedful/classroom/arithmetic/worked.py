"""A worked calculation as a small tree of values: what was put in, by which formula, what came out.

An `Expression` is numbers that know how they were computed: `a @ b + c` of expressions is one as well. Its
value follows in float64, so that what is printed is what was computed. A `Line` is an expression with a label
and a formula. Where later lines use it, a student's own number can stand in its place (`evaluate_tree`). A
`Derivation` is the calculation as it is worked: lines, and parts that are calculations themselves. `render`
writes it out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from heedful.core.errors import HeedfulError, InputError, nearest

if TYPE_CHECKING:
    from torch import Tensor

MATRIX_WIDTH = 64  # rows and columns of a shortened matrix
NAMED_SIZE = 16  # entries of a given matrix that is written by its name where it is used
AUTOGRAD = "the gradients of autograd"


class Expression:
    """Numbers that know how they were computed: plain ones, an operation on others, or a line."""

    value: np.ndarray
    __array_ufunc__ = None  # an array on the left of an operator leaves it to the expression

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.value, dtype)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Expression]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int | slice) -> Expression:
        """One entry of a vector or row of a matrix, or a slice of them."""
        if isinstance(index, slice):
            first, last, _ = index.indices(len(self))
            return op("slice", self, first, last)
        return op("entry", self, index)

    def __add__(self, other: Operand) -> Operation:
        return op("+", *self._terms("+"), other)

    def __radd__(self, other: Operand) -> Operation:
        return op("+", other, self)

    def __sub__(self, other: Operand) -> Operation:
        return op("-", self, other)

    def __rsub__(self, other: Operand) -> Operation:
        return op("-", other, self)

    def __mul__(self, other: Operand) -> Operation:
        """A number times anything is ×, two vectors entry by entry ⊙."""
        if np.ndim(self.value) and np.ndim(as_expression(other).value):
            return op("⊙", self, other)
        return op("×", *self._terms("×"), other)

    def __rmul__(self, other: Operand) -> Operation:
        return as_expression(other) * self

    def __matmul__(self, other: Operand) -> Operation:
        return op("·", self, other)

    def __truediv__(self, other: Operand) -> Operation:
        return op("/", self, other)

    def _terms(self, name: str) -> tuple[Expression, ...]:
        """The terms of a sum or the factors of a product that goes on; otherwise the expression itself."""
        return self.args if isinstance(self, Operation) and self.name == name else (self,)


class Numbers(Expression):
    """Plain numbers, whose rows and entries are plain numbers as well."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value, dtype=np.float64)

    def __getitem__(self, index: int | slice) -> Expression:
        return Numbers(self.value[index])


@dataclass(frozen=True, eq=False)
class Operation(Expression):
    """One operation on expressions."""

    name: str
    args: tuple[Expression, ...]

    @cached_property
    def value(self) -> np.ndarray:  # type: ignore[override]
        """The result, in float64."""
        return apply_operation(self.name, [argument.value for argument in self.args])


@dataclass(frozen=True, eq=False)
class Line(Expression):
    """label: formula = operands = value unit. A line without operands is something given.

    The formula is in the language of web/src/figures/formula.tsx; words that are not mathematics stand in
    "…".
    """

    label: str
    formula: str
    operands: Expression | None = field(repr=False)
    value: np.ndarray
    unit: str = ""  # bits, nats; most numbers have none

    def to_dict(self, width: int | None = None) -> dict[str, Any]:
        return {
            "label": self.label, "formula": self.formula, "result": value_list(self.value, width),
            "operands": None if self.operands is None else tree_dict(self.operands, width), "unit": self.unit,
        }  # fmt: skip


Operand = Expression | np.ndarray | float
Vector = Annotated[Expression, 1]  # as the values of a file are checked
Matrix = Annotated[Expression, 2]


def as_expression(value: Operand) -> Expression:
    """Return an expression as it is, anything else as plain numbers."""
    return value if isinstance(value, Expression) else Numbers(value)


def op(name: str, *args: Operand) -> Operation:
    """An operation by its name: those of Python's operators, and all others."""
    return Operation(name, tuple(map(as_expression, args)))


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
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
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


def apply_operation(name: str, values: list[np.ndarray]) -> np.ndarray:
    """The result of one operation; an infix one goes on from left to right."""
    if name in ARRANGEMENTS:
        return np.asarray(ARRANGEMENTS[name](*values))
    if name not in INFIX:
        return np.asarray(FUNCTIONS[name](values[0]))
    result = values[0]
    for value in values[1:]:
        result = INFIX[name](result, value)
    return np.asarray(result)


def evaluate_tree(tree: Expression, substitutions: Mapping[Line, np.ndarray]) -> np.ndarray:
    """The value of an expression if some lines have other results; lines in between are worked again."""
    if isinstance(tree, Operation):
        return apply_operation(tree.name, [evaluate_tree(a, substitutions) for a in tree.args])
    if not isinstance(tree, Line) or tree in substitutions:
        return substitutions[tree] if isinstance(tree, Line) else tree.value
    return tree.value if tree.operands is None else evaluate_tree(tree.operands, substitutions)


def tree_dict(tree: Expression, width: int | None = None) -> Any:
    """Return an expression for JSON: numbers, {"op", "of"}, or {"name"} of a large matrix of an earlier line.

    Of a vector with more entries than `width` the ends are kept, of a matrix at most MATRIX_WIDTH rows and
    columns; between them stands how many are left out.
    """
    if (name := matrix_name(tree)) is not None:
        return {"name": name}
    if not isinstance(tree, Operation) or is_arrangement(tree):
        return value_list(tree.value, width)
    most = len(tree.args) if width is None else 4 * min(width, MATRIX_WIDTH)
    arguments = [tree_dict(a, width) for a in tree.args[:most]]
    more = [f"… {len(tree.args) - most} more …"] if len(tree.args) > most else []  # a sum over many keys
    return {"op": tree.name, "of": [*arguments, *more]}


def value_list(value: np.ndarray, width: int | None = None) -> Any:
    """Return numbers as nested lists, shortened as `tree_dict` says; infinite ones by their names."""
    if np.ndim(value) == 0:
        return float(value) if math.isfinite(value) else str(float(value))
    if width is not None and value.ndim > 1:
        width = min(width, MATRIX_WIDTH)
    if width is None or len(value) <= width:
        return [value_list(v, width) for v in value]
    first, last = max(1, width - width // 3), max(1, width // 3)
    ends = [[value_list(v, width) for v in part] for part in (value[:first], value[-last:])]
    return [*ends[0], f"… {len(value) - first - last} more …", *ends[1]]


def matrix_name(tree: Expression) -> str | None:
    """The name by which a large given matrix is written where it is used; its own line has its numbers."""
    if not isinstance(tree, Line) or tree.operands is not None:
        return None
    return tree.label if tree.value.ndim == 2 and tree.value.size > NAMED_SIZE else None


def is_arrangement(tree: Expression) -> bool:
    """Return whether an expression is written as the numbers that come of it."""
    return isinstance(tree, Line) or (isinstance(tree, Operation) and tree.name in ARRANGEMENTS)


@dataclass
class Derivation:
    """A calculation: lines, and parts that are calculations themselves.

    `check` is the greatest difference from what a model or autograd computed; `check_source` says which did.
    """

    title: str = ""
    lines: list[Line | Derivation] = field(default_factory=list)
    note: str = ""
    check: float | None = None
    check_source: str = "what the model computed"

    def given(self, label: str, formula: str, value: Operand) -> Line:
        """Add something that is put in; the result of an earlier line stays tied to that line."""
        source = value if isinstance(value, Line) else None
        self.lines.append(line := Line(label, formula, source, as_expression(value).value))
        return line

    def line(self, label: str, formula: str, operands: Operation, unit: str = "") -> Line:
        """Add something that follows."""
        self.lines.append(line := Line(label, formula, operands, operands.value, unit))
        return line

    def add(self, part: Derivation) -> None:
        """Add a calculation as a part of this one."""
        self.lines.append(part)
        if part.check is not None:
            self.check, self.check_source = max(self.check or 0.0, part.check), part.check_source

    @contextlib.contextmanager
    def part(self, title: str = "") -> Iterator[Derivation]:
        """Give a new calculation, which is added as a part once it is worked."""
        part = Derivation(title)
        yield part
        self.add(part)

    def compare(self, quantity: str, mine: Any, theirs: Tensor) -> None:
        """Compare with what the model or autograd computed, to the precision it computes in."""
        other = theirs.detach().cpu().double().numpy()
        gap = float(np.abs(np.asarray(mine) - other).max())
        unit = {"torch.float64": 1e-6, "torch.float32": 1e-4}.get(str(theirs.dtype), 5e-2)
        if not gap <= unit * max(1.0, float(np.abs(other).max())):
            raise HeedfulError(
                f"the worked {quantity} differs from {self.check_source} by {gap:.2g}",
                hint="please report this",
            )
        self.check = gap if self.check is None else max(self.check, gap)

    def walk(self) -> Iterator[Line]:
        """Every line, those of parts included."""
        for line in self.lines:
            yield from line.walk() if isinstance(line, Derivation) else (line,)

    def find(self, label: str) -> Line:
        """The first line with this label."""
        for line in self.walk():
            if line.label == label:
                return line
        labels = [line.label for line in self.walk() if line.label]
        raise InputError(
            f"no line {label!r}", hint=nearest(label, labels) or "there are " + ", ".join(labels)
        )

    def __getitem__(self, label: str) -> np.ndarray:
        """The result of the first line with this label."""
        return self.find(label).value

    def to_dict(self, width: int | None = None) -> dict[str, Any]:
        """Return it for JSON; `width` shortens vectors with more entries than that."""
        return {
            "title": self.title, "note": self.note, "check": self.check, "check_source": self.check_source,
            "lines": [line.to_dict(width) for line in self.lines],
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
