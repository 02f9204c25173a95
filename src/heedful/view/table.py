"""The numbers a figure shows, as the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.view.word_grouping import by_words, group_bounds, word_names

Data = Mapping[str, Any]
Rows = Iterator[list[Any]]


@dataclass(frozen=True)
class PickedHeads:
    """The matrix an attention figure shows (T, S), which of its cells a mask hides, what its rows and columns
    are, and where these stand: places of tokens, or of words where it is drawn by words.
    """

    values: np.ndarray
    masked: np.ndarray
    queries: list[str]
    keys: list[str]
    query_at: list[int]
    key_at: list[int]


def pick_heads(data: Data) -> PickedHeads:
    """One head, or the mean or greatest of all; as `data` says without the first key, cut to one of two texts
    on the other, by words.
    """
    pattern = data["patterns"][data["pattern"]]
    values, head, second = pattern["values"], data["head"], pattern["second"]
    if head == "mean":
        matrix = values.mean(0)
    elif head == "max":
        matrix = np.take_along_axis(values, np.abs(values).argmax(0)[None], 0)[0]
    else:
        matrix = values[head]
    rows, columns = (list(range(n)) for n in matrix.shape)
    if data["hide_first"] and not pattern["cross"] and len(columns) > 1:
        matrix, columns = without_first(matrix), columns[1:]
    if data["between"] and second is not None:
        asks, seen = (
            group_bounds(n, second, s) for n, s in zip(values.shape[1:], data["between"], strict=True)
        )
        seen = [c for c in seen if c in columns]
        matrix = matrix[np.ix_(asks, [columns.index(c) for c in seen])]
        rows, columns = asks, seen
    queries, keys = [pattern["queries"][i] for i in rows], [pattern["keys"][i] for i in columns]
    masked = masked_cells(pattern)[np.ix_(rows, columns)]
    if not data["words"]:
        return PickedHeads(matrix, masked, queries, keys, rows, columns)
    asking, asked = [pattern["query_words"][i] for i in rows], [pattern["key_words"][i] for i in columns]
    whole = by_words(matrix, asking, asked)
    hidden = by_words((~masked).astype(np.float64), asking, asked) == 0
    names = word_names(queries, asking), word_names(keys, asked)
    return PickedHeads(whole, hidden, *names, sorted(set(asking)), sorted(set(asked)))


def masked_cells(pattern: Data) -> np.ndarray:
    """The cells (T, S) that a mask hides: keys after the query where nothing there has weight, and keys
    outside the layer's window.
    """
    T, S = pattern["values"].shape[1:]
    if pattern["cross"] or T != S:
        return np.zeros((T, S), dtype=bool)
    i, j, window = np.arange(T)[:, None], np.arange(S), pattern["window"]
    later = (j > i) & (T > 1 and not np.triu(pattern["values"], 1).any())
    return later if window is None else later | (j >= i + window) | (j <= i - window)


def without_first(matrix: np.ndarray) -> np.ndarray:
    """Without the first key, the sizes of each row as great as they were; 0 where nothing else was seen."""
    whole = np.abs(matrix).sum(-1, keepdims=True)
    left = np.abs(matrix[:, 1:]).sum(-1, keepdims=True)
    kept = np.divide(whole, left, out=np.zeros_like(whole), where=left > 1e-12)
    return np.asarray(matrix[:, 1:] * kept)


def attention(data: Data) -> tuple[list[str], Rows]:
    found = pick_heads(data)
    name, head = data["patterns"][data["pattern"]]["name"], data["head"]
    rows = (
        [name, head, found.query_at[t], query, found.key_at[s], key, found.values[t, s]]
        for t, query in enumerate(found.queries)
        for s, key in enumerate(found.keys)
    )
    return ["layer", "head", "query_at", "query", "key_at", "key", "weight"], rows


SCORES = ("entropy", "distance", "previous", "first", "induction")


def heads(data: Data) -> tuple[list[str], Rows]:
    rows = ([s["name"], s["head"], *(s.get(k) for k in SCORES)] for s in data["scores"])
    return ["layer", "head", "entropy_bits", *SCORES[1:]], rows


def panels(data: Data) -> tuple[list[str], Rows]:
    rows = (
        [panel["title"], row, column, panel["values"][t, s]]
        for panel in data["panels"]
        for t, row in enumerate(panel["rows"])
        for s, column in enumerate(panel["columns"])
    )
    return ["panel", "row", "column", "value"], rows


def steps(data: Data) -> tuple[list[str], Rows]:
    return ["section", "step", "formula", "numbers", "result"], (list(row) for row in data["rows"])


CHAIN = ("p", "heated", "top_k", "top_p", "final")


def next_token(data: Data) -> tuple[list[str], Rows]:
    rows = (
        [
            data["names"][i],
            i,
            data["logits"][i],
            *(data["chain"][k][r] for k in CHAIN),
            int(i == data["drawn"]),
        ]
        for r, i in enumerate(data["shown"])
    )
    return ["token", "id", "logit", *CHAIN, "drawn"], rows


BRANCH = ("step", "rank", "group", "name", "token", "parent", "logprob", "score", "final", "fate")


def beams(data: Data) -> tuple[list[str], Rows]:
    return ["at", *BRANCH], ([i, *(b[k] for k in BRANCH)] for i, b in enumerate(data["branches"]))


def embeddings(data: Data) -> tuple[list[str], Rows]:
    near = lambda i: " ".join(data["words"][j] for j in data["near"][i])
    rows = ([name, *data["points"][i], near(i)] for i, name in enumerate(data["names"]))
    return ["word", "x", "y", "nearest"], rows


def training(data: Data) -> tuple[list[str], Rows]:
    rows = ([c["name"], int(x), y] for c in data["curves"] for x, y in zip(c["x"], c["y"], strict=True))
    return ["curve", "step", data["metric"]], rows
