"""Word vectors: the embedding tables of any model, analogies, and one word in many texts.

A table of vectors places words that are used alike near each other. `vector_table` returns the table of any
model as a `Word2Vec`, so that neighbours and analogies work on all of them. Inside a model a word has another
vector in every sentence, and `contextual_vectors` compares them layer by layer. All vectors of a layer share
a large common part (Ethayarajh 2019, arXiv 1909.00512), so their mean is subtracted before any cosine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from heedful.core.checks import check_choice
from heedful.core.errors import InputError, NotFound
from heedful.decode.request import context_length
from heedful.interp.activations import collect_activations
from heedful.interp.inputs import Result, layer_names, word_head
from heedful.interp.observe.prediction import special_ids
from heedful.models.base import Model
from heedful.word2vec import Word2Vec


def vector_table(model: Model | Word2Vec, name: str = "input") -> Word2Vec:
    """Return the input or output vectors of a model with the words they stand for."""
    check_choice("table", name, ("input", "output"))
    if isinstance(model, Word2Vec):
        if name == "input":
            return model
        if model.output is None or len(model.output) != len(model):
            raise InputError("these vectors have no second table of words", hint="leave table out")
        return Word2Vec(model.words, np.asarray(model.output))
    own = model.tables["tokens"].table
    rows = own if name == "input" else cast(nn.Linear, word_head(model).out).weight
    words = [str(i) for i in range(len(rows))]
    if model.tokenizer is not None:
        names, seen = model.tokenizer.tokens(range(len(rows))), set[str]()
        for i, word in enumerate(names):  # holes of a vocabulary share a name; each row needs its own
            words[i] = f"{word}#{i}" if word in seen else word
            seen.add(words[i])
    return Word2Vec.from_table(rows, words)


def whole_words(names: Sequence[str]) -> list[int]:
    """Return which names of a vocabulary are words: letters, perhaps with a hyphen or an apostrophe inside.

    Where a vocabulary marks the beginning of words, a word has that mark; a piece that goes on has none.
    """
    marked = any(name[:1] in ("Ġ", "▁", " ") and len(name) > 1 for name in names)
    word = re.compile(r"[Ġ▁ ]([^\W\d_]{2,}|[aAI])" if marked else r"[^\W\d_]+(['’-][^\W\d_]+)*")
    return [row for row, name in enumerate(names) if word.fullmatch(name)]


def frequent_words(names: Sequence[str], count: int) -> list[int]:
    """Return the rows that a map without a choice of words shows: whole words, if they are enough for one."""
    rows = whole_words(names)
    return (rows if len(rows) > 2 else list(range(len(names))))[:count]


def find_word(table: Word2Vec, word: str) -> str:
    """A word as the vocabulary names it: with the mark of a word's beginning, as it is, or in lower case."""
    lower = word.lower()
    for form in (f"Ġ{word}", f"▁{word}", word, f"Ġ{lower}", f"▁{lower}", lower, f"{word}</w>"):
        if form in table:
            return form
    table.row(word)  # says which are near
    raise NotFound(word)


def unit_rows(table: Word2Vec, words: Sequence[str] | int) -> np.ndarray:
    """Return the vectors of some words, or of the first N, scaled to length one: (N, D) in float64."""
    rows = list(range(min(words, len(table)))) if isinstance(words, int) else [table.row(w) for w in words]
    vectors = np.asarray(table.input[rows], dtype=np.float64)
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def along_axis(table: Word2Vec, vectors: np.ndarray, start: str, end: str) -> np.ndarray:
    """Return where vectors (N, D) stand along the direction from one word to another: (N,)."""
    direction = table.unit(end) - table.unit(start)
    return np.asarray(vectors @ (direction / max(float(np.linalg.norm(direction)), 1e-12)))


def nearest_by_distance(table: Word2Vec, word: str, count: int = 10) -> list[tuple[str, float]]:
    """Return the words at the smallest distance ‖u − v‖ from a word, and that distance."""
    row = table.row(word)
    far = np.linalg.norm(np.asarray(table.input, dtype=np.float64) - table.input[row], axis=1)
    far[row] = np.inf
    return [(table.words[i], float(far[i])) for i in np.argsort(far, kind="stable")[:count]]


@dataclass(frozen=True)
class AnalogyPlane(Result):
    """a is to b as c is to d, on the plane of two mean differences: a → c with b → d, and a → b with c → d.

    `points` are the places of a, b, c, d and of b − a + c, `share` the share of the variance of the four
    words that lies in the plane, and `cosine` compares, in all dimensions, a → c with b → d and a → b with c
    → d.
    """

    words: tuple[str, str, str, str]
    points: list[list[float]]
    share: float
    cosine: tuple[float, float]


def analogy_plane(table: Word2Vec, a: str, b: str, c: str, d: str) -> AnalogyPlane:
    """Return a plane that is made for the four words of an analogy, with their unit vectors on it."""
    va, vb, vc, vd = (np.asarray(table.unit(word), dtype=np.float64) for word in (a, b, c, d))
    across, along = vc - va + vd - vb, vb - va + vd - vc
    unit = lambda v: v / max(float(np.linalg.norm(v)), 1e-12)
    first = unit(along)
    axes = np.stack([first, unit(across - (across @ first) * first)])
    centre = (va + vb + vc + vd) / 4
    every = np.stack([va, vb, vc, vd, vb - va + vc]) - centre
    points = every @ axes.T
    share = float((points[:4] ** 2).sum() / max(float((every[:4] ** 2).sum()), 1e-12))
    cosine = (float(unit(vc - va) @ unit(vd - vb)), float(unit(vb - va) @ unit(vd - vc)))
    return AnalogyPlane((a, b, c, d), points.tolist(), share, cosine)


@torch.no_grad()
def contextual_vectors(model: Model, word: str, sentences: Sequence[str]) -> dict[str, Any]:
    """Return the vectors of one word in several sentences: `items` says where it stands, `layers` are the
    names of the layers, `vectors` are (layers, items, D) arrays, and `cosine` compares any two items.

    All vectors of a layer share a large part, so that the cosine of any two is near 1 (Ethayarajh 2019,
    arXiv 1909.00512). Each vector is made one long, and the mean over all tokens read is taken off.
    """
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer", hint="choose one that has")
    items: list[dict[str, Any]] = []
    read, rows, first = list[list[int]](), list[int](), 0  # ids with the word; its rows among all tokens read
    special, most = special_ids(model), context_length(model, source=True)
    for s, text in enumerate(sentences):
        encoding = model.tokenizer.encoding(text)
        ids, spans = encoding.ids[:most], encoding.offsets
        is_word = lambda i, text=text, ids=ids, spans=spans: (
            ids[i] not in special and text[slice(*spans[i])].strip().lower() == word.strip().lower()
        )
        if places := [i for i in range(len(ids)) if is_word(i)]:
            tokens = model.tokenizer.tokens(ids)
            items += [{"sentence": s, "position": i, "token": tokens[i], "context": text} for i in places]
            rows += [first + i for i in places]
            read.append(ids)
            first += len(ids)
    if not items:
        raise InputError(f"no sentence has the token {word!r}", hint="choose a word that is one token")
    names = layer_names(model)
    every = [
        F.normalize(one.values.double(), dim=-1) for one in collect_activations(model, read, names).values()
    ]
    vectors = [values[rows] - values.mean(0) for values in every]
    unit = [F.normalize(v, dim=-1) for v in vectors]
    layers = [name.removesuffix(".output") for name in names]
    cosine = [(u @ u.T).tolist() for u in unit]
    return {"layers": layers, "items": items, "cosine": cosine, "vectors": [v.numpy() for v in vectors]}
