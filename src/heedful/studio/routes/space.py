"""Embeddings: map, neighbours, analogy, one word in many sentences."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from heedful.errors import InputError
from heedful.server.json_response import Json
from heedful.studio import snippets, vector_space
from heedful.studio.model_registry import LoadedModel
from heedful.studio.shared_state import Here

router = APIRouter()
Table = Literal["input", "output"]


def _python(loaded_model: LoadedModel, lines: str) -> str:
    """Any table of vectors goes through one object: that of word vectors."""
    if loaded_model.entry.vectors:
        return snippets.script(loaded_model.entry, lines)
    words = "words = model.tokenizer.tokens(range(len(model.tables['tokens'].table)))"
    table = "vectors = heedful.Word2Vec.from_table(model.tables['tokens'].table, words)"
    return snippets.script(loaded_model.entry, "\n".join([words, table, lines]))


@router.get("/api/models/{id}/space/map")
def space_map(
    id: str, studio: Here, count: int = 1000, words: str = "", table: Table = "input", axis: str = "",
    dims: int = 3, method: Literal["pca", "tsne", "umap"] = "pca", perplexity: float = 30.0, seed: int = 0,
) -> Response:  # fmt: skip
    held = studio.registry.get(id)
    most = vector_space.POINTS if method == "pca" else vector_space.SLOW
    if not 2 <= dims <= 3 or not 2 <= count <= most:
        raise InputError(f"dims is 2 or 3, and count of {method} between 2 and {most}")
    ends = tuple(w.strip() for w in axis.split(":")) if axis else None
    if ends is not None and len(ends) != 2:
        raise InputError(f"axis={axis!r} must name two words: man:woman")
    rows = vector_space.embedding_table(held, table)
    asked = [w.strip() for w in words.split(",") if w.strip()]
    how = vector_space.Map(method, dims, perplexity, seed)
    key = f"map {table} {asked} {count} {ends} {how}"
    make = lambda: vector_space.map_of(held, rows, asked, count, ends, how)
    found = held.run(make) if method == "pca" else vector_space.cached_result(held, key, make)
    chosen = (
        f"[vectors.row(w) for w in {[p['text'] for p in found['points']]!r}]" if asked else f"slice({count})"
    )
    lines = (
        f"import numpy as np\nrows = vectors.input[{chosen}]\n"
        "rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)\n"
        "from heedful.view.projections import project\n"
        f"print(project(rows, {method!r}, {dims}, perplexity={perplexity}, seed={seed}).points)"
    )
    return Json(found | {"table": table, "python": _python(held, lines)})


@router.get("/api/models/{id}/space/neighbours")
def nearest_words(
    id: str, word: str, studio: Here, count: int = 10, metric: Literal["cosine", "euclid"] = "cosine",
    table: Table = "input",
) -> Response:  # fmt: skip
    held = studio.registry.get(id)
    rows = vector_space.embedding_table(held, table)
    found = vector_space.find_token(held, rows, word)
    best = held.run(lambda: vector_space.nearest_rows(held, rows, found, max(1, min(count, 200)), metric))
    python = _python(held, f"print(vectors.neighbours({found!r}, {count}))")
    return Json(
        {
            "word": found,
            "shown": vector_space.token_label(held, found),
            "metric": metric,
            "near": best,
            "python": python,
        }
    )


@router.get("/api/models/{id}/space/analogy")
def analogy(
    id: str, a: str, b: str, c: str, studio: Here, count: int = 10, method: Literal["add", "mul"] = "add",
    table: Table = "input",
) -> Response:  # fmt: skip
    """a is to b as c is to …; the three do not answer, and what they would have said is shown."""
    held = studio.registry.get(id)
    rows = vector_space.embedding_table(held, table)
    three = [vector_space.find_token(held, rows, w) for w in (a, b, c)]
    count = max(1, min(count, 200))
    found = held.run(lambda: rows.analogy(three[0], three[1], three[2], count, method))
    mixed = rows.unit(three[1]) - rows.unit(three[0]) + rows.unit(three[2])
    allowed = held.run(lambda: rows.neighbours(mixed, 5))
    formula = "b − a + c" if method == "add" else "cos(x, b) cos(x, c) / (cos(x, a) + ε)"
    call = f"print(vectors.analogy({three[0]!r}, {three[1]!r}, {three[2]!r}, {count}, {method!r}))"
    return Json({
        "formula": formula, "words": three, "near": vector_space.rank_tokens(held, found),
        "excluded": list(found.excluded),
        "with_inputs": vector_space.rank_tokens(held, allowed),
        "method": method, "python": _python(held, call),
    })  # fmt: skip


class Meaning(BaseModel):
    """One word, several sentences."""

    model: str
    word: str
    sentences: list[str] = Field(min_length=1, max_length=32)


@router.post("/api/space/contextual")
def contextual_map(body: Meaning, studio: Here) -> Response:
    held = studio.registry.get(body.model)
    found = held.run(lambda: vector_space.contextual_vectors(held.sequence, body.word, body.sentences))
    lines = [
        "from heedful.inspect.inputs import reading", 'watch = heedful.Watch("*.output")',
        f"reading(model, {found['items'][0]['context']!r}).run(model, watch)",
        f"print(watch[{found['layers'][-1] + '.output'!r}][0, {found['items'][0]['position']}])",
    ]  # fmt: skip
    return Json(found | {"python": snippets.script(held.entry, "\n".join(lines[1:]), lines[0])})
