"""What all addresses share: the models as clients see them, the engine, the limits; a body as a request."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from starlette.requests import Request
from torch import Tensor

from heedful.core.errors import InputError
from heedful.decode.continuous import NO_NUMBER, ContinuousBatch, NotANumber, choose_slots
from heedful.decode.request import check_prompt, context_length, encode_prompt, max_positions
from heedful.models.base import LM, Model, Seq2Seq
from heedful.serve.engine import Engine
from heedful.serve.metrics import Metrics
from heedful.serve.openai_errors import invalid, model_cannot, shutting_down, too_long, unknown_model
from heedful.serve.openai_requests import RequestFields, parse_body
from heedful.tasks.model_inputs import TokenizedText
from heedful.tasks.pipelines.number_tasks import Rerank
from heedful.tasks.registry import find_task, infer_task, pipeline
from heedful.tasks.task_specification import TaskSpecification
from heedful.text import Tokenizer
from heedful.text.bpe import is_byte_level, token_bytes
from heedful.text.chat_templates import render_chat
from heedful.weights.pooling import Pooling, embed_ids

# The addresses of a model that was trained for a task.
TASK_ENDPOINTS = {
    "text-classification": ("/classify", "/predict"), "text-regression": ("/predict",),
    "token-classification": ("/v1/tag",),
    "question-answering": ("/v1/answer",), "summarization": ("/v1/summarize",),
    "translation": ("/v1/translate",), "text2text-generation": ("/v1/summarize", "/v1/translate"),
}  # fmt: skip
DEFAULT_CONTEXT = 4096  # tokens of prompt and answer, for a model that states no context
log = logging.getLogger("heedful.serve")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model under the name clients ask for, and the batch of its texts; without one it cannot write."""

    id: str
    model: LM | Seq2Seq
    batch: ContinuousBatch | None
    context: int
    template: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    names: dict[int, tuple[str, list[int] | None]] = field(default_factory=dict)  # memo of `token_text`

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; one that has none is refused."""
        if self.model.tokenizer is None:
            raise model_cannot(self.id, "has no tokenizer", self.can)
        tokenizer: Tokenizer = self.model.tokenizer
        return tokenizer

    @property
    def embeds(self) -> bool:
        return isinstance(self.model, LM) and self.model.tokenizer is not None

    @cached_property
    def task(self) -> str | None:
        """The task that the model was trained for, by the name of its pipeline; None: no task here."""
        try:
            return infer_task(self.model)
        except InputError:
            return None

    @property
    def chat(self) -> str:
        """How messages become a prompt."""
        if self.template is not None:
            return "template"
        return "last message" if isinstance(self.model, Seq2Seq) else "plain"

    @cached_property
    def can(self) -> list[str]:
        """The addresses that this model answers. One that is split over processes only generates."""
        writes = ["/v1/completions", "/v1/chat/completions"] if self.batch is not None else []
        if self.model.tokenizer is None or self.model.mesh is not None:
            return writes
        ranks = self.embeds and Rerank.fits(self.model)  # a query and a text together, one number
        tasks = TASK_ENDPOINTS.get(self.task or "", ())
        return [*writes, *["/v1/embeddings"] * self.embeds, *["/rerank"] * ranks, *tasks]

    @property
    def description(self) -> dict[str, Any]:
        """Its entry in /v1/models: besides OpenAI's fields, its task with inputs, labels and score."""
        about: dict[str, Any] = {"kind": self.model.kind, "endpoints": self.can}
        if self.batch is not None:
            about["chat"] = self.chat
        if self.task is not None:
            specification = TaskSpecification.of(self.model)
            fields = find_task(self.task).load().fields if specification is None else specification.inputs
            about |= {"task": self.task, "inputs": list(fields)}
            if specification is not None and specification.score is not None:
                about["score"] = {specification.metric: specification.score}
        if self.model.config.head in ("classify", "tag"):
            about["labels"] = self.model.label_names
        return {
            "id": self.id, "object": "model", "created": self.created, "owned_by": "heedful",
            "max_model_len": self.context, "heedful": about,
        }  # fmt: skip

    def check_length(self, text: str) -> str:
        """Return the text, or refuse one that exceeds the context by far, before all of it is tokenized."""
        tokenizer = self.model.tokenizer
        if tokenizer is not None and len(tokenizer.beginning(text, self.context)) < len(text):
            raise too_long(self.context, len(text), unit="characters")
        return text

    def prompt(self, prompt: str | list[int], *, scoring: bool = False) -> list[int]:
        """The ids of a prompt that leaves room for an answer; `scoring` needs none. Never cut."""
        prompt = self.check_length(prompt) if isinstance(prompt, str) else prompt
        ids = encode_prompt(self.model, prompt) if isinstance(prompt, str) else prompt
        room = 0 if scoring or isinstance(self.model, Seq2Seq) else 1
        if len(ids) > self.context - room:
            raise too_long(self.context, len(ids))
        return check_prompt(self.model, ids)

    def conversation(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Messages as the prompt of an answer."""
        if self.template is not None:
            tokenizer = self.model.tokenizer
            if tokenizer is None:
                raise InputError(f"{self.id} has no tokenizer", hint="ask it for a completion of ids")
            named = {f"{role}_token": token for role, token in tokenizer.roles.items()}
            text = render_chat(self.template, messages=list(messages), add_generation_prompt=True, **named)
            return self.prompt(tokenizer.encode(self.check_length(text), special=False))
        if isinstance(self.model, Seq2Seq):
            return self.prompt(messages[-1]["content"])
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.prompt("".join([*lines, "assistant:"]))  # without a template: a line for each message

    def max_new_tokens(
        self, prompts: Sequence[list[int]], limit: int | None, default: int | None, strict: bool
    ) -> int:
        """How many tokens may be written: what was asked for, or what fits behind the shortest prompt."""
        read = 0 if isinstance(self.model, Seq2Seq) else min(map(len, prompts))
        limit = default if limit is None else limit
        fits = max(0, self.context - read)
        if strict and limit is not None and limit > self.context - read:
            raise too_long(self.context, read, limit)
        return fits if limit is None else min(limit, fits)

    def embed(self, rows: Sequence[list[int]]) -> list[Tensor]:
        """Return the vector (D,) of each row of ids."""
        assert isinstance(self.model, LM)
        return check_finite(list(embed_ids(self.model, rows, self.model.pooling or Pooling())))

    def logits(self, rows: Sequence[TokenizedText]) -> list[Tensor]:
        """Return the logits (C,) of each text or pair."""
        assert self.task is not None
        return check_finite(pipeline(self.task, self.model).forward(rows))

    def text(self, ids: list[int]) -> str:
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            return ""
        if wrong := [i for i in ids if i >= self.model.embed.vocab]:
            raise invalid(
                "tokens", f"{wrong[0]} is not a token; the vocabulary is 0 … {self.model.embed.vocab - 1}"
            )
        return str(tokenizer.decode(ids))

    def token_text(self, token: int) -> tuple[str, list[int] | None]:
        """The text of one token inside a text, and its bytes; half a character is written as its bytes."""
        if token not in self.names:
            self.names[token] = spell(self.model.tokenizer, token)
        return self.names[token]


def check_finite(results: list[Tensor]) -> list[Tensor]:
    if not all(bool(one.isfinite().all()) for one in results):
        raise NotANumber(NO_NUMBER)
    return results


def spell(tokenizer: Any, token: int) -> tuple[str, list[int] | None]:
    if tokenizer is None:
        return f"token_id:{token}", None
    name = tokenizer.tokens([token])[0]
    if is_byte_level(tokenizer):
        raw = token_bytes(tokenizer, name)
    else:
        one, two = (tokenizer.decode([token] * n, skip_special=False) for n in (1, 2))
        text = two[len(one) :] if two.startswith(one) else one  # the second has the space before it
        half = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", name)
        raw = bytes([int(half[1], 16)]) if half else text.encode()
    if raw is None:
        return name, list(name.encode())
    try:
        return raw.decode(), list(raw)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{b:02x}" for b in raw), list(raw)


def make_served_model(
    id: str, model: Model, *, ctx: int | None = None, template: str | None = None, max_rows: int = 64
) -> ServedModel:
    """A loaded model, made ready to be asked; it writes up to `max_rows` texts at once."""
    if not isinstance(model, LM | Seq2Seq):
        raise InputError(
            f"{id} is not a sequence model", hint="serve a decoder, an encoder-decoder or an encoder"
        )
    if model.processor is not None:
        media, way = (
            ("images", "heed classify IMAGE" if isinstance(model, LM) else "heed read IMAGE")
            if model.image_processor is not None
            else ("sounds", "heedful.pipeline")
        )
        raise InputError(f"{id} reads {media}, and clients send text", hint=f"read them with: {way}")
    limit = context_length if ctx is None else max_positions
    reaches = (limit(model), limit(model, source=True), ctx)
    stated = [length for length in reaches if length is not None] or [DEFAULT_CONTEXT]
    own = None if model.tokenizer is None else model.tokenizer.chat_template
    writes = model.config.head == "lm" and (isinstance(model, Seq2Seq) or model.causal)
    batch = ContinuousBatch(choose_slots(model, max_rows, min(stated))) if writes else None
    return ServedModel(id, model, batch, min(stated), template or own)


@dataclass(frozen=True)
class Limits:
    """The limits of one request."""

    rows: int = 64  # prompts times choices, written at once
    seconds: float = 600.0  # from its arrival to its end
    strict: bool = False  # refuse more tokens than fit, rather than write those that do
    tokens: int | None = None  # that one answer may have

    def bound(self, tokens: int) -> int:
        """Return the number of new tokens, or the limit if that is less."""
        return tokens if self.tokens is None else min(tokens, self.tokens)


@dataclass(frozen=True)
class Server:
    """The models, the engine and the limits that all routes share."""

    models: dict[str, ServedModel]
    engine: Engine = field(default_factory=Engine)
    limits: Limits = field(default_factory=Limits)

    @property
    def metrics(self) -> Metrics:
        return self.engine.metrics

    def find(self, fields: RequestFields, endpoint: str | None = None) -> ServedModel:
        """Return the model that was asked for, which must answer at the address `endpoint`.

        If none is named, it is the only one that answers there.
        """
        able = [served for served in self.models.values() if endpoint is None or endpoint in served.can]
        if fields.get("model") is None and len(able) == 1:
            return able[0]
        id = fields.text("model")
        if id not in self.models:
            raise unknown_model(id, list(self.models))
        if self.models[id] not in able:
            model = self.models[id].model
            reason = f"({model.kind}, {model.config.head!r} head) does not answer {endpoint}"
            raise model_cannot(id, reason, self.models[id].can)
        return self.models[id]


async def parse_request(server: Server, request: Request, parse: Callable[[Server, RequestFields], T]) -> T:
    """Parse, check and tokenise a body in its own thread: a long prompt holds nobody up."""
    if server.engine.draining:
        raise shutting_down()
    body = await request.body()

    def parse_fields() -> T:
        fields = RequestFields(parse_body(body))
        result = parse(server, fields)
        fields.check_unread()
        if unread := ", ".join(f"{name!r:.40}" for name in fields.unread[:20]):
            log.warning("%s: ignored %s", request.scope["request_id"], unread)
        return result

    return await asyncio.to_thread(parse_fields)
