"""Arrays inside JSON: base64 of little-endian numbers, compressed where there are many.

f16 holds three digits of a weight, at 2 bytes where JSON takes 22; u8 holds the square root of a weight in
255 steps, for patterns that would not fit otherwise.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Any

import numpy as np

SMALL = 1 << 15  # bytes that are not worth compressing
QUICK = 1 << 23  # bytes beyond which compressing well takes too long
MANY = 1 << 23  # weights beyond which a file keeps one byte each
DTYPES = {"f16": "<f2", "f32": "<f4", "f64": "<f8", "i32": "<i4", "u8": "u1"}


def pack(array: np.ndarray, halves: bool = False, bytes_: bool = False) -> dict[str, Any]:
    """An array for JSON. `halves` allows float16 where its range is enough, `bytes_` one byte a weight."""
    top = float(np.abs(array).max(initial=0.0))
    if array.dtype.kind in "iub":
        return _packed(array.astype("<i4"), "i32", array.shape)
    if bytes_ and array.min(initial=0.0) >= 0:
        roots = np.rint(np.sqrt(array / (top or 1.0)) * 255).astype(np.uint8)
        return _packed(roots, "u8", array.shape) | {"scale": top or 1.0}
    if halves and (top == 0 or 1e-3 <= top < 6e4):
        return _packed(array.astype("<f2"), "f16", array.shape)
    kind = "f64" if array.dtype == np.float64 else "f32"
    return _packed(array.astype(DTYPES[kind]), kind, array.shape)


def _packed(array: np.ndarray, kind: str, shape: tuple[int, ...]) -> dict[str, Any]:
    out: dict[str, Any] = {"dtype": kind, "shape": list(shape)}
    data = array.tobytes()
    if len(data) > SMALL:
        # All low bytes before all high ones: signs and exponents are alike and shrink well side by side.
        planes = np.frombuffer(data, np.uint8).reshape(-1, array.dtype.itemsize).T
        data, out["deflate"] = (
            zlib.compress(np.ascontiguousarray(planes).tobytes(), 6 if len(data) < QUICK else 1),
            True,
        )
    return out | {"data": base64.b64encode(data).decode("ascii")}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The array that `pack` was given, to the precision it was kept in."""
    data, dtype = base64.b64decode(packed["data"]), np.dtype(DTYPES[packed["dtype"]])
    if packed.get("deflate"):
        planes = np.frombuffer(zlib.decompress(data), np.uint8).reshape(dtype.itemsize, -1)
        data = np.ascontiguousarray(planes.T).tobytes()
    array = np.frombuffer(data, dtype).reshape(packed["shape"])
    if packed["dtype"] == "u8":
        return (array / 255.0) ** 2 * packed["scale"]
    return array


def tree(value: Any, bytes_: bool = False) -> Any:
    """A tree of plain values and arrays, ready for JSON; patterns (three sides) may be kept in float16."""
    if isinstance(value, np.ndarray):
        return pack(value, halves=value.ndim == 3, bytes_=bytes_ and value.ndim == 3)
    if isinstance(value, dict):
        return {str(k): tree(v, bytes_) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [tree(v, bytes_) for v in value]
    if isinstance(value, np.generic):
        return tree(value.item(), bytes_)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def weights(value: Any) -> int:
    """How many numbers the patterns of a tree have."""
    if isinstance(value, np.ndarray):
        return int(value.size) if value.ndim == 3 else 0
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(weights(v) for v in inner if not isinstance(v, str))


def for_script(value: Any) -> str:
    """JSON that may stand in a <script>: no text in it can end the element or open a comment."""
    said = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return said.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
