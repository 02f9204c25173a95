"""All weights of all-MiniLM-L6-v2 fine-tuned on the tasks of the ledger.

    HEED_DATA=… python benchmarks/finetuned.py                      all; writes results/finetuned-*.json
    HEED_DATA=… python benchmarks/finetuned.py sst2 squad           some
    HEED_DATA=… python benchmarks/finetuned.py sst2 --seeds 1 --part    one seed; a later call writes the row
    HEED_DATA=… python benchmarks/finetuned.py sst2 --fold 0 --json     a score to choose settings by

sst2        accuracy on dev, median of 3 seeds         clinc150   accuracy on test, in scope
conll2003   F1 of entities on testb                    mrpc       accuracy on test, median of 3 seeds
squad       F1 on the last 8 articles of dev           rte        accuracy on dev, median of 3 seeds

Tested are the weights with the best score on held-back data, of sst2 and rte the last ones; the test data are
looked at once. A seed of sst2 is a soup: the mean of the weights of three runs from one start, which read the
data in different orders (Wortsman et al. 2022); `single` in its row is the median of such runs alone.
On SST-2 whole sentences are held back with all phrases that occur in no other one: single phrases would share
their words with those trained on. A fifteenth of them, or with --fold the k-th fifth, which alone is scored:
settings were chosen so (docs/ledger-runs.md). RTE has too little to hold back.
Trained models and scores are kept in --work, by task, seed and run: a call that broke off goes on there.

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

from bundle import SCRATCH, data_folder
from bundle.plans import BASE, PLANS, Plan, ask, base_folder, percent, rows, scored

import heedful
from heedful import data
from heedful.classroom.experiments import ledger
from heedful.data.batch import Batch
from heedful.data.batches import Batches
from heedful.models.base import Model
from heedful.text.tokenizer import Tokenizer
from heedful.train.objectives import Objective, Term, objective
from heedful.train.stopping import soup
from heedful.weights.loading import with_head

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Settings:
    """Settings by which all weights learn one of the plans."""

    plan: str
    claim: str
    epochs: float
    lr: float
    batch: int = 32
    checks: int = 6  # times the held-back data are scored; once: the last weights are taken
    seeds: tuple[int, ...] = (0,)
    runs: int = 1  # whose weights are averaged
    tolerance: float = 1.0
    published: float | None = None
    source: str | None = None
    ema: float | None = None  # decay of an average of the weights
    hidden: float = 0.0  # share of the words that are hidden, drawn anew at each step
    what: str = f"{BASE}, all weights fine-tuned"
    script: str = "finetuned"  # that trains it


Train = Callable[[str, Settings, Plan, int, int, argparse.Namespace], tuple[Model, float]]
UNILM = "MiniLM-L6-H384 by its authors, microsoft/unilm"
THREE = (0, 1, 2)
TASKS = {
    "sst2": Settings("sentiment", "SST-2 dev, accuracy", 3, 7e-5, 64, 1, THREE, 3, published=91.5,
                     source=UNILM),
    "conll2003": Settings("conll2003", "CoNLL-2003 testb, F1 of entities", 10, 2e-4),
    "squad": Settings("answers", "SQuAD 1.1, the last 8 articles of dev, F1 (38 others and 4,000 questions "
                      "of train learnt, 2 held back)", 3, 1.5e-4, 24),
    "clinc150": Settings("intents", "CLINC150 test in scope, accuracy", 15, 2e-4, 64),
    "mrpc": Settings("mrpc", "MRPC test, accuracy", 6, 1e-4, seeds=THREE, tolerance=2.0, published=88.9,
                     source=f"{UNILM}, on GLUE's dev; its table names no metric"),
    "rte": Settings("rte", "RTE dev, accuracy", 8, 1e-4, 16, 1, THREE, tolerance=3.0, published=68.8,
                    source=UNILM),
}  # fmt: skip


def word_ngrams(sentences: Iterable[str]) -> set[str]:
    """Everything that stands in one piece in a sentence."""
    found = set()
    for sentence in sentences:
        words = sentence.split()
        found |= {" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return found


def split_sst2(folder: Path, fold: int | None) -> tuple[Path, Path]:
    """SST-2 in two: a fold of the sentences is held back, and what occurs in no other sentence with it."""
    _, *sentences = rows(folder / "classification/sst2/train_sentences.tsv.gz")
    share, which = (15, 0) if fold is None else (5, fold)
    held = [line for line in sentences if zlib.crc32(line.encode()) % share == which]
    others = [line for line in sentences if zlib.crc32(line.encode()) % share != which]
    text = lambda line: line.split("\t", 1)[1].strip()
    gone = word_ngrams(map(text, held)) - word_ngrams(map(text, others))
    head, *phrases = rows(folder / "classification/sst2/train.tsv.gz")
    left = [line for line in phrases if text(line) not in gone]
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for path, lines in zip(split_paths(), (left, held), strict=True):
        path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return split_paths()


def split_paths() -> tuple[Path, Path]:
    """Where this process keeps what is trained on and what is held back of SST-2."""
    return SCRATCH / f"sst2-train-{os.getpid()}.tsv", SCRATCH / f"sst2-held-{os.getpid()}.tsv"


def find_plan(name: str, folder: Path, fold: int | None = None) -> Plan:
    """The plan of a task, with all of its held-back data; that of SST-2 with sentences held back."""
    plan = PLANS[name]
    if name == "sentiment":
        train, held = split_sst2(folder, fold)
        read = lambda _, t, b: data.classify(
            train, t, text="sentence", labels=["0", "1"], batch=b, length=96, truncate=True
        )
        files = ("classification/sst2/train.tsv.gz", "classification/sst2/train_sentences.tsv.gz",
                 "classification/sst2/dev.tsv.gz")  # fmt: skip
        return replace(plan, batches=read, held=lambda _: ask(held, text="sentence"), files=files)
    return replace(plan, held=lambda d: replace(plan.held(d), limit=None))


def hide_words(purpose: Objective, tokenizer: Tokenizer, rate: float) -> Objective:
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
    best, weights, began = -math.inf, dict[str, torch.Tensor](), time.perf_counter()
    every = max(1, config.steps // checks)
    for step in heedful.fit(model, purpose, batches, config):
        if step.number % every and step.number != config.steps:
            continue
        with step.ema_weights() if config.ema else contextlib.nullcontext():
            score = check()
            if score >= best:
                best, weights = score, {n: p.detach().clone() for n, p in model.named_parameters()}
        spent = time.perf_counter() - began
        where = f"{name} step {step.number} of {config.steps}"
        print(f"{where} loss {step.loss:.4f} held back {score:.4f} {spent:.0f} s", flush=True)
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(weights[n])
    model.eval()
    return best


def train_config(
    settings: Settings, batches: Batches, seed: int, steps: int | None, **more: Any
) -> heedful.TrainConfig:
    """AdamW, a short rise and a straight fall to nothing   (Devlin et al. 2019 A.3)

    In float32: models so small wait for launches, and half precision brings kernels that are prepared anew
    for every shape, of which there are many here.
    """
    count = steps or int(settings.epochs * len(batches))
    return heedful.TrainConfig(**{
        "steps": count, "lr": settings.lr, "schedule": "linear", "final": 0.0, "warmup": count // 12,
        "weight_decay": 0.01, "betas": (0.9, 0.999), "seed": seed, **more,
    })  # fmt: skip


def fine_tune(
    name: str, settings: Settings, plan: Plan, seed: int, run: int, a: argparse.Namespace
) -> tuple[Model, float]:
    """The base under a new head, all of it trained. Runs of a seed begin alike, and read in other orders."""
    body = heedful.load(base_folder(BASE, a.base), dtype=torch.float32)
    batches = plan.batches(a.data, body.tokenizer, settings.batch)
    labels = [plan.names.get(label, label) for label in batches.labels] if batches.labels else None
    model = with_head(body, plan.head, labels, seed=seed).to(a.device)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    held = plan.held(a.data)
    check = lambda: float(scored(model, plan, held)[plan.score])
    config = train_config(settings, batches, settings.runs * seed + run, a.steps, ema=settings.ema)
    purpose = hide_words(objective(plan.objective), body.tokenizer, settings.hidden)
    return model, learn(model, purpose, batches, config, check, settings.checks, f"{name} {seed} {run}")


def train_run(
    name: str, settings: Settings, plan: Plan, seed: int, run: int, a: argparse.Namespace,
    train: Train = fine_tune, weights: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Train and test once; what was kept of an earlier call is taken. Nothing is tested in a fold."""
    place = model_folder(name, seed, a, run if settings.runs > 1 else None)
    if (found := read_scores(place, weights)) is not None:
        return found
    began = time.perf_counter()
    model, held = train(name, settings, plan, seed, run, a)
    return save_scored(model, held, began, plan, place, a)


def train_seed(
    name: str, settings: Settings, plan: Plan, seed: int, a: argparse.Namespace, train: Train = fine_tune
) -> dict[str, Any]:
    """A seed: one run, or the mean of the weights of several."""
    if settings.runs == 1:
        return train_run(name, settings, plan, seed, 0, a, train)
    place = model_folder(name, seed, a)
    if (found := read_scores(place)) is not None:
        return found
    began = time.perf_counter()
    singles = [
        train_run(name, settings, plan, seed, run, a, train, weights=True) for run in range(settings.runs)
    ]
    model = soup([model_folder(name, seed, a, run) for run in range(settings.runs)]).to(a.device)
    held = float(scored(model, plan, plan.held(a.data))[plan.score])
    return save_scored(model, held, began, plan, place, a, singles=singles)


def model_folder(name: str, seed: int, a: argparse.Namespace, run: int | None = None) -> Path:
    """Where a model lies."""
    fold = [] if a.fold is None else [f"fold{a.fold}"]
    return Path(a.work) / "-".join([name, *fold, str(seed), *([] if run is None else [f"run{run}"])])


def read_scores(place: Path, weights: bool = False) -> dict[str, Any] | None:
    """The scores of a model that lies there. They may have come from elsewhere alone, without its weights."""
    file = place / "scores.json"
    there = file.is_file() and (not weights or (place / "config.json").is_file())
    return dict(json.loads(file.read_text(encoding="utf-8"))) if there else None


def save_scored(
    model: Model, held: float, began: float, plan: Plan, place: Path, a: argparse.Namespace, **more: Any
) -> dict[str, Any]:
    """Test a model, and write it down with its scores."""
    found = scored(model, plan, plan.test(a.data)) if a.fold is None else {}
    scores = {k: v for k, v in found.items() if isinstance(v, int | float)}
    scores |= {"held": held, "seconds": round(time.perf_counter() - began, 1), **more}
    heedful.save(model.eval(), place)
    (place / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    return scores


def measure_task(name: str, settings: Settings, a: argparse.Namespace, train: Train = fine_tune) -> None:
    """All seeds of a task; its row."""
    if a.run is not None and a.run not in range(settings.runs):
        sys.exit(f"--run {a.run}: a seed of {name} has {settings.runs} of them, counted from 0")
    plan = find_plan(settings.plan, a.data, a.fold)
    seeds = tuple(a.seeds or settings.seeds)
    if a.run is not None:
        scores = [
            train_run(name, settings, plan, seed, a.run, a, train, weights=settings.runs > 1)
            for seed in seeds
        ]
        print(json.dumps({"schema": "heed/1", "row": row_name(name), "runs": scores}), flush=True)
        return
    runs = [train_seed(name, settings, plan, seed, a, train) for seed in seeds]
    middle = lambda key, some: round(statistics.median(percent(plan, run[key]) for run in some), 2)
    singles = [single for run in runs for single in run.get("singles", [])]
    key = plan.score if a.fold is None else "held"
    figure: dict[str, Any] = {plan.score: middle(key, runs)}
    figure |= {"seeds": [round(percent(plan, run[key]), 2) for run in runs]} if len(seeds) > 1 else {}
    figure |= {"single": middle(key, singles)} if singles else {}
    figure |= {"exact_match": round(runs[0]["exact_match"], 2)} if "exact_match" in runs[0] else {}
    scores = {"schema": "heed/1", "row": row_name(name), "figure": figure, "held_back": middle("held", runs)}
    print(json.dumps({**scores, "seconds": [run["seconds"] for run in runs]}), flush=True)
    if not (a.json or a.steps or a.part or a.fold is not None):
        found = row(name, settings, plan, figure, seeds, a)
        ledger.record_rows(a.results / f"{row_name(name)}.json", [found])


def row_name(name: str) -> str:
    return name if name.startswith("scratch-") else f"finetuned-{name}"


def row(
    name: str,
    settings: Settings,
    plan: Plan,
    figure: Mapping[str, Any],
    seeds: Sequence[int],
    a: argparse.Namespace,
) -> dict[str, Any]:
    """What the ledger keeps of a task."""
    changed = [word for key, value in a.changes.items() for word in (f"--{key}", str(value))]
    words = ["python", f"benchmarks/{settings.script}.py", name.removeprefix("scratch-"), *changed]
    again = [*words, "--seeds", *map(str, seeds), "--json", "--work", "{work}"]
    check = {
        "steps": [again], "read": f"figure.{plan.score}", "figure": plan.score,
        "tolerance": settings.tolerance, "data": list(plan.files), "device": "cuda",
    }  # fmt: skip
    what = settings.what + (f", each the mean of {settings.runs} runs' weights" if settings.runs > 1 else "")
    middle = f", median of {len(seeds)} seeds" if len(seeds) > 1 else ""
    return ledger.row(
        f"{settings.claim} × 100{middle}: {what}", figure, f"HEED_DATA=… {' '.join(words)}",
        published=settings.published, source=settings.source, seed=list(seeds), check=check,
        data_sha256=ledger.sha256(a.data / file for file in plan.files),
    )  # fmt: skip


def parse_arguments(about: str, names: Iterable[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """What both scripts are told."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=layout)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--run", type=int, help="of each seed this run alone, counted from 0")
    parser.add_argument(
        "--fold", type=int, choices=range(5), help="hold back this fifth of SST-2, score it alone"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/finetuned"))
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--json", action="store_true", help="print the figure, write nothing")
    parser.add_argument(
        "--part", action="store_true", help="train and test only: a later call writes the row"
    )
    parser.add_argument("--base", help="a folder with all-MiniLM-L6-v2")
    parser.add_argument("--lr", type=float, help="another learning rate; take another --work")
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, help="stop so early, to try it; writes nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    if unknown := [name for name in a.names if name not in names]:
        parser.error(f"no task is called {unknown[0]!r}; there are {', '.join(names)}")
    a.names = a.names or list(names)
    a.data = data_folder()
    a.changes = {key: getattr(a, key) for key in ("lr", "epochs", "batch") if getattr(a, key) is not None}
    torch.set_float32_matmul_precision("high")
    SCRATCH.mkdir(parents=True, exist_ok=True)
    return parser, a


def main() -> None:
    parser, a = parse_arguments(__doc__, TASKS)
    if a.fold is not None and (other := [name for name in a.names if name != "sst2"]):
        parser.error(f"{other[0]} has no folds; --fold is for sst2")
    for name in a.names:
        measure_task(name, replace(TASKS[name], **a.changes), a)


if __name__ == "__main__":
    main()
