"""The adapter on all-MiniLM-L6-v2 that tells whether one passage follows another.

    HEED_DATA=FOLDER python -m bundle.follows [--steps 1200]

A pair is one to three sentences of a novel and the ones after them, or as many of another novel: BERT's
second objective, without its masks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

import torch

import heedful
from bundle.cards import PACKAGE, Card, hash_of, write_card
from bundle.masked import BASE, FILES, books
from heedful import data
from heedful.loading import save_on_base, with_head
from heedful.models.base import Model

CARD = Card(
    "whether a passage follows another", "next-sentence",
    "ELTeC English, 93 novels of 1840 to 1920 (COST Action CA16204)",
    "texts in the public domain, mark-up CC BY 4.0",
    "ELTeC valid, 2,000 pairs of one to three sentences, accuracy",
)  # fmt: skip


def pairs(path: Path, count: int, seed: int) -> Path:
    """A table of passages and whether they follow each other (0) or come from two novels (1)."""
    made = Path(os.environ.get("TMPDIR", "/tmp")) / f"heedful-pairs-{path.name}-{count}.tsv"
    novels = [[s.replace("\t", " ") for s in book.split("\n") if s.strip()] for book in books(path)]
    rng = random.Random(seed)
    lines = ["first\tsecond\tlabel"]
    while len(lines) <= count:
        a, b = rng.sample(range(len(novels)), 2)
        at, sizes = rng.randrange(len(novels[a]) - 6), (rng.randint(1, 3), rng.randint(1, 3))
        first = " ".join(novels[a][at : at + sizes[0]])
        follows = rng.random() < 0.5
        novel, start = (
            (novels[a], at + sizes[0]) if follows else (novels[b], rng.randrange(len(novels[b]) - 6))
        )
        second = " ".join(novel[start : start + sizes[1]])
        if min(len(first.split()), len(second.split())) >= 5:
            lines.append(f"{first}\t{second}\t{int(not follows)}")
    made.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return made


def batches(model: Model, path: Path, seed: int, batch: int = 32) -> data.Batches:
    return data.classify(
        data.Table(path), model.tokenizer, text="first", pair="second", label="label", labels=["0", "1"],
        length=128, truncate=True, batch=batch, seed=seed,
    )  # fmt: skip


@torch.inference_mode()
def accuracy(model: Model, held: data.Batches, most: int | None = None) -> float:
    model.eval()
    right = count = 0
    for k, batch in enumerate(held.once()):
        if k == most:
            break
        said = model(batch.tokens, valid=batch.valid, types=batch.types).argmax(-1)
        right, count = right + int((said == batch.extra["label"]).sum()), count + len(said)
    model.train()
    return right / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=PACKAGE / "follows")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    folder, began = Path(os.environ["HEED_DATA"]), time.perf_counter()
    model = with_head(heedful.load(BASE), "next", seed=given.seed)
    train = batches(model, pairs(folder / FILES[0], 32 * given.steps, given.seed), given.seed)
    held = batches(model, pairs(folder / FILES[1], 2000, 1), 1, batch=64)
    heedful.lora(model, rank=given.rank, train=("head.*",))
    config = heedful.TrainConfig(
        steps=given.steps, lr=given.lr, schedule="linear", final=0.0, warmup=given.steps // 16,
        weight_decay=0.01, betas=(0.9, 0.98), dtype="bfloat16", seed=given.seed,
    )  # fmt: skip
    for step in heedful.fit(model, "classify", train, config):
        if step.number % 20 == 0:
            spent = time.perf_counter() - began
            print(f"{step.number}/{given.steps} {step.loss:.3f} {spent:.0f} s", flush=True)
        if step.number % 200 == 0:
            print(step.number, accuracy(model, held, 8), flush=True)
    found = {"accuracy": accuracy(model, held), "pairs": float(held.row_count)}
    save_on_base(model, given.out, BASE)
    command = f"HEED_DATA=FOLDER python -m bundle.follows --steps {given.steps}"
    hashes = {one: hash_of(folder / one) for one in FILES}
    spent = time.perf_counter() - began
    write_card(given.out, "follows", CARD, found, "accuracy", command, given.seed, hashes, BASE, spent)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
