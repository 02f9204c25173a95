"""Options of a command from the dataclass that they fill: its fields have names, types, defaults and help."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from heedful.core.checks import Option, find_options

Command = Callable[..., Any]
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def options_from(kind: type, **own_defaults: Any) -> Callable[[Command], Command]:
    """Replace a command's parameter of this dataclass by its options; the command gets it filled.

    `own_defaults` are the command's, where they differ from those of the fields.
    """

    def decorate(command: Command) -> Command:
        name = next(name for name, hint in get_type_hints(command).items() if hint is kind)
        defaults = {f.name: f.default for f in fields(kind)} | own_defaults
        options = [make_parameter(n, hint, option, defaults[n]) for n, hint, option in find_options(kind)]
        return with_options(name, options, lambda values: kind(**values))(command)

    return decorate


def make_parameter(name: str, hint: Any, option: Option, default: Any = None) -> inspect.Parameter:
    """Return the parameter of a command that Typer makes into this option; without a default, an argument."""
    kind = list[str] if get_origin(hint) is Sequence else hint
    more: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    more |= {"min": option.minimum, "max": option.maximum}
    if default is MISSING:
        return inspect.Parameter(name, KEYWORD, annotation=Annotated[kind, typer.Argument(**more)])
    shown = typer.Option(*option.flags, envvar=option.variable, **more)
    return inspect.Parameter(name, KEYWORD, default=default, annotation=Annotated[kind, shown])


def with_options(
    name: str, options: Sequence[inspect.Parameter], make: Callable[[dict[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Replace a command's parameter `name` by `options`; `make` gives it its value, made of theirs."""

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            own = parameter.replace(annotation=hints[parameter.name], kind=KEYWORD)
            parameters += options if parameter.name == name else [own]

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            made = make({option.name: values.pop(option.name) for option in options})
            return command(**{name: made}, **values)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def command_words(context: typer.Context, leave_out: Container[str] = ()) -> list[str]:
    """Return the words of the command line behind a context, without some options: to run it once more."""
    options, arguments = list[str](), list[str]()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in leave_out or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[parameter.name or ""]
        values = [str(v) for v in (value if isinstance(value, list | tuple) else [value])]
        if parameter.param_type_name == "argument":
            arguments += values
        elif isinstance(value, bool):
            options.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            options += [word for v in values for word in (parameter.opts[0], v)]
    return [*options, "--", *arguments]
