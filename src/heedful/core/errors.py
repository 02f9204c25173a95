"""Every error heedful raises on purpose.

    HeedfulError                    exit 1   anything below; its text is one line that says what to do
    ├── ConfigError                 exit 3   a config field or a config.json value that cannot be
    ├── InputError                  exit 3   tokens, text or files a model cannot take
    ├── NotFound                    exit 3   a name, a path or a hub id that leads nowhere
    ├── WeightsError                exit 3   a file of weights that does not fit
    │   ├── CorruptFile                      truncated, damaged, or not what its name says
    │   ├── MissingTensor                    the model needs it, but it is not in the file
    │   ├── UnexpectedTensor                 it is in the file, but the model has no place for it
    │   └── WrongShape                       it has other sizes in the file than in the model
    ├── OutOfMemory                 exit 4   a model or a run that the device cannot hold
    └── MissingPackage              exit 1   an optional dependency is not installed

The text of an error names the value, the expectation and the way out. An argument in it stands in backticks,
`top_k=0` or `top_k=`, and whoever shows the error writes it as its readers do: Python as top_k=0, `heed` as
--top-k 0 (cli/commands.py). What is not marked is never translated. Where one value is wrong, the error also
has it in the fields `argument`, `value` and `allowed`, which a server needs to name the field of a request.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

# An argument in a message: its name, perhaps after the file and the table that have it, and its value as
# Python writes it (a text may contain a backtick).
ARGUMENT = re.compile(
    r"`((?:[^`=]+: (?:\w+ )?)?[A-Za-z][\w.]*)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^`]*)`"
)


class HeedfulError(Exception):
    """Base of all errors: `message` says what is wrong, `hint` what to do, if there is something to do.

        InputError("a text is empty", hint="pass `skip=True` to leave it out")
        InputError("is unknown", argument="scheme", value="int5", allowed=["int8", "int4"])

    With an `argument`, the message given is about its value, and `message` begins with both:
    scheme='int5' is unknown. `allowed` are the names that the value could have been; without a hint, it names
    those that are spelled alike, or all of them.
    As text an error is its message and its hint, in one line. Both are without marks; an error that is raised
    again passes on `marked_message` and `marked_hint`. `exit_code` is what `heed` returns for it.
    """

    exit_code = 1

    def __init__(
        self, message: str = "", hint: str | None = None, *,
        argument: str | None = None, value: object = None, allowed: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.argument, self.value, self.allowed = argument, value, tuple(allowed)
        if argument is not None:
            message = f"`{argument}={value!r:.80}` {message}"
        if self.allowed and not hint:
            near = nearest(str(value), self.allowed, cutoff=0.6)
            hint = near or f"choose one of {', '.join(self.allowed)}"
        super().__init__(message, hint)
        self.marked_message, self.marked_hint = message, hint or None
        self.message = write_arguments(message)
        self.hint = write_arguments(hint) if hint else None

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


def write_arguments(
    text: str, write: Callable[[str, str], str] = lambda name, value: f"{name}={value}"
) -> str:
    """Return a message with each argument that is marked in it replaced by what `write` makes of it."""
    return ARGUMENT.sub(lambda argument: write(argument[1], argument[2]), text)


class ConfigError(HeedfulError, ValueError):
    """A configuration that cannot be built."""

    exit_code = 3


class InputError(HeedfulError, ValueError):
    """An input outside what the model or function can take."""

    exit_code = 3


class NotFound(HeedfulError, LookupError):
    """A name, path or id that leads nowhere."""

    exit_code = 3


class WeightsError(HeedfulError):
    """A file of weights that does not fit the model."""

    exit_code = 3


class CorruptFile(WeightsError):
    """A file that is truncated, damaged, or not what its name says."""


class MissingTensor(WeightsError):
    """A tensor the model needs and the file does not have."""


class UnexpectedTensor(WeightsError):
    """A tensor in the file that the model has no place for."""


class WrongShape(WeightsError):
    """A tensor whose sizes are not the model's."""


class OutOfMemory(HeedfulError, MemoryError):
    """A model or a run that the memory of its device cannot hold."""

    exit_code = 4


class MissingPackage(HeedfulError, ImportError):
    """An optional dependency that is not installed."""


# How torch says that memory is lacking where it raises no class of its own: on a CPU, in CUDA libraries.
MEMORY_PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is lacking, on a CPU or on a GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in MEMORY_PHRASES)


SINGULAR_VERBS = {"": "", "are": " is", "were": " was", "have": " has"}


def count_of(count: int, units: str, verb: str = "", total: int | None = None) -> str:
    """Return a number of units, with a verb if given: "1 row is", "2,000 rows are", "1 of 3 rows is"."""
    one = units.removesuffix("es") if units.endswith("sses") else units.removesuffix("s")
    named = one if (count if total is None else total) == 1 else units
    verb = SINGULAR_VERBS[verb] if count == 1 else f" {verb}".rstrip()
    return f"{count:,}{'' if total is None else f' of {total:,}'} {named}{verb}"


def nearest(name: str, names: Iterable[str], count: int = 3, cutoff: float = 0.4) -> str:
    """The closest known names, ready for the end of an error message."""
    known = list(dict.fromkeys(names))
    stems = [stem for stem in known if stem and name.startswith((f"{stem}-", f"{stem}_"))]
    close = difflib.get_close_matches(name, known, n=count, cutoff=cutoff)
    close = list(dict.fromkeys(close[: max(count - len(stems[:1]), 1)] + stems[:1] + close))[:count]
    return f"did you mean {', '.join(repr(c) for c in close)}?" if close else ""


def find_named(
    entries: Mapping[str, T], name: str, problem: str, error: type[HeedfulError] = InputError
) -> T:
    """Return the entry of a name; an error says what the problem is, with the nearest names or the first."""
    if name in entries:
        return entries[name]
    names = [*list(entries)[:16], *["…"] * (len(entries) > 16)]
    raise error(problem, hint=nearest(name, entries) or f"there are {', '.join(names) or 'none'}")
