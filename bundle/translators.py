"""Translators from English that come with heedful, learnt from Tatoeba's sentence pairs.

    HEED_DATA=FOLDER python -m bundle.translators translate-en-de [--steps 3200] [--out FOLDER]
    HEED_DATA=FOLDER python -m bundle.translators translate-en-de --large [--seconds 420] [--device cuda]
    HEED_DATA=FOLDER python -m bundle.translators translate-en-de --large --start SAVED [--seconds 230]
    HEED_DATA=FOLDER python -m bundle.translators rnnsearch-en-de [--seconds 200] [--device cuda] [--no-graph]

The second has 11 M weights, reads words in other pieces every epoch (BPE-dropout) and learns a dictionary
beside the sentences (`bundle.dictionary`); it wants a GPU. The third goes on learning from a folder that the
second wrote, with its tokenizer, from a lower rate. The fourth is the first attention, on the sentences alone
and at a third of the size of the first.

Pairs are parted by their English sentence, so that no sentence of the test was read in training; sentences of
the everyday lists are left out. Weights are kept in 8 bits, and the score is that of what is kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shlex
import sys
import time
import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import heedful
from bundle import SCRATCH, data_folder, dictionary, everyday_texts
from bundle.cards import Card, hash_of, write_card
from bundle.timed import learn, options, parsed, places, seeded, write_sample
from heedful import data
from heedful.classroom.experiments import ledger
from heedful.models.base import Model
from heedful.nn.quantised import dequantise_modules
from heedful.tasks.metrics.generated import bleu

LANGUAGES = {"de": ("deu", "German"), "fr": ("fra", "French")}

TATOEBA = "Tatoeba sentence pairs (tatoeba.org, through manythings.org/anki"
# What a translator learns from and its licence: without and with a dictionary.
SOURCES = (
    (f"{TATOEBA})", "CC BY 2.0 FR"),
    (f"{TATOEBA} and the Tatoeba Challenge) and words of the English Wiktionary",
     "CC BY 2.0 FR; CC BY-SA 3.0"),
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A translator: what it is built as, and how it learns."""

    family: str
    language: str
    model: dict[str, Any]
    lr: float
    tokens: int = 3000  # rows × longest row of a batch
    vocab: int = 5000
    steps: int = 3200
    dtype: str = "bfloat16"
    multiple: int = 1  # lengths are rounded up to it; above 1, steps are recorded on a GPU
    merges: float = 0.0  # the share of BPE's merges that are undone, others in every epoch
    warmup: int = 600
    dictionary: bool = False  # whether the words of Wiktionary are learnt too


SMALL = dict(dim=192, layers=2, heads=6, hidden=768, dropout=0.0)
RECURRENT = dict(dim=160, table_dim=64, align=64, maxout=96, dropout=0.1)
# A recurrence waits for its launches, not for its products: float32 has fewer of them, rows cost nothing, and
# a recorded step is launched once.
SEARCH: dict[str, Any] = dict(tokens=10_000, vocab=2000, steps=14000, dtype="float32", multiple=4)
LARGE: dict[str, Any] = dict(
    model=dict(dim=256, layers=5, heads=8, hidden=1024, dropout=0.2), lr=8e-4, tokens=16_000, vocab=8000,
    steps=12_000, merges=0.1, warmup=1200, dictionary=True,
)  # fmt: skip
GOING_ON: dict[str, Any] = dict(lr=5e-4, warmup=200, steps=4000)  # from a model that has learnt already
PLANS = {
    "translate-en-de": Plan("transformer", "de", SMALL, 2e-3),
    "translate-en-fr": Plan("transformer", "fr", SMALL, 2e-3),
    "rnnsearch-en-de": Plan("rnnsearch", "de", RECURRENT, 3e-3, **SEARCH),
    "rnnsearch-en-fr": Plan("rnnsearch", "fr", RECURRENT, 3e-3, **SEARCH),
}


def parts(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Train, held-back and test pairs; all translations of an English sentence are on one side."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    judged = everyday_texts()
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        english, other = line.split("\t")[:2]
        if english in judged:
            continue
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
    guesses = [""] * len(sources)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))  # alike lengths end together
    for at in range(0, len(order), 64):
        some = order[at : at + 64]
        found = heedful.generate(model, [sources[i] for i in some], beams=beams, max_tokens=60)
        for i, text in zip(some, found, strict=True):
            guesses[i] = text
    model.train()
    widest = max(map(len, truths))
    padded = [[t[k] if k < len(t) else None for t in truths] for k in range(widest)]
    every = sacrebleu.corpus_bleu(guesses, padded).score  # type: ignore[arg-type]
    shown = [f"{s} → {g}" for s, g in zip(sources[:40], guesses[:40], strict=True)]
    return {**bleu([t[0] for t in truths], guesses), "bleu_all_references": every, "shown": shown}


def begun_by(start: Path) -> str:
    """By what commands a saved translator was trained, as its card has them."""
    card = (start / "README.md").read_text(encoding="utf-8")
    earlier = re.search(r"^- begun by: (.*); went on from what that wrote", card, re.MULTILINE)
    last = re.search(r"^- command: (.*)$", card, re.MULTILINE)
    if last is None:
        sys.exit(f"the card in {start} names no command")
    return f"{earlier[1]}, then {last[1]}" if earlier else last[1]


def saved_model(start: Path, device: str) -> Model:
    """A saved translator with weights of float32 again, to go on with."""
    model = heedful.load(start, device=device)
    dequantise_modules(model)
    model.hf_config = {key: value for key, value in model.hf_config.items() if key != "quantization"}
    return model.requires_grad_(True).train()


def record(
    results: Path, name: str, found: dict[str, Any], files: list[str], command: str, begun: str, seed: int
) -> None:
    """The row of the ledger. A translator that went on from another is trained by several commands."""
    commands = [*re.findall(r"`(.*?)`", begun), command]
    steps: list[list[str]] = []
    for i, line in enumerate(commands):
        words = shlex.split(line)[1:]  # without HEED_DATA
        if steps:
            words[words.index("--start") + 1] = f"{steps[-1][-1]}/{name}"
        steps.append([*words, "--out", "{work}" + "/begun" * (len(commands) - 1 - i)])
    check = {
        "steps": steps,
        "read": "figure",
        "tolerance": 1.5,
        "data": files,
    } | ({"device": "cuda"} if "--seconds" in command else {})
    row = ledger.row(
        f"Tatoeba, 1,500 English sentences held out, {name} in 8 bits, sacreBLEU: first reference; all",
        {"first": round(found["bleu"], 2), "all": round(found["bleu_all_references"], 2)}, command,
        seed=seed, data_sha256=ledger.sha256(data_folder() / one for one in files),
        check=check | {"figure": "first"},
    )  # fmt: skip
    ledger.record_rows(results / f"{name}.json", [row])


def read(
    path: Path, name: str, given: argparse.Namespace, plan: Plan, tokenizer: Any | None
) -> tuple[Any, data.Batches, dict[str, Any]]:
    """The tokenizer, learnt from the pairs to train on if none is given; their batches; all parts."""
    pairs, folder = parts(path), data_folder()
    shown = list(pairs["train"])
    if plan.dictionary:
        known = {w for a, _ in pairs["train"] for w in dictionary.plain(a).split()}
        shown += dictionary.pairs(folder, plan.language, known)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    table = SCRATCH / f"{name}.tsv"
    table.write_text("en\tother\n" + "".join(f"{a}\t{b}\n" for a, b in shown), encoding="utf-8")
    if tokenizer is None:
        tokenizer = heedful.train_tokenizer(
            "bpe", [str(table)], vocab=given.vocab or plan.vocab, special=("bos", "eos", "pad"), lower=False
        )
    batches = data.parallel(
        data.Table(table), tokenizer, columns=("en", "other"), length=64, batch=1000, max_tokens=plan.tokens,
        seed=given.seed, truncate=True, multiple=plan.multiple, dropout=plan.merges,
    )  # fmt: skip
    return tokenizer, batches, pairs


def train(
    model: Model, batches: data.Batches, held: Any, plan: Plan, given: argparse.Namespace, began: float
) -> None:
    """Learn from the pairs, by steps or by the clock."""
    steps = given.steps or plan.steps
    config = heedful.TrainConfig(
        steps=steps, lr=plan.lr, schedule="linear", final=0.02, warmup=min(plan.warmup, steps // 8),
        weight_decay=0.01, betas=(0.9, 0.98), dtype=given.dtype or plan.dtype, seed=given.seed,
        graph=given.graph and plan.multiple > 1,
    )  # fmt: skip
    until = None if given.seconds is None else began + given.seconds
    for step in learn(model, "translate", batches, config, until):
        if step.number % 50 == 0:
            spent, speed = time.perf_counter() - began, step.tokens_per_second
            print(f"{step.number} {step.loss:.3f} {speed:.0f} tokens/s {spent:.0f} s", flush=True)
        if step.number % 2000 == 0:
            print(step.number, score(model, held, 128, beams=1)["bleu"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=PLANS)
    options(parser)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--large", action="store_true", help="the size for a GPU, with BPE-dropout")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True,
                        help="record the steps of a recurrence on a GPU and replay them")  # fmt: skip
    parser.add_argument("--start", type=Path, help="a folder that --large wrote, to go on from")
    parser.add_argument("--lr", type=float, help="the highest learning rate")
    parser.add_argument("--test", type=int, default=1500, help="sentences that are translated at the end")
    given = parsed(parser)
    torch.backends.cuda.matmul.allow_tf32 = True
    plan, began = PLANS[given.name], time.perf_counter()
    plan = replace(plan, **LARGE) if given.large else plan
    plan = replace(plan, **GOING_ON) if given.start else plan
    plan = replace(plan, lr=given.lr) if given.lr else plan
    out, results, samples = places(given.name, given.out)
    code, language = LANGUAGES[plan.language]
    path = data_folder() / "translation/tatoeba" / f"{code}-eng.tsv.gz"
    model = saved_model(given.start, given.device) if given.start else None
    tokenizer, batches, pairs = read(path, given.name, given, plan, model and model.tokenizer)
    if model is None:
        sizes = dict(vocab=len(tokenizer), seed=given.seed, device=given.device)
        model = heedful.build(plan.family, **sizes, **plan.model)
    model.tokenizer = tokenizer
    spent = time.perf_counter() - began
    print(f"{len(pairs['train'])} pairs, {len(batches)} batches an epoch, {spent:.0f} s", flush=True)
    train(model, batches, pairs["held"], plan, given, began)
    small = heedful.quantize(model.eval(), "int8", tables=plan.family == "rnnsearch")
    small.hf_config |= {"languages": ["en", plan.language]}
    heedful.save(small, out, quantized=True)
    found = score(small, pairs["test"], given.test, beams=4)
    begun = begun_by(given.start) if given.start else ""
    card = Card(
        f"what an English sentence is in {language}", f"translation_en_to_{plan.language}",
        *SOURCES[plan.dictionary],
        f"Tatoeba, {given.test:,} held-out English sentences, sacreBLEU with the first reference",
        begun=begun,
    )  # fmt: skip
    told = {k: v for k, v in found.items() if isinstance(v, (int, float))}
    words = (
        ["--seconds", f"{given.seconds:.0f}"]
        if given.seconds
        else ["--steps", str(given.steps or plan.steps)]
    ) + seeded(given)
    words = [*(["--start", f"begun/{given.name}"] if given.start else []), *words]
    words = ["--large", *words] if given.large else words
    words += ["--lr", str(given.lr)] if given.lr else []
    command = " ".join(["HEED_DATA=FOLDER python -m bundle.translators", given.name, *words])
    files = [f"translation/tatoeba/{path.name}"]
    files += [f"translation/wiktionary/en-{plan.language}.tsv.gz"] if plan.dictionary else []
    spent, hashes = time.perf_counter() - began, {one: hash_of(data_folder() / one) for one in files}
    write_card(out, given.name, card, told, "bleu", command, given.seed, hashes, None, spent)
    record(results, given.name, found, files, command, begun, given.seed)
    write_sample(samples, given.name, lambda: "\n".join([f"{told}", *found["shown"]]))
    print(json.dumps({"figure": round(found["bleu"], 2), **told}, ensure_ascii=False))


if __name__ == "__main__":
    main()
