"""Vectors of words: maps, neighbours, analogies; one word's vectors in many sentences.

Neighbours are always found in the full space, never in the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.classroom.figures.value_figures import methods, project, unit_rows
from heedful.classroom.studio import tokens
from heedful.classroom.studio.model_registry import LoadedModel
from heedful.core.errors import NotFound
from heedful.interp.word_vectors import vector_table, whole_words
from heedful.word2vec import Word2Vec

POINTS = 20_000
MAPS = 8  # slow maps that are remembered
SLOW = 3_000  # points of t-SNE and UMAP, which take seconds


def embedding_table(loaded_model: LoadedModel, name: str) -> Word2Vec:
    """Return the input or output vectors of any model, made once."""
    return loaded_model.once(f"table {name}", lambda: vector_table(loaded_model.model, name))


def token_label(loaded_model: LoadedModel, word: str) -> str:
    """Return a word as the page shows it."""
    model = loaded_model.model
    return tokens.visible(word) if isinstance(model, Word2Vec) else tokens.visible_token(model, word)


def find_token(table: Word2Vec, word: str) -> str:
    """A word as the vocabulary names it: with the mark of a word's beginning, as it is, or in lower case."""
    lower = word.lower()
    for form in (f"Ġ{word}", f"▁{word}", word, f"Ġ{lower}", f"▁{lower}", lower, f"{word}</w>"):
        if form in table:
            return form
    table.row(word)  # says which are near
    raise NotFound(word)


def rank_tokens(loaded_model: LoadedModel, pairs: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Return words and their scores as the page reads them."""
    return [{"text": w, "shown": token_label(loaded_model, w), "score": s} for w, s in pairs]


def cached_result(loaded_model: LoadedModel, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A map that took seconds, kept while it is among the last few."""

    def compute() -> dict[str, Any]:
        maps: dict[str, dict[str, Any]] = loaded_model.memo.setdefault("maps", {})
        maps[key] = maps.pop(key) if key in maps else make()
        while len(maps) > MAPS:
            maps.pop(next(iter(maps)))
        return maps[key]

    return loaded_model.run(compute)


@dataclass(frozen=True)
class Map:
    """How vectors are put on a map."""

    method: str = "pca"
    dims: int = 3
    perplexity: float = 30.0
    seed: int = 0


def frequent_words(table: Word2Vec) -> list[int]:
    """The rows that a map without a choice of words shows: whole words, if there are enough to be a map."""
    words = whole_words(table)
    return words if len(words) > 2 else list(range(len(table)))


def map_of(
    loaded_model: LoadedModel,
    table: Word2Vec,
    words: Sequence[str],
    count: int,
    axis: tuple[str, str] | None,
    method: Map,
) -> dict[str, Any]:
    """A map of some words' vectors, each made one long first."""
    named = [find_token(table, w) for w in words]
    rows = [table.row(w) for w in named] if named else frequent_words(table)[:count]
    vectors = unit_rows(table, [table.words[row] for row in rows])
    made = project(vectors, method.method, method.dims, perplexity=method.perplexity, seed=method.seed)
    along = None
    if axis is not None:
        a, b = (table.unit(find_token(table, w)) for w in axis)
        direction = (b - a) / max(float(np.linalg.norm(b - a)), 1e-12)
        along = vectors @ direction
    points = []
    for i, row in enumerate(rows):
        place = dict(zip("xyz", map(float, made.points[i]), strict=False))
        word = table.words[row]
        extra = {} if along is None else {"axis": float(along[i])}
        points.append({"id": row, "text": word, "shown": token_label(loaded_model, word), **place, **extra})
    return {
        "points": points, "explained": made.share, "method": method.method, "methods": methods(),
        "axes": [made.axis(i) for i in range(method.dims)], "note": made.note, "normalised": True,
    }  # fmt: skip
