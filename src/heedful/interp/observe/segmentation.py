"""How a tokenizer cuts a text: the merges of byte pair encoding replayed, the lattice of a unigram model.

Byte pair encoding (Sennrich et al. 2016) begins with letters and joins the pair that was learnt earliest,
again and again. A unigram model (Kudo 2018) gives every piece a probability and takes the segmentation with
the largest product, which the Viterbi algorithm finds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from heedful.text import Tokenizer
from heedful.text.bpe import BPE, MergeStep

MAX_WORDS = 200  # whose merges are replayed
MAX_LETTERS = 400  # of such a word


@dataclass(frozen=True)
class MergedWord:
    """A word, the letters it begins with, and every merge in order."""

    word: str
    letters: tuple[str, ...]
    steps: Sequence[MergeStep]

    @property
    def pieces(self) -> tuple[str, ...]:
        return tuple(self.steps[-1].pieces) if self.steps else self.letters


@dataclass(frozen=True)
class LatticePiece:
    """A piece of the vocabulary that fits into a word from `start` to `end`, and its log-probability."""

    text: str
    start: int
    end: int
    score: float
    chosen: bool  # whether the best segmentation has it


def words_of_text(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return what merges never cross: the pieces of the tokenizer's own normaliser and splitter."""
    backend = tokenizer.backend
    normal = backend.normalizer.normalize_str(text) if backend.normalizer is not None else text
    if backend.pre_tokenizer is None:
        return [normal] if normal else []
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal)]


def short_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the first words of a text that are short enough to be shown piece by piece."""
    return [word for word in words_of_text(tokenizer, text)[:MAX_WORDS] if len(word) <= MAX_LETTERS]


def replay_merges(tokenizer: Tokenizer, text: str) -> list[MergedWord]:
    """Return the merges of each word of a text, from its letters to its pieces."""
    state = model_state(tokenizer)
    bpe = BPE(tuple((left, right) for left, right in state["merges"]))
    suffix = state.get("end_of_word_suffix") or ""
    merged = []
    for word in short_words(tokenizer, text):
        letters = (*word[:-1], word[-1] + suffix) if word else ()
        merged.append(MergedWord(word, letters, bpe.replay(letters)))
    return merged


def unigram_lattice(tokenizer: Tokenizer, text: str) -> list[tuple[str, list[LatticePiece]]]:
    """Return each word of a text with every piece that fits somewhere in it."""
    scores = {piece: score for piece, score in model_state(tokenizer)["vocab"]}
    longest = max(map(len, scores))
    lattice = []
    for word in short_words(tokenizer, text):
        spans = [
            (i, j) for i in range(len(word)) for j in range(i + 1, min(len(word), i + longest) + 1)
            if word[i:j] in scores
        ]  # fmt: skip
        sizes = [len(token.value) for token in tokenizer.backend.model.tokenize(word)]
        best = set(pairwise(accumulate(sizes, initial=0)))
        pieces = [LatticePiece(word[i:j], i, j, scores[word[i:j]], (i, j) in best) for i, j in spans]
        lattice.append((word, pieces))
    return lattice


def model_state(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the merges or the scores of a tokenizer, as its file has them."""
    state: dict[str, Any] = json.loads(tokenizer.backend.to_str())["model"]
    return state
