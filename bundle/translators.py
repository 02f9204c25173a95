"""Translators from English that come with heedful, learnt from Tatoeba's sentence pairs.

    HEED_DATA=FOLDER python -m bundle.translators translate-en-de [--steps 3200]
    HEED_DATA=FOLDER python -m bundle.translators rnnsearch-en-de        the first attention, on the same data

Pairs are parted by their English sentence, so that no sentence of the test was read in training. Weights are
kept in 8 bits, and the score is that of what is kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import heedful
from bundle.cards import PACKAGE, Card, hash_of, write_card
from heedful import data
from heedful.evaluate.generated import bleu
from heedful.models.base import Model
from heedful.runs import ledger

SCRATCH = Path(os.environ.get("TMPDIR", "/tmp")) / "heedful-bundle"
LANGUAGES = {"de": ("deu", "German"), "fr": ("fra", "French")}


@dataclass(frozen=True)
class Plan:
    """A translator: what it is built as, and how it learns."""

    family: str
    language: str
    model: dict[str, Any]
    lr: float
    tokens: int = 3000  # rows × longest row of a batch


SMALL = dict(dim=192, layers=2, heads=6, hidden=768, dropout=0.0)
RECURRENT = dict(dim=256, table_dim=160, dropout=0.0)
PLANS = {
    "translate-en-de": Plan("transformer", "de", SMALL, 2e-3),
    "translate-en-fr": Plan("transformer", "fr", SMALL, 2e-3),
    "rnnsearch-en-de": Plan("rnnsearch", "de", RECURRENT, 2e-3),
    "rnnsearch-en-fr": Plan("rnnsearch", "fr", RECURRENT, 2e-3),
}


def parts(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Train, held-back and test pairs; all translations of an English sentence are on one side."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        english, other = line.split("\t")[:2]
        place = zlib.crc32(english.encode()) % 100
        found["test" if place == 0 else "held" if place == 1 else "train"].append((english, other))
    return found


def one_each(pairs: list[tuple[str, str]], most: int) -> tuple[list[str], list[list[str]]]:
    """Every English sentence once, and all its translations: the references."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for english, other in pairs:
        grouped[english].append(other)
    chosen = sorted(grouped, key=lambda s: zlib.crc32(s.encode()[::-1]))[:most]
    return chosen, [grouped[s] for s in chosen]


def score(model: Model, pairs: list[tuple[str, str]], most: int, beams: int) -> dict[str, Any]:
    """sacreBLEU of what it writes, against one reference (the first) and against all there are."""
    import sacrebleu

    model.eval()
    sources, truths = one_each(pairs, most)
    guesses: list[str] = []
    for at in range(0, len(sources), 64):
        guesses += heedful.generate(model, sources[at : at + 64], beams=beams, max_tokens=60)
    model.train()
    widest = max(map(len, truths))
    padded = [[t[k] if k < len(t) else None for t in truths] for k in range(widest)]
    every = sacrebleu.corpus_bleu(guesses, padded).score
    shown = [f"{s} → {g}" for s, g in zip(sources[:4], guesses[:4], strict=True)]
    return {**bleu([t[0] for t in truths], guesses), "bleu_all_references": every, "shown": shown}


def record(name: str, found: dict[str, Any], path: Path, command: str, seed: int) -> None:
    """The row of the ledger."""
    step = ["python", "-m", "bundle.translators", *command.split()[4:], "--out", "{work}/model"]
    check = {
        "steps": [step],
        "read": "figure",
        "tolerance": 1.5,
        "data": [f"translation/tatoeba/{path.name}"],
    }
    row = ledger.row(
        f"Tatoeba, 1,500 English sentences held out, {name} in 8 bits, sacreBLEU: first reference; all",
        {"first": round(found["bleu"], 2), "all": round(found["bleu_all_references"], 2)}, command,
        seed=seed, data_sha256=ledger.sha256([path]), check=check | {"figure": "first"},
    )  # fmt: skip
    ledger.record(Path(__file__).parents[1] / "results" / f"{name}.json", [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--vocab", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    plan, began = PLANS[given.name], time.perf_counter()
    out = given.out or PACKAGE / given.name
    code, language = LANGUAGES[plan.language]
    path = Path(os.environ["HEED_DATA"]) / "translation/tatoeba" / f"{code}-eng.tsv.gz"
    pairs = parts(path)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    table = SCRATCH / f"{given.name}.tsv"
    table.write_text("en\tother\n" + "".join(f"{a}\t{b}\n" for a, b in pairs["train"]), encoding="utf-8")
    tokenizer = heedful.train_tokenizer(
        "bpe", [str(table)], vocab=given.vocab, special=("bos", "eos", "pad"), lower=False
    )
    batches = data.parallel(
        data.Table(table), tokenizer, columns=("en", "other"), length=64, batch=400, max_tokens=plan.tokens,
        seed=given.seed, truncate=True,
    )  # fmt: skip
    model = heedful.build(plan.family, vocab=len(tokenizer), seed=given.seed, **plan.model)
    model.tokenizer = tokenizer
    steps = given.steps
    config = heedful.TrainConfig(
        steps=steps, lr=plan.lr, schedule="linear", final=0.02, warmup=min(600, steps // 8),
        weight_decay=0.01, betas=(0.9, 0.98), dtype=given.dtype, seed=given.seed,
    )  # fmt: skip
    print(f"{len(pairs['train'])} pairs, {len(batches)} batches an epoch", flush=True)
    for step in heedful.fit(model, "translate", batches, config):
        if step.number % 50 == 0:
            spent = time.perf_counter() - began
            speed = step.tokens_per_second
            print(f"{step.number}/{steps} {step.loss:.3f} {speed:.0f} tokens/s {spent:.0f} s", flush=True)
        if step.number % 800 == 0 and step.number < steps:
            print(step.number, score(model, pairs["held"], 128, beams=1), flush=True)
    model.eval()
    small = heedful.quantize(model, "int8")
    small.published |= {"languages": ["en", plan.language]}
    found = score(small, pairs["test"], 1500, beams=4)
    heedful.save(small, out)
    card = Card(
        f"what an English sentence is in {language}", f"translation_en_to_{plan.language}",
        "Tatoeba sentence pairs (tatoeba.org, through manythings.org/anki)", "CC BY 2.0 FR",
        "Tatoeba, 1,500 held-out English sentences, sacreBLEU with the first reference",
    )  # fmt: skip
    told = {k: v for k, v in found.items() if isinstance(v, (int, float))}
    command = f"HEED_DATA=FOLDER python -m bundle.translators {given.name} --steps {steps}"
    spent, hashes = time.perf_counter() - began, {path.name: hash_of(path)}
    write_card(out, given.name, card, told, "bleu", command, given.seed, hashes, None, spent)
    record(given.name, found, path, command, given.seed)
    print(json.dumps({"figure": round(found["bleu"], 2), **found}, ensure_ascii=False))


if __name__ == "__main__":
    main()
