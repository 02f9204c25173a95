"""Values at a border: checks, which return the value or raise one clear line, and options of commands.

An option is written once: at the parameter of the command, or at the field of the dataclass that it fills.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, TypeVar, get_type_hints

from heedful.core.errors import ConfigError, InputError, nearest

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class")
ValueCheckError = type[InputError] | type[ConfigError]


def is_integer(value: object) -> bool:
    """Return whether a value is a whole number; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integer(
    name: str, value: Any, minimum: int | None = 1, maximum: int | None = None,
    error: ValueCheckError = InputError,
) -> int:  # fmt: skip
    """Return a whole number between `minimum` and `maximum`, both included; None leaves an end open."""
    if not is_integer(value):
        raise error("must be a whole number", argument=name, value=value)
    _check_bounds(name, value, minimum, maximum, error)
    return int(value)


def check_number(
    name: str, value: Any, minimum: float | None = None, maximum: float | None = None, *,
    above: float | None = None, error: ValueCheckError = InputError,
) -> float:  # fmt: skip
    """Return a finite number between `minimum` and `maximum`, both included, or above `above`."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise error("must be a number", argument=name, value=value)
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an integer of 400 digits
        finite = False
    if not finite:
        raise error("must be a finite number", argument=name, value=value)
    if above is not None and (value <= above or (maximum is not None and not value <= maximum)):
        upper = "" if maximum is None else f" and at most {maximum:g}"
        raise error(f"must be above {above:g}{upper}", argument=name, value=value)
    _check_bounds(name, value, minimum, maximum, error)
    return float(value)


def check_choice(name: str, value: Any, choices: Iterable[str], error: ValueCheckError = InputError) -> str:
    """Return the value if it is one of `choices`; otherwise the hint names the nearest of them."""
    allowed = list(choices)
    if value not in allowed:
        raise error("is unknown", argument=name, value=value, allowed=allowed)
    return str(value)


def position_of(names: Sequence[str], token: int | str) -> int:
    """Return where a token stands: a position (negative from the end), or its name, with or without marks
    and, if there is no other, in lower case.
    """
    if isinstance(token, int):
        if not -len(names) <= token < len(names):
            raise InputError(f"position {token} is outside 0 … {len(names) - 1}")
        return token % len(names)
    if not isinstance(token, str):
        raise InputError(f"a token is its position or its text, not {token!r}")
    plain = [name.lstrip("Ġ▁").removeprefix("##").removesuffix("</w>") for name in names]
    for spelled, name in ((list(names), token), (plain, token), (plain, token.lower())):
        if name in spelled:
            return spelled.index(name)
    for i in range(len(plain)):
        for j in range(i + 2, len(plain) + 1):
            if "".join(plain[i:j]) == token:
                raise InputError(
                    f"{token!r} is {j - i} tokens here, {' '.join(names[i:j])}",
                    hint=f"name one of them, or its position, {i} … {j - 1}",
                )
    raise InputError(f"no token {token!r} here", hint=nearest(token, plain) or "there are " + " ".join(names))


def check_divides(name: str, value: int, of: str, total: int) -> int:
    """Return total / value if that is whole; otherwise the hint names the nearest values that divide it.

    `of` is what errors call `total`: "heads" for kv_heads=3 does not divide heads=8.
    """
    if value < 1 or total % value:
        small = [n for n in range(1, math.isqrt(total) + 1) if total % n == 0]
        near = sorted({*small, *(total // n for n in small)}, key=lambda n: (abs(n - value), n))[:3]
        hint = f"the nearest values that do are {', '.join(map(str, near))}"
        raise ConfigError(f"does not divide `{of}={total}`", hint, argument=name, value=value)
    return total // value


def _check_bounds(
    name: str, value: Any, low: float | None, high: float | None, error: ValueCheckError
) -> None:
    if low is not None and high is not None and not low <= value <= high:
        raise error(f"must lie between {low:g} and {high:g}", argument=name, value=value)
    if low is not None and value < low:
        raise error(f"must be at least {low:g}", argument=name, value=value)
    if high is not None and value > high:
        raise error(f"must be at most {high:g}", argument=name, value=value)


@dataclass(frozen=True)
class Option:
    """A parameter of a command, or a field of a dataclass, that an option of the command line fills.

        lr: Annotated[float | None, Option("Set the highest learning rate.", variable="HEED_LR")] = None

    The name, the type and the default are those of the parameter. Without a default and flags, it is an
    argument, which is given by its place. What is False by default has no --no-NAME.
    """

    help: str
    flags: tuple[str, ...] = ()  # its spellings; by default --NAME
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None  # a minimum that is not allowed itself
    variable: str | None = None  # of the environment
    metavar: str | None = None


class Argument(Option):
    """An option that is given by its place, although it has a default."""


class Only(tuple[str, ...]):
    """The fields of a dataclass that are options of one command: Annotated[Settings, Only(("seed", …))]."""


def find_options(kind: type) -> Iterator[tuple[str, Any, Option]]:
    """Yield the name, the type and the option of every field of a dataclass that has one."""
    hints = get_type_hints(kind, include_extras=True)
    for f in fields(kind):
        if (option := annotated_option(hints[f.name])) is not None:
            yield f.name, hints[f.name].__origin__, option


def annotated_option(hint: Any) -> Option | None:
    """Return the `Option` in an annotation, if there is one."""
    return next((note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Option)), None)


def add_parameters(function: Callable[..., Any], added: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """List keywords, name → (type, default), in a function's signature; return the names of all of them."""
    signature = inspect.signature(function)
    parameters = {p.name: p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD}
    for name, (hint, default) in added.items():
        keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        parameters.setdefault(name, keyword)
    listed = signature.replace(parameters=list(parameters.values()))
    function.__signature__ = listed  # type: ignore[attr-defined]
    return list(parameters)


def takes_options_of(request: type, *given: str) -> Callable[[Function], Function]:
    """List the options of a dataclass, without those `given` otherwise, in a function's signature and help.

    The function gets them by name in its `**options`.
    """
    options = [(name, hint, option) for name, hint, option in find_options(request) if name not in given]
    defaults = {field.name: field.default for field in fields(request)}

    def decorate(function: Function) -> Function:
        add_parameters(function, {name: (hint, defaults[name]) for name, hint, _ in options})
        lines = [f"    {name}: {option.help}" for name, _, option in options]
        function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *lines])
        return function

    return decorate


def show_plain_types(kind: type[Class]) -> type[Class]:
    """Show the fields of a dataclass by their types alone in `help`, without the options they are."""
    signature, hints = inspect.signature(kind), get_type_hints(kind)
    plain = [p.replace(annotation=hints[p.name]) for p in signature.parameters.values()]
    kind.__signature__ = signature.replace(parameters=plain)  # type: ignore[attr-defined]
    return kind
