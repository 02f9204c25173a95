"""The adapter on all-MiniLM-L6-v2 that fills in words and tells whether two sentences follow each other.

    HEED_DATA=FOLDER python -m bundle.masked [--steps 900] [--length 96]

all-MiniLM-L6-v2 was published without the head for words: LoRA brings back what the body knew, and a head of
BERT's kind is learnt with it, on novels (ELTeC), with both of BERT's objectives.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import heedful
from bundle.cards import PACKAGE, Card, hash_of, write_card
from heedful import data
from heedful.data.batches import Batches
from heedful.loading import save_on_base, with_head
from heedful.models.base import LM

BASE = "all-minilm-l6-v2"
FILES = ("lm/eltec-eng/train.jsonl.xz", "lm/eltec-eng/valid.jsonl.xz")
SENTENCE = re.compile(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]*[A-Z])")
CARD = Card(
    "the word behind [MASK], and whether a sentence follows another",
    "fill-mask",
    "ELTeC English, 93 novels of 1840 to 1920 (COST Action CA16204)",
    "texts in the public domain, mark-up CC BY 4.0",
    "ELTeC valid, masked words among the first five",
)


def books(path: Path, every: int = 1, stretch: int = 50) -> Iterator[str]:
    """Each novel with a sentence a line; of `every` stretches of 50 paragraphs one, so that all are seen."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            paragraphs = enumerate(json.loads(line)["text"].split("\n"))
            kept = [p for i, p in paragraphs if i // stretch % every == 0]
            yield "\n".join(s for p in kept for s in SENTENCE.split(p) if s.strip())


def batches(path: Path, tokenizer: data.Tokenizer, length: int, batch: int, every: int, seed: int) -> Batches:
    """Pairs of stretches with masks, from sentences written beside each other on disk."""
    made = Path(os.environ.get("TMPDIR", "/tmp")) / f"heedful-{path.name}-{every}.txt"
    made.write_text("\n\n".join(books(path, every)), encoding="utf-8")
    return data.pairs(made, tokenizer, length=length, batch=batch, seed=seed)


@torch.inference_mode()
def scores(model: LM, held: Batches, most: int) -> dict[str, float]:
    """Masked words that were first, or among the first five; pairs told apart."""
    model.eval()
    first = five = words = right = pairs = 0
    mask = model.tokenizer.mask  # type: ignore[union-attr]
    for k in range(most):
        batch = held[k]
        assert batch.labels is not None
        x = model.encode(batch.tokens, types=batch.types, valid=batch.valid)
        hidden = (batch.tokens == mask) & (batch.labels >= 0)
        top = model.head.mlm.out(model.head.mlm.features(x[hidden])).topk(5).indices  # type: ignore[union-attr,operator]
        hit = top == batch.labels[hidden][:, None]
        first, five, words = first + int(hit[:, 0].sum()), five + int(hit.any(1).sum()), words + len(hit)
        pooled = model.head.next.pool.act(model.head.next.pool.dense(x[:, 0]))  # type: ignore[union-attr,operator]
        said = model.head.next.next(pooled).argmax(-1) == 0  # type: ignore[union-attr,operator]
        right += int((said == batch.extra["follows"].bool()).sum())
        pairs += len(said)
    model.train()
    return {"top1": first / words, "top5": five / words, "next_sentence": right / pairs, "words": words}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=PACKAGE / "masked")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    folder, began = Path(os.environ["HEED_DATA"]), time.perf_counter()
    model = with_head(heedful.load(BASE), "pretrain", seed=given.seed)
    assert isinstance(model, LM)
    assert model.tokenizer is not None
    train = batches(folder / FILES[0], model.tokenizer, given.length, given.batch, 5, given.seed)  # type: ignore[arg-type]
    held = batches(folder / FILES[1], model.tokenizer, given.length, given.batch, 1, 1)  # type: ignore[arg-type]
    heedful.lora(model, rank=given.rank, train=("head.*",))
    config = heedful.TrainConfig(
        steps=given.steps, lr=given.lr, schedule="linear", final=0.0, warmup=given.steps // 16,
        weight_decay=0.01, betas=(0.9, 0.98), dtype="bfloat16", seed=given.seed,
    )  # fmt: skip
    for step in heedful.fit(model, "masked_and_next", train, config):
        if step.number % 20 == 0:
            spent = time.perf_counter() - began
            print(f"{step.number}/{given.steps} {step.terms} {spent:.0f} s", flush=True)
        if step.number % 200 == 0:
            print(step.number, scores(model, held, 10), flush=True)
    found = scores(model, held, 60)
    save_on_base(model, given.out, BASE)
    command = f"HEED_DATA=FOLDER python -m bundle.masked --steps {given.steps} --length {given.length}"
    hashes = {one: hash_of(folder / one) for one in FILES}
    spent = time.perf_counter() - began
    write_card(given.out, "masked", CARD, found, "top5", command, given.seed, hashes, BASE, spent)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
