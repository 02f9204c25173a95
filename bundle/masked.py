"""The adapter on all-MiniLM-L6-v2 that fills in words and tells whether two texts follow each other.

    HEED_DATA=FOLDER python -m bundle.masked [--seconds 450] [--out FOLDER] [--device cuda]

all-MiniLM-L6-v2 was published without the head for words: LoRA brings back what the body knew, and a head of
BERT's kind is learnt with it, on novels (ELTeC), with both of BERT's objectives. Most rows are stretches of
several sentences parted in two, as BERT had them; some are two single sentences, as people ask about them.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import heedful
from bundle import data_folder
from bundle.cards import Card, hash_of, write_card
from bundle.plans import base_folder
from bundle.timed import learn, options, parsed, places, seeded, write_sample
from heedful.data.batch import IGNORE, Batch
from heedful.data.batches import Batches, Indices, ShuffledOrder, seeded_generator
from heedful.data.tokenization import Ids, special_flags
from heedful.loading import save_on_base, with_head
from heedful.models.base import LM, Model
from heedful.nn.head import PretrainHead
from heedful.runs import ledger
from heedful.train.objectives import Objective, Term, masked_and_next

BASE = "all-minilm-l6-v2"
FILES = ("lm/eltec-eng/train.jsonl.xz", "lm/eltec-eng/valid.jsonl.xz")
SENTENCE = re.compile(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]*[A-Z])")
SINGLE = 64  # tokens of a row of two single sentences
LEAST = 6  # tokens of a sentence that stands alone: of "Yes." nobody can tell what it follows
CARD = Card(
    "the word behind [MASK], and whether a text follows another",
    "fill-mask",
    "ELTeC English, 93 novels of 1840 to 1920 (COST Action CA16204)",
    "texts in the public domain, mark-up CC BY 4.0",
    "ELTeC valid, masked words among the first five",
)
ASKED = (
    "The cat sat on the [MASK].", "She opened the [MASK] and looked out.", "He drank a cup of [MASK].",
    "Paris is the capital of [MASK].", "I have [MASK] been so happy in my life.",
)  # fmt: skip
PAIRS = (
    ("The rain had not stopped for three days.", "The river rose, and the bridge was in danger."),
    ("The rain had not stopped for three days.", "Her uncle was a lawyer in the City."),
    ("He knocked at the door.", "Nobody answered."),
    ("He knocked at the door.", "Whales are the largest of all animals."),
)


@dataclass(frozen=True)
class Told:
    """Novels as one row of tokens: where sentences begin, and which of them begin a novel."""

    flat: NDArray[np.int64]
    starts: NDArray[np.int64]  # (sentences + 1)
    books: NDArray[np.int64]  # (books + 1) sentences

    def book(self, sentence: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.books, sentence, "right") - 1


def read(path: Path, tokenizer: Any, most: int | None = None) -> Told:
    """All sentences of all novels, or of the first `most`."""
    ids: list[list[int]] = []
    books = [0]
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in list(lines)[:most]:
            paragraphs = json.loads(line)["text"].split("\n")
            texts = [s for p in paragraphs for s in SENTENCE.split(p) if s.strip()]
            ids += [i for i in tokenizer.encode_all(texts, special=False) if i]
            books.append(len(ids))
    starts = np.concatenate(([0], np.cumsum([len(i) for i in ids])))
    return Told(np.concatenate([np.asarray(i, np.int64) for i in ids]), starts, np.array(books))


@dataclass(frozen=True)
class Pairs:
    """[CLS] a [SEP] b [SEP]: half of the b follow their a, half are of another novel   (BERT §3.1)

    Row s begins with sentence s. A stretch fills the length and is parted between two of its sentences near
    the middle; in a share `short` of the batches both parts are one sentence. Both kinds of b begin with a
    sentence and are as long, so that nothing but what they say tells them apart. A share `plain` of the rows
    has no masks, for so it is asked about later.
    """

    told: Told
    tokenizer: Any
    length: int
    seed: int
    short: float = 0.3
    plain: float = 0.25
    rate: float = 0.15

    def __len__(self) -> int:
        return len(self.told.starts) - 3

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        """(V) the ids that are never hidden."""
        return special_flags(self.tokenizer)

    def batch(self, rows: Indices, epochs: Indices) -> Batch:
        rng, t = seeded_generator(self.seed, int(epochs[0]), int(rows[0])), self.tokenizer
        single = rng.random() < self.short
        length = min(self.length, SINGLE) if single else self.length
        tokens = np.full((len(rows), length), t.pad or 0, np.int64)
        types, follows = np.zeros_like(tokens), rng.random(len(rows)) < 0.5
        valid = np.zeros(tokens.shape, bool)
        made = self.sentences if single else self.stretches
        for r, (a, b) in enumerate(made(rows, follows, length - 3, rng)):
            n, m = len(a) + 2, len(a) + len(b) + 3
            tokens[r, 0], tokens[r, 1 : n - 1], tokens[r, n - 1] = t.cls, a, t.sep
            tokens[r, n : m - 1], tokens[r, m - 1] = b, t.sep
            types[r, n:m], valid[r, :m] = 1, True
        hidden, labels = self.hide(tokens, rng)
        arrays = dict(tokens=hidden, labels=labels, types=types, valid=valid)
        held = {name: torch.from_numpy(value) for name, value in arrays.items()}
        return Batch(**held, extra={"follows": torch.from_numpy(follows)})

    def away(self, rows: Indices, rng: np.random.Generator) -> NDArray[np.int64]:
        """A sentence of another novel for each row, any but its last."""
        books, count = self.told.books, len(rows)
        other = (self.told.book(rows) + rng.integers(1, len(books) - 1, count)) % (len(books) - 1)
        sizes = books[other + 1] - books[other] - 1
        found: NDArray[np.int64] = books[other] + (rng.random(count) * sizes).astype(np.int64)
        return found

    def sentences(
        self, rows: Indices, follows: NDArray[np.bool_], room: int, rng: np.random.Generator
    ) -> Iterator[tuple[Ids, Ids]]:
        """Two sentences: the end of the first and the beginning of the second if they are long."""
        first = self.alone(rows)
        second = np.where(follows, first, self.alone(self.away(first, rng))) + 1
        starts, flat = self.told.starts, self.told.flat
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            yield (
                flat[starts[a] : starts[a + 1]][-(room // 2) :],
                flat[starts[b] : starts[b + 1]][: room // 2],
            )

    def stretches(
        self, rows: Indices, follows: NDArray[np.bool_], room: int, rng: np.random.Generator
    ) -> Iterator[tuple[Ids, Ids]]:
        """A stretch in two; or its first part and as much of another novel."""
        starts, books, flat = self.told.starts, self.told.books, self.told.flat
        ends, away = starts[books[self.told.book(rows) + 1]], self.away(rows, rng)
        for row, end, other, true, where in zip(
            rows, ends, away, follows, rng.random(len(rows)), strict=True
        ):
            begin = int(starts[row])
            stop = min(begin + room, int(end))
            cut = self.parting(begin, stop, where)
            after = cut if true else int(starts[other])
            yield flat[begin:cut], flat[after : after + max(stop - cut, 1)]

    def parting(self, begin: int, stop: int, where: float) -> int:
        """The beginning of a sentence nearest to a place in the middle half; that place if there is none."""
        near, starts = begin + int((0.25 + 0.5 * where) * (stop - begin)), self.told.starts
        at = int(np.searchsorted(starts, near))
        found = min((int(starts[k]) for k in (at - 1, at)), key=lambda cut: abs(cut - near))
        return found if begin < found < stop else max(near, begin + 1)

    def alone(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The next sentence of each row that is long enough, as is the one behind it, in the same novel."""
        lengths, last = np.diff(self.told.starts), len(self.told.starts) - 3
        found = rows.copy()
        for _ in range(50):
            ends = np.isin(found + 1, self.told.books)
            bad = ends | (lengths[found] < LEAST) | (lengths[np.minimum(found + 1, last)] < LEAST)
            if not bad.any():
                break
            found = np.where(bad, (found + 1) % last, found)
        return found

    def hide(
        self, tokens: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """BERT's masks: of the chosen 80 % hidden, 10 % random, 10 % as they are."""
        chosen = (rng.random(tokens.shape) < self.rate) & ~self.special[tokens]
        chosen &= (rng.random(len(tokens)) >= self.plain)[:, None]
        kind, any_word = rng.random(tokens.shape), rng.choice(np.flatnonzero(~self.special), tokens.shape)
        hidden = np.where(chosen & (kind < 0.8), self.tokenizer.mask, tokens)
        hidden = np.where(chosen & (kind >= 0.9), any_word, hidden)
        return hidden, np.where(chosen, tokens, IGNORE)


def batches(rows: Pairs, batch: int) -> Batches:
    """Every sentence begins a row once an epoch."""
    return Batches(rows, ShuffledOrder(len(rows), batch, rows.seed), str(len(rows.told.flat)))


def next_only(model: Model, batch: Batch) -> dict[str, Term]:
    """Only whether the second part follows the first."""
    assert isinstance(model, LM)
    assert isinstance(model.head, PretrainHead)
    x, ctx = model.read(batch.tokens, valid=batch.valid, types=batch.types)
    logits = model.head.next(x, ctx).float()
    loss = torch.nn.functional.cross_entropy(logits, 1 - batch.extra["follows"].long(), reduction="sum")
    return {"next": Term(loss, "row")}


def both(weight: float) -> Objective:
    """Both objectives, the second with a weight."""

    def objective(model: Model, batch: Batch) -> dict[str, Term]:
        found = masked_and_next(model, batch)
        return found | {"next": replace(found["next"], weight=weight)}

    return objective


def train(model: LM, told: Told, unseen: Told, given: argparse.Namespace, began: float) -> None:
    """First whether texts follow each other, without masks: beside masked words that hardly begins."""
    share = given.first
    rows = Pairs(told, model.tokenizer, given.length, given.seed)
    plain = heedful.TrainConfig(
        steps=max(1, int(share * given.steps)), lr=given.lr / 2, schedule="constant", weight_decay=0.01,
        warmup=int(share * given.steps / 16), betas=(0.9, 0.98), dtype="bfloat16", seed=given.seed,
    )  # fmt: skip
    joint = replace(
        plain, steps=max(1, int((1 - share) * given.steps)), lr=given.lr, schedule="linear", final=0.0,
        seed=given.seed + 1,
    )  # fmt: skip
    left = None if given.seconds is None else began + given.seconds - time.perf_counter()
    half = None if left is None else time.perf_counter() + share * left
    until = None if left is None else time.perf_counter() + left
    phases = [
        (next_only, replace(rows, plain=1.0), plain, half),
        (both(given.weight), replace(rows, seed=given.seed + 1), joint, until),
    ]
    for objective, pairs, config, end in phases:
        recent: list[float] = []
        for step in learn(model, objective, batches(pairs, given.batch), config, end):
            if step.number % 10 == 0:
                recent = [*recent, step.terms["next"]][-20:]
            if step.number % 100 == 0:
                terms = {name: round(value, 3) for name, value in step.terms.items()}
                said = f"{step.number} {terms} next lately {np.mean(recent):.3f} lr {step.lr:.1e}"
                print(f"{said} {time.perf_counter() - began:.0f} s", flush=True)
            if step.number % 2000 == 0:
                print(step.number, scores(model, unseen, given.length, 10), flush=True)


@torch.inference_mode()
def judged(model: LM, held: Batches, most: int) -> dict[str, float]:
    """Masked words that were first, or among the first five; pairs told apart."""
    model.eval()
    head, mask = model.head, model.tokenizer.mask
    assert isinstance(head, PretrainHead)
    first = five = words = right = pairs = 0
    for k in range(most):
        batch = held[k].to(model.device)
        assert batch.labels is not None
        x, ctx = model.read(batch.tokens, types=batch.types, valid=batch.valid)
        hidden = (batch.tokens == mask) & (batch.labels >= 0)
        hit = head.mlm(x[hidden], ctx).topk(5).indices == batch.labels[hidden][:, None]
        first, five, words = first + int(hit[:, 0].sum()), five + int(hit.any(1).sum()), words + len(hit)
        said = head.next(x, ctx).argmax(-1) == 0
        right, pairs = right + int((said == batch.extra["follows"]).sum()), pairs + len(said)
    model.train()
    return {
        "top1": first / max(words, 1),
        "top5": five / max(words, 1),
        "next": right / pairs,
        "words": words,
    }


def scores(model: LM, told: Told, length: int, most: int) -> dict[str, float]:
    """Masked words on stretches with masks; pairs of stretches and of single sentences without any.

    Rows are drawn as in training, from novels by authors who are not in it.
    """
    rows = Pairs(told, model.tokenizer, length, 1, short=0.0, plain=0.0)
    words = judged(model, batches(rows, 32), most)
    whole = judged(model, batches(replace(rows, plain=1.0), 32), most)
    single = judged(model, batches(replace(rows, plain=1.0, short=1.0), 32), most)
    return {
        "top1": words["top1"], "top5": words["top5"], "next_sentence": whole["next"],
        "next_sentence_masked": words["next"], "next_single_sentences": single["next"],
        "words": words["words"], "pairs": 32.0 * most,
    }  # fmt: skip


def sample(model: Model) -> str:
    """What it says, through the pipelines."""
    fill, follows = heedful.pipeline("fill-mask", model), heedful.pipeline("next-sentence", model)
    lines = [f"{text} → {', '.join(w['token_str'] for w in fill(text))}" for text in ASKED]
    said = [(pair, follows(*pair)) for pair in PAIRS]
    return "\n".join(lines + [f"{a} | {b} → {one['label']} {one['score']:.3f}" for (a, b), one in said])


def record(
    results: Path, found: dict[str, float], folder: Path, command: str, words: Sequence[str], seed: int
) -> None:
    """The row of the ledger."""
    check = {
        "steps": [["python", "-m", "bundle.masked", *words, "--out", "{work}"]],
        "read": "figure", "figure": "top5", "tolerance": 2.0, "data": list(FILES), "device": "cuda",
    }  # fmt: skip
    shown = ("top1", "top5", "next_sentence", "next_single_sentences")
    row = ledger.row(
        "ELTeC valid × 100: masked words first and among the first five; whether a stretch, and a single "
        f"sentence, follows another: {BASE} with LoRA",
        {name: round(100 * found[name], 2) for name in shown}, command, seed=seed, check=check,
        data_sha256=ledger.sha256(folder / one for one in FILES),
    )  # fmt: skip
    ledger.record_rows(results / "masked.json", [row])


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options(parser)
    parser.add_argument("--steps", type=int, default=12000)
    parser.add_argument("--length", type=int, default=192)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--lr", type=float, default=8e-4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--weight", type=float, default=1.5, help="of next-sentence beside masked words")
    parser.add_argument("--first", type=float, default=0.3, help="the share of time for next-sentence alone")
    parser.add_argument("--checks", type=int, default=100, help="batches of 32 that are scored at the end")
    parser.add_argument("--books", type=int, help="only so many novels, to try it")
    given = parsed(parser, "books")
    folder = data_folder()
    out, results, samples = places("masked", given.out)
    body = heedful.load(base_folder(BASE), dtype=torch.float32)
    model = with_head(body, "pretrain", seed=given.seed).to(given.device)
    assert isinstance(model, LM)
    told, unseen = (read(folder / one, model.tokenizer, given.books) for one in FILES)
    print(f"{len(told.starts):,} sentences, {len(told.flat):,} tokens, {time.perf_counter() - began:.0f} s")
    torch.manual_seed(given.seed)
    heedful.lora(model, rank=given.rank, train=("head.*", "embed.types.weight"))
    train(model, told, unseen, given, began)
    found = scores(model, unseen, given.length, given.checks)
    print(json.dumps(found), flush=True)
    save_on_base(model, out, BASE)
    words = ["--seconds", f"{given.seconds:.0f}"] if given.seconds else ["--steps", str(given.steps)]
    words += seeded(given)
    command = " ".join(["HEED_DATA=FOLDER python -m bundle.masked", *words])
    hashes = {one: hash_of(folder / one) for one in FILES}
    spent = time.perf_counter() - began
    write_card(out, "masked", CARD, found, "top5", command, given.seed, hashes, BASE, spent)
    record(results, found, folder, command, words, given.seed)
    heedful.merge(model.eval())
    write_sample(samples, "masked", lambda: sample(model))
    print(json.dumps({"figure": round(100 * found["top5"], 2), **found}))


if __name__ == "__main__":
    main()
