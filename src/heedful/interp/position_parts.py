"""How a model knows where a token stands: the parts that say so, as tables of numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.interp.mixing import order_note, parts_of, position_type
from heedful.models.base import Model
from heedful.nn.attention import Attention
from heedful.nn.context import Context, Mask
from heedful.nn.disentangled import Distances
from heedful.nn.position import ALiBi, BucketBias, Learned, Rotary, Sinusoidal
from heedful.nn.rope import frequencies

FORMULAS = {
    "sinusoidal": "p(t, 2i) = sin(t / base^(2i/D)), p(t, 2i+1) = cos(t / base^(2i/D))",
    "learned": "p(t) = table[t]",
    "rotary": "q_t → R_t q_t, k_s → R_s k_s; pair i turns by t · base^(−2i/K)",
    "alibi": "b_h(i, j) = −m_h (i − j)",
    "buckets": "b_h(i, j) = table[bucket(j − i), h]",
}


def position_parts(model: Model) -> dict[str, nn.Module]:
    """Map where it stands to each part that tells positions; of parts that compute alike the first.

    A table that is added to the embedding stands under its side (tokens, target), others under their path.
    """
    added = {side: embed.position for side, embed in model.tables.items() if embed.position is not None}
    kinds = Rotary | ALiBi | BucketBias | Distances
    scored = {name: part for name, part in model.named_modules() if isinstance(part, kinds)}
    found: dict[str, nn.Module] = {}
    known: set[tuple[Any, ...]] = set()
    for where, part in (added | scored).items():
        alike: tuple[Any, ...] = (id(part),)
        if isinstance(part, Sinusoidal):
            alike = (part.dim, part.base, part.layout)
        elif isinstance(part, Rotary):
            alike = ("rotary", part.dim, part.base, part.scaling)
        if alike not in known:
            found[where] = part
        known.add(alike)
    return found


def main_part(model: Model) -> nn.Module | None:
    """Return the part to look at: the last table, else the last bias (a decoder's), else a rotation."""
    parts = position_parts(model).values()
    for kinds in (Learned | Sinusoidal, ALiBi | BucketBias, Rotary):
        found = [part for part in parts if isinstance(part, kinds)]
        if found:
            return found[0] if kinds is Rotary else found[-1]
    return None


def rotary_frequencies(rotary: Rotary, length: int) -> Tensor:
    """f_i (K/2,): the angle at position 1, scalings included."""
    return frequencies(rotary.dim, rotary.base, rotary.scaling, torch.tensor([[length]]))[0][0].float()


def rotary_note(model: Model) -> str:
    """Return what a table of angles leaves unsaid: which layers turn otherwise, which entries do not."""
    shown = main_part(model)
    if not isinstance(shown, Rotary):
        return ""
    layers: dict[float | None, list[str]] = {}
    entries: set[tuple[int, int]] = set()  # of a head: those turned, and all
    for path, part in parts_of(model):
        if isinstance(part, Attention):
            layers.setdefault(None if part.rotary is None else part.rotary.base, []).append(
                path.split(".")[1]
            )
            entries |= set() if part.rotary is None else {(part.rotary.dim, part.head_dim)}
    listed = lambda base: f"layer{'s' * (len(layers[base]) > 1)} {', '.join(layers[base])}"
    said = (
        [f"{listed(base)}: base {base:,.0f}" for base in layers if base is not None]
        if len(layers) > 1
        else []
    )
    said += [f"{listed(None)}: no rotation"] if None in layers else []
    said += (
        [f"the angles shown are those of base {shown.base:,.0f}"]
        if len(layers) - (None in layers) > 1
        else []
    )
    said += [
        f"the first {dim} of {size} entries of a head turn" for dim, size in sorted(entries) if dim < size
    ]
    said += ["the frequencies are rescaled for longer texts"] if shown.scaling is not None else []
    return "; ".join(said)


@torch.no_grad()
def position_tensors(model: Model, length: int = 64) -> dict[str, Tensor]:
    """Return the numbers of `main_part` for the first positions, by name.

    A table gives its rows, their cosines and dot products; a bias what it adds to the scores, (H, T, T); a
    rotation its angles and what the mean pair leaves of a dot product at each distance.
    """
    if not 2 <= length <= 512:
        raise InputError(f"length={length} must lie between 2 and 512")
    part = main_part(model)
    length = min(length, getattr(part, "context", None) or length)
    pos = torch.arange(length, device=model.device)[None]
    if isinstance(part, Learned | Sinusoidal):
        rows = part(pos)[0].float()
        unit = F.normalize(rows, dim=-1)
        return {"table": rows, "cosine": unit @ unit.T, "dot": rows @ rows.T}
    if isinstance(part, ALiBi | BucketBias):
        return {"bias": part(Context(pos, pos, Mask()))[0].float()}
    if isinstance(part, Rotary):
        angles = torch.arange(length)[:, None] * rotary_frequencies(part, length)
        return {"angles": angles, "decay": angles.cos().mean(-1)}
    return {}


def describe_positions(model: Model, length: int = 64) -> dict[str, Any]:
    """Return what can be said of a model's positions beside `position_tensors`."""
    kind, tensors, part = position_type(model), position_tensors(model, length), main_part(model)
    length = min(length, getattr(part, "context", None) or length)
    rotary = next((p for p in position_parts(model).values() if isinstance(p, Rotary)), None)
    at = torch.arange(min(length, 64))
    return {
        "type": kind, "length": length, "tensors": {name: list(t.shape) for name, t in tensors.items()},
        "slopes": part.slopes(torch.device("cpu")).tolist() if isinstance(part, ALiBi) else None,
        "buckets": part.bucket(at[None, :] - at[:, None]).tolist() if isinstance(part, BucketBias) else None,
        "frequencies": None if rotary is None else rotary_frequencies(rotary, length).tolist(),
        "base": getattr(rotary or part, "base", None), "note": order_note(model) or rotary_note(model),
        "formula": FORMULAS.get(kind, ""),
    }  # fmt: skip
