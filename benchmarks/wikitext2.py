"""WikiText-2 by words: an LSTM and a Transformer of equal size, perplexity of validation and test text.

    python benchmarks/wikitext2.py --steps 6000       both, minutes on a GPU; writes results/*-wikitext2.json
    python benchmarks/wikitext2.py --steps 20 --limit 5000 --json     a rehearsal, writes nothing

HEED_DATA names a folder with lm/wikitext-2/{train,valid,test}.txt.gz. Lines end with <eos>, as in the
tables published since 2017; every token but the first is predicted once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch

from heedful.classroom.experiments import ledger
from heedful.tasks.evaluate import evaluate
from heedful.tasks.finetune.request import EvaluationRequest
from heedful.tasks.task import load_trained
from heedful.train.recipes.recipes import Setting, parse_assignment, resolve_settings
from heedful.train.recipes.train import run_training

ROOT = Path(__file__).parents[1]
FILES = {part: f"lm/wikitext-2/{part}.txt.gz" for part in ("train", "valid", "test")}
RECIPES = ("lstm-wikitext2", "transformer-wikitext2")
# A window, and by how much it moves: an LSTM reads on as long as one likes, this Transformer to 128.
WINDOWS = {"lstm-wikitext2": (1024, 512), "transformer-wikitext2": (128, 32)}


def measure(
    name: str, files: dict[str, Path], folder: Path, given: list[Setting], limit: int | None
) -> dict[str, Any]:
    """Train one recipe and measure its best checkpoint."""
    data = [Setting("files", [str(files["train"])], "here"), Setting("valid", [str(files["valid"])], "here")]
    began = time.perf_counter()
    chosen = resolve_settings(name, [*given, *data])
    result = run_training(chosen, folder / name)
    seconds = time.perf_counter() - began
    model = load_trained(str(result.checkpoint), chosen.recipe.device)
    length, stride = WINDOWS[name]
    found: dict[str, Any] = {}
    for part in ("valid", "test"):
        asked = EvaluationRequest([str(files[part])], 8, length, stride, limit, {"line_end": "<eos>"})
        told = evaluate(model, "perplexity", asked)
        found[part] = round(told["perplexity"], 2)
        found[f"{part}_tokens"] = told["tokens"] + 1
    return {
        "recipe": name,
        "parameters": result.parameters,
        **found,
        "steps": result.steps,
        "seconds": round(seconds, 1),
    }


def row(name: str, told: dict[str, Any], files: dict[str, Path], a: argparse.Namespace) -> dict[str, Any]:
    """What the ledger keeps of a recipe."""
    words = ["python", "benchmarks/wikitext2.py", "--recipes", name]
    words += ["--steps", str(a.steps)] if a.steps else []
    words += [word for text in a.set for word in ("--set", text)]
    check = {
        "steps": [[*words, "--json", "--work", "{work}"]], "read": "figure.test", "figure": "test",
        "tolerance": 2.0, "data": list(FILES.values()), "device": "cuda",
    }  # fmt: skip
    size = f"{told['parameters']:,} parameters, {told['steps']:,} steps"
    return ledger.row(
        f"WikiText-2 by words, {name}: perplexity ({size})", told["figure"], f"HEED_DATA=… {' '.join(words)}",
        seed=a.seed, check=check, data_sha256=ledger.sha256(files.values()),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", nargs="+", default=RECIPES, choices=RECIPES)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="any setting of both recipes"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/wikitext2"))
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--limit", type=int, help="measure only so many tokens: for a rehearsal")
    parser.add_argument("--json", action="store_true", help="print the figures, write nothing")
    a = parser.parse_args()
    root = os.environ.get("HEED_DATA") or sys.exit("HEED_DATA names no folder of data sets")
    files = {part: Path(root) / FILES[part] for part in FILES}
    torch.set_float32_matmul_precision("high")
    given = [Setting("device", a.device, "--device"), Setting("train.seed", a.seed, "--seed")]
    given += [Setting("train.steps", a.steps, "--steps")] if a.steps else []
    given += [parse_assignment(text) for text in a.set]
    for name in a.recipes:
        shutil.rmtree(a.work / name, ignore_errors=True)  # of a run that was stopped
        found = measure(name, files, a.work, given, a.limit)
        figure = {"valid": found["valid"], "test": found["test"]}
        told = {"schema": "heed/1", "row": name, "figure": figure, **found}
        print(json.dumps(told), flush=True)
        if not (a.json or a.limit):
            ledger.record_rows(a.results / f"{name}.json", [row(name, told, files, a)])


if __name__ == "__main__":
    main()
