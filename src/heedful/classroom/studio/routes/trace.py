"""A run with capture, and its numbers: tensors, thumbnails, scores of heads, rollout, effects."""

from __future__ import annotations

import time
from typing import Any, Literal

import torch
from fastapi import APIRouter, Request
from starlette.responses import Response
from torch import Tensor

from heedful.classroom.studio import snippets, tokens
from heedful.classroom.studio.jobs import Report, Ticket, run_while_connected, stream_job
from heedful.classroom.studio.responses import cut_tensor, tensor_response
from heedful.classroom.studio.trace_builder import TraceBuilder, TraceRequest, trace_words
from heedful.classroom.studio.traces import Client, Here, Look, Seen, Studio, Trace
from heedful.core.errors import InputError
from heedful.interp.intervene.ablation import each_head_effect
from heedful.interp.learn.head_catalogue import find_heads
from heedful.interp.observe.attention import (
    head_scores,
    pool_pattern,
    rollout,
    unscaled_pattern,
    value_effects,
)
from heedful.interp.observe.prediction import words_at
from heedful.serve.json_response import Json

router = APIRouter()
Form = Literal["f32", "f16", "u8"]


@router.post("/api/trace")
async def run(body: TraceRequest, request: Request, studio: Here, client: Client = None) -> Response:
    ticket = studio.clients.ticket(client)
    trace = await run_while_connected(request, ticket, lambda: run_trace(studio, body, ticket))
    return Json(trace.response)


def run_trace(studio: Studio, body: TraceRequest, ticket: Ticket) -> Trace:
    """Run a model once and keep what it computed."""
    if body.text is None and body.ids is None:
        raise InputError("the text is empty", hint="give a text, or ids")
    loaded_model = studio.registry.get(body.model)
    began = time.perf_counter()
    id = studio.traces.new_id()
    if loaded_model.entry.vectors:
        work = lambda: trace_words(loaded_model, body, id)
    else:
        work = lambda: TraceBuilder(loaded_model, body).trace(id)
    trace = loaded_model.run(work, ticket)
    ticket.check()
    trace.response["ms"] = round((time.perf_counter() - began) * 1000, 1)
    studio.traces.add(trace)
    return trace


@router.get("/api/trace/{id}")
def again(look: Seen) -> Response:
    return Json(look.trace.response)


@router.get("/api/trace/{id}/tensor")
def tensor(
    look: Seen, name: str, head: int | None = None, rows: str | None = None, cols: str | None = None,
    dtype: Form = "f32", reduction: Literal["none", "mean", "max", "norm"] = "none",
) -> Response:  # fmt: skip
    """Numbers as bytes: all heads of a value, or one, or some rows."""
    value = _value(look, name)
    look.studio.traces.fit()
    softmax = {layer for group in look.trace.groups if group.kind == "softmax" for layer in group.layers}
    share = name.endswith(".pattern") and name.removesuffix(".pattern") in softmax
    cut = cut_tensor(value, head, rows, cols, reduction)
    tag = f"{look.trace.id}|{name}|{head}|{rows}|{cols}|{dtype}|{reduction}"
    return tensor_response(cut, dtype, share=share, full=tuple(value.shape), tag=tag)


def _value(look: Look, name: str) -> Tensor:
    """Return a value by its name; PATH.effect is the size of what each key adds, PATH.unscaled the pattern
    without the division by √d_k.
    """
    trace, (path, _, word) = look.trace, name.rpartition(".")
    if word not in ("effect", "unscaled"):
        return trace.values[name] if name in trace.values else trace.value(look.loaded_model, name)
    if path not in {layer for group in trace.groups for layer in group.layers}:
        raise InputError(f"{path[:80]!r} attends to nothing", hint="take a layer of a group")
    loaded_model = look.loaded_model
    of = lambda word: trace.value(loaded_model, f"{path}.{word}")
    if word == "unscaled":
        return unscaled_pattern(loaded_model.sequence, path, of("scores"), of("pattern"), of("q"), of("k"))
    return value_effects(loaded_model.sequence, path, of("pattern"), of("v"))


@router.get("/api/trace/{id}/thumbs")
def thumbs(look: Seen, group: str, size: int = 64) -> Response:
    """Every head of a group, small: (layers, heads, h, w)."""
    if not 4 <= size <= 128:
        raise InputError(f"`size={size}` must lie between 4 and 128")
    chosen = look.trace.group(group)
    trace, names = look.trace, [f"{layer}.pattern" for layer in chosen.layers]
    small = {name: pool_pattern(trace.values[name], size) for name in names if name in trace.values}
    if missing := [name for name in names if name not in small]:  # too large to be kept: pooled in passing
        pool = lambda pattern: pool_pattern(pattern, size)
        small |= look.run(lambda loaded_model: trace.recompute(loaded_model.sequence, missing, pool))
    every = [small[name] for name in names]
    most = max(len(p) for p in every)
    filled = torch.stack([torch.nn.functional.pad(p, (0, 0, 0, 0, 0, most - len(p))) for p in every])
    tag = f"{look.trace.id}|thumbs|{group}|{size}"
    return tensor_response(filled, "u8", share=chosen.kind == "softmax", tag=tag)


@router.get("/api/trace/{id}/scores")
def scores(look: Seen) -> Response:
    """What each head does on this text, in a few numbers; of the model as it is, without edits."""
    trace = look.trace
    if trace.scores is None:
        trace.scores = [score.to_dict() for score in look.call(head_scores)]
    return Json({"scores": trace.scores, "python": snippets.of_trace(trace, "heads")})


@router.get("/api/trace/{id}/find")
def search_heads(look: Seen, query: str, key: str, count: int = 12) -> Response:
    """Which heads look from one token at another, the strongest first; of the model without edits."""
    options: dict[str, Any] = {"from_token": query.strip(), "to_token": key.strip()}
    options["count"] = max(1, min(count, 1000))
    heads = [head.to_dict() for head in look.call(find_heads, **options)]
    return Json({"heads": heads, "python": snippets.of_call(look.trace, find_heads, **options)})


@router.get("/api/trace/{id}/rollout")
def attention_rollout(look: Seen, side: str = "") -> Response:
    value = look.call(rollout, side=side)
    return tensor_response(value, tag=f"{look.trace.id}|rollout|{side}")


@router.get("/api/trace/{id}/effects")
def effects(look: Seen, studio: Here, group: str, mean: bool = False, client: Client = None) -> Response:
    """How far the predictions move when each head alone is switched off, or says its mean over this text: a
    stream that tells how many heads are done, and stops within a pass when nobody listens any more.
    """
    trace, loaded_model, chosen = look.trace, look.loaded_model, look.trace.group(group)

    def measure(report: Report) -> dict[str, Any]:
        if (group, mean) not in trace.effects:
            heads = {path: trace.shapes[f"{path}.pattern"][0] for path in chosen.layers}
            changes: dict[str, list[float]] = {path: [] for path in heads}
            model, usual = loaded_model.sequence, trace.given if mean else None
            each = each_head_effect(model, trace.given, heads, mean=usual)
            for done, (path, _, change) in enumerate(each, 1):
                changes[path].append(change)
                report({"event": "progress", "done": done, "of": sum(heads.values())})
            trace.effects[group, mean] = changes
        python = snippets.of_trace(trace, "effects", mean=mean)
        return {"event": "done", "effects": trace.effects[group, mean], "python": python}

    return stream_job(loaded_model.worker, measure, studio.clients.ticket(client))


@router.get("/api/trace/{id}/logits")
def logits(look: Seen, position: int = -1) -> Response:
    """The whole vocabulary's logits at a position, in float32."""
    value = words_at(look.loaded_model.sequence, _output(look), position)
    return tensor_response(value, tag=f"{look.trace.id}|logits|{position}")


@router.get("/api/trace/{id}/top")
def top_tokens(look: Seen, position: int = -1, count: int = 10) -> Response:
    model, output = look.loaded_model.sequence, _output(look)
    if not -len(output) <= position < len(output):
        raise InputError(f"position {position} is outside 0 … {len(output) - 1}")
    prediction = tokens.prediction_at(model, output, position, max(1, min(count, 1000)))
    view = "next_token" if prediction["kind"] == "words" else "output"
    return Json(prediction | {"python": snippets.of_pass(look.trace, view, position=position)})


def _output(look: Look) -> Tensor:
    if look.trace.output is None:
        raise InputError(
            f"{look.trace.entry.id} is a table of vectors and predicts nothing", hint="ask for neighbours"
        )
    return look.trace.output


@router.get("/api/trace/{id}/python")
def trace_snippet(
    look: Seen, view: str, name: str | None = None, head: int | None = None, words: bool = False,
    between: str = "",
) -> Response:  # fmt: skip
    """The lines that give a view's numbers."""
    if view not in snippets.VIEWS:
        raise InputError(f"no view {view!r}", hint=f"there are {', '.join(snippets.VIEWS)}")
    options: dict[str, Any] = {k: v for k, v in (("name", name), ("head", head)) if v is not None}
    if view == "words":
        options = {"layer": (name or "").removesuffix(".pattern"), "head": head or 0, "words": words}
        options |= {"between": between} if between else {}
    return Json({"python": snippets.of_trace(look.trace, view, **options)})
