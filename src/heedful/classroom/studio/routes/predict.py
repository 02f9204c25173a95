"""From logits to a token: the chain of decode/sampling, rule by rule, and the draw."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from heedful.classroom.studio import predictions, snippets
from heedful.classroom.studio.shared_state import Here
from heedful.classroom.studio.traces import Trace
from heedful.core.errors import InputError
from heedful.decode.sampling import Sampling, generator, uniforms
from heedful.interp.prediction import draw_token, words_at
from heedful.serve.guard import Json

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


@router.get("/api/draw")
def drawn_numbers(seed: int = 0, count: int = 16) -> Response:
    """The numbers that the first row of `generate(…, seed=seed)` draws, one for each token."""
    if seed < 0 or not 1 <= count <= 4096:
        raise InputError("a seed is 0 or above, and 1 to 4096 numbers are drawn")
    return Json({"seed": seed, "u": uniforms([generator(seed)], count)[0].tolist()})


@router.post("/api/predict")
def predict(body: Choice, studio: Here) -> Response:
    look = studio.look_at_trace(body.trace)
    if look.trace.output is None:
        raise InputError(
            f"{look.trace.entry.id} is a table of vectors and predicts no words", hint="choose a model"
        )
    model, sampling = look.loaded_model.sequence, body.sampling()
    logits = words_at(model, look.trace.output, body.position)
    drawn = draw_token(logits, sampling, seed=body.seed, step=body.step)
    below = drawn.chances["final"].cumsum(-1)
    below = below / below[-1]
    ids = list(dict.fromkeys([*logits.topk(min(body.count, len(logits))).indices.tolist(), drawn.token]))
    table = [
        row | {"logit": float(logits[i])} | {name: float(p[i]) for name, p in drawn.chances.items()}
        | {"low": float(below[i - 1]) if i else 0.0, "high": float(below[i])}
        for i, row in zip(ids, predictions.token_entries(model, ids), strict=True)
    ]  # fmt: skip
    return Json({
        "token": predictions.token_entries(model, [drawn.token])[0], "u": drawn.u, "greedy": sampling.greedy,
        "kept": drawn.candidates(), "table": table,
        "counts": {"all": len(logits)}
        | {rule: drawn.candidates(rule) for rule in ("top_k", "top_p", "min_p", "final")},
        "entropy": {"plain": drawn.entropy("p"), "temperature": drawn.entropy("temperature"),
                    "final": drawn.entropy()},
        "python": _python(look.trace, body),
    })  # fmt: skip


def _python(trace: Trace, body: Choice) -> str:
    """Return the lines that run the model and draw the token."""
    options = {n: getattr(body, n) for n in ("temperature", "top_k", "top_p", "min_p", "typical")}
    said = ", ".join(f"{n}={v!r}" for n, v in options.items() if v is not None)
    where = f"seed={body.seed}, step={body.step}"
    lines = [
        f"drawn = draw_token(logits[0, {body.position}], Sampling({said}), {where})",
        "print(model.tokenizer.tokens([drawn.token]))",
    ]
    imports = "from heedful.decode.sampling import Sampling\nfrom heedful.interp.prediction import draw_token"
    return snippets.of_pass(trace, lines="\n".join(lines), imports=imports)
