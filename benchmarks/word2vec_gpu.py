"""word2vec on one accelerator: words/s, and the quality test of benchmarks/word2vec.py on what it trained.

    HEED_DATA=… python benchmarks/word2vec_gpu.py --out results.json
    HEED_DATA=… python benchmarks/word2vec_gpu.py --device cpu --lines 300 --epochs 1 --seeds 1   # a dry run

HEED_DATA is a folder with lm/eltec-eng/train.jsonl.xz and wordvec/. Neither numba nor gensim is needed.
Seconds are those of training: the text is counted and encoded before, and that time is given apart.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from heedful.word2vec import Corpus, Settings, Word2Vec
from heedful.word2vec.gpu import GpuTrainer
from heedful.word2vec.trainer import Trainer
from word2vec import SETS, corpus, score, work_folder

RUNS = [("skipgram", "negative", batch) for batch in (256, 1024, 4096)]
RUNS += [("cbow", "negative", 1024), ("skipgram", "hierarchical", 1024), ("cbow", "hierarchical", 1024)]


def text(lines: int | None) -> Path:
    """The whole corpus, or its first lines for a dry run."""
    whole = corpus()
    if lines is None:
        return whole
    part = work_folder() / f"eltec-{lines}.txt"
    with whole.open(encoding="utf-8") as source:
        part.write_text("".join(itertools.islice(source, lines)), encoding="utf-8")
    return part


def train(path: Path, run: tuple[str, str, int], seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """One run from text to scores."""
    mode, loss, batch = run
    began = time.perf_counter()
    trainer = Trainer.create(Corpus(path), Settings(mode=mode, loss=loss, epochs=given.epochs, seed=seed))
    with tempfile.TemporaryDirectory() as folder:
        encoded = trainer.encode_text(Path(folder))
        device = torch.device(given.device)
        ready = time.perf_counter()
        gpu = GpuTrainer(trainer.tables, trainer.counts, trainer.settings, encoded, device, batch)
        reports = list(trainer.train_encoded(gpu))
        done = time.perf_counter()
    out = work_folder() / "gpu.bin"
    Word2Vec.from_trainer(trainer).save(out)
    steady = statistics.median(report.words_per_second for report in reports)
    return {
        "seconds": done - ready,
        "prepare_seconds": ready - began,
        "loss": trainer.state.history,
        "words_per_second": encoded.words * given.epochs / (done - ready),
        "steady_words_per_second": steady,
        "scores": score(out),
    }


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lines", type=int)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    path = text(given.lines)
    name = torch.cuda.get_device_name() if given.device.startswith("cuda") else given.device
    rows = []
    for mode, loss, batch in RUNS:
        found = [train(path, (mode, loss, batch), seed, given) for seed in range(1, given.seeds + 1)]
        scores = {key: [f["scores"][key] for f in found] for key in ("semantic", "syntactic", "total", *SETS)}
        speed = statistics.median(f["words_per_second"] for f in found)
        summary = {key: round(statistics.mean(values), 4) for key, values in scores.items()}
        print(
            f"{mode} {loss} batch {batch}: {speed:,.0f} words/s, steady "
            f"{statistics.median(f['steady_words_per_second'] for f in found):,.0f}, {summary}",
            flush=True,
        )
        rows.append(
            {
                "mode": mode,
                "loss": loss,
                "batch": batch,
                "words_per_second": speed,
                "scores": scores,
                "runs": found,
            }
        )
        result = {
            "claim": "words/s and quality of word2vec on one accelerator",
            "figure": rows,
            "published": None,
            "source": "benchmarks/word2vec.py quality, same text and scores",
            "seed": list(range(1, given.seeds + 1)),
            "command": f"HEED_DATA=… python benchmarks/word2vec_gpu.py --epochs {given.epochs} "
            f"--seeds {given.seeds}",
            "data_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "hardware": name,
            "date": datetime.date.today().isoformat(),
        }
        if given.out is not None:
            given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
