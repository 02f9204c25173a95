"""Which models there are, what each has, its vocabulary; the example sentences."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from heedful import __version__
from heedful.classroom.studio import snippets
from heedful.classroom.studio.capabilities import capabilities, summary
from heedful.classroom.studio.shared_state import Here
from heedful.classroom.studio.tokens import speller, visible
from heedful.serve.guard import Json
from heedful.word2vec import Word2Vec

router = APIRouter()
DEFAULTS = ("masked", "prose")  # what a page begins with: small, and open within a second


@router.get("/api/health")
@router.get("/api/status")
def status(studio: Here) -> Response:
    """What the server does now."""
    waiting = studio.registry.waiting
    return Json({
        "version": __version__, "boot": studio.traces.boot, "queue": sum(waiting.values()),
        "busy": next(iter(waiting), None), "traces": studio.traces.state(),
        "loaded": studio.registry.loaded_ids,
    })  # fmt: skip


@router.get("/api/models")
def models(studio: Here) -> Response:
    """The catalogue, from shapes alone: nothing is loaded."""
    loaded_model = set(studio.registry.loaded_ids)
    rows = [
        summary(e, studio.summaries) | {"loaded": id in loaded_model}
        for id, e in studio.registry.entries().items()
    ]
    good = [row["id"] for row in rows if row["error"] is None]
    wanted = [id for id in DEFAULTS if id in good]
    given = [row["id"] for row in rows if row["source"] == "given" and row["error"] is None]
    return Json({"models": rows, "default": next(iter([*given, *wanted, *good]), None)})


@router.get("/api/models/{id}")
def model(id: str, studio: Here) -> Response:
    """The capability record of one."""
    held = studio.registry.get(id)
    return Json(
        held.once(
            "record", lambda: capabilities(held, snippets.script(held.entry, f"print({_of(held.model)})"))
        )
    )


def _of(model: object) -> str:
    return "len(vectors), vectors.dim" if isinstance(model, Word2Vec) else "model"


@router.get("/api/models/{id}/vocabulary")
def vocabulary(id: str, studio: Here) -> Response:
    """Every token by its id, as it is named and as it is shown."""
    held = studio.registry.get(id)
    if isinstance(held.model, Word2Vec):
        return Json({"tokens": held.model.words, "shown": [visible(w) for w in held.model.words]})
    model = held.sequence
    count = model.config.vocab
    if model.tokenizer is None:
        names = [str(i) for i in range(count)]
    else:
        names = model.tokenizer.tokens(range(count))
    return Json({"tokens": names, "shown": list(map(speller(model), names))})


@router.get("/api/examples")
def list_examples() -> Response:
    """Return the example sentences and the exercises of `heed explain`."""
    from heedful.classroom.arithmetic.explain import examples, sentences

    return Json({
        "sentences": [{"id": id, **row} for id, row in sentences().items()],
        "exercises": [{"id": id, "about": about} for id, about in examples().items()],
    })  # fmt: skip
