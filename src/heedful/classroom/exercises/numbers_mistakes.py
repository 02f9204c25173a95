"""Common mistakes in a line of arithmetic: one kind of operation done wrongly throughout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from heedful.classroom.arithmetic.explain import explain_values
from heedful.classroom.arithmetic.worked import Operation, Reference, Tree, evaluate_tree
from heedful.classroom.exercises.numbers import NumberQuestion, Problem

Change = Callable[
    [Operation], Tree | None
]  # an operation done wrongly, or None where the mistake is not possible


def apply_name(old: str, new: str) -> Change:
    """Return a change to another operation of the same operands."""
    return lambda node: Operation(new, node.args) if node.name == old else None


def drop_operation(name: str) -> Change:
    """Return a change that leaves an operation out: its first operand stands alone."""
    return lambda node: node.args[0] if node.name == name else None


def drop_root_divisor(node: Operation) -> Tree | None:
    divisor = node.args[1] if node.name == "/" else None
    return node.args[0] if isinstance(divisor, Operation) and divisor.name == "√" else None


def swap_difference(node: Operation) -> Tree | None:
    return Operation("-", node.args[::-1]) if node.name == "-" else None


def drop_operand(name: str, index: int) -> Change:
    """Return a change that leaves a term or a factor out."""

    def change(node: Operation) -> Tree | None:
        if node.name != name or len(node.args) < 2:
            return None
        kept = [a for i, a in enumerate(node.args) if i != index % len(node.args)]
        return Operation(name, tuple(kept)) if len(kept) > 1 else kept[0]

    return change


def transpose_matrix(node: Operation) -> Tree | None:
    if node.name != "·" or not any(evaluate_tree(a).ndim == 2 for a in node.args):
        return None
    return Operation("·", tuple(Operation("ᵀ", (a,)) if evaluate_tree(a).ndim == 2 else a for a in node.args))


def sample_mean(node: Operation) -> Tree | None:
    if node.name != "mean" or (size := evaluate_tree(node.args[0]).size) < 2:
        return None
    return Operation("×", (size / (size - 1), node))


MISTAKES: dict[str, Change] = {
    "the division by the root is left out": drop_root_divisor,
    "the division is left out": drop_operation("/"),
    "the root is left out": drop_operation("√"),
    "the exponential is left out": drop_operation("exp"),
    "the tanh is left out": drop_operation("tanh"),
    "the σ is left out": drop_operation("σ"),
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
    "the matrix is not transposed": drop_operation("ᵀ"),
    "the first term is left out": drop_operand("+", 0),
    "the last term is left out": drop_operand("+", -1),
    "the first factor is left out": drop_operand("×", 0),
    "the last factor is left out": drop_operand("×", -1),
    "the first factor is left out (⊙)": drop_operand("⊙", 0),
    "the last factor is left out (⊙)": drop_operand("⊙", -1),
}


def expand(tree: Tree, question_lines: Collection[int]) -> Tree:
    """Write out every line of an expression that is no question; `question_lines` are ids."""
    if isinstance(tree, Reference):
        line = tree.line
        return (
            tree
            if line.operands is None or id(line) in question_lines
            else expand(line.operands, question_lines)
        )
    if isinstance(tree, Operation):
        return Operation(tree.name, tuple(expand(a, question_lines) for a in tree.args))
    return tree


def apply_mistake(tree: Tree, change: Change) -> Tree:
    """Return an expression with a mistake made wherever it is possible."""
    if not isinstance(tree, Operation):
        return tree
    wrong = change(tree)
    if wrong is None:
        return Operation(tree.name, tuple(apply_mistake(a, change) for a in tree.args))
    if isinstance(wrong, Operation) and wrong.name not in (tree.name, "×"):
        return Operation(wrong.name, tuple(apply_mistake(a, change) for a in wrong.args))
    return wrong


def wrong_results(
    problem: Problem, question: NumberQuestion, substitutions: Mapping[int, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names of known mistakes and what comes out with each, from what the student had before."""
    question_lines = {id(other.line) for other in problem.questions}
    line = question.line
    if line.operands is not None:
        tree = expand(line.operands, question_lines)
        right = evaluate_tree(tree, substitutions)
        yield "the sign is wrong", -right
        for name, change in MISTAKES.items():
            try:
                with np.errstate(all="ignore"):
                    yield name, evaluate_tree(apply_mistake(tree, change), substitutions)
            except (ValueError, IndexError):
                continue  # sizes that do not fit: nobody can have worked this out
    for name, values in problem.exercise.mistakes(problem.values).items():
        other = [n for n in explain_values(values).walk() if n.label == line.label]
        same = [n for n in problem.derivation.walk() if n.label == line.label]
        if len(other) == len(same):
            yield name, other[[id(n) for n in same].index(id(line))].value


def name_mistake(
    problem: Problem, question: NumberQuestion, student_values: np.ndarray,
    substitutions: Mapping[int, np.ndarray], tolerance: np.ndarray,
) -> str:  # fmt: skip
    """Return the known mistake with which exactly these values come out, or an empty text."""
    right = question.line.value
    near = lambda wrong, size=1.0: bool((np.abs(wrong - student_values) <= 2 * size * tolerance).all())
    for name, wrong in wrong_results(problem, question, substitutions):
        if wrong.shape == right.shape and np.isfinite(wrong).all() and near(wrong):
            return name
    if (
        right.size > 1
        and np.abs(np.sort(right, None) - np.sort(student_values, None)).max() <= tolerance.max()
    ):
        return "the numbers are right, their order is not"
    if any(
        near(right * power, max(1.0, power)) and np.abs(right).max() > 0 for power in (10, 100, 0.1, 0.01)
    ):
        return "the decimal point is in the wrong place"
    return ""
