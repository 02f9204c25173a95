"""Decoding on one GPU with random weights: how near to the speed of the memory, beside transformers.

    python benchmarks/gpu_decode.py                                   everything, a few minutes
    python benchmarks/gpu_decode.py --sections read,llama,int8        some of it
    TRITON_INTERPRET=1 python benchmarks/gpu_decode.py --tiny --device cpu      a dry run

Sections: read (a plain read), llama (7B shape, batch 1, bfloat16), int8 (the same, weight-only), gpt2 (124M),
batch (7B, 64 prompts of 512 tokens, 256 new ones), batch8 (keys and values in 8-bit floats), peer
(transformers with static cache on that batch), peer1 (and on one prompt). Each stands alone: one that fails
says why and the next begins. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import heedful
from gpu_timing import synchronise, time_call
from heedful.decode.engines.merged_matrices import CUBLAS, AttentionPlan
from heedful.decode.engines.recorded_step import StepKernels
from heedful.decode.engines.recorded_stepper import RecordedStepper
from heedful.decode.engines.tuning import PRODUCTS, median_seconds, record_graph
from heedful.decode.quantize import quantize
from heedful.decode.stepper import EagerStepper

TINY = {"vocab": 32, "dim": 32, "layers": 1, "heads": 2, "context": 384, "hidden": 32}
RESULTS: dict[str, Any] = {}
MODELS: dict[str, Any] = {}
report = partial(print, flush=True)


def build_model(name: str, a: argparse.Namespace) -> Any:
    model = heedful.build(name, device=a.device, dtype=a.dtype, seed=0, **(TINY if a.tiny else {}))
    return model.eval().requires_grad_(False)


def cached_model(name: str, a: argparse.Namespace) -> Any:
    """The same for sections that change nothing in it: made once."""
    if name not in MODELS:
        MODELS[name] = build_model(name, a)
    return MODELS[name]


def weight_bytes(model: Any) -> int:
    """What one token reads: every matrix once. A table that is only looked up does not count."""
    tied = {id(model.head.out.weight)}
    parameters = {id(p): p for p in model.parameters()}
    token = id(model.embed.token.weight)
    if token not in tied:
        parameters.pop(token)
    return sum(p.numel() * p.element_size() for p in parameters.values())


def read(a: argparse.Namespace) -> None:
    """TB/s of a plain read: the limit of everything below."""
    size = 2**20 if a.tiny else 2**32  # bytes
    x = torch.ones(size // 4, device=a.device)
    y = x.view(torch.int32)
    best = 0.0
    for work in (lambda: x.sum(), lambda: y.amax(), lambda: x.amax(), lambda: torch.dot(x, x)):
        work()
        best = max(best, *(size / time_call(work) / 1e12 for _ in range(5)))
    RESULTS["read_TB_s"] = float(f"{best:.4g}")
    report(f"a plain read: {best:.2f} TB/s")


def agreement(model: Any, stepper: RecordedStepper, rows: int, length: int, a: argparse.Namespace) -> str:
    """How far steps of the graph are from the plain ones. `length` is that of the measurements to come."""
    steps = 3 if a.tiny else 16
    prompt = torch.randint(model.config.vocab, (rows, 16), device=a.device)
    plain, same, worst = EagerStepper(model), 0, 0.0
    logits = plain.prefill(prompt, None, 16 + steps)
    stepper.prefill(prompt, None, length)
    for _ in range(steps):
        tokens = logits.argmax(-1)
        got, logits = stepper.step(tokens), plain.step(tokens)
        same += int((got.argmax(-1) == logits.argmax(-1)).sum())
        worst = max(worst, float((got - logits).abs().max() / logits.abs().max()))
    return f"same argmax {same} of {rows * steps}, largest difference {worst:.1e} of the largest logit"


def same_reading(model: Any, stepper: RecordedStepper, prompt: torch.Tensor, length: int) -> str:
    """How far the logits after whole prompts are from the plain ones."""
    want, got = EagerStepper(model).prefill(prompt), stepper.prefill(prompt, None, length)
    same = int((got.argmax(-1) == want.argmax(-1)).sum())
    worst = float((got - want).abs().max() / want.abs().max())
    return f"same argmax {same} of {len(prompt)}, largest difference {worst:.1e} of the largest logit"


def one_row(key: str, model: Any, a: argparse.Namespace) -> None:
    """Batch 1: tuned kernels, tokens per second, where the time goes."""
    began = time.perf_counter()
    stepper = RecordedStepper(model, tune=a.device == "cuda")
    if stepper.fallback_reason:
        raise RuntimeError(f"stepped plainly: {stepper.fallback_reason}")
    count = 3 if a.tiny else 256
    prompt = torch.randint(model.config.vocab, (1, 32), device=a.device)
    agrees = agreement(model, stepper, 1, 32 + count, a)
    out: dict[str, Any] = {"tuning_s": round(time.perf_counter() - began, 1)}
    if a.device == "cuda":
        for name in PRODUCTS:
            rates = sorted(stepper.rates[name].items(), key=lambda r: -r[1])
            report(f"  {name:6}", "  ".join(f"{kernel} {rate:.2f}" for kernel, rate in rates), "TB/s")
        out["kernels"] = {name: str(kernel) for name, kernel in stepper.choice.items()}
        report_attention(stepper, 1)
    report(" ", agrees)
    limit = RESULTS.get("read_TB_s", 4.5) * 1e12 / weight_bytes(model)
    tokens = rate(stepper, prompt, count)
    out |= {"tokens_per_s": round(tokens, 1), "share_of_limit": round(tokens / limit, 3),
            "limit": round(limit, 1), "agreement": agrees}  # fmt: skip
    RESULTS[key] = out
    report(f"  {key}: {out['tokens_per_s']} tokens/s, {out['share_of_limit']:.0%} of {out['limit']}")
    out["stepped_by_host"] = round(by_host(stepper, prompt, count), 1)
    if a.device == "cuda":
        out["ms"] = where_time_goes(stepper, 1, 320, 160)
        stepper.step(stepper.prefill(prompt, None, 32 + count).argmax(-1))
        profile("a step", stepper.replay_fed, 4)
        stepper.choice, stepper.kernels = dict.fromkeys(PRODUCTS, CUBLAS), None
        if not any("int8" in str(p.dtype) for p in model.parameters()):
            out["all_cublas"] = round(rate(stepper, prompt, count), 1)
    report(" ", json.dumps(out))


def report_attention(stepper: RecordedStepper, rows: int) -> None:
    times = sorted(stepper.times.get(rows, {}).items(), key=lambda t: t[1])
    report("  attend", "  ".join(f"{plan} {ms:.3f}" for plan, ms in times), "ms")


def rate(stepper: RecordedStepper, prompt: torch.Tensor, count: int) -> float:
    """Tokens per second of steps fed on the device; the prompt's reading is taken off."""
    stepper.greedy(prompt, count)
    whole = min(time_call(lambda: stepper.greedy(prompt, count)) for _ in range(3))
    reading = min(time_call(lambda: stepper.greedy(prompt, 1)) for _ in range(3))
    return (count - 1) / (whole - reading)


def by_host(stepper: RecordedStepper, prompt: torch.Tensor, count: int) -> float:
    """The same with the host reading every token before the next step, as a stream to a person does."""

    def work() -> None:
        logits = stepper.prefill(prompt, None, prompt.shape[1] + count)
        for _ in range(count - 1):
            tokens = logits.argmax(-1)
            tokens.tolist()
            logits = stepper.step(tokens)

    work()
    return count / time_call(work)


def where_time_goes(stepper: RecordedStepper, rows: int, room: int, past: int) -> dict[str, float]:
    """Milliseconds of a step at position `past`, each kind of kernel alone and all together."""
    out = {}
    plan = stepper.attention.get(rows, AttentionPlan())
    for name in ("", *PRODUCTS, "attend"):
        # Products alone need no room for keys.
        space = room if name in ("", "attend") else 8
        kernels = StepKernels(
            stepper.matrices, rows, space, stepper.choice, plan, stepper.cache_dtype, only=name
        )
        kernels.past.fill_(past if space == room else 1)
        out[name or "whole"] = round(median_seconds(record_graph(kernels.run, kernels.device)) * 1e3, 4)
        del kernels
    out["rest"] = round(out["whole"] - sum(v for k, v in out.items() if k != "whole"), 4)
    return out


def profile(what: str, work: Callable[[], Any], times: int, most: int = 15) -> None:
    """The kernels that take longest, in microseconds of one call."""
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(times):
                work()
            synchronise()
        rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)[:most]
    except Exception as reason:  # a table less is no reason to stop measuring
        return report(f"  no profile of {what}: {reason}")
    report(f"  {what}, by kernel: µs in all, launches")
    for row in rows:
        report(f"    {row.self_device_time_total / times:10.1f} {row.count / times:7.1f}  {row.key[:90]}")


def llama(a: argparse.Namespace) -> None:
    one_row("llama-7b bf16", cached_model("llama-7b", a), a)


def int8(a: argparse.Namespace) -> None:
    one_row("llama-7b int8", quantize(build_model("llama-7b", a), "int8"), a)


def gpt2(a: argparse.Namespace) -> None:
    one_row("gpt2 bf16", build_model("gpt2", a), a)


def batch(a: argparse.Namespace) -> None:
    many("batch 64", None, a)


def batch8(a: argparse.Namespace) -> None:
    many("batch 64, float8 keys", torch.float8_e4m3fn, a)


def many(key: str, kept: torch.dtype | None, a: argparse.Namespace) -> None:
    """64 rows at once: cuBLAS for the products, the attention kernel over what is written so far."""
    model = cached_model("llama-7b", a)
    rows, length, count = (2, 16, 4) if a.tiny else (64, 512, 256)
    prompt = torch.randint(model.config.vocab, (rows, length), device=a.device)
    began = time.perf_counter()
    stepper = RecordedStepper(model, tune=a.device == "cuda", cache_dtype=kept)
    agrees = agreement(model, stepper, rows, length + count, a)
    tuning = time.perf_counter() - began
    report_attention(stepper, rows)
    report(" ", agrees)
    report("  prompts:", same_reading(model, stepper, prompt, length + count))
    stepper.greedy(prompt, count)
    whole = min(time_call(lambda: stepper.greedy(prompt, count)) for _ in range(2))
    reading = time_call(lambda: stepper.prefill(prompt, None, length + count))
    size = model_size(model) if kept is None else kept.itemsize
    held = rows * model.config.layers * 2 * model.config.kv_heads * model.config.head_dim * size
    moved = weight_bytes(model) + held * (length + count / 2)
    step = (whole - reading) / (count - 1)
    limit = moved / RESULTS.get("read_TB_s", 4.5) / 1e12
    RESULTS[key] = {
        "tokens_per_s": round(rows * count / whole, 1), "decoding_only": round(rows / step, 1),
        "reading_s": round(reading, 3), "ms_per_step": round(step * 1e3, 3),
        "share_of_limit": round(limit / step, 3), "tuning_s": round(tuning, 1), "agreement": agrees,
    }  # fmt: skip
    report(" ", json.dumps(RESULTS[key]))
    compare()
    if a.device == "cuda":
        profile("reading the prompts", lambda: stepper.prefill(prompt, None, length + count), 1)
        stepper.step(prompt[:, 0])
        profile("a step", stepper.replay_fed, 4)
        stepper.kernels = None  # its caches make room
        RESULTS[key]["ms"] = where_time_goes(stepper, rows, 768, 640)
        report(" ", json.dumps(RESULTS[key]["ms"]))


def model_size(model: Any) -> int:
    return int(next(model.parameters()).element_size())


def peer(a: argparse.Namespace) -> None:
    transformers_static("transformers batch 64", (2, 16, 4) if a.tiny else (64, 512, 256), a)
    compare()


def peer1(a: argparse.Namespace) -> None:
    transformers_static("transformers batch 1", (1, 16, 4) if a.tiny else (1, 32, 256), a)


def transformers_static(key: str, sizes: tuple[int, int, int], a: argparse.Namespace) -> None:
    """transformers' own generate with its static cache, which it compiles by itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    rows, length, count = sizes
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(**(small if a.tiny else {}), eos_token_id=None, pad_token_id=0)
    torch.set_default_dtype(a.dtype)
    try:
        with torch.device(a.device):
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    prompt = torch.randint(config.vocab_size, (rows, length), device=a.device)
    settings = {
        "do_sample": False,
        "cache_implementation": "static",
        "attention_mask": torch.ones_like(prompt),
    }

    def write(n: int) -> Any:
        with torch.no_grad():
            return model.generate(prompt, max_new_tokens=n, min_new_tokens=n, **settings)

    first = time_call(lambda: write(count))
    written: list[Any] = []
    whole = time_call(lambda: written.append(write(count)))
    assert written[0].shape[1] == length + count
    RESULTS[key] = {
        "tokens_per_s": round(rows * count / whole, 1),
        "s": round(whole, 2),
        "first_s": round(first, 1),
    }
    report(" ", key, json.dumps(RESULTS[key]))


def compare() -> None:
    theirs = RESULTS.get("transformers batch 64")
    for key in ("batch 64", "batch 64, float8 keys"):
        if theirs is not None and key in RESULTS:
            RESULTS[f"{key}: ratio"] = round(RESULTS[key]["tokens_per_s"] / theirs["tokens_per_s"], 3)
            report(f"  {key}: {RESULTS[f'{key}: ratio']} × transformers")


SECTIONS = {f.__name__: f for f in (read, llama, int8, gpt2, batch, batch8, peer, peer1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    a = parser.parse_args()
    a.dtype = torch.bfloat16 if a.device == "cuda" else torch.float32
    if a.device == "cuda":
        report(torch.cuda.get_device_name(), "torch", torch.__version__)
    for name in a.sections.split(","):
        report(f"[{name}]")
        began = time.perf_counter()
        try:
            with torch.no_grad():
                SECTIONS[name](a)
        except Exception:
            RESULTS[f"{name} failed"] = traceback.format_exc(limit=-3).strip().splitlines()[-1]
            traceback.print_exc(limit=-6, file=sys.stdout)
        gc.collect()
        if a.device == "cuda":
            torch.cuda.empty_cache()
        report(f"  ({time.perf_counter() - began:.0f} s)")
    report(json.dumps(RESULTS))


if __name__ == "__main__":
    main()
