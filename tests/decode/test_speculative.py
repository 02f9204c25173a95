"""Guesses change the speed, never the text: greedy tokens identical, draws from the same distribution."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.decode.sampling import draw
from heedful.decode.settings import GenerationSettings
from heedful.decode.speculative import accept_guesses, distribution, look_up
from heedful.models.base import Model
from tests.properties.tiny import GENERATORS, by_kinds, by_parts, source_ids, tiny


@pytest.mark.parametrize("propose", [1, 4])
@pytest.mark.parametrize("family", by_parts(GENERATORS))
def test_a_draft_leaves_greedy_text_as_it_is(family: str, propose: int) -> None:
    model = tiny(family)
    prompt = source_ids(model, 1, 5)[0].tolist()
    expected = heedful.generate(model, prompt, max_tokens=14, eos=())
    for draft in (tiny(family, seed=9), model):  # one that is mostly wrong, one that is always right
        found = heedful.generate(model, prompt, max_tokens=14, eos=(), draft=draft, propose=propose)
        assert found == expected


@pytest.mark.parametrize("family", by_kinds(GENERATORS))
def test_looking_up_leaves_greedy_text_as_it_is(family: str) -> None:
    model = tiny(family)
    prompt = source_ids(model, 1, 5)[0].tolist() * 2
    expected = heedful.generate(model, prompt, max_tokens=20, eos=())
    assert heedful.generate(model, prompt, max_tokens=20, eos=(), lookup=1) == expected


@pytest.mark.parametrize("propose", [6, 7, 12])  # within the slots a window has to spare, and beyond
def test_guesses_leave_the_text_of_a_window_that_has_rolled_as_it_is(propose: int) -> None:
    model, prompt = tiny("mistral"), source_ids(tiny("mistral"), 1, 9)[0].tolist() * 2
    expected = heedful.generate(model, prompt, max_tokens=40, eos=())
    for how in ({"draft": tiny("mistral", seed=9)}, {"lookup": 1}):
        assert heedful.generate(model, prompt, max_tokens=40, eos=(), propose=propose, **how) == expected


def test_greedy_text_under_penalties_stays_too() -> None:
    model, draft = tiny("gpt2"), tiny("gpt2", seed=9)
    how = {"max_tokens": 14, "eos": (), "repetition": 1.4, "no_repeat": 2, "frequency": 0.3}
    assert heedful.generate(model, [5, 6, 5], draft=draft, **how) == heedful.generate(model, [5, 6, 5], **how)


def test_a_recurrent_model_may_draft_for_an_attentive_one() -> None:
    model, draft = tiny("llama"), tiny("lstm")
    expected = heedful.generate(model, [5, 6, 7], max_tokens=14, eos=())
    assert heedful.generate(model, [5, 6, 7], max_tokens=14, eos=(), draft=draft) == expected


def test_guesses_stop_where_the_context_of_either_does() -> None:
    model, draft = tiny("gpt2"), tiny("gpt2", context=32)
    ids = source_ids(model, 1, 28)[0].tolist()
    expected = heedful.generate(model, ids, max_tokens=60, eos=(), details=True)
    found = heedful.generate(model, ids, max_tokens=60, eos=(), draft=draft, details=True)
    assert (found.ids, found.finish) == (expected.ids, "context")


def test_fewer_passes_are_made_when_guesses_are_right() -> None:
    model = tiny("gpt2")
    calls = []
    hook = model.blocks.register_forward_hook(lambda *_: calls.append(1))
    heedful.generate(model, [5, 6, 7], max_tokens=20, eos=(), draft=tiny("gpt2"), propose=4)
    hook.remove()
    assert len(calls) <= 6  # five tokens each, and the prompt


def test_lookup_proposes_what_followed_last() -> None:
    guess = look_up(2, tiny("gpt2"), [1, 2, 3, 4, 1, 2, 5, 6, 1, 2], 3)
    assert guess[0] == [5, 6, 1]
    assert guess[1].argmax(-1).tolist() == [5, 6, 1]


DRAWS, WORDS = 100_000, 6


def chi_square(counted: torch.Tensor, chances: torch.Tensor) -> float:
    expected = chances * counted.sum()
    return float(((counted - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("kind", ["draft", "lookup"])
def test_a_hundred_thousand_draws_are_distributed_as_without_guesses(kind: str) -> None:
    """Over a toy vocabulary whose next word depends on the last: all pairs of the first two words."""
    random = torch.Generator().manual_seed(0)
    first, table = torch.rand(WORDS, generator=random), torch.rand(WORDS, WORDS, generator=random)
    p0, p1 = first / first.sum(), table / table.sum(1, keepdim=True)
    if kind == "draft":
        other = torch.rand(WORDS + 1, WORDS, generator=random) ** 2
        q0, q1 = (other / other.sum(1, keepdim=True)).split((1, WORDS))
    else:  # always the same guess, certain of itself
        q0, q1 = torch.eye(WORDS)[2:3], torch.eye(WORDS)[torch.full((WORDS,), 4)]
    u = torch.rand(DRAWS, 5, generator=random, dtype=torch.float64)
    a = draw(q0.log().expand(DRAWS, -1), u[:, 0])
    b = draw(q1[a].log(), u[:, 1])
    guesses = torch.stack((a, b), 1)
    p = torch.stack((p0.expand(DRAWS, -1), p1[a], p1[b]), 1)
    q = torch.stack((q0.expand(DRAWS, -1), q1[a]), 1)
    kept, token = accept_guesses(p, q, guesses, u[:, 2:])
    # A row that kept nothing has one word so far; its second is a plain draw.
    one = torch.where(kept > 0, a, token)
    plain = draw(p1[one].log(), torch.rand(DRAWS, generator=random, dtype=torch.float64))
    two = torch.where(kept > 1, b, torch.where(kept > 0, token, plain))
    counted = torch.bincount(one * WORDS + two, minlength=WORDS**2)
    assert 0 < int((kept == 0).sum()) < DRAWS
    assert chi_square(counted, (p0[:, None] * p1).flatten()) < 66.6  # 35 free, one in a thousand


def test_what_follows_kept_guesses_is_drawn_from_the_model_itself() -> None:
    p = torch.tensor([0.2, 0.3, 0.5]).expand(DRAWS, 2, 3)
    u = torch.rand(DRAWS, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kept, token = accept_guesses(p, p[:, :1], torch.ones(DRAWS, 1, dtype=torch.long), u)
    assert bool((kept == 1).all())
    assert chi_square(torch.bincount(token, minlength=3), p[0, 0]) < 13.8


def two_words(model: Model, draft: Model | None, count: int) -> torch.Tensor:
    found = heedful.generate(
        model, [5], max_tokens=2, n=count, temperature=1.0, seed=0, eos=(), draft=draft, propose=1
    )
    return torch.bincount(torch.tensor([a * 8 + b for a, b in found]), minlength=64)


@pytest.mark.parametrize("family", ["gpt2", "gru"])
def test_a_model_with_a_draft_draws_from_its_own_distribution(family: str) -> None:
    model, draft = (tiny(family, seed=s, std=0.6, vocab=8) for s in (0, 1))
    rules = GenerationSettings(temperature=1.0)
    with torch.no_grad():
        p0 = distribution(model(torch.tensor([[5]]))[:, -1], rules, [], 0)[0]
        p1 = torch.cat([distribution(model(torch.tensor([[5, v]]))[:, -1], rules, [], 0) for v in range(8)])
    chances = (p0[:, None] * p1).flatten()
    counted = two_words(model, draft, 400)
    common = chances * counted.sum() > 5
    pooled = torch.cat((counted[common], counted[~common].sum()[None]))
    limits = torch.cat((chances[common], chances[~common].sum()[None]))
    assert chi_square(pooled, limits) < 110  # at most 63 degrees of freedom, one in a thousand: 103.4
