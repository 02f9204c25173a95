"""/v1/embeddings, and texts as tokens: /tokenize, /detokenize, /tokenizer_info."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from heedful.serve.generation_jobs import EmbeddingJob, compute_embeddings, make_embedding_job
from heedful.serve.guard import Json
from heedful.serve.openai_errors import invalid, model_cannot, unsupported_parameter
from heedful.serve.openai_requests import RequestFields, read_inputs, read_token_ids
from heedful.serve.openai_server import Server, parse_request
from heedful.serve.streams import following

MAX_INPUTS = 2048  # texts of one request for embeddings, as OpenAI allows
MAX_CHARACTERS = 1_000_000  # of a text for /tokenize, which is not bounded by a context
MAX_TOKENS = 250_000  # of one request for /detokenize


async def embeddings(server: Server, request: Request) -> Response:
    def read_embeddings(server: Server, fields: RequestFields) -> tuple[EmbeddingJob, str]:
        served = server.find(fields)
        if not served.embeds:
            raise model_cannot(served.id, f"({served.model.kind}) has no vectors of texts", served.can)
        form, dimensions = (
            fields.choice("encoding_format", ("float", "base64")),
            fields.integer("dimensions", 1),
        )
        if dimensions not in (None, served.model.config.dim):
            message = f"{served.id} has vectors of {served.model.config.dim} numbers and cannot shorten them"
            raise unsupported_parameter("dimensions", message)
        inputs = read_inputs(fields, "input", MAX_INPUTS)
        if not all(inputs):
            raise invalid("input", "input has an empty text; leave it out")
        return make_embedding_job(served, inputs), form

    task, form = await parse_request(server, request, read_embeddings)
    job = server.engine.submit(request.scope["request_id"], work=compute_embeddings(task))
    server.metrics.prompt_tokens.add(task.prompt_tokens)
    async with following(job, request.receive, server.limits.seconds):
        found: list[Tensor] = [vector for some in await job.collect() for vector in some]
    usage = {"prompt_tokens": task.prompt_tokens, "total_tokens": task.prompt_tokens}

    def render_response() -> Response:  # a million numbers take their time
        little_endian = lambda vector: np.ascontiguousarray(vector.numpy(), "<f4").tobytes()
        to_base64 = lambda vector: base64.b64encode(little_endian(vector)).decode()
        encode = Tensor.tolist if form == "float" else to_base64
        rows = [{"object": "embedding", "index": i, "embedding": encode(v)} for i, v in enumerate(found)]
        return Json({"object": "list", "data": rows, "model": task.served.id, "usage": usage})

    return await asyncio.to_thread(render_response)


async def tokenize(server: Server, request: Request) -> Response:
    def encode_prompt(server: Server, fields: RequestFields) -> Response:
        served, text = server.find(fields, default=True), fields.get("prompt")
        if not isinstance(text, str):
            raise invalid("prompt", "prompt must be a string")
        if len(text) > MAX_CHARACTERS:
            message = f"prompt has {len(text)} characters; {MAX_CHARACTERS} are the most; send it in parts"
            raise invalid("prompt", message)
        tokenizer = served.model.tokenizer
        if tokenizer is None:
            raise model_cannot(served.id, "has no tokenizer", served.can)
        ids = tokenizer.encode(text, special=fields.boolean("add_special_tokens", True))
        names = tokenizer.tokens(ids)
        return Json({"count": len(ids), "max_model_len": served.context, "tokens": ids, "token_strs": names})

    return await parse_request(server, request, encode_prompt)


async def detokenize(server: Server, request: Request) -> Response:
    def decode_tokens(server: Server, fields: RequestFields) -> Response:
        served = server.find(fields, default=True)
        if served.model.tokenizer is None:
            raise model_cannot(served.id, "has no tokenizer", served.can)
        ids = read_token_ids("tokens", fields.get("tokens"))
        if len(ids) > MAX_TOKENS:
            message = f"tokens has {len(ids)} entries; {MAX_TOKENS} are the most; send them in parts"
            raise invalid("tokens", message)
        return Json({"prompt": served.text(ids)})

    return await parse_request(server, request, decode_tokens)


async def tokenizer_info(server: Server, request: Request) -> Response:
    """What evaluation harnesses ask for: the special tokens, the chat template, the context."""
    served = server.find(RequestFields(dict(request.query_params)), default=True)
    tokenizer = served.model.tokenizer
    if tokenizer is None:
        raise model_cannot(served.id, "has no tokenizer", served.can)
    special = {f"{role}_token": tokenizer.roles.get(role) for role in ("bos", "eos", "unk", "pad")}
    return Json({
        "tokenizer_class": type(tokenizer).__name__, "model": served.id, **special,
        "vocab_size": len(tokenizer), "model_max_length": served.context, "chat_template": served.template,
    })  # fmt: skip
