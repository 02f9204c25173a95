"""How a model knows where a token stands, as tables and curves."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import InputError
from heedful.inspect.mixing import order_note, parts_of, position_type, stacks_of
from heedful.models.base import Model
from heedful.nn.attention import Attention
from heedful.nn.context import Context, Mask
from heedful.nn.latent import LatentAttention
from heedful.nn.position import ALiBi, BucketBias, Learned, Rotary, Sinusoidal

FORMULAS = {
    "sinusoidal": "p(t, 2i) = sin(t / base^(2i/D)), p(t, 2i+1) = cos(t / base^(2i/D))",
    "learned": "p(t) = table[t]",
    "rotary": "q_t → R_t q_t, k_s → R_s k_s; pair i turns by t · base^(−2i/K)",
    "alibi": "b_h(i, j) = −m_h (i − j)",
    "buckets": "b_h(i, j) = table[bucket(j − i), h]",
}


def rotary_of(model: Model) -> Rotary | None:
    for _, part in parts_of(model):
        if isinstance(part, Attention | LatentAttention) and part.rotary is not None:
            return part.rotary
    return None


def bias_of(model: Model) -> ALiBi | BucketBias | None:
    """That of the last stack: a decoder's rather than its encoder's."""
    found = [s.bias for s in stacks_of(model).values() if isinstance(s.bias, ALiBi | BucketBias)]
    return found[-1] if found else None


def table_of(model: Model) -> Learned | Sinusoidal | None:
    found = [e.position for e in model.tables.values() if e.position is not None]
    return found[-1] if found else None


def max_positions(model: Model, length: int) -> int:
    """As many positions as asked for, and as there are."""
    if not 2 <= length <= 512:
        raise InputError(f"length={length} must lie between 2 and 512")
    table = table_of(model)
    return length if table is None or table.context is None else min(length, table.context)


@torch.no_grad()
def tensors(model: Model, length: int) -> dict[str, Tensor]:
    """The tables of this model's positions, by name."""
    length = max_positions(model, length)
    pos = torch.arange(length, device=model.device)[None]
    table, bias, rotary = table_of(model), bias_of(model), rotary_of(model)
    if table is not None:
        rows = table(pos)[0].float()
        unit = F.normalize(rows, dim=-1)
        return {"table": rows, "cosine": unit @ unit.T, "dot": rows @ rows.T}
    if bias is not None:
        return {"bias": bias(Context(pos, pos, Mask()))[0].float()}
    if rotary is not None:
        frequency = _frequencies(rotary, length)
        angles = torch.arange(length)[:, None] * frequency
        return {"angles": angles, "decay": angles.cos().mean(-1)}
    return {}


def _frequencies(rotary: Rotary, length: int) -> Tensor:
    """f_i (K/2,): the angle at position 1, scalings included."""
    from heedful.nn.rope import frequencies

    return frequencies(rotary.dim, rotary.base, rotary.scaling, torch.tensor([[length]]))[0][0].float()


@torch.no_grad()
def describe_positions(model: Model, length: int) -> dict[str, Any]:
    """What the positions page needs beside the tables."""
    kind, length = position_type(model), max_positions(model, length)
    bias, rotary, table = bias_of(model), rotary_of(model), table_of(model)
    buckets = None
    if isinstance(bias, BucketBias):
        at = torch.arange(min(length, 64))
        buckets = bias.bucket(at[None, :] - at[:, None]).tolist()
    base = rotary.base if rotary is not None else table.base if isinstance(table, Sinusoidal) else None
    return {
        "type": kind, "length": length,
        "tensors": {n: list(t.shape) for n, t in tensors(model, length).items()},
        "slopes": bias.slopes(torch.device("cpu")).tolist() if isinstance(bias, ALiBi) else None,
        "buckets": buckets,
        "frequencies": None if rotary is None else _frequencies(rotary, length).tolist(),
        "base": base, "note": order_note(model), "formula": FORMULAS.get(kind, ""),
    }  # fmt: skip
