"""Options of commands, written once: beside the field of the dataclass that they fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, get_type_hints


@dataclass(frozen=True)
class Option:
    """A field that a command's option fills. Its help is the documentation of the field.

        lr: Annotated[float | None, Option("The highest learning rate.", variable="HEED_LR")] = None

    The name, the type and the default are those of the field; one without a default is an argument.
    """

    help: str
    flags: tuple[str, ...] = ()  # its spellings; by default --NAME
    minimum: float | None = None
    maximum: float | None = None
    variable: str | None = None  # of the environment
    metavar: str | None = None


def find_options(kind: type) -> Iterator[tuple[str, Any, Option]]:
    """Yield the name, the type and the option of every field of a dataclass that has one."""
    hints = get_type_hints(kind, include_extras=True)
    for f in fields(kind):
        for note in getattr(hints[f.name], "__metadata__", ()):
            if isinstance(note, Option):
                yield f.name, hints[f.name].__origin__, note
