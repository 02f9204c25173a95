"""Texts in, answers out: embeddings, ranks, and texts as tokens.

A route reads its request into a `Job`. The engine computes the rows of all requests of a model together.
"""

from __future__ import annotations

import base64
import secrets
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from heedful.core.errors import InputError
from heedful.serve.json_response import Json
from heedful.serve.openai_errors import invalid, too_long, unsupported_parameter
from heedful.serve.openai_requests import (
    MAX_INPUTS,
    RequestFields,
    check_characters,
    kind,
    read_inputs,
    read_token_ids,
)
from heedful.serve.openai_responses import Job
from heedful.serve.openai_server import Server
from heedful.tasks.model_inputs import tokenize as tokenize_pair
from heedful.tasks.model_inputs import truncate_text
from heedful.tasks.pipelines.number_tasks import check_query
from heedful.tasks.registry import pipeline
from heedful.weights.pooling import encode_truncated

MAX_CHARACTERS = 1_000_000  # of a text for /tokenize, which is not bounded by a context
MAX_TOKENS = 250_000  # of one request for /detokenize


def read_embeddings(server: Server, fields: RequestFields) -> Job:
    """Tokenize the inputs as `heedful.embed` does: a checkpoint for sentences says where a text is cut.

    Other models refuse a text that exceeds the context.
    """
    served = server.find(fields, "/v1/embeddings")
    tokenizer, pooling = served.model.tokenizer, served.model.pooling
    assert tokenizer is not None
    form, dimensions = fields.choice("encoding_format", ("float", "base64")), fields.integer("dimensions", 1)
    if dimensions not in (None, served.model.config.dim):
        message = f"{served.id} has vectors of {served.model.config.dim} numbers and cannot shorten them"
        raise unsupported_parameter("dimensions", message)
    inputs = read_inputs(fields, "input", MAX_INPUTS)
    if not all(inputs):
        raise invalid("input", "input has an empty text; leave it out")
    cut = None if pooling is None else pooling.length
    rows = [
        encode_truncated(tokenizer, served.check_length(one) if cut is None else one, cut)
        if isinstance(one, str)
        else one[:cut]
        for one in inputs
    ]
    if (longest := max(map(len, rows))) > served.context:
        raise too_long(served.context, longest)

    def encode(vector: Tensor) -> Any:
        if form == "float":
            return vector.tolist()
        return base64.b64encode(np.ascontiguousarray(vector.numpy(), "<f4").tobytes()).decode()

    def render(vectors: list[Tensor], usage: dict[str, int]) -> Any:
        entries = [{"object": "embedding", "index": i, "embedding": encode(v)} for i, v in enumerate(vectors)]
        return {"object": "list", "data": entries, "model": served.id, "usage": usage}

    return Job(rows=rows, compute=served.embed, tokens=sum(map(len, rows)), render=render)


def read_rerank(server: Server, fields: RequestFields) -> Job:
    """Read a query and texts to rank, with the fields of Jina's and Cohere's servers.

    `documents` (or `texts`) are strings, or objects with a text. A document is cut after
    `max_tokens_per_doc`, and where it would not fit behind the query.
    """
    served = server.find(fields, "/rerank")
    query, documents = fields.text("query"), read_documents(fields)
    if not query.strip():
        raise invalid("query", "query must be a string that is not empty; got spaces")
    top_n, max_tokens = fields.integer("top_n", 1), fields.integer("max_tokens_per_doc", 1)
    with_texts = fields.boolean("return_documents") or fields.boolean("return_text")
    raw, cut = fields.boolean("raw_scores"), fields.boolean("truncate", True)
    tokenizer = pipeline("rerank", served.model).tokenizer
    limit = served.context if cut else None
    if len(tokenizer.beginning(query, served.context)) < len(query):
        message = f"query has {len(query)} characters, which exceed the context of {served.context} tokens"
        raise invalid("query", f"{message}; shorten it")
    if limit is None and (max_tokens is None or max_tokens > served.context):
        texts = [served.check_length(text) for text in documents]
    else:
        fit = min(max_tokens or served.context, served.context)
        texts = [tokenizer.beginning(text, fit) for text in documents]
    try:
        check_query(tokenizer, query, limit)
    except InputError as error:
        raise invalid("query", str(error)) from None
    if max_tokens is not None:
        texts = [truncate_text(tokenizer, text, max_tokens)[0] for text in texts]
    pairs = [tokenize_pair(tokenizer, query, text).truncate(limit, "only_second") for text in texts]
    if (longest := max(map(len, pairs))) > served.context:
        raise too_long(served.context, longest)

    def render(logits: list[Tensor], usage: dict[str, int]) -> Any:
        scores = [float(one if raw else one.sigmoid()) for one in logits]
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_n]
        text = lambda i: {"document": {"text": documents[i]}} if with_texts else {}
        entries = [{"index": i, "relevance_score": scores[i], **text(i)} for i in order]
        id = f"rerank-{secrets.token_hex(12)}"
        return {"object": "list", "id": id, "model": served.id, "results": entries, "usage": usage}

    return Job(rows=pairs, compute=served.logits, tokens=sum(map(len, pairs)), render=render)


def read_documents(fields: RequestFields) -> list[str]:
    name = "texts" if fields.get("documents") is None and fields.get("texts") is not None else "documents"
    if not isinstance(fields.require(name), list):
        raise invalid(name, f"{name} must be a list of texts, at least one; got {kind(fields.get(name))}")
    entries = fields.entries(name)
    texts: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in entries]
    for i, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise invalid(name, f"{name}[{i}] must be a string that is not empty; got {entries[i]!r:.60}")
    return texts


def tokenize(server: Server, fields: RequestFields) -> Response:
    served, text = server.find(fields), fields.get("prompt")
    if not isinstance(text, str):
        raise invalid("prompt", "prompt must be a string")
    check_characters("prompt", text, MAX_CHARACTERS)
    ids = served.tokenizer.encode(text, special=fields.boolean("add_special_tokens", True))
    names = served.tokenizer.tokens(ids)
    return Json({"count": len(ids), "max_model_len": served.context, "tokens": ids, "token_strs": names})


def detokenize(server: Server, fields: RequestFields) -> Response:
    served = server.find(fields)
    served.tokenizer  # noqa: B018  a model without one is refused before its request is read
    ids = read_token_ids("tokens", fields.get("tokens"))
    if len(ids) > MAX_TOKENS:
        message = f"tokens has {len(ids)} entries; {MAX_TOKENS} are the most; send them in parts"
        raise invalid("tokens", message)
    return Json({"prompt": served.text(ids)})


async def tokenizer_info(server: Server, request: Request) -> Response:
    """What evaluation harnesses ask for: the special tokens, the chat template, the context."""
    served = server.find(RequestFields(dict(request.query_params)))
    tokenizer = served.tokenizer
    special = {f"{role}_token": tokenizer.roles.get(role) for role in ("bos", "eos", "unk", "pad")}
    return Json({
        "tokenizer_class": type(tokenizer).__name__, "model": served.id, **special,
        "vocab_size": len(tokenizer), "model_max_length": served.context, "chat_template": served.template,
    })  # fmt: skip
