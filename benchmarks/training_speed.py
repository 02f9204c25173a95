"""Training speed of many families on one GPU, bfloat16, each step compiled and recorded.

    python benchmarks/training_speed.py                         Mamba, Mamba-2, GLA, linear attention, GPT-2
    python benchmarks/training_speed.py --transformers          LLaMA, BERT, T5, GPT-2; here and transformers
    python benchmarks/training_speed.py --defaults              what TrainConfig chooses, and other settings
    python benchmarks/training_speed.py --scan                  the kernels of Mamba's scan, one by one
    python benchmarks/training_speed.py --tiny --device cpu --eager   a dry run of any of these

A step is everything `heedful.fit` does: forward, loss, backward, clipping, AdamW, schedule.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.data.batch import Batch
from heedful.nn.state_space.scan import selective
from heedful.nn.state_space.selective import fast_selective
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes
from heedful.train.fit import TrainingRun, fit
from heedful.train.float8 import fused_classes
from heedful.train.objectives import objective
from heedful.weights.loading import build

VOCAB = 50257
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"name": "gpt2", "dropout": 0.0, "context": 8192},
    "mamba": {"name": "mamba"},
    "mamba2": {"name": "mamba2"},
    "gla": {"name": "gla", "dim": 768, "layers": 12},
    "linear": {"name": "linear", "dropout": 0.0},
}
SHAPES = ((8, 1024), (2, 8192))
WHERE = 30  # kernels that are shown


@dataclass(frozen=True)
class Pair:
    """One of our models, and transformers' of the same sizes."""

    ours: dict[str, Any]
    purpose: str
    shape: tuple[int, int]
    kind: str
    theirs: dict[str, Any]


BESIDE = {
    "llama 0.9B": Pair(
        {"name": "llama", "dim": 2048, "layers": 16, "heads": 16, "hidden": 5632, "vocab": 32000},
        "next_token", (8, 1024), "LlamaForCausalLM",
        {
            "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
            "intermediate_size": 5632, "vocab_size": 32000,
        },
    ),
    "bert-base": Pair(
        {"name": "bert", "dropout": 0.0, "head": "mlm"}, "masked", (64, 512), "BertForMaskedLM",
        {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
    "t5-base": Pair(
        {"name": "t5", "dropout": 0.0, "dim": 768, "layers": 12, "heads": 12, "hidden": 3072},
        "spans", (64, 512), "T5ForConditionalGeneration",
        {
            "d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072, "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
    ),
    "gpt2 124M": Pair(
        {"name": "gpt2", "dropout": 0.0}, "next_token", (64, 1024), "GPT2LMHeadModel",
        {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
}  # fmt: skip
TINY_OURS = {"dim": 64, "layers": 2, "heads": 4, "hidden": 128, "vocab": 256}
TINY_THEIRS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}
TINY_T5 = {"d_model": 64, "num_layers": 2, "vocab_size": 256, "decoder_start_token_id": 0}


class RandomBatches:
    """Batches of random tokens, made before the clock starts; an encoder-decoder writes `written` of them."""

    fingerprint = "random"

    def __init__(self, vocab: int, rows: int, length: int, written: int = 0) -> None:
        draw = torch.Generator().manual_seed(0)
        self.made: list[Batch] = []
        for _ in range(4):
            tokens = torch.randint(vocab, (rows, length + 1), generator=draw)
            answer = torch.randint(vocab, (rows, written + 1), generator=draw) if written else tokens
            target = answer[:, :-1].contiguous() if written else None
            self.made.append(Batch(tokens[:, :-1].contiguous(), answer[:, 1:].contiguous(), target=target))

    def __getitem__(self, step: int) -> Batch:
        return self.made[step % 4]

    def epoch(self, step: int) -> int:
        return 0


def timed(steps: Callable[[], Tensor | float], a: argparse.Namespace) -> tuple[float, float]:
    """Seconds of the first step, and of one step in the median of three stretches after the warm-up."""
    began = time.perf_counter()
    float(steps())
    first, stretches = time.perf_counter() - began, []
    for count in (a.warm, *3 * [max(1, a.steps // 3)]):
        began = time.perf_counter()
        for _ in range(count):
            loss = steps()
        float(loss)
        stretches.append((time.perf_counter() - began) / count)
    return first, sorted(stretches[1:])[1]


def measure(
    label: str, model: Any, purpose: str, shape: tuple[int, int], a: argparse.Namespace, **settings: Any
) -> dict[str, Any]:
    """Tokens a second of `fit`."""
    torch._dynamo.reset()
    batches = RandomBatches(model.config.vocab, *shape, written=shape[1] if purpose == "spans" else 0)
    config = TrainConfig(
        steps=1000,
        lr=3e-4,
        warmup=10,
        dtype="bfloat16",
        **{"compile": not a.eager, "graph": not a.eager} | settings,
    )
    running = fit(model, purpose, batches, config)  # type: ignore[arg-type]
    first, step = timed(lambda: next(running)._loss, a)
    if a.where:
        with torch.profiler.profile() as profiler:
            float(next(running)._loss)
        busiest = sorted(profiler.key_averages(), key=lambda e: -e.device_time_total)
        for event in busiest[:WHERE]:
            print(f"{event.device_time_total / 1e3:8.2f} ms {event.count:5} x {event.key[:90]}", flush=True)
    return report(label, shape, first, step, model)


def report(label: str, shape: tuple[int, int], first: float, step: float, model: Any) -> dict[str, Any]:
    tokens, gpu = shape[0] * shape[1], torch.cuda.is_available()
    found = {
        "model": label, "rows": shape[0], "length": shape[1], "tokens_per_second": round(tokens / step),
        "ms_per_step": round(step * 1e3, 2), "first_step_s": round(first, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "peak_GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1) if gpu else 0,
    }  # fmt: skip
    print(json.dumps(found), flush=True)
    if gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return found


def families(a: argparse.Namespace) -> list[dict[str, Any]]:
    """Every family at every shape, and its speed as a part of GPT-2's."""
    found = []
    for shape in SHAPES if not a.tiny else ((2, 64),):
        if f"{shape[0]}x{shape[1]}" not in a.shapes.split(",") and not a.tiny:
            continue
        for name in a.families.split(","):
            sizes = FAMILIES[name] | {"vocab": VOCAB}
            if a.tiny:
                sizes |= {"dim": 64, "layers": 2} | ({} if name.startswith("mamba") else {"heads": 4})
            sizes |= {"layers": a.layers * (2 if name.startswith("mamba") else 1)} if a.layers else {}
            torch.manual_seed(0)
            model = build(**sizes, seed=0, device=a.device)
            found.append(measure(name, model, "next_token", shape, a))
        base = next(
            (f["tokens_per_second"] for f in found if f["model"] == "gpt2" and f["length"] == shape[1]), None
        )
        for f in (f for f in found if f["length"] == shape[1] and base):
            print(
                f"{f['model']:8} {shape[0]} x {shape[1]}: {f['tokens_per_second'] / base:.2f} of gpt2",
                flush=True,
            )
    return found


# Rows, tokens read and tokens written of the models whose default is measured.
DEFAULT_SHAPES = {
    "gpt2 124M": (64, 1024, 0), "llama 0.9B": (8, 2048, 0), "bert-base": (64, 512, 0),
    "t5-base": (32, 512, 128), "mamba 130M": (8, 1024, 0),
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {}, "plain": {"compile": False, "graph": False}, "recorded": {"compile": False, "graph": True},
    "compiled": {"compile": True, "graph": False}, "whole model compiled": {"compile": False, "graph": True},
}  # fmt: skip


def defaults(a: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare TrainConfig(dtype="bfloat16") with other settings: its speed as a part of the fastest one's."""
    found = []
    for label, (rows, length, written) in DEFAULT_SHAPES.items():
        if a.only and label.split()[0] not in a.only.split(","):
            continue
        mamba = label == "mamba 130M"
        ours = {"name": "mamba", "vocab": VOCAB} if mamba else dict(BESIDE[label].ours)
        purpose = "next_token" if mamba else BESIDE[label].purpose
        if a.tiny:
            ours |= {k: v for k, v in TINY_OURS.items() if not mamba or k in ("dim", "layers", "vocab")}
            rows, length, written = 2, 32, 8 * bool(written)
        speeds: dict[str, int] = {}
        for setting in a.settings.split(","):
            torch._dynamo.reset()
            model = build(**ours, seed=0, device=a.device)
            batches = RandomBatches(model.config.vocab, rows, length, written)
            config = TrainConfig(dtype="bfloat16", **SETTINGS[setting])
            run = TrainingRun(model, objective(purpose), batches, config, Processes())  # type: ignore[arg-type]
            if setting == "whole model compiled":
                for module, faster in fused_classes(model):
                    module.__class__ = faster
                run.trained = torch.compile(run.trained)
            first, step = timed(lambda run=run: run.step()._loss, a)
            found.append(report(f"{label}, {setting}", (rows, length + written), first, step, model))
            speeds[setting] = found[-1]["tokens_per_second"]
            del run, model
        best = max(speeds, key=speeds.__getitem__)
        share = speeds["default"] / speeds[best]
        print(
            f"{label}: default {speeds['default']:,} tokens/s, {share:.3f} of the best ({best})", flush=True
        )
    return found


def transformers_step(kind: str, sizes: dict[str, Any], shape: tuple[int, int], a: argparse.Namespace) -> Any:
    """A step of transformers' model as its users write it: compiled, bfloat16 by autocast, fused AdamW."""
    import transformers

    cls = getattr(transformers, kind)
    config = cls.config_class(**sizes)
    model = cls(config).to(a.device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=a.device == "cuda")
    compiled = model if a.eager else torch.compile(model)
    made = [b.to(a.device) for b in RandomBatches(config.vocab_size, *shape).made]
    state = {"n": 0}

    def step() -> Tensor:
        batch = made[state["n"] % 4]
        state["n"] += 1
        with torch.autocast(a.device, torch.bfloat16):
            loss = compiled(input_ids=batch.tokens, labels=batch.labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        out: Tensor = loss.detach()
        return out

    return model, step


def compare_transformers(a: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for label, pair in BESIDE.items():
        if a.only and label.split()[0] not in a.only.split(","):
            continue
        if a.tiny:
            theirs = TINY_T5 if "T5" in pair.kind else TINY_THEIRS
            pair = replace(pair, ours=pair.ours | TINY_OURS, shape=(2, 32), theirs=theirs)
        float8 = [{"float8": True}] if pair.purpose == "next_token" and not a.tiny else []
        for variant in ({}, *float8):
            model = build(**pair.ours, seed=0, device=a.device)
            name = f"{label}, heedful{', float8' * bool(variant)}"
            found.append(measure(name, model, pair.purpose, pair.shape, a, **variant))
            del model
        torch._dynamo.reset()
        model, step = transformers_step(pair.kind, pair.theirs, pair.shape, a)
        found.append(report(f"{label}, transformers compiled", pair.shape, *timed(step, a), model))
        del model, step
    return found


def scan_times(a: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare the selective scan with its definition, then time its kernels alone (GPU)."""
    found = []
    for rows, T, D, N, forgets in ((2, 150, 48, 16, True), (1, 257, 40, 5, False)):
        made = [
            torch.randn(rows, T, D),
            torch.rand(rows, T, D),
            -4 * torch.rand(D, N),
            torch.randn(rows, T, N),
            torch.randn(rows, T, N),
        ]
        made = [x.to(a.device) for x in made]
        keep = (torch.rand(rows, T, device=a.device) > 0.1).float() if forgets else None
        h, results = torch.randn(rows, D, N, device=a.device), []
        for form in (selective, fast_selective):
            leaves = [x.clone().requires_grad_() for x in (*made, h)]
            y, last = form(*leaves[:5], keep, leaves[5])
            (y.square().sum() + last.sin().sum()).backward()
            results.append([y.detach(), last.detach(), *(x.grad for x in leaves)])
        errors = [float((x - y).norm() / x.norm()) for x, y in zip(*results, strict=True)]
        print("relative errors", " ".join(f"{e:.0e}" for e in errors), flush=True)
        found.append({"errors": errors})
    if a.device != "cuda":
        return found
    import heedful.kernels.gpu.state_space.selective as kernels

    for rows, T in SHAPES:
        D, N = 1536, 16
        u, dy = (torch.randn(rows, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        delta, A = 0.1 * torch.rand(rows, T, D, device="cuda"), -16 * torch.rand(D, N, device="cuda")
        B, C = (torch.randn(rows, T, N, device="cuda") for _ in range(2))
        h = torch.zeros(rows, D, N, device="cuda")
        row: dict[str, Any] = {"rows": rows, "length": T}
        *_, states = kernels.launch_forward(u, delta, A, B, C, None, h)
        row["forward_ms"] = milliseconds(kernels.launch_forward, u, delta, A, B, C, None, h)
        row["backward_ms"] = milliseconds(kernels.launch_backward, dy, h, u, delta, A, B, C, None, states)
        with torch.profiler.profile() as profiler:
            *_, states = kernels.launch_forward(u, delta, A, B, C, None, h)
            kernels.launch_backward(dy, h, u, delta, A, B, C, None, states)
            torch.cuda.synchronize()
        for event in sorted(profiler.key_averages(), key=lambda e: -e.device_time_total)[:9]:
            row[event.key[:60]] = round(event.device_time_total / 1e3, 3)
        print(json.dumps(row, indent=1), flush=True)
        found.append(row)
    return found


def milliseconds(run: Callable[..., Any], *given: Any, times: int = 10) -> float:
    """Milliseconds of run(*given) on the device, the mean of some calls after a first one."""
    run(*given)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        run(*given)
    end.record()
    torch.cuda.synchronize()
    return round(begin.elapsed_time(end) / times, 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny models, for a dry run")
    parser.add_argument("--eager", action="store_true", help="neither compiled nor recorded")
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument(
        "--warm", type=int, default=6, help="steps before the clock starts; a step is recorded in the fifth"
    )
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--shapes", default=",".join(f"{r}x{t}" for r, t in SHAPES))
    parser.add_argument(
        "--layers", type=int, default=0, help="fewer layers than the models have; Mamba gets twice as many"
    )
    parser.add_argument(
        "--only", default="", help="some of the models by their first words: llama,bert-base,…"
    )
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument(
        "--settings", default="default,plain,recorded,compiled", help=f"{', '.join(SETTINGS)}"
    )
    parser.add_argument("--where", action="store_true", help="the busiest kernels of a step")
    parser.add_argument("--scan", action="store_true")
    parser.add_argument("--out", type=Path, help="a file for all that was found, as JSON")
    a = parser.parse_args()
    way = scan_times if a.scan else compare_transformers if a.transformers else families
    found = (defaults if a.defaults else way)(a)
    if a.out is not None:
        a.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
