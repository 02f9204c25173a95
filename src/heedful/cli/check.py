"""`heed check`: whether all ways of decoding agree. `heed quantize`: a model's weights in fewer bits."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.model_arguments import Device, Dtype, Model, load_model, load_stepper
from heedful.cli.output import Json, as_json
from heedful.core.progress import show_progress


def check_command(
    model: Model,
    tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens to compare.")] = 16,
    device: Device = "cpu",
    dtype: Dtype = None,
    json: Json = False,
) -> None:
    """Check that a text is continued alike alone, batched, padded, in chunks, uncached and on the fast path.

    Examples:

      heed check smollm2-135m-instruct
    """
    from heedful.decode.check import check

    stepper = load_stepper(model, device, dtype)
    with show_progress("decoding in every mode"):
        report = check(stepper.model, tokens=tokens, fast=stepper)
    if json:
        as_json(asdict(report) | {"ok": report.ok})
    else:
        print(report)
    if not report.ok:
        raise typer.Exit(1)


def quantize_command(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    scheme: Annotated[str, typer.Option(help="int8 or int4.")] = "int8",
    group: Annotated[int, typer.Option(help="Weights that share a scale in int4.")] = 32,
) -> None:
    """Save a model with its matrices in 8 or 4 bits. An adapter is merged into them first.

    Examples:

      heed quantize smollm2-135m-instruct ./smollm2-int8
    """
    loaded = load_model(model, "cpu", None)
    with show_progress("quantizing"):
        from heedful.decode.quantize import quantize
        from heedful.weights.adapters import merge
        from heedful.weights.saving import save

        merge(loaded)
        written = save(quantize(loaded, scheme, group=group), folder, quantized=True)
    print(written)
