"""Answers as JSON: every number is a number, and every text can be read as one line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.responses import JSONResponse
from torch import Tensor

# Some clients take these for the end of a line, which ends an event of a stream.
LINE_SEPARATORS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def json_value(value: Any) -> Any:
    """Return anything that results are made of as JSON knows it; an infinite number becomes its name."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str | int | bool) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(k): json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(v) for v in value]
    if isinstance(value, Tensor):
        return json_value(value.detach().cpu().tolist())
    if isinstance(value, np.ndarray | np.generic):
        return json_value(value.tolist())
    return str(value)


def json_bytes(value: Any) -> bytes:
    """Return JSON in UTF-8; half a surrogate, which a hostile text may hold, is written as its escape."""
    try:
        text = _dumps(value)
    except (TypeError, ValueError):  # tensors, sets, numbers that are not finite
        text = _dumps(json_value(value))
    return text.translate(LINE_SEPARATORS).encode("utf-8", errors="backslashreplace")


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Json(JSONResponse):
    """One object."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)
