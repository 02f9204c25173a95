"""What the studio answers with: errors, figures, tensors as bytes, and streams of events."""

from __future__ import annotations

import asyncio
import hashlib
import queue
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from anyio import to_thread
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from torch import Tensor

from heedful.classroom.figures.figure import Figure
from heedful.classroom.studio.model_registry import LoadedModel, Ticket, Worker
from heedful.classroom.studio.traces import Studio
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


# Work that is told about while it is done, as server-sent events; who stops listening stops the work.


T = TypeVar("T")
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
LISTEN_SECONDS = 0.5  # how often a silent stream writes a comment, which keeps it open

Event = dict[str, Any]
Report = Callable[[Event], None]


def stream_job(worker: Worker, function: Callable[[Report], Event], ticket: Ticket) -> StreamingResponse:
    """Run `function` in the model's thread. It reports events, each with its name under "event", and returns
    the last one, "done". When the client leaves, the ticket is cancelled, which `function` checks between
    steps.
    """
    return StreamingResponse(
        events(worker, function, ticket), media_type="text/event-stream", headers=HEADERS
    )


async def run_while_connected(request: Request, ticket: Ticket, function: Callable[[], T]) -> T:
    """Return what `function` gives, which may wait for models. When the client leaves, the ticket is
    cancelled: `function` checks it between steps.
    """
    job = asyncio.ensure_future(to_thread.run_sync(function))
    while not (await asyncio.wait({job}, timeout=LISTEN_SECONDS))[0]:
        if await request.is_disconnected():
            ticket.cancel()
    return job.result()


async def run_model(
    studio: Studio, request: Request, id: str, work: Callable[[LoadedModel, Ticket], T],
    ticket: Ticket | None = None,
) -> T:  # fmt: skip
    """Load a model, and return what `work` gives in the model's thread, as long as the client waits."""
    ticket = ticket or Ticket()

    def job() -> T:
        loaded_model = studio.registry.get(id)
        return loaded_model.run(lambda: work(loaded_model, ticket), ticket)

    return await run_while_connected(request, ticket, job)


async def events(worker: Worker, function: Callable[[Report], Event], ticket: Ticket) -> AsyncIterator[str]:
    """The model's thread writes into a line; this coroutine reads it until the client leaves."""
    line: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def turn() -> None:
        try:
            ticket.check()
            line.put(function(line.put))
        except Exception as error:  # whatever it is, the page must hear of it: the answer has begun
            line.put({"event": "error", **error_response(error)[1]})

    worker.submit(turn)
    take = lambda: line.get(timeout=LISTEN_SECONDS)
    try:
        while True:
            try:
                item = await to_thread.run_sync(take, abandon_on_cancel=True)
            except queue.Empty:
                yield ": still there\n\n"
                continue
            yield f"event: {item['event']}\ndata: {Json({}).render(item).decode()}\n\n"
            if item["event"] in ("done", "error"):
                return
    finally:
        ticket.cancel()
