"""`heed finetune`, `heed eval` and `heed predict`: teach a model by a file, measure it, use it on files."""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli.models import Device
from heedful.cli.terminal import (
    Json,
    Quiet,
    align_columns,
    as_json,
    console,
    format_metric,
    print_pairs,
    print_warnings,
)
from heedful.core.checks import Argument, Option
from heedful.core.errors import HeedfulError
from heedful.core.files import write_text
from heedful.core.progress import print_above, show_progress
from heedful.tasks.finetune.request import EvaluationRequest, FinetuneRequest, PredictionRequest

# What follows `heed` to use what was learnt, by the task.
USED_BY = {
    "classify": 'classify "…"', "tag": 'tag "…"', "answer": 'answer FILE "…"', "translate": 'translate "…"',
    "summarize": "summarize FILE", "similarity": 'similar "…" FILE', "complete": 'complete "…"',
    "rerank": 'rerank "…" FILE', "regress": "predict", "read": "read IMAGE", "chat": "chat",
    "classify-images": "classify IMAGE",
}  # fmt: skip


def finetune_command(request: FinetuneRequest, quiet: Quiet = False, json: Json = False) -> None:
    """Fine-tune a trained model on a file. The last line printed is Python code that uses the new model.

    The command first reports the columns, labels and lengths of the file, and rows that it cannot use. It
    holds out a part of the file, unless --valid names another one, and saves the weights that score best
    there. With 32 rows per class or fewer, it tunes sentence vectors on pairs of rows, fits a linear
    classifier on them, and measures it by cross-validation.

    Examples:
      heed finetune all-minilm-l6-v2 reviews.csv
      heed finetune all-minilm-l6-v2 mail.tsv --task classify --text body --label folder --out mail-sorter
      heed finetune all-minilm-l6-v2 names.conll --valid names-dev.conll
      heed finetune smollm2-135m-instruct talks.jsonl --task summarize --lora
      heed finetune ./vit-base photos --out sorter
    """
    with show_progress("starting", quiet=quiet):
        from heedful.tasks.finetune import finetune
    result = finetune(request, quiet=quiet)
    if json:
        training = result.training
        return as_json({
            "task": result.task, "model": result.base, "data": result.found, "train_rows": result.train_rows,
            "valid_rows": result.valid_rows, "folds": result.folds, "settings": result.settings,
            "parameters": result.parameters, "learning": result.learning, "steps": training.steps,
            "best_step": training.best_step, "before": training.before,
            "stopped_early": training.stopped, "seconds": round(training.seconds, 2),
            "scores": result.scores, "history": asdict(training)["history"],
            "checkpoint": str(result.folder), "use": result.use,
        })  # fmt: skip
    measured = f"on {result.valid_rows:,} held out" if request.valid is None else f"on {request.valid}"
    measured = f"{result.folds}-fold cross-validation" if result.folds else measured
    print_pairs("score", measured, {name: format_metric(value) for name, value in result.scores.items()})
    if result.task in USED_BY and not quiet:
        folder = shlex.quote(str(result.folder))
        model = folder if result.task == "chat" else f"--model {folder}"
        model = f"{folder} FILE --out OUT" if result.task == "regress" else model
        pairs = result.task == "classify" and "pair" in result.found["read_as"]
        command = "classify FILE.csv" if pairs else USED_BY[result.task]
        print_above(f"use the new model with: heed {command} {model}")
    print(result.use)


def predict_command(
    request: PredictionRequest,
    workers: Annotated[
        int | None,
        Option("Predict in N processes of Ray, and write Parquet files to the folder OUT.", minimum=1),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Predict every row of a table, or every image of a folder, and write the rows with their predictions.

    The command reads the columns that the model learnt from; --text and --pair name others. It adds columns:
    label and score, spans, an answer, a generated text, or a vector. Rows keep their order. A table can have
    any size. If the command is killed, run it again: it continues where it stopped.

    Examples:
      heed predict ./mail-sorter inbox.csv --out sorted.csv
      heed predict ./my-tagger january.jsonl february.jsonl --out names.jsonl
      heed predict all-minilm-l6-v2 texts.csv --text body --out vectors.parquet
      heed predict ./mail-sorter part-*.parquet --out sorted --workers 4
    """
    if workers is not None:
        from heedful.tasks.prediction import predict_on_ray

        names = ("task", "text", "pair", "batch", "length", "max_tokens", "device")
        options = {name: value for name in names if (value := getattr(request, name)) is not None}
        folder = predict_on_ray(request.model, request.files, request.out, workers=workers, **options)
        facts = {"model": request.model, "data": request.files, "path": str(folder)}
        return as_json(facts) if json else print(folder)
    with show_progress("predicting", quiet=quiet):
        from heedful.tasks.prediction import predict_files

        out, rows = predict_files(request)
    if json:
        return as_json({"model": request.model, "data": request.files, "rows": rows, "path": str(out)})
    print(out)


# `heed eval`: measure a model on files.


MAX_CONFUSION_LABELS = 12  # of a whole table; of more, as many confusions are listed


class MetricTooLow(HeedfulError):
    """A metric that is worse than --fail-under."""

    code = "below"


def eval_command(
    model: Annotated[
        str, Argument("A model's name or folder, or a run, of which the best checkpoint is used.")
    ],
    request: EvaluationRequest,
    task: Annotated[
        str | None,
        Option(
            "Measure perplexity, classify, regress, similarity, rerank, tag, answer, translate, "
            "summarize, complete, chat, read or classify-images; by default the model's head decides."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option("Set a further option of the task, such as beams=4.", ("--set",), metavar="A=B"),
    ] = None,
    device: Device = "auto",
    out: Annotated[Path | None, Option("Write the metrics to this file as JSON.")] = None,
    fail_under: Annotated[
        float | None,
        Option("Exit with 1 if the metric is worse than this: below it, or above it if lower is better."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure a model on files.

    Examples:
      heed eval runs/gpt2 held-out.txt
      heed eval ./my-classifier test.tsv --text sentence --json
      heed eval translate-en-de test.en test.de --limit 5
      heed eval smollm2-135m-instruct test.csv --task summarize --text dialogue --label summary
    """
    with show_progress(f"loading {model}"):
        from heedful.tasks.evaluate import deciding_metric, default_task, evaluate
        from heedful.tasks.task import load_trained
        from heedful.train.recipes.recipes import parse_assignment

        loaded = load_trained(model, device)
    task = task or default_task(loaded, request.files)
    options = {one.path: one.value for one in map(parse_assignment, settings or [])}
    with print_warnings(), show_progress("evaluating"):
        metrics = evaluate(loaded, task, replace(request, options=options))
    first, highest = deciding_metric(task, metrics)
    metric = metrics[first]
    worse = fail_under is not None and (metric < fail_under if highest else metric > fail_under)
    threshold = {} if fail_under is None else {"fail_under": fail_under, "ok": not worse}
    result: dict[str, Any] = {"model": model, "task": task, "data": request.files} | metrics | threshold
    if out is not None:
        import json as writer

        write_text(out, writer.dumps({"schema": "heed/1"} | result, indent=2, ensure_ascii=False) + "\n")
    if json:
        as_json(result)
    else:
        example, confusion = metrics.pop("first", {}), metrics.pop("confusion", {})
        if unused := metrics.pop("unused_columns", None):
            print_above(f"columns that are not used: {', '.join(map(repr, unused))}")
        for note in metrics.pop("left_out") if isinstance(metrics.get("left_out"), list) else ():
            print_above(f"note: {note}")
        print_pairs("metric", "value", {n: format_metric(v) for n, v in metrics.items()}, right=True)
        print_confusion(confusion)
        if example:
            console().print("\nthe first row")
        for name, value in example.items():
            line = textwrap.shorten(value, 120, placeholder=" …")
            console().print(f"  {name:<10}{line}", markup=False, soft_wrap=True)
    if worse and json:
        raise typer.Exit(1)  # the object has said so
    if worse:
        raise MetricTooLow(
            f"{first} is {metric:.4f}, {'below' if highest else 'above'} --fail-under {fail_under}"
        )


def print_confusion(confusion: dict[str, dict[str, int]]) -> None:
    """Print how often each label was predicted as which, or the worst confusions if there are many labels."""
    labels = list(dict.fromkeys([*confusion, *(guess for row in confusion.values() for guess in row)]))
    if not labels:
        return
    if len(labels) <= MAX_CONFUSION_LABELS:
        title = "confusion: a row per true label, a column per prediction"
        counts = lambda label: [str(confusion.get(label, {}).get(guess, 0)) for guess in labels]
        rows = [("", *labels), *((label, *counts(label)) for label in labels)]
    else:
        title = "the most frequent confusions"
        wrong = [(n, a, b) for a, row in confusion.items() for b, n in row.items() if a != b]
        worst = sorted(wrong, key=lambda one: -one[0])[:MAX_CONFUSION_LABELS]
        rows = [("true", "predicted", "rows"), *((a, b, str(n)) for n, a, b in worst)]
    console().print(f"\n{title}\n{align_columns(rows)}", markup=False, soft_wrap=True)
