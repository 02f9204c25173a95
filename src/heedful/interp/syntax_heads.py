"""Heads that find a word's syntactic head: the attention of parsed sentences beside the best fixed offset

(Clark et al. 2019 §4.2, arXiv 1906.04341.) What a word gives is the mean over its pieces, what it is given
their sum; the word most looked at, other than the word itself, is the head's answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.core.files import Paths
from heedful.data.tagging import conll
from heedful.interp.activations import Report
from heedful.interp.attention import attention, shares
from heedful.interp.probes import word_pieces
from heedful.interp.results import Result
from heedful.models.base import Model, Seq2Seq


class ParsedSentence(NamedTuple):
    """Words, the number of each one's head (−1 for the root), and the relation between them."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


def read_parsed(paths: Paths, limit: int | None = None) -> list[ParsedSentence]:
    """Return the sentences of CoNLL-U files with their dependencies."""
    both = zip(conll(paths, 1, 6), conll(paths, 1, 7), strict=True)
    return [
        ParsedSentence(heads.words, tuple(int(h) - 1 for h in heads.tags), relations.tags)
        for heads, relations in islice(both, limit)
    ]


@dataclass(frozen=True)
class SyntaxHead(Result):
    """The head that finds a relation best, and how often; `baseline` is the share of the best offset."""

    relation: str
    direction: str  # "to head": the dependent looks at its head; "to dependent": the other way
    name: str
    head: int
    accuracy: float
    baseline: float
    offset: int
    count: int


@torch.no_grad()
def syntax_heads(
    model: Model, sentences: Sequence[ParsedSentence], *, min_count: int = 20, max_length: int = 128,
    report: Report | None = None,
) -> list[SyntaxHead]:  # fmt: skip
    """Return the best head for every relation that occurs at least `min_count` times, in both directions.

    Where nothing looks ahead, only pairs count whose word looked at stands before the other. The best of many
    heads is chosen on these sentences: compare with `baseline`, chosen in the same way.
    """
    if isinstance(model, Seq2Seq):
        raise InputError("an encoder-decoder has two texts", hint="choose an encoder or a decoder")
    right: dict[tuple[str, str], Tensor] = {}
    offsets: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    heads: list[tuple[str, int]] = []
    for number, sentence in enumerate(sentences):
        if report is not None:
            report(number, len(sentences))
        ids, pieces = word_pieces(model, sentence.words, max_length)
        seen = attention(model, ids)
        if not seen.patterns:
            raise InputError(seen.note)
        heads = [(n.removesuffix(".pattern"), h) for n, p in seen.patterns.items() for h in range(p.heads)]
        looks = torch.cat([_by_words(p.values, pieces, len(sentence.words)) for p in seen.patterns.values()])
        ahead = bool(looks[:, 0, 1:].any())
        looks.diagonal(0, -2, -1).fill_(-1.0)
        answers = looks.argmax(-1)  # (heads, words)
        for key, i, j in _pairs(sentence, {p for p in pieces if p is not None}):
            if ahead or j < i:
                right[key] = (answers[:, i] == j).long() + right.get(key, 0)
                offsets[key][j - i] += 1
    if report is not None:
        report(len(sentences), len(sentences))
    out = []
    for (relation, direction), hits in right.items():
        count = offsets[relation, direction].total()
        if count >= min_count:
            best = int(hits.argmax())
            offset, most = offsets[relation, direction].most_common(1)[0]
            share = float(hits[best]) / count
            out.append(SyntaxHead(relation, direction, *heads[best], share, most / count, offset, count))
    return sorted(out, key=lambda found: found.baseline - found.accuracy)


def _pairs(sentence: ParsedSentence, words: set[int]) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Yield a relation with its direction, the word that looks and the one looked at."""
    for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
        if head >= 0 and {word, head} <= words:
            yield (relation, "to head"), word, head
            yield (relation, "to dependent"), head, word


def _by_words(pattern: Tensor, pieces: Sequence[int | None], words: int) -> Tensor:
    """(H, T, T) → (H, words, words): the mean over a word's pieces of the sums over another's."""
    p = shares(pattern).cpu()
    owner = torch.tensor([-1 if piece is None else piece for piece in pieces])
    own = (owner == torch.arange(words)[:, None]).double()  # (words, T)
    return own / own.sum(1, keepdim=True).clamp(min=1) @ p @ own.T
