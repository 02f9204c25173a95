"""What a request may be refused for: a status, a word for programs, a line and a hint for people."""

from __future__ import annotations

import re
from typing import Any

from heedful.errors import HeedfulError, InputError, NotFound
from heedful.server.refusals import RequestRefused


class StudioRefusal(RequestRefused):
    """A request that is refused; `code` is the word in docs/studio-api.md."""


class ModelNotFound(NotFound):
    """A model that is not in the registry."""


class RunNotFound(NotFound):
    """A run that is not there."""


class Cannot(InputError):
    """Something that this model has not got."""


def cancelled_error() -> StudioRefusal:
    return StudioRefusal(409, "cancelled", "a newer run of this page took its place")


def trace_gone_error(trace: str) -> StudioRefusal:
    return StudioRefusal(
        410, "trace_gone", f"the trace {trace} is no longer held", "run again: the text is still there"
    )


def error_response(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status of an error and its body: a code, a message and a hint."""
    if isinstance(error, RequestRefused):
        code = "too_large" if error.status == 413 else error.code
        return error.status, _error_body(code, error.message, error.hint)
    text = " ".join(str(error).split())
    message, hint = (error.message, error.hint) if isinstance(error, HeedfulError) else (text, None)
    message = " ".join(message.split())
    if isinstance(error, NotFound):
        word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
        return 404, _error_body(word, message, hint or None)
    if isinstance(error, HeedfulError):
        return 422, _error_body("cannot", message, hint or None)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return 422, _error_body("cannot", "out of memory", "take a shorter text or a smaller model")
    said = f"{type(error).__name__}: {text[:300]}"
    return 500, _error_body("fault", said, "this is a fault of heedful's: please report it")


def _error_body(code: str, message: str, hint: str | None) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "hint": hint}}
