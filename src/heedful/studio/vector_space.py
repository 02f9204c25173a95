"""Vectors of words: maps, neighbours, analogies; one word's vectors in many sentences.

Neighbours are always found in the full space, never in the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from heedful.decode.request import context_length
from heedful.errors import InputError, NotFound
from heedful.inspect.inputs import reading, word_head
from heedful.inspect.mixing import stacks_of
from heedful.models.base import Model, Seq2Seq
from heedful.nn.context import Watch
from heedful.studio import tokens
from heedful.studio.model_registry import LoadedModel
from heedful.view.projections import methods, pca, project
from heedful.word2vec import Word2Vec

POINTS = 20_000
MAPS = 8  # slow maps that are remembered
SLOW = 3_000  # points of t-SNE and UMAP, which take seconds


def embedding_table(loaded_model: LoadedModel, name: str) -> Word2Vec:
    """The input or output vectors of any model, through one object; made once."""

    def make() -> Word2Vec:
        model = loaded_model.model
        if isinstance(model, Word2Vec):
            return model if name == "input" else _output(model)
        own = model.tables["tokens"].table
        rows = own if name == "input" else cast(nn.Linear, word_head(model).out).weight
        words = [str(i) for i in range(len(rows))]
        if model.tokenizer is not None:
            words = _distinct(model.tokenizer.tokens(range(len(rows))))
        return Word2Vec.from_table(rows, words)

    if name not in ("input", "output"):
        raise InputError(f"table={name!r} is unknown", hint="choose input or output")
    return loaded_model.once(f"table {name}", make)


def _output(model: Word2Vec) -> Word2Vec:
    if model.output is None or len(model.output) != len(model):
        raise InputError("these vectors have no second table of words", hint="leave table out")
    return Word2Vec(model.words, np.asarray(model.output))


def _distinct(words: Sequence[str]) -> list[str]:
    """Holes of a vocabulary share a name; each row needs its own."""
    seen: set[str] = set()
    out = []
    for i, word in enumerate(words):
        out.append(word if word not in seen else f"{word}#{i}")
        seen.add(out[-1])
    return out


def token_label(loaded_model: LoadedModel, word: str) -> str:
    return (
        tokens.visible(word)
        if isinstance(loaded_model.model, Word2Vec)
        else tokens.visible_token(loaded_model.model, word)
    )


def find_token(loaded_model: LoadedModel, table: Word2Vec, word: str) -> str:
    """A word as the vocabulary names it: itself, or with the mark of a word's beginning, or in lower case."""
    for form in (
        word,
        f"Ġ{word}",
        f"▁{word}",
        word.lower(),
        f"Ġ{word.lower()}",
        f"▁{word.lower()}",
        f"{word}</w>",
    ):
        if form in table:
            return form
    table.row(word)  # says which are near
    raise NotFound(word)


def rank_tokens(loaded_model: LoadedModel, pairs: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"text": w, "shown": token_label(loaded_model, w), "score": s} for w, s in pairs]


def nearest_rows(
    loaded_model: LoadedModel, table: Word2Vec, word: str, count: int, metric: str
) -> list[dict[str, Any]]:
    """The nearest words by cosine, or by distance (then smaller is nearer)."""
    if metric == "cosine":
        return rank_tokens(loaded_model, table.neighbours(word, count))
    row = table.row(word)
    far = np.linalg.norm(np.asarray(table.input, dtype=np.float64) - table.input[row], axis=1)
    far[row] = np.inf
    best = np.argsort(far, kind="stable")[:count]
    return rank_tokens(loaded_model, [(table.words[i], float(far[i])) for i in best])


def cached_result(loaded_model: LoadedModel, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A map that took seconds, kept while it is among the last few."""

    def found() -> dict[str, Any]:
        maps: dict[str, dict[str, Any]] = loaded_model.memo.setdefault("maps", {})
        maps[key] = maps.pop(key) if key in maps else make()
        while len(maps) > MAPS:
            maps.pop(next(iter(maps)))
        return maps[key]

    return loaded_model.run(found)


@dataclass(frozen=True)
class Map:
    """How vectors are put on a map."""

    method: str = "pca"
    dims: int = 3
    perplexity: float = 30.0
    seed: int = 0


def map_of(
    loaded_model: LoadedModel,
    table: Word2Vec,
    words: Sequence[str],
    count: int,
    axis: tuple[str, str] | None,
    method: Map,
) -> dict[str, Any]:
    """A map of some words' vectors, each made one long first."""
    rows = (
        [table.row(find_token(loaded_model, table, w)) for w in words]
        if words
        else list(range(min(count, len(table))))
    )
    vectors = np.asarray(table.input[rows], dtype=np.float64)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    made = project(vectors, method.method, method.dims, perplexity=method.perplexity, seed=method.seed)
    along = None
    if axis is not None:
        a, b = (table.unit(find_token(loaded_model, table, w)) for w in axis)
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


@torch.no_grad()
def contextual_vectors(model: Model, word: str, sentences: Sequence[str]) -> dict[str, Any]:
    """The vectors of one word in several sentences, at every layer: how alike they are, and a map."""
    items, rows = [], []
    name, stack = next(iter(stacks_of(model).items()))
    names = ["embed.output", *(f"{name}.{i}.output" for i in range(len(stack)))]
    for s, sentence in enumerate(sentences):
        text, _ = tokens.tidy(sentence)
        placed, _ = tokens.token_positions(model, text, max_tokens=context_length(model, source=True))
        found = [i for i, t in enumerate(placed) if _is(t, text, word)]
        if not found:
            continue
        watch = Watch(*names)
        ids = [t["id"] for t in placed]
        given = reading(model, ids, [model.start_token] if isinstance(model, Seq2Seq) else None)
        given.run(model, watch)
        for at in found:
            items.append({"sentence": s, "position": at, "token": placed[at]["text"], "context": text})
            rows.append([watch[n][0, at].float().cpu().numpy().astype(np.float64) for n in names])
    if not items:
        raise InputError(
            f"no sentence has a token {word!r} of its own", hint="choose a word that is one token"
        )
    cosine, maps = [], []
    for layer in range(len(names)):
        vectors = np.stack([r[layer] for r in rows])
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        cosine.append((unit @ unit.T).tolist())
        maps.append(pca(vectors, 2)[0].tolist())
    return {
        "layers": [n.removesuffix(".output") for n in names],
        "items": items,
        "cosine": cosine,
        "map": maps,
    }


def _is(token: dict[str, Any], text: str, word: str) -> bool:
    """Whether a token is this word, by its letters in the text or its name."""
    here = text[token["start"] : token["end"]].strip().lower()
    return not token["special"] and here == word.strip().lower()
