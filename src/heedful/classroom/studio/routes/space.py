"""Embeddings: map, neighbours, analogy, one word in many sentences.

Neighbours are always found in the full space, never in the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from heedful.classroom.figures.token_labels import visible_token, visible_tokens
from heedful.classroom.studio import snippets
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.classroom.studio.tokens import tidy
from heedful.classroom.studio.traces import Here
from heedful.core.errors import InputError
from heedful.interp.observe.projection import methods, pca, project
from heedful.interp.observe.word_vectors import (
    along_axis,
    analogy_plane,
    contextual_vectors,
    find_word,
    frequent_words,
    nearest_by_distance,
    unit_rows,
    vector_table,
    whole_words,
)
from heedful.serve.json_response import Json
from heedful.word2vec import Word2Vec

router = APIRouter()
Table = Literal["input", "output"]
MAX_POINTS = {"pca": 20_000, "tsne": 3_000, "umap": 3_000}  # the latter two take seconds
MAX_MAPS = 8  # slow maps that are remembered


def embedding_table(loaded_model: LoadedModel, name: str) -> Word2Vec:
    """Return the input or output vectors of any model, made once."""
    return loaded_model.once(f"table {name}", lambda: vector_table(loaded_model.model, name))


def shown_word(loaded_model: LoadedModel, word: str) -> str:
    """Return a word as the page shows it."""
    model = loaded_model.model
    return visible_token(word) if isinstance(model, Word2Vec) else visible_tokens(model, [word])[0]


def ranked_words(loaded_model: LoadedModel, pairs: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Return words and their scores as the page reads them."""
    return [{"text": w, "shown": shown_word(loaded_model, w), "score": s} for w, s in pairs]


def _python(loaded_model: LoadedModel, table: str, lines: str, imports: str = "") -> str:
    """Return lines about `vectors`: any table of vectors goes through one object, that of word vectors."""
    if not loaded_model.entry.vectors or table != "input":
        source = "vectors" if loaded_model.entry.vectors else "model"
        lines = f"vectors = vector_table({source}, {table!r})\n{lines}"
        imports = snippets.import_lines(vector_table) + imports
    return snippets.script(loaded_model.entry, lines, imports)


@router.get("/api/models/{id}/space/map")
def space_map(
    id: str, studio: Here, count: int = 1000, words: str = "", table: Table = "input", axis: str = "",
    dims: int = 3, method: Literal["pca", "tsne", "umap"] = "pca", perplexity: float = 30.0, seed: int = 0,
) -> Response:  # fmt: skip
    loaded_model = studio.registry.get(id)
    if not 2 <= dims <= 3 or not 2 <= count <= MAX_POINTS[method]:
        raise InputError(f"dims is 2 or 3, and count of {method} between 2 and {MAX_POINTS[method]}")
    ends = [w.strip() for w in axis.split(":")] if axis else None
    if ends is not None and len(ends) != 2:
        raise InputError(f"`axis={axis!r}` must name two words: man:woman")
    rows = embedding_table(loaded_model, table)
    chosen = [w.strip() for w in words.split(",") if w.strip()]

    def make() -> dict[str, Any]:
        drawn = [find_word(rows, word) for word in chosen]
        drawn = drawn or [rows.words[row] for row in frequent_words(rows.words, count)]
        vectors = unit_rows(rows, drawn)
        places = project(vectors, method, dims, perplexity=perplexity, seed=seed)
        along = None if ends is None else along_axis(rows, vectors, *(find_word(rows, w) for w in ends))
        points = [
            {"id": rows.row(word), "text": word, "shown": shown_word(loaded_model, word)}
            | dict(zip("xyz", map(float, places.points[i]), strict=False))
            | ({} if along is None else {"axis": float(along[i])})
            for i, word in enumerate(drawn)
        ]  # fmt: skip
        return {
            "points": points, "explained": places.share, "method": method, "methods": methods(),
            "axes": places.axes, "note": places.note, "normalised": True,
        }  # fmt: skip

    def make_once() -> dict[str, Any]:
        """A map that takes seconds is kept while it is among the last few."""
        maps: dict[str, dict[str, Any]] = loaded_model.memo.setdefault("maps", {})
        key = f"{table} {chosen} {count} {ends} {method} {dims} {perplexity} {seed}"
        maps[key] = maps.pop(key) if key in maps else make()
        while len(maps) > MAX_MAPS:
            maps.pop(next(iter(maps)))
        return maps[key]

    points_map = loaded_model.run(make if method == "pca" else make_once)
    choice = repr([p["text"] for p in points_map["points"]])
    if not chosen and len(whole_words(rows.words)) > 2:
        choice = f"[vectors.words[row] for row in whole_words(vectors.words)[:{count}]]"
    options = f"{method!r}, {dims}, perplexity={perplexity}, seed={seed}"
    lines = f"print(project(unit_rows(vectors, {choice}), {options}).points)"
    imports = snippets.import_lines(unit_rows, whole_words, project)
    return Json(points_map | {"table": table, "python": _python(loaded_model, table, lines, imports)})


@router.get("/api/models/{id}/space/neighbours")
def nearest_words(
    id: str, word: str, studio: Here, count: int = 10, metric: Literal["cosine", "euclid"] = "cosine",
    table: Table = "input",
) -> Response:  # fmt: skip
    loaded_model = studio.registry.get(id)
    rows = embedding_table(loaded_model, table)
    token = find_word(rows, word)
    count = max(1, min(count, 200))
    call, imports = f"vectors.neighbours({token!r}, {count})", ""
    find: Callable[[], Sequence[tuple[str, float]]] = lambda: rows.neighbours(token, count)
    if metric == "euclid":  # smaller is nearer
        call = f"nearest_by_distance(vectors, {token!r}, {count})"
        imports = snippets.import_lines(nearest_by_distance)
        find = lambda: nearest_by_distance(rows, token, count)
    near = ranked_words(loaded_model, loaded_model.run(find))
    return Json({
        "word": token, "shown": shown_word(loaded_model, token), "metric": metric,
        "near": near, "python": _python(loaded_model, table, f"print({call})", imports),
    })  # fmt: skip


@router.get("/api/models/{id}/space/analogy")
def analogy(
    id: str, a: str, b: str, c: str, studio: Here, d: str = "", count: int = 10,
    method: Literal["add", "mul"] = "add", table: Table = "input",
) -> Response:  # fmt: skip
    """a is to b as c is to …; the three do not answer, and what they would have said is shown. The plane is
    that of the best answer, or of the word `d`.
    """
    loaded_model = studio.registry.get(id)
    rows = embedding_table(loaded_model, table)
    three = [find_word(rows, w) for w in (a, b, c)]
    count = max(1, min(count, 200))
    answers = loaded_model.run(lambda: rows.analogy(three[0], three[1], three[2], count, method))
    mixed = rows.unit(three[1]) - rows.unit(three[0]) + rows.unit(three[2])
    allowed = loaded_model.run(lambda: rows.neighbours(mixed, 5))
    formula = "b − a + c" if method == "add" else "cos(x, b) cos(x, c) / (cos(x, a) + ε)"
    call = f"print(vectors.analogy({three[0]!r}, {three[1]!r}, {three[2]!r}, {count}, {method!r}))"
    fourth = find_word(rows, d) if d else answers[0][0] if answers else ""
    plane = analogy_plane(rows, three[0], three[1], three[2], fourth) if fourth else None
    return Json({
        "formula": formula, "words": three, "plane": None if plane is None else plane.to_dict(),
        "near": ranked_words(loaded_model, answers),
        "excluded": list(answers.excluded),
        "with_inputs": ranked_words(loaded_model, allowed),
        "method": method, "python": _python(loaded_model, table, call),
    })  # fmt: skip


class Meaning(BaseModel):
    """One word, several sentences."""

    model: str
    word: str
    sentences: list[str] = Field(min_length=1, max_length=32)


@router.post("/api/space/contextual")
def contextual_map(body: Meaning, studio: Here) -> Response:
    loaded_model = studio.registry.get(body.model)
    sentences = [tidy(sentence)[0] for sentence in body.sentences]
    contexts = loaded_model.run(lambda: contextual_vectors(loaded_model.sequence, body.word, sentences))
    contexts["map"] = [pca(vectors, 2)[0].tolist() for vectors in contexts.pop("vectors")]
    return Json(
        contexts | {"python": snippets.of_model(loaded_model.entry, contextual_vectors, body.word, sentences)}
    )
