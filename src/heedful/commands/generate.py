"""`heed generate`: continue a text with a model."""

from __future__ import annotations

import secrets
import sys
import time
from typing import Annotated, Any

import typer

from heedful.commands.output import Json, as_json
from heedful.commands.text_arguments import read_stdin, text_or_file

Model = Annotated[str, typer.Argument(help="A folder, a run, a .gguf file, an installed model or a hub id.")]
Device = Annotated[str, typer.Option(help="cpu, or cuda for a GPU.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; the file's own by default.")]


def load_model(name: str, device: str, dtype: str | None) -> Any:
    """Load a model by any of its names, onto a device and in a precision."""
    import torch

    from heedful.devices import resolve_device
    from heedful.errors import InputError
    from heedful.loading import load
    from heedful.train.checkpoint import of_run

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype is not None and dtype not in known:
        raise InputError(f"dtype={dtype!r} is unknown", hint=f"choose {', '.join(known)}")
    return load(of_run(name), device=resolve_device(device), dtype=None if dtype is None else known[dtype])


def load_stepper(name: str, device: str, dtype: str | None, rows: int = 1, tokens: int | None = None) -> Any:
    """Load a model and return the stepper that pays for this many rows and tokens, or its fastest."""
    from heedful.decode.fast import choose_stepper, fast

    model = load_model(name, device, dtype)
    return fast(model) if tokens is None else choose_stepper(model, rows, tokens, exact=False)


def generate_command(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="The text to continue, or its file; - reads stdin.")] = "-",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "--max-new-tokens", help="Generate at most N tokens.")
    ] = 128,
    temperature: Annotated[
        float | None, typer.Option(help="Sample at this temperature; 0 takes the likeliest token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the K likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest tokens that hold this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Drop tokens less likely than this share of the likeliest.")
    ] = None,
    repetition: Annotated[
        float, typer.Option(help="Divide the logits of tokens that occurred by this.")
    ] = 1.0,
    beams: Annotated[int | None, typer.Option("--beams", "--num-beams", help="Width of beam search.")] = None,
    n: Annotated[int | None, typer.Option(help="Number of texts.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    regex: Annotated[
        str | None, typer.Option(help="Generate only text that matches this expression.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print speed and seed on stderr.")] = False,
    json: Json = False,
) -> None:
    """Continue a text, greedily unless a sampling option is given.

    Examples:

      heed generate smollm2-135m-instruct "Once upon a time" --temperature 0.8 --seed 0

      echo "The capital of France is" | heed generate ./my-model - --max-tokens 8
    """
    from heedful.decode.loop import generate, stream

    text = read_stdin(wait=True).removesuffix("\n") if prompt == "-" else text_or_file(prompt)
    stepper = load_stepper(model, device, dtype, max(n or 1, beams or 1), max_tokens)
    seed = secrets.randbits(31) if seed is None else seed  # known, so that it can be printed and used again
    options: dict[str, Any] = {
        "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition": repetition, "stop": stop or None, "seed": seed, "regex": regex,
    }  # fmt: skip
    options = {name: value for name, value in options.items() if value is not None}
    start = time.perf_counter()
    if beams is not None or n is not None or json:
        found = generate(stepper, text, beams=beams, n=n, details=True, **options)
        texts = found if isinstance(found, list) else [found]
        first, count = 0.0, sum(len(g.ids) for g in texts)
        if json:
            rows = [
                {"text": g.text, "finish": g.finish, "score": g.score, "tokens": len(g.ids)} for g in texts
            ]
            as_json({"model": model, "prompt": text, "seed": seed, "texts": rows})
        for number, g in enumerate(() if json else texts, 1):
            print(f"--- {number}\n{g.text}" if len(texts) > 1 else g.text)
    else:
        first, count = 0.0, 0
        for piece in stream(stepper, text, **options):
            first, count = first or time.perf_counter() - start, count + 1
            print(piece.text, end="", flush=True)
        print()
    if verbose:
        # without a first token of its own, the time includes reading the prompt
        rate = (count - (first > 0)) / max(time.perf_counter() - start - first, 1e-9)
        first_token = f"first_s={first:.2f} " if first else ""
        print(f"tokens={count} {first_token}tokens_per_second={rate:.1f} seed={seed}", file=sys.stderr)
