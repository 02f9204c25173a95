"""What a request is refused for, in the shape that OpenAI's clients read: message, type, param, code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.errors import HeedfulError, is_out_of_memory
from heedful.server.refusals import RequestRefused

INVALID = "invalid_request_error"
FINAL = {"x-should-retry": "false"}  # a second try would end as the first


class Refused(RequestRefused):
    """A request that is refused, with the parameter at fault and OpenAI's word for the kind of error."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, type: str = INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(status, code, message, headers=headers)
        self.param, self.type = param, type

    @property
    def body(self) -> dict[str, Any]:
        said = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        return {"error": said}


class Gone(HeedfulError):
    """The client went away: nobody is left to tell."""


def invalid(param: str | None, message: str) -> Refused:
    return Refused(400, "invalid_value", message, param=param)


def unsupported(param: str, message: str) -> Refused:
    return Refused(400, "unsupported_parameter", message, param=param)


def unknown_model(id: str, known: list[str]) -> Refused:
    said = f"The model {id[:80]!r} does not exist; this server has {', '.join(known)}"
    return Refused(404, "model_not_found", said, param="model")


def cannot(id: str, what: str, can: list[str]) -> Refused:
    said = f"{id} {what}; it answers {' and '.join(can) or 'nothing here'}"
    return Refused(400, "model_not_supported", said, param="model")


def too_long(context: int, prompt: int, wanted: int | None = None) -> Refused:
    asked = f"your prompt has {prompt} tokens"
    if wanted is not None:
        asked = f"you asked for {prompt + wanted} tokens ({prompt} in the prompt, {wanted} to be written)"
    said = f"This model's maximum context length is {context} tokens. However, {asked}; shorten it."
    param = None if wanted is None else "max_tokens"
    return Refused(400, "context_length_exceeded", said, param=param)


def queue_full(waiting: int) -> Refused:
    said = f"{waiting} requests are waiting already; try again in a moment"
    return Refused(429, "queue_full", said, type="rate_limit_error", headers={"Retry-After": "1"})


def shutting_down() -> Refused:
    said = "this server is shutting down; ask another, or again when it is back"
    return Refused(503, "shutting_down", said, type="server_error", headers={"Retry-After": "5"})


def timeout(seconds: float) -> Refused:
    said = (
        f"the answer was not done after {seconds:g} s; ask for fewer tokens, or start with --request-timeout"
    )
    return Refused(504, "timeout", said, type="server_error", headers=FINAL)


def not_a_number(id: str) -> Refused:
    said = f"{id} computed a probability that is no number; its weights or its precision are at fault"
    return Refused(500, "numerical_error", said, type="server_error", headers=FINAL)


def slow_reader() -> Refused:
    return Refused(408, "slow_reader", "the answer was not read as fast as it was written", headers=FINAL)


def refused(error: Exception) -> Refused:
    """Any failure as an answer. What heedful refuses is the request's fault; the rest is ours."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, RequestRefused):
        kind = "authentication_error" if error.status == 401 else INVALID
        return Refused(error.status, error.code, str(error), type=kind, headers=error.headers)
    text = " ".join(str(error).split())
    if isinstance(error, HeedfulError):
        return invalid(None, text)
    name = type(error).__name__
    if is_out_of_memory(error):
        said = "out of memory; send a shorter prompt, or fewer prompts at once"
        return Refused(500, "out_of_memory", said, type="server_error", headers=FINAL)
    said = f"{name}: this is a fault of the server's; its log has more under this request's id"
    return Refused(500, "internal_error", said, type="server_error", headers=FINAL)
