"""The small GPT-2 that comes with heedful, and word vectors, both learnt from English novels.

HEED_DATA=FOLDER python -m bundle.prose gpt [--seconds 450] [--out FOLDER] [--device cuda]
HEED_DATA=FOLDER python -m bundle.prose words
"""

from __future__ import annotations

import argparse
import gzip
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
from bundle.cards import Card, hash_of, write_card
from bundle.timed import learn, options, parsed, places, seeded, write_sample
from heedful import data
from heedful.data.batch import Batch
from heedful.data.batches import Indices, ShuffledOrder, seeded_generator
from heedful.evaluate.perplexity import perplexity
from heedful.evaluate.scores import spearman
from heedful.models.base import LM, Model
from heedful.runs import ledger

NOVELS = "ELTeC English, 93 novels of 1840 to 1920 (COST Action CA16204)"
LICENCE = "texts in the public domain, mark-up CC BY 4.0"
FILES = {part: f"lm/eltec-eng/{part}.jsonl.xz" for part in ("train", "valid")}


def novels(folder: Path, part: str) -> Path:
    """The novels of a part as plain text, one paragraph a line."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    made = SCRATCH / f"novels-{part}.txt"
    with lzma.open(folder / FILES[part], "rt", encoding="utf-8") as lines:
        made.write_text("\n\n".join(json.loads(line)["text"] for line in lines), encoding="utf-8")
    return made


SIZES: dict[str, Any] = dict(dim=128, layers=6, heads=4, context=256, dropout=0.0)
VOCAB = 2048
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
    return data.Batches(rows, ShuffledOrder(len(rows), batch, seed), str(len(flat)))


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
    name: str, card: Card, model: LM, found: dict[str, float], folder: Path, given: argparse.Namespace,
    began: float,
) -> None:  # fmt: skip
    """Card, row of the ledger and sample of a model that is saved."""
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
        f"{card.measure}: {name}, a GPT-2 of 1.5 M weights in 8 bits",
        round(found["perplexity_by_word"], 2), command, seed=given.seed, check=check,
        data_sha256=ledger.sha256(folder / one for one in FILES.values()),
    )  # fmt: skip
    ledger.record_rows(results / f"{name}.json", [row])
    print(json.dumps(found), flush=True)
    write_sample(samples, name, lambda: f"{json.dumps(found)}\n\n{pages(model, given.seed)}")
    print(json.dumps({"figure": round(found["perplexity_by_word"], 2), **found}))


def gpt(folder: Path, given: argparse.Namespace) -> None:
    """A GPT-2 of 6 layers × 128 over 2,048 pieces, kept in 8 bits; the perplexity is that of what is kept."""
    began = time.perf_counter()
    text, held = novels(folder, "train"), novels(folder, "valid")
    part = SCRATCH / "novels-part.txt"  # enough to find the pieces
    part.write_text("\n".join(text.read_text(encoding="utf-8").split("\n")[::6]), encoding="utf-8")
    tokenizer = heedful.train_tokenizer("bpe", [str(part)], vocab=VOCAB, special=("eos",))
    batches = windows(text, tokenizer, given.batch, given.seed)
    print(f"{len(batches)} batches an epoch, {time.perf_counter() - began:.0f} s", flush=True)
    model = heedful.build("gpt2", vocab=len(tokenizer), seed=given.seed, device=given.device, **SIZES)
    assert isinstance(model, LM)
    model.tokenizer = tokenizer
    config = heedful.TrainConfig(
        steps=given.steps, lr=given.lr, optimiser=given.optimiser, warmup=min(500, given.steps // 15),
        schedule="linear", final=0.01, weight_decay=0.05, dtype="bfloat16", seed=given.seed,
        graph=given.device.startswith("cuda"),
    )  # fmt: skip
    until = None if given.seconds is None else began + given.seconds
    for step in learn(model, "next_token", batches, config, until):
        if step.number % 500 == 0:
            spent = time.perf_counter() - began
            print(f"{step.number} {step.loss:.3f} lr {step.lr:.1e} {spent:.0f} s", flush=True)
    small = heedful.quantize(model.eval(), "int8")
    assert isinstance(small, LM)
    found = measured(small, held, given.held)
    heedful.save(small, places("prose", given.out)[0])
    card = Card(
        "how a page of a Victorian novel may go on", "text-generation", NOVELS, LICENCE,
        f"ELTeC valid, its first {given.held:,} characters, perplexity by word",
    )  # fmt: skip
    written("prose", card, small, found, folder, given, began)


def words(folder: Path, out: Path, results: Path, seed: int) -> None:
    """Skip-gram vectors of the 6,000 commonest words."""
    began, judged = time.perf_counter(), "wordvec/EN-MEN-TR-3k.tsv.gz"
    made = heedful.Word2Vec.train(
        novels(folder, "train"), dim=64, window=5, mode="skipgram", loss="negative", negatives=5,
        min_count=40, max_vocab=6000, subsample=1e-3, epochs=3, threads=1, seed=seed, lowercase=True,
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    made.save(out / "vectors.bin")
    pairs = [line.split() for line in gzip.decompress((folder / judged).read_bytes()).decode().splitlines()]
    known = [(a, b, float(s)) for a, b, s in pairs if a in made and b in made]
    rho = spearman([s for *_, s in known], [made.similarity(a, b) for a, b, _ in known])
    found = {"spearman": rho, "pairs": len(known)}
    card = Card(
        "which words are used alike", "feature-extraction", NOVELS, LICENCE,
        f"MEN, Spearman over the {len(known):,} of 3,000 pairs whose words are among the 6,000",
    )  # fmt: skip
    said = ["python", "-m", "bundle.prose", "words", *(["--seed", str(seed)] if seed else [])]
    command = " ".join(["HEED_DATA=FOLDER", *said])
    hashes = {FILES["train"]: hash_of(folder / FILES["train"])}
    spent = time.perf_counter() - began
    write_card(out, "words", card, found, "spearman", command, seed, hashes, None, spent)
    files, figure = [FILES["train"], judged], round(100 * rho, 2)
    check = {"steps": [[*said, "--out", "{work}"]], "read": "figure", "tolerance": 1.0, "data": files}
    row = ledger.row(
        f"{card.measure} × 100: words, skip-gram vectors of 64 numbers", figure, command, seed=seed,
        check=check, data_sha256=ledger.sha256(folder / one for one in files),
    )  # fmt: skip
    ledger.record_rows(results / "words.json", [row])
    print(made.neighbours("king", 8), made.analogy("man", "king", "woman"))
    print(json.dumps({"figure": figure, **found}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["gpt", "words"])
    options(parser)
    parser.add_argument("--steps", type=int, default=60000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--optimiser", default="adamw")
    parser.add_argument("--held", type=int, default=600_000, help="characters of unseen novels to measure on")
    given = parsed(parser)
    torch.set_num_threads(given.threads or 1)
    folder = data_folder()
    if given.what == "words":
        out, results, _ = places("words", given.out)
        words(folder, out, results, given.seed)
    else:
        gpt(folder, given)


if __name__ == "__main__":
    main()
