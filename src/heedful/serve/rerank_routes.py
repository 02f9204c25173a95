"""/rerank: texts in the order of their relevance to a query, in the shape of Jina's and Cohere's servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from heedful.core.errors import InputError
from heedful.decode.continuous import NO_NUMBER, NotANumber
from heedful.serve.generation_jobs import TEXTS_AT_ONCE
from heedful.serve.guard import Json
from heedful.serve.openai_errors import OpenAIError, invalid, model_cannot, too_long
from heedful.serve.openai_requests import RequestFields, kind
from heedful.serve.openai_server import Server, parse_request
from heedful.serve.served_model import ServedModel
from heedful.serve.streams import following
from heedful.tasks.model_inputs import TokenizedText, tokenize, truncate_text
from heedful.tasks.pipelines.rerank import check_query
from heedful.tasks.registry import pipeline

MAX_DOCUMENTS = 2048  # texts of one request


@dataclass(frozen=True)
class RerankJob:
    """A query with its texts, tokenised, and how they are sent back."""

    served: ServedModel
    documents: list[str]
    pairs: list[TokenizedText]
    top_n: int
    with_texts: bool
    raw: bool  # logits in place of probabilities

    @property
    def token_count(self) -> int:
        return sum(map(len, self.pairs))


async def rerank(server: Server, request: Request) -> Response:
    job = await parse_request(server, request, read_rerank)
    work = server.engine.submit(request.scope["request_id"], work=score_documents(job))
    server.metrics.prompt_tokens.add(job.token_count)
    async with following(work, request.receive, server.limits.seconds):
        scores: list[float] = [score for some in await work.collect() for score in some]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: job.top_n]
    text = lambda i: {"document": {"text": job.documents[i]}} if job.with_texts else {}
    rows = [{"index": i, "relevance_score": scores[i], **text(i)} for i in order]
    usage = {"prompt_tokens": job.token_count, "total_tokens": job.token_count}
    answer = {"object": "list", "id": request.scope["request_id"], "model": job.served.id}
    return Json({**answer, "results": rows, "usage": usage})


def read_rerank(server: Server, fields: RequestFields) -> RerankJob:
    """The checked request: `documents` (or `texts`) are strings, or objects with a text.

    A document is cut after `max_tokens_per_doc`, and where it would not fit behind the query.
    """
    served = server.find(fields, default=True)
    if not served.reranks:
        said = f"({served.model.kind}, {served.model.config.head!r} head) is no cross-encoder"
        raise model_cannot(served.id, said, served.can)
    query, documents = fields.text("query"), read_documents(fields)
    if not query.strip():
        raise invalid("query", "query must be a string that is not empty; got spaces")
    top_n, most = fields.integer("top_n", 1), fields.integer("max_tokens_per_doc", 1)
    with_texts = fields.boolean("return_documents") or fields.boolean("return_text")
    raw, cut = fields.boolean("raw_scores"), fields.boolean("truncate", True)
    tokenizer = pipeline("rerank", served.model).tokenizer
    limit = served.context if cut else None
    if len(tokenizer.beginning(query, served.context)) < len(query):
        message = f"query has {len(query)} characters, which exceed the context of {served.context} tokens"
        raise invalid("query", f"{message}; shorten it")
    if limit is None and (most is None or most > served.context):
        short = [served.check_length(text) for text in documents]
    else:
        short = [tokenizer.beginning(text, min(most or served.context, served.context)) for text in documents]
    try:
        check_query(tokenizer, query, limit)
    except InputError as error:
        raise invalid("query", str(error)) from None
    short = short if most is None else [truncate_text(tokenizer, text, most)[0] for text in short]
    pairs = [tokenize(tokenizer, query, text).truncate(limit, "only_second") for text in short]
    if (longest := max(map(len, pairs))) > served.context:
        raise too_long(served.context, longest)
    return RerankJob(served, documents, pairs, top_n or len(documents), with_texts, raw)


def read_documents(fields: RequestFields) -> list[str]:
    name = "texts" if fields.get("documents") is None and fields.get("texts") is not None else "documents"
    value = fields.get(name)
    if value is None:
        raise OpenAIError(400, "missing_required_parameter", "documents is missing", param="documents")
    if not isinstance(value, list) or not value:
        raise invalid(name, f"{name} must be a list of texts, at least one; got {kind(value)}")
    if len(value) > MAX_DOCUMENTS:
        raise invalid(name, f"{name} has {len(value)} entries; {MAX_DOCUMENTS} are the most")
    found: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in value]
    for i, text in enumerate(found):
        if not isinstance(text, str) or not text.strip():
            raise invalid(name, f"{name}[{i}] must be a string that is not empty; got {value[i]!r:.60}")
    return found


def score_documents(job: RerankJob) -> Iterator[list[float]]:
    """The scores of a few texts at a time, in the order they came in."""
    task = pipeline("rerank", job.served.model)
    for start in range(0, len(job.pairs), TEXTS_AT_ONCE):
        logits = task.forward(job.pairs[start : start + TEXTS_AT_ONCE])
        if not all(bool(one.isfinite().all()) for one in logits):
            raise NotANumber(NO_NUMBER)
        yield [float(one if job.raw else one.sigmoid()) for one in logits]
