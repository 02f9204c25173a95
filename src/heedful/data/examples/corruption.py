"""Corruption of text as pure functions of ids and a generator, apart from any model.

mask_tokens, choose_tokens       BERT (Devlin et al. 2019 §3.1); whole words (their repository, 2019)
replace_tokens                   ELECTRA's replaced tokens, without a generator (Clark et al. 2020 §3.1)
corrupt_spans                    T5's span corruption (Raffel et al. 2020 §3.1.4)
NOISES                           BART's five noises (Lewis et al. 2020 §2.2)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heedful.core.checks import check_number
from heedful.core.errors import ConfigError, InputError, count_of
from heedful.data.batch import IGNORE
from heedful.data.tokenization import Flags, Ids

Random = np.random.Generator


@dataclass(frozen=True)
class Masking:
    """Settings that hide tokens: of a share `rate` of them, `masked` become the mask, `random` any token.

    The others of that share stay as they are and are still to be predicted.
    """

    mask: int
    special: Flags  # (V) ids that are never chosen and never drawn
    continues: Flags | None = None  # (V) ids that continue a word: then words are chosen whole
    rate: float = 0.15
    masked: float = 0.8
    random: float = 0.1

    def __post_init__(self) -> None:
        check_number("rate", self.rate, maximum=1, above=0, error=ConfigError)
        if min(self.masked, self.random) < 0 or self.masked + self.random > 1 + 1e-9:
            raise ConfigError(
                f"`masked={self.masked}` and `random={self.random}` must be shares that sum to at most 1"
            )

    @cached_property
    def regular(self) -> Ids:
        """The ids that are not special."""
        return np.flatnonzero(~self.special)

    def draw(self, count: int, rng: Random) -> Ids:
        """Return random tokens, all but special ones equally likely."""
        return self.regular[rng.integers(len(self.regular), size=count)]


def draw_count(count: int, rate: float, rng: Random) -> int:
    """rate · count, rounded at random so that its mean is exact, and at least one."""
    return min(max(int(count * rate + rng.random()), 1), count) if count else 0


def choose_tokens(ids: Ids, rng: Random, masking: Masking) -> Flags:
    """Return which tokens are to be predicted: a share `rate` of those not special, by tokens or by words."""
    chosen = np.zeros(len(ids), bool)
    free = np.flatnonzero(~masking.special[ids])
    left = draw_count(len(free), masking.rate, rng)
    if masking.continues is None:
        chosen[rng.permutation(free)[:left]] = True
        return chosen
    starts = ~masking.continues[ids[free]]
    starts[np.flatnonzero(np.diff(free, prepend=-2) > 1)] = True  # a special token ends a word
    word = starts.cumsum() - 1
    sizes = np.bincount(word, minlength=1)
    for w in rng.permutation(len(sizes) if len(free) else 0):
        if sizes[w] <= left:  # a word that would exceed the share is passed over
            chosen[free[word == w]] = True
            left -= sizes[w]
        if left <= 0:
            break
    return chosen


def mask_tokens(ids: Ids, rng: Random, masking: Masking) -> tuple[Ids, Ids]:
    """Return the text with some tokens hidden, and labels: what was hidden there, IGNORE elsewhere."""
    chosen = choose_tokens(ids, rng, masking)
    u = rng.random(len(ids))
    hidden, changed = (
        chosen & (u < masking.masked),
        chosen & (u >= masking.masked) & (u < masking.masked + masking.random),
    )
    out = ids.copy()
    out[hidden] = masking.mask
    out[changed] = masking.draw(int(changed.sum()), rng)
    return out, np.where(chosen, ids, IGNORE)


def replace_tokens(ids: Ids, rng: Random, masking: Masking) -> tuple[Ids, Ids]:
    """Return the text with some tokens replaced, and 1 where a token is another now, IGNORE if special.

    A draw that hits the token itself counts as not replaced, as in ELECTRA.
    """
    chosen = choose_tokens(ids, rng, masking)
    out = ids.copy()
    out[chosen] = masking.draw(int(chosen.sum()), rng)
    return out, np.where(masking.special[ids], IGNORE, out != ids)


def random_segments(total: int, count: int, rng: Random) -> Ids:
    """Return `count` positive numbers with the sum `total`, all ways equally likely."""
    cuts = np.sort(rng.permutation(total - 1)[: count - 1]) + 1
    return np.diff(np.concatenate(([0], cuts, [total]))).astype(np.int64)


def span_counts(length: int, density: float = 0.15, mean: float = 3.0) -> tuple[int, int]:
    """Return how many tokens are cut out of a text, and in how many spans; rounded as T5 does."""
    if length < 2:
        return 0, 0
    noise = min(max(round(length * density), 1), length - 1)
    return noise, min(max(round(noise / mean), 1), length - noise)


def span_lengths(length: int, density: float = 0.15, mean: float = 3.0) -> tuple[int, int]:
    """Return how long a text may be so that the encoder reads `length` tokens, and how long its target is.

    568 tokens make inputs of 512 and targets of 114, as in T5.
    """
    sizes = lambda raw: raw - span_counts(raw, density, mean)[0] + span_counts(raw, density, mean)[1] + 1
    raw = length
    while sizes(raw + 1) <= length:
        raw += 1
    return raw, sum(span_counts(raw, density, mean)) + 1


def corrupt_spans(
    ids: Ids, rng: Random, sentinels: Sequence[int], density: float = 0.15, mean: float = 3.0
) -> tuple[Ids, Ids]:
    """a b c d e f g → (a b X e f Y, X c d Y g): spans replaced by sentinels, and what stood there.

    Kept and cut spans alternate, kept first; their lengths are random with the sums that `span_counts` gives.
    """
    noise, count = span_counts(len(ids), density, mean)
    if count > len(sentinels):
        spans, marks = count_of(count, "spans"), count_of(len(sentinels), "sentinels")
        raise InputError(f"a row of {len(ids)} tokens has {spans}, but only {marks} can mark them")
    if not count:
        return ids.copy(), ids[:0]
    sizes = np.empty(2 * count, np.int64)
    sizes[0::2], sizes[1::2] = (
        random_segments(len(ids) - noise, count, rng),
        random_segments(noise, count, rng),
    )
    parts = np.split(ids, sizes.cumsum()[:-1])
    pieces: list[Ids | list[int]] = []
    cut: list[Ids | list[int]] = []
    for sentinel, stays, goes in zip(sentinels, parts[0::2], parts[1::2], strict=False):
        pieces += [stays, [sentinel]]
        cut += [[sentinel], goes]
    return np.concatenate(pieces).astype(np.int64), np.concatenate(cut).astype(np.int64)


@dataclass(frozen=True)
class Noise:
    """BART's settings: a share `rate` of tokens is noised, spans have Poisson(`mean`) tokens."""

    mask: int
    ends: Flags  # (V) ids that end a sentence
    rate: float = 0.3
    mean: float = 3.0

    def __post_init__(self) -> None:
        check_number("rate", self.rate, maximum=1, above=0)


def blank_tokens(ids: Ids, rng: Random, noise: Noise) -> Ids:
    """Token masking: some tokens become the mask."""
    out = ids.copy()
    out[rng.permutation(len(ids))[: draw_count(len(ids), noise.rate, rng)]] = noise.mask
    return out


def delete_tokens(ids: Ids, rng: Random, noise: Noise) -> Ids:
    """Token deletion: some tokens go, and nothing says where. One stays in any case."""
    gone = rng.permutation(len(ids))[: min(draw_count(len(ids), noise.rate, rng), len(ids) - 1)]
    return np.delete(ids, gone)


def infill_spans(ids: Ids, rng: Random, noise: Noise) -> Ids:
    """Text infilling: spans of Poisson length become one mask each; a span of length 0 is a mask put in."""
    left = draw_count(len(ids), noise.rate, rng)
    lengths: list[int] = []
    while left > 0:
        lengths.append(min(int(rng.poisson(noise.mean)), left))
        left -= lengths[-1]
    while len(lengths) > sum(lengths):  # never longer than it was
        lengths.remove(0)
    remaining = len(ids) - sum(lengths)
    sizes = np.ones(remaining + len(lengths), np.int64)
    where = np.sort(rng.permutation(len(sizes))[: len(lengths)])  # any order of kept tokens and spans
    sizes[where] = lengths
    starts = sizes.cumsum() - sizes
    out = ids[np.minimum(starts, len(ids) - 1)] if len(ids) else np.zeros(len(sizes), np.int64)
    out[where] = noise.mask
    return out


def permute_sentences(ids: Ids, rng: Random, noise: Noise) -> Ids:
    """Sentence permutation: the sentences in another order; a rest without an end counts as one."""
    after = np.flatnonzero(noise.ends[ids]) + 1
    parts = [p for p in np.split(ids, after) if len(p)]
    return np.concatenate([parts[i] for i in rng.permutation(len(parts))]) if parts else ids.copy()


def rotate_document(ids: Ids, rng: Random, noise: Noise) -> Ids:
    """Document rotation: the text begins at some token, and what stood before it comes last."""
    return np.roll(ids, -int(rng.integers(len(ids)))) if len(ids) else ids.copy()


NOISES: dict[str, Callable[[Ids, Random, Noise], Ids]] = {
    "blank": blank_tokens,
    "delete": delete_tokens,
    "infill": infill_spans,
    "permute": permute_sentences,
    "rotate": rotate_document,
}
