"""A catalogue of heads: what each one looks at, measured over many sequences; and a search for heads.

    previous, next   p(i, i−1), p(i, i+1)
    first            p(i, 0), i > 0: where heads look that look nowhere
    separator        the share of special tokens: [SEP], </s> …       (Clark et al. 2019 §3.2)
    punctuation      the share of tokens that are punctuation
    duplicate        p(i, j), j the last token like i                 (Wang et al. 2023, arXiv 2211.00593)
    induction        p(i, j), j what followed the last token like i   (Olsson et al. 2022, arXiv 2209.11895)

Many heads do one simple thing in every text, and such a name for a head is a first guess at its role. A score
is the mean weight over the queries of a sequence, with a bootstrap interval over sequences. Compare it with
`chance`, the score of a head that looks at everything alike. The last two scores are measured on random
tokens written twice, where nothing but the repetition tells where to look. A signed pattern is scored by the
absolute values of its entries.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.core.checks import check_integer
from heedful.core.errors import InputError, nearest
from heedful.core.files import Paths
from heedful.data.examples.tagging import conll
from heedful.interp.activations import InputBatch, Texts, make_batches, prepare_inputs
from heedful.interp.inputs import (
    Input,
    Result,
    Text,
    attends_to_source,
    names_of,
    part_at,
    position_of,
    with_progress,
)
from heedful.interp.learn.probes import word_pieces
from heedful.interp.measurements import mean_interval
from heedful.interp.observe.attention import attention, repeated_tokens, shares
from heedful.interp.observe.prediction import special_ids
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.context import Watch

TEXT_SCORES = ("previous", "next", "first", "separator", "punctuation")
REPEAT_SCORES = ("duplicate", "induction")
SCORES = (*TEXT_SCORES, *REPEAT_SCORES)
MAX_TOKENS = 256  # of a batch: every pattern of it is held at once


@dataclass(frozen=True)
class CatalogueEntry(Result):
    """One score of one head: the mean over sequences and its 95 % interval."""

    name: str  # of the part: blocks.3.attn
    head: int
    score: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class HeadCatalogue(Result):
    """Scores of every head, by their names: (sequences, heads) each, nan where a sequence has no such token.

    `chance` is the score of a head that looks equally at everything it may see.
    """

    heads: tuple[tuple[str, int], ...]  # the part and the number of each
    values: dict[str, Tensor]
    chance: dict[str, float]
    seed: int = 0

    def interval(self, score: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean of a score over sequences, and the ends of its 95 % interval: (heads,) each.

        By bootstrap over sequences; of one sequence the interval is the whole of [0, 1].
        """
        if score not in self.values:
            hint = nearest(score, self.values) or f"there are {', '.join(self.values)}"
            raise InputError(f"no score {score!r} was measured", hint=hint)
        rows = self.values[score]
        rows = rows[~rows[:, 0].isnan()]
        if len(rows) < 2:
            return rows.mean(0), torch.zeros_like(rows[0]), torch.ones_like(rows[0])
        return mean_interval(rows, seed=self.seed)

    def top(self, score: str, count: int = 10, *, above: float | None = None) -> list[CatalogueEntry]:
        """Return the heads with the highest mean of a score, or those whose interval is above a bound."""
        mean, low, high = self.interval(score)
        order = mean.argsort(descending=True).tolist()
        entries = [
            CatalogueEntry(part, head, score, float(mean[i]), float(low[i]), float(high[i]))
            for i in order for part, head in (self.heads[i],) if above is None or float(low[i]) > above
        ]  # fmt: skip
        return entries if above is not None else entries[:count]

    def by_part(self, score: str) -> tuple[list[str], Tensor]:
        """Return the parts and the means of a score as (parts, heads), nan where a part has fewer heads."""
        mean, _, _ = self.interval(score)
        parts = list(dict.fromkeys(part for part, _ in self.heads))
        out = torch.full((len(parts), 1 + max(head for _, head in self.heads)), math.nan)
        for (part, head), value in zip(self.heads, mean.tolist(), strict=True):
            out[parts.index(part), head] = value
        return parts, out


@torch.no_grad()
def catalogue_heads(
    model: Model, texts: Texts, *, max_length: int = 128, repeats: int = 16, repeat_length: int = 32,
    seed: int = 0,
) -> HeadCatalogue:  # fmt: skip
    """Return what every head looks at, over many texts and `repeats` rows of random tokens written twice.

    Heads that look at another sequence are left out. A text has at most `max_length` tokens.
    """
    check_integer("repeats", repeats, minimum=0)
    check_integer("repeat_length", repeat_length)
    inputs = prepare_inputs(model, texts, max_length=max_length)
    inputs = [given for given in inputs if given.read.shape[1] > 1]
    if not inputs:
        raise InputError("no text has two tokens", hint="give longer texts")
    twice = (
        repeated_tokens(model, repeats, repeat_length, seed)
        if repeats and isinstance(model, LM) and model.processor is None
        else []
    )
    rows: dict[str, list[Tensor]] = {score: [] for score in SCORES}
    chances: dict[str, list[float]] = {score: [] for score in SCORES}
    heads: tuple[tuple[str, int], ...] = ()
    kinds = ((True, inputs), (False, twice))
    batches = ((is_text, batch) for is_text, given in kinds for batch in make_batches(given, MAX_TOKENS))
    for is_text, batch in batches:
        patterns = _patterns(model, batch)
        heads = tuple((part, h) for part, p in patterns.items() for h in range(p.shape[1]))
        for row, one in enumerate(batch.inputs):
            for score, (shares_of_heads, chance) in _score_row(model, one, patterns, row, is_text).items():
                rows[score].append(shares_of_heads)
                chances[score].append(chance)
    values = {score: torch.stack(listed) for score, listed in rows.items() if listed}
    measured = {score: v for score, v in values.items() if not bool(v.isnan().all())}
    mean = lambda listed: math.fsum(c for c in listed if c == c) / max(1, sum(c == c for c in listed))
    return HeadCatalogue(heads, measured, {score: mean(chances[score]) for score in measured}, seed)


def _patterns(model: Model, batch: InputBatch) -> dict[str, Tensor]:
    """Return the patterns of a batch over its own tokens, by their parts; an error if there are none."""
    watch = Watch("*.pattern", detach=True)
    batch.run(model, watch)
    paths = [name.removesuffix(".pattern") for name in watch]
    own = [path for path in paths if not attends_to_source(part_at(model, path))]
    if not own:
        raise InputError(f"{model.family.name} has no heads that look at its own tokens")
    return {path: watch[f"{path}.pattern"] for path in own}


def _score_row(
    model: Model, inputs: Input, patterns: dict[str, Tensor], row: int, is_text: bool
) -> dict[str, tuple[Tensor, float]]:
    """Return scores of one sequence: those of all heads, (heads,), and the mean score of chance."""
    scores: dict[str, list[tuple[Tensor, float]]] = {}
    for path, several in patterns.items():
        ids = inputs.ids[0] if path.startswith("encoder") else inputs.read[0]
        T = len(ids)
        p = shares(several[row, :, :T, :T], part_at(model, path).pattern_kind).cpu()
        keys = _key_masks(model, ids) if is_text else _repeat_masks(T)
        if not bool(p[:, 0, 1:].any()):  # nothing looks ahead
            keys.pop("next", None)
        for score, (queries, looked) in keys.items():
            scores.setdefault(score, []).append(_share(p, queries, looked))
    return {
        score: (torch.cat([values for values, _ in parts]), math.fsum(c for _, c in parts) / len(parts))
        for score, parts in scores.items()
    }


def _share(p: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, float]:
    """Return the mean over `queries` of the share of `keys` (T, S), and that of uniform attention."""
    if not bool(queries.any()):
        return torch.full((len(p),), math.nan, dtype=p.dtype), math.nan
    seen = (p > 0).any(0)  # by some head: neither what a mask hides nor what is outside of a window
    even = (keys & seen).sum(-1) / seen.sum(-1).clamp(min=1)
    return (p * keys).sum(-1)[:, queries].mean(-1), float(even[queries].mean())


def _key_masks(model: Model, ids: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return for each score of a text the queries that count (T,), and the keys each is asked for (T, T)."""
    T = len(ids)
    some, none = torch.ones(T, dtype=torch.bool), torch.zeros(T, dtype=torch.bool)
    special = torch.tensor([i in special_ids(model) for i in ids.tolist()])
    points = torch.tensor([is_punctuation(name) for name in names_of(model, ids)]) & ~special
    after_first, before_last = some.clone(), some.clone()
    after_first[0], before_last[-1] = False, False
    first = torch.zeros(T, T, dtype=torch.bool)
    first[:, 0] = True
    at = torch.arange(T)
    return {
        "previous": (after_first, at == at[:, None] - 1),
        "next": (before_last, at == at[:, None] + 1),
        "first": (after_first, first),
        "separator": (some if bool(special.any()) else none, special.expand(T, T)),
        "punctuation": (some if bool(points.any()) else none, points.expand(T, T)),
    }


def _repeat_masks(length: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the masks of a sequence whose second half is its first again."""
    half = length // 2
    i, j = torch.arange(length)[:, None], torch.arange(length)
    second = torch.arange(length) >= half
    return {
        "duplicate": (second, j == i - half),
        "induction": (second & (torch.arange(length) < length - 1), j == i - half + 1),
    }


def is_punctuation(token: str) -> bool:
    """Whether a token, without the marks of a vocabulary, is punctuation."""
    plain = token.lstrip("Ġ▁ ").removeprefix("##").removesuffix("</w>")
    return bool(plain) and all(unicodedata.category(letter).startswith("P") for letter in plain)


@dataclass(frozen=True)
class HeadLook(Result):
    """The weight of one head from one token to another, where both stand, and the share of an even look."""

    name: str
    head: int
    weight: float
    chance: float
    query: int
    key: int


@torch.no_grad()
def find_heads(
    model: Model, text: Text, from_token: int | str, to_token: int | str,
    target: Text | None = None, *, count: int | None = 10,
) -> list[HeadLook]:  # fmt: skip
    """Return which heads look from one token at another, the strongest first.

    find_heads(model, "The cat sat because it was tired", "it", "cat"). A token is named, or given by its
    position; of several of one name it is the first. Of heads that look from a target at its source,
    `from_token` is the word written. Heads in which one of the two does not occur are left out; the weights
    of a signed pattern are shares of their sizes.
    """
    if count is not None:
        check_integer("count", count)
    seen = attention(model, text, target)
    if not seen.patterns:
        raise InputError(seen.note)
    looks, missing = list[HeadLook](), list[InputError]()
    for name, pattern in seen.patterns.items():
        try:
            i, j = position_of(pattern.queries, from_token), position_of(pattern.keys, to_token)
        except InputError as error:
            missing.append(error)
            continue
        weights = shares(pattern.values, pattern.kind)[:, i]
        visible = int((pattern.values[:, i] != 0).any(0).sum())
        looks += [
            HeadLook(name.removesuffix(".pattern"), h, w, 1 / max(1, visible), i, j)
            for h, w in enumerate(weights[:, j].tolist())
        ]
    if not looks:
        raise missing[0]
    return sorted(looks, key=lambda look: -look.weight)[:count]


# Heads that find a word's syntactic head (Clark et al. 2019 §4.2, arXiv 1906.04341). A head answers with the
# word that it looks at most, other than the word itself. The weights of a word's pieces are averaged where
# the word looks, and added where it is looked at. The baseline is the best fixed offset: "the next word".


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
    model: Model, sentences: Sequence[ParsedSentence], *, min_count: int = 20, max_length: int = 128
) -> list[SyntaxHead]:
    """Return the best head for every relation that occurs at least `min_count` times, in both directions.

    Where nothing looks ahead, only pairs count whose word looked at stands before the other. The best of many
    heads is chosen on these sentences: compare with `baseline`, chosen in the same way.
    """
    if isinstance(model, Seq2Seq):
        raise InputError("an encoder-decoder has two texts", hint="choose an encoder or a decoder")
    right: dict[tuple[str, str], Tensor] = {}
    offsets: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    heads: list[tuple[str, int]] = []
    for sentence in with_progress(sentences, "sentences", len(sentences)):
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
    out = []
    for (relation, direction), hits in right.items():
        count = offsets[relation, direction].total()
        if count >= min_count:
            best = int(hits.argmax())
            offset, most = offsets[relation, direction].most_common(1)[0]
            share = float(hits[best]) / count
            out.append(SyntaxHead(relation, direction, *heads[best], share, most / count, offset, count))
    return sorted(out, key=lambda best: best.baseline - best.accuracy)


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
