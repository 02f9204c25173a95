"""The adapter on all-MiniLM-L6-v2 that fills in words and tells whether two texts follow each other.

    HEED_DATA=FOLDER python -m bundle.masked [--modern] [--seconds 450] [--out FOLDER] [--device cuda]

all-MiniLM-L6-v2 was published without the head for words: LoRA brings back what the body knew, and a head of
BERT's kind is learnt with it, on novels (ELTeC), with both of BERT's objectives. Most rows are stretches of
several sentences parted in two, as BERT had them; some are two single sentences, as people ask about them.
`--modern` adds modern English under open licences: paragraphs to the stretches, and batches of single
sentences, as people fill in words, among them what words mean by a dictionary.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import heedful
from bundle import data_folder, dictionary, modern
from bundle.cards import Card, hash_of, write_card
from bundle.plans import base_folder
from bundle.prose import name_novels
from bundle.sentence_pairs import Pairs, Told, batches, novels, told_of
from bundle.timed import learn, options, parsed, places, seeded, write_sample
from heedful.classroom.experiments import ledger
from heedful.data.batch import Batch
from heedful.data.batches import Batches
from heedful.models.base import LM, Model
from heedful.nn.head import PretrainHead
from heedful.train.objectives import Objective, Term, masked_and_next
from heedful.train.objectives import masked as masked_words
from heedful.weights.loading import with_head
from heedful.weights.saving import save_on_base

BASE = "all-minilm-l6-v2"
FILES = ("lm/eltec-eng/train.jsonl.xz", "lm/eltec-eng/valid.jsonl.xz")
LENGTH, CHECKS = 192, 100  # tokens of a row; batches of 32 that are scored at the end
PARAGRAPH = 4  # sentences of a modern text that is long enough to be parted
CARD = Card(
    "whether a text follows another, and hidden words of novels",
    "fill-mask",
    "",  # the novels, as many as there are
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


def next_only(model: Model, batch: Batch) -> dict[str, Term]:
    """Only whether the second part follows the first."""
    assert isinstance(model, LM)
    assert isinstance(model.head, PretrainHead)
    x, ctx = model.read(batch.tokens, valid=batch.valid, types=batch.types)
    logits = model.head.next(x, ctx).float()
    loss = torch.nn.functional.cross_entropy(logits, 1 - batch.extra["follows"].long(), reduction="sum")
    return {"next": Term(loss, "row")}


def both(weight: float) -> Objective:
    """Both objectives, the second with a weight; of sentences that stand alone the first."""

    def objective(model: Model, batch: Batch) -> dict[str, Term]:
        if "follows" not in batch.extra:
            return masked_words(model, batch)
        found = masked_and_next(model, batch)
        return found | {"next": replace(found["next"], weight=weight)}

    return objective


def train(
    model: LM, told: Told, lone: Told | None, unseen: Told, given: argparse.Namespace, began: float
) -> None:
    """First whether texts follow each other, without masks: beside masked words that hardly begins."""
    share = given.first
    rows = Pairs(told, model.tokenizer, given.length, given.seed, lone=lone, crowd=given.crowd)
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
        (both(given.weight), replace(rows, seed=given.seed + 1, share=given.alone), joint, until),
    ]
    for objective, pairs, config, end in phases:
        recent: list[float] = []
        for step in learn(model, objective, batches(pairs, given.batch), config, end):
            if step.number % 10 == 0 and "next" in step.terms:
                recent = [*recent, step.terms["next"]][-20:]
            if step.number % 100 == 0:
                terms = {name: round(value, 3) for name, value in step.terms.items()}
                said = f"{step.number} {terms} next lately {np.mean(recent):.3f} lr {step.lr:.1e}"
                print(f"{said} {time.perf_counter() - began:.0f} s", flush=True)
            if step.number % 2000 == 0:
                print(step.number, scores(model, unseen, given.length, 10), flush=True)


@torch.inference_mode()
def judged(model: LM, held: Batches, most: int) -> dict[str, float]:
    """Masked words that were first, or among the first five; pairs told apart, if a head does."""
    model.eval()
    head, mask = model.head, model.tokenizer.mask
    fills, follows = (head.mlm, head.next) if isinstance(head, PretrainHead) else (head, None)
    first = five = words = right = pairs = 0
    for k in range(most):
        batch = held[k].to(model.device)
        assert batch.labels is not None
        x, ctx = model.read(batch.tokens, types=batch.types, valid=batch.valid)
        hidden = (batch.tokens == mask) & (batch.labels >= 0)
        hit = fills(x[hidden], ctx).topk(5).indices == batch.labels[hidden][:, None]
        first, five, words = first + int(hit[:, 0].sum()), five + int(hit.any(1).sum()), words + len(hit)
        if follows is not None:
            said = follows(x, ctx).argmax(-1) == 0
            right, pairs = right + int((said == batch.extra["follows"]).sum()), pairs + len(said)
    model.train()
    found = {"top1": first / max(words, 1), "top5": five / max(words, 1), "words": words}
    return found | ({"next": right / pairs} if pairs else {})


def scores(model: LM, told: Told, length: int, most: int) -> dict[str, float]:
    """Masked words on stretches with masks; pairs of stretches and of single sentences without any.

    Rows are drawn as in training, from novels by authors who are not in it.
    """
    rows = Pairs(told, model.tokenizer, length, 1, short=0.0, plain=0.0)
    words = judged(model, batches(rows, 32), most)
    filled = {name: words[name] for name in ("top1", "top5", "words")}
    if "next" not in words:
        return filled
    whole = judged(model, batches(replace(rows, plain=1.0), 32), most)
    single = judged(model, batches(replace(rows, plain=1.0, short=1.0), 32), most)
    return filled | {
        "next_sentence": whole["next"], "next_sentence_masked": words["next"],
        "next_single_sentences": single["next"], "pairs": 32.0 * most,
    }  # fmt: skip


def sample(model: Model) -> str:
    """What it says, through the pipelines."""
    fill, follows = heedful.pipeline("fill-mask", model), heedful.pipeline("next-sentence", model)
    lines = [f"{text} → {', '.join(w['token_str'] for w in fill(text))}" for text in ASKED]
    said = [(pair, follows(*pair)) for pair in PAIRS]
    return "\n".join(lines + [f"{a} | {b} → {one['label']} {one['score']:.3f}" for (a, b), one in said])


def record(
    results: Path, found: dict[str, float], folder: Path, command: str, words: Sequence[str], seed: int,
    files: Sequence[str],
) -> None:  # fmt: skip
    """The row of the ledger."""
    check = {
        "steps": [["python", "-m", "bundle.masked", *words, "--out", "{work}"]],
        "read": "figure", "figure": "top5", "tolerance": 2.0, "data": list(files), "device": "cuda",
    }  # fmt: skip
    shown = ("top1", "top5", "next_sentence", "next_single_sentences")
    row = ledger.row(
        "ELTeC valid × 100: masked words first and among the first five; whether a stretch, and a single "
        f"sentence, follows another: {BASE} with LoRA",
        {name: round(100 * found[name], 2) for name in shown}, command, seed=seed, check=check,
        data_sha256=ledger.sha256(folder / one for one in files),
    )  # fmt: skip
    ledger.record_rows(results / "masked.json", [row])


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options(parser)
    parser.add_argument("--steps", type=int, default=12000)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--lr", type=float, default=8e-4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--weight", type=float, default=1.5, help="of next-sentence beside masked words")
    parser.add_argument("--first", type=float, default=0.25, help="the share of time for next-sentence alone")
    parser.add_argument("--checks", type=int, default=CHECKS, help="batches of 32 that are scored at the end")
    parser.add_argument("--modern", action="store_true", help="learn from modern English too")
    parser.add_argument("--alone", type=float, default=0.6, help="the share of batches of single sentences")
    parser.add_argument("--crowd", type=int, default=6, help="single sentences for each row of a stretch")
    parser.add_argument("--books", type=int, help="only so many novels, to try it")
    given = parsed(parser, "books")
    folder = data_folder()
    out, results, samples = places("masked", given.out)
    body = heedful.load(base_folder(BASE), dtype=torch.float32)
    model = with_head(body, "pretrain", seed=given.seed).to(given.device)
    assert isinstance(model, LM)
    recent = [[s for s in d if s.strip()] for d in modern.documents(folder)] if given.modern else []
    books = [*novels(folder / FILES[0], given.books), *(d for d in recent if len(d) >= PARAGRAPH)]
    told = told_of(books, model.tokenizer)
    unseen = told_of(novels(folder / FILES[1], given.books), model.tokenizer)
    single = [s for d in recent for s in d] + (dictionary.meanings(folder) if recent else [])
    lone = told_of([single], model.tokenizer) if recent else None
    print(f"{len(told.starts):,} sentences, {len(told.flat):,} tokens, {time.perf_counter() - began:.0f} s")
    torch.manual_seed(given.seed)
    heedful.lora(model, rank=given.rank, train=("head.*", "embed.types.weight"))
    train(model, told, lone, unseen, given, began)
    found = scores(model, unseen, given.length, given.checks)
    print(json.dumps(found), flush=True)
    save_on_base(model, out, BASE)
    words = ["--seconds", f"{given.seconds:.0f}"] if given.seconds else ["--steps", str(given.steps)]
    words = [*(["--modern"] if given.modern else []), *words, *seeded(given)]
    command = " ".join(["HEED_DATA=FOLDER python -m bundle.masked", *words])
    files = (*FILES, *modern.FILES, "translation/wiktionary/en-de.tsv.gz") if given.modern else FILES
    sources, licences = [name_novels(folder)], [CARD.licence]
    if given.modern:
        sources += [f"{modern.SOURCES}, meanings of words in the English Wiktionary"]
        licences += [modern.LICENCES]
    card = replace(CARD, data="; ".join(sources), licence="; ".join(licences))
    hashes = {one: hash_of(folder / one) for one in files}
    spent = time.perf_counter() - began
    write_card(out, "masked", card, found, "top5", command, given.seed, hashes, BASE, spent)
    record(results, found, folder, command, words, given.seed, files)
    heedful.merge(model.eval())
    write_sample(samples, "masked", lambda: sample(model))
    print(json.dumps({"figure": round(100 * found["top5"], 2), **found}))


if __name__ == "__main__":
    main()
