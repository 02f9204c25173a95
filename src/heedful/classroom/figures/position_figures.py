"""positions: what tells a model where a token stands, as that model has it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from heedful.classroom.figures.figure import Figure
from heedful.classroom.figures.panels import Panel, lines, matrix
from heedful.core.errors import InputError
from heedful.interp.mixing import order_note
from heedful.interp.position_parts import position_parts
from heedful.models.base import Model
from heedful.nn.context import Context, Mask
from heedful.nn.disentangled import Distances
from heedful.nn.position import ALiBi, BucketBias, Learned, Rotary, Sinusoidal

MAX_POSITIONS = 2048  # a map of all pairs has four million cells then


@torch.no_grad()
def positions(model: Model, length: int = 64) -> Figure:
    """Sinusoids, learned vectors, rotations, slopes or buckets: what the model has, for `length` positions.

    A vector for each position is drawn with the cosine between any two; a rotation with what it leaves of a
    dot product at each distance; a bias by head and distance.
    """
    if not isinstance(model, Model):
        raise InputError(f"positions are a model's; got a {type(model).__name__}")
    if not 2 <= length <= MAX_POSITIONS:
        raise InputError(f"length={length}: 2 to {MAX_POSITIONS} positions can be drawn")
    name, parts = model.family.name, position_parts(model)
    panels = [panel for where, part in parts.items() for panel in part_panels(model, where, part, length)]
    if not panels:
        raise InputError(
            f"{name} has no positions: {order_note(model)}",
            hint="view.attention(model, text) shows what it carries along",
        )
    drawn = min([length, *(part.context for part in parts.values() if isinstance(part, Learned))])
    return Figure(
        "positions", f"Positions of {name}: {panels[0]['title']}", {"model": name, "positions": drawn},
        {"panels": panels}, "", f"heedful.view.positions(model, length={length})",
    )  # fmt: skip


def part_panels(model: Model, where: str, part: nn.Module, length: int) -> Iterator[Panel]:
    """Yield the panels of one part that tells positions."""
    at = torch.arange(length, device=model.device)
    match part:
        case Sinusoidal() | Learned():
            vectors = part(at[: part.context or length]).float()
            side = f" ({where})" if len(model.tables) > 1 else ""
            kind, note = "learned", "a row of a table"
            if isinstance(part, Sinusoidal):
                kind, note = "sinusoidal", f"p(t, 2i) = sin(t / {part.base:g}^(2i/D))"
            unit = F.normalize(vectors, dim=-1)
            yield matrix(f"{kind}{side}", vectors, axes=("position", "dimension"), note=note)
            yield matrix(f"cosine between positions{side}", unit @ unit.T, axes=("position", "position"))
        case Rotary():
            cos = part.table(at[None], torch.tensor([[length]], device=model.device))[0][0, 0]  # (T, K/2)
            formula = f"f_i = {part.base:g}^(−2i/{part.dim})"
            formula += "" if part.scaling is None else f", changed by {type(part.scaling).__name__}"
            note = f"the pair (i, i + {part.dim // 2}) of q and k is turned by t · f_i, {formula}"
            yield matrix("rotary: cos of the angle", cos, axes=("position", "pair"), note=note)
            note = "mean over pairs of cos(d · f_i): what is left of q·k for q = k"
            axes = ("mean cos", "distance")
            yield lines("rotary: by distance", cos.mean(1)[None], ["mean cos"], axes=axes, note=note)
        case ALiBi():
            slopes = part.slopes(model.device)
            note = "slopes " + " ".join(f"{m:.4g}" for m in slopes.tolist())
            yield matrix(
                "ALiBi: −m_h · distance", -slopes[:, None] * at, axes=("head", "distance"), note=note
            )
        case BucketBias():
            far = torch.arange(1 - length, 1 if part.causal else length, device=model.device)
            note = f"b_h(i, j) = table[bucket(j − i)], {part.buckets} buckets up to distance {part.far}"
            bias, axes = part.table(part.bucket(far)).T, ("head", "key − query")  # (H, distances)
            yield matrix(f"bias of {where}", bias, columns=far.tolist(), axes=axes, note=note)
        case Distances():
            vectors, rows = part(Context(at[None], at[None], Mask()))
            rows = rows.reshape(length, -1)
            which = torch.cat((rows[0, 1:].flip(0), rows[:, 0]))
            apart, axes = list(range(1 - length, length)), ("query − key", "dimension")
            note = "the vector that stands for each distance query − key; all layers share them"
            yield matrix("vectors of distances", vectors[0][which], apart, axes=axes, note=note)
