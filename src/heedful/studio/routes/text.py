"""How models cut a text into tokens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from heedful.server.json_response import Json
from heedful.studio import snippets, tokens
from heedful.studio.shelf import Held
from heedful.studio.state import Here
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
def tokenize(asked: Cut, studio: Here) -> Response:
    text, warnings = tokens.tidy(asked.text)
    found = [_cut(studio.shelf.get(id), text, asked.special) for id in (asked.model, asked.other) if id]
    for one in found:
        if one["count"] > SHOWN:
            warnings.append(f"{one['model']}: {one['count']:,} tokens; the first {SHOWN:,} are listed")
    return Json({"tokenizers": found, "warnings": warnings})


def _cut(held: Held, text: str, special: bool) -> dict[str, Any]:
    about: dict[str, Any] = {"model": held.id}
    if isinstance(held.model, Word2Vec):
        words = tokens.words_of(held.model, text)
        unknown = sum(not w["known"] for w in words)
        return about | {
            "kind": "words", "size": len(held.model), "tokens": words[:SHOWN], "count": len(words),
            "unknown": unknown,
            "characters_per_token": len(text) / len(words) if words else None, "words": None, "lattice": None,
            "note": None, "python": snippets.script(held.entry, f"print({text!r}.split())"),
        }  # fmt: skip
    lines = f"print(model.tokenizer.split({text!r}, special={special}))"
    return about | tokens.tokenized(held.sequence, text, special, SHOWN) | {
        "python": snippets.script(held.entry, lines)
    }  # fmt: skip
