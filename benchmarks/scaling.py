"""Time per token against the length of what stands before: linear for attention, flat for recurrence.

    python benchmarks/scaling.py [--out docs/figures] [--tiny]

A GPT-2-like, an LSTM and a Mamba model of one width step on a CPU after contexts of growing length, on
one thread; the fastest of several steps each, models in turns. Writes scaling.json and scaling.svg.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import heedful
from heedful.decode.fast import fast
from heedful.decode.stepper import EagerStepper, Stepper

LENGTHS = (64, 256, 1024, 2048, 4096, 8192)


def models(tiny: bool) -> dict[str, Stepper]:
    """Few layers and a small vocabulary, so that what grows with the context is what is seen."""
    size: dict[str, Any] = {"dim": 64, "layers": 2} if tiny else {"dim": 256, "layers": 4}
    build = lambda name, **more: heedful.build(name, vocab=1024, seed=0, **size, **more).eval()
    attention = build("gpt2", heads=8, context=max(LENGTHS) + 64)
    return {
        "GPT-2, plain step": EagerStepper(attention),  # type: ignore[dict-item]
        "GPT-2, step over rows": fast(attention),
        "LSTM": EagerStepper(build("lstm")),  # type: ignore[dict-item]
        "Mamba": EagerStepper(build("mamba")),  # type: ignore[dict-item]
    }


def step_times(stepper: Stepper, steps: int) -> list[float]:
    """Milliseconds of single steps after what was read."""
    times, tokens = [], torch.tensor([1])
    for _ in range(steps):
        began = time.perf_counter()
        stepper.step(tokens)
        times.append((time.perf_counter() - began) * 1e3)
    return times


def measure(a: argparse.Namespace) -> dict[str, list[float]]:
    steppers, lengths = models(a.tiny), LENGTHS[:3] if a.tiny else LENGTHS
    out: dict[str, list[float]] = {name: [] for name in steppers}
    for length in lengths:
        prompt = torch.randint(1024, (1, length))
        for stepper in steppers.values():
            stepper.prefill(prompt, None, length + 64)
            step_times(stepper, 2)  # warms up
        rounds: dict[str, list[float]] = {name: [] for name in steppers}
        for _ in range(5):
            for name, stepper in steppers.items():
                rounds[name] += step_times(stepper, 8)
        for name, times in rounds.items():
            out[name].append(round(min(times), 4))  # a busy machine only ever adds to a step
        print(length, {name: values[-1] for name, values in out.items()}, flush=True)
    return out


def plot(lengths: list[int], times: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "heedful"
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, values in times.items():
        axes.plot(lengths, values, marker="o", label=name)
    axes.set_xlabel("positions before the token")
    axes.set_ylabel("milliseconds per token")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    parser.add_argument("--tiny", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    times = measure(a)
    lengths = list(LENGTHS[: len(next(iter(times.values())))])
    a.out.mkdir(parents=True, exist_ok=True)
    result = {"lengths": lengths, "ms_per_token": times}
    (a.out / "scaling.json").write_text(json.dumps(result, indent=1) + "\n")
    plot(lengths, times, a.out / "scaling.svg")


if __name__ == "__main__":
    main()
