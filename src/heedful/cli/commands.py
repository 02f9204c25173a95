"""Commands of Typer from plain functions, and errors in the words of the command line.

A parameter with an `Option` (core/checks.py) becomes an option, and a parameter that is a dataclass becomes
the options of its fields.

An error that names an argument of Python names the option instead: top_k=0 is --top-k 0 in a command. Where
the argument is not an option but a setting of `heed train` or `heed eval`, a hint shows it as --set. Only
what a message marks as an argument is translated (core/errors.py).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from heedful.core.checks import Argument, Only, Option, annotated_option, find_options
from heedful.core.errors import HeedfulError, write_arguments

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}  # of every command
KEYWORD = inspect.Parameter.KEYWORD_ONLY


class PlainUsage(TyperCommand):
    """A command whose usage has arguments as manuals write them: MODEL, where newer Typers write {MODEL}."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


class CommandGroup(typer.Typer):
    """A group of commands, such as `heed tokenizer train`."""

    def __init__(self, help: str | None = None) -> None:
        super().__init__(
            no_args_is_help=True, context_settings=SETTINGS, help=keep_examples(help), add_completion=False,
            rich_markup_mode=None, pretty_exceptions_enable=False,
        )  # fmt: skip
        self.callback()(lambda: None)  # without a callback, a group of one command would be that command

    def add(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return the decorator that adds a function as the command of this name."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            help = keep_examples(function.__doc__)
            command = self.command(name, cls=PlainUsage, context_settings=SETTINGS, help=help)
            command(as_typer_command(function))
            return function

        return decorate


def keep_examples(help: str | None) -> str | None:
    """Mark the lines below "Examples:" so that help shows each on its own line (click's \\b)."""
    return help and inspect.cleandoc(help).replace("Examples:\n", "Examples:\n\n\b\n")


def as_typer_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with Typer's options in place of ours; it fills the dataclasses and calls this one.

    The default of a parameter that is a dataclass has the command's own defaults. An annotation with a table
    {name: (type, Option)} becomes these options; the function gets a mapping of those that were given.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    made: dict[str, tuple[list[str], Callable[..., Any]]] = {}  # by parameter: its options, and its type
    for parameter in inspect.signature(function).parameters.values():
        hint, own = hints[parameter.name], parameter.default
        table = next((note for note in getattr(hint, "__metadata__", ()) if isinstance(note, dict)), None)
        if table is not None:
            options = [typer_parameter(name, kind, option, None) for name, (kind, option) in table.items()]
            given = lambda **values: {name: value for name, value in values.items() if value is not None}
            made[parameter.name] = [one.name for one in options], given
        elif is_dataclass(kind := getattr(hint, "__origin__", hint)) and isinstance(kind, type):
            defaults = {f.name: f.default for f in fields(kind)}
            only = next(
                (note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Only)), defaults
            )
            defaults = defaults if own is parameter.empty else {name: getattr(own, name) for name in defaults}
            options = [
                typer_parameter(*row, defaults[row[0]]) for row in find_options(kind) if row[0] in only
            ]
            made[parameter.name] = [one.name for one in options], kind
        elif (option := annotated_option(hint)) is not None:
            options = [typer_parameter(parameter.name, hint.__origin__, option, own)]
        else:
            options = [parameter.replace(annotation=hint, kind=KEYWORD)]
        parameters += options

    @functools.wraps(function)
    def run(**values: Any) -> Any:
        for name, (names, make) in made.items():
            values[name] = make(**{one: values.pop(one) for one in names})
        return function(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def typer_parameter(name: str, hint: Any, option: Option, default: Any) -> inspect.Parameter:
    """Return the parameter that Typer makes into this option, or into an argument if it has no default."""
    kind = list[str] if get_origin(hint) is Sequence else hint
    more: dict[str, Any] = {"help": option.help, "envvar": option.variable}
    more |= {"min": option.minimum, "max": option.maximum}
    default = inspect.Parameter.empty if default is MISSING else default
    flags = option.flags or ((f"--{name.replace('_', '-')}",) if hint is bool and default is False else ())
    by_place = isinstance(option, Argument) or (default is inspect.Parameter.empty and not option.flags)
    if by_place:
        shown: Any = typer.Argument(metavar=option.metavar or name.upper(), **more)
    else:
        types = {int: "N", float: "NUMBER", Path: "PATH"}
        value = next((letter for kind, letter in types.items() if kind in (hint, *get_args(hint))), "TEXT")
        shown = typer.Option(*flags, metavar=None if hint is bool else option.metavar or value, **more)
    return inspect.Parameter(name, KEYWORD, default=default, annotation=Annotated[kind, shown])


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


# Names of Python and transformers → names of the commands' options.
ALIASES = {
    "aggregation_strategy": "aggregation",
    "candidate_labels": "labels",
    "handle_impossible_answer": "or_nothing",
    "hypothesis_template": "template",
    "max_new_tokens": "max_tokens",
    "multi_label": "several",
    "num_beams": "beams",
    "num_return_sequences": "n",
}

# Hints in place of those that name an argument which the shell cannot give.
INSTEAD = {
    "delimiter": "name it .csv, .tsv or .jsonl",
    "encoding": "convert the file to UTF-8: iconv -f cp1252 -t utf-8 FILE",
    "format": "name it .safetensors, .bin, .txt, .vec or, without a first line of sizes, .glove",
    "sentinels": "--set tokenizer.sentinels=100 puts some into a vocabulary that is learnt",
    "truncation": "shorten the text",
}


def shell_words(error: HeedfulError, command: Any, path: str) -> tuple[str, str]:
    """Return the message and the hint of an error in the words of the command of this `path` ("train")."""
    options: dict[str, Any] = {}
    for parameter in command.params:
        options |= {o[2:].replace("-", "_"): parameter for o in parameter.opts if o.startswith("--")}
    message, hint = (" ".join((text or "").split()) for text in (error.marked_message, error.marked_hint))
    left: list[str] = []  # names in the hint for which the shell has another way

    def write(name: str, value: str, *, in_hint: bool = False) -> str:
        typed = value.strip("'\"")
        if option := option_words(options, name, typed):
            return option
        if in_hint and (setting := setting_words(path, name, typed)):
            return setting
        left.extend([name] if in_hint and name in INSTEAD else [])
        return f"{name}={value}"

    hint = write_arguments(hint, partial(write, in_hint=True))
    return write_arguments(message, write), INSTEAD[left[0]] if left else hint


def option_words(options: Mapping[str, Any], name: str, value: str) -> str | None:
    """Return `--top-k 0` for top_k=0 if there is such an option; a flag, --no-NAME if False, has no value."""
    parameter = options.get(ALIASES.get(name, name))
    if parameter is None:
        return None
    off = getattr(parameter, "is_flag", False) and value == "False"
    flags = (off and parameter.secondary_opts) or parameter.opts
    flag = next(option for option in flags if option.startswith("--"))
    return flag if getattr(parameter, "is_flag", False) or value in ("", "…") else f"{flag} {value}"


def setting_words(path: str, name: str, value: str) -> str | None:
    """Return `--set train.clip=1` for a setting of `heed train` without an option, and of `heed eval`."""
    if path not in ("train", "eval") or name in ("delimiter", "sentinels"):  # no value of these can be typed
        return None
    from heedful import data
    from heedful.train.recipes.prepare import TASK_BUILDERS

    keywords = lambda function: {
        n for n, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY
    }
    of_data = set[str]().union(*map(keywords, [*data.FROM_TEXT.values(), *TASK_BUILDERS.values()]))
    if path == "eval":
        from heedful.tasks.registry import trainable_tasks

        predicts = [inspect.signature(task.predict).parameters for task in trainable_tasks().values()]
        section = "" if name in of_data or any(name in options for options in predicts) else None
    else:
        from heedful.models import all_families
        from heedful.train.config import TrainConfig

        of_models = set[str]().union(*(family.config.field_names() for family in all_families().values()))
        names = {"train.": {f.name for f in fields(TrainConfig)}, "data.": of_data, "model.": of_models}
        section = next((one for one, members in names.items() if name in members), None)
    typed = {"True": "true", "False": "false", "None": "null", "": "…"}.get(value, value)
    return None if section is None else f"--set {section}{name}={typed}"
