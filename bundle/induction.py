"""A small GPT with induction heads: it continues what stood in the text before, whatever that was.

    HEED_DATA=FOLDER python -m bundle.induction [--seconds 110] [--out FOLDER] [--device cuda]

Half of the rows are random tokens that repeat after 8 to 128 places, so that only a search for the last
occurrence predicts them. The others are text of WikiText-2 in which a passage is copied to a later place.
Two layers are enough: a head that looks at the previous token, and one that uses it (Olsson et al. 2022).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import heedful
from bundle import SCRATCH, data_folder
from bundle.cards import Card, hash_of, write_card
from bundle.modern import read, untokenized
from bundle.timed import learn, options, parsed, places, seeded
from heedful import data
from heedful.classroom.experiments import ledger
from heedful.data.batch import Batch
from heedful.data.batches import Indices, ShuffledOrder, seeded_generator
from heedful.interp.activations import mean_loss
from heedful.interp.learn.head_catalogue import HeadCatalogue, catalogue_heads
from heedful.models.base import LM

FILES = {part: f"lm/wikitext-2/{part}.txt.gz" for part in ("train", "valid")}
VOCAB, CONTEXT, DIM, LAYERS, HEADS = 1024, 256, 128, 2, 4
SHORTEST, LONGEST = 8, 128  # of what is repeated, in tokens


def paragraphs(folder: Path, part: str) -> list[str]:
    """The paragraphs of WikiText-2, without titles and without the marks of its tokens."""
    lines = read(folder / FILES[part]).splitlines()
    return [untokenized(line) for line in lines if line.strip() and not line.startswith(" =")]


@dataclass(frozen=True)
class RepeatingRows:
    """Windows of a text with a passage copied, and, as every second row, random tokens that repeat."""

    flat: NDArray[np.uint16]
    vocab: int  # of which the first is a special token
    seed: int

    def __len__(self) -> int:
        return len(self.flat) // CONTEXT - 2

    def batch(self, rows: Indices, epochs: Indices) -> Batch:
        draw = seeded_generator(self.seed, int(epochs[-1]), int(rows[0]))
        places = rows * CONTEXT + draw.integers(CONTEXT, size=len(rows))
        ids = self.flat[places[:, None] + np.arange(CONTEXT + 1)].astype(np.int64)
        for number, row in enumerate(ids):
            length = int(draw.integers(SHORTEST, LONGEST + 1))
            if number % 2:
                tokens = draw.integers(1, self.vocab, length)
                row[:] = tokens[np.arange(CONTEXT + 1) % length]
            else:
                start = int(draw.integers(CONTEXT + 2 - 2 * length))
                copy = int(draw.integers(start + length, CONTEXT + 2 - length))
                row[copy : copy + length] = row[start : start + length]
        tensor = torch.from_numpy(ids)
        return Batch(tensor[:, :-1].contiguous(), labels=tensor[:, 1:].contiguous())


def scores(model: LM, texts: list[str]) -> tuple[dict[str, float], HeadCatalogue]:
    """The best heads on random tokens written twice; the loss on passages, the first and the second time."""
    catalogue = catalogue_heads(model, texts[:8], repeats=16, repeat_length=32)
    ids = [model.tokenizer.encode(text, special=False)[:64] for text in texts]
    passages = [row for row in ids if len(row) == 64][:32] or ids[:1]
    once, twice = mean_loss(model, passages), mean_loss(model, [row + row for row in passages])
    best = {score: catalogue.top(score, 1)[0].mean for score in ("induction", "previous", "duplicate")}
    # Of the 2n − 1 predictions of a passage written twice, n − 1 are those of the passage alone.
    n = len(passages[0])
    second = ((2 * n - 1) * twice - (n - 1) * once) / n
    return best | {"loss_first": once, "loss_second": second}, catalogue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options(parser)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    given, began = parsed(parser), time.perf_counter()
    folder, (out, results, _) = data_folder(), places("induction", given.out)
    texts = paragraphs(folder, "train")
    SCRATCH.mkdir(parents=True, exist_ok=True)
    plain = SCRATCH / "wikitext.txt"
    plain.write_text("\n".join(texts), encoding="utf-8")
    tokenizer: Any = heedful.train_tokenizer("bpe", [str(plain)], vocab=VOCAB, special=("eos",))
    flat = np.concatenate([np.asarray(i, np.uint16) for i in tokenizer.encode_all(texts, special=False)])
    rows = RepeatingRows(flat, len(tokenizer), given.seed)
    batches = data.Batches(rows.batch, ShuffledOrder(len(rows), given.batch, given.seed), str(len(flat)))
    model = heedful.build(
        "gpt2", vocab=len(tokenizer), dim=DIM, layers=LAYERS, heads=HEADS, context=CONTEXT, dropout=0.0,
        seed=given.seed, device=given.device,
    )  # fmt: skip
    assert isinstance(model, LM)
    model.tokenizer = tokenizer
    config = heedful.TrainConfig(
        steps=given.steps, lr=given.lr, warmup=min(500, given.steps // 10), schedule="linear", final=0.01,
        weight_decay=0.05, dtype="bfloat16", seed=given.seed, graph=given.device.startswith("cuda"),
    )  # fmt: skip
    until = None if given.seconds is None else began + given.seconds
    for step in learn(model, "next_token", batches, config, until):
        if step.number % 500 == 0:
            print(f"{step.number} {step.loss:.3f} {time.perf_counter() - began:.0f} s", flush=True)
    model = model.eval().cpu().half().float()  # measured as it is stored
    best, catalogue = scores(model, paragraphs(folder, "valid"))
    heedful.save(model.half(), out)
    for score in ("induction", "previous"):
        print(*(f"{e.name} {e.head}: {e.mean:.3f}" for e in catalogue.top(score, 4)), score)
    words = ["--seconds", f"{given.seconds:.0f}"] if given.seconds else ["--steps", str(given.steps)]
    command = " ".join(["HEED_DATA=FOLDER python -m bundle.induction", *words, *seeded(given)])
    card = Card(
        "how a text goes on that repeats itself; its two layers have induction heads", "text-generation",
        "WikiText-2 (Merity et al. 2016), and random tokens that repeat", "CC BY-SA (Wikipedia)",
        "random tokens written twice, induction score of the best head",
    )  # fmt: skip
    hashes = {one: hash_of(folder / one) for one in FILES.values()}
    spent = time.perf_counter() - began
    write_card(out, "induction", card, best, "induction", command, given.seed, hashes, None, spent)
    check = {
        "steps": [["python", "-m", "bundle.induction", *words, *seeded(given), "--out", "{work}"]],
        "read": "figure", "tolerance": 0.1, "data": list(FILES.values()), "device": "cuda",
    }  # fmt: skip
    row = ledger.row(
        f"{card.measure}: induction, a GPT-2 of two layers", round(best["induction"], 2), command,
        seed=given.seed, check=check, data_sha256=ledger.sha256(folder / one for one in FILES.values()),
    )  # fmt: skip
    ledger.record_rows(results / "induction.json", [row])
    print(json.dumps({"figure": round(best["induction"], 2), **best}))


if __name__ == "__main__":
    main()
