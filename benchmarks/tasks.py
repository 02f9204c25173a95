"""What needs no training: figures of models as they are, and the baselines that others must beat.

    HEED_DATA=… python benchmarks/tasks.py                 all, minutes on a CPU; writes results/*.json
    HEED_DATA=… python benchmarks/tasks.py stsb --json     one, printed as an object and written nowhere

stsb              STS-B test: Spearman of scores and cosines of all-minilm-l6-v2's sentence vectors
sst2-bow          SST-2 dev: logistic regression on words and pairs of words, 3 seeds
lead3-samsum      SAMSum test: ROUGE of a dialogue's first three turns
lead3-dialogsum   DialogSum test: the same, over three references to a dialogue

HEED_DATA is a folder with pairs/stsb, classification/sst2, summarisation/samsum and summarisation/dialogsum.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import heedful
from heedful.classroom.experiments import ledger
from heedful.data.readers import Table
from heedful.tasks.metrics.generated import rouge
from heedful.tasks.metrics.scores import spearman

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Measured:
    """A row of the ledger and how it is measured: `figure` of the files, in their order."""

    claim: str
    files: tuple[str, ...]
    figure: Callable[[Sequence[Path]], Any]
    tolerance: float
    seed: Any = None
    read: str = "figure"  # where the figure stands that is compared; below it, which of several
    published: float | None = None
    source: str | None = None


def column(path: Path, *names: str) -> list[tuple[str, ...]]:
    return [values for _, values in Table(path).rows(*names)]


def stsb(files: Sequence[Path]) -> float:
    """100 ρ of the given scores and the cosines of two sentences' vectors."""
    rows = column(files[0], "score", "sentence1", "sentence2")
    model = heedful.load("all-minilm-l6-v2")
    first, second = (F.normalize(heedful.embed(model, [row[i] for row in rows])) for i in (1, 2))
    return round(100 * spearman([float(row[0]) for row in rows], (first * second).sum(1).tolist()), 2)


def grams(text: str) -> list[str]:
    """The set of a text's words and pairs of neighbours."""
    words = text.lower().split()
    return sorted({*words, *(f"{a} {b}" for a, b in pairwise(words))})


def bag(texts: Sequence[str], index: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the known features of all texts, one after another, and where each text begins."""
    rows = [[index[g] for g in grams(text) if g in index] for text in texts]
    starts = torch.tensor([0, *map(len, rows)][:-1]).cumsum(0)
    return torch.tensor([i for row in rows for i in row], dtype=torch.long), starts


def words_alone(train: Path, dev: Path, seed: int) -> float:
    """σ(Σ w_g + b) over a text's features, of those that occur twice in training; three epochs."""
    learn, test = column(train, "label", "sentence"), column(dev, "label", "content")
    counts = Counter(g for _, text in learn for g in grams(text))
    index = {g: i for i, g in enumerate(sorted(g for g, n in counts.items() if n > 1))}
    torch.manual_seed(seed)
    weight = torch.zeros(len(index), 1, requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], lr=5e-3)

    def score(texts: Sequence[str]) -> torch.Tensor:
        numbers, starts = bag(texts, index)
        return F.embedding_bag(numbers, weight, starts, mode="sum")[:, 0] + bias

    for _ in range(3):
        for rows in torch.randperm(len(learn)).split(256):
            wanted = torch.tensor([float(learn[i][0]) for i in rows.tolist()])
            loss = F.binary_cross_entropy_with_logits(score([learn[i][1] for i in rows.tolist()]), wanted)
            optimiser.zero_grad()
            (loss + 1e-5 * weight.square().sum()).backward()
            optimiser.step()
    with torch.no_grad():
        guess = (score([text for _, text in test]) > 0).tolist()
    return 100 * sum(g == (label == "1") for g, (label, _) in zip(guess, test)) / len(test)


def sst2_bow(files: Sequence[Path]) -> float:
    """The median of three seeds; nothing was chosen on dev."""
    return round(statistics.median(words_alone(files[0], files[1], seed) for seed in (0, 1, 2)), 2)


def lead3(files: Sequence[Path]) -> dict[str, float]:
    """The first three turns as a summary, speakers' names included."""
    rows = column(files[0], "dialogue", "summary")
    turns = [[t for t in dialogue.splitlines() if t.strip()] for dialogue, _ in rows]
    found = rouge([summary for _, summary in rows], [" ".join(t[:3]) for t in turns])
    return {name: round(value, 2) for name, value in found.items()}


ROWS = {
    "stsb": Measured(
        "STS-B test: Spearman × 100 of all-minilm-l6-v2 as it is", ("pairs/stsb/test.tsv.gz",),
        stsb, 0.05, published=82.03, source="MTEB's results of this model, STSBenchmark: 0.8203",
    ),
    "sst2-bow": Measured(
        "SST-2 dev: accuracy of logistic regression on words and pairs of words, median of 3 seeds",
        ("classification/sst2/train.tsv.gz", "classification/sst2/dev.tsv.gz"), sst2_bow, 0.5, [0, 1, 2],
    ),
    "lead3-samsum": Measured(
        "SAMSum test: ROUGE of the first three turns (F1, no stemming)",
        ("summarisation/samsum/test.csv.gz",), lead3, 0.01, read="figure.rougeL",
    ),
    "lead3-dialogsum": Measured(
        "DialogSum test, 500 dialogues × 3 references: ROUGE of the first three turns (F1, no stemming)",
        ("summarisation/dialogsum/test.csv.gz",), lead3, 0.01, read="figure.rougeL",
    ),
}  # fmt: skip


def row(name: str, figure: Any, files: Sequence[Path]) -> dict[str, Any]:
    """The measurement as the ledger keeps it."""
    what = ROWS[name]
    words = ["python", "benchmarks/tasks.py", name, "--json"]
    check = {"steps": [words], "read": what.read, "tolerance": what.tolerance, "data": list(what.files)}
    if "." in what.read:
        check["figure"] = what.read.partition(".")[2]
    command, digest = f"HEED_DATA=… python benchmarks/tasks.py {name}", ledger.sha256(files)
    return ledger.row(
        what.claim, figure, command, published=what.published, source=what.source, seed=what.seed,
        data_sha256=digest, check=check,
    )  # fmt: skip


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ROWS)}; all by default")
    parser.add_argument("--json", action="store_true", help="print the figure, write nothing")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in ROWS]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}; there are {', '.join(ROWS)}")
    root = os.environ.get("HEED_DATA") or sys.exit("HEED_DATA names no folder of data sets")
    for name in given.names or ROWS:
        files = [Path(root) / file for file in ROWS[name].files]
        figure = ROWS[name].figure(files)
        print(json.dumps({"schema": "heed/1", "row": name, "figure": figure}), flush=True)
        if not given.json:
            ledger.record_rows(ROOT / "results" / f"{name}.json", [row(name, figure, files)])


if __name__ == "__main__":
    main()
