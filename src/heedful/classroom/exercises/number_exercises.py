"""Number exercises: a worked example with other numbers, drawn for a student, and the questions about it.

A problem is a calculation of `heedful.explain` whose numbers follow from the exercise and the seed alone. The
questions are some of its lines. An operand of a line refers to the line it comes from, so a line can be
worked again with a student's earlier results. Everything else about an exercise stands in the worked example
of the same name (arithmetic/examples/NAME.yaml), under `exercise`:

    task       what is to be done
    ask        patterns of the labels of the lines that are asked for
    draw       the values, drawn in this order; the topic is that of the example unless it is given
    mistakes   by name, other values with which common mistakes come out; null leaves one out
    digits     the digits after the point, if not 4

A text that begins with "= " is an expression of Python over the values before it and the functions of
`drawing_functions`. A value whose name begins with _ is a step on the way and no value of the exercise.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from heedful.classroom.arithmetic.explain import LEARNING_ORDER, explain_values, read_exercise
from heedful.classroom.arithmetic.worked import Derivation, Line
from heedful.core.errors import InputError, NotFound, nearest

DEFAULT_DIGITS = 4
MAX_DIGITS = 9
Values = dict[str, Any]


@dataclass(frozen=True)
class NumberExercise:
    """One exercise as its file has it: the task, the lines that are asked for, how its numbers are drawn."""

    name: str
    task: str
    ask: Sequence[str]
    draw: Mapping[str, Any]
    mistakes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    digits: int = DEFAULT_DIGITS

    def draw_values(self, rng: random.Random) -> Values:
        """Return the values, as `heedful.explain` takes them."""
        names = drawing_functions(rng)
        for key, text in self.draw.items():
            names[key] = evaluate(text, names)
        return {key: names[key] for key in self.draw if not key.startswith("_")}

    def wrong_values(self, values: Values) -> dict[str, Values]:
        """Return the values with which each common mistake comes out, by the name of the mistake."""
        names = drawing_functions(random.Random()) | values
        changed = {name: values | evaluate(change, names) for name, change in self.mistakes.items()}
        return {name: {k: v for k, v in new.items() if v is not None} for name, new in changed.items()}


def evaluate(text: Any, names: dict[str, Any]) -> Any:
    """Return a value of a bundled file with its expressions worked out."""
    if isinstance(text, str) and text.startswith("= "):
        return eval(text[2:], names)  # the package's own text
    if isinstance(text, list):
        return [evaluate(one, names) for one in text]
    return {key: evaluate(one, names) for key, one in text.items()} if isinstance(text, dict) else text


def drawing_functions(rng: random.Random) -> dict[str, Any]:
    """Return what expressions may call: draws that are small enough for paper, and some of `rng` itself."""

    def redraw(make: Callable[[], Any], accept: Callable[[Any], bool]) -> Any:
        """Draw until the result is accepted."""
        while not accept(drawn := make()):
            pass
        return drawn

    def bits(rows: int, columns: int) -> list[list[int]]:
        """Rows of 0 and 1 that are not all alike."""
        draw = lambda: [[rng.randint(0, 1) for _ in range(columns)] for _ in range(rows)]
        matrix: list[list[int]] = redraw(draw, lambda drawn: len(set(map(tuple, drawn))) > 1)
        return matrix

    def tenths(count: int, *shape: int) -> list[Any]:
        """Numbers with one digit after the point, between −0.9 and 0.9, never 0."""
        draw = lambda: rng.choice([n for n in range(-9, 10) if n]) / 10
        return [tenths(*shape) if shape else draw() for _ in range(count)]

    def permutation(size: int) -> list[list[int]]:
        """A matrix that puts entries in another order."""
        order = rng.sample(range(size), size)
        return [[int(column == row) for column in range(size)] for row in order]

    def swap(rows: list[Any], first: int, second: int) -> list[Any]:
        """The rows with two of them in each other's place."""
        order = {first: second, second: first}
        return [rows[order.get(row, row)] for row in range(len(rows))]

    return {f.__name__: f for f in (redraw, bits, tenths, permutation, swap)} | {
        name: getattr(rng, name) for name in ("choice", "sample", "randint", "randrange", "uniform")
    }


def load_exercise(name: str) -> NumberExercise:
    """Return the exercise of a worked example."""
    example = read_exercise(name)
    texts = dict(example["exercise"])
    topic = {"topic": example["topic"]} if "topic" in example else {}
    return NumberExercise(name, **(texts | {"draw": topic | texts["draw"]}))


EXERCISES = {name: load_exercise(name) for name in LEARNING_ORDER}


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
class Owner:
    """The class that a sheet belongs to: only who knows its secret can draw the numbers again."""

    name: str
    secret: str
    due: str = ""


@dataclass(frozen=True)
class Problem:
    """An exercise with the numbers of one student."""

    exercise: NumberExercise
    seed: str
    digits: int
    owner: Owner | None = None

    @cached_property
    def values(self) -> Values:
        """The numbers, as `heedful.explain` takes them; those of a class also follow from its secret."""
        secret = f" {self.owner.secret}" if self.owner else ""
        return self.exercise.draw_values(random.Random(f"{self.exercise.name} {self.seed}{secret}"))

    @property
    def header(self) -> dict[str, Any]:
        """The header of a sheet, from which it can be drawn again."""
        own = {"class": self.owner.name, "due": self.owner.due} if self.owner else {}
        fields = {"exercise": self.exercise.name, "seed": self.seed, "digits": self.digits} | own
        return {name: value for name, value in fields.items() if value != ""}

    @cached_property
    def derivation(self) -> Derivation:
        """The worked solution."""
        return explain_values(self.values)

    @cached_property
    def questions(self) -> tuple[NumberQuestion, ...]:
        """The lines that are asked for, in the order in which they are worked."""
        asked = [
            (section, line)
            for section, line in named_lines(self.derivation)
            if any(re.fullmatch(pattern, line.label) for pattern in self.exercise.ask)
        ]
        sections = len({section for section, _ in asked}) > 1
        return tuple(
            NumberQuestion(n, section if sections else "", line, self.digits)
            for n, (section, line) in enumerate(asked, 1)
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


def new_problem(name: str, seed: str, digits: int | None = None, owner: Owner | None = None) -> Problem:
    """Return the exercise `name` with the numbers of `seed`, a student's name or number."""
    if name not in EXERCISES:
        close = nearest(name, EXERCISES) or "heed exercise --list names them"
        raise NotFound(f"no exercise {name!r}", hint=close)
    if not seed or seed != seed.strip() or len(seed) > 100 or not seed.isprintable():
        raise InputError(
            f"`seed={seed!r}` is not a student's name", hint="give a short word or number, such as alice"
        )
    digits = EXERCISES[name].digits if digits is None else digits
    if not 1 <= digits <= MAX_DIGITS:
        raise InputError(f"`digits={digits}` is out of range", hint=f"choose 1 … {MAX_DIGITS}")
    return Problem(EXERCISES[name], seed, digits, owner)
