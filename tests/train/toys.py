"""Tiny data for every objective, and a tiny model that fits it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from heedful import data
from heedful.data import Batches
from heedful.models import FAMILIES
from heedful.models.base import Model, Seq2Seq
from heedful.nn.init import initialise
from heedful.train.objectives import OBJECTIVES, Objective, distil, objective
from heedful.weights.loading import assemble
from tests.data.toy import Letters, Words

# Sentences of different lengths from a small grammar, so that there is something to learn and much to pad.
NAMES, VERBS = ("ann", "bob", "eve"), ("sees", "likes", "paints")
THINGS = ("a red fox", "the sea", "cats", "an old oak tree")
SENTENCES = [f"{n} {v} {t}." for t in THINGS for v in VERBS for n in NAMES]
WORDS = Words(sorted({w for s in SENTENCES for w in s.strip(".").split() if len(w) > 1}), sentinels=8)
LETTERS = Letters()

LM_TEXT = "\n".join(SENTENCES)
PAIRS_TEXT = "\n\n".join("\n".join(SENTENCES[i : i + 4]) for i in range(0, len(SENTENCES), 4))


def write(folder: Path) -> dict[str, Path]:
    """All files a test may need, in one folder."""
    classes = [VERBS[i // 3 % 3] for i in range(len(SENTENCES))]
    tagged = [[f"{w} {tag_of(w)}" for w in s.strip(".").split()] for s in SENTENCES]
    files = {
        "text": LM_TEXT,
        "pairs": PAIRS_TEXT,
        "source": "\n".join(SENTENCES),
        "target": "\n".join(s.replace("sees", "met")[::-1] for s in SENTENCES),
        "classes.tsv": "text\tlabel\n" + "\n".join(f"{s}\t{c}" for s, c in zip(SENTENCES, classes)),
        "scores.tsv": "text\tscore\n" + "\n".join(f"{s}\t{len(s) / 10}" for s in SENTENCES),
        "both.tsv": "sentence1\tsentence2\n" + "\n".join(f"{s}\t{s[::-1]}" for s in SENTENCES),
        "tags.conll": "\n\n".join("\n".join(lines) for lines in tagged),
        "questions.json": json.dumps(squad()),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    return {name: folder / name for name in files}


def tag_of(word: str) -> str:
    return "NAME" if word in NAMES else "VERB" if word in VERBS else "O"


def squad() -> dict[str, Any]:
    """Who does what: the answer is the name. One in four cannot be answered."""
    asked = []
    for i, s in enumerate(SENTENCES):
        answers = [] if i % 4 == 3 else [{"text": s.split()[0], "answer_start": 0}]
        question = {"id": str(i), "question": "who?", "answers": answers, "is_impossible": not answers}
        asked.append({"context": s, "qas": [question]})
    return {"version": "2.0", "data": [{"title": "t", "paragraphs": asked}]}


BATCHES: dict[str, Callable[..., Batches]] = {
    "next_token": lambda f, **o: data.text(f["text"], LETTERS, length=24, **o),
    "masked": lambda f, **o: data.masked(f["text"], WORDS, length=16, **o),
    "permuted": lambda f, **o: data.permuted(f["text"], WORDS, length=16, **o),
    "masked_and_next": lambda f, **o: data.pairs(f["pairs"], WORDS, length=32, **o),
    "spans": lambda f, **o: data.spans(f["text"], WORDS, length=24, **o),
    "denoise": lambda f, **o: data.denoise(f["text"], WORDS, length=16, **o),
    "replaced": lambda f, **o: data.replaced(f["text"], WORDS, length=16, **o),
    "translate": lambda f, **o: data.parallel([f["source"], f["target"]], WORDS, length=64, **o),
    "classify": lambda f, **o: data.classify(f["classes.tsv"], WORDS, **o),
    "regress": lambda f, **o: data.regress(f["scores.tsv"], WORDS, **o),
    "tag": lambda f, **o: data.tag(f["tags.conll"], WORDS, **o),
    "span": lambda f, **o: data.answer(f["questions.json"], WORDS, length=64, stride=8, question=8, **o),
    "contrast": lambda f, **o: data.contrast(f["both.tsv"], WORDS, **o),
    "distil": lambda f, **o: data.masked(f["text"], WORDS, length=16, **o),
}  # fmt: skip

# The family that each objective was made with, and the head it needs.
MODELS: dict[str, dict[str, Any]] = {
    "next_token": {"name": "gpt2"},
    "masked": {"name": "roberta"},
    "permuted": {"name": "xlnet"},
    "masked_and_next": {"name": "bert"},
    "spans": {"name": "t5"},
    "denoise": {"name": "bart"},
    "replaced": {"name": "electra"},
    "translate": {"name": "transformer"},
    "classify": {"name": "bert", "head": "classify", "labels": 3},
    "regress": {"name": "bert", "head": "classify", "labels": 1},
    "tag": {"name": "bert", "head": "tag", "labels": 3},
    "span": {"name": "bert", "head": "span"},
    "contrast": {"name": "bert", "head": "none"},
    "distil": {"name": "distilbert"},
}
ALL = [*OBJECTIVES, "distil"]


def tiny(name: str, seed: int = 0, **changes: Any) -> Model:
    """A tiny model with first weights. Both sides of an encoder-decoder speak of the same words."""
    torch.manual_seed(seed)
    config = FAMILIES[name].tiny
    sides = {"source_vocab": config.vocab} if "source_vocab" in config.field_names() else {}
    model = assemble(FAMILIES[name], config.change(**sides, **changes))
    initialise(model, std=0.1)  # at this size, 0.02 would make every word look the same for long
    return model


def model_of(name: str, **changes: Any) -> Model:
    """The model an objective is tried with."""
    given = MODELS[name] | changes
    return tiny(given.pop("name"), **given)


def still(name: str) -> dict[str, float]:
    """Changes that turn off all dropout of the model an objective is tried with."""
    return {f: 0.0 for f in FAMILIES[MODELS[name]["name"]].tiny.field_names() if "dropout" in f}


def purpose_of(name: str, **changes: Any) -> Objective:
    """An objective by its name; distillation has a teacher."""
    return distil(tiny("bert", head="mlm", **changes)) if name == "distil" else objective(name)


def batches_of(
    name: str, files: dict[str, Path], *, batch: int = 8, seed: int = 0, model: Model | None = None
) -> Batches:
    """Batches for an objective; an encoder-decoder says which token it starts with."""
    more = {"start": model.start_token} if isinstance(model, Seq2Seq) else {}
    return BATCHES[name](files, batch=batch, seed=seed, **more)
