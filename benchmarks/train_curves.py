"""Does float8 learn as bfloat16 does? GPT-2 124M on real text, three runs of 500 steps on the same batches.

They are bfloat16, float8 from the same first weights, and bfloat16 from others, to see what chance does.

    HEED_DATA=… python benchmarks/train_curves.py --out curves.json     also writes curves.svg
    HEED_DATA=… python benchmarks/train_curves.py --tiny --device cpu   a dry run

HEED_DATA is a folder with lm/eltec-eng or lm/wikitext-2. Tokens are words and what stands between them, the
most frequent 50,256; all others are one.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import lzma
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.data.batch import Batch
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.weights.loading import build
from train_parts import attempt

LAST = 100  # steps whose mean is compared


def text(folder: Path, most: int) -> tuple[str, str]:
    """The beginning of a corpus, and its name."""
    books, wiki = folder / "lm/eltec-eng/train.jsonl.xz", folder / "lm/wikitext-2/train.txt.gz"
    if books.exists():
        found: list[str] = []
        with lzma.open(books, "rt", encoding="utf-8") as lines:
            for line in lines:
                found.append(json.loads(line)["text"])
                if sum(map(len, found)) > most:
                    break
        return "\n".join(found)[:most], "eltec-eng"
    with gzip.open(wiki, "rt", encoding="utf-8") as file:
        return file.read(most), "wikitext-2"


class Text:
    """Rows of tokens cut from one long text, in an order of their own every pass."""

    def __init__(self, ids: np.ndarray[Any, Any], rows: int, length: int) -> None:
        count = (len(ids) - 1) // length
        self.rows, self.length, self.per = rows, length, count // rows
        self.ids, self.count, self.fingerprint = torch.from_numpy(ids), count, "text"
        if self.per < 1:
            raise SystemExit(f"{len(ids)} tokens are fewer than one batch of {rows} × {length}")

    def __getitem__(self, step: int) -> Batch:
        order = np.random.default_rng(self.epoch(step)).permutation(self.count)
        chosen = order[step % self.per * self.rows :][: self.rows]
        cut = torch.stack([self.ids[i * self.length : (i + 1) * self.length + 1] for i in chosen])
        return Batch(cut[:, :-1].contiguous(), cut[:, 1:].contiguous())

    def epoch(self, step: int) -> int:
        return step // self.per


def tokens(words: str, vocab: int) -> np.ndarray[Any, Any]:
    """Each piece's rank by frequency; the last id is for what is rarer."""
    pieces = re.findall(r" ?\w+|\s|[^\w\s]", words)
    rank = {p: i for i, (p, _) in enumerate(collections.Counter(pieces).most_common(vocab - 1))}
    return np.array([rank.get(p, vocab - 1) for p in pieces], dtype=np.int64)


def run(name: str, seed: int, a: argparse.Namespace, batches: Text, sizes: dict[str, Any]) -> list[float]:
    torch._dynamo.reset()
    model = build("gpt2", dropout=0.0, seed=seed, device=a.device, **sizes)
    fast = {"compile": True, "graph": True} if a.device == "cuda" else {}
    config = TrainConfig(
        steps=a.steps, lr=6e-4, warmup=a.steps // 10, dtype="bfloat16", float8=name == "float8", **fast
    )
    began, held = time.perf_counter(), []
    for step in fit(model, "next_token", batches, config):
        held.append(step._loss)
        if step.number % 100 == 0:
            print(
                f"{name} step {step.number} loss {step.loss:.4f} {time.perf_counter() - began:.1f} s",
                flush=True,
            )
    return [round(x, 5) for x in torch.stack(held).float().cpu().tolist()]


def compare(one: list[float], other: list[float]) -> dict[str, float]:
    """How far apart two runs on the same batches are at the end."""
    gap = np.array(one[-LAST:]) - np.array(other[-LAST:])
    return {"mean": round(float(gap.mean()), 5), "mean_of_sizes": round(float(np.abs(gap).mean()), 5)}


def draw(path: Path, found: dict[str, Any]) -> None:
    from heedful.classroom.figures.figure import Figure

    smooth = lambda y: np.convolve(y, np.ones(10) / 10, "valid")
    lines = [
        {"name": name, "x": np.arange(len(smooth(y))) + 10, "y": smooth(y)}
        for name, y in found["losses"].items()
    ]
    data = {"metric": "loss, mean of 10 steps", "curves": lines}
    title = f"float8 beside bfloat16: GPT-2 on {found['data']}"
    Figure("training", title, {}, data, "", "benchmarks/train_curves.py").save(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    if not os.environ.get("HEED_DATA"):
        parser.error("HEED_DATA names no folder of data sets")
    sizes = {"vocab": 512, "dim": 64, "layers": 2, "heads": 2, "context": 64} if a.tiny else {}
    rows, length, vocab = (4, 64, 512) if a.tiny else (a.rows, 1024, 50257)
    words, name = text(Path(os.environ["HEED_DATA"]), 200_000 if a.tiny else 40_000_000)
    ids = tokens(words, vocab)
    print(f"{name}: {len(ids)} tokens, {float((ids == vocab - 1).mean()):.4f} of them rare", flush=True)
    batches, losses = Text(ids, rows, length), {}
    for kind, seed in (("bfloat16", 0), ("float8", 0), ("bfloat16, other weights", 1)):
        losses[kind] = attempt(lambda kind=kind, seed=seed: run(kind, seed, a, batches, sizes))  # type: ignore[misc]
        found = {"data": name, "tokens": len(ids), "rows": rows, "length": length, "losses": losses}
        plain = losses["bfloat16"]
        found["apart"] = {
            k: compare(y, plain) for k, y in losses.items() if k != "bfloat16" and isinstance(y, list)
        }
        print(json.dumps(found["apart"]), flush=True)
        if a.out is not None:
            a.out.write_text(json.dumps(found))
            attempt(lambda found=found: draw(a.out.with_suffix(".svg"), found))  # type: ignore[misc]


if __name__ == "__main__":
    main()
