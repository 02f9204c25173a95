"""What happens between input and output: lens, surprise, states, neurons, gradients, neighbours, order."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import torch.nn.functional as F
from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from heedful.classroom.figures.token_labels import visible_tokens
from heedful.classroom.studio import snippets, tokens
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.trace_builder import SamplingOptions
from heedful.classroom.studio.traces import Here, Look, Seen, Trace
from heedful.core.errors import InputError
from heedful.decode.sampling import generator, uniforms
from heedful.decode.settings import GenerationSettings
from heedful.interp.gradients import attribution, gradient_by_distance
from heedful.interp.inputs import stack_of
from heedful.interp.measurements import shuffle_test
from heedful.interp.observe.lens import logit_lens, neighbours, surprisal
from heedful.interp.observe.prediction import changed_position, draw_token, words_at
from heedful.interp.observe.recurrent_states import summarise_states, top_neurons
from heedful.serve.json_response import Json

router = APIRouter()
MAX_LENS_BYTES = 400 * 2**20  # of the logits of every layer and position


@router.get("/api/trace/{id}/lens")
def lens(look: Seen, count: int = 5) -> Response:
    """What each layer would predict, at every position."""
    layers = look.run(lambda loaded_model: _lens(loaded_model, look.trace, max(1, min(count, 20))))
    return Json(layers | {"python": snippets.of_trace(look.trace, "lens")})


def _lens(loaded_model: LoadedModel, trace: Trace, count: int) -> dict[str, Any]:
    model = loaded_model.sequence
    T, layers = trace.given.read.shape[1], len(stack_of(model)[1])
    if 4 * T * layers * model.config.vocab > MAX_LENS_BYTES:
        raise InputError(
            f"the lens over {T} tokens and {layers} layers needs too much memory", hint="take a shorter text"
        )
    seen = logit_lens(model, trace.given)
    best = seen.log_probabilities.topk(min(count, seen.logits.shape[-1]), -1)
    entries = {t["id"]: t for t in tokens.token_entries(model, best.indices.unique().tolist())}
    candidates = lambda ids, ps: [entries[i] | {"p": math.exp(p)} for i, p in zip(ids, ps, strict=True)]
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    # The norm of each vector on its way up, and its cosine with the layer before.
    states = [trace.value(loaded_model, f"{name}.output").float() for name in seen.layers]
    cosine: list[Any] = [[None] * len(states[0])]
    cosine += [F.cosine_similarity(a, b, dim=-1).tolist() for a, b in pairwise(states)]
    names = list(seen.tokens)
    return {
        "layers": list(seen.layers), "tokens": names, "shown": visible_tokens(model, names),
        "top": [[candidates(i, p) for i, p in zip(ids, ps, strict=True)] for ids, ps in rows],
        "entropy": seen.entropy(), "rank": seen.final_ranks(),
        "surprisal": [[*row, None] for row in seen.surprisal(trace.given.read[0]).tolist()],
        "norms": [x.norm(dim=-1).tolist() for x in states], "cosine": cosine,
    }  # fmt: skip


@router.get("/api/trace/{id}/surprisal")
def surprise(look: Seen) -> Response:
    return look.respond(surprisal)


@router.get("/api/trace/{id}/states")
def trace_states(look: Seen) -> Response:
    """Gates and states of recurrent parts, norms by layer, neurons, and what is kept while writing."""
    trace = look.trace
    if trace.output is None:
        raise InputError(
            "word vectors have no states: one vector for each word", hint="choose a model that reads"
        )
    value = lambda name: trace.value(look.loaded_model, name)
    summary = look.run(lambda loaded_model: summarise_states(loaded_model.sequence, trace.shapes, value))
    return Json(summary | {"python": snippets.of_trace(trace, "states")})


@router.get("/api/trace/{id}/neurons")
def neurons(look: Seen, name: str, count: int = 10) -> Response:
    """The neurons of a feed-forward layer that fire most in this text, and the tokens they fire for."""
    value = look.trace.value(look.loaded_model, name).float()
    if value.dim() != 2:
        raise InputError(f"{name} has the shape {tuple(value.shape)}", hint="neurons are (tokens, neurons)")
    lines = f"print(top_neurons(watch[{name!r}][0], {count}))"
    python = snippets.of_pass(look.trace, "tensor", lines, snippets.import_lines(top_neurons), name=name)
    return Json({"name": name, "neurons": top_neurons(value, count), "python": python})


@router.get("/api/trace/{id}/reach")
def gradient_reach(look: Seen) -> Response:
    """How large the gradient is that the last state sends back, by distance."""
    return look.respond(gradient_by_distance, ".relative")


@router.get("/api/trace/{id}/neighbours")
def nearest_tokens(look: Seen, name: str = "", count: int = 5) -> Response:
    return look.respond(neighbours, name=name, count=max(1, min(count, 50)))


@router.get("/api/trace/{id}/attribution")
def attribute_prediction(
    look: Seen, answer: str | None = None, position: int = -1,
    method: Literal["integrated", "gradient"] = "integrated",
) -> Response:  # fmt: skip
    """What each token adds to the logit of an answer; a number names a token by its id."""
    chosen = int(answer) if answer is not None and answer.isdigit() else answer or None
    return look.respond(attribution, answer=chosen, position=position, method=method)


@router.get("/api/trace/{id}/order")
def order(look: Seen, seed: int = 0) -> Response:
    """The same tokens in another order: does the model notice?"""
    model, test = look.loaded_model.sequence, look.call(shuffle_test, seed=seed)
    at, token = changed_position(model, test.shuffled, test.change, test.before)
    has_positions = test.over is not None and model.tables["tokens"].position is not None
    without = look.call(shuffle_test, seed=seed, positions=False).change if has_positions else None
    return Json({
        "shuffled": list(test.shuffled.tokens), "over": test.over, "positions": len(test.change),
        "position": at, "token": visible_tokens(model, [token])[0],
        "kl": float(test.change.mean()) if test.over else None,
        "kl_without_positions": None if without is None else float(without.mean()),
        "cosine": test.cosine, **tokens.matching_position(model, test.before, test.after, at, 10),
        "python": snippets.of_call(look.trace, shuffle_test, ".change", seed=seed),
    })  # fmt: skip


# From logits to a token: the chain of decode/sampling, rule by rule, and the draw.


RULES = ("temperature", "top_k", "top_p", "min_p", "typical")


class Choice(SamplingOptions):
    """Where in which trace, and how to choose."""

    trace: str
    position: int = -1
    temperature: float = 1.0
    typical: float | None = None
    step: int = Field(default=0, ge=0, lt=4096)
    count: int = Field(default=50, ge=1, le=1000)


@router.get("/api/draw")
def drawn_numbers(seed: int = 0, count: int = 16) -> Response:
    """The numbers that the first row of `generate(…, seed=seed)` draws, one per token."""
    if seed < 0 or not 1 <= count <= 4096:
        raise InputError("a seed is 0 or above, and 1 to 4096 numbers are drawn")
    return Json({"seed": seed, "u": uniforms([generator(seed)], count)[0].tolist()})


@router.post("/api/predict")
def predict(body: Choice, studio: Here) -> Response:
    look = Look(studio, studio.traces.get(body.trace))
    if look.trace.output is None:
        raise InputError(
            f"{look.trace.entry.id} is a table of vectors and predicts no words", hint="choose a model"
        )
    model = look.loaded_model.sequence
    settings = GenerationSettings(**{name: getattr(body, name) for name in RULES})
    logits = words_at(model, look.trace.output, body.position)
    drawn = draw_token(logits, settings, seed=body.seed, step=body.step)
    below = drawn.chances["final"].cumsum(-1)
    below = below / below[-1]
    ids = list(dict.fromkeys([*logits.topk(min(body.count, len(logits))).indices.tolist(), drawn.token]))
    table = [
        row | {"logit": float(logits[i])} | {name: float(p[i]) for name, p in drawn.chances.items()}
        | {"low": float(below[i - 1]) if i else 0.0, "high": float(below[i])}
        for i, row in zip(ids, tokens.token_entries(model, ids), strict=True)
    ]  # fmt: skip
    return Json({
        "token": tokens.token_entries(model, [drawn.token])[0], "u": drawn.u, "greedy": settings.greedy,
        "kept": drawn.candidates(), "table": table,
        "counts": {"all": len(logits)}
        | {rule: drawn.candidates(rule) for rule in ("top_k", "top_p", "min_p", "final")},
        "entropy": {"plain": drawn.entropy("p"), "temperature": drawn.entropy("temperature"),
                    "final": drawn.entropy()},
        "python": _python(look.trace, body),
    })  # fmt: skip


def _python(trace: Trace, body: Choice) -> str:
    """Return the lines that run the model and draw the token."""
    arguments = ", ".join(f"{n}={v!r}" for n in RULES if (v := getattr(body, n)) is not None)
    where = f"seed={body.seed}, step={body.step}"
    lines = [
        f"drawn = draw_token(logits[0, {body.position}], GenerationSettings({arguments}), {where})",
        "print(model.tokenizer.tokens([drawn.token]))",
    ]
    imports = snippets.import_lines(GenerationSettings, draw_token)
    return snippets.of_pass(trace, lines="\n".join(lines), imports=imports)
