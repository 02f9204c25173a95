"""Positions of a model."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from starlette.responses import Response

from heedful.classroom.studio import snippets
from heedful.classroom.studio.shared_state import Here
from heedful.classroom.studio.tensor_response import tensor_response
from heedful.core.errors import InputError, nearest
from heedful.interp.mixing import NOTES, describe_positions, position_tensors
from heedful.serve.guard import Json
from heedful.word2vec import Word2Vec

router = APIRouter()


@router.get("/api/models/{id}/positions")
def model_positions(id: str, studio: Here, length: int = 64) -> Response:
    held = studio.registry.get(id)
    if isinstance(held.model, Word2Vec):
        found: dict[str, Any] = {
            "type": "none", "length": 0, "tensors": {}, "slopes": None, "buckets": None, "frequencies": None,
            "base": None, "note": NOTES["none"], "formula": "",
        }  # fmt: skip
        return Json(found | {"python": snippets.script(held.entry, "print(vectors.dim)")})
    found = held.run(lambda: describe_positions(held.sequence, length))
    return Json(found | {"python": snippets.of_model(held.entry, position_tensors, found["length"])})


@router.get("/api/models/{id}/positions/tensor")
def position_tensor(
    id: str, name: str, studio: Here, length: int = 64, dtype: Literal["f32", "f16", "u8"] = "f32"
) -> Response:
    held = studio.registry.get(id)
    found = held.run(lambda: position_tensors(held.sequence, length))
    if name not in found:
        said = nearest(name, found) or f"there are {', '.join(found) or 'none'}"
        raise InputError(f"{id} has no table {name!r} of positions", hint=said)
    return tensor_response(found[name], dtype)
