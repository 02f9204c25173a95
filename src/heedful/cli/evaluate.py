"""`heed eval`: measure a model on files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli.options import options_from
from heedful.cli.output import Json, as_json, console, format_metric, print_pairs, print_warnings
from heedful.core.errors import HeedfulError
from heedful.core.files import write_text
from heedful.core.progress import show_progress
from heedful.tasks.requests import EvaluationRequest


class MetricTooLow(HeedfulError):
    """A metric below --fail-under."""

    code = "below"


@options_from(EvaluationRequest)
def eval_command(
    model: Annotated[
        str, typer.Argument(help="A model's name or folder, or a run, for its best checkpoint.")
    ],
    request: EvaluationRequest,
    task: Annotated[
        str | None,
        typer.Option(
            help="perplexity, classify, regress, similarity, rerank, tag, answer, translate, summarize, "
            "complete, chat or read; by default the model's head decides."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A=B", help="Further options: pair=COLUMN, encoding=…, beams=… …"),
    ] = None,
    device: Annotated[str, typer.Option(envvar="HEED_DEVICE", help="auto, cpu, cuda …")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the metrics to this file as JSON.")] = None,
    fail_under: Annotated[
        float | None, typer.Option(help="Exit with 1 if the first metric is below this.")
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
        from heedful.tasks.evaluate import default_task, evaluate, load_trained
        from heedful.train.recipes.recipes import parse_assignment

        loaded = load_trained(model, device)
    task = task or default_task(loaded, request.files)
    options = {one.path: one.value for one in map(parse_assignment, settings or [])}
    with print_warnings(), show_progress("evaluating"):
        found = evaluate(loaded, task, replace(request, options=options, quiet=json))
    first, metric = next((n, v) for n, v in found.items() if isinstance(v, int | float))  # not its interval
    below = fail_under is not None and metric < fail_under
    threshold = {} if fail_under is None else {"fail_under": fail_under, "ok": not below}
    result: dict[str, Any] = {"model": model, "task": task, "data": request.files} | found | threshold
    if out is not None:
        import json as writer

        write_text(out, writer.dumps({"schema": "heed/1"} | result, indent=2, ensure_ascii=False) + "\n")
    if json:
        as_json(result)
    else:
        example = found.pop("first", {})
        print_pairs("metric", "value", {n: format_metric(v) for n, v in found.items()}, right=True)
        if example:
            console().print("\nthe first row")
        for name, value in example.items():
            console().print(f"  {name:<10}{_one_line(value)}", markup=False, soft_wrap=True)
    if below and json:
        raise typer.Exit(1)  # the object has said so
    if below:
        raise MetricTooLow(f"{first} is {metric:.4f}, below --fail-under {fail_under}")


def _one_line(text: str, max_length: int = 120) -> str:
    """Return a text on one line, cut with … if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"
