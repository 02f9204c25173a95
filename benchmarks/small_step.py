"""One training step of a small model on the CPU, ours and nanoGPT's in turn, by processor time.

    HEED_DATA=… OMP_NUM_THREADS=1 python -m benchmarks.small_step --nanogpt CHECKOUT

4 × 128, context 64, batch 12, one thread. A step is all that each does for one: the batch, forward, backward,
clipping, AdamW. nanoGPT's model and optimiser are its own; its loop is written out here, as its train.py has
it for the CPU. Processor time is less disturbed by other work on the machine than the clock.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.shakespeare import CPU, Characters, text_of


def ours(text: str, act: str) -> Iterator[Any]:
    import heedful

    tokenizer = Characters(text)
    model = heedful.build("gpt2", vocab=len(tokenizer), seed=1337, **CPU.sizes | {"act": act})
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "train.txt"
        path.write_text(text)
        batches = heedful.data.next_token(path, tokenizer, length=64, batch=CPU.rows, seed=0)
        config = heedful.TrainConfig(betas=(0.9, 0.99), **CPU.train | {"steps": 10**6})
        yield from heedful.fit(model, "next_token", batches, config)


def theirs(text: str, checkout: Path) -> Iterator[None]:
    import numpy as np
    import torch

    sys.path.insert(0, str(checkout))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    tokenizer = Characters(text)
    sizes = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "dropout": 0.0, "bias": False}
    model = GPT(GPTConfig(vocab_size=len(tokenizer), **sizes))
    optimiser = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    ids = np.array(tokenizer.encode(text), np.uint16)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(ids) - 64, (CPU.rows,)).tolist()
        rows = lambda shift: torch.stack(
            [torch.from_numpy(ids[i + shift : i + shift + 64].astype(np.int64)) for i in starts]
        )
        return rows(0), rows(1)

    while True:
        _, loss = model(*batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn")
    a = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    text = text_of(Path(os.environ.get("HEED_DATA") or sys.exit("HEED_DATA names no folder of data sets")))
    runs: dict[str, Iterator[Any]] = {
        "ours": ours(text, "gelu"),
        "ours, tanh GELU": ours(text, "gelu_new"),
        "nanoGPT": theirs(text, a.nanogpt),
    }
    took: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(5):
            next(run)
    for _ in range(a.turns):
        for name in random.sample(list(runs), len(runs)):
            began = time.process_time()
            for _ in range(a.steps):
                next(runs[name])
            took[name].append(1e3 * (time.process_time() - began) / a.steps)
    for name, found in took.items():
        found.sort()
        least, quarter, middle = (found[i] for i in (0, len(found) // 4, len(found) // 2))
        print(f"{name:16} least {least:.2f}  quarter {quarter:.2f}  median {middle:.2f} ms a step")


if __name__ == "__main__":
    main()
