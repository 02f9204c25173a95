"""What goes back: a completion or a conversation's answer, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import heedful
from heedful.decode.rows import Piece
from heedful.serve.engine import EngineJob, Mark
from heedful.serve.json_response import Json, json_bytes
from heedful.serve.openai_errors import Gone, OpenAIError
from heedful.serve.openai_server import ServedModel

if TYPE_CHECKING:
    from heedful.serve.generation_routes import GenerationJob

FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}
MIN_LOGPROB = -9999.0  # stands for a log-probability of −∞, which JSON cannot say


@dataclass(frozen=True)
class TokenScore:
    """A token, how likely it was, and which were most likely in its place; None for a text's first."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TokenResult:
    """A prompt that is sent back before what follows it."""

    row: int
    scores: list[TokenScore]


@dataclass(frozen=True)
class ChoiceDelta:
    """A piece of one choice that became certain."""

    index: int
    text: str
    scores: list[TokenScore]
    finish: str | None = None


@dataclass
class ChoiceState:
    """One choice so far."""

    text: list[str] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    finish: str = "length"  # of an answer for which no token was asked
    length: int = 0  # characters sent, for text_offset


class ResponseShape(Protocol):
    """The differences between responses to completions and to conversations."""

    prefix: str
    object_name: str
    chunk: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first choice of a stream, before any text."""

    def pieces(self, part: ChoiceDelta, logprobs: Any) -> Iterable[dict[str, Any]]:
        """The choices of a stream for one part of the answer."""

    def choice(self, part: ChoiceDelta, logprobs: Any) -> dict[str, Any]:
        """The choice of a whole answer."""

    def logprobs(
        self, served_model: ServedModel, scores: Sequence[TokenScore], offset: int
    ) -> dict[str, Any]:
        """Tokens with their log-probabilities."""


class Completion:
    prefix, object_name, chunk = "cmpl-", "text_completion", "text_completion"

    def opening(self, index: int) -> None:
        return None

    def pieces(self, part: ChoiceDelta, logprobs: Any) -> Iterable[dict[str, Any]]:
        if part.text or logprobs or part.finish:
            yield self.choice(part, logprobs)

    def choice(self, part: ChoiceDelta, logprobs: Any) -> dict[str, Any]:
        return {"index": part.index, "text": part.text, "logprobs": logprobs, "finish_reason": part.finish}

    def logprobs(
        self, served_model: ServedModel, scores: Sequence[TokenScore], offset: int
    ) -> dict[str, Any]:
        names = [served_model.token_text(s.token)[0] for s in scores]
        offsets = [offset]
        for s in scores:
            offsets.append(offsets[-1] + text_offset(served_model, s))
        return {
            "tokens": names, "token_logprobs": [finite(s.logprob) for s in scores],
            "top_logprobs": [None if s.logprob is None else likeliest(served_model, s) for s in scores],
            "text_offset": offsets[:-1],
        }  # fmt: skip


def text_offset(served_model: ServedModel, score: TokenScore) -> int:
    """Return how many characters a token adds to a text; half of one counts as one."""
    name, raw = served_model.token_text(score.token)
    return len(name if raw is None else bytes(raw).decode("utf-8", errors="replace"))


def likeliest(served_model: ServedModel, score: TokenScore) -> dict[str, float | None]:
    """Names with their log-probabilities; of two tokens that are spelled alike the likelier."""
    scores: dict[str, float | None] = {}
    for token, logprob in score.top:
        scores.setdefault(served_model.token_text(token)[0], finite(logprob))
    return scores


class Chat:
    prefix, object_name, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any]:
        return self._delta(index, {"role": "assistant", "content": ""}, None, None)

    def pieces(self, part: ChoiceDelta, logprobs: Any) -> Iterable[dict[str, Any]]:
        if part.text or logprobs:
            yield self._delta(part.index, {"content": part.text}, logprobs, None)
        if part.finish:
            yield self._delta(part.index, {}, None, part.finish)

    def _delta(self, index: int, delta: dict[str, str], logprobs: Any, finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def choice(self, part: ChoiceDelta, logprobs: Any) -> dict[str, Any]:
        message = {"role": "assistant", "content": part.text, "refusal": None}
        return {
            "index": part.index, "message": message, "logprobs": logprobs, "finish_reason": part.finish,
        }  # fmt: skip

    def logprobs(
        self, served_model: ServedModel, scores: Sequence[TokenScore], offset: int
    ) -> dict[str, Any]:
        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            name, raw = served_model.token_text(token)
            return {"token": name, "logprob": finite(logprob), "bytes": raw}

        content = [
            entry(s.token, s.logprob) | {"top_logprobs": [entry(*other) for other in s.top]} for s in scores
        ]
        return {"content": content, "refusal": None}


def finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, MIN_LOGPROB)


class ResponseBuilder:
    """A response that grows: `chunks` for a stream, `full_response` at the end."""

    def __init__(self, form: ResponseShape, task: GenerationJob) -> None:
        self.form, self.task = form, task
        self.choices = [ChoiceState() for _ in range(len(task.prompts) * task.request.settings.samples)]
        self.tokens = 0
        # A name that changes with what may change a seed's text: the model, the versions, the device.
        versions = (task.served.id, heedful.__version__, torch.__version__, str(task.served.model.device))
        fingerprint = "fp_" + hashlib.sha256(repr(versions).encode()).hexdigest()[:12]
        self.head = {
            "id": form.prefix + secrets.token_hex(12), "object": form.object_name,
            "created": int(time.time()), "model": task.served.id, "system_fingerprint": fingerprint,
        }  # fmt: skip

    @property
    def usage(self) -> dict[str, int]:
        prompt, new = self.task.prompt_tokens, self.tokens
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    @property
    def finish_reason(self) -> str:
        """The finish reason of the first choice, for the metrics."""
        return self.choices[0].finish

    def parts(self, item: Piece | TokenResult) -> list[ChoiceDelta]:
        """Yield what one token, or a prompt that is sent back, adds to the choices."""
        n = self.task.request.settings.samples
        if isinstance(item, TokenResult):
            text = self.task.served.text(self.task.prompts[item.row])
            end = None if self.task.limit else "length"
            return [ChoiceDelta(item.row * n + s, text, item.scores, end) for s in range(n)]
        self.tokens += 1
        scored = self.task.request.logprobs is not None
        scores = [TokenScore(item.token, item.logprob, item.top)] if scored else []
        finish = None if item.finish is None else FINISH[item.finish]
        return [ChoiceDelta(item.row * n + item.sample, item.text, scores, finish)]

    def take(self, item: Piece | TokenResult) -> None:
        """Keep it, for a whole answer."""
        for part in self.parts(item):
            choice = self.choices[part.index]
            choice.text.append(part.text)
            choice.scores += part.scores
            choice.finish = part.finish or choice.finish

    def merge(self, items: Iterable[Piece | TokenResult]) -> Iterable[ChoiceDelta]:
        """Join what several tokens add to a choice: a client that is behind gets them in one event."""
        joined: dict[int, ChoiceDelta] = {}
        for part in (part for item in items for part in self.parts(item)):
            one = joined.get(part.index)
            if one is not None:
                part = ChoiceDelta(part.index, one.text + part.text, one.scores + part.scores, part.finish)
            joined[part.index] = part
        return joined.values()

    def opening(self) -> Iterable[dict[str, Any]]:
        for index in range(len(self.choices)):
            if (first := self.form.opening(index)) is not None:
                yield self._chunk([first])

    def chunks(self, items: Iterable[Piece | TokenResult]) -> Iterable[dict[str, Any]]:
        for part in self.merge(items):
            choice = self.choices[part.index]
            choice.finish = part.finish or choice.finish
            logprobs = self._logprobs(part.scores, choice.length) if part.scores else None
            choice.length += sum(text_offset(self.task.served, s) for s in part.scores)
            for piece in self.form.pieces(part, logprobs):
                yield self._chunk([piece])

    def closing(self) -> Iterable[dict[str, Any]]:
        if not self.task.limit and not self.task.echo:
            for index in range(len(self.choices)):
                yield self._chunk(list(self.form.pieces(ChoiceDelta(index, "", [], "length"), None)))
        if self.task.request.usage:
            yield self._chunk([]) | {"usage": self.usage}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        later = {"usage": None} if self.task.request.usage else {}
        return self.head | {"object": self.form.chunk, "choices": choices} | later

    def _logprobs(self, scores: Sequence[TokenScore], offset: int = 0) -> Any:
        if self.task.request.logprobs is None:
            return None
        return self.form.logprobs(self.task.served, scores, offset)

    def full_response(self) -> dict[str, Any]:
        choices = [
            self.form.choice(ChoiceDelta(i, "".join(c.text), [], c.finish), self._logprobs(c.scores))
            for i, c in enumerate(self.choices)
        ]
        return self.head | {"choices": choices, "usage": self.usage}


# From the engine to the client: events with pings, and an end when the client leaves or time is up.


PING_SECONDS = 15.0  # of silence that proxies bear
STALLED_SECONDS = 30.0  # that a client may take to read what was sent
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
log = logging.getLogger("heedful.serve")


class Events(Response):
    """Server-sent events. A failure before the first token is still an HTTP status; later it is an event."""

    def __init__(
        self, job: EngineJob, builder: ResponseBuilder, seconds: float, count: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.job, self.builder, self.seconds, self.count = job, builder, seconds, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.job.following(receive, self.seconds):
            try:
                items = await self.job.next(PING_SECONDS)
            except OpenAIError as error:
                await Json(error.body, error.status, error.headers)(scope, receive, send)
                return
            except Gone:
                return
            reason = "abort"
            try:
                reason = await self.write(items, send)
            except (Gone, OSError):
                return
            except TimeoutError:
                log.warning(
                    "%s: the client read nothing for %g s and was given up", self.job.label, STALLED_SECONDS
                )
            finally:
                self.count(reason)

    async def write(self, items: list[Any], send: Send) -> str:
        """Send the events from the first items on; return how they ended. What is there goes together."""
        reason = "error"
        raw = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await self.send_events(send, map(json_bytes, self.builder.opening()))
        try:
            while True:
                if not items:
                    await self.send_bytes(send, b": ping\n\n")  # keeps proxies from hanging up
                elif any(isinstance(item, TokenResult) for item in items):  # a whole prompt with its scores
                    await self.send_events(send, await asyncio.to_thread(self.render_events, items))
                else:
                    await self.send_events(send, self.render_events(items))
                if items and items[-1] is Mark.END:
                    break
                items = await self.job.next(PING_SECONDS)
            await self.send_events(send, [*map(json_bytes, self.builder.closing()), b"[DONE]"])
            reason = self.builder.finish_reason
        except OpenAIError as error:
            await self.send_events(send, [json_bytes(error.body), b"[DONE]"])
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return reason

    def render_events(self, items: list[Any]) -> list[bytes]:
        return [json_bytes(chunk) for chunk in self.builder.chunks(i for i in items if i is not Mark.END)]

    async def send_events(self, send: Send, events: Iterable[bytes]) -> None:
        body = b"".join([b"data: " + event + b"\n\n" for event in events])
        if body:
            await self.send_bytes(send, body)

    async def send_bytes(self, send: Send, body: bytes) -> None:
        async with asyncio.timeout(STALLED_SECONDS):
            await send({"type": "http.response.body", "body": body, "more_body": True})
