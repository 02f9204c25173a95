"""Common mistakes in a line of arithmetic: one kind of operation done wrongly throughout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from heedful.exercises.numbers import Problem, Question
from heedful.inspect.explain import explain_values
from heedful.inspect.worked import Operation, Reference, Tree, evaluate

Change = Callable[
    [Operation], Tree | None
]  # an operation done wrongly, or None where the mistake is not possible


def apply_name(old: str, new: str) -> Change:
    """Another operation of the same operands."""
    return lambda node: Operation(new, node.args) if node.name == old else None


def drop_function(name: str) -> Change:
    """A function left out."""
    return lambda node: node.args[0] if node.name == name else None


def drop_divisor(node: Operation) -> Tree | None:
    return node.args[0] if node.name == "/" else None


def drop_root_divisor(node: Operation) -> Tree | None:
    divisor = node.args[1] if node.name == "/" else None
    return node.args[0] if isinstance(divisor, Operation) and divisor.name == "√" else None


def swap_difference(node: Operation) -> Tree | None:
    return Operation("-", node.args[::-1]) if node.name == "-" else None


def drop_operand(name: str, index: int) -> Change:
    """A term or a factor left out."""

    def change(node: Operation) -> Tree | None:
        if node.name != name or len(node.args) < 2:
            return None
        kept = [a for i, a in enumerate(node.args) if i != index % len(node.args)]
        return Operation(name, tuple(kept)) if len(kept) > 1 else kept[0]

    return change


def transpose_matrix(node: Operation) -> Tree | None:
    if node.name != "·" or not any(evaluate(a).ndim == 2 for a in node.args):
        return None
    return Operation("·", tuple(Operation("ᵀ", (a,)) if evaluate(a).ndim == 2 else a for a in node.args))


def keep_matrix(node: Operation) -> Tree | None:
    return node.args[0] if node.name == "ᵀ" else None


def sample_mean(node: Operation) -> Tree | None:
    if node.name != "mean" or (size := evaluate(node.args[0]).size) < 2:
        return None
    return Operation("×", (size / (size - 1), node))


MISTAKES: dict[str, Change] = {
    "the division by the root is left out": drop_root_divisor,
    "the division is left out": drop_divisor,
    "the root is left out": drop_function("√"),
    "the exponential is left out": drop_function("exp"),
    "the tanh is left out": drop_function("tanh"),
    "the σ is left out": drop_function("σ"),
    "log₂ stands where ln belongs": apply_name("ln", "log₂"),
    "ln stands where log₂ belongs": apply_name("log₂", "ln"),
    "the cosine stands where the sine belongs": apply_name("sin", "cos"),
    "the sine stands where the cosine belongs": apply_name("cos", "sin"),
    "tanh stands where σ belongs": apply_name("σ", "tanh"),
    "σ stands where tanh belongs": apply_name("tanh", "σ"),
    "the difference is taken the other way round": swap_difference,
    "a sum stands where a difference belongs": apply_name("-", "+"),
    "a difference stands where a sum belongs": apply_name("+", "-"),
    "the sum stands where the mean belongs": apply_name("mean", "sum"),
    "it is divided by n − 1, not by n": sample_mean,
    "the mean stands where the sum belongs": apply_name("sum", "mean"),
    "the matrix is used transposed": transpose_matrix,
    "the matrix is not transposed": keep_matrix,
    "the first term is left out": drop_operand("+", 0),
    "the last term is left out": drop_operand("+", -1),
    "the first factor is left out": drop_operand("×", 0),
    "the last factor is left out": drop_operand("×", -1),
    "the first factor is left out (⊙)": drop_operand("⊙", 0),
    "the last factor is left out (⊙)": drop_operand("⊙", -1),
}


def expand(tree: Tree, asked: Collection[int]) -> Tree:
    """An expression with the lines in it that were not asked for written out."""
    if isinstance(tree, Reference):
        line = tree.line
        return tree if line.operands is None or id(line) in asked else expand(line.operands, asked)
    if isinstance(tree, Operation):
        return Operation(tree.name, tuple(expand(a, asked) for a in tree.args))
    return tree


def changed(tree: Tree, change: Change) -> Tree:
    """An expression with a mistake made wherever it is possible."""
    if not isinstance(tree, Operation):
        return tree
    wrong = change(tree)
    if wrong is None:
        return Operation(tree.name, tuple(changed(a, change) for a in tree.args))
    if isinstance(wrong, Operation) and wrong.name not in (tree.name, "×"):
        return Operation(wrong.name, tuple(changed(a, change) for a in wrong.args))
    return wrong


def wrong_results(
    problem: Problem, question: Question, replaced: Mapping[int, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """The names of known mistakes and what comes out with each, from what the student had before."""
    asked = {id(other.line) for other in problem.questions}
    line = question.line
    if line.operands is not None:
        tree = expand(line.operands, asked)
        right = evaluate(tree, replaced)
        yield "the sign is wrong", -right
        for name, change in MISTAKES.items():
            try:
                with np.errstate(all="ignore"):
                    yield name, evaluate(changed(tree, change), replaced)
            except (ValueError, IndexError):
                continue  # sizes that do not fit: nobody can have worked this out
    for name, values in problem.exercise.mistakes(problem.values).items():
        other = [n for n in explain_values(values).walk() if n.label == line.label]
        same = [n for n in problem.derivation.walk() if n.label == line.label]
        if len(other) == len(same):
            yield name, other[[id(n) for n in same].index(id(line))].value


def name_mistake(
    problem: Problem, question: Question, answer: np.ndarray, replaced: Mapping[int, np.ndarray],
    tolerance: np.ndarray,
) -> str:  # fmt: skip
    """The known mistake with which exactly this answer comes out, or nothing."""
    right = question.line.value
    near = lambda wrong, size=1.0: bool((np.abs(wrong - answer) <= 2 * size * tolerance).all())
    for name, wrong in wrong_results(problem, question, replaced):
        if wrong.shape == right.shape and np.isfinite(wrong).all() and near(wrong):
            return name
    if right.size > 1 and np.abs(np.sort(right, None) - np.sort(answer, None)).max() <= tolerance.max():
        return "the numbers are right, their order is not"
    if any(
        near(right * power, max(1.0, power)) and np.abs(right).max() > 0 for power in (10, 100, 0.1, 0.01)
    ):
        return "the decimal point is in the wrong place"
    return ""
