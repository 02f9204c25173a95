"""The shapes that go back: a completion or a conversation's answer, whole or as a stream of chunks."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

import heedful
from heedful.decode.rows import Piece
from heedful.serve.generation_jobs import GenerationJob, TokenResult, TokenScore
from heedful.serve.served_model import ServedModel

FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}
MIN_LOGPROB = -9999.0  # stands for a log-probability of −∞, which JSON cannot say


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
        """The choices of a stream that say what a part says."""

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
    found: dict[str, float | None] = {}
    for token, logprob in score.top:
        found.setdefault(served_model.token_text(token)[0], finite(logprob))
    return found


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
        self.head = {
            "id": form.prefix + secrets.token_hex(12), "object": form.object_name,
            "created": int(time.time()),
            "model": task.served.id, "system_fingerprint": system_fingerprint(task.served),
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


def system_fingerprint(served_model: ServedModel) -> str:
    """Return a name that changes with what may change a seed's text: the model, the versions, the device."""
    versions = (served_model.id, heedful.__version__, torch.__version__, str(served_model.model.device))
    return "fp_" + hashlib.sha256(repr(versions).encode()).hexdigest()[:12]
