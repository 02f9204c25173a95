"""Cut, pool and weigh what a trace holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import InputError
from heedful.inspect.inputs import part_at
from heedful.nn.attention import Attention

if TYPE_CHECKING:
    from heedful.studio.shared_state import Look


def span(text: str | None, size: int) -> slice:
    """ "a:b" as a slice of an axis."""
    if not text:
        return slice(0, size)
    first, colon, last = text.partition(":")
    try:
        low, high = int(first or 0), int(last) if last else size
    except ValueError:
        raise InputError(f"{text!r} is no range", hint="write 0:64") from None
    if not colon or not 0 <= low < high:
        raise InputError(f"{text!r} is no range", hint="write 0:64")
    return slice(low, min(high, size))


def cut(value: Tensor, head: int | None, rows: str | None, cols: str | None, over: str) -> Tensor:
    """One head of (H, T, S) or something over all of them; then some rows and columns. `over` "norm" is the
    length of the vectors along the last axis: of a state (T, F, N) one number for each channel.
    """
    if over == "norm":
        if value.dim() < 2 or head is not None:
            raise InputError(
                f"this value has the shape {tuple(value.shape)} and no vectors", hint="leave over out"
            )
        value, over = value.float().norm(dim=-1), "none"
    if head is not None or over != "none":
        if value.dim() < 3:
            raise InputError(
                f"this value has the shape {tuple(value.shape)} and no heads", hint="leave head and over out"
            )
        if head is not None and not 0 <= head < len(value):
            raise InputError(f"there are heads 0 … {len(value) - 1}", hint=f"there is no head {head}")
        value = value.float()
        value = value[head] if head is not None else value.mean(0) if over == "mean" else value.amax(0)
    if value.dim() == 1:
        return value[span(rows, len(value))]
    value = value[..., span(rows, value.shape[-2]), :]
    return value[..., span(cols, value.shape[-1])]


def pool_matrix(pattern: Tensor, size: int) -> Tensor:
    """(H, T, S) → (H, ≤ size, ≤ size): the largest entry of each tile; of signed ones the largest by size."""
    values = pattern.detach().float()
    T, S = values.shape[-2:]
    if size >= max(T, S):
        return values
    shape = (min(T, size), min(S, size))
    high = F.adaptive_max_pool2d(values, shape)
    if not bool((values < 0).any()):
        return high
    low = -F.adaptive_max_pool2d(-values, shape)
    return torch.where(high >= -low, high, low)


def effect(look: Look, path: str) -> Tensor:
    """(H, T, S): ‖a_ij v_j W_O‖, the size of what key j adds to query i through this head

    (Kobayashi et al. 2020, eq. 5.) A weight says how much is taken, this how much there was to take.
    """
    trace = look.trace
    if path not in {layer for group in trace.groups for layer in group.layers}:
        raise InputError(f"{path[:80]!r} attends to nothing", hint="take a layer of a group")
    held = look.held
    pattern, v = trace.value(held, f"{path}.pattern").float(), trace.value(held, f"{path}.v").float()
    if v.shape[0] != pattern.shape[0]:  # several query heads share one value head
        v = v.repeat_interleave(pattern.shape[0] // v.shape[0], 0)
    out = cast(Attention, part_at(held.sequence, path))._modules.get("o")
    if isinstance(out, nn.Linear) and out.weight.shape[1] == v.shape[0] * v.shape[2]:
        matrix = out.weight.detach().float().unflatten(1, (v.shape[0], v.shape[2]))  # (D, H, K)
        v = torch.einsum("hsk,dhk->hsd", v, matrix)
    return pattern.abs() * v.norm(dim=-1)[:, None, :]
