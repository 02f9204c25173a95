"""The worked arithmetic: of a trace, of a shipped exercise, of your own vectors, of one word2vec update."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from starlette.responses import Response

from heedful.classroom.arithmetic.explain import explain, explain_values
from heedful.classroom.arithmetic.render import FORMATS, Style
from heedful.classroom.arithmetic.worked import MATRIX_WIDTH, Derivation
from heedful.classroom.studio import snippets
from heedful.classroom.studio.traces import Here, Seen, Studio
from heedful.core.errors import InputError
from heedful.serve.json_response import Json

router = APIRouter()
TOLERANCE = 1e-4  # of float32, relative to the largest value; `Derivation.compare` refuses more
MAX_LETTERS = 200_000  # of a rendered form; longer ones are left out
MAX_ENTRIES = 4096  # of a vector that is sent
Width = Annotated[int, Query(alias="wide")]  # entries of a vector before it is cut


def with_text(derivation: Derivation, width: int, style: Style) -> dict[str, Any]:
    """Return `to_dict`, shortened, with each line as it is written next to its numbers."""
    lines: list[dict[str, Any]] = []
    for line in derivation.lines:
        if isinstance(line, Derivation):
            lines.append(with_text(line, width, style))
            continue
        _, _, numbers, result = style.cells(line)
        shown = {"operands": (numbers or "")[:20_000], "result": result}
        lines.append(line.to_dict(width) | {"shown": shown})
    return replace(derivation, lines=[]).to_dict() | {"lines": lines}


def derivation_response(derivation: Derivation, width: int, digits: int, python: str) -> Response:
    """Answer with a calculation, the forms it can be copied in, and how far it is from the model's."""
    width, digits = max(2, min(width, MAX_ENTRIES)), max(1, min(digits, 15))
    narrow = min(width, MATRIX_WIDTH)
    texts = {name: derivation.render(name, digits, narrow) for name in FORMATS if name != "html"}
    forms = {name: text if len(text) < MAX_LETTERS else None for name, text in texts.items()}
    check = derivation.check
    source = derivation.check_source
    checked = None if check is None else {
        "difference": check, "tolerance": TOLERANCE, "ok": True, "source": source
    }  # fmt: skip
    lines = with_text(derivation, width, Style(digits, narrow))
    return Json(lines | {"checked": checked, **forms, "python": python})


@router.get("/api/trace/{id}/explain")
def explain_part(
    look: Seen, topic: str = "attention", part: str = "", head: int = 0, token: str = "-1", width: Width = 12,
    digits: int = 4, temperature: float | None = None,
) -> Response:  # fmt: skip
    """The arithmetic of the model on what the trace read, in float64, checked against what it computed."""
    at: int | str = int(token) if token.removeprefix("-").isdigit() else token
    options: dict[str, Any] = {"topic": topic, "part": part, "head": head, "token": at}
    if temperature is not None:
        options["temperature"] = temperature
    worked = look.run(lambda loaded_model: explain(loaded_model.sequence, look.trace.given, **options))
    return derivation_response(worked, width, digits, snippets.of_trace(look.trace, "steps", **options))


@router.get("/api/explain/{exercise}")
def explain_exercise(exercise: str, width: Width = 16, digits: int = 4) -> Response:
    if "/" in exercise or exercise.endswith((".yaml", ".yml", ".json")):
        raise InputError("exercises go by their names", hint="a file is read by: heed explain FILE")
    python = f"import heedful\n\nprint(heedful.explain({exercise!r}))"
    return derivation_response(explain(exercise), width, digits, python)


@router.post("/api/explain")
def explain_posted_values(
    studio: Here, body: Annotated[dict[str, Any], Body()], width: Width = 16, digits: int = 4
) -> Response:
    """Your own vectors and matrices, or one update of word vectors."""
    if "model" in body:
        body = _word2vec_values(studio, body)
    python = f"import heedful\n\nprint(heedful.explain({body!r}))"
    return derivation_response(explain_values(body), width, digits, python)


def _word2vec_values(studio: Studio, body: dict[str, Any]) -> dict[str, Any]:
    """One pair of skip-gram with negative sampling, by the model's own vectors."""
    vectors = studio.registry.get(str(body["model"])).vectors
    table = vectors.input if vectors.output is None or len(vectors.output) != len(vectors) else vectors.output
    row = lambda word: [float(x) for x in table[vectors.row(str(word))]]
    centre = str(body.get("centre", ""))
    contexts, negatives = body.get("contexts") or [], body.get("negatives") or []
    if not isinstance(contexts, list) or not isinstance(negatives, list) or not contexts:
        raise InputError("contexts and negatives are lists of words, contexts of at least one")
    return {
        "topic": "word2vec", "centre": centre, "vector": [float(x) for x in vectors[centre]],
        "contexts": {str(w): row(w) for w in contexts}, "negatives": {str(w): row(w) for w in negatives},
        "rate": float(body.get("rate", 0.025)),
    }  # fmt: skip
