"""Three small language models that come with heedful, learnt from the same novels with the same pieces.

    HEED_DATA=FOLDER python -m bundle.prose gpt [--seconds 289] [--out FOLDER] [--device cuda]
    HEED_DATA=FOLDER python -m bundle.prose lstm | mamba

A Transformer, a recurrent network and a state-space model of about the same number of weights: what one of
them can do and another cannot is due to how they remember. `gpt` finds the pieces, the others take over its.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import heedful
from bundle import SCRATCH, data_folder
from bundle.cards import PACKAGE, Card, hash_of, write_card
from bundle.timed import learn, options, parsed, places, seeded, write_sample
from heedful import data
from heedful.classroom.experiments import ledger
from heedful.data.batch import Batch
from heedful.data.batches import Indices, ShuffledOrder, seeded_generator
from heedful.models.base import LM, Model
from heedful.tasks.metrics.perplexity import perplexity
from heedful.text import load_tokenizer

LICENCE = "texts in the public domain, mark-up CC BY 4.0"
FILES = {part: f"lm/eltec-eng/{part}.jsonl.xz" for part in ("train", "valid")}


def name_novels(folder: Path) -> str:
    """What the novels that are there to be learnt from are called in a card; there are 93 in all."""
    with lzma.open(folder / FILES["train"], "rt", encoding="utf-8") as lines:
        count = sum(1 for _ in lines)
    return f"ELTeC English, {count} novels of 1840 to 1920 (COST Action CA16204)"


def novels(folder: Path, part: str) -> Path:
    """The novels of a part as plain text, one paragraph a line."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    made = SCRATCH / f"novels-{part}.txt"
    with lzma.open(folder / FILES[part], "rt", encoding="utf-8") as lines:
        made.write_text("\n\n".join(json.loads(line)["text"] for line in lines), encoding="utf-8")
    return made


@dataclass(frozen=True)
class Kind:
    """One of the three: the name it comes along by, what it is built as, and how it learns."""

    name: str
    family: str
    sizes: dict[str, Any]
    lr: float
    said: str


KINDS = {
    "gpt": Kind("prose", "gpt2", dict(dim=128, layers=6, heads=4, context=256, dropout=0.0), 3e-3,
                "a GPT-2 of 1.5 M weights"),
    "lstm": Kind("prose-lstm", "lstm", dict(dim=256, layers=2, dropout=0.0, tied=True), 4e-3,
                 "an LSTM of 1.6 M weights"),
    "mamba": Kind("prose-mamba", "mamba", dict(dim=128, layers=10, state=16), 3e-3,
                  "a Mamba of 1.4 M weights"),
}  # fmt: skip
VOCAB, HELD = 2048, 600_000  # pieces; characters of unseen novels to measure on
BEGINNINGS = (
    "It was", "The old house stood", "I do not know,", "Mr. Thornton", "Once upon a time",
    "The rain had not stopped for three days, and",
)  # fmt: skip


@dataclass(frozen=True)
class Windows:
    """Rows of `length` tokens of one text, cut elsewhere every epoch; all of a batch are taken at once."""

    flat: NDArray[np.uint16]
    length: int
    seed: int

    def __len__(self) -> int:
        return (len(self.flat) - 1) // self.length - 1

    def batch(self, rows: Indices, epochs: Indices) -> Batch:
        shift = int(seeded_generator(self.seed, int(epochs[-1])).integers(self.length))
        place = (rows * self.length + shift)[:, None] + np.arange(self.length + 1)
        ids = torch.from_numpy(self.flat[place].astype(np.int64))
        return Batch(ids[:, :-1].contiguous(), labels=ids[:, 1:].contiguous())


def windows(path: Path, tokenizer: Any, batch: int, seed: int) -> data.Batches:
    """Batches of a text for next tokens."""
    parts = path.read_text(encoding="utf-8").split("\n")
    groups = ["\n".join(parts[i : i + 50]) + "\n" for i in range(0, len(parts), 50)]
    flat = np.concatenate([np.asarray(i, np.uint16) for i in tokenizer.encode_all(groups, special=False)])
    rows = Windows(flat, 256, seed)
    return data.Batches(rows.batch, ShuffledOrder(len(rows), batch, seed), str(len(flat)))


def measured(model: LM, held: Path, most: int) -> dict[str, float]:
    """The perplexity of the first part of unseen novels; by word it does not depend on the pieces."""
    text = held.read_text(encoding="utf-8")[:most]
    ids = model.tokenizer.encode(text, special=False)
    found = perplexity(model, ids, length=256, stride=128, batch=32)
    words = len(text.split())
    by_word = math.exp(found.nats / words)
    return {"perplexity_by_word": by_word, "bits_per_character": found.per(len(text)), "loss": found.loss}


def pages(model: Model, seed: int) -> str:
    """How it goes on after a few words, drawn at two temperatures."""
    draw = lambda text, t, k: heedful.generate(
        model, text, max_tokens=160, temperature=t, top_p=0.95, seed=seed + k
    )
    every = [(text, t, draw(text, t, k)) for k, text in enumerate(BEGINNINGS) for t in (0.7, 0.9)]
    return "\n\n".join(f"[temperature {t}] {text}{more}" for text, t, more in every)


def written(
    kind: Kind, card: Card, model: LM, found: dict[str, float], folder: Path, given: argparse.Namespace,
    began: float,
) -> None:  # fmt: skip
    """Card, row of the ledger and sample of a model that is saved."""
    name = kind.name
    out, results, samples = places(name, given.out)
    words = ["--seconds", f"{given.seconds:.0f}"] if given.seconds else ["--steps", str(given.steps)]
    words += seeded(given)
    command = " ".join(["HEED_DATA=FOLDER python -m bundle.prose", given.what, *words])
    hashes = {one: hash_of(folder / one) for one in FILES.values()}
    spent = time.perf_counter() - began
    write_card(out, name, card, found, "perplexity_by_word", command, given.seed, hashes, None, spent)
    check = {
        "steps": [["python", "-m", "bundle.prose", given.what, *words, "--out", "{work}"]],
        "read": "figure", "tolerance": 3.0, "data": list(FILES.values()), "device": "cuda",
    }  # fmt: skip
    row = ledger.row(
        f"{card.measure}: {name}, {kind.said} in {16 if kind.family == 'lstm' else 8} bits",
        round(found["perplexity_by_word"], 2), command, seed=given.seed, check=check,
        data_sha256=ledger.sha256(folder / one for one in FILES.values()),
    )  # fmt: skip
    ledger.record_rows(results / f"{name}.json", [row])
    print(json.dumps(found), flush=True)
    write_sample(samples, name, lambda: f"{json.dumps(found)}\n\n{pages(model, given.seed)}")
    print(json.dumps({"figure": round(found["perplexity_by_word"], 2), **found}))


def find_pieces(text: Path) -> Any:
    """The tokenizer of all three, learnt from a sixth of the novels."""
    part = SCRATCH / "novels-part.txt"
    part.write_text("\n".join(text.read_text(encoding="utf-8").split("\n")[::6]), encoding="utf-8")
    return heedful.train_tokenizer("bpe", [str(part)], vocab=VOCAB, special=("eos",))


def train(kind: Kind, folder: Path, given: argparse.Namespace) -> None:
    """A model of one kind, kept in 8 or 16 bits; the perplexity is that of what is kept."""
    began = time.perf_counter()
    text, held = novels(folder, "train"), novels(folder, "valid")
    tokenizer: Any = find_pieces(text) if kind.family == "gpt2" else load_tokenizer(Path(given.pieces))
    batches = windows(text, tokenizer, given.batch, given.seed)
    print(f"{len(batches)} batches an epoch, {time.perf_counter() - began:.0f} s", flush=True)
    model = heedful.build(
        kind.family, vocab=len(tokenizer), seed=given.seed, device=given.device, **kind.sizes
    )
    assert isinstance(model, LM)
    model.tokenizer = tokenizer
    config = heedful.TrainConfig(
        steps=given.steps, lr=given.lr or kind.lr, optimiser=given.optimiser,
        warmup=min(500, given.steps // 15), schedule="linear", final=0.01, weight_decay=0.05,
        dtype="bfloat16", seed=given.seed, graph=given.device.startswith("cuda") and kind.family == "gpt2",
    )  # fmt: skip
    until = None if given.seconds is None else began + given.seconds
    for step in learn(model, "next_token", batches, config, until):
        if step.number % given.every == 0:
            spent = time.perf_counter() - began
            print(f"{step.number} {step.loss:.3f} lr {step.lr:.1e} {spent:.0f} s", flush=True)
    model.eval()  # torch's kernel for an LSTM reads its matrices as they are: they are kept in 16 bits
    model = model if kind.family == "gpt2" else model.to(torch.bfloat16)
    small = model if kind.family == "lstm" else heedful.quantize(model, "int8")
    assert isinstance(small, LM)
    found = measured(small, held, given.held)
    heedful.save(small, places(kind.name, given.out)[0], quantized=True)
    card = Card(
        f"how a page of a Victorian novel may go on, by {kind.said}", "text-generation",
        name_novels(folder), LICENCE, f"ELTeC valid, its first {given.held:,} characters, perplexity by word",
    )  # fmt: skip
    written(kind, card, small, found, folder, given, began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=KINDS)
    options(parser)
    parser.add_argument("--steps", type=int, default=60000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float)
    parser.add_argument(
        "--pieces", default=str(PACKAGE / "prose"), help="whose tokenizer lstm and mamba take"
    )
    parser.add_argument("--every", type=int, default=500, help="steps between two lines about the loss")
    parser.add_argument("--optimiser", default="adamw")
    parser.add_argument("--held", type=int, default=HELD, help="characters of unseen novels to measure on")
    given = parsed(parser)
    torch.set_num_threads(given.threads or 1)
    train(KINDS[given.what], data_folder(), given)


if __name__ == "__main__":
    main()
