"""Many requests in one batch on one GPU, beside transformers' continuous batching: no HTTP, random weights.

    python benchmarks/continuous_batching.py                          LLaMA-7B shape, 64 at once, 128 requests
    python benchmarks/continuous_batching.py --turns 3 --no-peer
    python benchmarks/continuous_batching.py --tiny --device cpu      a dry run

Prompts of 32 to 512 random tokens, 128 new tokens each, greedy, no end token; both get the same prompts, in
turns, after one run of the same size that compiles, records and allocates. Rates count new tokens from the
first request to the last answer, reading included. Ours also prints the median and 95th percentile of the
first token and between tokens, in seconds; the last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import statistics
import time
from typing import Any

import torch

import heedful
from gpu_timing import synchronise
from heedful.decode.continuous import ContinuousBatch, GenerationTask, choose_slots, run_tasks
from heedful.decode.request import make_request
from heedful.decode.rows import Piece
from heedful.decode.settings import GenerationSettings

TINY = {"vocab": 64, "dim": 32, "layers": 2, "heads": 4, "hidden": 64, "context": 1024}


def make_prompts(count: int, vocab: int, longest: int) -> list[list[int]]:
    rng = random.Random(0)
    return [
        [rng.randrange(vocab) for _ in range(rng.randint(min(32, longest), longest))] for _ in range(count)
    ]


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


class Ours:
    name = "heedful"

    def __init__(self, options: argparse.Namespace) -> None:
        sizes: dict[str, Any] = TINY if options.tiny else {}
        self.model = heedful.build(
            "llama-7b", device=options.device, dtype=options.dtype, seed=0, **sizes
        ).eval()
        self.slots = choose_slots(self.model.requires_grad_(False), options.rows, 1024)
        print(f"heedful: {type(self.slots).__name__}, {self.slots.max_rows} rows", flush=True)

    def run(self, prompts: list[list[int]], new: int) -> dict[str, float]:
        """Write `new` tokens behind every prompt, all of them asked for at once."""
        request = make_request(self.model, GenerationSettings(max_tokens=new, eos=()), scored=False)
        times: dict[int, list[float]] = {i: [] for i in range(len(prompts))}

        def task(i: int) -> GenerationTask:
            def take(piece: Piece | Exception) -> None:
                if isinstance(piece, Exception):
                    raise piece
                times[i].append(time.perf_counter())

            return GenerationTask(request, [prompts[i]], take)

        synchronise()
        began = time.perf_counter()
        run_tasks(ContinuousBatch(self.slots), [task(i) for i in range(len(prompts))])
        synchronise()
        seconds = time.perf_counter() - began
        assert all(len(t) == new for t in times.values())
        first = [t[0] - began for t in times.values()]
        between = [b - a for t in times.values() for a, b in itertools.pairwise(t)]
        return {
            "tokens/s": len(prompts) * new / seconds,
            "first p50": quantile(first, 0.5), "first p95": quantile(first, 0.95),
            "next p50": quantile(between, 0.5), "next p95": quantile(between, 0.95),
        }  # fmt: skip


class Peer:
    name = "transformers"

    def __init__(self, options: argparse.Namespace) -> None:
        import transformers

        sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 4, "intermediate_size": 64} if options.tiny else {}  # fmt: skip
        config = transformers.LlamaConfig(**sizes)
        with torch.device(options.device):
            torch.set_default_dtype(options.dtype)
            self.model = transformers.LlamaForCausalLM(config).eval()
            torch.set_default_dtype(torch.float32)
        self.settings = transformers.GenerationConfig
        print(f"transformers {transformers.__version__}", flush=True)

    def run(self, prompts: list[list[int]], new: int) -> dict[str, float]:
        config = self.settings(
            max_new_tokens=new, min_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        synchronise()
        began = time.perf_counter()
        found = self.model.generate_batch(prompts, generation_config=config, persistent_manager=True)
        synchronise()
        seconds = time.perf_counter() - began
        counts = [len(output.generated_tokens) for output in found.values()]
        assert len(counts) == len(prompts), f"{len(counts)} of {len(prompts)} answers"
        return {"tokens/s": sum(counts) / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=64, help="texts at once")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    options.dtype = torch.float32 if options.tiny else torch.bfloat16
    if options.tiny:
        options.requests, options.new, options.longest, options.rows = 12, 8, 64, 4
    prompts = make_prompts(options.requests, 64 if options.tiny else 32000, options.longest)
    makers: list[Any] = [Ours] if options.no_peer else [Ours, Peer]
    runners, results = [], {}
    for maker in makers:
        try:
            runner = maker(options)
            runner.run(prompts, options.new)
            runners.append(runner)
        except Exception as error:
            print(f"{maker.name} failed: {type(error).__name__}: {error}", flush=True)
        gc.collect()
    for turn in range(options.turns):
        for runner in runners:
            try:
                found = runner.run(prompts, options.new)
            except Exception as error:
                print(f"{runner.name} failed: {type(error).__name__}: {error}", flush=True)
                continue
            results.setdefault(runner.name, []).append(found)
            print(f"{runner.name} · {turn + 1}:", {k: round(v, 4) for k, v in found.items()}, flush=True)
    rates = {name: [r["tokens/s"] for r in rows] for name, rows in results.items()}
    if {"heedful", "transformers"} <= rates.keys():
        ratio = statistics.median(
            a / b for a, b in zip(rates["heedful"], rates["transformers"], strict=False)
        )
        print(f"heedful is {ratio:.2f} × transformers' continuous batching")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
