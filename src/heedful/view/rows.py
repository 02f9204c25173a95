"""The numbers a figure shows, as the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

Data = Mapping[str, Any]
Rows = Iterator[list[Any]]


def picked(data: Data) -> tuple[np.ndarray, list[str], list[str], int]:
    """The matrix an attention figure shows (T, S), its queries and keys, and which key is the first."""
    pattern = data["patterns"][data["pattern"]]
    values, head = pattern["values"], data["head"]
    if head == "mean":
        matrix = values.mean(0)
    elif head == "max":
        matrix = np.take_along_axis(values, np.abs(values).argmax(0)[None], 0)[0]
    else:
        matrix = values[head]
    queries, keys = pattern["queries"], pattern["keys"]
    if data["hide_first"] and not pattern["cross"] and len(keys) > 1:
        return without_first(matrix), queries, keys[1:], 1
    return matrix, queries, keys, 0


def without_first(matrix: np.ndarray) -> np.ndarray:
    """Without the first key, the sizes of each row as great as they were; 0 where nothing else was seen."""
    whole = np.abs(matrix).sum(-1, keepdims=True)
    left = np.abs(matrix[:, 1:]).sum(-1, keepdims=True)
    kept = np.divide(whole, left, out=np.zeros_like(whole), where=left > 1e-12)
    return np.asarray(matrix[:, 1:] * kept)


def _attention(data: Data) -> tuple[list[str], Rows]:
    matrix, queries, keys, first = picked(data)
    name, head = data["patterns"][data["pattern"]]["name"], data["head"]
    rows = (
        [name, head, t, query, s + first, key, matrix[t, s]]
        for t, query in enumerate(queries)
        for s, key in enumerate(keys)
    )
    return ["layer", "head", "query_at", "query", "key_at", "key", "weight"], rows


SCORES = ("entropy", "distance", "previous", "first", "induction")


def _heads(data: Data) -> tuple[list[str], Rows]:
    rows = ([s["name"], s["head"], *(s.get(k) for k in SCORES)] for s in data["scores"])
    return ["layer", "head", *SCORES], rows


def _panels(data: Data) -> tuple[list[str], Rows]:
    rows = (
        [panel["title"], row, column, panel["values"][t, s]]
        for panel in data["panels"]
        for t, row in enumerate(panel["rows"])
        for s, column in enumerate(panel["columns"])
    )
    return ["panel", "row", "column", "value"], rows


def _steps(data: Data) -> tuple[list[str], Rows]:
    return ["section", "step", "formula", "numbers", "result"], (list(row) for row in data["rows"])


CHAIN = ("p", "heated", "top_k", "top_p", "final")


def _next_token(data: Data) -> tuple[list[str], Rows]:
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


def _beams(data: Data) -> tuple[list[str], Rows]:
    return ["at", *BRANCH], ([i, *(b[k] for k in BRANCH)] for i, b in enumerate(data["branches"]))


def _embeddings(data: Data) -> tuple[list[str], Rows]:
    near = lambda i: " ".join(data["words"][j] for j in data["near"][i])
    rows = ([name, *data["points"][i], near(i)] for i, name in enumerate(data["names"]))
    return ["word", "x", "y", "nearest"], rows


def _training(data: Data) -> tuple[list[str], Rows]:
    rows = ([c["name"], int(x), y] for c in data["curves"] for x, y in zip(c["x"], c["y"], strict=True))
    return ["curve", "step", data["metric"]], rows


TABLES: dict[str, Callable[[Data], tuple[list[str], Rows]]] = {
    "attention": _attention,
    "heads": _heads,
    "states": _panels,
    "positions": _panels,
    "steps": _steps,
    "next_token": _next_token,
    "beams": _beams,
    "embeddings": _embeddings,
    "training": _training,
}


def table(kind: str, data: Data) -> tuple[list[str], Rows]:
    """The names of the columns, and the rows."""
    return TABLES[kind](data)
