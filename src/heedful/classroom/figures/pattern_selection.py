"""Which weights of a pattern a figure shows: one head or all, by words, of one of two texts on the other."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.classroom.figures.token_labels import labels
from heedful.core.errors import InputError
from heedful.models.base import Model

SPECIAL = re.compile(r"\[[A-Z0-9]+\]|<[^<>\s]+>|\S*endoftext\S*")
PART = re.compile(r"<[0-9A-F]{2}( [0-9A-F]{2})*>")  # bytes that are no whole letter
MARKS = {"##": re.compile(r"##\w"), "</w>": re.compile(r".*</w>$"), " ": re.compile("[Ġ▁ ]")}
STARTS = ("Ġ", "▁", " ")
SAMPLE = 5000  # names of a vocabulary that show how it marks words
Data = Mapping[str, Any]
SIDES = {"aa": "A → A", "ab": "A → B", "ba": "B → A", "bb": "B → B"}


def marks(names: Sequence[str]) -> str:
    """How a vocabulary tells a word's first piece: "##" before the others, "</w>" behind the last, a space
    before the first; "" where every token is a word.
    """
    enough = max(1, len(names) // 100)  # a large vocabulary has "###" as well
    return next((m for m, look in MARKS.items() if sum(bool(look.match(n)) for n in names) >= enough), "")


def marks_of(model: Model) -> str:
    """Those of a model's vocabulary."""
    if model.tokenizer is None:
        return ""
    return marks(labels(model, range(min(SAMPLE, model.tables["tokens"].vocab, len(model.tokenizer)))))


def group_words(names: Sequence[str], mark: str) -> list[int]:
    """The word each token belongs to, counted from 0. A special token is a word of its own; so are marks of
    punctuation, and letters of scripts that put no spaces between words.
    """
    out: list[int] = []
    for i, name in enumerate(names):
        out.append(0 if i == 0 else out[-1] + (not mark or not continues(names[i - 1], name, mark)))
    return out


def continues(before: str, name: str, mark: str) -> bool:
    """Whether a token goes on with the word of the one before it."""
    if PART.fullmatch(name) and PART.fullmatch(before):
        return True
    if SPECIAL.fullmatch(name) or SPECIAL.fullmatch(before):
        return False
    if mark == "##":
        return name.startswith("##")
    if mark == "</w>":
        return not before.endswith("</w>")
    last, first = before[-1:], name[:1]
    wide = unicodedata.east_asian_width(first or "x") in "WF"
    return not name.startswith(STARTS) and not wide and last.isalnum() and first.isalnum()


def join_word(names: Sequence[str]) -> str:
    """The pieces of a word as one; bytes that are a letter together as that letter."""
    if all(map(PART.fullmatch, names)) and len(names) > 1:
        return bytes.fromhex("".join(names).replace("<", "").replace(">", " ")).decode(errors="replace")
    first, *rest = names
    return first.removesuffix("</w>") + "".join(n.removeprefix("##").removesuffix("</w>") for n in rest)


def word_names(names: Sequence[str], words: Sequence[int]) -> list[str]:
    """The name of each word."""
    return [
        join_word([n for n, w in zip(names, words, strict=True) if w == word]) for word in sorted(set(words))
    ]


def by_words(values: np.ndarray, rows: Sequence[int], columns: Sequence[int]) -> np.ndarray:
    """p(i, j) = mean over the pieces t of word i of Σ over the pieces s of word j of p(t, s)

    What a word is given is the sum of what its pieces are given, what it gives is their mean, so that rows
    add up to what they did (Clark et al. 2019 §4).
    """
    take = np.array(rows)[None] == np.array(sorted(set(rows)))[:, None]  # (words, T)
    give = np.array(columns)[None] == np.array(sorted(set(columns)))[:, None]  # (words, S)
    mean = take / take.sum(-1, keepdims=True)
    return np.asarray(mean @ values @ give.T.astype(values.dtype), dtype=values.dtype)


def side(between: str) -> str:
    """ "A→B" in any spelling as "ab"; an error names the four."""
    short = re.sub(r"[^ab]", "", between.lower())
    if between and short not in SIDES:
        raise InputError(f"between={between!r} is unknown", hint="choose A→A, A→B, B→A or B→B")
    return short


@dataclass(frozen=True)
class SelectedPattern:
    """The matrix an attention figure shows (T, S), which of its cells a mask hides, what its rows and columns
    are, and where these stand: places of tokens, or of words where it is drawn by words.
    """

    values: np.ndarray
    masked: np.ndarray
    queries: list[str]
    keys: list[str]
    query_at: list[int]
    key_at: list[int]


def select_pattern(data: Data) -> SelectedPattern:
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
        # The sizes of each row add up to what they did; 0 where nothing else was seen.
        whole = np.abs(matrix).sum(-1, keepdims=True)
        left = np.abs(matrix[:, 1:]).sum(-1, keepdims=True)
        scale = np.divide(whole, left, out=np.zeros_like(whole), where=left > 1e-12)
        matrix, columns = np.asarray(matrix[:, 1:] * scale), columns[1:]
    if data["between"] and second is not None:
        # The marks around a text count with it: A ends before B's first word.
        sides = zip(data["between"], values.shape[1:], strict=True)
        asks, seen = (list(range(second) if side == "a" else range(second, n)) for side, n in sides)
        seen = [c for c in seen if c in columns]
        matrix = matrix[np.ix_(asks, [columns.index(c) for c in seen])]
        rows, columns = asks, seen
    queries, keys = [pattern["queries"][i] for i in rows], [pattern["keys"][i] for i in columns]
    masked = masked_cells(pattern)[np.ix_(rows, columns)]
    if not data["words"]:
        return SelectedPattern(matrix, masked, queries, keys, rows, columns)
    asking, asked = [pattern["query_words"][i] for i in rows], [pattern["key_words"][i] for i in columns]
    whole = by_words(matrix, asking, asked)
    hidden = by_words((~masked).astype(np.float64), asking, asked) == 0
    names = word_names(queries, asking), word_names(keys, asked)
    return SelectedPattern(whole, hidden, *names, sorted(set(asking)), sorted(set(asked)))


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
