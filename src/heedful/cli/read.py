"""`heed read`: the text in images, one line each."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli.output import Json, as_json, print_warnings
from heedful.cli.pipelines import Beams, Device, MaxTokens, Model, given_options, make_pipeline
from heedful.core.errors import InputError
from heedful.core.progress import show_progress

Images = Annotated[
    list[Path] | None, typer.Argument(help="Files of images: .png, .jpg …", show_default=False)
]
Figure = Annotated[
    Path | None,
    typer.Option(help="Write a page (.html, .svg …) of where the model looked for each character it wrote."),
]


def read_command(
    image: Images = None,
    draw: Annotated[str | None, typer.Option(help="Draw this text as an image, and read that.")] = None,
    model: Model = None,
    beams: Beams = None,
    max_tokens: MaxTokens = None,
    figure: Figure = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Read the text in images, or say what is in them, as the model was taught: a line for each image.

    Examples:

      heed read number.png

      heed read --draw 2026

      heed read page-1.png page-2.png --model ./trocr-base-printed

      heed read number.png --figure looked.html
    """
    if not image and draw is None:
        raise InputError("no image is given", hint="name a file: heed read number.png")
    if image and draw is not None:
        raise InputError("an image and --draw were given", hint="give one of them")
    if figure is not None and len(image or ()) > 1:
        raise InputError(
            f"--figure is of one image, and {len(image or ())} are given", hint="give one of them"
        )
    task, options = "image-to-text", given_options(num_beams=beams, max_new_tokens=max_tokens)
    with print_warnings(), show_progress("reading"):
        from heedful.core.images import draw_for_model

        name, pipe = make_pipeline(task, model, device)
        shown: list[Any] = list(image or ())
        if not shown:
            drawn, notes = draw_for_model(draw or "", pipe.model.image_processor, pipe.tokenizer)
            shown = [drawn]
            for note in notes:
                warnings.warn(note, stacklevel=1)
        results = pipe(shown, **options)
    for one, found in zip(shown, results, strict=True):
        if json:
            about = {"image": str(one)} if image else {"drawn": draw}
            as_json({"task": task, "model": name, **about, "results": found})
        else:
            print(found[0]["generated_text"])
    if figure is not None:
        from heedful.classroom import figures as view

        view.image_attention(pipe.model, shown[0], name=Path(name).name).save(figure)
