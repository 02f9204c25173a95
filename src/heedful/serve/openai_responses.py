"""What goes back: an answer as one object or as a stream of events; texts as completions or conversations."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import heedful
from heedful.decode.rows import Piece
from heedful.models.base import LM
from heedful.serve.engine import END, EngineJob, Work
from heedful.serve.json_response import Json, json_bytes
from heedful.serve.openai_errors import Gone, OpenAIError
from heedful.serve.openai_requests import CompletionRequest, RequestFields
from heedful.serve.openai_server import ServedModel, Server, parse_request

FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}
MIN_LOGPROB = -9999.0  # stands for a log-probability of −∞, which JSON cannot say


@dataclass(frozen=True, kw_only=True)
class Job(Work):
    """A request that was read: the engine's work for it, and how the results are sent back.

    `text` collects the texts that are generated, and with `stream` they are sent as they come.
    """

    tokens: int  # of its prompts
    render: Callable[[list[Any], dict[str, int]], Any]  # of the results and the usage
    text: TextBuilder | None = None
    stream: bool = False


async def answer_request(
    server: Server, request: Request, read: Callable[[Server, RequestFields], Job]
) -> Response:
    """Read a request, let the engine do its work, and answer: whole, or as a stream."""
    begun = time.perf_counter()
    job = await parse_request(server, request, read)
    seconds, running = server.limits.seconds, server.engine.submit(job, request.scope["request_id"])
    server.metrics.prompt_tokens.add(job.tokens)

    def count(reason: str) -> None:
        server.metrics.requests.add(1, request.url.path, "200", reason)
        server.metrics.latency.observe(time.perf_counter() - begun)

    if job.text is not None and job.stream:
        return Events(running, job.text, seconds, count)
    async with running.following(request.receive, seconds):
        results = await running.collect()
    usage = {"prompt_tokens": job.tokens, "total_tokens": job.tokens}
    answer = await asyncio.to_thread(lambda: Json(job.render(results, usage)))  # a million numbers take long
    count("stop" if job.text is None else job.text.finish_reason)
    return answer


# A text as OpenAI's clients read it: the answer to a completion, or a message of a conversation.


@dataclass(frozen=True)
class TokenScore:
    """A token, how likely it was, and which were most likely in its place; None for a text's first."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class ChoiceDelta:
    """What one choice got: a piece of its text that became certain, or all of it."""

    index: int
    text: str = ""
    scores: Sequence[TokenScore] = ()
    finish: str | None = None


class Completion:
    """A continued prompt."""

    prefix, object_name, chunk = "cmpl-", "text_completion", "text_completion"

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Return the first choices of a stream, before any text."""
        return []

    def pieces(self, part: ChoiceDelta, logprobs: Any) -> Iterable[dict[str, Any]]:
        """Yield the choices of a stream for one part of the answer."""
        if part.text or logprobs or part.finish:
            yield self.choice(part, logprobs)

    def choice(self, part: ChoiceDelta, logprobs: Any) -> dict[str, Any]:
        """Return the choice of a whole answer."""
        return {"index": part.index, "text": part.text, "logprobs": logprobs, "finish_reason": part.finish}

    def logprobs(self, served: ServedModel, scores: Sequence[TokenScore], offset: int) -> dict[str, Any]:
        """Return tokens with their log-probabilities; the first stands at `offset` of the text."""
        offsets, likeliest = [offset], []
        for score in scores:
            offsets.append(offsets[-1] + text_length(served, score))
            top: dict[str, float | None] = {}
            for token, logprob in score.top:  # of two tokens that are spelled alike the likelier stays
                top.setdefault(served.token_text(token)[0], finite(logprob))
            likeliest.append(None if score.logprob is None else top)
        return {
            "tokens": [served.token_text(s.token)[0] for s in scores],
            "token_logprobs": [finite(s.logprob) for s in scores], "top_logprobs": likeliest,
            "text_offset": offsets[:-1],
        }  # fmt: skip


def text_length(served: ServedModel, score: TokenScore) -> int:
    """Return how many characters a token adds to a text; half of one counts as one."""
    name, raw = served.token_text(score.token)
    return len(name if raw is None else bytes(raw).decode("utf-8", errors="replace"))


def finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, MIN_LOGPROB)


class Chat(Completion):
    """The next message of a conversation."""

    prefix, object_name, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> list[dict[str, Any]]:
        return [self._delta(index, {"role": "assistant", "content": ""}, None, None)]

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

    def logprobs(self, served: ServedModel, scores: Sequence[TokenScore], offset: int) -> dict[str, Any]:
        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            name, raw = served.token_text(token)
            return {"token": name, "logprob": finite(logprob), "bytes": raw}

        content = [
            entry(s.token, s.logprob) | {"top_logprobs": [entry(*other) for other in s.top]} for s in scores
        ]
        return {"content": content, "refusal": None}


class TextBuilder:
    """The texts that answer a request: `chunks` for a stream, `full_response` at the end.

    `limit` is how many tokens each prompt may get. With `echo` the prompts are sent back before them.
    """

    def __init__(
        self, shape: Completion, served: ServedModel, prompts: Sequence[list[int]],
        request: CompletionRequest, limit: int, echo: bool = False,
    ) -> None:  # fmt: skip
        self.shape, self.served, self.prompts, self.request = shape, served, prompts, request
        self.limit, self.echo, self.samples = limit, echo, request.settings.samples
        self.prompt_tokens, self.new_tokens = sum(map(len, prompts)), 0
        self.finish_reason = "length"  # of the first choice, for the metrics
        self.lengths: Counter[int] = Counter()  # characters sent of each choice
        # A name that changes with what may change a seed's text: the model, the versions, the device.
        versions = (served.id, heedful.__version__, torch.__version__, str(served.model.device))
        fingerprint = "fp_" + hashlib.sha256(repr(versions).encode()).hexdigest()[:12]
        self.head = {
            "id": shape.prefix + secrets.token_hex(12), "object": shape.object_name,
            "created": int(time.time()), "model": served.id, "system_fingerprint": fingerprint,
        }  # fmt: skip

    @property
    def usage(self) -> dict[str, int]:
        prompt, new = self.prompt_tokens, self.new_tokens
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    @property
    def indices(self) -> range:
        """The numbers of the choices."""
        return range(len(self.prompts) * self.samples)

    def echo_prompts(self, rows: Sequence[tuple[int, list[int]]]) -> list[list[ChoiceDelta]]:
        """Return what each prompt that is sent back adds to its choices, with scores if those are wanted."""
        top, model, end = self.request.logprobs, self.served.model, None if self.limit else "length"
        assert isinstance(model, LM)
        echoes = []
        for row, ids in rows:
            text, scores = self.served.text(ids), [] if top is None else token_scores(model, ids, top)
            first = row * self.samples
            echoes.append([ChoiceDelta(first + s, text, scores, end) for s in range(self.samples)])
        return echoes

    def parts(self, item: Piece | list[ChoiceDelta]) -> list[ChoiceDelta]:
        """Return what one token, or a prompt that is sent back, adds to the choices."""
        if isinstance(item, list):
            return item
        self.new_tokens += 1
        scored = self.request.logprobs is not None
        scores = [TokenScore(item.token, item.logprob, item.top)] if scored else []
        finish = None if item.finish is None else FINISH[item.finish]
        return [ChoiceDelta(item.row * self.samples + item.sample, item.text, scores, finish)]

    def merge(self, items: Iterable[Piece | list[ChoiceDelta]]) -> Iterable[ChoiceDelta]:
        """Join what several tokens add to a choice: a client that is behind gets them in one event."""
        choices: dict[int, list[ChoiceDelta]] = defaultdict(list)
        for item in items:
            for part in self.parts(item):
                choices[part.index].append(part)
        for index, parts in choices.items():
            finish, scores = parts[-1].finish, [score for part in parts for score in part.scores]
            if index == 0 and finish is not None:
                self.finish_reason = finish
            yield ChoiceDelta(index, "".join(part.text for part in parts), scores, finish)

    def opening(self) -> Iterable[dict[str, Any]]:
        return [self._chunk([first]) for index in self.indices for first in self.shape.opening(index)]

    def chunks(self, items: Iterable[Piece | list[ChoiceDelta]]) -> Iterable[dict[str, Any]]:
        for part in self.merge(items):
            logprobs = self._logprobs(part, self.lengths[part.index]) if part.scores else None
            self.lengths[part.index] += sum(text_length(self.served, s) for s in part.scores)
            for piece in self.shape.pieces(part, logprobs):
                yield self._chunk([piece])

    def closing(self) -> Iterable[dict[str, Any]]:
        if not self.limit and not self.echo:
            for index in self.indices:
                yield self._chunk(list(self.shape.pieces(ChoiceDelta(index, finish="length"), None)))
        if self.request.usage:
            yield self._chunk([]) | {"usage": self.usage}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        later = {"usage": None} if self.request.usage else {}
        return self.head | {"object": self.shape.chunk, "choices": choices} | later

    def _logprobs(self, part: ChoiceDelta, offset: int = 0) -> Any:
        if self.request.logprobs is None:
            return None
        return self.shape.logprobs(self.served, part.scores, offset)

    def full_response(self, items: Iterable[Piece | list[ChoiceDelta]]) -> dict[str, Any]:
        merged = {part.index: part for part in self.merge(items)}
        parts = [merged.get(index, ChoiceDelta(index, finish="length")) for index in self.indices]
        choices = [self.shape.choice(part, self._logprobs(part)) for part in parts]
        return self.head | {"choices": choices, "usage": self.usage}


@torch.no_grad()
def token_scores(model: LM, ids: list[int], top: int) -> list[TokenScore]:
    """log p(token | those before it) of every token of a text"""
    scores = [TokenScore(ids[0], None)]
    if len(ids) == 1:
        return scores
    logs = model(torch.tensor([ids], device=model.device))[0, :-1].float().log_softmax(-1)  # (T − 1, V)
    own = logs.gather(1, torch.tensor(ids[1:], device=model.device)[:, None])[:, 0].tolist()
    likeliest = logs.topk(top)
    beside = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    for token, logprob, (names, values) in zip(ids[1:], own, beside, strict=True):
        scores.append(TokenScore(token, logprob, tuple(zip(names, values, strict=True))))
    return scores


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
        self, job: EngineJob, builder: TextBuilder, seconds: float, count: Callable[[str], None]
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
                elif any(isinstance(item, list) for item in items):  # a whole prompt with its scores
                    await self.send_events(send, await asyncio.to_thread(self.render_events, items))
                else:
                    await self.send_events(send, self.render_events(items))
                if items and items[-1] is END:
                    break
                items = await self.job.next(PING_SECONDS)
            await self.send_events(send, [*map(json_bytes, self.builder.closing()), b"[DONE]"])
            reason = self.builder.finish_reason
        except OpenAIError as error:
            await self.send_events(send, [json_bytes(error.body), b"[DONE]"])
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return reason

    def render_events(self, items: list[Any]) -> list[bytes]:
        return [json_bytes(chunk) for chunk in self.builder.chunks(i for i in items if i is not END)]

    async def send_events(self, send: Send, events: Iterable[bytes]) -> None:
        body = b"".join([b"data: " + event + b"\n\n" for event in events])
        if body:
            await self.send_bytes(send, body)

    async def send_bytes(self, send: Send, body: bytes) -> None:
        async with asyncio.timeout(STALLED_SECONDS):
            await send({"type": "http.response.body", "body": body, "more_body": True})
