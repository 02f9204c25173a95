"""`heed explain`: the arithmetic, every operand and result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.commands.output import Json, as_json, console, table
from heedful.errors import InputError

if TYPE_CHECKING:
    from heedful.inspect.worked import Derivation


def explain(
    what: Annotated[
        str | None, typer.Argument(help="An exercise (cat-sat), a .yaml or .json file, or a model's folder.")
    ] = None,
    text: Annotated[
        str | None, typer.Argument(help="What the model reads: a text, or the name of a sentence (fox).")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            help="attention, block, positions, norm, lstm, alignment or softmax. [default: attention]"
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Where: blocks.0.attn; the first that fits by default.")
    ] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Which head. [default: 0]")] = None,
    token: Annotated[
        str | None, typer.Option(help="A token, or its position; -1 is the last. [default: -1]")
    ] = None,
    target: Annotated[str | None, typer.Option(help="What an encoder-decoder writes.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of a softmax.")] = None,
    format: Annotated[str, typer.Option("--format", "-f", help="text, markdown, latex or html.")] = "text",
    digits: Annotated[int, typer.Option(min=1, max=15, help="Digits after the point.")] = 4,
    wide: Annotated[int, typer.Option(min=0, help="Cut longer vectors; 0 shows all.")] = 16,
    every: Annotated[bool, typer.Option("--list", help="Every exercise and sentence.")] = False,
    json: Json = False,
) -> None:
    """The worked arithmetic: an exercise, a file of vectors and matrices, or a model on a text.

    Examples:

      heed explain --list

      heed explain cat-sat

      heed explain ./my-model "The cat sat on the mat." --token cat --head 2

      heed explain ./my-model fox --topic block --format latex
    """
    if every or what is None:
        return _list(json)
    given = {"topic": topic, "part": part, "head": head, "token": _token(token), "temperature": temperature}
    worked = _worked(what, text, target, {name: value for name, value in given.items() if value is not None})
    if json:
        return as_json(worked.to_dict())
    from heedful.inspect.render import FORMATS

    if format not in FORMATS:
        raise InputError(f"--format {format} is unknown", hint=f"choose {', '.join(FORMATS)}")
    print(FORMATS[format](worked, digits, wide or None))


def _worked(what: str, text: str | None, target: str | None, options: dict[str, Any]) -> Derivation:
    from heedful.inspect.explain import explain as worked

    if text is None and not _is_model(what):
        if options or target is not None:
            name = next(iter(options), "target")
            raise InputError(f"--{name} asks a model, and {what} is an exercise", hint="leave it out")
        return worked(what)  # of an unknown one it says which is nearest
    if text is None:
        raise InputError(f"{what} is a model", hint=f'give it a text as well: heed explain {what} "…"')
    from heedful.loading import load
    from heedful.train.checkpoint import of_run

    usual: dict[str, Any] = {"topic": "attention", "part": "", "head": 0, "token": -1}
    return worked(load(of_run(what)), text, target, **usual | options)


def _is_model(what: str) -> bool:
    """A folder, a .gguf file or a trained model at hand, and neither an exercise nor a file of numbers."""
    from heedful.inspect.explain import examples
    from heedful.weights.bases import bundled, installed

    if what in examples() or Path(what).suffix in (".yaml", ".yml", ".json"):
        return False
    return Path(what).exists() or what.lower() in {**installed(), **bundled()}


def _token(token: str | None) -> int | str | None:
    if token is None:
        return None
    return int(token) if token.removeprefix("-").isdigit() else token


def _list(json: bool) -> None:
    from heedful.inspect.explain import examples, sentences

    if json:
        return as_json({"exercises": examples(), "sentences": sentences()})
    from rich.text import Text

    out = console()
    exercises = table("exercise", "what it works out", whole=("exercise",))
    for name, about in examples().items():
        exercises.add_row(Text(name), Text(about))
    out.print(exercises)
    said = table("sentence", "text", "look for", whole=("sentence",))
    for name, row in sentences().items():
        said.add_row(Text(name), Text(row["text"]), Text(row["look"]))
    out.print()
    out.print(said)
