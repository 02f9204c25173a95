"""WikiText-2 by words: an LSTM and a Transformer of equal size, perplexity of validation and test text.

    python benchmarks/wikitext2.py             both, minutes on a GPU; adds to results/wikitext2.json
    python benchmarks/wikitext2.py --steps 20 --limit 5000 --no-record     a rehearsal

HEED_DATA names a folder with lm/wikitext-2/{train,valid,test}.txt.gz. Lines end with <eos>, as in the
tables published since 2017; every token but the first is predicted once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from heedful.runs import ledger
from heedful.runs.evaluate import Asked, evaluate, trained
from heedful.runs.settings import Given, assignment, choose
from heedful.runs.train import train

ROOT = Path(__file__).parents[1]
RECIPES = ("lstm-wikitext2", "transformer-wikitext2")
# A window, and by how much it moves: an LSTM reads on as long as one likes, this Transformer to 128.
WINDOWS = {"lstm-wikitext2": (1024, 512), "transformer-wikitext2": (128, 32)}


def measure(
    name: str, files: dict[str, Path], folder: Path, given: list[Given], limit: int | None
) -> dict[str, Any]:
    """Train one recipe and measure its best checkpoint."""
    data = [Given("files", [str(files["train"])], "here"), Given("valid", [str(files["valid"])], "here")]
    began = time.perf_counter()
    chosen = choose(name, [*given, *data])
    result = train(chosen, folder / name)
    seconds = time.perf_counter() - began
    model = trained(str(result.checkpoint), chosen.recipe.device)
    length, stride = WINDOWS[name]
    found: dict[str, Any] = {}
    for part in ("valid", "test"):
        asked = Asked([str(files[part])], 8, length, stride, limit, {"line_end": "<eos>"})
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
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--limit", type=int, help="measure only so many tokens: for a rehearsal")
    parser.add_argument("--no-record", action="store_true")
    a = parser.parse_args()
    root = os.environ.get("HEED_DATA") or sys.exit("HEED_DATA names no folder of data sets")
    files = {part: Path(root) / "lm" / "wikitext-2" / f"{part}.txt.gz" for part in ("train", "valid", "test")}
    given = [Given("device", a.device, "--device"), Given("train.seed", a.seed, "--seed")]
    given += [Given("train.steps", a.steps, "--steps")] if a.steps else []
    given += [assignment(text) for text in a.set]
    for name in a.recipes:
        found = measure(name, files, a.folder, given, a.limit)
        print(json.dumps(found), flush=True)
        if not a.no_record:
            size = f"{found['parameters']:,} parameters, {found['seconds']:.0f} s of training"
            claim = f"WikiText-2 by words, {name}: perplexity ({size})"
            figure = {"valid": found["valid"], "test": found["test"]}
            command = "python benchmarks/wikitext2.py"
            digest = ledger.sha256(files.values())
            row = ledger.row(claim, figure, command, seed=a.seed, data_sha256=digest)
            ledger.record(ROOT / "results" / "wikitext2.json", [row])


if __name__ == "__main__":
    main()
