"""Flags that stand for settings: one table gives a command its options, their types, help and variables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from heedful.runs.settings import Setting

PARAMETER = "flags"  # of a command: the values of its flags by name, those that were given


@dataclass(frozen=True)
class SettingFlag:
    """One option of a command: the setting that it changes, the type of its value, and its help."""

    path: str
    type: type
    help: str


def with_setting_flags(
    table: Mapping[str, SettingFlag],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a command's parameter `flags` by an option for each row: --lr, also read from HEED_LR."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(command, include_extras=True)
        parameters = []
        for parameter in inspect.signature(command).parameters.values():
            own = parameter.replace(annotation=hints[parameter.name])
            parameters += [*flag_parameters(table)] if parameter.name == PARAMETER else [own]

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            flags = {name: values.pop(name) for name in table}
            return command(**values, flags={n: value for n, value in flags.items() if value is not None})

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def flag_parameters(table: Mapping[str, SettingFlag]) -> Iterator[inspect.Parameter]:
    """Yield the parameter of each flag, as Typer reads it."""
    for name, flag in table.items():
        option = typer.Option(envvar=f"HEED_{name.upper()}", help=flag.help)
        yield inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[flag.type | None, option],
        )


def flag_settings(
    context: typer.Context, table: Mapping[str, SettingFlag], flags: Mapping[str, Any]
) -> tuple[list[Setting], list[Setting]]:
    """Return the settings that the environment gives, and those that the command line gives."""
    from heedful.runs.settings import Setting

    environment, line = [], []
    for name, value in flags.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "ENVIRONMENT":
            environment.append(Setting(table[name].path, value, f"HEED_{name.upper()}"))
        else:
            line.append(Setting(table[name].path, value, f"--{name}"))
    return environment, line
