"""Language models as they are on LAMBADA, HellaSwag and BLiMP.

    HEED_DATA=… python benchmarks/lm_tasks.py lambada              writes results/lm-lambada.json
    HEED_DATA=… python benchmarks/lm_tasks.py blimp --limit 500    a first look, written nowhere
    HEED_DATA=… python benchmarks/lm_tasks.py hellaswag --json     prints the figure, writes nothing

lambada      test, 5,153 passages: accuracy of the last word, written greedily and exactly right, and its
             perplexity   (Paperno et al. 2016)
hellaswag    validation, 10,042 rows: the most likely of four endings, by log p and by log p per byte
             (Zellers et al. 2019)
blimp        67,000 pairs: how often the grammatical sentence is the more probable, mean of 67 paradigms
             (Warstadt et al. 2020)

On one core SmolLM2-135M reads some hundred tokens a second, so that lambada takes an hour or two and the
others several; a GPU takes a minute or two. --limit takes rows from all over the file.
The model is the installed package, or smollm2-135m-instruct in the folder HEED_BASES names.
HEED_DATA is a folder with eval/lambada, eval/hellaswag and eval/blimp.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # bundle/ is not installed

from bundle import data_folder
from bundle.plans import base_folder

import heedful
from heedful.classroom.experiments import ledger
from heedful.core.errors import InputError
from heedful.models.base import Model
from heedful.tasks.likelihood import (
    Continuations,
    TextScore,
    common_prefix_length,
    score_continuations,
    split_texts,
    text_ids,
)

ROOT = Path(__file__).parents[1]
MODEL = "smollm2-135m-instruct"


BLOCK_ROWS = 512  # rows sorted by length together


def iterate_blocks(rows: Iterable[Mapping[str, Any]], *fields: str) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the rows in blocks; raise InputError for a row without one of the fields."""
    source, count = iter(rows), 0
    while block := list(islice(source, BLOCK_ROWS)):
        for i, row in enumerate(block):
            if missing := [name for name in fields if name not in row]:
                raise InputError(f"row {count + i} has no {missing[0]!r}", hint=f"it has {', '.join(row)}")
        yield block
        count += len(block)
    if not count:
        raise InputError("no rows to evaluate on")


def continuations_of(model: Model, prompt: str, endings: Sequence[str]) -> Continuations:
    """Return endings behind the prompt they share, each tokenised with it as one text."""
    whole = [text_ids(model, prompt + ending) for ending in endings]
    return split_texts(model, whole, common_prefix_length([text_ids(model, prompt), *whole], keep=0))


def lambada(model: Model, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Evaluate rows {"text"}: accuracy of the last word, all its tokens most likely; its perplexity."""
    scores: list[TextScore] = []
    for block in iterate_blocks(rows, "text"):
        groups = []
        for row in block:
            prompt, space, word = row["text"].rstrip().rpartition(" ")
            if not prompt:
                raise InputError(f"{row['text']!r:.60} has no last word to predict from others")
            groups.append(continuations_of(model, prompt, [space + word]))
        scores += [scored[0] for scored in score_continuations(model, groups)]
    nats = -math.fsum(s.total for s in scores) / len(scores)
    return {
        "accuracy": sum(all(s.likeliest) for s in scores) / len(scores),
        "perplexity": math.exp(nats) if nats < 700 else math.inf,
        "rows": len(scores),
    }


_argmax = lambda scores: max(range(len(scores)), key=lambda i: scores[i])  # the first of equals


def hellaswag(model: Model, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Evaluate rows {"ctx", "endings", "label"}: accuracy by the highest log p, and by log p per byte."""
    right = normal = count = 0
    for block in iterate_blocks(rows, "ctx", "endings", "label"):
        groups = [
            continuations_of(model, row["ctx"].strip(), [f" {e.strip()}" for e in row["endings"]])
            for row in block
        ]
        for row, scored in zip(block, score_continuations(model, groups), strict=True):
            sizes = [len(e.strip().encode()) for e in row["endings"]]
            right += _argmax([s.total for s in scored]) == int(row["label"])
            normal += _argmax([s.total / n for s, n in zip(scored, sizes, strict=True)]) == int(row["label"])
            count += 1
    return {"acc": right / count, "acc_norm": normal / count, "rows": count}


def blimp(
    model: Model, rows: Iterable[Mapping[str, Any]], first: Sequence[int] | None = None
) -> dict[str, Any]:
    """Evaluate rows {"good", "bad", "uid"}: how often the good sentence is more probable, by paradigm.

    Sentences follow the token that begins a text, or `first`. Two that are the same are not success.
    """
    by: dict[str, list[bool]] = defaultdict(list)
    fields: dict[str, set[str]] = defaultdict(set)
    for block in iterate_blocks(rows, "good", "bad", "uid"):
        pairs = [[text_ids(model, row[name]) for name in ("good", "bad")] for row in block]
        groups = [split_texts(model, pair, first=first) for pair in pairs]
        for row, (good, bad) in zip(block, score_continuations(model, groups), strict=True):
            by[row["uid"]].append(good.total > bad.total)
            fields[row.get("field", "all").replace("/", "_")].add(row["uid"])  # BLiMP spells one in two ways
    paradigms = {uid: sum(rights) / len(rights) for uid, rights in by.items()}
    mean = lambda uids: math.fsum(paradigms[uid] for uid in uids) / len(uids)
    return {
        "accuracy": mean(list(paradigms)),
        "fields": {field: mean(sorted(uids)) for field, uids in sorted(fields.items())},
        "paradigms": paradigms,
        "rows": sum(map(len, by.values())),
    }


@dataclass(frozen=True)
class Measured:
    """How a row is measured, and which of its figures `heed verify` compares."""

    claim: str
    file: str
    score: Callable[..., dict[str, Any]]
    figure: str
    tolerance: float
    published: Any = None
    source: str | None = None


ROWS = {
    "lambada": Measured(
        "LAMBADA test: per cent of last words written greedily, and their perplexity",
        "eval/lambada/test.jsonl.gz", lambada, "accuracy", 0.2,
        {"accuracy": 44.3, "perplexity": 16.07},
        "Mamba-130M, about as large, in Dao and Gu 2024, arXiv 2405.21060; the model's authors give none",
    ),
    "hellaswag": Measured(
        "HellaSwag validation, zero-shot: per cent right by log p, and by log p per byte",
        "eval/hellaswag/val.jsonl.gz", hellaswag, "acc_norm", 0.2, {"acc_norm": 42.99},
        "the same model unquantised by lm-eval, in the card of lldois/SmolLM2-135M-Reasoning-SLERP-Champion",
    ),
    "blimp": Measured(
        "BLiMP: per cent of pairs whose good sentence is the more probable, mean of 67 paradigms",
        "eval/blimp/pairs.jsonl.gz", blimp, "accuracy", 0.2, {"accuracy": 83.02},
        "GPT-2 of Warstadt et al. 2020, models_summary.jsonl of alexwarstadt/blimp",
    ),
}  # fmt: skip


def rows_of(path: Path, limit: int | None) -> list[dict[str, Any]]:
    """The rows of a file; with a limit so many, evenly spread over it."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    if limit is None or limit >= len(rows):
        return rows
    return [rows[i * len(rows) // limit] for i in range(limit)]


def counted(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows, telling how far they are read."""
    began = time.perf_counter()
    for i, row in enumerate(rows):
        if i and i % BLOCK_ROWS == 0:
            left = (time.perf_counter() - began) / i * (len(rows) - i)
            print(f"{i:,} of {len(rows):,} rows, {left / 60:.0f} minutes left", file=sys.stderr, flush=True)
        yield row


def in_percent(found: dict[str, Any]) -> dict[str, Any]:
    """Accuracies in per cent, two digits; counts and perplexities as they are, single paradigms left out."""
    out: dict[str, Any] = {}
    for name, value in found.items():
        if name == "fields":
            out |= {field: round(100 * share, 2) for field, share in value.items()}
        elif name not in ("rows", "paradigms"):
            out[name] = round(value, 2) if name == "perplexity" else round(100 * value, 2)
    return out


def row(name: str, model: str, figure: dict[str, Any], path: Path, device: str) -> dict[str, Any]:
    """The measurement as the ledger keeps it."""
    what = ROWS[name]
    words = ["python", "benchmarks/lm_tasks.py", name, "--model", model, "--device", device, "--json"]
    check = {
        "steps": [words], "read": f"figure.{what.figure}", "figure": what.figure,
        "tolerance": what.tolerance, "data": [what.file],
    } | ({"device": "cuda"} if device.startswith("cuda") else {})  # fmt: skip
    options = ("" if model == MODEL else f" --model {model}") + (
        "" if device == "cpu" else f" --device {device}"
    )
    return ledger.row(
        f"{what.claim}; {model}", figure, f"HEED_DATA=… python benchmarks/lm_tasks.py {name}{options}",
        published=what.published if model == MODEL else None,
        source=what.source if model == MODEL else None,
        data_sha256=ledger.sha256([path]), check=check,
    )  # fmt: skip


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("names", nargs="+", choices=ROWS, metavar="NAME", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--model", default=MODEL, help=f"a name or a folder; {MODEL} by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--work", type=Path, help="nothing is kept; for all_gpu.py, which says it to all")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--limit", type=int, help="so many rows; writes nothing")
    parser.add_argument("--json", action="store_true", help="print the figure, write nothing")
    given = parser.parse_args()
    root = data_folder()
    model = heedful.load(base_folder(given.model), device=given.device, dtype=getattr(torch, given.dtype))
    for name in given.names:
        path = root / ROWS[name].file
        rows, began = rows_of(path, given.limit), time.perf_counter()
        found = ROWS[name].score(model, counted(rows))
        figure = in_percent(found)
        told = {"schema": "heed/1", "row": f"lm-{name}", "figure": figure, "rows": len(rows)}
        told["seconds"] = round(time.perf_counter() - began, 1)
        print(json.dumps(told), flush=True)
        if not given.json and given.limit is None:
            result = row(name, given.model, figure, path, given.device)
            ledger.record_rows(given.results / f"lm-{name}.json", [result])


if __name__ == "__main__":
    main()
