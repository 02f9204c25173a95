"""`heed finetune`: fine-tune a trained model on a file."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli.options import options_from
from heedful.cli.output import Json, as_json, format_metric, print_pairs
from heedful.core.progress import print_above, show_progress
from heedful.tasks.requests import FinetuneRequest

if TYPE_CHECKING:
    from heedful.tasks.finetune import FinetuneResult

# What follows `heed` to use what was learnt, by the task.
USED_BY = {
    "classify": 'classify "…"', "tag": 'tag "…"', "answer": 'answer FILE "…"', "translate": 'translate "…"',
    "summarize": "summarize FILE", "similarity": 'similar "…" FILE', "complete": 'complete "…"',
    "rerank": 'rerank "…" FILE', "read": "read IMAGE", "chat": "chat",
}  # fmt: skip


@options_from(FinetuneRequest)
def finetune_command(
    request: FinetuneRequest,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    json: Json = False,
) -> None:
    """Fine-tune a trained model on a file. The last line printed is the Python that uses it.

    First the file is inspected: its columns, labels and lengths, and rows that cannot be used. A part of it
    is held out unless --valid names another file; the weights that score best there are saved. With up to
    32 rows per class, sentence vectors are tuned on pairs and a linear head is fitted, cross-validated.

    Examples:

      heed finetune all-minilm-l6-v2 reviews.csv

      heed finetune all-minilm-l6-v2 mail.tsv --task classify --text body --label folder --out mail-sorter

      heed finetune all-minilm-l6-v2 names.conll --valid names-dev.conll

      heed finetune smollm2-135m-instruct talks.jsonl --task summarize --lora
    """
    with show_progress("starting", quiet=quiet):
        from heedful.tasks.finetune import finetune
    result = finetune(request, quiet=quiet)
    if json:
        return as_json(result_object(result))
    measured = f"on {result.valid_rows:,} held out" if request.valid is None else f"on {request.valid}"
    measured = f"{result.folds}-fold cross-validation" if result.folds else measured
    print_pairs("score", measured, {name: format_metric(value) for name, value in result.scores.items()})
    if result.task in USED_BY and not quiet:
        folder = shlex.quote(str(result.folder))
        model = folder if result.task == "chat" else f"--model {folder}"
        pairs = result.task == "classify" and "pair" in result.found["read_as"]
        print_above(f"use it: heed {'classify FILE.csv' if pairs else USED_BY[result.task]} {model}")
    print(result.use)


def result_object(result: FinetuneResult) -> dict[str, Any]:
    """Return the result as one JSON object."""
    training = result.training
    return {
        "task": result.task, "model": result.model, "data": result.found, "train_rows": result.train_rows,
        "valid_rows": result.valid_rows, "folds": result.folds, "settings": result.settings,
        "parameters": result.parameters, "learning": result.learning, "steps": training.steps,
        "best_step": training.best_step, "before": training.before,
        "stopped_early": training.stopped, "seconds": round(training.seconds, 2), "scores": result.scores,
        "history": asdict(training)["history"], "checkpoint": str(result.folder), "use": result.use,
    }  # fmt: skip
