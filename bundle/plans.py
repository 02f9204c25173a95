"""What all-MiniLM-L6-v2 is taught: tasks, their data, what is held back and what is measured once.

adapters.py trains LoRA by these plans, benchmarks/finetuned.py all weights.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bundle import SCRATCH, contexts, names
from bundle.cards import Card
from heedful import data
from heedful.data.examples.answer_spans import Question
from heedful.models.base import Model
from heedful.tasks.evaluate import evaluate
from heedful.tasks.finetune.request import EvaluationRequest

BASE = "all-minilm-l6-v2"


@dataclass(frozen=True)
class Plan:
    """One task: a head, its data, how long an adapter learns it, and what is said of it."""

    head: str
    task: str  # of `heed eval`, and which of its scores counts
    score: str
    objective: str
    batches: Callable[[Path, Any, int], data.Batches]
    held: Callable[[Path], EvaluationRequest]  # to choose by
    test: Callable[[Path], EvaluationRequest]  # measured once
    files: Sequence[str]
    epochs: float
    lr: float
    card: Card
    rank: int = 8
    batch: int = 32
    checks: int = 3  # times the held-back data are scored
    mixed: Callable[[Path, Any, int], data.Batches] | None = None  # with --mixed: everyday examples too
    names: dict[str, str] = field(default_factory=dict)  # of labels, where the file has numbers
    published: float | None = None  # what is printed elsewhere, × 100, and where
    source: str = ""


def rows(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def parted(path: Path, out: Path, share: int) -> tuple[Path, Path]:
    """A table in two: every `share`-th text is held back, by a hash, so that equal texts stay together."""
    head, *lines = rows(path)
    kept: tuple[list[str], list[str]] = ([head], [head])
    for line in lines:
        kept[zlib.crc32(line.split("\t")[-1].encode()) % share == 0].append(line)
    made = out / f"{path.name.split('.')[0]}-train.tsv", out / f"{path.name.split('.')[0]}-held.tsv"
    for one, text in zip(made, kept, strict=True):
        one.write_text("\n".join(text) + "\n")
    return made


def ask(path: Path, limit: int | None = None, **options: Any) -> EvaluationRequest:
    """What `heed eval` is asked about one file."""
    return EvaluationRequest([str(path)], batch=64, limit=limit, **options)


def sst2(folder: Path) -> tuple[Path, Path]:
    return parted(folder / "classification/sst2/train.tsv.gz", SCRATCH, 40)


def articles(folder: Path, first: int, last: int | None) -> list[Question]:
    """The questions of some articles of SQuAD's development file, in its order."""
    whole = json.loads(gzip.decompress((folder / "qa/squad/dev-v1.1.json.gz").read_bytes()))
    part = SCRATCH / f"squad-{first}-{last}.json"
    part.write_text(json.dumps({"data": whole["data"][first:last]}))
    return data.squad(part)


def questions(folder: Path, first: int, last: int | None) -> Path:
    articles(folder, first, last)
    return SCRATCH / f"squad-{first}-{last}.json"


PAIR: dict[str, Any] = {"text": "sentence1", "pair": "sentence2", "label": "label"}
PLANS: dict[str, Plan] = {
    "sentiment": Plan(
        "classify", "classify", "accuracy", "classify",
        lambda d, t, b: data.classify(sst2(d)[0], t, text="sentence", labels=["0", "1"], batch=b, length=96),
        lambda d: ask(sst2(d)[1], text="sentence"),
        lambda d: ask(d / "classification/sst2/dev.tsv.gz", text="content"),
        ["classification/sst2/train.tsv.gz", "classification/sst2/dev.tsv.gz"],
        epochs=2, lr=7e-4,
        names={"0": "NEGATIVE", "1": "POSITIVE"},
        card=Card("whether a sentence is favourable", "text-classification",
                  "SST-2 (Socher et al. 2013, phrases as in GLUE)", "not stated by the publisher",
                  "SST-2 dev, accuracy"),
        published=91.5, source="MiniLM-L6-H384 in full, microsoft/unilm",
    ),
    "entities": Plan(
        "tag", "tag", "f1", "tag",
        lambda d, t, b: data.tag(names.written(d, held=False), t, batch=b, truncate=True),
        lambda d: ask(names.written(d, held=True)),
        lambda d: ask(names.measured(d)),
        [*names.FILES, "ner/uner-ewt/test.iob2.gz"],
        epochs=2.5, lr=1e-3, rank=16, checks=5,
        card=Card("names of people, places and organisations", "token-classification",
                  "UNER English-EWT dev (Mayhew et al. 2024), WNUT-17 train (Derczynski et al. 2017), whole "
                  "sentences of WikiANN English (Pan et al. 2017), and everyday sentences: of Tatoeba, "
                  "labelled by rule with names of our own lists, and of our own",
                  "CC BY-SA 4.0, CC BY 4.0, not stated by the publisher (Wikipedia text), CC BY 2.0 FR",
                  "UNER English-EWT test, entity F1"),
    ),
    "conll2003": Plan(
        "tag", "tag", "f1", "tag",
        lambda d, t, b: data.tag(d / "ner/conll2003/train.conll.gz", t, batch=b, truncate=True),
        lambda d: ask(d / "ner/conll2003/testa.conll.gz", limit=15),
        lambda d: ask(d / "ner/conll2003/testb.conll.gz"),
        ["ner/conll2003/train.conll.gz", "ner/conll2003/testb.conll.gz"],
        epochs=4, lr=1e-3, rank=16,
        card=Card("names of people, places, organisations and others", "token-classification",
                  "CoNLL-2003 (Tjong Kim Sang and De Meulder)", "Reuters text, restricted: not passed on",
                  "CoNLL-2003 testb, entity F1", bundled=False),
    ),
    "intents": Plan(
        "classify", "classify", "accuracy", "classify",
        lambda d, t, b: data.classify(d / "classification/clinc150/train.tsv.gz", t, label="intent", batch=b),
        lambda d: ask(d / "classification/clinc150/val.tsv.gz", limit=12, label="intent"),
        lambda d: ask(d / "classification/clinc150/test.tsv.gz", label="intent"),
        ["classification/clinc150/train.tsv.gz", "classification/clinc150/test.tsv.gz"],
        epochs=6, lr=1e-3,
        card=Card("which of 150 everyday intents a request has", "text-classification",
                  "CLINC150 (Larson et al. 2019)", "CC BY 3.0",
                  "CLINC150 test in scope, accuracy", bundled=False),
    ),
    "answers": Plan(
        "span", "answer", "f1", "span",
        lambda d, t, b: data.answer(
            [*articles(d, 0, 38), *data.squad(d / "qa/squad/train_subset.json.gz")], t,
            batch=b, length=320, truncate=True),
        lambda d: ask(questions(d, 38, 40)),
        lambda d: ask(questions(d, 40, None)),
        ["qa/squad/dev-v1.1.json.gz", "qa/squad/train_subset.json.gz"],
        epochs=1.2, lr=1e-3, rank=16, batch=16, checks=1,
        mixed=lambda d, t, b: data.answer(
            [*contexts.questions(9000), *contexts.short_questions(d), *articles(d, 0, 38),
             *data.squad(d / "qa/squad/train_subset.json.gz")], t,
            batch=b, length=320, truncate=True),
        card=Card("where in a text the answer to a question stands", "question-answering",
                  "SQuAD 1.1: 38 articles of dev and 4,000 questions of train (Rajpurkar et al. 2016)",
                  "CC BY-SA 4.0", "the last 8 articles of SQuAD dev, F1"),
    ),
    "mrpc": Plan(
        "classify", "classify", "accuracy", "classify",
        lambda d, t, b: data.classify(
            d / "pairs/mrpc/train.tsv.gz", t, **PAIR, batch=b, truncate=True),
        lambda d: ask(d / "pairs/mrpc/val.tsv.gz", **PAIR),
        lambda d: ask(d / "pairs/mrpc/test.tsv.gz", **PAIR),
        ["pairs/mrpc/train.tsv.gz", "pairs/mrpc/test.tsv.gz"],
        epochs=5, lr=5e-4,
        card=Card("whether two sentences say the same", "text-classification",
                  "MRPC (Dolan and Brockett 2005)", "non-commercial: not passed on",
                  "MRPC test, accuracy", bundled=False),
        published=88.9, source="MiniLM-L6-H384 in full, on GLUE's dev, microsoft/unilm",
    ),
    "rte": Plan(
        "classify", "classify", "accuracy", "classify",
        lambda d, t, b: data.classify(
            d / "pairs/rte/train.tsv.gz", t, **PAIR, batch=b, length=256, truncate=True),
        lambda d: ask(d / "pairs/rte/dev.tsv.gz", **PAIR, length=256),
        lambda d: ask(d / "pairs/rte/dev.tsv.gz", **PAIR, length=256),
        ["pairs/rte/train.tsv.gz", "pairs/rte/dev.tsv.gz"],
        epochs=6, lr=5e-4, checks=1,  # dev is all there is, so nothing is chosen by it
        card=Card("whether one sentence follows from another", "text-classification",
                  "RTE (Dagan et al. 2005 and later)", "not stated by the publisher",
                  "RTE dev, accuracy", bundled=False),
        published=68.8, source="MiniLM-L6-H384 in full, microsoft/unilm",
    ),
}  # fmt: skip


def percent(plan: Plan, score: float) -> float:
    """A score × 100; answers are counted in per cent already."""
    return score if plan.task == "answer" else 100 * score


def base_folder(name: str, given: str | None = None) -> str:
    """Where a base lies: `given`; a folder or .gguf file of that name in HEED_BASES; else the name itself."""
    bases = Path(os.environ.get("HEED_BASES") or os.devnull)  # below a file there is nothing
    found = [bases / one for one in (name, f"{name}.gguf") if (bases / one).exists()]
    return given or str(found[0] if found else name)


def scored(model: Model, plan: Plan, asked: EvaluationRequest, quickly: bool = False) -> dict[str, Any]:
    """The scores of `heed eval`; the labels of the files may have other names than the model's."""
    model.eval()
    told = dict(model.hf_config)
    if plan.names:
        model.hf_config["id2label"] = {str(i): label for i, label in enumerate(plan.names)}
    try:
        with torch.inference_mode(), torch.autocast(model.device.type, torch.bfloat16, enabled=quickly):
            return evaluate(model, plan.task, asked)
    finally:
        model.hf_config.update(told)
        model.train()
