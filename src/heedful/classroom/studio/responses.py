"""What the studio answers with: errors, figures, and tensors as bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from torch import Tensor

from heedful.classroom.figures.figure import Figure
from heedful.core.errors import HeedfulError, InputError, NotFound
from heedful.serve.guard import RequestRefused
from heedful.serve.json_response import Json


def error_response(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status of an error and its body: a code, a message and a hint."""
    text = " ".join(str(error).split())
    status, code = 500, "fault"
    message, hint = f"{type(error).__name__}: {text[:300]}", "this is a fault of heedful's: please report it"
    if isinstance(error, HeedfulError):
        status, code, message, hint = 422, "cannot", " ".join(error.message.split()), error.hint or ""
    if isinstance(error, RequestRefused):
        status, code = error.status, "too_large" if error.status == 413 else error.code
    elif isinstance(error, NotFound):
        status, code = 404, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(p) for p in first.get("loc", ())[1:]) or "the request"
        status, code, message, hint = 400, "bad_request", f"{where}: {first.get('msg', 'is not valid')}", ""
    elif isinstance(error, HTTPException):
        status, code = error.status_code, "not_found" if error.status_code == 404 else "bad_request"
        message, hint = str(error.detail), ""
    elif isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        status, code, message, hint = 422, "cannot", "out of memory", "take a shorter text or a smaller model"
    return status, {"error": {"code": code, "message": message, "hint": hint or None}}


# A figure of heedful.view as an answer: the JSON that the page draws, or a file that Python writes.


FigureFormat = Literal["json", "html", "svg", "csv"]
MEDIA_TYPES = {"html": "text/html", "svg": "image/svg+xml", "csv": "text/csv"}


def figure_response(figure: Figure, name: str, format: FigureFormat, python: str) -> Response:
    """Return a figure in a format; its JSON has the lines of Python that save it."""
    if format == "json":
        return Json(figure.to_dict() | {"python": python})
    write: dict[str, Callable[[], str]] = {
        "html": figure.to_html, "svg": figure.to_svg, "csv": figure.to_csv,
    }  # fmt: skip
    headers = {"Content-Disposition": f'attachment; filename="{name}.{format}"'}
    return Response(write[format](), media_type=MEDIA_TYPES[format], headers=headers)


# Tensors as answers: a part of one, as bytes with their shape and scale.


def parse_range(text: str | None, size: int) -> slice:
    """Return "a:b" as a slice of an axis."""
    if not text:
        return slice(0, size)
    first, colon, last = text.partition(":")
    try:
        low, high = int(first or 0), int(last) if last else size
    except ValueError:
        raise InputError(f"{text!r} is not a range", hint="write 0:64") from None
    if not colon or not 0 <= low < high:
        raise InputError(f"{text!r} is not a range", hint="write 0:64")
    return slice(low, min(high, size))


def cut_tensor(value: Tensor, head: int | None, rows: str | None, cols: str | None, reduction: str) -> Tensor:
    """Cut one head of (H, T, S), or join all of them; then some rows and columns. `reduction` "norm" is the
    length of the vectors along the last axis: of a state (T, F, N) one number for each channel.
    """
    if reduction == "norm":
        if value.dim() < 2 or head is not None:
            raise InputError(
                f"this value has the shape {tuple(value.shape)} and no vectors", hint="leave reduction out"
            )
        value, reduction = value.float().norm(dim=-1), "none"
    if head is not None or reduction != "none":
        if value.dim() < 3:
            raise InputError(
                f"this value has the shape {tuple(value.shape)} and no heads",
                hint="leave out head and reduction",
            )
        if head is not None and not 0 <= head < len(value):
            raise InputError(f"there are heads 0 … {len(value) - 1}", hint=f"unknown head {head}")
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
