"""Which models there are, what each has, its vocabulary; the example sentences."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from heedful import __version__
from heedful.classroom.figures.token_labels import visible_token, visible_tokens
from heedful.classroom.studio import snippets, tokens
from heedful.classroom.studio.capabilities import capabilities, summary
from heedful.classroom.studio.curated_views import curated_views
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.responses import tensor_response
from heedful.classroom.studio.traces import Here
from heedful.core.errors import find_named
from heedful.interp.observe.mixing import NOTES, describe_positions, position_tensors
from heedful.serve.json_response import Json
from heedful.word2vec import Word2Vec

router = APIRouter()
DEFAULTS = ("masked", "prose")  # what a page begins with: small, and open within a second


@router.get("/api/health")
@router.get("/api/status")
def status(studio: Here) -> Response:
    """What the server does now."""
    loaded = studio.registry.in_memory
    waiting = {id: model.worker.waiting for id, model in loaded.items() if model.worker.waiting}
    return Json({
        "version": __version__, "boot": studio.traces.boot, "queue": sum(waiting.values()),
        "busy": next(iter(waiting), None), "traces": studio.traces.state(),
        "loaded": list(loaded),
    })  # fmt: skip


@router.get("/api/models")
def models(studio: Here) -> Response:
    """The catalogue, from shapes alone: nothing is loaded."""
    loaded = studio.registry.in_memory
    rows = [summary(e) | {"loaded": id in loaded} for id, e in studio.registry.entries().items()]
    good = [row["id"] for row in rows if row["error"] is None]
    wanted = [id for id in DEFAULTS if id in good]
    given = [row["id"] for row in rows if row["source"] == "given" and row["error"] is None]
    return Json({"models": rows, "default": next(iter([*given, *wanted, *good]), None)})


@router.get("/api/models/{id}")
def model(id: str, studio: Here) -> Response:
    """The capability record of one."""
    loaded_model = studio.registry.get(id)
    shown = "len(vectors), vectors.dim" if loaded_model.entry.vectors else "model"
    python = snippets.script(loaded_model.entry, f"print({shown})")
    return Json(loaded_model.once("record", lambda: capabilities(loaded_model, python)))


@router.get("/api/models/{id}/vocabulary")
def vocabulary(id: str, studio: Here) -> Response:
    """Every token by its id, as it is named and as it is shown."""
    loaded_model = studio.registry.get(id)
    if isinstance(loaded_model.model, Word2Vec):
        words = loaded_model.model.words
        return Json({"tokens": words, "shown": [visible_token(word) for word in words]})
    model = loaded_model.sequence
    ids = range(model.config.vocab)
    names = [str(i) for i in ids] if model.tokenizer is None else model.tokenizer.tokens(ids)
    return Json({"tokens": names, "shown": visible_tokens(model, names)})


@router.get("/api/examples")
def list_examples() -> Response:
    """Return the example sentences and the exercises of `heed explain`."""
    from heedful.classroom.arithmetic.explain import examples, sentences

    return Json({
        "sentences": [{"id": id, **row} for id, row in sentences().items()],
        "exercises": [{"id": id, "about": about} for id, about in examples().items()],
    })  # fmt: skip


# Positions of a model.


@router.get("/api/models/{id}/positions")
def model_positions(id: str, studio: Here, length: int = 64) -> Response:
    loaded_model = studio.registry.get(id)
    if isinstance(loaded_model.model, Word2Vec):
        python = snippets.script(loaded_model.entry, "print(vectors.dim)")
        nothing: dict[str, Any] = dict.fromkeys(("slopes", "buckets", "frequencies", "base"))
        nothing |= {"type": "none", "length": 0, "tensors": {}, "note": NOTES["none"], "formula": ""}
        return Json(nothing | {"python": python})
    positions = loaded_model.run(lambda: describe_positions(loaded_model.sequence, length))
    python = snippets.of_model(loaded_model.entry, position_tensors, positions["length"])
    return Json(positions | {"python": python})


@router.get("/api/models/{id}/positions/tensor")
def position_tensor(
    id: str, name: str, studio: Here, length: int = 64, dtype: Literal["f32", "f16", "u8"] = "f32"
) -> Response:
    loaded_model = studio.registry.get(id)
    tables = loaded_model.run(lambda: position_tensors(loaded_model.sequence, length))
    table = find_named(tables, name, f"{id} has no table {name!r} of positions")
    return tensor_response(table, dtype)


# Views worth opening, of the models that are here.


@router.get("/api/doors")
def list_curated_views(studio: Here) -> Response:
    """The curated views whose models can be loaded here; the page calls them doors."""
    entries = studio.registry.entries()
    usable = {id for id, e in entries.items() if summary(e)["error"] is None}
    return Json({"doors": [view.to_dict() for view in curated_views() if usable.issuperset(view.models)]})


# How models cut a text into tokens.


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
    tokenizers = [_cut(studio.registry.get(id), text, body.special) for id in (body.model, body.other) if id]
    for tokenized in tokenizers:
        if (count := tokenized["count"]) > SHOWN:
            warnings.append(f"{tokenized['model']}: {count:,} tokens; the first {SHOWN:,} are listed")
    return Json({"tokenizers": tokenizers, "warnings": warnings})


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
