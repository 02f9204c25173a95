"""`heed finetune`: fine-tune a trained model on a file."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.commands.output import Json, as_json, console, format_metric, table

if TYPE_CHECKING:
    from heedful.runs.finetune import FinetuneResult

KINDS = "classify, tag, answer, translate, summarize, similarity or complete"


def finetune_command(
    model: Annotated[
        str, typer.Argument(help="A trained model: its name (heed ls), its folder, or a hub id.")
    ],
    file: Annotated[
        str, typer.Argument(help="The examples: .csv, .tsv, .jsonl, .conll, SQuAD .json or .txt.")
    ],
    task: Annotated[str | None, typer.Option(help=f"{KINDS}. By default it follows from the file.")] = None,
    text: Annotated[
        str | None, typer.Option(help="The column with the text (source, context, prompt).")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column with the answer (label, score, target, summary).")
    ] = None,
    pair: Annotated[str | None, typer.Option(help="The column with a second text, or the question.")] = None,
    valid: Annotated[
        str | None, typer.Option(help="Validate on this file; by default a part is held out.")
    ] = None,
    lora: Annotated[
        bool | None,
        typer.Option(
            "--lora/--full", help="Train a small adapter or all weights; by default the size decides."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="The folder to write. [default: FILE-MODEL]")
    ] = None,
    epochs: Annotated[float | None, typer.Option(min=0.0, help="Passes over the file.")] = None,
    lr: Annotated[float | None, typer.Option(envvar="HEED_LR", help="The highest learning rate.")] = None,
    batch: Annotated[int | None, typer.Option(envvar="HEED_BATCH", min=1, help="Rows in a step.")] = None,
    length: Annotated[
        int | None, typer.Option(envvar="HEED_LENGTH", min=8, help="Cut texts after this many tokens.")
    ] = None,
    device: Annotated[str, typer.Option(envvar="HEED_DEVICE", help="auto, cpu, cuda, cuda:1 …")] = "auto",
    dtype: Annotated[
        str | None,
        typer.Option(envvar="HEED_DTYPE", help="float32 or bfloat16. [default: bfloat16 on a GPU]"),
    ] = None,
    encoding: Annotated[str, typer.Option(help="Encoding of the file: utf-8, cp1252, utf-16 …")] = "utf-8",
    seed: Annotated[
        int, typer.Option(envvar="HEED_SEED", min=0, help="Seed of the split, the head and the order.")
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    json: Json = False,
) -> None:
    """Fine-tune a trained model on a file. The last line printed is the Python that uses it.

    First the file is inspected: its columns, labels and lengths, and rows that cannot be used. A part of it
    is held out unless --valid names another file; the weights that score best there are saved. With up to
    32 rows per class, a linear head on the frozen model is fitted and cross-validated instead.

    Examples:

      heed finetune all-minilm-l6-v2 reviews.csv

      heed finetune all-minilm-l6-v2 mail.tsv --task classify --text body --label folder --out mail-sorter

      heed finetune all-minilm-l6-v2 names.conll --valid names-dev.conll

      heed finetune smollm2-135m-instruct talks.jsonl --task summarize --lora
    """
    from heedful.runs.finetune import FinetuneRequest, finetune

    request = FinetuneRequest(
        model, file, task, text, label, pair, valid, lora, out, epochs, lr, batch, length, seed, device,
        dtype, encoding,
    )  # fmt: skip
    result = finetune(request, quiet=quiet)
    if json:
        return as_json(result_object(result))
    measured = f"on {result.valid_rows:,} held out" if valid is None else f"on {valid}"
    rows = table("score", f"{result.folds}-fold cross-validation" if result.folds else measured)
    for name, value in result.scores.items():
        rows.add_row(name, format_metric(value))
    console().print(rows)
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
