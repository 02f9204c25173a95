"""Marks a filled sheet: partial credit, errors carried forward, and which step went wrong.

A question counts one point, each number of its answer the same share of it. A number is right if it is within
one unit of the last digit asked for of the key, or of what follows from the student's own earlier answers,
which may have been rounded on the way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from heedful.classroom.arithmetic.explain import explain_values
from heedful.classroom.arithmetic.worked import Operation, Reference, Tree, evaluate_tree, is_arrangement
from heedful.classroom.exercises.number_exercises import NumberQuestion, Problem
from heedful.classroom.exercises.sheets import head_lines, is_blank, key_text, question_line

Verdict = Literal["right", "carried forward", "partly right", "wrong", "missing", "unreadable"]
TOLERANCE_UNITS = 1.0 + 1e-9  # units of the last digit asked for
NUMBER = re.compile(r"[-+−]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+−]?\d+)?%?|[-+−]?(?:∞|inf)")
FRACTION = re.compile(r"([-+−]?\d+)/(\d*[1-9]\d*)(?![\d./])")


@dataclass(frozen=True)
class QuestionGrade:
    """The marks of one question, and what to say about it."""

    question: NumberQuestion
    verdict: Verdict
    points: float
    message: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "number": self.question.number, "step": self.question.prompt, "verdict": self.verdict,
            "points": self.points, "message": self.message,
        }  # fmt: skip


@dataclass(frozen=True)
class SheetGrade:
    """The marks of a sheet."""

    problem: Problem
    questions: tuple[QuestionGrade, ...]

    @property
    def points(self) -> float:
        return sum(grade.points for grade in self.questions)

    @property
    def total(self) -> int:
        return len(self.questions)

    @property
    def first_error(self) -> QuestionGrade | None:
        """The first step that went wrong by itself."""
        wrong = (grade for grade in self.questions if grade.verdict not in ("right", "carried forward"))
        return next(wrong, None)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the number, the step, the points and the verdict of each question as texts."""
        return [
            (str(one.question.number), one.question.prompt, f"{one.points:.2g}",
             f"{one.verdict}: {one.message}" if one.message and one.verdict != "missing" else one.verdict)
            for one in self.questions
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        first = self.first_error
        return {
            "exercise": self.problem.exercise.name, "seed": self.problem.seed,
            "points": round(self.points, 4), "total": self.total,
            "first_error": None if first is None else first.question.number,
            "questions": [grade.to_dict() for grade in self.questions],
        }  # fmt: skip


def read_numbers(response: Any) -> np.ndarray | None:
    """The numbers of a response: one, a list of them, or a text with them; None for anything else.

    A fraction such as 1/3, without spaces, is one number.
    """
    if isinstance(response, bool):
        return None
    if isinstance(response, int | float):
        return np.array([float(response)])
    if isinstance(response, Sequence) and not isinstance(response, str):
        parts = [read_numbers(part) for part in response]
        return (
            None
            if any(part is None for part in parts)
            else np.concatenate([p for p in parts if p is not None])
        )
    if not isinstance(response, str):
        return None
    as_decimal = lambda fraction: repr(float(fraction[1].replace("−", "-")) / float(fraction[2]))
    response = FRACTION.sub(as_decimal, response)
    if NUMBER.sub("", response).strip(" \t,;[](){}|"):
        return None
    numbers = [text.replace("−", "-").replace("∞", "inf").rstrip("%") for text in NUMBER.findall(response)]
    return np.array([float(text) for text in numbers])


def grade_answers(problem: Problem, answers: Mapping[int, Any]) -> SheetGrade:
    """Mark the answers, by the numbers of their questions."""
    question_by_line = {id(question.line): question for question in problem.questions}
    results: dict[int, np.ndarray] = {}  # what the student has at each line, or what follows from it
    grades = []
    for line in problem.derivation.walk():
        with np.errstate(all="ignore"):  # a student's probability may be above 1
            follows = line.value if line.operands is None else evaluate_tree(line.operands, results)
        results[id(line)] = follows
        if (question := question_by_line.get(id(line))) is None:
            continue
        grade, own = grade_question(problem, question, answers.get(question.number), follows, results)
        results[id(line)] = line.value if own is None else own
        grades.append(grade)
    return SheetGrade(problem, tuple(grades))


def grade_question(
    problem: Problem,
    question: NumberQuestion,
    response: Any,
    follows: np.ndarray,
    results: Mapping[int, np.ndarray],
) -> tuple[QuestionGrade, np.ndarray | None]:
    """Mark one response; with the student's numbers if they can be worked on with."""
    if is_blank(response):
        return QuestionGrade(question, "missing", 0.0, "no answer"), None
    numbers = read_numbers(response)
    if numbers is None:
        return QuestionGrade(question, "unreadable", 0.0, f"{response!r} is not a number"), None
    if numbers.size != question.count:
        message = f"{question.answer_format.partition(',')[0]} expected, {numbers.size} given"
        if isinstance(response, str) and "," in response and numbers.size > question.count:
            message += " (0.5 is written with a point: a comma parts two numbers)"
        return QuestionGrade(question, "wrong", 0.0, message), None
    own, key = numbers.reshape(question.line.value.shape), question.line.value
    tolerance = TOLERANCE_UNITS * 10.0**-question.digits
    loose = tolerance + rounding_effect(problem, question, follows, results)
    by_key, by_own = close(own, key, tolerance), close(own, follows, loose)
    share = float((by_key | by_own).mean())
    if by_key.all():
        return QuestionGrade(question, "right", 1.0), own
    if share == 1.0:
        return QuestionGrade(question, "carried forward", 1.0, "right with your earlier numbers"), own
    # What rounds to zero does so with a wrong sign, scale or root: beside a wrong entry it earns nothing.
    counts = ~((np.abs(key) <= tolerance) & (by_key | by_own))
    share = float(((by_key | by_own) & counts).sum() / counts.sum())
    named = name_mistake(problem, question, own, results, loose)
    wrong = [str(n + 1) for n in np.flatnonzero(~(by_key | by_own))]
    which = (
        ""
        if question.count == 1
        else f"number{'s' * (len(wrong) > 1)} {', '.join(wrong)} of {question.count}"
    )
    message = "; ".join(part for part in (which, named) if part) or "another number comes out"
    return QuestionGrade(question, "partly right" if share else "wrong", share, message), own


def rounding_effect(
    problem: Problem, question: NumberQuestion, follows: np.ndarray, results: Mapping[int, np.ndarray]
) -> np.ndarray:
    """Return how far a result may be off because each answer before it was rounded, by half a unit."""
    effect = np.zeros_like(follows)
    if question.line.operands is None:
        return effect
    question_by_line = {id(other.line): other for other in problem.questions}
    tree = expand(question.line.operands, question_by_line)
    for line in set(referenced_lines(tree)) & set(question_by_line):
        half = 0.5 * 10.0 ** -question_by_line[line].digits
        for index in np.ndindex(results[line].shape):
            changes = []
            for step in (half, -half):
                moved = results[line].copy()
                moved[index] += step
                with np.errstate(all="ignore"):
                    changes.append(np.abs(evaluate_tree(tree, {**results, line: moved}) - follows))
            effect = effect + np.nan_to_num(
                np.minimum(*changes), posinf=0.0
            )  # a jump on one side is no rounding
    return effect


def referenced_lines(tree: Tree) -> Iterator[int]:
    """The ids of the lines whose results an expression uses."""
    if isinstance(tree, Reference):
        yield id(tree.line)
    elif isinstance(tree, Operation):
        for operand in tree.args:
            yield from referenced_lines(operand)


def close(mine: np.ndarray, theirs: np.ndarray, tolerance: float | np.ndarray) -> np.ndarray:
    """Return where two arrays agree, infinite entries included."""
    with np.errstate(invalid="ignore"):
        return np.asarray((mine == theirs) | (np.abs(mine - theirs) <= tolerance))


def hint_lines(question: NumberQuestion, questions: Sequence[NumberQuestion] = ()) -> list[str]:
    """Return hints: a question about the formula, the numbers put into it, the answer."""
    from heedful.classroom.arithmetic.render import Style, strip_quotes

    style, line = Style(question.digits, None), question.line
    by_id = {id(other.line): other for other in questions}
    before = dict.fromkeys(by_id[one].number for one in referenced_lines(line.operands) if one in by_id)
    use = (
        f"your answer{'s' * (len(before) > 1)} {', '.join(map(str, before))}"
        if before
        else "the given values"
    )
    ask = f"Which numbers belong into {strip_quotes(line.formula)}? Look at {use}."
    if line.operands is None or is_arrangement(line.operands):
        return [ask, "It is put together from what was worked out or given before.", style.value(line.result)]
    return [ask, style.tree(line.operands), style.value(line.result)]


def is_passed(grade: SheetGrade) -> bool:
    """Return whether everything on a sheet is right."""
    return math.isclose(grade.points, grade.total)


# Common mistakes in a line of arithmetic: one kind of operation done wrongly throughout.


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
        others = [a for i, a in enumerate(node.args) if i != index % len(node.args)]
        return Operation(name, tuple(others)) if len(others) > 1 else others[0]

    return change


def transpose_matrix(node: Operation) -> Tree | None:
    if node.name != "·" or not any(evaluate_tree(a).ndim == 2 for a in node.args):
        return None
    return Operation("·", tuple(Operation("ᵀ", (a,)) if evaluate_tree(a).ndim == 2 else a for a in node.args))


def sample_mean(node: Operation) -> Tree | None:
    if node.name != "mean" or (size := evaluate_tree(node.args[0]).size) < 2:
        return None
    return Operation("×", (size / (size - 1), node))


def replace_by(name: str, wrong: Callable[[Tree], Operation]) -> Change:
    """Return a change of an operation to a function of its operand."""
    return lambda node: wrong(node.args[0]) if node.name == name else None


def own_column(node: Operation) -> Tree | None:
    """Give the sine of an encoding at column k the exponent of the column's number, k/d, not of its pair."""
    angle = node.args[0]
    if node.name not in ("sin", "cos") or not isinstance(angle, Operation) or angle.name != "/":
        return None
    t, power = angle.args[0], cast(Any, angle.args[1])
    exponent: Any = power.args[1] if isinstance(power, Operation) and power.name == "^" else None
    if not isinstance(exponent, Operation):
        return None
    base = power.args[0]
    twice_pair, dim = exponent.args
    column = Operation("/", (Operation("+", (twice_pair, float(node.name == "cos"))), dim))
    return Operation(node.name, (Operation("/", (t, Operation("^", (base, column)))),))


def take_degrees(node: Operation) -> Tree | None:
    angle = Operation("×", (math.pi / 180, node.args[0]))
    return Operation(node.name, (angle,)) if node.name in ("sin", "cos") else None


MISTAKES: dict[str, Change] = {
    "the exponent is that of the column, j/d, not that of its pair, 2i/d": own_column,
    "2 to the power x stands where e to the power x belongs": replace_by(
        "exp", lambda x: Operation("^", (2.0, x))
    ),
    "degrees stand where radians belong": take_degrees,
    "log₁₀ stands where ln belongs": replace_by(
        "ln", lambda x: Operation("×", (1 / math.log(10), Operation("ln", (x,))))
    ),
    "log₁₀ stands where log₂ belongs": replace_by(
        "log₂", lambda x: Operation("×", (math.log10(2), Operation("log₂", (x,))))
    ),
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
    """Write out every line of an expression that is not a question; `question_lines` are ids."""
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
    """Yield each known mistake by name, and its result when it starts from the student's earlier lines."""
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


# A number exercise asked question by question, with hints and a second try.


TRIES = 2
HELP = "Numbers of a vector are parted by spaces. ? gives a hint, an empty line skips, q stops."


def run_quiz(
    problem: Problem, read_line: Callable[[str], str | None], write_line: Callable[[str], None]
) -> tuple[SheetGrade, int]:
    """Ask every question and return the marks and the number of hints taken.

    `read_line(prompt)` returns None at the end of input.
    """
    for line in head_lines(problem, key=True)[1:]:
        write_line(line)
    write_line(HELP)
    answers: dict[int, str] = {}
    hints = 0
    for question in problem.questions:
        write_line("")
        write_line(f"{question.number} of {len(problem.questions)}   {question_line(question)}")
        left, tries = hint_lines(question, problem.questions), 0
        while tries < TRIES:
            answer = read_line("> ")
            if answer is None or answer.strip().lower() == "q":
                return grade_answers(problem, answers), hints
            if answer.strip() == "?":
                write_line(left.pop(0) if left else "That was the last hint.")
                hints += 1
                continue
            if not answer.strip():
                break
            answers[question.number] = answer
            grade = grade_answers(problem, answers).questions[question.number - 1]
            if grade.points == 1.0:
                write_line(grade.verdict)
                break
            tries += 1
            again = "; try again" if tries < TRIES else f"; it is {key_text(question)}"
            write_line(f"{grade.verdict}: {grade.message}{again}")
    return grade_answers(problem, answers), hints
