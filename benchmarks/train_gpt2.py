"""Training speed: GPT-2 124M on one GPU, bfloat16, 64 × 1024 tokens a step.

    python benchmarks/train_gpt2.py                       all variants, a table and results as JSON lines
    python benchmarks/train_gpt2.py --where --out F.json  a table of every kernel
    python benchmarks/train_gpt2.py --parts visits,heads  parts alone; "all" for all of them
    python benchmarks/train_gpt2.py --tiny --device cpu   a dry run

A step is everything `heedful.fit` does: forward, loss, backward, clipping, AdamW, schedule.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from heedful.data.batch import Batch
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.weights.loading import build
from train_parts import attempt, kernel_table, parts, show


class Random:
    """Batches of random tokens, made before the clock starts."""

    fingerprint = "random"

    def __init__(self, vocab: int, rows: int, length: int) -> None:
        tokens = torch.randint(vocab, (4, rows, length + 1), generator=torch.Generator().manual_seed(0))
        self.made = [Batch(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in tokens]

    def __getitem__(self, step: int) -> Batch:
        return self.made[step % 4]

    def epoch(self, step: int) -> int:
        return 0


def flops_per_token(model: Any, length: int) -> float:
    """6 per weight that is multiplied, 12·L·D·T for the scores: Chowdhery et al. 2022, appendix B."""
    c = model.config
    matrices = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "position" not in n)
    return 6 * matrices + 12 * c.layers * c.dim * length


SEEN = 3  # steps under the profiler, after those that are timed


def measure(name: str, a: argparse.Namespace, **settings: Any) -> dict[str, Any]:
    sizes = {"vocab": 512, "dim": 64, "layers": 2, "heads": 2, "context": 64} if a.tiny else {}
    rows, length = (4, 64) if a.tiny else (a.rows, 1024)
    torch._dynamo.reset()
    model = build("gpt2", dropout=0.0, seed=0, device=a.device, **sizes)
    steps = a.steps + SEEN * a.where
    config = TrainConfig(steps=steps, lr=6e-4, warmup=a.warm, dtype="bfloat16", **settings)
    began, marks, losses = time.perf_counter(), [], []
    profiler = torch.profiler.profile() if a.where else None
    if a.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for step in fit(model, "next_token", Random(model.config.vocab, rows, length), config):
        if step.number in (1, a.warm, a.steps):
            losses.append(step.loss)  # waits for the device
            marks.append(time.perf_counter())
        if profiler is not None and step.number == a.steps:
            profiler.start()
        if profiler is not None and step.number == steps:
            losses.append(step.loss)
            profiler.stop()
    per_step = (marks[2] - marks[1]) / (a.steps - a.warm)
    rate = rows * length / per_step
    peak = torch.cuda.max_memory_allocated() / 2**30 if a.device == "cuda" else 0.0
    found = {
        "variant": name, "tokens_per_second": round(rate), "ms_per_step": round(per_step * 1e3, 2),
        "first_step_s": round(marks[0] - began, 1), "peak_GiB": round(peak, 2),
        "mfu_of_790": round(rate * flops_per_token(model, length) / 790e12, 4),
        "loss": [round(x, 4) for x in losses],
    }  # fmt: skip
    print(json.dumps(found), flush=True)
    if profiler is not None:
        table = attempt(lambda: kernel_table(profiler, SEEN))
        found["table"] = table
        if isinstance(table, dict):
            show(table)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm", type=int, default=10)
    parser.add_argument("--where", action="store_true", help="where a step's time goes")
    parser.add_argument("--parts", default="", help="parts of train_parts.py to time alone, a,b or all")
    parser.add_argument("--out", type=Path, help="a file for all that was found, as JSON")
    parser.add_argument("--blas", help="cublas or cublaslt, for products that leave a choice")
    parser.add_argument("--inductor", default="", help="torch._inductor.config: a,b to turn on, c.d=value")
    parser.add_argument("--variants", default="recorded,float8")
    a = parser.parse_args()
    if a.blas:
        torch.backends.cuda.preferred_blas_library(a.blas)
    import torch._inductor.config as inductor

    for given in filter(None, a.inductor.split(",")):
        name, _, value = given.partition("=")
        inductor.load_config({name: json.loads(value or "true")})  # type: ignore[attr-defined]
    if a.where:  # a profiler that stops and starts again would otherwise lose sight of recorded steps
        os.environ |= {"DISABLE_CUPTI_LAZY_REINIT": "1", "TEARDOWN_CUPTI": "0"}
        with torch.profiler.profile():
            torch.ones(1, device=a.device).add(1)
    settings: dict[str, dict[str, Any]] = {
        "eager": {}, "compiled": {"compile": True}, "recorded": {"compile": True, "graph": True},
        "float8": {"compile": True, "graph": True, "float8": True},
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name in filter(None, a.variants.split(",")):
        found[name] = attempt(lambda name=name: measure(name, a, **settings[name]))  # type: ignore[misc]
        if a.device == "cuda":
            torch.cuda.empty_cache()
        write(a.out, found)
    if a.parts and a.device == "cuda":
        found["parts"] = parts(a.parts)
        write(a.out, found)


def write(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
