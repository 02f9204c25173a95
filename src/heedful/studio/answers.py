"""How answers are written: JSON with every number a number, and tensors as bytes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from starlette.responses import JSONResponse, Response
from torch import Tensor


def plain(value: Any) -> Any:
    """Anything a result is made of as JSON knows it; a number that is not finite becomes its name."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str | int | bool) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if isinstance(value, Tensor):
        return plain(value.detach().cpu().tolist())
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return str(value)


class Json(JSONResponse):
    """One object. Half a surrogate, which a hostile text may hold, is written as its escape."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(plain(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", errors="backslashreplace")


def encoded(values: Tensor, dtype: str, *, share: bool = False) -> tuple[bytes, float, float]:
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


def octets(
    values: Tensor, dtype: str = "f32", *, share: bool = False, full: tuple[int, ...] | None = None,
    tag: str | None = None,
) -> Response:  # fmt: skip
    """A tensor as an answer; one with a tag, which says of what, never changes and may be kept."""
    body, low, scale = encoded(values, dtype, share=share)
    shape = ",".join(map(str, values.shape))
    headers = {
        "X-Shape": shape, "X-Dtype": dtype, "X-Min": repr(low), "X-Scale": repr(scale),
        "X-Full-Shape": shape if full is None else ",".join(map(str, full)),
        "Cache-Control": "no-store" if tag is None else "private, max-age=31536000, immutable",
    }  # fmt: skip
    if tag is not None:
        headers["ETag"] = f'"{hashlib.sha256(tag.encode()).hexdigest()[:24]}"'
    return Response(body, media_type="application/octet-stream", headers=headers)
