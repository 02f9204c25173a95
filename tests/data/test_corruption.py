"""Corruption by its invariants and its statistics, without a model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from heedful.core.errors import ConfigError, InputError
from heedful.data.batch import IGNORE
from heedful.data.examples import corruption as corrupt
from heedful.data.examples.corruption import Masking, Noise
from tests.data.toy import restore_spans
from tests.refusal import refused

V, MASK = 1000, 3
SPECIAL = np.arange(V) < 10
HOW = Masking(MASK, SPECIAL)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def text(length: int = 200, seed: int = 0) -> np.ndarray:
    ids = rng(seed + 1000).integers(10, V, length)
    if length > 20:
        ids[[0, 7, -1]] = 4, 5, 5  # special tokens among the others
    return ids


def within(count: int, trials: int, p: float) -> bool:
    """Within three standard deviations of a binomial."""
    return abs(count - trials * p) <= 3 * (trials * p * (1 - p)) ** 0.5


def test_masking_hides_the_share_it_should_in_the_way_it_should() -> None:
    chosen = hidden = same = other = free = 0
    for seed in range(300):
        ids = text(seed=seed)
        out, labels = corrupt.mask_tokens(ids, rng(seed), HOW)
        picked = labels != IGNORE
        free += int((~SPECIAL[ids]).sum())
        chosen += int(picked.sum())
        hidden += int((out == MASK).sum())
        same += int((out == ids)[picked].sum())
        other += int(((out != ids) & (out != MASK)).sum())
    assert within(chosen, free, 0.15)
    assert within(hidden, chosen, 0.8)
    assert within(same, chosen, 0.1)
    assert within(other, chosen, 0.1)


def test_masking_labels_are_the_hidden_tokens_and_the_rest_is_untouched() -> None:
    ids = text()
    out, labels = corrupt.mask_tokens(ids, rng(), HOW)
    picked = labels != IGNORE
    assert (labels[picked] == ids[picked]).all()
    assert (out[~picked] == ids[~picked]).all()


def test_special_tokens_are_never_chosen_and_never_drawn() -> None:
    how = Masking(MASK, SPECIAL, rate=1.0, masked=0.0, random=1.0)
    for seed in range(50):
        out, labels = corrupt.mask_tokens(text(seed=seed), rng(seed), how)
        assert (labels[SPECIAL[text(seed=seed)]] == IGNORE).all()
        assert not SPECIAL[out[labels != IGNORE]].any()


def test_at_least_one_token_is_chosen_and_none_from_nothing() -> None:
    assert corrupt.choose_tokens(np.array([4, 50, 5]), rng(), HOW).tolist() == [False, True, False]
    assert not corrupt.choose_tokens(np.array([4, 5]), rng(), HOW).any()
    assert corrupt.mask_tokens(np.array([], np.int64), rng(), HOW)[0].size == 0


def test_whole_words_are_chosen_whole_and_at_the_same_rate() -> None:
    continues = np.arange(V) % 3 == 0
    how = Masking(MASK, SPECIAL, continues)
    chosen = free = 0
    for seed in range(200):
        ids = text(seed=seed)
        picked = corrupt.choose_tokens(ids, rng(seed), how)
        for i in range(1, len(ids)):
            if continues[ids[i]] and not SPECIAL[ids[i]] and not SPECIAL[ids[i - 1]]:
                assert picked[i] == picked[i - 1]
        chosen, free = chosen + int(picked.sum()), free + int((~SPECIAL[ids]).sum())
    assert abs(chosen / free - 0.15) < 0.005


@pytest.mark.parametrize("bad", [{"rate": 0.0}, {"rate": 1.5}, {"masked": 0.9, "random": 0.2}])
def test_impossible_shares_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Masking(MASK, SPECIAL, **bad)


def test_swapped_tokens_are_marked_where_they_differ() -> None:
    marked = free = 0
    for seed in range(200):
        ids = text(seed=seed)
        out, flags = corrupt.replace_tokens(ids, rng(seed), HOW)
        assert ((flags == 1) == (out != ids)).all()
        assert (flags[SPECIAL[ids]] == IGNORE).all()
        marked, free = marked + int((flags == 1).sum()), free + int((~SPECIAL[ids]).sum())
    assert within(marked, free, 0.15 * 989 / 990)


@pytest.mark.parametrize("sentinels", [range(V + 99, V - 1, -1), range(V, V + 100)])
@pytest.mark.parametrize("length", [2, 3, 7, 50, 568])
def test_source_and_target_of_spans_together_are_the_text(sentinels: range, length: int) -> None:
    for seed in range(20):
        ids = rng(seed).integers(0, V, length)
        source, target = corrupt.corrupt_spans(ids, rng(seed), sentinels)
        assert (restore_spans(source, target, sentinels) == ids).all()
        noise, count = corrupt.span_counts(length)
        assert len(source) == length - noise + count
        assert len(target) == noise + count
        marks = [t for t in source.tolist() if t >= V]
        assert marks == list(sentinels[:count]) == [t for t in target.tolist() if t >= V]


def test_span_lengths_are_those_of_t5() -> None:
    assert corrupt.span_lengths(512) == (568, 114)
    for length in (16, 100, 128, 256, 1024):
        raw, target = corrupt.span_lengths(length)
        source, cut = corrupt.corrupt_spans(np.arange(raw), rng(), range(2000, 3000))
        assert len(source) + 1 <= length
        assert len(cut) + 1 == target


def test_mean_span_and_density_are_as_set() -> None:
    for density, mean in ((0.15, 3), (0.5, 8), (0.3, 1)):
        noise, count = corrupt.span_counts(1000, density, mean)
        assert noise == round(1000 * density)
        assert count == round(noise / mean)


def test_too_few_sentinels_are_an_error_and_one_token_has_no_span() -> None:
    with refused(InputError, "28 spans", "5 sentinels"):
        corrupt.corrupt_spans(np.arange(568), rng(), range(600, 605))
    source, target = corrupt.corrupt_spans(np.array([5]), rng(), [9])
    assert source.tolist() == [5]
    assert target.tolist() == []


def test_segments_are_positive_add_up_and_every_way_is_as_likely() -> None:
    ways = Counter(tuple(corrupt.random_segments(5, 3, rng(seed)).tolist()) for seed in range(3000))
    assert len(ways) == 6
    assert all(sum(w) == 5 and min(w) > 0 for w in ways)
    assert all(within(n, 3000, 1 / 6) for n in ways.values())


STOP = 11
NOISE = Noise(MASK, np.arange(V) == STOP)


def plain(length: int = 200) -> np.ndarray:
    ids = rng(5).integers(20, V, length)
    ids[9::10] = STOP
    return ids


def in_order(part: np.ndarray, whole: np.ndarray) -> bool:
    rest = iter(whole.tolist())
    return all(token in rest for token in part.tolist())


def test_blanking_masks_the_share_in_place() -> None:
    out = corrupt.blank_tokens(plain(), rng(), NOISE)
    assert len(out) == 200
    assert abs(int((out == MASK).sum()) - 60) <= 1
    assert (out[out != MASK] == plain()[out != MASK]).all()


def test_deleting_leaves_the_rest_in_order() -> None:
    out = corrupt.delete_tokens(plain(), rng(), NOISE)
    assert abs(len(out) - 140) <= 1
    assert in_order(out, plain())
    assert len(corrupt.delete_tokens(np.array([50]), rng(), NOISE)) == 1


def test_infilling_hides_the_share_in_poisson_spans_and_keeps_the_order() -> None:
    masks, kept = 0, 0
    for seed in range(200):
        out = corrupt.infill_spans(plain(), rng(seed), NOISE)
        masks, kept = masks + int((out == MASK).sum()), kept + int((out != MASK).sum())
        assert in_order(out[out != MASK], plain())
    assert abs(kept / 200 - 140) <= 1
    assert abs((200 * 200 - kept) / masks - 3) < 0.15  # the last span of a row is cut short
    assert corrupt.infill_spans(np.array([], np.int64), rng(), NOISE).size == 0


def test_permuting_keeps_sentences_whole() -> None:
    sentences = lambda ids: sorted(tuple(s) for s in np.split(ids, np.flatnonzero(ids == STOP) + 1) if len(s))
    out = corrupt.permute_sentences(plain(), rng(), NOISE)
    assert sentences(out) == sentences(plain())
    assert (out != plain()).any()


def test_rotating_starts_elsewhere_in_the_same_circle() -> None:
    out = corrupt.rotate_document(plain(), rng(), NOISE)
    assert any((np.roll(out, shift) == plain()).all() for shift in range(200))
    starts = Counter(int(corrupt.rotate_document(np.arange(10), rng(s), NOISE)[0]) for s in range(1000))
    assert len(starts) == 10


@pytest.mark.parametrize("name", corrupt.NOISES)
def test_noise_follows_from_the_generator_and_leaves_its_input_alone(name: str) -> None:
    ids = plain()
    first, again = (corrupt.NOISES[name](ids, rng(7), NOISE) for _ in range(2))
    assert first.tolist() == again.tolist()
    assert (ids == plain()).all()
