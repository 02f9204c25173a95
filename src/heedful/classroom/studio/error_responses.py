"""What a request may be refused for: a status, a word for programs, a line and a hint for people."""

from __future__ import annotations

import re
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from heedful.core.errors import HeedfulError, InputError, NotFound
from heedful.serve.guard import RequestRefused


class ModelNotFound(NotFound):
    """A model that is not in the registry."""


class RunNotFound(NotFound):
    """A run that is not there."""


class Cannot(InputError):
    """Something that this model has not got."""


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
