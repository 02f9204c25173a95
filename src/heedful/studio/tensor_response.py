"""How answers are written: JSON with every number a number, and tensors as bytes."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from starlette.responses import Response
from torch import Tensor


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
