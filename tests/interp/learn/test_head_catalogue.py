"""Scores of heads over many sequences are those of each alone; heads that look from one token at another."""

from __future__ import annotations

import pytest
import torch

from heedful import Watch
from heedful.core.errors import InputError
from heedful.interp.learn.head_catalogue import (
    SCORES,
    HeadCatalogue,
    catalogue_heads,
    find_heads,
    is_punctuation,
)
from heedful.interp.observe.attention import attention, head_scores, repeated_tokens
from tests.decode.toy import letters
from tests.properties.tiny import ALL, tiny

TEXTS = [[5, 9, 2, 7, 11, 6], [6, 8, 3], [9, 9, 4, 12]]


@pytest.mark.parametrize("family", ALL)
def test_every_family_has_a_catalogue_or_says_that_it_has_no_heads(family: str) -> None:
    model = tiny(family)
    seen = attention(model, TEXTS[0])
    if all(p.cross for p in seen.patterns.values()):
        with pytest.raises(InputError, match="no heads"):
            catalogue_heads(model, TEXTS)
        return
    found = catalogue_heads(model, TEXTS, repeats=2, repeat_length=5)
    assert len(found.heads) == sum(p.heads for p in seen.patterns.values() if not p.cross)
    for score in found.values:
        mean, low, high = found.interval(score)
        assert bool(((low <= mean + 1e-9) & (mean <= high + 1e-9) & (mean >= 0) & (mean <= 1 + 1e-6)).all())


def test_previous_and_first_are_the_means_of_those_of_each_text() -> None:
    model = tiny("llama")
    found = catalogue_heads(model, TEXTS, repeats=0)
    alone = [head_scores(model, text, induction=0) for text in TEXTS]
    for h, (part, head) in enumerate(found.heads):
        rows = [next(s for s in listed if (s.name, s.head) == (f"{part}.pattern", head)) for listed in alone]
        for score in ("previous", "first"):
            want = sum(getattr(row, score) for row in rows) / 3
            assert float(found.interval(score)[0][h]) == pytest.approx(want, abs=1e-5)


def test_a_sink_takes_its_part_of_every_score() -> None:
    model = tiny("gpt-oss")
    with torch.no_grad():  # the sinks get nearly everything
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.fill_(4.0)
    found = catalogue_heads(model, TEXTS[:1], repeats=0)
    (one, *_) = head_scores(model, TEXTS[0], induction=0)
    pattern = attention(model, TEXTS[0])[one.name].values[0].double()
    previous = float(pattern.diagonal(-1).mean())
    assert previous < 0.2
    assert one.previous == pytest.approx(previous, abs=1e-6)
    assert float(found.values["previous"][0, 0]) == pytest.approx(previous, abs=1e-6)
    (look,) = [h for h in find_heads(model, TEXTS[0], 1, 0, count=None) if (h.name, h.head) == found.heads[0]]
    assert look.weight == pytest.approx(float(pattern[1, 0]), abs=1e-6)


def test_a_head_that_copies_what_followed_is_found() -> None:
    model = tiny("gpt2", heads=2)
    half = 6

    def look(pattern: torch.Tensor) -> torch.Tensor:
        pattern[:, 1] = 0.0
        for i in range(pattern.shape[-1]):
            pattern[:, 1, i, i - half + 1 if i >= half else 0] = 1.0
        return pattern

    edit = Watch(edit={"blocks.1.attn.pattern": look})
    forward = model.forward
    model.forward = lambda *a, watch, **k: forward(*a, watch=edit + watch, **k)  # type: ignore[method-assign]
    found = catalogue_heads(model, TEXTS, repeats=3, repeat_length=half)
    best = found.top("induction", 1)[0]
    assert (best.name, best.head) == ("blocks.1.attn", 1)
    assert (best.mean, best.low, best.high) == pytest.approx((1.0, 1.0, 1.0))
    assert [(e.name, e.head) for e in found.top("induction", above=0.9)] == [("blocks.1.attn", 1)]


@pytest.mark.parametrize("family", ["gpt2", "mistral"])  # the second sees six tokens at once
def test_an_even_look_scores_as_chance(family: str) -> None:
    model = tiny(family)
    with torch.no_grad():
        for block in model.blocks:  # type: ignore[union-attr]
            for parameter in block.attn.q.parameters():
                parameter.zero_()
    found = catalogue_heads(model, [TEXTS[0]], repeats=2, repeat_length=5)
    for score in ("previous", "first", "duplicate", "induction"):
        torch.testing.assert_close(
            found.interval(score)[0],
            torch.full((len(found.heads),), found.chance[score], dtype=torch.float64),
        )
    assert "next" not in found.values  # nothing looks ahead


def test_an_encoder_looks_ahead_and_at_punctuation() -> None:
    model = tiny("bert", vocab=300)
    model.tokenizer = letters()
    found = catalogue_heads(model, ["a cat, a dog.", "it is."], repeats=1, repeat_length=4)
    assert {"next", "punctuation"} <= set(found.values) <= set(SCORES)
    assert is_punctuation("Ġ,")
    assert not is_punctuation("Ġa.")


def test_more_sequences_give_a_narrower_interval() -> None:
    torch.manual_seed(0)
    width = lambda n: (lambda m, low, high: float(high - low))(
        *HeadCatalogue((("blocks.0.attn", 0),), {"first": torch.rand(n, 1).double()}, {}).interval("first")
    )
    assert width(200) < width(10) / 2
    assert width(1) == 1.0


def test_the_head_that_looks_from_a_token_at_another_is_the_one_with_most_weight() -> None:
    model = tiny("gpt2")
    looks = find_heads(model, TEXTS[0], "11", 1, count=None)
    seen = attention(model, TEXTS[0])
    want = {
        (name.removesuffix(".pattern"), h): float(pattern.values[h, 4, 1])
        for name, pattern in seen.patterns.items()
        for h in range(pattern.heads)
    }
    assert {(look.name, look.head): look.weight for look in looks} == pytest.approx(want)
    assert looks[0].weight == pytest.approx(max(want.values()))
    assert looks[0].chance == pytest.approx(1 / 5)
    with pytest.raises(InputError, match="no token"):
        find_heads(model, TEXTS[0], "nobody", "9")


def test_random_tokens_are_written_twice_and_are_no_special_ones() -> None:
    model = tiny("gpt2", vocab=300)
    model.tokenizer = letters()
    for given in repeated_tokens(model, 3, 7):
        ids = given.ids[0]
        assert ids[:7].tolist() == ids[7:].tolist()
