"""Summaries of dialogues by SmolLM2-135M-Instruct with LoRA, beside the first three turns.

    HEED_DATA=… python benchmarks/summaries.py                      both; writes results/summaries-*.json
    HEED_DATA=… python benchmarks/summaries.py samsum --json        prints the figures, writes nothing

samsum      SAMSum: 14,731 dialogues to learn from, 819 to test
dialogsum   DialogSum: 12,460 to learn from, 500 to test, three references each (the mean over all 1,500)

The model is asked in a conversation, as `heed finetune --task summarize` has it; what it learns is the answer
alone. Of the weights after each epoch those with the lowest validation loss are taken. Four beams write.
The adapter is kept in --work with its prompt (`task_prompt`), so that pipeline("summarization") asks alike.
It is not passed on: both sets are for non-commercial use.

The base is the installed package, a folder (--base), or smollm2-135m-instruct in the folder HEED_BASES names.
HEED_DATA is a folder with summarisation/samsum and summarisation/dialogsum.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # bundle/ is not installed

from bundle import data_folder
from bundle.plans import base_folder
from bundle.summarising import learnt, summariser, written

import heedful
from heedful.classroom.experiments import ledger
from heedful.data.batch_options import BatchOptions
from heedful.data.readers import Table
from heedful.tasks.examples import Examples
from heedful.tasks.metrics.generated import rouge
from heedful.tasks.pipelines.text2text import Summarization
from heedful.weights.saving import save_on_base
from tasks import lead3

ROOT = Path(__file__).parents[1]
BASE = "smollm2-135m-instruct"
SETS = {"samsum": "SAMSum", "dialogsum": "DialogSum"}


def examples(path: Path, limit: int | None) -> Examples:
    """Dialogues and their summaries."""
    rows = [(a.strip(), b.strip()) for _, (a, b) in Table(path).rows("dialogue", "summary")]
    rows = [row for row in rows if all(row)][:limit]
    return Examples(rows, [str(i) for i in range(len(rows))])


def train_summariser(task: Summarization, parts: dict[str, Examples], a: argparse.Namespace) -> float:
    """The adapter of the epoch with the lowest validation loss is put in place; that loss."""
    batches, valid = (task.batches(parts[part], batch_options(a)) for part in ("train", "validation"))
    steps = a.steps or int(a.epochs * len(batches))
    config = heedful.TrainConfig(
        steps=steps, lr=a.lr, schedule="linear", final=0.0, warmup=steps // 20, weight_decay=0.0,
        betas=(0.9, 0.999), dtype=a.dtype, seed=a.seed,
    )  # fmt: skip
    return learnt(task, batches, valid, config, time.perf_counter() + a.seconds)


def batch_options(a: argparse.Namespace) -> BatchOptions:
    return BatchOptions(a.length, a.batch, a.seed, truncate=True)


def measure_set(name: str, a: argparse.Namespace) -> dict[str, Any]:
    """Train, write, score; what was kept of an earlier call is taken."""
    place, folder = a.work / name, a.data / "summarisation" / name
    files = {part: folder / f"{part}.csv.gz" for part in ("train", "validation", "test")}
    parts = {part: examples(path, a.limit) for part, path in files.items()}
    truths = [row[1] for row in parts["test"].items]
    dialogues = list(dict.fromkeys(row[0] for row in parts["test"].items))
    kept = place / "written.json"
    if not kept.is_file():
        model = heedful.load(base_folder(BASE, a.base), dtype=torch.float32, device=a.device)
        task = summariser(model)
        torch.manual_seed(a.seed)
        heedful.lora(model, rank=a.rank)
        loss = train_summariser(task, parts, a)
        save_on_base(model.eval(), place, BASE)
        heedful.merge(model)
        model.to(torch.bfloat16 if a.device.startswith("cuda") else torch.float32).eval()
        rules = dict(beams=a.beams, max_tokens=a.most)
        texts = written(task, dialogues, batch_options(a), a.rows, **rules)
        found = dict(zip(dialogues, texts, strict=True))
        kept.write_text(json.dumps({"loss": loss, "written": found}, ensure_ascii=False), encoding="utf-8")
    summaries = json.loads(kept.read_text(encoding="utf-8"))
    scores = rouge(truths, [summaries["written"][row[0]] for row in parts["test"].items])
    lead = lead3([files["test"]])
    return {k: round(v, 2) for k, v in scores.items()} | {
        "lead3": lead["rougeL"],
        "loss": round(summaries["loss"], 3),
    }


def row(name: str, figure: dict[str, Any], a: argparse.Namespace) -> dict[str, Any]:
    """What the ledger keeps."""
    files = [f"summarisation/{name}/{part}.csv.gz" for part in ("train", "validation", "test")]
    again = ["python", "benchmarks/summaries.py", name, "--json", "--work", "{work}"]
    check = {
        "steps": [again], "read": "figure.rougeL", "figure": "rougeL", "tolerance": 1.0, "data": files,
        "device": "cuda",
    }  # fmt: skip
    return ledger.row(
        f"{SETS[name]} test: ROUGE (F1, no stemming) of {BASE} with LoRA of rank {a.rank}; lead3 is ROUGE-L "
        "of the first three turns",
        figure, f"HEED_DATA=… python benchmarks/summaries.py {name}", seed=a.seed, check=check,
        data_sha256=ledger.sha256(a.data / file for file in files),
    )  # fmt: skip


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SETS)}; both by default")
    parser.add_argument("--work", type=Path, default=Path("runs/summaries"))
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--json", action="store_true", help="print the figures, write nothing")
    parser.add_argument("--base", help="a folder with SmolLM2-135M-Instruct")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="train one model no longer than that")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of products")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=640)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--rows", type=int, default=96, help="dialogues that are summarised at once")
    parser.add_argument("--most", type=int, default=110, help="tokens of a summary")
    parser.add_argument("--steps", type=int, help="stop so early, to try it; writes nothing")
    parser.add_argument("--limit", type=int, help="only so many rows of each file, to try it; writes nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    if unknown := [name for name in a.names if name not in SETS]:
        parser.error(f"no set is called {unknown[0]!r}; there are {', '.join(SETS)}")
    a.data = data_folder()
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # it prepares a plan for every length that is met
    for name in a.names or SETS:
        figure = measure_set(name, a)
        print(json.dumps({"schema": "heed/1", "row": f"summaries-{name}", "figure": figure}), flush=True)
        if not (a.json or a.steps or a.limit):
            ledger.record_rows(a.results / f"summaries-{name}.json", [row(name, figure, a)])


if __name__ == "__main__":
    main()
