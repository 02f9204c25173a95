"""Number exercises: a worked example with other numbers, drawn for a student, and the questions about it.

A problem is a calculation of `heedful.explain` whose numbers follow from the exercise and the seed alone. The
questions are some of its lines. An operand of a line refers to the line it comes from, so that a line can be
worked again with what a student had before it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from heedful.classroom.arithmetic.explain import explain_values
from heedful.classroom.arithmetic.worked import Derivation, Line
from heedful.core.errors import InputError, NotFound, nearest

DEFAULT_DIGITS = 4
MAX_DIGITS = 9
Values = dict[str, Any]
WrongValues = Mapping[str, Values]  # the name of a mistake → the values with which its answers come out


@dataclass(frozen=True)
class NumberExercise:
    """One exercise: how its numbers are drawn, what is to be done, and which lines are asked for.

    A question is asked about each line whose label matches one of `label_patterns`. `mistakes(values)` has
    other values with which common mistakes come out.
    """

    name: str
    task: str
    draw: Callable[[random.Random], Values]
    label_patterns: tuple[str, ...]
    mistakes: Callable[[Values], WrongValues] = lambda values: {}
    digits: int = DEFAULT_DIGITS


EXERCISES: dict[str, NumberExercise] = {}  # filled by exercises.py: import it from there
Draw = Callable[[random.Random], Values]


def number_exercise(
    name: str, task: str, label_patterns: tuple[str, ...],
    mistakes: Callable[[Values], WrongValues] = lambda values: {}, digits: int = DEFAULT_DIGITS,
) -> Callable[[Draw], Draw]:  # fmt: skip
    """Add an exercise to the list; the function below draws its numbers."""

    def add_exercise(draw: Draw) -> Draw:
        EXERCISES[name] = NumberExercise(name, task, draw, label_patterns, mistakes, digits)
        return draw

    return add_exercise


@dataclass(frozen=True)
class NumberQuestion:
    """One line that is asked for."""

    number: int
    section: str
    line: Line
    digits: int

    @property
    def count(self) -> int:
        """The number of numbers in the answer."""
        return self.line.value.size

    @property
    def answer_format(self) -> str:
        """The form of the answer in words: how many numbers, with how many digits, in which unit."""
        entries = "1 number" if self.count == 1 else f"{self.count} numbers"
        unit = f", in {self.line.unit}" if self.line.unit else ""
        exact = bool(np.all(np.abs(self.line.value - np.round(self.line.value)) < 1e-12))
        return entries + (unit if exact else f", {self.digits} digits after the point{unit}")

    @property
    def prompt(self) -> str:
        """The label and the formula, with the section they belong to."""
        where = f"{self.section}: " if self.section else ""
        return f"{where}{self.line.label}"


@dataclass(frozen=True)
class Problem:
    """An exercise with the numbers of one student."""

    exercise: NumberExercise
    seed: str
    digits: int

    @cached_property
    def values(self) -> Values:
        """The numbers, as `heedful.explain` takes them."""
        return self.exercise.draw(random.Random(f"{self.exercise.name} {self.seed}"))

    @cached_property
    def derivation(self) -> Derivation:
        """The worked solution."""
        return explain_values(self.values)

    @cached_property
    def questions(self) -> tuple[NumberQuestion, ...]:
        """The lines that are asked for, in the order in which they are worked."""
        found = [
            (section, line)
            for section, line in named_lines(self.derivation)
            if any(re.fullmatch(pattern, line.label) for pattern in self.exercise.label_patterns)
        ]
        sections = len({section for section, _ in found}) > 1
        return tuple(
            NumberQuestion(n, section if sections else "", line, self.digits)
            for n, (section, line) in enumerate(found, 1)
        )

    @property
    def given_values(self) -> list[tuple[str, Any]]:
        """The values printed on the sheet, each a name and a number, a vector, a matrix, or words."""
        return list(named_values(self.values))

    @property
    def command(self) -> str:
        """The command that writes this very sheet."""
        digits = "" if self.digits == self.exercise.digits else f" --digits {self.digits}"
        return f"heed exercise {self.exercise.name} --seed {self.seed}{digits}"


def named_values(values: Mapping[str, Any], part: str = "") -> Iterator[tuple[str, Any]]:
    """The values of an exercise that a student needs, by name; those of parts and heads with their titles."""
    for key, value in values.items():
        if key in ("topic", "title", "note", "about") or value == []:
            continue
        if isinstance(value, list) and isinstance(value[0], Mapping):  # parts, or heads
            for n, inner in enumerate(value, 1):
                yield from named_values(inner, inner.get("title") or f"{part + ', ' if part else ''}head {n}")
        elif isinstance(value, Mapping):
            for word, vector in value.items():
                yield f"{part + ', ' if part else ''}{key}, {word}", vector
        else:
            yield f"{part + ', ' if part else ''}{key}", value


def named_lines(derivation: Derivation, section: str = "") -> Iterator[tuple[str, Line]]:
    """Yield every line with the titles of the sections it stands in."""
    for line in derivation.lines:
        if isinstance(line, Derivation):
            yield from named_lines(line, f"{section}, {line.title}" if section else line.title)
        else:
            yield section, line


def new_problem(name: str, seed: str, digits: int | None = None) -> Problem:
    """Return the exercise `name` with the numbers of `seed`, a student's name or number."""
    from heedful.classroom.exercises.numbers.exercises import EXERCISES

    if name not in EXERCISES:
        close = nearest(name, EXERCISES) or "heed exercise --list names them"
        raise NotFound(f"no exercise {name!r}", hint=close)
    if not seed or seed != seed.strip() or len(seed) > 100 or not seed.isprintable():
        raise InputError(
            f"seed={seed!r} is no name of a student", hint="give a short word or number, as alice"
        )
    digits = EXERCISES[name].digits if digits is None else digits
    if not 1 <= digits <= MAX_DIGITS:
        raise InputError(f"digits={digits} cannot be asked for", hint=f"choose 1 … {MAX_DIGITS}")
    return Problem(EXERCISES[name], seed, digits)
