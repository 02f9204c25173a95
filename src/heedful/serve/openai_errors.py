"""Why a request is refused, in the shape that OpenAI's clients read: message, type, param, code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.core.errors import HeedfulError, is_out_of_memory
from heedful.decode.continuous import NotANumber
from heedful.serve.guard import RequestRefused

INVALID = "invalid_request_error"
FINAL = {"x-should-retry": "false"}  # a second try would end as the first


class OpenAIError(RequestRefused):
    """A request that is refused, with the parameter at fault and OpenAI's word for the kind of error."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, type: str = INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(status, code, message, headers=headers)
        self.param, self.type = param, type

    @property
    def body(self) -> dict[str, Any]:
        fields = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        return {"error": fields}


class Gone(HeedfulError):
    """The client went away: nobody is left to tell."""


def invalid(param: str | None, message: str) -> OpenAIError:
    return OpenAIError(400, "invalid_value", message, param=param)


def unsupported_parameter(param: str, message: str) -> OpenAIError:
    return OpenAIError(400, "unsupported_parameter", message, param=param)


def unknown_model(id: str, served_ids: list[str]) -> OpenAIError:
    message = f"The model {id[:80]!r} does not exist; this server has {', '.join(served_ids)}"
    return OpenAIError(404, "model_not_found", message, param="model")


def model_cannot(id: str, reason: str, can: list[str]) -> OpenAIError:
    message = f"{id} {reason}; it answers {' and '.join(can) or 'nothing here'}"
    return OpenAIError(400, "model_not_supported", message, param="model")


def too_long(
    context: int, prompt: int, max_tokens: int | None = None, *, unit: str = "tokens"
) -> OpenAIError:
    request = f"your prompt has {prompt} {unit}"
    if max_tokens is not None:
        request = (
            f"you asked for {prompt + max_tokens} tokens ({prompt} in the prompt, {max_tokens} to be written)"
        )
    message = f"This model's maximum context length is {context} tokens. However, {request}; shorten it."
    param = None if max_tokens is None else "max_tokens"
    return OpenAIError(400, "context_length_exceeded", message, param=param)


def shutting_down() -> OpenAIError:
    message = "this server is shutting down; ask another, or again when it is back"
    return OpenAIError(503, "shutting_down", message, type="server_error", headers={"Retry-After": "5"})


def timeout(seconds: float) -> OpenAIError:
    message = (
        f"the answer was not done after {seconds:g} s; ask for fewer tokens, or start with --request-timeout"
    )
    return OpenAIError(504, "timeout", message, type="server_error", headers=FINAL)


def as_openai_error(error: Exception) -> OpenAIError:
    """Any failure as an answer. What heedful refuses is the request's fault; the rest is ours."""
    if isinstance(error, OpenAIError):
        return error
    if isinstance(error, RequestRefused):
        kind = "authentication_error" if error.status == 401 else INVALID
        return OpenAIError(error.status, error.code, str(error), type=kind, headers=error.headers)
    text = " ".join(str(error).split())
    if isinstance(error, NotANumber):
        return OpenAIError(500, "numerical_error", text, type="server_error", headers=FINAL)
    if isinstance(error, HeedfulError):
        return invalid(error.argument, text)
    name = type(error).__name__
    if is_out_of_memory(error):
        message = "out of memory; send a shorter prompt, or fewer prompts at once"
        return OpenAIError(500, "out_of_memory", message, type="server_error", headers=FINAL)
    message = f"{name}: this is a fault of the server's; its log has more under this request's id"
    return OpenAIError(500, "internal_error", message, type="server_error", headers=FINAL)
