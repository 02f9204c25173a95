"""`heed check`: does a model write the same in every mode? `heed quantize`: its weights in fewer bits."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from heedful.commands.generate import Device, Dtype, Model, load_stepper
from heedful.commands.output import Json, as_json


def check(
    model: Model,
    tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens to compare.")] = 16,
    device: Device = "cpu",
    dtype: Dtype = None,
    json: Json = False,
) -> None:
    """One prompt alone, in a batch padded left and right, in chunks, uncached, and by the fast path.

    Examples:

      heed check smollm2-135m-instruct
    """
    from heedful.decode.check import check as checked

    stepper = load_stepper(model, device, dtype)
    report = checked(stepper.model, tokens=tokens, fast=stepper)
    if json:
        as_json(asdict(report) | {"ok": report.ok})
    else:
        print(report)
    if not report.ok:
        raise typer.Exit(1)


def quantize(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Where the smaller model goes.")],
    scheme: Annotated[str, typer.Option(help="int8 or int4.")] = "int8",
    group: Annotated[int, typer.Option(help="Numbers that share a scale in int4.")] = 32,
) -> None:
    """A model's matrices in 8 or 4 bits, saved. What an adapter learned is added to them first.

    Examples:

      heed quantize smollm2-135m-instruct ./smollm2-int8
    """
    from heedful.adapters import merge
    from heedful.decode.quantize import quantize as quantised
    from heedful.loading import load, save
    from heedful.train.checkpoint import of_run

    whole = load(of_run(model))
    merge(whole)
    small = quantised(whole, scheme, group=group)
    print(save(small, folder))
