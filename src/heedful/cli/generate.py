"""`heed generate`: continue a text with a model."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli.model_arguments import Device, Dtype, default_model, load_stepper, names_model
from heedful.cli.options import options_from
from heedful.cli.output import Json, as_json
from heedful.cli.text_arguments import read_stdin, text_or_file
from heedful.core.progress import show_progress
from heedful.decode.generation_options import GenerationOptions

if TYPE_CHECKING:
    from heedful.decode.loop import Piece


@options_from(GenerationOptions)
def generate_command(
    options: GenerationOptions,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A name of heed ls, a folder, a run, a .gguf file or a hub id.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The text to continue, or its file; - or a pipe reads stdin."),
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print speed and seed on stderr.")] = False,
    json: Json = False,
) -> None:
    """Continue a text, greedily unless a sampling option is given.

    A single argument is the text, unless it is written like a model: a name of heed ls, a folder, a .gguf
    file or owner/name.

    Examples:

      heed generate "Once upon a time"

      heed generate prose "Once upon a time" --temperature 0.8 --seed 0

      echo "The capital of France is" | heed generate ./my-model - --max-tokens 8
    """
    if prompt is None and model is not None and not names_model(model):
        model, prompt = None, model
    if prompt is None or prompt == "-":
        example = f"write it after the command: heed generate {model or ''}".rstrip() + ' "Once upon a time"'
        text = read_stdin(wait=prompt == "-", hint=example).removesuffix("\n")
    else:
        text = text_or_file(prompt)
    model = default_model("text-generation") if model is None else model
    rows = max(options.n or 1, options.beams or 1)
    stepper = load_stepper(model, device, dtype, rows, options.max_tokens)
    seed = secrets.randbits(31) if options.seed is None else options.seed  # can be printed and used again
    settings = replace(options, seed=seed).settings()
    start = time.perf_counter()
    if options.beams is not None or options.n is not None or json:
        first, count = 0.0, print_whole(stepper, text, settings, {"model": model, "seed": seed}, json)
    else:
        first, count = print_stream(stepper, text, settings)
    if verbose:
        # without a first token of its own, the time includes reading the prompt
        rate = (count - (first > 0)) / max(time.perf_counter() - start - first, 1e-9)
        first_token = f"first_s={first:.2f} " if first else ""
        print(f"tokens={count} {first_token}tokens_per_second={rate:.1f} seed={seed}", file=sys.stderr)


def print_whole(stepper: Any, text: str, settings: dict[str, Any], about: dict[str, Any], json: bool) -> int:
    """Generate whole texts, then print them; return how many tokens they have."""
    from heedful.decode.loop import generate

    with show_progress("generating"):
        found = generate(stepper, text, details=True, **settings)
    texts = found if isinstance(found, list) else [found]
    if json:
        rows = [{"text": g.text, "finish": g.finish, "score": g.score, "tokens": len(g.ids)} for g in texts]
        as_json({"model": about["model"], "prompt": text, "seed": about["seed"], "texts": rows})
    for number, g in enumerate(() if json else texts, 1):
        print(f"--- {number}\n{g.text}" if len(texts) > 1 else g.text)
    if full := [len(g.ids) for g in texts if g.finish == "context"]:
        print_context_note(stepper.model, max(full), settings["max_tokens"])
    return sum(len(g.ids) for g in texts)


def after_prompt(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield the pieces of a text; progress is shown until there is the first one."""
    with show_progress("reading the prompt"):
        first = next(pieces, None)
    if first is not None:
        yield first
    yield from pieces


def print_stream(stepper: Any, text: str, settings: dict[str, Any]) -> tuple[float, int]:
    """Print a text while it is generated; return the seconds to its first token, and the number of tokens."""
    from heedful.decode.loop import stream

    start, first, count, finish = time.perf_counter(), 0.0, 0, None
    for piece in after_prompt(stream(stepper, text, **settings)):
        first, count = first or time.perf_counter() - start, count + 1
        print(piece.text, end="", flush=True)
        finish = piece.finish
    print()
    if finish == "context":
        print_context_note(stepper.model, count, settings["max_tokens"])
    return first, count


def print_context_note(model: Any, written: int, wanted: int) -> None:
    """Tell on stderr that a text ended early because the model's context is full."""
    from heedful.decode.request import context_length

    print(
        f"note: the text ends after {written} of {wanted} tokens, because the model's context of "
        f"{context_length(model)} tokens is full. Shorten the prompt, or name a model with a longer context.",
        file=sys.stderr,
    )
