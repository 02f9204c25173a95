"""An image once for each token that was written, tinted where the model looked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from heedful.classroom.figures.canvas import FAINT, SOFT, Box, Picture, Shape, TextLabel
from heedful.classroom.figures.charts import Drawing
from heedful.classroom.figures.token_labels import short

TINT = np.array([230.0, 85.0, 0.0])  # of the greatest weight; no weight leaves the image as it is
STRONGEST = 0.75  # how much of a pixel the tint may take
PAGE, GAP, HEADING = 660.0, 14.0, 23.0


def tint_image(pixels: np.ndarray, weights: np.ndarray, limit: float) -> np.ndarray:
    """The pixels (H, W, 3) under a tint that is as strong as the weight (R, C) of their patch."""
    (height, width, _), (rows, columns) = pixels.shape, weights.shape
    down = np.arange(height) * rows // height
    across = np.arange(width) * columns // width
    share = STRONGEST * np.clip(weights / (limit or 1.0), 0.0, 1.0)[down][:, across, None]  # (H, W, 1)
    return np.rint(pixels * (1 - share) + TINT * share).astype(np.uint8)


def draw_image_attention(data: Mapping[str, Any]) -> Drawing:
    """Draw the image as it is, and once for each token below its name."""
    pixels, panel = np.asarray(data["pixels"]), data["panels"][0]
    weights = np.asarray(panel["values"])[:, data["first"] :].reshape(len(panel["rows"]), *data["grid"])
    height, width, _ = pixels.shape
    scale = min(300 / width, 180 / height)
    wide, high = width * scale, height * scale
    columns = max(1, int((PAGE + GAP) // (wide + GAP)))
    tiles = [("the image", pixels)]
    limit = float(weights.max())
    names = [f"{i + 1}: {short(name)}" for i, name in enumerate(panel["rows"])]
    tiles += [(name, tint_image(pixels, one, limit)) for name, one in zip(names, weights, strict=True)]
    shapes: list[Shape] = []
    for i, (name, tile) in enumerate(tiles):
        x, y = 12 + (i % columns) * (wide + GAP), (i // columns) * (high + HEADING + GAP)
        shapes += [
            TextLabel(x, y + 8, name, 14.5, bold=i > 0, colour=SOFT if i == 0 else "ink"),
            Picture(x, y + HEADING, wide, high, tile),
            Box(x, y + HEADING, wide, high, stroke=FAINT),
        ]
    down = -(-len(tiles) // columns) * (high + HEADING + GAP)
    shapes.append(TextLabel(12, down + 6, f"no tint: weight 0; full tint: {limit:.2f}", 13, colour=SOFT))
    return shapes, min(len(tiles), columns) * (wide + GAP) + 12, down + 22
