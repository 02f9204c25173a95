"""The worked arithmetic: of a trace, of a shipped exercise, of your own vectors, of one word2vec update."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, Body
from starlette.responses import Response

from heedful.errors import InputError
from heedful.inspect.explain import explain, explain_values
from heedful.inspect.render import FORMATS, Style
from heedful.inspect.worked import Derivation, Line, Operation, Tree, Value
from heedful.server.json_response import Json
from heedful.studio import snippets
from heedful.studio.shared_state import Here, Seen, Studio

router = APIRouter()
TOLERANCE = 1e-4  # of float32, relative to the largest value; `Sheet.compare` refuses more
WRITTEN = 200_000  # letters of a rendered form; longer ones are left out
LONGEST, WIDEST = 4096, 64  # entries of a vector that are sent, rows and columns of a matrix


def shorten_value(value: Value, wide: int) -> Any:
    """A number, vector or matrix; of a long one the ends, and between them how many are not sent."""
    if not isinstance(value, tuple):
        return value if math.isfinite(value) else str(value)
    if value and isinstance(value[0], tuple):
        wide = min(wide, WIDEST)
    if len(value) <= wide:
        return [shorten_value(v, wide) for v in value]
    first, last = max(1, wide - wide // 3), max(1, wide // 3)
    ends = [[shorten_value(v, wide) for v in part] for part in (value[:first], value[-last:])]
    return [*ends[0], f"… {len(value) - first - last} more …", *ends[1]]


def _tree(tree: Tree, wide: int) -> Any:
    if isinstance(tree, Operation):
        parts = tree.args
        most = 4 * min(wide, WIDEST)
        if len(parts) > most:  # a sum over very many keys
            kept = [_tree(a, wide) for a in parts[:most]]
            return {"op": tree.name, "of": [*kept, f"… {len(parts) - most} more …"]}
        return {"op": tree.name, "of": [_tree(a, wide) for a in parts]}
    return shorten_value(tree, wide)


def derivation_tree(derivation: Derivation, wide: int, digits: int) -> dict[str, Any]:
    """`to_dict`, shortened, with each line as it is written beside its numbers."""
    style = Style(digits, min(wide, WIDEST))
    lines: list[dict[str, Any]] = []
    for line in derivation.lines:
        if not isinstance(line, Line):
            lines.append(derivation_tree(line, wide, digits))
            continue
        operands = None if line.operands is None else _tree(line.operands, wide)
        written = "" if line.operands is None else style.tree(line.operands)
        lines.append({
            "label": line.label, "formula": line.formula, "operands": operands,
            "result": shorten_value(line.result, wide),
            "shown": {"operands": written[:20_000], "result": style.value(line.result)},
        })  # fmt: skip
    return {"title": derivation.title, "note": derivation.note, "check": derivation.check, "lines": lines}


def derivation_response(derivation: Derivation, wide: int, digits: int, python: str) -> Response:
    wide, digits = max(2, min(wide, LONGEST)), max(1, min(digits, 15))
    written = {
        name: form(derivation, digits, min(wide, WIDEST)) for name, form in FORMATS.items() if name != "html"
    }
    kept = {name: text if len(text) < WRITTEN else None for name, text in written.items()}
    checked = (
        None
        if derivation.check is None
        else {"difference": derivation.check, "tolerance": TOLERANCE, "ok": True}
    )
    return Json(derivation_tree(derivation, wide, digits) | {"checked": checked, **kept, "python": python})


@router.get("/api/trace/{id}/explain")
def explain_part(
    look: Seen, topic: str = "attention", part: str = "", head: int = 0, token: str = "-1", wide: int = 12,
    digits: int = 4, temperature: float | None = None,
) -> Response:  # fmt: skip
    """The arithmetic of the model on what the trace read, in float64, checked against what it computed."""
    at: int | str = int(token) if token.removeprefix("-").isdigit() else token
    options: dict[str, Any] = {"topic": topic, "part": part, "head": head, "token": at}
    if temperature is not None:
        options["temperature"] = temperature
    worked = look.run(lambda held: explain(held.sequence, look.trace.given, **options))
    return derivation_response(worked, wide, digits, snippets.of_trace(look.trace, "steps", **options))


@router.get("/api/explain/{exercise}")
def exercise(exercise: str, wide: int = 16, digits: int = 4) -> Response:
    if "/" in exercise or exercise.endswith((".yaml", ".yml", ".json")):
        raise InputError("exercises go by their names", hint="a file is read by: heed explain FILE")
    python = f"import heedful\n\nprint(heedful.explain({exercise!r}))"
    return derivation_response(explain(exercise), wide, digits, python)


@router.post("/api/explain")
def values(
    studio: Here, given: Annotated[dict[str, Any], Body()], wide: int = 16, digits: int = 4
) -> Response:
    """Your own vectors and matrices, or one update of word vectors."""
    if "model" in given:
        given = _update(studio, given)
    python = f"import heedful\n\nprint(heedful.explain({given!r}))"
    return derivation_response(explain_values(given), wide, digits, python)


def _update(studio: Studio, given: dict[str, Any]) -> dict[str, Any]:
    """One pair of skip-gram with negative sampling, by the model's own vectors."""
    vectors = studio.registry.get(str(given["model"])).vectors
    table = vectors.input if vectors.output is None or len(vectors.output) != len(vectors) else vectors.output
    row = lambda word: [float(x) for x in table[vectors.row(str(word))]]
    centre = str(given.get("centre", ""))
    observed, drawn = given.get("observed") or [], given.get("drawn") or []
    if not isinstance(observed, list) or not isinstance(drawn, list) or not observed:
        raise InputError("observed and drawn are lists of words, observed of at least one")
    return {
        "topic": "word2vec", "centre": centre, "vector": [float(x) for x in vectors[centre]],
        "observed": {str(w): row(w) for w in observed}, "drawn": {str(w): row(w) for w in drawn},
        "rate": float(given.get("rate", 0.025)),
    }  # fmt: skip
