"""Byte-pair encoding step by step: how merges are replayed on a word.

Training counts every pair of neighbours in all words, merges the most frequent one everywhere, and again
(Gage 1994; Sennrich et al. 2016, algorithm 1): `train_tokenizer("bpe", …)`, and the exercise bpe_merge. A new
word is cut by the same merges in the order in which they were learned. Over bytes nothing is unknown (Radford
et al. 2019 §2.2).
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heedful.text.tokenizer import Tokenizer

Pair = tuple[str, str]


@functools.cache
def letters_of_bytes() -> dict[int, str]:
    """A printable letter for every byte: itself if it has a shape, else one from U+0100 on (a space is Ġ)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


@functools.cache
def word_pattern() -> re.Pattern[str]:
    """GPT-2's words: 's 't …, letters, numbers or other marks with the space before them, and white space.

    Its \\p{L} and \\p{N} are unknown to `re`: Python counts ² and Ⅻ among letters, so these are taken out.
    """
    every = map(chr, range(sys.maxunicode + 1))
    numbers = "".join(c for c in every if unicodedata.category(c) in ("Nl", "No"))
    letter, number = rf"(?:(?![{numbers}])[^\W\d_])", rf"[\d{numbers}]"
    other = rf"(?:(?!{number})(?:[^\s\w]|_))"
    return re.compile(rf"'(?:s|t|re|ve|m|ll|d)| ?{letter}+| ?{number}+| ?{other}+|\s+(?!\S)|\s+")


def split_words(text: str) -> list[str]:
    """Return the words of a text; merges never cross their ends."""
    return word_pattern().findall(text)


def word_letters(word: str) -> tuple[str, ...]:
    """Return the bytes of a word, as letters."""
    return tuple(letters_of_bytes()[b] for b in word.encode("utf-8"))


@functools.cache
def bytes_of_letters() -> dict[str, int]:
    """Map each letter of `letters_of_bytes` back to its byte."""
    return {letter: b for b, letter in letters_of_bytes().items()}


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Return whether the names in the vocabulary spell bytes by letters (Ġ for a space)."""
    decoder = tokenizer.backend.decoder
    return decoder is not None and "ByteLevel" in str(decoder)


def token_bytes(tokenizer: Tokenizer, token: str) -> bytes | None:
    """Return the bytes that a token of a byte-level vocabulary stands for; None for a special one."""
    table = bytes_of_letters()
    if token in tokenizer.roles.values() or any(c not in table for c in token):
        return None
    return bytes(table[c] for c in token)


def merge_pair(pieces: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """Return the pieces with every occurrence of the pair made one, from left to right."""
    out: list[str] = []
    i = 0
    while i < len(pieces):
        joins = tuple(pieces[i : i + 2]) == pair
        out.append("".join(pair) if joins else pieces[i])
        i += 2 if joins else 1
    return tuple(out)


@dataclass(frozen=True)
class MergeStep:
    """One merge on the way from bytes to tokens: its place in the list of merges, and the pieces after it."""

    rank: int
    pair: Pair
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class BPE:
    """Merges in the order they were learned."""

    merges: tuple[Pair, ...]

    @functools.cached_property
    def ranks(self) -> dict[Pair, int]:
        return {pair: rank for rank, pair in enumerate(self.merges)}

    def replay(self, pieces: tuple[str, ...]) -> list[MergeStep]:
        """Return the merges of a word from its letters on: always the pair that was learned first."""
        steps = []
        while mergeable := [pair for pair in pairwise(pieces) if pair in self.ranks]:
            pair = min(mergeable, key=self.ranks.__getitem__)
            pieces = merge_pair(pieces, pair)
            steps.append(MergeStep(self.ranks[pair], pair, pieces))
        return steps

    def encode(self, text: str) -> list[str]:
        """Return the pieces of a text."""
        out: list[str] = []
        for letters in map(word_letters, split_words(text)):
            steps = self.replay(letters)
            out += steps[-1].pieces if steps else letters
        return out
