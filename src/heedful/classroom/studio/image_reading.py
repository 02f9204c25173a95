"""Reading an image for the page Play: one that a visitor drew or opened, or a text that is drawn as one."""

from __future__ import annotations

import base64
import binascii
import warnings
from collections.abc import Mapping
from typing import Any

from heedful.classroom import figures as view
from heedful.classroom.studio import snippets, task_runner
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.tokens import tidy
from heedful.core.errors import InputError
from heedful.core.images import draw_for_model, open_image
from heedful.models.base import Model

TASK = "image-to-text"


def read_image(loaded_model: LoadedModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text that a model reads in an image, and the figure of where it looked."""
    model, pipe = loaded_model.sequence, task_runner.open_pipeline(loaded_model, TASK)
    image, code, notes = input_image(model, inputs)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = pipe(image)
    figure = view.image_attention(model, image, name=loaded_model.id)
    told = notes + [str(w.message) for w in said if issubclass(w.category, UserWarning)]
    imports = "import heedful" + (
        "\nfrom heedful.core.images import draw_text" if "draw_text" in code else ""
    )
    lines = f"image = {code}\nprint(heedful.pipeline({TASK!r}, model=model)(image))"
    saved = f"image = {code}\nheedful.view.image_attention(model, image).save('image_attention.html')"
    drawn = figure.to_dict() | {"python": snippets.script(loaded_model.entry, saved, imports)}
    return {
        "result": result, "figure": drawn, "warnings": told,
        "python": snippets.script(loaded_model.entry, lines, imports),
    }  # fmt: skip


def input_image(model: Model, inputs: Mapping[str, Any]) -> tuple[Any, str, list[str]]:
    """Return a Pillow image of what was given, the Python that names it, and notes on it.

    `image` is a file in base64, as a data address (data:image/png;base64,…); else `text` is drawn.
    """
    size, given = model.image_processor, inputs.get("image")
    if given:
        head, comma, body = given.partition(",") if isinstance(given, str) else ("", "", "")
        if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
            raise InputError("an image is given as data:image/png;base64,…", hint="open the file in the page")
        try:
            content = base64.b64decode(body, validate=True)
        except binascii.Error:
            raise InputError("the image's base64 is broken", hint="open the file in the page") from None
        return open_image(content), "'image.png'  # the file of your image", []
    text = tidy(str(inputs["text"]))[0]
    image, notes = draw_for_model(text, size, model.tokenizer)
    return image, f"draw_text({text!r}, {size.height}, {size.width})", notes
