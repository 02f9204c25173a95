"""`heed eval`: a trained model, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.commands.output import Json, as_json, console, table
from heedful.errors import HeedfulError


class Below(HeedfulError):
    """A metric that did not reach what was asked of it."""


def evaluate(
    model: Annotated[str, typer.Argument(help="A model's name or folder, or a run: its best checkpoint.")],
    files: Annotated[
        list[str],
        typer.Argument(metavar="DATA…", help="Text, a table, or two files of lines that belong together."),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            help="perplexity, classify, regress, similarity, tag, answer, translate, summarize; by its head."
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column with the text: a name, or a number.")] = None,
    label: Annotated[str | None, typer.Option(help="The column with what is expected.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 16,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens in a row or a window; written at most.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="By how much a window of perplexity moves.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Batches (perplexity: tokens) at most.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A=B", help="Other columns (pair=…), encoding=…, beams=… …"),
    ] = None,
    device: Annotated[str, typer.Option(envvar="HEED_DEVICE", help="auto, cpu, cuda …")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the metrics to this file as JSON.")] = None,
    fail_under: Annotated[
        float | None, typer.Option(help="Exit 1 if the first metric is below this.")
    ] = None,
    json: Json = False,
) -> None:
    """The metrics of a model on files.

    Examples:

      heed eval runs/gpt2 held-out.txt

      heed eval ./my-classifier test.tsv --text sentence --json

      heed eval translate-en-de test.en test.de --limit 5

      heed eval smollm2-135m-instruct test.csv --task summarize --text dialogue --label summary
    """
    from heedful.runs.evaluate import Asked, trained, usual
    from heedful.runs.evaluate import evaluate as measure
    from heedful.runs.settings import assignment

    loaded = trained(model, device)
    options = {one.path: one.value for one in map(assignment, settings or [])}
    wanted = task or usual(loaded)
    expected = "score" if wanted == "regress" else "label"  # what the builder of its data calls it
    named = {name: value for name, value in (("text", text), (expected, label)) if value is not None}
    options |= {name: int(value) if value.isdigit() else value for name, value in named.items()}
    asked = Asked(files, batch, length, stride, limit, options, quiet=json)
    found = measure(loaded, wanted, asked)
    first, metric = next((n, v) for n, v in found.items() if isinstance(v, int | float))  # not its interval
    below = fail_under is not None and metric < fail_under
    asking = {} if fail_under is None else {"fail_under": fail_under, "ok": not below}
    told: dict[str, Any] = {"model": model, "task": wanted, "data": files} | found | asking
    if out is not None:
        import json as writer

        out.write_text(
            writer.dumps({"schema": "heed/1"} | told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    if json:
        as_json(told)
    else:
        rows = table("metric", "value", right=("value",))
        example = found.pop("first", {})
        for name, value in found.items():
            rows.add_row(name, f"{value:,}" if isinstance(value, int) else _short(value))
        console().print(rows)
        if example:
            console().print("\nthe first row")
        for name, value in example.items():
            console().print(f"  {name:<10}{_line(value)}", markup=False, soft_wrap=True)
    if below and json:
        raise typer.Exit(1)  # the object says it: there is one
    if below:
        raise Below(f"{first} is {metric:.4f}, below --fail-under {fail_under}")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list) and all(isinstance(v, float) for v in value):
        return "–".join(f"{v:.4f}" for v in value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _line(text: str, most: int = 120) -> str:
    """A text on one line, its end left out if it is long."""
    whole = " ".join(text.split())
    return whole if len(whole) <= most else whole[: most - 1] + "…"
