"""What a code exercise is: a definition, inputs to try it on, known mistakes, a model to stand in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One input that a function is tried on; `about` says what is special about it."""

    about: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Mistake:
    """A mistake that grading knows: its name, and what it says to the student."""

    name: str
    message: str


@dataclass(frozen=True)
class Output:
    """The output of a model with a function in it: a text for people, and numbers if these count."""

    text: str
    numbers: Tensor | None = None


@dataclass(frozen=True)
class InsideResult:
    """The outputs of a model with the library's own function, and with the student's in its place."""

    model: str
    same: bool
    ours: str
    yours: str


@dataclass(frozen=True)
class CodeExercise:
    """One function to write.

    `mutate(frozenset of names, *arguments)` is the definition with these mistakes in it; with none of them
    it is the definition again, written out. `outputs` names the values that are returned.
    """

    name: str
    title: str
    definition: Function
    cases: Callable[[], Sequence[Case]]
    mutate: Function
    mistakes: tuple[Mistake, ...]
    model: str  # the real model that it stands in
    place_in_model: Callable[[Function], Output]
    outputs: tuple[str, ...] = ()
    ready_made: tuple[str, ...] = ()  # functions of libraries that are the exercise already


def mistakes(**messages: str) -> tuple[Mistake, ...]:
    """Return mistakes by name, from what each says."""
    return tuple(Mistake(name, message) for name, message in messages.items())
