"""Two models, or two checkpoints of one, on the same input."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from heedful.inspect.change import Ablation
from heedful.server.json_response import Json
from heedful.studio import measurements, predictions, snippets
from heedful.studio.routes.trace import Edit, Run, run_trace
from heedful.studio.shared_state import Client, Here, Studio
from heedful.studio.traces import Trace
from heedful.studio.workers import Ticket

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
def compare(body: Both, studio: Here, client: Client = None) -> Response:
    ticket = studio.clients.ticket(client)
    runs = []
    for side in (body.a, body.b):
        kind = studio.registry.get(side.model)
        target = body.target if not kind.entry.vectors and _writes(kind.sequence) else None
        runs.append(
            run_trace(studio, Run(model=side.model, text=body.text, target=target, edit=side.edit), ticket)
        )
    a, b = runs
    return Json({"a": a.answer, "b": b.answer, **_paired_values(studio, a, b), "python": _python(a, b)})


class Text(BaseModel):
    """One model and a text that is cut into windows."""

    model: str
    text: str
    target: str | None = None
    window: int = Field(default=64, ge=2, le=1024)


@router.post("/api/losses")
def losses(body: Text, studio: Here) -> Response:
    """Mean −log p by place in a window of the text."""
    held = studio.registry.get(body.model)
    return Json(held.run(lambda: measurements.losses(held, body.text, body.target, body.window)))


@router.get("/api/models/{id}/speed")
def speed(id: str, studio: Here) -> Response:
    """Tokens a second by length, measured now; nothing is remembered."""
    held, ticket = studio.registry.get(id), Ticket()
    return Json(held.run(lambda: measurements.speeds(held, ticket)))


def _writes(model: Any) -> bool:
    return len(model.tables) > 1


def _names(trace: Trace) -> dict[str, list[str]]:
    words = lambda listed: [t["text"] for t in listed or []]
    written = words(trace.written)[:-1]  # behind the last word each may go on in its own way
    return {"tokens": words(trace.tokens), "target": words(trace.target), "written": written}


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
            "the two cut the text differently: their pictures stand beside each other and are not subtracted"
        )
    if a.output is None or b.output is None:
        return out
    model, other = (studio.registry.get(t.entry.id).sequence for t in (a, b))
    comparable = predictions.predicts(model) == predictions.predicts(other) == "words"
    if not comparable or not same or a.output.shape != b.output.shape:
        return out
    moved = Ablation(b.output[None].float(), a.output[None].float()).change
    at, token = predictions.telling_position(model, a.given, moved, a.output)
    out |= {"kl": moved.tolist(), "position": at, "token": token}
    p, q = (t.output[at].float().softmax(-1) for t in (a, b))  # type: ignore[index]
    best = list(dict.fromkeys([*p.topk(10).indices.tolist(), *q.topk(10).indices.tolist()]))
    out["shared_top"] = [predictions.entry(model, i) | {"a": float(p[i]), "b": float(q[i])} for i in best]
    return out


def _python(a: Trace, b: Trace) -> str:
    view = lambda t: "output" if t.output is not None else "tensor"
    if a.output is None or b.output is None:
        return "\n\n".join(t.answer["python"] for t in (a, b))
    return "\n\n".join(snippets.of_trace(t, view(t)) for t in (a, b))
