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
    model: Annotated[str, typer.Argument(help="A model's folder, or a run: its best checkpoint.")],
    files: Annotated[list[str], typer.Argument(metavar="DATA…", help="What to measure it on.")],
    task: Annotated[
        str | None,
        typer.Option(help="perplexity, classify, regress, tag, answer, translate, summarize; by its head."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 16,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens in a row or a window.")] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="By how much a window of perplexity moves.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Batches (perplexity: tokens) at most.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A=B", help="Columns, beams …")
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

      heed eval ./my-classifier test.tsv --task classify --set text=sentence --json
    """
    from heedful.runs.evaluate import Asked, trained, usual
    from heedful.runs.evaluate import evaluate as measure
    from heedful.runs.settings import assignment

    loaded = trained(model, device)
    options = {one.path: one.value for one in map(assignment, settings or [])}
    wanted = task or usual(loaded)
    found = measure(loaded, wanted, Asked(files, batch, length, stride, limit, options))
    told: dict[str, Any] = {"model": model, "task": wanted, "data": files} | found
    if out is not None:
        import json as text

        out.write_text(
            text.dumps({"schema": "heed/1"} | told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    if json:
        as_json(told)
    else:
        rows = table("metric", "value", right=("value",))
        for name, value in found.items():
            rows.add_row(name, f"{value:,}" if isinstance(value, int) else _short(value))
        console().print(rows)
    first, value = next(iter(found.items()))
    if fail_under is not None and value < fail_under:
        raise Below(f"{first} is {value:.4f}, below --fail-under {fail_under}")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return "–".join(f"{v:.4f}" for v in value) if isinstance(value, list) else str(value)
