"""Tensors as answers: a part of one, as bytes with their shape and scale."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from starlette.responses import Response
from torch import Tensor

from heedful.core.errors import InputError


def parse_range(text: str | None, size: int) -> slice:
    """Return "a:b" as a slice of an axis."""
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


def cut_tensor(value: Tensor, head: int | None, rows: str | None, cols: str | None, reduction: str) -> Tensor:
    """Cut one head of (H, T, S), or join all of them; then some rows and columns. `over` "norm" is the
    length of the vectors along the last axis: of a state (T, F, N) one number for each channel.
    """
    if reduction == "norm":
        if value.dim() < 2 or head is not None:
            raise InputError(
                f"this value has the shape {tuple(value.shape)} and no vectors", hint="leave over out"
            )
        value, reduction = value.float().norm(dim=-1), "none"
    if head is not None or reduction != "none":
        if value.dim() < 3:
            raise InputError(
                f"this value has the shape {tuple(value.shape)} and no heads", hint="leave head and over out"
            )
        if head is not None and not 0 <= head < len(value):
            raise InputError(f"there are heads 0 … {len(value) - 1}", hint=f"there is no head {head}")
        value = value.float()
        value = value[head] if head is not None else value.mean(0) if reduction == "mean" else value.amax(0)
    if value.dim() == 1:
        return value[parse_range(rows, len(value))]
    value = value[..., parse_range(rows, value.shape[-2]), :]
    return value[..., parse_range(cols, value.shape[-1])]


def encode_tensor(values: Tensor, dtype: str, *, share: bool = False) -> tuple[bytes, float, float]:
    """The bytes of a tensor, and (min, scale) with value = min + stored · scale.

    A share lies in 0 … 1, so that its bytes always mean the same; others go from their least to greatest.
    """
    values = values.detach().cpu()
    if dtype == "f32":
        return np.ascontiguousarray(values.float().numpy(), "<f4").tobytes(), 0.0, 1.0
    if dtype == "f16":
        return np.ascontiguousarray(values.half().numpy(), "<f2").tobytes(), 0.0, 1.0
    values = values.float()
    finite = values[values.isfinite()]
    if share or not len(finite):
        low, high = 0.0, 1.0
    else:
        low, high = float(finite.min()), float(finite.max())
    scale = (high - low) / 255 or 1 / 255
    stored = ((values - low) / scale).nan_to_num(0.0, 255.0, 0.0).round().clamp(0, 255)
    return stored.to(torch.uint8).numpy().tobytes(), low, scale


def tensor_response(
    values: Tensor, dtype: str = "f32", *, share: bool = False, full: tuple[int, ...] | None = None,
    tag: str | None = None,
) -> Response:  # fmt: skip
    """A tensor as an answer; one with a tag, which says of what, never changes and may be kept."""
    body, low, scale = encode_tensor(values, dtype, share=share)
    shape = ",".join(map(str, values.shape))
    headers = {
        "X-Shape": shape, "X-Dtype": dtype, "X-Min": repr(low), "X-Scale": repr(scale),
        "X-Full-Shape": shape if full is None else ",".join(map(str, full)),
        "Cache-Control": "no-store" if tag is None else "private, max-age=31536000, immutable",
    }  # fmt: skip
    if tag is not None:
        headers["ETag"] = f'"{hashlib.sha256(tag.encode()).hexdigest()[:24]}"'
    return Response(body, media_type="application/octet-stream", headers=headers)
