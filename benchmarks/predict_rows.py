"""Rows per second of `heed predict` on a table, beside a plain loop over transformers.

    python benchmarks/predict_rows.py                   100,000 rows, a BERT of 2 layers and 128 numbers
    python benchmarks/predict_rows.py --rows 2000 --model all-minilm-l6-v2
    python benchmarks/predict_rows.py --model all-minilm-l6-v2 --device cuda

The table has texts of 4 to 200 words, most of them short. The loop reads the same CSV, takes 32 rows at a
time as they come, pads them to the longest, and writes a CSV, as the first page of any tutorial does. Both
load the same folder and compute in float32 with as many threads, timed from the first row read to the
last one written. The last line is JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import heedful
from heedful.tasks.finetune.request import PredictionRequest
from heedful.tasks.prediction import RowPredictor, format_row, predict_rows, stream_rows

BATCH, LENGTH = 32, 256


class Clock:
    """Wall and processor seconds: on a busy machine only the second can be compared."""

    def __init__(self) -> None:
        self.wall, self.processor = -time.perf_counter(), -time.process_time()

    def stop(self) -> Clock:
        self.wall, self.processor = self.wall + time.perf_counter(), self.processor + time.process_time()
        return self


def make_model(name: str, folder: Path) -> Path:
    body = heedful.load("all-minilm-l6-v2")
    if name == "tiny":
        tokenizer = body.tokenizer
        body = heedful.build("bert", vocab=len(tokenizer), layers=2, dim=128, heads=2, head="none", seed=0)
        body.tokenizer = tokenizer
        heedful.save(body, folder / "body")
        name = str(folder / "body")
    model = heedful.load(name, head="classify", labels=["good", "bad"])
    return heedful.save(model, folder / "model")


def make_rows(count: int, path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [word for word in (heedful.data.__doc__ or "").split() if word.isalpha()] + [
        "film",
        "plot",
        "actor",
    ]
    lengths = np.clip(rng.lognormal(3.0, 0.8, count).astype(int), 4, 200)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows([i, " ".join(rng.choice(words, n))] for i, n in enumerate(lengths))


def run_heedful(model: Path, rows: Path, out: Path, device: str) -> Clock:
    request = PredictionRequest(str(model), [str(rows)], str(out), length=LENGTH, device=device, batch=BATCH)
    predictor = RowPredictor.of(request)
    clock = Clock()
    source, stream = stream_rows(str(rows), request)
    with out.open("wb") as file:
        for window in predict_rows(predictor, source, stream, request.column_flags):
            file.writelines(format_row(row, list(row), ",") for row in window)
    return clock.stop()


def run_transformers(model: Path, rows: Path, out: Path, device: str) -> Clock:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    classifier = AutoModelForSequenceClassification.from_pretrained(model).eval().to(device)
    names = classifier.config.id2label
    clock = Clock()
    with (
        rows.open(newline="", encoding="utf-8") as read,
        out.open("w", newline="", encoding="utf-8") as write,
    ):
        table, writer = list(csv.DictReader(read)), csv.writer(write)
        for at in range(0, len(table), BATCH):
            some = table[at : at + BATCH]
            inputs = tokenizer(
                [row["text"] for row in some],
                padding=True,
                truncation=True,
                max_length=LENGTH,
                return_tensors="pt",
            ).to(device)
            with torch.inference_mode():
                best = classifier(**inputs).logits.softmax(-1).max(-1)
            for row, p, i in zip(some, best.values.tolist(), best.indices.tolist(), strict=True):
                writer.writerow([*row.values(), names[i], p])
    return clock.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = folder / "rows.csv"
        make_rows(a.rows, rows)
        model = make_model(a.model, folder)
        ours = run_heedful(model, rows, folder / "ours.csv", a.device)
        theirs = run_transformers(model, rows, folder / "theirs.csv", a.device)
        read = lambda path, skip: [row.split(",")[2] for row in path.read_text().splitlines()[skip:]]
        agree = np.mean(np.array(read(folder / "ours.csv", 0)) == np.array(read(folder / "theirs.csv", 0)))
    result = {
        "model": a.model,
        "rows": a.rows,
        "device": a.device,
        "threads": torch.get_num_threads(),
        "labels agree": float(agree),
    }
    for name, unit in (("wall", "second"), ("processor", "processor second")):
        first, second = getattr(ours, name), getattr(theirs, name)
        result |= {f"heed predict rows per {unit}": round(a.rows / first)}
        result |= {f"transformers rows per {unit}": round(a.rows / second)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
