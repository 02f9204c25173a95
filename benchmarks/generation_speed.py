"""Tokens per second of `generate(model, …)` as a user writes it, of models of all kinds, beside transformers.

    python benchmarks/generation_speed.py                                   all of it, some minutes on one GPU
    python benchmarks/generation_speed.py --only t5-base,lstm --no-peers        some of it
    python benchmarks/generation_speed.py --tiny --device cpu               a dry run

Random weights, bfloat16, a prompt (or source) of 32 tokens, 256 written; a rate counts the whole call, the
prompt's reading included, and is the best of three. "first s" is the first call, "first +s" what it takes
more than a plain one. "plain" is `generate(model, fast=False)`, "graph" the model's own parts recorded,
"default" what `generate(model)` chooses: the same with the kernels of kernels/gpu/step.py; "sampled" draws.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import json
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

import heedful
from gpu_timing import time_call
from heedful.decode.engines.graph_stepper import GraphStepper
from heedful.decode.fast import choose_stepper, fast
from heedful.decode.quantize import quantize
from heedful.decode.stepper import EagerStepper

PROMPT, TOKENS, FEW_TOKENS = 32, 256, 48
CASES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2 ×16": {"name": "gpt2", "rows": 16},
    "t5-base": {},
    "t5-base 8×4 beams": {"name": "t5-base", "rows": 8, "beams": 4, "tokens": 64},
    "bart-base": {},
    "mamba-130m": {},
    "lstm": {"build": {"vocab": 32000, "dim": 1024, "layers": 2}},
    "gla": {"build": {"vocab": 32000, "dim": 768, "layers": 12, "heads": 12}},
    "bloom-560m": {},
    "llama-7b": {},
    "llama-7b int8": {"name": "llama-7b", "quantize": "int8"},
    "llama-7b int4": {"name": "llama-7b", "quantize": "int4"},
    "llama-7b ×64": {"name": "llama-7b", "rows": 64, "prompt": 512},
    "llama-7b ×64 8-bit keys": {"name": "llama-7b", "rows": 64, "prompt": 512, "cache": torch.float8_e4m3fn},
}
PEERS = {
    "gpt2": "GPT2", "gpt2 ×16": "GPT2", "t5-base": "T5", "t5-base 8×4 beams": "T5", "bart-base": "Bart",
    "mamba-130m": "Mamba", "llama-7b": "Llama",
}  # fmt: skip
RESULTS: dict[str, dict[str, Any]] = {}
report = functools.partial(print, flush=True)


def build(case: str, a: argparse.Namespace) -> Any:
    """The model of a case, or the family's smallest."""
    options, name = CASES[case].get("build", {}), CASES[case].get("name", case)
    if a.tiny:
        from heedful.models import FAMILIES
        from heedful.nn.init import initialise
        from heedful.weights.loading import assemble

        family = next(f for f in (name, name.partition("-")[0]) if f in FAMILIES)
        model = assemble(FAMILIES[family], FAMILIES[family].tiny)
        initialise(model)
        return model.eval()
    model = (
        heedful.build(name, device=a.device, dtype=a.dtype, seed=0, **options).eval().requires_grad_(False)
    )
    return quantize(model, CASES[case]["quantize"]) if "quantize" in CASES[case] else model


def ours(case: str, a: argparse.Namespace) -> None:
    model, known = build(case, a), RESULTS.setdefault(case, {})
    rows, beams = CASES[case].get("rows", 1), CASES[case].get("beams")
    tokens, few = (8, 4) if a.tiny else (CASES[case].get("tokens", TOKENS), FEW_TOKENS)
    vocab = min(table.vocab for table in model.tables.values())
    torch.manual_seed(0)
    length = 6 if a.tiny else CASES[case].get("prompt", PROMPT)
    prompts = torch.randint(5, vocab, (rows, length)).tolist()
    settings = {"eos": []} | ({} if beams is None else {"beams": beams})
    write = lambda by, count, **more: heedful.generate(by, prompts, max_tokens=count, **settings, **more)
    rate = lambda work, count, times=3: round(
        rows * count / min(time_call(work) for _ in range(1 if a.tiny else times)), 1
    )
    write(model, few, fast=False)
    plain = time_call(lambda: write(model, few, fast=False))
    known["prompt ms"] = round(1e3 * time_call(lambda: write(model, 1, fast=False)), 1)
    known["plain"] = round(rows * few / plain, 1)
    cache = CASES[case].get("cache")
    model_or_stepper = model if cache is None or a.device != "cuda" else fast(model, cache)
    known["first s"] = round(time_call(lambda: write(model_or_stepper, few)), 2)
    known["first +s"] = round(known["first s"] - plain, 2)
    known["default"] = rate(lambda: write(model_or_stepper, tokens), tokens)
    if beams is None:
        drawn = {"temperature": 0.8, "top_p": 0.95, "seed": 0}
        known["sampled"] = rate(lambda: write(model_or_stepper, tokens, **drawn), tokens)
    known["stepper"] = type(choose_stepper(model, rows, tokens)).__name__
    written, want = write(model, few), write(model, few, fast=False)
    same = [next((i for i, (x, y) in enumerate(zip(*pair)) if x != y), few) for pair in zip(written, want)]
    known["same"] = f"{min(same)}–{max(same)} of {few}"
    if a.graph and (a.device == "cuda" or a.tiny):
        known |= measure("graph", GraphStepper(model, kernels=False), write, rate, few, tokens, plain)
    if a.compiled:
        known |= measure("compiled", GraphStepper(model, compiled=True), write, rate, few, tokens, plain)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    if rows == 1 and size < 2e9:
        known["off by"] = rounding(model, prompts)
    known["TB/s"] = round(known["default"] / rows * size / 1e12, 2)
    if a.profile and a.device == "cuda":
        profile(model, write)


def rounding(model: Any, prompts: list[list[int]]) -> str:
    """How far logits are from those in float32, as a share of the largest one: plain and recorded."""
    exact = copy.deepcopy(model).float()
    steppers = [EagerStepper(exact), EagerStepper(model), GraphStepper(model)]
    tokens = torch.tensor(prompts, device=model.device)
    logits = [stepper.prefill(tokens, None, tokens.shape[1] + 16) for stepper in steppers]
    worst = [0.0, 0.0]
    for _ in range(8):
        token = logits[0].argmax(-1)
        logits = [stepper.step(token).float() for stepper in steppers]
        worst = [
            max(w, float((z - logits[0]).abs().max() / logits[0].abs().max()))
            for w, z in zip(worst, logits[1:], strict=True)
        ]
    return f"{worst[0]:.1%} plain, {worst[1]:.1%} recorded"


def measure(
    name: str, stepper: GraphStepper, write: Any, rate: Any, few: int, tokens: int, plain: float
) -> dict[str, Any]:
    """The rate of one stepper, what its first call takes more than the plain one, and why it failed."""
    first = time_call(lambda: write(stepper, few))
    found = {name: rate(lambda: write(stepper, tokens), tokens), f"{name} +s": round(first - plain, 2)}
    failure = stepper.fallback_reason or (stepper.recording and stepper.recording.operator_error)
    return found | ({f"{name} failed": failure} if failure else {})


def profile(model: Any, write: Callable[..., Any]) -> None:
    """Say which kernels take longest, in microseconds a token."""
    stepper, count = GraphStepper(model), 32
    write(stepper, count)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        write(stepper, count)
        torch.cuda.synchronize()
    for row in sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)[:14]:
        report(f"    {row.self_device_time_total / count:8.1f} µs {row.count / count:6.1f} × {row.key[:80]}")


def theirs(case: str, a: argparse.Namespace) -> None:
    """transformers' generate on a model of the same size: with its dynamic cache, and with its static one."""
    import transformers as hf

    rows, beams = CASES[case].get("rows", 1), CASES[case].get("beams", 1)
    tokens, kind = CASES[case].get("tokens", TOKENS), PEERS[case]
    config = getattr(hf, f"{kind}Config")(
        **PEER_SIZES.get(kind, {}), bos_token_id=0, eos_token_id=1, pad_token_id=0
    )
    if kind in ("T5", "Bart"):
        config.decoder_start_token_id = 0
    head = {"T5": "ForConditionalGeneration", "Bart": "ForConditionalGeneration", "GPT2": "LMHeadModel"}
    torch.set_default_dtype(a.dtype)
    try:
        with torch.device(a.device):
            model = getattr(hf, kind + head.get(kind, "ForCausalLM"))(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    prompt = torch.randint(5, 30000, (rows, PROMPT), device=a.device)
    known = RESULTS.setdefault(case, {})

    def write(count: int, **cache: Any) -> None:
        with torch.no_grad():
            out = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, num_beams=beams,
                max_new_tokens=count, min_new_tokens=count, eos_token_id=None, **cache,
            )  # fmt: skip
        assert out.shape[1] >= count

    for name, cache in (("hf dynamic", {}), ("hf static", {"cache_implementation": "static"})):
        if name == "hf static" and kind == "Mamba":
            continue
        count = FEW_TOKENS if name == "hf dynamic" and beams == 1 else tokens
        work = functools.partial(write, count, **cache)
        try:
            known[f"{name} first s"] = round(time_call(work), 1)
            known[name] = round(rows * count / min(time_call(work) for _ in range(2)), 1)
        except Exception as error:
            known[f"{name} failed"] = f"{type(error).__name__}: {error}"[:120]


PEER_SIZES: dict[str, dict[str, Any]] = {
    "T5": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    "Bart": {
        "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
        "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
    },
    "Mamba": {"hidden_size": 768, "num_hidden_layers": 24},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--compiled", action="store_true", help="measure the step given to torch.compile, too"
    )
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--profile", action="store_true")
    a = parser.parse_args()
    a.dtype = torch.bfloat16 if a.device == "cuda" else torch.float32
    if a.device == "cuda":
        report(torch.cuda.get_device_name(), "torch", torch.__version__)
    for case in a.only.split(","):
        for part in (ours, theirs):
            if part is theirs and (not a.peers or a.tiny or case not in PEERS):
                continue
            began = time.perf_counter()
            try:
                part(case, a)
            except Exception as error:
                RESULTS.setdefault(case, {})[f"{part.__name__} failed"] = f"{type(error).__name__}: {error}"[
                    :200
                ]
                traceback.print_exc(limit=-6)
            gc.collect()
            if a.device == "cuda":
                torch.cuda.empty_cache()
            took = time.perf_counter() - began
            report(f"{case}: {json.dumps(RESULTS.get(case), ensure_ascii=False)} ({took:.0f} s)")
    report(json.dumps(RESULTS, ensure_ascii=False))


if __name__ == "__main__":
    main()
