"""`heed generate`: text from a model."""

from __future__ import annotations

import secrets
import sys
import time
from typing import Annotated, Any

import typer

from heedful.commands.output import Json, as_json
from heedful.commands.tasks_text import one_text

Model = Annotated[str, typer.Argument(help="A folder, a run, a .gguf file, an installed model, a hub id.")]
Device = Annotated[str, typer.Option(help="cpu, or cuda for a GPU.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; the file's own by default.")]


def load_model(name: str, device: str, dtype: str | None) -> Any:
    """A model by anything that names one, where and in what precision it is wanted."""
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
    """Load a model and return the stepper that pays for so many rows and tokens, or else its fastest."""
    from heedful.decode.fast import choose_stepper, fast

    model = load_model(name, device, dtype)
    return fast(model) if tokens is None else choose_stepper(model, rows, tokens, exact=False)


def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="The text to go on with; - reads it from stdin.")] = "-",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "--max-new-tokens", help="At most so many.")
    ] = 128,
    temperature: Annotated[float | None, typer.Option(help="0 is the likeliest token each time.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest that hold this mass.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this part of the likeliest.")] = None,
    repetition: Annotated[float, typer.Option(help="Divides logits of tokens that occurred.")] = 1.0,
    beams: Annotated[int | None, typer.Option("--beams", "--num-beams", help="Search this wide.")] = None,
    n: Annotated[int | None, typer.Option(help="So many texts.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given often.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text.")] = None,
    regex: Annotated[str | None, typer.Option(help="Only text that matches this expression.")] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Speed and seed, on stderr.")] = False,
    json: Json = False,
) -> None:
    """Go on with a text. Greedy, unless something asks for drawing.

    Examples:

      heed generate smollm2-135m-instruct "Once upon a time" --temperature 0.8 --seed 0

      echo "The capital of France is" | heed generate ./my-model - --max-tokens 8
    """
    from heedful.decode.loop import generate as written
    from heedful.decode.loop import stream

    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else one_text(prompt)
    stepper = load_stepper(model, device, dtype, max(n or 1, beams or 1), max_tokens)
    seed = secrets.randbits(31) if seed is None else seed  # one that can be said, and given again
    rules: dict[str, Any] = {
        "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition": repetition, "stop": stop or None, "seed": seed, "regex": regex,
    }  # fmt: skip
    rules = {name: value for name, value in rules.items() if value is not None}
    began = time.perf_counter()
    if beams is not None or n is not None or json:
        found = written(stepper, text, beams=beams, n=n, details=True, **rules)
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
        for piece in stream(stepper, text, **rules):
            first, count = first or time.perf_counter() - began, count + 1
            print(piece.text, end="", flush=True)
        print()
    if verbose:
        speed(began, first, count, seed)


def speed(began: float, first: float, count: int, seed: int) -> None:
    """How fast a text was written, on stderr; without a first token of its own, reading counts too."""
    rate = (count - (first > 0)) / max(time.perf_counter() - began - first, 1e-9)
    after = f"first_s={first:.2f} " if first else ""
    print(f"tokens={count} {after}tokens_per_second={rate:.1f} seed={seed}", file=sys.stderr)
