"""`heed export`: a model in the files of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.model_arguments import Model, load_model
from heedful.core.errors import InputError
from heedful.core.progress import show_progress

FORMATS = ("hf", "gguf", "onnx")


def export_command(
    model: Model,
    out: Annotated[
        Path | None, typer.Argument(help="The file or folder to write; named after the model by default.")
    ] = None,
    format: Annotated[
        str, typer.Option(help="gguf (llama.cpp), onnx (encoders) or hf (a folder for transformers).")
    ] = "gguf",
    quantize: Annotated[str, typer.Option(help="Of gguf: f32, f16, q8_0, q4_0 or q4_k.")] = "f16",
    tokenizer: Annotated[bool, typer.Option(help="Whether a gguf holds the tokenizer too.")] = True,
) -> None:
    """Write a model for other programs. An adapter is merged first, 8-bit matrices are widened.

    Examples:

      heed export smollm2-135m-instruct --format gguf --quantize q4_k

      heed export runs/gpt2 ./gpt2 --format hf
    """
    if format not in FORMATS:
        raise InputError(f"format={format!r} is unknown", hint=f"choose {', '.join(FORMATS)}")
    endings = {"hf": "", "gguf": f"-{quantize}.gguf", "onnx": ".onnx"}
    name = Path(model).name.removesuffix(".gguf")
    where = out or Path(f"{name}{endings[format]}")
    if out is None and format == "hf":
        raise InputError("a folder to write in is missing", hint=f"heed export {model} FOLDER --format hf")
    loaded = load_model(model, "cpu", None)
    with show_progress(f"writing {where}"):
        from heedful.weights.adapters import merge
        from heedful.weights.exporting import export_gguf, export_onnx
        from heedful.weights.saving import save

        merge(loaded)
        if format == "hf":
            written = save(loaded, where)
        elif format == "onnx":
            written = export_onnx(loaded, where)
        else:
            written = export_gguf(loaded, where, quantize, tokenizer=tokenizer)
    print(written)
