"""GPT-2 124M writing on a CPU, batch 1, beside CTranslate2: both in one run, in turns.

    pip install ctranslate2 transformers
    python benchmarks/cpu_decode.py                   float32 and int8, five turns each, the median ratio
    python benchmarks/cpu_decode.py --tiny            a dry run
    python benchmarks/cpu_decode.py --plain           the plain step too

The weights are random: both read the same folder, written by `heedful.save`. A turn is 64 tokens read and
128 written greedily; its rate counts the written ones, reading included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import heedful
from heedful.decode.fast import fast
from heedful.decode.quantize import quantize
from heedful.decode.stepper import EagerStepper, Stepper

Run = Callable[[], list[int]]


def words(folder: Path, vocab: int) -> None:
    """A tokenizer of made-up words: the converter wants one, the measurement does not."""
    from tokenizers import Tokenizer, models

    table = {f"w{i}": i for i in range(vocab - 1)} | {"<|endoftext|>": vocab - 1}
    Tokenizer(models.WordLevel(table, "<|endoftext|>")).save(str(folder / "tokenizer.json"))
    ends = {f"{role}_token": "<|endoftext|>" for role in ("bos", "eos", "unk")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **ends}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def peer(folder: Path, kind: str, prompt: list[int], count: int, threads: int) -> Run:
    """CTranslate2 on the converted folder."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    out = folder / f"ctranslate2-{kind}"
    TransformersConverter(str(folder)).convert(str(out), quantization=kind)
    generator = ctranslate2.Generator(
        str(out), "cpu", compute_type=kind, inter_threads=1, intra_threads=threads
    )
    start = [f"w{i}" for i in prompt]

    def run() -> list[int]:
        result = generator.generate_batch(
            [start], max_length=count, min_length=count, sampling_topk=1, include_prompt_in_result=False
        )
        return list(result[0].sequences_ids[0])

    return run


def ours(stepper: Stepper, prompt: list[int], count: int) -> Run:
    """The shortest greedy loop over a stepper."""

    def run() -> list[int]:
        written: list[int] = []
        logits = stepper.prefill(torch.tensor([prompt]), None, len(prompt) + count)
        for _ in range(count - 1):
            written.append(int(logits.argmax()))
            logits = stepper.step(torch.tensor(written[-1:]))
        return [*written, int(logits.argmax())]

    return run


def in_turns(runs: dict[str, Run], count: int, turns: int) -> dict[str, list[float]]:
    """Tokens per second of each, one after the other, `turns` times; a first round warms up."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            assert len(run()) == count
            if turn:
                rates[name].append(count / (time.perf_counter() - began))
    return rates


def read_rate(megabytes: int = 256) -> float:
    """GB/s of a plain read by all threads: what no decoder can beat."""
    x = torch.ones(megabytes * 2**18)
    best = 0.0
    for _ in range(5):
        began = time.perf_counter()
        x.sum()
        best = max(best, x.numel() * 4 / (time.perf_counter() - began) / 1e9)
    return best


def compare(kind: str, model: Any, folder: Path, a: argparse.Namespace) -> dict[str, Any]:
    prompt = torch.randint(
        model.config.vocab - 1, (a.prompt,), generator=torch.Generator().manual_seed(1)
    ).tolist()
    model = quantize(model, "int8") if kind == "int8" else model
    runs = {
        "ctranslate2": peer(folder, kind, prompt, a.count, a.threads),
        "heedful": ours(fast(model), prompt, a.count),
    }
    if a.plain:
        runs["heedful, plain"] = ours(EagerStepper(model), prompt, a.count)  # type: ignore[arg-type]
    rates = in_turns(runs, a.count, a.turns)
    ratios = [h / c for h, c in zip(rates["heedful"], rates["ctranslate2"], strict=True)]
    agree = [x == y for x, y in zip(runs["heedful"](), runs["ctranslate2"](), strict=True)]
    same = agree.index(False) if False in agree else len(agree)
    return {
        "kind": kind, "ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 2) for r in ratios],
        "tokens_per_second": {name: round(statistics.median(r), 1) for name, r in rates.items()},
        "best": {name: round(max(r), 1) for name, r in rates.items()}, "same_tokens": f"{same} of {a.count}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--kinds", default="float32,int8")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    sizes = {"vocab": 512, "dim": 64, "layers": 2, "heads": 2, "context": 256} if a.tiny else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = heedful.build("gpt2", seed=0, **sizes)
        torch.nn.init.normal_(made.embed.position.weight, std=0.3)  # so that the words written change
        heedful.save(made, folder)
        words(folder, made.config.vocab)
        print(f"a plain read: {read_rate():.1f} GB/s, {a.threads} threads", flush=True)
        for kind in a.kinds.split(","):
            print(json.dumps(compare(kind, heedful.load(folder), folder, a)), flush=True)


if __name__ == "__main__":
    main()
