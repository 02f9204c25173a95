"""From logits to a token: the chain of decode/sampling, rule by rule, and the draw."""

from __future__ import annotations

import math
from typing import Any

import torch
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response
from torch import Tensor

from heedful.decode import sampling as rules
from heedful.decode.sampling import Sampling, draw, generator, uniforms
from heedful.errors import InputError
from heedful.models.base import Model
from heedful.server.json_response import Json
from heedful.studio import predictions, snippets
from heedful.studio.shared_state import Here

router = APIRouter()


class Choice(BaseModel):
    """Where in which trace, and how to choose."""

    trace: str
    position: int = -1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical: float | None = None
    seed: int = Field(default=0, ge=0)
    step: int = Field(default=0, ge=0, lt=4096)
    count: int = Field(default=50, ge=1, le=1000)

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p,
            typical=self.typical,
        )  # fmt: skip


def numbers_drawn(seed: int, count: int) -> Tensor:
    """The numbers that the first row of `generate(…, seed=seed)` draws, one for each token."""
    return uniforms([generator(seed)], count)[0]


@router.get("/api/draw")
def drawn_tokens(seed: int = 0, count: int = 16) -> Response:
    if seed < 0 or not 1 <= count <= 4096:
        raise InputError("a seed is 0 or above, and 1 to 4096 numbers are drawn")
    return Json({"seed": seed, "u": numbers_drawn(seed, count).tolist()})


@router.post("/api/predict")
def predict(body: Choice, studio: Here) -> Response:
    look = studio.look_at_trace(body.trace)
    if look.trace.output is None:
        raise InputError(
            f"{look.trace.entry.id} is a table of vectors and predicts no words", hint="choose a model"
        )
    model = look.held.sequence
    logits = predictions.words_at(model, look.trace.output, body.position)
    found = choose_token(model, logits, body)
    options: dict[str, Any] = {"position": body.position}
    return Json(found | {"python": _python(snippets.of_trace(look.trace, "next_token", **options), body)})


def stages(logits: Tensor, sampling: Sampling) -> dict[str, Tensor]:
    """Logits after each rule, in the order of decode/sampling; a rule not asked for changes nothing."""
    z = logits[None]
    out = {"p": z}
    heat = sampling.temperature not in (0, 1)
    out["temperature"] = z = rules.apply_temperature(z, sampling.temperature) if heat else z
    out["top_k"] = z = rules.top_k(z, sampling.top_k) if sampling.top_k is not None else z
    out["top_p"] = z = (
        rules.top_p(z, sampling.top_p) if sampling.top_p is not None and sampling.top_p < 1 else z
    )
    out["min_p"] = z = rules.min_p(z, sampling.min_p) if sampling.min_p else z
    out["final"] = (
        rules.typical(z, sampling.typical) if sampling.typical is not None and sampling.typical < 1 else z
    )
    return out


def choose_token(model: Model, logits: Tensor, body: Choice) -> dict[str, Any]:
    """The token, the number that chose it, and the table of the likeliest."""
    how = body.sampling()
    after = stages(logits, how)
    chances = {name: z[0].softmax(-1) for name, z in after.items()}
    if how.greedy:
        u, token = None, int(logits.argmax())
        chances = {name: p if name == "p" else torch.zeros_like(p) for name, p in chances.items()}
        for name in chances.keys() - {"p"}:
            chances[name][token] = 1.0
    else:
        u = float(numbers_drawn(body.seed, body.step + 1)[-1])
        token = int(draw(how.warp(logits[None]), torch.tensor([u], dtype=torch.float64))[0])
    below = chances["final"].double().cumsum(-1)
    below = below / below[-1]
    rows = list(dict.fromkeys([*logits.topk(min(body.count, len(logits))).indices.tolist(), token]))
    left = lambda name: int((chances[name] > 0).sum())
    entropy = lambda p: float(torch.special.entr(p.double()).sum() / math.log(2))  # in bits
    return {
        "token": predictions.entry(model, token), "u": u, "greedy": how.greedy,
        "kept": left("final"),
        "counts": {"all": len(logits)} | {n: left(n) for n in ("top_k", "top_p", "min_p", "final")},
        "entropy": {"plain": entropy(chances["p"]), "temperature": entropy(chances["temperature"]),
                    "final": entropy(chances["final"])},
        "table": [
            predictions.entry(model, i) | {"logit": float(logits[i])}
            | {name: float(p[i]) for name, p in chances.items()}
            | {"low": float(below[i - 1]) if i else 0.0, "high": float(below[i])}
            for i in rows
        ],
    }  # fmt: skip


def _python(start: str, body: Choice) -> str:
    """The lines that choose, behind those that give the logits."""
    imports, _, rest = start.partition("\n\n")
    rest = "\n".join(rest.split("\n")[:-2])  # without the table of the likeliest
    options = {n: getattr(body, n) for n in ("temperature", "top_k", "top_p", "min_p", "typical")}
    said = ", ".join(f"{n}={v!r}" for n, v in options.items() if v is not None)
    lines = [
        imports, "from heedful.decode.sampling import Sampling, draw, generator, uniforms", "", rest,
        "logits = logits.float()[None]", f"sampling = Sampling({said})",
        f"u = uniforms([generator({body.seed})], {body.step + 1})[:, -1]",
        "token = logits.argmax(-1) if sampling.greedy else draw(sampling.warp(logits), u)",
        "print(model.tokenizer.tokens(token.tolist()))",
    ]  # fmt: skip
    return "\n".join(lines)
