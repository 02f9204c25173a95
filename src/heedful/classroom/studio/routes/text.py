"""How models cut a text into tokens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from heedful.classroom.studio import snippets, tokens
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.shared_state import Here
from heedful.serve.guard import Json
from heedful.word2vec import Word2Vec

router = APIRouter()
SHOWN = 4000  # tokens that are listed


class Cut(BaseModel):
    """One text, one or two tokenizers."""

    model: str
    text: str
    other: str | None = None
    special: bool = True


@router.post("/api/tokenize")
def tokenize(body: Cut, studio: Here) -> Response:
    text, warnings = tokens.tidy(body.text)
    found = [_cut(studio.registry.get(id), text, body.special) for id in (body.model, body.other) if id]
    for one in found:
        if one["count"] > SHOWN:
            warnings.append(f"{one['model']}: {one['count']:,} tokens; the first {SHOWN:,} are listed")
    return Json({"tokenizers": found, "warnings": warnings})


def _cut(loaded_model: LoadedModel, text: str, special: bool) -> dict[str, Any]:
    about: dict[str, Any] = {"model": loaded_model.id}
    if isinstance(loaded_model.model, Word2Vec):
        words = tokens.words_of(loaded_model.model, text)
        unknown = sum(not w["known"] for w in words)
        return about | {
            "kind": "words", "size": len(loaded_model.model), "tokens": words[:SHOWN], "count": len(words),
            "unknown": unknown,
            "characters_per_token": len(text) / len(words) if words else None, "words": None, "lattice": None,
            "note": None, "python": snippets.script(loaded_model.entry, f"print({text!r}.split())"),
        }  # fmt: skip
    lines = f"print(model.tokenizer.split({text!r}, special={special}))"
    return about | tokens.tokenize_text(loaded_model.sequence, text, special, SHOWN) | {
        "python": snippets.script(loaded_model.entry, lines)
    }  # fmt: skip
