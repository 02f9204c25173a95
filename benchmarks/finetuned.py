"""All weights of all-MiniLM-L6-v2 fine-tuned on the tasks of the ledger, and SST-2 from random weights.

    HEED_DATA=… python benchmarks/finetuned.py                      all; writes results/finetuned-*.json
    HEED_DATA=… python benchmarks/finetuned.py sst2 squad           some
    HEED_DATA=… python benchmarks/finetuned.py sst2 --seeds 1 --part    one run; a later call writes the row
    HEED_DATA=… python benchmarks/finetuned.py sst2 --way averaged      in one of its ways
    HEED_DATA=… python benchmarks/finetuned.py scratch-bilstm --json       prints the figure, writes nothing

sst2        accuracy on dev, median of 3 seeds         clinc150   accuracy on test, in scope
conll2003   F1 of entities on testb                    mrpc       accuracy on test, median of 3 seeds
squad       F1 on the last 8 articles of dev           rte        accuracy on dev, median of 3 seeds
scratch-bilstm, scratch-cnn, scratch-bert    accuracy on SST-2 dev from random weights, median of 3 seeds
scratch-together    the same of the mean of these models' probabilities, of all that lie in --work

The weights that are tested are those with the best score on held-back data; the test data are looked at once.
Of several ways to learn a task (WAYS), the one whose seeds score best on held-back data, in the mean,
gives the row; those scores stand in it for all of them.
On SST-2 whole sentences are held back with all phrases that occur in no other one: single phrases would share
their words with those trained on. RTE has too little to hold back: its last weights are taken.
Trained models and scores are kept in --work, by task, way and seed: a call that broke off goes on there.

The base is the installed package, a folder (--base), or all-minilm-l6-v2 in the folder HEED_BASES names.
HEED_DATA is a folder with classification/sst2, classification/clinc150, ner/conll2003, qa/squad, pairs/mrpc
and pairs/rte.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the plans lie in bundle/, which is not installed

from bundle.plans import BASE, PLANS, SCRATCH, Plan, ask, base_folder, percent, rows, scored

import heedful
from heedful import data
from heedful.data.batch import Batch
from heedful.data.batches import Batches
from heedful.loading import with_head
from heedful.models.base import Model
from heedful.runs import ledger
from heedful.runs.evaluate import Asked
from heedful.text.tokenizer import Tokenizer
from heedful.train.objectives import Objective, Term, objective

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Whole:
    """How all weights learn one of the plans."""

    plan: str
    claim: str
    epochs: float
    lr: float
    batch: int = 32
    checks: int = 6  # times the held-back data are scored
    seeds: tuple[int, ...] = (0,)
    tolerance: float = 1.0
    published: float | None = None
    source: str | None = None
    ema: float | None = None  # decay of an average of the weights
    hidden: float = 0.0  # share of the words that are hidden, drawn anew at each step


UNILM = "MiniLM-L6-H384 by its authors, microsoft/unilm"
PLAIN = "plain"  # the way that TASKS describes
THREE = (0, 1, 2)
TASKS = {
    "sst2": Whole("sentiment", "SST-2 dev, accuracy", 4, 1e-4, 64, seeds=THREE, published=91.5, source=UNILM),
    "conll2003": Whole("conll2003", "CoNLL-2003 testb, F1 of entities", 10, 2e-4),
    "squad": Whole("answers", "SQuAD 1.1, the last 8 articles of dev, F1 (38 others and 4,000 questions of "
                   "train learnt, 2 held back)", 3, 1.5e-4, 24),
    "clinc150": Whole("intents", "CLINC150 test in scope, accuracy", 15, 2e-4, 64),
    "mrpc": Whole("mrpc", "MRPC test, accuracy", 6, 1e-4, seeds=THREE, tolerance=2.0, published=88.9,
                  source=f"{UNILM}, on GLUE's dev; its table names no metric"),
    "rte": Whole("rte", "RTE dev, accuracy", 8, 1e-4, 16, 1, THREE, 3.0, 68.8, UNILM),
}  # fmt: skip
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "sst2": {
        PLAIN: {},
        "short": dict(epochs=2),
        "averaged": dict(epochs=3, ema=0.999, hidden=0.1),
        "gentle": dict(epochs=3, lr=5e-5, ema=0.999),
    },
    "mrpc": {PLAIN: {}, "gentle": dict(epochs=10, lr=5e-5, ema=0.99, hidden=0.1)},
}
KINDS: dict[str, dict[str, Any]] = {
    "bilstm": dict(dim=384, layers=2, dropout=0.4),
    "cnn": dict(dim=256, layers=2, hidden=512, kernel=5, dropout=0.4),
    "bert": dict(dim=256, layers=3, heads=4, context=128, dropout=0.2),
}
FROM_NOTHING = Whole("sentiment", "SST-2 dev, accuracy, from random weights", 5, 1e-3, 128, 10, THREE, 1.5)
NAMES = (*TASKS, *(f"scratch-{kind}" for kind in KINDS), "scratch-together")


def grams(sentences: Iterable[str]) -> set[str]:
    """Everything that stands in one piece in a sentence."""
    found = set()
    for sentence in sentences:
        words = sentence.split()
        found |= {" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return found


def apart(folder: Path, share: int = 15) -> tuple[Path, Path]:
    """SST-2 in two: every `share`-th sentence is held back, and what occurs in no other sentence with it."""
    _, *sentences = rows(folder / "classification/sst2/train_sentences.tsv.gz")
    held = [one for one in sentences if zlib.crc32(one.encode()) % share == 0]
    kept = [one for one in sentences if zlib.crc32(one.encode()) % share]
    text = lambda line: line.split("\t", 1)[1].strip()
    gone = grams(map(text, held)) - grams(map(text, kept))
    head, *phrases = rows(folder / "classification/sst2/train.tsv.gz")
    left = [line for line in phrases if text(line) not in gone]
    made = SCRATCH / f"sst2-train-{os.getpid()}.tsv", SCRATCH / f"sst2-held-{os.getpid()}.tsv"
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for path, lines in zip(made, (left, held), strict=True):
        path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return made


def planned(name: str, folder: Path) -> Plan:
    """The plan of a task, with all of its held-back data; that of SST-2 with sentences held back."""
    plan = PLANS[name]
    if name == "sentiment":
        train, held = apart(folder)
        read = lambda _, t, b: data.classify(
            train, t, text="sentence", labels=["0", "1"], batch=b, length=96, truncate=True
        )
        files = ("classification/sst2/train.tsv.gz", "classification/sst2/train_sentences.tsv.gz",
                 "classification/sst2/dev.tsv.gz")  # fmt: skip
        return replace(
            plan, batches=read, held=lambda _: ask(held, text="sentence", truncate=True), files=files
        )
    return replace(plan, held=lambda d: replace(plan.held(d), limit=None))


def hiding(purpose: Objective, tokenizer: Tokenizer, rate: float) -> Objective:
    """The objective on texts in which a share of the tokens, drawn at each step, is hidden by [MASK]."""
    if not rate:
        return purpose
    mask, never = tokenizer.mask, [tokenizer.pad, tokenizer.cls, tokenizer.sep]
    assert mask is not None

    def noised(model: Model, batch: Batch) -> dict[str, Term]:
        if not model.training:
            return purpose(model, batch)
        fixed = torch.isin(batch.tokens, batch.tokens.new_tensor(never))
        hidden = (torch.rand_like(batch.tokens, dtype=torch.float32) < rate) & ~fixed
        return purpose(model, replace(batch, tokens=batch.tokens.masked_fill(hidden, mask)))

    return noised


def learn(
    model: Model, purpose: str | Objective, batches: Batches, config: heedful.TrainConfig,
    check: Callable[[], float], checks: int, name: str,
) -> float:  # fmt: skip
    """Train, and put the weights in place that scored best; that score."""
    best, kept, began = -math.inf, dict[str, torch.Tensor](), time.perf_counter()
    every = max(1, config.steps // checks)
    for step in heedful.fit(model, purpose, batches, config):
        if step.number % every and step.number != config.steps:
            continue
        with step.averaged() if config.ema else contextlib.nullcontext():
            score = check()
            if score >= best:
                best, kept = score, {n: p.detach().clone() for n, p in model.named_parameters()}
        spent = time.perf_counter() - began
        where = f"{name} step {step.number} of {config.steps}"
        print(f"{where} loss {step.loss:.4f} held back {score:.4f} {spent:.0f} s", flush=True)
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(kept[n])
    model.eval()
    return best


def settings(how: Whole, batches: Batches, seed: int, steps: int | None, **more: Any) -> heedful.TrainConfig:
    """AdamW, a short rise and a straight fall to nothing   (Devlin et al. 2019 A.3)

    In float32: models so small wait for launches, and half precision brings kernels that are prepared anew
    for every shape, of which there are many here.
    """
    count = steps or int(how.epochs * len(batches))
    return heedful.TrainConfig(**{
        "steps": count, "lr": how.lr, "schedule": "linear", "final": 0.0, "warmup": count // 12,
        "weight_decay": 0.01, "betas": (0.9, 0.999), "seed": seed, **more,
    })  # fmt: skip


def tuned(how: Whole, plan: Plan, seed: int, a: argparse.Namespace) -> tuple[Model, float]:
    """The base under a new head, all of it trained."""
    body = heedful.load(base_folder(BASE, a.base), dtype=torch.float32)
    batches = plan.batches(a.data, body.tokenizer, how.batch)
    labels = [plan.names.get(label, label) for label in batches.labels] if batches.labels else None
    model = with_head(body, plan.head, labels, seed=seed).to(a.device)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    held = plan.held(a.data)
    check = lambda: float(scored(model, plan, held)[plan.score])
    config = settings(how, batches, seed, a.steps, ema=how.ema)
    purpose = hiding(objective(plan.objective), body.tokenizer, how.hidden)
    return model, learn(model, purpose, batches, config, check, how.checks, f"{how.plan} {seed}")


def grown(kind: str, how: Whole, plan: Plan, seed: int, a: argparse.Namespace) -> tuple[Model, float]:
    """A small model that has read nothing but this data. Some words are hidden from it; weights averaged."""
    text = SCRATCH / f"sst2-words-{os.getpid()}.txt"
    train = SCRATCH / f"sst2-train-{os.getpid()}.tsv"
    lines = train.read_text(encoding="utf-8").splitlines()[1:]
    text.write_text("\n".join(line.split("\t", 1)[1] for line in lines), encoding="utf-8")
    tokenizer = heedful.train_tokenizer("wordpiece", [text], vocab=a.vocab, lower=True)
    batches = plan.batches(a.data, tokenizer, how.batch)
    labels = list(plan.names.values())
    model = heedful.build(kind, vocab=len(tokenizer), seed=seed, device=a.device, head="classify",
                          labels=len(labels), **KINDS[kind])  # fmt: skip
    model.tokenizer = tokenizer
    model.published = {"id2label": {str(i): name for i, name in enumerate(labels)}}
    held = plan.held(a.data)
    check = lambda: float(scored(model, plan, held)[plan.score])
    config = settings(how, batches, seed, a.steps, weight_decay=0.1, ema=0.998)
    purpose = hiding(objective(plan.objective), tokenizer, 0.15)
    return model, learn(model, purpose, batches, config, check, how.checks, f"{kind} {seed}")


def place_of(name: str, way: str, seed: int, a: argparse.Namespace) -> Path:
    """Where a model lies."""
    words = [name, *([] if way == PLAIN else [way]), str(seed)]
    return Path(a.work) / "-".join(words)


def one(name: str, way: str, seed: int, how: Whole, plan: Plan, a: argparse.Namespace) -> dict[str, Any]:
    """Train and test once; what was kept of an earlier call is taken."""
    place = place_of(name, way, seed, a)
    if (place / "scores.json").is_file():
        return dict(json.loads((place / "scores.json").read_text(encoding="utf-8")))
    began = time.perf_counter()
    kind = name.removeprefix("scratch-")
    model, held = grown(kind, how, plan, seed, a) if kind in KINDS else tuned(how, plan, seed, a)
    found = scored(model, plan, plan.test(a.data))
    told = {k: v for k, v in found.items() if isinstance(v, int | float)}
    told |= {"held": held, "seconds": round(time.perf_counter() - began, 1)}
    heedful.save(model.eval(), place)
    (place / "scores.json").write_text(json.dumps(told), encoding="utf-8")
    return told


def measured(name: str, how: Whole, a: argparse.Namespace) -> None:
    """All seeds of a task, in every way it can be learnt; the row of the way that held-back data favour."""
    plan = planned(how.plan, a.data)
    seeds = tuple(a.seeds or how.seeds)
    ways = WAYS.get(name, {PLAIN: {}})
    tried = {
        way: [one(name, way, seed, replace(how, **ways[way]), plan, a) for seed in seeds]
        for way in ([a.way] if a.way else ways)
    }
    held = {way: statistics.mean(percent(plan, run["held"]) for run in runs) for way, runs in tried.items()}
    way = max(held, key=lambda one: held[one])
    runs = tried[way]
    scores = [round(percent(plan, run[plan.score]), 2) for run in runs]
    figure: dict[str, Any] = {plan.score: statistics.median(scores)}
    figure |= {"seeds": scores} if len(seeds) > 1 else {}
    figure |= {"exact_match": round(runs[0]["exact_match"], 2)} if "exact_match" in runs[0] else {}
    if len(tried) > 1:
        figure |= {"way": way, "held back": {one: round(score, 2) for one, score in held.items()}}
    told = {"schema": "heed/1", "row": row_name(name), "figure": figure, "held_back": round(held[way], 2)}
    print(json.dumps({**told, "seconds": [run["seconds"] for run in runs]}), flush=True)
    if not (a.json or a.steps or a.part):
        made = row(name, way, how, plan, figure, seeds, a)
        ledger.record(a.results / f"{row_name(name)}.json", [made])


@torch.inference_mode()
def probabilities(model: Model, plan: Plan, asked: Asked) -> tuple[torch.Tensor, list[int]]:
    """p(label | text) of every row of a file (N, C), and its true label."""
    model.eval()
    batches = data.classify(
        asked.source, model.tokenizer, labels=list(plan.names), batch=asked.batch, **asked.options
    )
    found, truth = [], list[int]()
    for batch in batches.once():
        there = batch.to(model.device)
        found.append(model(there.tokens, valid=there.valid, types=there.types).float().softmax(-1).cpu())
        truth += batch.extra["label"].tolist()
    return torch.cat(found), truth


def together(how: Whole, a: argparse.Namespace) -> None:
    """All models from random weights, each with one voice: the mean of their probabilities."""
    plan = PLANS[how.plan]
    names = [f"scratch-{kind}-{seed}" for kind in KINDS for seed in a.seeds or how.seeds]
    places = [a.work / name for name in names if (a.work / name / "scores.json").is_file()]
    if not places:
        sys.exit(f"{a.work} holds no model from random weights; run {', '.join(NAMES[-4:-1])} first")
    models = [heedful.load(place, dtype=torch.float32, device=a.device) for place in places]
    asked = plan.test(a.data)
    voices = [probabilities(model, plan, asked) for model in models]
    said, truth = torch.stack([voice for voice, _ in voices]).mean(0).argmax(-1).tolist(), voices[0][1]
    right = sum(x == y for x, y in zip(said, truth, strict=True)) / len(truth)
    figure = {plan.score: round(100 * right, 2), "models": len(models)}
    print(json.dumps({"schema": "heed/1", "row": "scratch-together", "figure": figure}), flush=True)
    if not (a.json or a.steps or a.part):
        ledger.record(a.results / "scratch-together.json", [row_together(how, plan, figure, a)])


def row_together(how: Whole, plan: Plan, figure: Mapping[str, Any], a: argparse.Namespace) -> dict[str, Any]:
    """What the ledger keeps of them."""
    words = ["python", "benchmarks/finetuned.py"]
    train = [*words, *NAMES[-4:-1], "--json", "--work", "{work}"]
    check = {
        "steps": [train, [*words, "scratch-together", "--json", "--work", "{work}"]],
        "read": f"figure.{plan.score}", "figure": plan.score, "tolerance": how.tolerance,
        "data": list(plan.files), "device": "cuda",
    }  # fmt: skip
    return ledger.row(
        f"{how.claim} × 100: mean of the probabilities of {figure['models']} models ({', '.join(KINDS)})",
        dict(figure), f"HEED_DATA=… {' '.join([*words, *NAMES[-4:]])}", seed=list(a.seeds or how.seeds),
        check=check, data_sha256=ledger.sha256(a.data / file for file in plan.files),
    )  # fmt: skip


def row_name(name: str) -> str:
    return name if name.startswith("scratch-") else f"finetuned-{name}"


def row(
    name: str, way: str, how: Whole, plan: Plan, figure: Mapping[str, Any], seeds: Sequence[int],
    a: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """What the ledger keeps of a task."""
    changed = [word for key in ("lr", "epochs", "batch") if (value := getattr(a, key)) is not None
               for word in (f"--{key}", str(value))]  # fmt: skip
    words = ["python", "benchmarks/finetuned.py", name, *changed]
    chosen = ["--way", way] if name in WAYS else []
    again = [*words, *chosen, "--seeds", *map(str, seeds), "--json", "--work", "{work}"]
    check = {
        "steps": [again], "read": f"figure.{plan.score}", "figure": plan.score, "tolerance": how.tolerance,
        "data": list(plan.files), "device": "cuda",
    }  # fmt: skip
    kind = name.removeprefix("scratch-")
    what = f"{kind}, {KINDS[kind]['layers']} layers" if kind in KINDS else f"{BASE}, all weights fine-tuned"
    mean = f", median of {len(seeds)} seeds" if len(seeds) > 1 else ""
    return ledger.row(
        f"{how.claim} × 100{mean}: {what}", figure, f"HEED_DATA=… {' '.join(words)}",
        published=how.published, source=how.source, seed=list(seeds), check=check,
        data_sha256=ledger.sha256(a.data / file for file in plan.files),
    )  # fmt: skip


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--work", type=Path, default=Path("runs/finetuned"))
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--json", action="store_true", help="print the figure, write nothing")
    parser.add_argument(
        "--part", action="store_true", help="train and test only: a later call writes the row"
    )
    parser.add_argument("--way", help="learn a task in this way alone; see WAYS")
    parser.add_argument("--base", help="a folder with all-MiniLM-L6-v2")
    parser.add_argument("--lr", type=float, help="another learning rate; take another --work")
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, help="stop so early, to try it; writes nothing")
    parser.add_argument("--vocab", type=int, default=12_000, help="pieces of the models from random weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    if unknown := [name for name in a.names if name not in NAMES]:
        parser.error(f"no task is called {unknown[0]!r}; there are {', '.join(NAMES)}")
    if a.way and (lacking := [name for name in a.names or NAMES if a.way not in WAYS.get(name, {PLAIN: {}})]):
        parser.error(f"{lacking[0]} is not learnt in a way called {a.way!r}; see WAYS")
    a.data = Path(os.environ.get("HEED_DATA") or sys.exit("HEED_DATA names no folder of data sets"))
    torch.set_float32_matmul_precision("high")
    SCRATCH.mkdir(parents=True, exist_ok=True)
    given = {key: getattr(a, key) for key in ("lr", "epochs", "batch") if getattr(a, key) is not None}
    for name in a.names or NAMES:
        how = replace(TASKS.get(name, FROM_NOTHING), **given)
        together(how, a) if name == "scratch-together" else measured(name, how, a)


if __name__ == "__main__":
    main()
