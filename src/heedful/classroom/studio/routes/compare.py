"""Two models, or two checkpoints of one, on the same input."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from heedful.classroom.figures.token_labels import visible_tokens
from heedful.classroom.studio import snippets, tokens
from heedful.classroom.studio.jobs import Ticket, run_while_connected
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.routes.trace import run_trace
from heedful.classroom.studio.tokens import tidy
from heedful.classroom.studio.trace_builder import TraceRequest
from heedful.classroom.studio.traces import Client, Edit, Here, Studio, Trace, run_model
from heedful.core.errors import InputError
from heedful.interp.inputs import reading
from heedful.interp.intervene.ablation import Ablation
from heedful.interp.measurements import measure_speeds, text_windows
from heedful.interp.observe.lens import loss_by_position
from heedful.interp.observe.prediction import changed_position, is_causal, predicts
from heedful.models.base import Seq2Seq
from heedful.serve.json_response import Json

router = APIRouter()


class Side(BaseModel):
    """One of the two."""

    model: str
    edit: Edit | None = None


class Both(BaseModel):
    """One input for two models."""

    text: str
    target: str | None = None
    a: Side
    b: Side


@router.post("/api/compare")
async def compare(body: Both, request: Request, studio: Here, client: Client = None) -> Response:
    ticket = studio.clients.ticket(client)
    return Json(await run_while_connected(request, ticket, lambda: _compare(studio, body, ticket)))


def _compare(studio: Studio, body: Both, ticket: Ticket) -> dict[str, Any]:
    runs = []
    for side in (body.a, body.b):
        kind = studio.registry.get(side.model)
        target = body.target if not kind.entry.vectors and isinstance(kind.sequence, Seq2Seq) else None
        request = TraceRequest(model=side.model, text=body.text, target=target, edit=side.edit)
        runs.append(run_trace(studio, request, ticket))
    a, b = runs
    return {"a": a.response, "b": b.response, **_paired_values(studio, a, b), "python": _python(a, b)}


class Text(BaseModel):
    """One model and a text that is cut into windows."""

    model: str
    text: str
    target: str | None = None
    window: int = Field(default=64, ge=2, le=1024)


@router.post("/api/losses")
async def losses(body: Text, request: Request, studio: Here) -> Response:
    """Mean −log p by place in a window of the text."""
    return Json(await run_model(studio, request, body.model, partial(_losses, body)))


def _losses(body: Text, loaded_model: LoadedModel) -> dict[str, Any]:
    """Mean −log p by place, in nats, over the windows of a text; of an encoder-decoder over its target."""
    model, text = loaded_model.sequence, tidy(body.text)[0]
    if not isinstance(model, Seq2Seq):
        cut, source = text_windows(model, text, body.window), f"text_windows(model, {text!r}, {body.window})"
        imports = snippets.import_lines(loss_by_position, text_windows)
    elif body.target:
        cut, source = [reading(model, text, body.target)], f"[reading(model, {text!r}, {body.target!r})]"
        imports = snippets.import_lines(loss_by_position, reading)
    else:
        raise InputError("an encoder-decoder is sure of a target", hint="give one")
    losses = loss_by_position(model, cut)
    places = [t for t, v in enumerate(losses.loss) if v is not None]
    return {
        "model": loaded_model.id, "position": places, "loss": [losses.loss[t] for t in places],
        "count": [losses.count[t] for t in places], "windows": len(cut), "length": cut[0].read.shape[1],
        "hidden": not is_causal(model),
        "python": snippets.script(loaded_model.entry, f"print(loss_by_position(model, {source}))", imports),
    }  # fmt: skip


@router.get("/api/models/{id}/speed")
async def speed(id: str, request: Request, studio: Here) -> Response:
    """Tokens a second by length, measured now; nothing is remembered."""

    def measure(loaded_model: LoadedModel) -> dict[str, Any]:
        speeds = measure_speeds(loaded_model.sequence).to_dict()
        return {"model": id} | speeds | {"python": snippets.of_model(loaded_model.entry, measure_speeds)}

    return Json(await run_model(studio, request, id, measure))


def _names(trace: Trace) -> dict[str, list[str]]:
    names = {
        side: [t["text"] for t in trace.response[side] or []] for side in ("tokens", "target", "written")
    }
    return names | {"written": names["written"][:-1]}  # behind the last word each may go on in its own way


def _paired_values(studio: Studio, a: Trace, b: Trace) -> dict[str, Any]:
    """What can be set against each other: equal tokens give differences, equal vocabularies a divergence."""
    ours, theirs = _names(a), _names(b)
    same = all(ours[side] == theirs[side] for side in ("tokens", "target"))
    alike = lambda g, h: ours[g.queries] == theirs[h.queries] and ours[g.keys] == theirs[h.keys]
    pairs = [
        {"group_a": g.name, "group_b": h.name}
        for g in a.groups
        for h in b.groups
        if g.kind == h.kind and alike(g, h)
    ]
    out: dict[str, Any] = {"same_tokens": same, "kl": None, "difference": pairs, "shared_top": []}
    out |= {"position": 0, "token": "", "note": ""}
    if not same:
        out["note"] = (
            "the two cut the text differently: their pictures stand next to each other and are not subtracted"
        )
    if a.output is None or b.output is None:
        return out
    model, other = (studio.registry.get(t.entry.id).sequence for t in (a, b))
    comparable = predicts(model) == predicts(other) == "words"
    if not comparable or not same or a.output.shape != b.output.shape:
        return out
    moved = Ablation(b.output[None].float(), a.output[None].float()).change
    at, token = changed_position(model, a.given, moved, a.output)
    out |= {"kl": moved.tolist(), "position": at, "token": visible_tokens(model, [token])[0]}
    p, q = (t.output[at].float().softmax(-1) for t in (a, b))  # type: ignore[index]
    best = list(dict.fromkeys([*p.topk(10).indices.tolist(), *q.topk(10).indices.tolist()]))
    rows = tokens.token_entries(model, best)
    out["shared_top"] = [row | {"a": float(p[row["id"]]), "b": float(q[row["id"]])} for row in rows]
    return out


def _python(a: Trace, b: Trace) -> str:
    if a.output is None or b.output is None:
        return "\n\n".join(t.response["python"] for t in (a, b))
    return "\n\n".join(snippets.of_pass(t) for t in (a, b))
