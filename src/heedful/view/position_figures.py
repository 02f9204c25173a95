"""positions: what tells a model where a token stands, as that model has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import InputError
from heedful.inspect.mixing import order_note
from heedful.models.base import Model
from heedful.nn.context import Context, Mask
from heedful.nn.disentangled import Distances
from heedful.nn.position import ALiBi, BucketBias, Learned, Rotary, Sinusoidal
from heedful.view.figure import Figure

MOST = 2048  # positions; a map of all pairs has four million cells then


def panel(
    title: str, values: Tensor, rows: list[Any], columns: list[Any], row: str, column: str, *, note: str = "",
    drawing: str = "heat",
) -> dict[str, Any]:  # fmt: skip
    """One heat map (or its rows as lines) with its labels."""
    array = values.detach().float().cpu().numpy()
    return {
        "title": title, "note": note, "as": drawing, "rows": [str(r) for r in rows],
        "columns": [str(c) for c in columns], "rowTitle": row, "columnTitle": column,
        "values": np.ascontiguousarray(array), "signed": bool(array.min(initial=0.0) < 0),
    }  # fmt: skip


@torch.no_grad()
def positions(model: Model, length: int = 64) -> Figure:
    """Sinusoids, learned vectors, rotations, slopes or buckets: what the model has, for `length` positions.

    A vector for each position is drawn with the cosine between any two; a rotation with what it leaves of a
    dot product at each distance; a bias by head and distance.
    """
    if not isinstance(model, Model):
        raise InputError(f"positions are a model's; got a {type(model).__name__}")
    if not 2 <= length <= MOST:
        raise InputError(f"length={length}: 2 to {MOST} positions can be drawn")
    panels = [
        p
        for found in (
            _added_positions(model, length),
            _rotary_positions(model, length),
            _position_bias(model, length),
        )
        for p in found
    ]
    name = model.family.name
    if not panels:
        raise InputError(
            f"{name} has no positions: {order_note(model)}",
            hint="view.attention(model, text) shows what it carries along",
        )
    title = f"Positions of {name}: {panels[0]['title']}"
    learned = [t.position.context for t in model.tables.values() if isinstance(t.position, Learned)]
    drawn = min([length, *learned])
    return Figure(
        "positions", title, {"model": name, "positions": drawn}, {"panels": panels}, "",
        f"heedful.view.positions(model, length={length})",
    )  # fmt: skip


def _added_positions(model: Model, length: int) -> Iterator[dict[str, Any]]:
    """Vectors added to the embedding."""
    tables = model.tables
    seen: set[tuple[Any, ...]] = set()
    for side, embed in tables.items():
        place = embed.position
        if not isinstance(place, Sinusoidal | Learned):
            continue
        if isinstance(place, Sinusoidal):
            if (place.dim, place.base, place.layout) in seen:
                continue  # both sides of an encoder-decoder have the same one
            seen.add((place.dim, place.base, place.layout))
        T = min(length, place.context or length)
        vectors = place(torch.arange(T, device=model.device)).float()
        kind = "sinusoidal" if isinstance(place, Sinusoidal) else "learned"
        where = f" ({side})" if len(tables) > 1 else ""
        note = (
            f"p(t, 2i) = sin(t / {place.base:g}^(2i/D))"
            if isinstance(place, Sinusoidal)
            else "a row of a table"
        )
        at, dims = list(range(T)), list(range(vectors.shape[1]))
        yield panel(f"{kind}{where}", vectors, at, dims, "position", "dimension", note=note)
        unit = F.normalize(vectors, dim=-1)
        yield panel(f"cosine between positions{where}", unit @ unit.T, at, at, "position", "position")


def _rotary_positions(model: Model, length: int) -> Iterator[dict[str, Any]]:
    """Rotations of queries and keys; layers that turn alike are drawn once."""
    seen: set[tuple[Any, ...]] = set()
    for module in model.modules():
        if not isinstance(module, Rotary) or (module.dim, module.base, module.scaling) in seen:
            continue
        seen.add((module.dim, module.base, module.scaling))
        pos = torch.arange(length, device=model.device)[None]
        cos, _ = module.table(pos, torch.tensor([[length]], device=model.device))
        cos = cos[0, 0]  # (T, K/2)
        at, pairs = list(range(length)), list(range(cos.shape[1]))
        how = f"f_i = {module.base:g}^(−2i/{module.dim})"
        how += "" if module.scaling is None else f", changed by {type(module.scaling).__name__}"
        note = f"the pair (i, i + {module.dim // 2}) of q and k is turned by t · f_i, {how}"
        yield panel("rotary: cos of the angle", cos, at, pairs, "position", "pair", note=note)
        mean = cos.mean(1)[None]
        said = "mean over pairs of cos(d · f_i): what is left of q·k for q = k"
        yield panel(
            "rotary: by distance", mean, ["mean cos"], at, "mean cos", "distance", note=said, drawing="lines"
        )


def _position_bias(model: Model, length: int) -> Iterator[dict[str, Any]]:
    """What is added to the scores, by head and distance."""
    for name, module in model.named_modules():
        if isinstance(module, ALiBi):
            slopes = module.slopes(model.device)
            far = torch.arange(length, device=model.device)
            said = "slopes " + " ".join(f"{m:.4g}" for m in slopes.tolist())
            heads = list(range(len(slopes)))
            yield panel(
                "ALiBi: −m_h · distance",
                -slopes[:, None] * far,
                heads,
                far.tolist(),
                "head",
                "distance",
                note=said,
            )
        elif isinstance(module, BucketBias):
            far = torch.arange(1 - length, 1 if module.causal else length, device=model.device)
            bias = module.table(module.bucket(far)).T  # (H, distances)
            said = f"b_h(i, j) = table[bucket(j − i)], {module.buckets} buckets up to distance {module.far}"
            yield panel(
                f"bias of {name}",
                bias,
                list(range(len(bias))),
                far.tolist(),
                "head",
                "key − query",
                note=said,
            )
        elif isinstance(module, Distances):
            pos = torch.arange(length, device=model.device)[None]
            vectors, rows = module(Context(pos, pos, Mask()))
            table, rows = vectors[0], rows.reshape(length, -1)
            apart = list(range(1 - length, length))
            which = torch.cat((rows[0, 1:].flip(0), rows[:, 0]))
            said = "the vector that stands for each distance query − key; all layers share them"
            dims = list(range(table.shape[1]))
            yield panel(
                "vectors of distances", table[which], apart, dims, "query − key", "dimension", note=said
            )
