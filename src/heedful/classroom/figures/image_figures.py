"""image_attention: where in an image a model looks while it writes each token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.panels import matrix
from heedful.classroom.figures.token_labels import readable
from heedful.core.errors import InputError
from heedful.core.images import ImageProcessor, open_image
from heedful.interp.attention import attention
from heedful.interp.inputs import Input, reading
from heedful.models.base import Model, Seq2Seq
from heedful.nn.patches import PatchEmbedding

LARGEST = 384  # pixels of a side of the image that is kept in a figure


def image_attention(
    model: Model, image: Any, target: Any = None, *, layer: int | str = "mean", head: int | str = "mean",
    name: str = "",
) -> Figure:  # fmt: skip
    """Where in an image the model looks while it writes each token: cross-attention over the patches.

    `image` is a path, an array of pixels or one of Pillow's. Without a target the model writes its own.
    `layer` and `head` are numbers, or "mean" over all of them. `name` is what the title calls the model.
    """
    embed = model.embed if isinstance(model, Seq2Seq) else None
    if not isinstance(embed, PatchEmbedding):
        raise InputError(f"a {model.family.name} reads text, no image", hint="load a vision-encoder-decoder")
    given = reading(model, image, target)
    seen = attention(model, given, only=("decoder.*.cross",))
    every = torch.stack([pattern.values for pattern in seen.patterns.values()])  # (L, H, T, S)
    chosen = _choose(_choose(every, "layer", layer), "head", head).float().cpu()  # (T, S)
    written = readable(model, next(iter(seen.patterns.values())).queries)
    names, first = list(given.tokens), len(embed.first)
    off = float(chosen[:, :first].sum() / chosen.sum().clamp(min=1e-9))
    panel = matrix("weights", chosen, written, names, axes=("token written", "patch: row, column"))
    data = {
        "panels": [panel], "pixels": shown_pixels(model.image_processor, image, given), "first": first,
        "grid": list(embed.grid),
    }  # fmt: skip
    said = str(image) if isinstance(image, str | Path) else "image"
    said_of = lambda what, value: f"all {what}s" if value == "mean" else f"{what} {value}"
    which = f"{said_of('layer', layer)}, {said_of('head', head)}"
    name = name or model.family.name
    title = f"Where {name} looks while it writes: {which}"
    learned = " and ".join(names[:first])
    note = f"{100 * off:.0f} % of all weight goes to {learned}, which belongs to no place in the image."
    named = "" if name == model.family.name else f", name={name!r}"
    call = f"heedful.view.image_attention(model, {said!r}, layer={layer!r}, head={head!r}{named})"
    about = {"model": name, "image": said, "layer": layer, "head": head}
    return Figure("image_attention", title, about, data, note, call)


def _choose(values: torch.Tensor, axis: str, which: int | str) -> torch.Tensor:
    """One entry of the first axis, or the mean over it."""
    if which == "mean":
        return values.mean(0)
    if not isinstance(which, int) or not -len(values) <= which < len(values):
        raise InputError(f"{axis}={which!r} is unknown", hint=f"give 0 … {len(values) - 1}, or 'mean'")
    return values[which]


def shown_pixels(processor: ImageProcessor, image: Any, source: Input) -> np.ndarray:
    """The image (H, W, 3) in bytes: as it came where all of it is read, else as the model reads it."""
    if isinstance(image, torch.Tensor | Input) or processor.crop is not None:
        column = lambda each: torch.tensor(each)[:, None, None]
        values = source.ids[0].float().cpu() * column(processor.std) + column(processor.mean)
        values = (values / processor.rescale).clamp(0, 255).round().permute(1, 2, 0)  # (H, W, C)
        return values.expand(-1, -1, 3).to(torch.uint8).numpy()
    opened = open_image(image).convert("RGB")
    scale = min(1.0, LARGEST / max(opened.size))
    small = (
        opened if scale == 1 else opened.resize(tuple(max(1, round(side * scale)) for side in opened.size))
    )
    return np.asarray(small, dtype=np.uint8)
