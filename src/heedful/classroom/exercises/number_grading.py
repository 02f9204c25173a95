"""Marks a filled sheet: partial credit, errors carried forward, and which step went wrong.

A question counts one point, each number of its answer the same share of it. A number is right if it is within
one unit of the last digit asked for of the key, or of what follows from the student's own earlier answers,
which may have been rounded on the way.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from heedful.classroom.arithmetic.explain import explain_values
from heedful.classroom.arithmetic.render import Style, strip_quotes
from heedful.classroom.arithmetic.worked import Expression, Line, Operation, evaluate_tree, is_arrangement, op
from heedful.classroom.exercises.number_exercises import NumberQuestion, Problem
from heedful.classroom.exercises.sheets import head_lines, is_blank, key_text, question_line

Results = dict[Line, np.ndarray]  # what a student has at each line, or what follows from it
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
        parts = [own for part in response if (own := read_numbers(part)) is not None]
        return np.concatenate(parts) if len(parts) == len(response) else None
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
    questions = {question.line: question for question in problem.questions}
    results: Results = {}
    grades = []
    for line in problem.derivation.walk():
        with np.errstate(all="ignore"):  # a student's probability may be above 1
            results[line] = line.value if line.operands is None else evaluate_tree(line.operands, results)
        if (question := questions.get(line)) is not None:
            grade, own = grade_question(problem, question, answers.get(question.number), results)
            results[line] = line.value if own is None else own
            grades.append(grade)
    return SheetGrade(problem, tuple(grades))


def grade_question(
    problem: Problem, question: NumberQuestion, response: Any, results: Results
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
            message += " (0.5 is written with a point: a comma separates two numbers)"
        return QuestionGrade(question, "wrong", 0.0, message), None
    key, follows = question.line.value, results[question.line]
    own, tolerance = numbers.reshape(key.shape), TOLERANCE_UNITS * 10.0**-question.digits
    loose = tolerance + rounding_effect(problem, question, results)
    by_key = close(own, key, tolerance)
    right = by_key | close(own, follows, loose)
    if by_key.all():
        return QuestionGrade(question, "right", 1.0), own
    if right.all():
        return QuestionGrade(question, "carried forward", 1.0, "right with your earlier numbers"), own
    # What rounds to zero does so with a wrong sign, scale or root: beside a wrong entry it earns nothing.
    counts = ~((np.abs(key) <= tolerance) & right)
    share = float((right & counts).sum() / counts.sum())
    wrong = [str(n + 1) for n in np.flatnonzero(~right)]
    plural = "s" * (len(wrong) > 1)
    which = f"number{plural} {', '.join(wrong)} of {question.count}" if question.count > 1 else ""
    parts = [which, name_mistake(problem, question, own, results, loose)]
    message = "; ".join(filter(None, parts)) or "another number comes out"
    return QuestionGrade(question, "partly right" if share else "wrong", share, message), own


def rounding_effect(problem: Problem, question: NumberQuestion, results: Results) -> np.ndarray:
    """Return how far a result may be off because each answer before it was rounded, by half a unit."""
    follows = results[question.line]
    effect = np.zeros_like(follows)
    if (tree := expand(question, problem.questions)) is None:
        return effect
    digits = {other.line: other.digits for other in problem.questions}
    for line in {line for line in lines_in(tree) if line in digits}:
        half = 0.5 * 10.0 ** -digits[line]
        for index in np.ndindex(results[line].shape):
            changes = []
            for step in (half, -half):
                moved = results[line].copy()
                moved[index] += step
                with np.errstate(all="ignore"):
                    changes.append(np.abs(evaluate_tree(tree, {**results, line: moved}) - follows))
            # A jump on one side is no rounding.
            effect = effect + np.nan_to_num(np.minimum(*changes), posinf=0.0)
    return effect


def lines_in(tree: Expression | None) -> Iterator[Line]:
    """Yield the lines whose results an expression uses."""
    if isinstance(tree, Line):
        yield tree
    elif isinstance(tree, Operation):
        for operand in tree.args:
            yield from lines_in(operand)


def close(mine: np.ndarray, theirs: np.ndarray, tolerance: float | np.ndarray) -> np.ndarray:
    """Return where two arrays agree, infinite entries included."""
    with np.errstate(invalid="ignore"):
        return np.asarray((mine == theirs) | (np.abs(mine - theirs) <= tolerance))


def hint_lines(question: NumberQuestion, questions: Sequence[NumberQuestion] = ()) -> list[str]:
    """Return hints: a question about the formula, the numbers put into it, the answer."""
    style, line = Style(question.digits, None), question.line
    number_of = {other.line: other.number for other in questions}
    before = dict.fromkeys(str(number_of[one]) for one in lines_in(line.operands) if one in number_of)
    use = f"your answer{'s' * (len(before) > 1)} {', '.join(before)}" if before else "the given values"
    ask = f"Which numbers go into {strip_quotes(line.formula)}? Look at {use}."
    if line.operands is None:
        numbers = "Nothing is computed here: the formula says what it is."
    elif is_arrangement(line.operands):  # lines side by side: how each of them is worked
        entries = line.operands.args if isinstance(line.operands, Operation) else (line.operands,)
        steps = [one.operands for one in entries if isinstance(one, Line) and one.operands is not None]
        numbers = "These side by side: " + ", ".join(map(style.tree, steps or entries))
    else:
        numbers = style.tree(line.operands)
    return [ask, numbers, style.value(line.value)]


def is_passed(grade: SheetGrade) -> bool:
    """Return whether everything on a sheet is right."""
    return math.isclose(grade.points, grade.total)


# Common mistakes in a line of arithmetic: one kind of operation done wrongly throughout.


# An operation done wrongly, or None where the mistake is not possible.
Change = Callable[[Operation], Expression | None]


def rename(old: str, new: str) -> Change:
    """Return a change to another operation of the same operands."""
    return lambda node: Operation(new, node.args) if node.name == old else None


def replace_by(name: str, wrong: Callable[[Expression], Expression]) -> Change:
    """Return a change of an operation to something else made of its first operand."""
    return lambda node: wrong(node.args[0]) if node.name == name else None


def leave_out(name: str) -> Change:
    """Return a change that leaves an operation out: its first operand stands alone."""
    return replace_by(name, lambda operand: operand)


def leave_out_operand(name: str, index: int) -> Change:
    """Return a change that leaves a term or a factor out."""

    def change(node: Operation) -> Expression | None:
        if node.name != name or len(node.args) < 2:
            return None
        others = [a for i, a in enumerate(node.args) if i != index % len(node.args)]
        return op(name, *others) if len(others) > 1 else others[0]

    return change


def leave_out_root(node: Operation) -> Expression | None:
    divisor = node.args[1] if node.name == "/" else None
    return node.args[0] if isinstance(divisor, Operation) and divisor.name == "√" else None


def swap_difference(node: Operation) -> Expression | None:
    return Operation("-", node.args[::-1]) if node.name == "-" else None


def transpose_matrix(node: Operation) -> Expression | None:
    if node.name != "·" or not any(a.value.ndim == 2 for a in node.args):
        return None
    return op("·", *(op("ᵀ", a) if a.value.ndim == 2 else a for a in node.args))


def sample_mean(node: Operation) -> Expression | None:
    if node.name != "mean" or (size := node.args[0].value.size) < 2:
        return None
    return op("×", size / (size - 1), node)


def own_column(node: Operation) -> Expression | None:
    """Give the sine of an encoding at column k the exponent of the column's number, k/d, not of its pair."""
    match node:
        case Operation(
            ("sin" | "cos") as name,
            (Operation("/", (t, Operation("^", (base, Operation(_, (twice_pair, dim)))))),),
        ):
            return op(name, t / op("^", base, (twice_pair + float(name == "cos")) / dim))
    return None


def take_degrees(node: Operation) -> Expression | None:
    return op(node.name, op("×", math.pi / 180, node.args[0])) if node.name in ("sin", "cos") else None


MISTAKES: dict[str, Change] = {
    "the exponent is that of the column, j/d, not that of its pair, 2i/d": own_column,
    "2 to the power x stands where e to the power x belongs": replace_by("exp", lambda x: op("^", 2.0, x)),
    "degrees stand where radians belong": take_degrees,
    "log₁₀ stands where ln belongs": replace_by("ln", lambda x: op("×", 1 / math.log(10), op("ln", x))),
    "log₁₀ stands where log₂ belongs": replace_by("log₂", lambda x: op("×", math.log10(2), op("log₂", x))),
    "the division by the root is left out": leave_out_root,
    "the division is left out": leave_out("/"),
    "the root is left out": leave_out("√"),
    "the exponential is left out": leave_out("exp"),
    "the tanh is left out": leave_out("tanh"),
    "the σ is left out": leave_out("σ"),
    "log₂ stands where ln belongs": rename("ln", "log₂"),
    "ln stands where log₂ belongs": rename("log₂", "ln"),
    "the cosine stands where the sine belongs": rename("sin", "cos"),
    "the sine stands where the cosine belongs": rename("cos", "sin"),
    "tanh stands where σ belongs": rename("σ", "tanh"),
    "σ stands where tanh belongs": rename("tanh", "σ"),
    "the difference is taken the other way round": swap_difference,
    "a sum stands where a difference belongs": rename("-", "+"),
    "a difference stands where a sum belongs": rename("+", "-"),
    "the sum stands where the mean belongs": rename("mean", "sum"),
    "it is divided by n − 1, not by n": sample_mean,
    "the mean stands where the sum belongs": rename("sum", "mean"),
    "the matrix is used transposed": transpose_matrix,
    "the matrix is not transposed": leave_out("ᵀ"),
    "the first term is left out": leave_out_operand("+", 0),
    "the last term is left out": leave_out_operand("+", -1),
    "the first factor is left out": leave_out_operand("×", 0),
    "the last factor is left out": leave_out_operand("×", -1),
    "the first factor is left out (⊙)": leave_out_operand("⊙", 0),
    "the last factor is left out (⊙)": leave_out_operand("⊙", -1),
}


def expand(question: NumberQuestion, questions: Sequence[NumberQuestion]) -> Expression | None:
    """Return how an answer is computed from earlier answers: other lines are written out."""
    answered = {other.line for other in questions}

    def write_out(tree: Expression) -> Expression:
        if isinstance(tree, Operation):
            return op(tree.name, *map(write_out, tree.args))
        if not isinstance(tree, Line) or tree.operands is None or tree in answered:
            return tree
        return write_out(tree.operands)

    return None if question.line.operands is None else write_out(question.line.operands)


def apply_mistake(tree: Expression, change: Change) -> Expression:
    """Return an expression with a mistake made wherever it is possible."""
    if not isinstance(tree, Operation):
        return tree
    wrong = change(tree)
    if wrong is not None and (not isinstance(wrong, Operation) or wrong.name in (tree.name, "×")):
        return wrong
    node = tree if wrong is None else wrong
    return op(node.name, *(apply_mistake(a, change) for a in node.args))


def wrong_results(
    problem: Problem, question: NumberQuestion, results: Results
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each known mistake by name, and its result when it starts from the student's earlier lines."""
    line, tree = question.line, expand(question, problem.questions)
    if tree is not None:
        yield "the sign is wrong", -evaluate_tree(tree, results)
        for name, change in MISTAKES.items():
            # Sizes that do not fit: nobody can have worked this out.
            with contextlib.suppress(ValueError, IndexError), np.errstate(all="ignore"):
                yield name, evaluate_tree(apply_mistake(tree, change), results)
    same = [other for other in problem.derivation.walk() if other.label == line.label]
    for name, values in problem.exercise.wrong_values(problem.values).items():
        wrong = [other for other in explain_values(values).walk() if other.label == line.label]
        if len(wrong) == len(same):
            yield name, wrong[same.index(line)].value


def name_mistake(
    problem: Problem, question: NumberQuestion, numbers: np.ndarray, results: Results, tolerance: np.ndarray
) -> str:
    """Return the known mistake with which exactly these numbers come out, or an empty text."""
    right = question.line.value
    near = lambda wrong, size=1.0: bool((np.abs(wrong - numbers) <= 2 * size * tolerance).all())
    for name, wrong in wrong_results(problem, question, results):
        if wrong.shape == right.shape and np.isfinite(wrong).all() and near(wrong):
            return name
    if right.size > 1 and np.abs(np.sort(right, None) - np.sort(numbers, None)).max() <= tolerance.max():
        return "the numbers are right, their order is not"
    shifted = (near(right * power, max(1.0, power)) for power in (10, 100, 0.1, 0.01))
    return "the decimal point is in the wrong place" if np.abs(right).max() > 0 and any(shifted) else ""


# A number exercise asked question by question, with hints and a second try.


TRIES = 2
HELP = "Separate the numbers of a vector with spaces. ? gives a hint, an empty line skips, q stops."


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
