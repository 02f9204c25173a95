"""What happens between input and output: lens, surprise, states, neurons, gradients, neighbours, order."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from fastapi import APIRouter
from starlette.responses import Response
from torch import Tensor

from heedful.errors import InputError
from heedful.inspect.gradients import attribution, gradient_by_distance
from heedful.inspect.lens import logit_lens, neighbours, surprisal
from heedful.inspect.mixing import state_note
from heedful.models.base import LM, Model, Seq2Seq
from heedful.server.json_response import Json
from heedful.studio import predictions, snippets, tokens
from heedful.studio.capabilities import recurrent_of
from heedful.studio.model_registry import LoadedModel
from heedful.studio.shared_state import Look, Seen
from heedful.studio.shuffling import shuffle_test
from heedful.studio.traces import Trace

router = APIRouter()
LENS = 400 * 2**20  # bytes of the logits of every layer and position


@router.get("/api/trace/{id}/lens")
def lens(look: Seen, count: int = 5) -> Response:
    """What each layer would predict, at every position."""
    found = look.run(lambda held: _lens(held.sequence, look.trace, max(1, min(count, 20))))
    return Json(found | {"python": snippets.of_trace(look.trace, "lens")})


def _lens(model: Model, trace: Trace, count: int) -> dict[str, Any]:
    T, layers = trace.given.read.shape[1], len(predictions_layers(trace))
    if 4 * T * layers * model.config.vocab > LENS:
        raise InputError(
            f"the lens over {T} tokens and {layers} layers needs too much memory", hint="take a shorter text"
        )
    seen = logit_lens(model, trace.given)
    logp = seen.logits.float().log_softmax(-1)  # (L, T, V)
    best = logp.topk(min(count, logp.shape[-1]), -1)
    final = logp[-1].argmax(-1)  # (T,)
    at_final = logp.gather(-1, final.expand(len(logp), -1)[..., None])
    follows = trace.given.read[0, 1:].expand(len(logp), -1)
    bits = logp[:, :-1].gather(-1, follows[..., None])[..., 0] / -math.log(2)
    entries = {t["id"]: t for t in predictions.entries(model, best.indices.unique().tolist())}
    said = lambda ids, ps: [entries[i] | {"p": math.exp(p)} for i, p in zip(ids, ps, strict=True)]
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    names = list(seen.tokens)
    return {
        "layers": list(seen.layers), "tokens": names, "shown": list(map(tokens.speller(model), names)),
        "top": [[said(i, p) for i, p in zip(ids, ps, strict=True)] for ids, ps in rows],
        "entropy": torch.special.entr(logp.exp()).sum(-1) / math.log(2), "rank": (logp > at_final).sum(-1),
        "surprisal": [[*row, None] for row in bits.tolist()], **_residual(model, trace, seen.layers),
    }  # fmt: skip


def predictions_layers(trace: Trace) -> list[str]:
    """The layers of the stack that predicts, and what they read."""
    side = "decoder" if trace.given.target is not None else "blocks"
    return [
        n for n in trace.shapes if n.startswith(f"{side}.") and n.count(".") == 2 and n.endswith(".output")
    ]


def _residual(model: Model, trace: Trace, layers: tuple[str, ...]) -> dict[str, Any]:
    """The norm of each vector on its way up, and its cosine with the layer before."""
    kept = [_check_part(trace, model, f"{name}.output").float() for name in layers]
    cosine: list[Any] = [[None] * len(kept[0])]
    cosine += [F.cosine_similarity(a, b, dim=-1).tolist() for a, b in pairwise(kept)]
    return {"norms": [x.norm(dim=-1).tolist() for x in kept], "cosine": cosine}


def _check_part(trace: Trace, model: Model, name: str) -> Tensor:
    """A value inside the model's own thread."""
    return trace.values[name] if name in trace.values else trace.again(model, name)


@router.get("/api/trace/{id}/surprisal")
def surprise(look: Seen) -> Response:
    found = look.run(lambda held: surprisal(held.sequence, look.trace.given).to_dict())
    return Json(found | {"python": snippets.of_trace(look.trace, "surprisal")})


@router.get("/api/trace/{id}/states")
def states(look: Seen) -> Response:
    """Gates and states of recurrent cells over time; norms of layers; neurons; what a cache would hold."""
    trace = look.trace
    if trace.output is None:
        raise InputError(
            "word vectors have no states: one vector for each word", hint="choose a model that reads"
        )
    return Json(look.run(lambda held: _states(held, trace)) | {"python": snippets.of_trace(trace, "states")})


def _states(loaded_model: LoadedModel, trace: Trace) -> dict[str, Any]:
    model = loaded_model.sequence
    parts = []
    for cell in recurrent_of(model):
        names = {
            word: f"{cell['path']}.{word}"
            for word in cell["words"]
            if f"{cell['path']}.{word}" in trace.shapes
        }
        if not names:
            continue
        # A state space has a few numbers for each channel: (T, F, N).
        values = {word: _check_part(trace, model, name).float().flatten(1) for word, name in names.items()}
        side = "target" if cell["side"] == "target" else "tokens"
        parts.append({
            "path": cell["path"], "cell": cell["cell"], "side": side, "reverse": cell["reverse"],
            "words": list(names), "names": names,
            "norm": {w: values[w].norm(dim=-1).tolist() for w in cell["states"] if w in values},
            "saturation": {w: saturation(values[w]) for w in cell["gates"] if w in values},
            "mean": {w: values[w].mean(-1).tolist() for w in names},
        })  # fmt: skip
    norms = _norms(trace, model)
    neurons = [{"name": n, "shape": list(s)} for n, s in trace.shapes.items() if n.endswith(".hidden")]
    note = "" if parts else state_note(model)
    return {"parts": parts, "norms": norms, "neurons": neurons, "cache": _cache(trace, model), "note": note}


def saturation(gate: Tensor) -> dict[str, float]:
    """Shares of values near their ends; a tanh is near both of its."""
    signed = bool((gate < 0).any())
    high = (gate.abs() > 0.9) if signed else (gate > 0.9)
    low = 0.0 if signed else float((gate < 0.1).float().mean())
    return {"low": low, "high": float(high.float().mean())}


def _norms(trace: Trace, model: Model) -> list[dict[str, Any]]:
    """The length of each vector at each layer; the end of a stack only where it is not its last layer's."""
    out: list[dict[str, Any]] = []
    for name in (n for n in trace.shapes if n.endswith(".output") and len(trace.shapes[n]) == 2):
        values = _check_part(trace, model, name).float().norm(dim=-1).tolist()
        if not out or values != out[-1]["values"]:
            out.append({"name": name, "values": values})
    return out


def _cache(trace: Trace, model: Model) -> dict[str, int] | None:
    """What is kept while writing: keys and values of the tokens so far, and of a source, which stay as many.

    An encoder writes nothing; a recurrence and what attends without a softmax keep a state of one size.
    """
    if not isinstance(model, Seq2Seq) and not (isinstance(model, LM) and model.causal):
        return None
    size = lambda n: 4 * math.prod(trace.shapes[n])
    each = whole = 0
    for group in (g for g in trace.groups if g.kind == "softmax" and g.stack != "encoder"):
        names = [f"{layer}.{word}" for layer in group.layers for word in "kv"]
        kept = [n for n in names if n in trace.shapes]
        whole += sum(map(size, kept))
        each += 0 if group.cross else sum(size(n) // trace.shapes[n][-2] for n in kept)
    return {"bytes_per_token": each, "bytes": whole} if each else None


@router.get("/api/trace/{id}/neurons")
def neurons(look: Seen, name: str, count: int = 10) -> Response:
    """The neurons of a feed-forward layer that fire most in this text, and the tokens they fire for."""
    value = look.trace.value(look.held, name).float()
    if value.dim() != 2:
        raise InputError(f"{name} has the shape {tuple(value.shape)}", hint="neurons are (tokens, neurons)")
    best = value.amax(0).topk(min(max(1, count), value.shape[1]))
    out = []
    for index, high in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        order = value[:, index].topk(min(5, len(value)))
        pairs = [[t, v] for t, v in zip(order.indices.tolist(), order.values.tolist(), strict=True)]
        out.append({"index": index, "max": high, "tokens": pairs})
    return Json({"name": name, "neurons": out, "python": snippets.of_trace(look.trace, "tensor", name=name)})


@router.get("/api/trace/{id}/reach")
def gradient_reach(look: Seen) -> Response:
    """How large the gradient is that the last state sends back, by distance."""
    found = look.run(lambda held: gradient_by_distance(held.sequence, look.trace.given).to_dict())
    return Json(found | {"python": snippets.of_trace(look.trace, "reach")})


@router.get("/api/trace/{id}/neighbours")
def nearest_tokens(look: Seen, name: str = "", count: int = 5) -> Response:
    found = look.run(
        lambda held: neighbours(held.sequence, look.trace.given, name=name, count=max(1, min(count, 50)))
    )
    return Json(found.to_dict() | {
        "python": snippets.of_trace(look.trace, "neighbours", name=name, count=count)
    })  # fmt: skip


@router.get("/api/trace/{id}/attribution")
def attribute_prediction(
    look: Seen, answer: str | None = None, position: int = -1,
    method: Literal["integrated", "gradient"] = "integrated",
) -> Response:  # fmt: skip
    """What each token adds to the logit of an answer; a number names a token by its id."""
    chosen = int(answer) if answer is not None and answer.isdigit() else answer or None
    options: dict[str, Any] = {"answer": chosen, "position": position, "method": method}
    found = look.run(lambda held: attribution(held.sequence, look.trace.given, **options))
    return Json(found.to_dict() | {"python": snippets.of_trace(look.trace, "attribution", **options)})


@router.get("/api/trace/{id}/order")
def order(look: Seen, seed: int = 0) -> Response:
    """The same tokens in another order: does the model notice?"""
    if look.trace.output is None:
        return Json(_unordered(look))
    return Json(look.run(lambda held: shuffle_test(held.sequence, look.trace, seed)))


def _unordered(look: Look) -> dict[str, Any]:
    words = [t["text"] for t in look.trace.tokens]
    lines = f"words = {words!r}\nprint(vectors.sentence(words) - vectors.sentence(words[::-1]))"
    return {
        "shuffled": words[::-1], "over": None, "positions": 0, "position": 0, "token": words[0],
        "before": [], "after": [], "kl": 0.0, "cosine": 1.0,
        "python": snippets.script(look.trace.entry, lines),
    }  # fmt: skip
