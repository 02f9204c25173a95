"""`heed tokenize`: how a model tokenizes a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.output import Json, as_json, console, make_table
from heedful.cli.text_arguments import read_stdin, text_or_file
from heedful.core.errors import InputError
from heedful.core.progress import show_progress

if TYPE_CHECKING:
    from heedful.text import Tokenizer


def tokenize_command(
    model: Annotated[str, typer.Argument(help="A folder, a .gguf file or an installed model.")],
    text: Annotated[str, typer.Argument(help="The text, or its file; - reads stdin.")],
    special: Annotated[bool, typer.Option(help="Add the special tokens around the text.")] = True,
    json: Json = False,
) -> None:
    """Show the tokens of a text: their ids, and the characters they stand for.

    Examples:

      heed tokenize smollm2-135m-instruct "How are you?"

      echo "How are you?" | heed tokenize ./my-model - --json
    """
    text = read_stdin(wait=True).removesuffix("\n") if text == "-" else text_or_file(text)
    with show_progress(f"loading {model}"):
        tokenizer = _load_tokenizer(model)
    pieces = tokenizer.split(text, special=special)
    if json:
        return as_json({"model": model, "text": text, "tokens": [p._asdict() for p in pieces]})
    rows = make_table("id", "token", "characters", "text", right=("id", "characters"))
    from rich.text import Text

    for p in pieces:
        span = f"{p.start}–{p.end}" if p.end > p.start else ""
        rows.add_row(str(p.id), Text(p.token), span, Text(repr(text[p.start : p.end])[1:-1] if span else ""))
    out = console()
    out.print(rows)
    out.print(f"\n{len(pieces)} tokens, {len(text)} characters", style="dim")


def _load_tokenizer(name: str) -> Tokenizer:
    """Load a model's tokenizer without its weights."""
    from heedful.models import presets
    from heedful.train.checkpoint import of_run
    from heedful.weights.hub import resolve

    if name in presets():
        raise InputError(
            f"{name!r} is a preset: sizes without a vocabulary", hint="give a trained model's folder"
        )
    where = resolve(str(of_run(name)))
    if where.is_file():
        from heedful.text.from_gguf import from_gguf
        from heedful.weights.formats.gguf import GGUFFile

        found = from_gguf(GGUFFile(where).metadata)
    else:
        from heedful.models.hf_config import read_config
        from heedful.text import load_tokenizer

        found = load_tokenizer(where, read_config(where) if (where / "config.json").is_file() else {})
    if found is None:
        raise InputError(
            f"{name} has no tokenizer", hint="it needs a tokenizer.json, a vocab file or a .model"
        )
    return found
