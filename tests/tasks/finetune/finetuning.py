"""Tiny models with tokenizers, and tiny files that can be learnt."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from heedful import build, save, train_tokenizer
from tests.train.toys import NAMES, THINGS, VERBS, tag_of

SENTENCES = [f"{n} {v} {t}" for n, v, t in product(NAMES, VERBS, THINGS)]
GERMAN = dict(zip((*NAMES, *VERBS), ("anna", "bert", "eva", "sieht", "mag", "malt"), strict=True))


def models(folder: Path) -> dict[str, Path]:
    """An encoder without a head, a decoder and an encoder-decoder, none of which has learnt anything."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "words.txt"
    words = [
        *SENTENCES,
        *map(german, SENTENCES),
        "who ? what does do TL;DR: a b c d e f g h i j k l m n o p q r s t",
    ]
    text.write_text("\n".join(words * 2), encoding="utf-8")
    made = {}
    for name, family, kind, special in (
        ("encoder", "bert", "wordpiece", ("pad", "unk", "cls", "sep", "mask")),
        ("decoder", "gpt2", "bpe", ("bos", "eos")),
        ("both", "transformer", "word", ("pad", "bos", "eos", "unk")),
    ):
        tokenizer = train_tokenizer(kind, [text], 400, special=special)
        sizes: dict[str, Any] = dict(vocab=len(tokenizer), dim=64, layers=1, heads=2, dropout=0.0)
        sizes |= {"head": "none", "context": 64} if family == "bert" else {}
        sizes |= {"context": 64} if family == "gpt2" else {}
        sizes |= {"start_token": tokenizer.bos} if family == "transformer" else {}
        model = build(family, seed=0, **sizes)
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.data.mul_(4)  # at this size the usual first weights make every word look the same
        model.tokenizer = tokenizer
        model.hf_config = {"eos_token_id": tokenizer.eos} if tokenizer.eos is not None else {}
        made[name] = save(model, folder / name)
    return made


def german(sentence: str) -> str:
    return " ".join(GERMAN.get(word, word) for word in sentence.split())


def table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]], head: str = "") -> Path:
    """A CSV file as a spreadsheet writes it."""
    out = io.StringIO()
    csv.writer(out).writerows([columns, *rows])
    path.write_text(head + out.getvalue(), encoding="utf-8")
    return path


def classes(path: Path, **options: Any) -> Path:
    """Which verb a sentence has."""
    return table(path, ("text", "label"), [(s, s.split()[1]) for s in SENTENCES], **options)


def tagged(path: Path) -> Path:
    """Who is a person, what is a verb."""
    kinds = {"NAME": "B-PER", "VERB": "B-ACT", "O": "O"}
    path.write_text("\n\n".join("\n".join(f"{w} {kinds[tag_of(w)]}" for w in s.split()) for s in SENTENCES))
    return path


def asked(path: Path) -> Path:
    """Who does what: three articles, the answer is the name."""
    article = lambda name: {
        "title": name,
        "paragraphs": [
            {
                "context": s,
                "qas": [{"id": s, "question": "who ?", "answers": [{"text": name, "answer_start": 0}]}],
            }
            for s in SENTENCES
            if s.startswith(name)
        ],
    }
    path.write_text(json.dumps({"version": "1.1", "data": [article(name) for name in NAMES]}))
    return path


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path
