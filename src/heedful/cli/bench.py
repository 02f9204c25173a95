"""`heed bench`: the speed of a model on this machine."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from heedful.cli.model_arguments import Device, Dtype, Model, load_stepper
from heedful.cli.output import Json, as_json, print_pairs
from heedful.core.progress import show_progress


def bench_command(
    model: Model,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens in the prompt.")] = 128,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Texts in a batch.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Runs, of which the median counts.")] = 3,
    device: Device = "cpu",
    dtype: Dtype = None,
    json: Json = False,
) -> None:
    """Measure prefill and decoding speed, time to the first token, and the share of the bandwidth limit.

    Examples:

      heed bench smollm2-135m-instruct --tokens 64
    """
    from heedful.core.errors import InputError
    from heedful.decode.request import free_context

    stepper = load_stepper(model, device, dtype)
    fits = free_context(stepper.model, prompt)
    if fits is not None and tokens > fits:
        raise InputError(
            f"--prompt {prompt} and --tokens {tokens} exceed its context", hint="use fewer tokens"
        )
    with show_progress("measuring"):
        runs = [measure(stepper, prompt, tokens, batch) for _ in range(repeats + 1)][1:]  # the first warms up
    read = sorted(r[0] for r in runs)[repeats // 2]
    write = sorted(r[1] for r in runs)[repeats // 2]
    weights = bytes_per_step(stepper.model)
    limit = bandwidth(stepper.model.device) / weights
    rate = batch * (tokens - 1) / write
    figures = {
        "prefill_tokens_per_second": round(batch * prompt / read, 1), "time_to_first_token_s": round(read, 4),
        "decode_tokens_per_second": round(rate, 1), "weights_MiB": round(weights / 2**20, 1),
        "bandwidth_limit_tokens_per_second": round(limit * batch, 1),
        "share_of_limit": round(rate / (limit * batch), 3),
        "batch": batch, "prompt": prompt, "tokens": tokens,
    }  # fmt: skip
    if json:
        return as_json({"model": model} | figures)
    rows = {name.replace("_", " "): f"{value:,}" for name, value in figures.items()}
    return print_pairs("figure", "value", rows, right=True)


def measure(stepper: Any, prompt: int, tokens: int, batch: int) -> tuple[float, float]:
    """Return the seconds for reading the prompt, and for generating the tokens after it."""
    import torch

    random = torch.Generator().manual_seed(0)
    ids = torch.randint(5, stepper.model.config.vocab, (batch, prompt), generator=random).to(
        stepper.model.device
    )
    start = time.perf_counter()
    token = stepper.prefill(ids, length=prompt + tokens).argmax(-1)
    token.tolist()  # waits for a GPU
    middle = time.perf_counter()
    for _ in range(tokens - 1):
        token = stepper.step(token).argmax(-1)
    token.tolist()
    return middle - start, time.perf_counter() - middle


def bytes_per_step(model: Any) -> int:
    """Return the bytes that a step reads; the token table counts only if it is the output matrix too."""
    head = {id(p) for p in model.head.parameters()}
    table = model.decoder_embed.table if "target" in model.tables else model.embed.table
    read = [t for t in [*model.parameters(), *model.buffers()] if t is not table or id(t) in head]
    return sum(t.numel() * t.element_size() for t in read)


def bandwidth(device: Any) -> float:
    """Return the bytes per second that this machine reads at best, timing a sum over a large tensor."""
    import torch

    big = torch.ones(2**26 if device.type == "cpu" else 2**30, device=device)
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        float(big.sum())
        best = max(best, big.numel() * 4 / (time.perf_counter() - start))
    return best
