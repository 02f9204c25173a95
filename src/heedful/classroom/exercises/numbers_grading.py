"""Marks a filled sheet: partial credit, errors carried forward, and which step went wrong.

A question counts one point, each number of its answer the same share of it. A number is right if it is within
one unit of the last digit asked for of the key, or of what follows from the student's own earlier answers,
which may have been rounded on the way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from heedful.classroom.arithmetic.worked import Operation, Reference, Tree, evaluate_tree, is_arrangement
from heedful.classroom.exercises.numbers import NumberQuestion, Problem
from heedful.classroom.exercises.numbers_mistakes import expand, name_mistake

Verdict = Literal["right", "carried forward", "partly right", "wrong", "missing", "unreadable"]
TOLERANCE_UNITS = 1.0 + 1e-9  # units of the last digit asked for
NUMBER = re.compile(r"[-+−]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+−]?\d+)?%?|[-+−]?(?:∞|inf)")


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

    def to_dict(self) -> dict[str, Any]:
        first = self.first_error
        return {
            "exercise": self.problem.exercise.name, "seed": self.problem.seed,
            "points": round(self.points, 4), "total": self.total,
            "first_error": None if first is None else first.question.number,
            "questions": [grade.to_dict() for grade in self.questions],
        }  # fmt: skip


def read_numbers(response: Any) -> np.ndarray | None:
    """The numbers of a response: one, a list of them, or a text with them; None for anything else."""
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
    if not isinstance(response, str) or NUMBER.sub("", response).strip(" \t,;[](){}|/").strip():
        return None
    found = [text.replace("−", "-").replace("∞", "inf").rstrip("%") for text in NUMBER.findall(response)]
    return np.array([float(text) for text in found])


def is_blank(response: Any) -> bool:
    """Return whether nothing was answered."""
    if isinstance(response, str):
        return not response.strip(" \t\r\n[]?_.")
    return response is None or (isinstance(response, Sequence) and all(is_blank(part) for part in response))


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
        return QuestionGrade(question, "unreadable", 0.0, f"{response!r} is no number"), None
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


def hint_lines(question: NumberQuestion) -> list[str]:
    """Hints from the slighter to the stronger: the numbers put into the formula, the answer."""
    from heedful.classroom.arithmetic.render import Style

    style, line = Style(question.digits, None), question.line
    given = line.operands is None or is_arrangement(line.operands)
    numbers = (
        "It is put together of what was worked out or given before." if given else style.tree(line.operands)
    )
    return [numbers, style.value(line.result)]


def is_passed(grade: SheetGrade) -> bool:
    """Return whether everything on a sheet is right."""
    return math.isclose(grade.points, grade.total)
