"""`heed explain`: arithmetic worked out, with every operand and result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli.model_arguments import load_model
from heedful.cli.output import Json, as_json, console, make_table
from heedful.cli.text_arguments import text_or_file
from heedful.core.errors import InputError
from heedful.core.progress import show_progress

if TYPE_CHECKING:
    from heedful.classroom.arithmetic.worked import Derivation


def explain_command(
    source: Annotated[
        str | None, typer.Argument(help="An exercise (cat-sat), a .yaml or .json file, or a model's folder.")
    ] = None,
    text: Annotated[
        str | None, typer.Argument(help="The model's input: a text, or the name of a sentence (fox).")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            help="attention, block, positions, norm, lstm, alignment, softmax, cross-entropy-gradient or "
            "attention-gradient. [default: attention]"
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="The part, as blocks.0.attn; the first that fits by default.")
    ] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Which head. [default: 0]")] = None,
    token: Annotated[
        str | None, typer.Option(help="A token, or its position; -1 is the last. [default: -1]")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The output text of an encoder-decoder.")] = None,
    temperature: Annotated[float | None, typer.Option(help="The temperature of a softmax.")] = None,
    format: Annotated[str, typer.Option("--format", "-f", help="text, markdown, latex or html.")] = "text",
    digits: Annotated[int, typer.Option(min=1, max=15, help="Digits after the point.")] = 4,
    max_columns: Annotated[
        int, typer.Option("--wide", min=0, help="Cut vectors after this many numbers; 0 shows all.")
    ] = 16,
    list_all: Annotated[bool, typer.Option("--list", help="List the exercises and sentences.")] = False,
    json: Json = False,
) -> None:
    """Work out the arithmetic of an exercise, of a file of vectors and matrices, or of a model on a text.

    Examples:

      heed explain --list

      heed explain cat-sat

      heed explain ./my-model "The cat sat on the mat." --token cat --head 2

      heed explain ./my-model fox --topic block --format latex
    """
    if list_all or source is None:
        return _print_exercises(json)
    options = {"topic": topic, "part": part, "head": head, "token": _token(token), "temperature": temperature}
    options = {name: value for name, value in options.items() if value is not None}
    derivation = _derive(source, text, target, options)
    if json:
        return as_json(derivation.to_dict())
    from heedful.classroom.arithmetic.render import FORMATS, render_text

    if format not in FORMATS:
        raise InputError(f"--format {format} is unknown", hint=f"choose {', '.join(FORMATS)}")
    if format == "text":
        columns = console().width if sys.stdout.isatty() else None
        return print(render_text(derivation, digits, max_columns or None, columns=columns))
    print(FORMATS[format](derivation, digits, max_columns or None))


def _derive(source: str, text: str | None, target: str | None, options: dict[str, Any]) -> Derivation:
    from heedful.classroom.arithmetic.explain import explain

    if text is None and not _is_model(source):
        if options or target is not None:
            name = next(iter(options), "target")
            raise InputError(f"--{name} is for a model, and {source} is an exercise", hint="leave it out")
        return explain(source)  # its error names the nearest exercise
    if text is None:
        raise InputError(f"{source} is a model", hint=f'give it a text as well: heed explain {source} "…"')
    defaults: dict[str, Any] = {"topic": "attention", "part": "", "head": 0, "token": -1}
    text = text_or_file(text)
    model = load_model(source, "cpu", None)
    with show_progress("computing"):
        return explain(model, text, target, **defaults | options)


def _is_model(source: str) -> bool:
    """Return whether this names a folder, a .gguf file or a trained model, and no exercise."""
    from heedful.classroom.arithmetic.explain import examples
    from heedful.weights.hub import bundled_models, installed_models

    if source in examples() or Path(source).suffix in (".yaml", ".yml", ".json"):
        return False
    return Path(source).exists() or source.lower() in {**installed_models(), **bundled_models()}


def _token(token: str | None) -> int | str | None:
    if token is None:
        return None
    return int(token) if token.removeprefix("-").isdigit() else token


def _print_exercises(json: bool) -> None:
    from heedful.classroom.arithmetic.explain import examples, sentences

    if json:
        return as_json({"exercises": examples(), "sentences": sentences()})
    from rich.text import Text

    out = console()
    exercises = make_table("exercise", "what it works out", unbroken=("exercise",))
    for name, about in examples().items():
        exercises.add_row(Text(name), Text(about))
    out.print(exercises)
    listing = make_table("sentence", "text", "look for", unbroken=("sentence",))
    for name, row in sentences().items():
        listing.add_row(Text(name), Text(row["text"]), Text(row["look"]))
    out.print()
    out.print(listing)
