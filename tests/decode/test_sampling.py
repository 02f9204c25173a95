"""Each rule against transformers' processor and against its definition; draws against their distribution."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.decode import sampling as S
from heedful.decode.settings import GenerationSettings

V = 50


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(4, V, generator=torch.Generator().manual_seed(1)) * 3


@pytest.fixture
def tokens() -> Tensor:
    tokens = torch.randint(0, 12, (4, 20), generator=torch.Generator().manual_seed(2))
    tokens[:, -1] = tokens[:, 3]
    tokens[:, -2] = tokens[:, 2]
    return tokens


RULES: dict[str, tuple[Any, Any]] = {
    "bias": (
        lambda z, t: S.add_bias(z, {3: 2.0, 7: -4.0}),
        lambda p: p.SequenceBiasLogitsProcessor({(3,): 2.0, (7,): -4.0}),
    ),
    "repetition": (lambda z, t: S.repetition(z, t, 1.3), lambda p: p.RepetitionPenaltyLogitsProcessor(1.3)),
    "no_repeat": (lambda z, t: S.no_repeat(z, t, 3), lambda p: p.NoRepeatNGramLogitsProcessor(3)),
    "no_repeat_1": (lambda z, t: S.no_repeat(z, t, 1), lambda p: p.NoRepeatNGramLogitsProcessor(1)),
    "temperature": (lambda z, t: S.apply_temperature(z, 0.7), lambda p: p.TemperatureLogitsWarper(0.7)),
    "top_k": (lambda z, t: S.top_k(z, 7), lambda p: p.TopKLogitsWarper(7)),
    "top_k_beyond": (lambda z, t: S.top_k(z, 700), lambda p: p.TopKLogitsWarper(700)),
    "top_p": (lambda z, t: S.top_p(z, 0.8), lambda p: p.TopPLogitsWarper(0.8)),
    "top_p_tiny": (lambda z, t: S.top_p(z, 1e-4), lambda p: p.TopPLogitsWarper(1e-4)),
    "min_p": (lambda z, t: S.min_p(z, 0.1), lambda p: p.MinPLogitsWarper(0.1)),
    "typical": (lambda z, t: S.typical(z, 0.6), lambda p: p.TypicalLogitsWarper(0.6)),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_equals_transformers(rule: str, logits: Tensor, tokens: Tensor) -> None:
    from transformers.generation import logits_process as theirs

    ours, make = RULES[rule]
    expected = make(theirs)(tokens, logits.clone())
    torch.testing.assert_close(ours(logits, tokens), expected, rtol=1e-6, atol=1e-6)


def test_all_rules_together_come_in_the_order_of_transformers(logits: Tensor, tokens: Tensor) -> None:
    import transformers

    config = transformers.GenerationConfig(
        do_sample=True, temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, typical_p=0.9,
        repetition_penalty=1.2, no_repeat_ngram_size=2, sequence_bias={(3,): 1.5},
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=V))
    model._prepare_special_tokens(config, device="cpu")
    chain = model._get_logits_processor(config, input_ids_seq_length=20)
    mine = GenerationSettings(
        temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, typical=0.9, repetition=1.2, no_repeat=2,
        bias={3: 1.5},
    )  # fmt: skip
    got = S.warp(mine, S.apply_penalties(mine, logits, tokens))
    torch.testing.assert_close(got, chain(tokens, logits.clone()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spread", [0.1, 8.0])
def test_narrowing_a_large_vocabulary_equals_sorting_it(spread: float) -> None:
    from transformers.generation import logits_process as theirs

    z = torch.randn(3, 5000, generator=torch.Generator().manual_seed(1)) * spread
    assert torch.equal(S.top_p(z, 0.9), theirs.TopPLogitsWarper(0.9)(None, z))
    assert torch.equal(S.typical(z, 0.9), theirs.TypicalLogitsWarper(0.9)(None, z))


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_tokens_that_reach_top_p_exactly_are_enough(kept: int, logits: Tensor) -> None:
    reached = logits[:1].softmax(-1).sort(descending=True).values.cumsum(-1)
    narrowed = S.top_p(logits[:1], reached[0, kept - 1].item())
    assert int(narrowed.isfinite().sum()) == kept


def test_tokens_that_reach_the_mass_of_typical_exactly_are_enough() -> None:
    chances = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    assert S.furthest(torch.arange(4.0)[None], chances, 0.75).tolist() == [[1.0]]


def test_a_token_exactly_min_p_times_as_likely_as_the_most_likely_stays(logits: Tensor) -> None:
    assert torch.equal(S.min_p(logits, 1.0).isfinite().nonzero()[:, 1], logits.argmax(-1))
    half = torch.tensor([[0.5, 0.25, 0.25]]).log()
    chances = half.softmax(-1)
    assert S.min_p(half, (chances[0, 1] / chances[0, 0]).item()).isfinite().all()


def test_frequency_counts_and_presence_does_not(logits: Tensor) -> None:
    written = torch.tensor([[5, 5, 9]]).expand(4, -1)
    often = (logits - S.frequency(logits, written, 0.5))[:, [5, 9, 1]]
    there = (logits - S.presence(logits, written, 0.5))[:, [5, 9, 1]]
    assert torch.allclose(often, torch.tensor([1.0, 0.5, 0.0]), atol=1e-6)
    assert torch.allclose(there, torch.tensor([0.5, 0.5, 0.0]), atol=1e-6)


def test_frequency_and_presence_look_only_at_what_was_written(logits: Tensor) -> None:
    seen = torch.tensor([[5, 5, 9]]).expand(4, -1)
    changed = S.apply_penalties(GenerationSettings(frequency=0.5), logits, seen, new_tokens=1) != logits
    assert changed.nonzero()[:, 1].unique().tolist() == [9]


def test_every_penalty_asked_for_is_applied(logits: Tensor) -> None:
    seen = torch.tensor([[5, 5, 9]]).expand(4, -1)
    rules = GenerationSettings(frequency=0.5, presence=0.25, bias={1: 2.0})
    change = (S.apply_penalties(rules, logits, seen, new_tokens=2) - logits)[:, [5, 9, 1, 0]]
    assert torch.allclose(change, torch.tensor([-0.75, -0.75, 2.0, 0.0]), atol=1e-5)


@pytest.mark.parametrize(
    ("rules", "looks_back", "changes", "forbids"),
    [
        ({}, False, False, False),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "typical": 0.5}, False, False, False),
        ({"repetition": 1.1}, True, True, False),
        ({"presence": 0.1}, True, True, False),
        ({"frequency": -0.1}, True, True, False),
        ({"no_repeat": 2}, True, True, True),
        ({"bias": {3: 1.0}}, False, True, False),
        ({"bias": {3: -math.inf}}, False, True, True),
    ],
    ids=str,
)
def test_only_penalties_look_back_and_only_they_and_biases_change_the_most_likely_token(
    rules: dict[str, Any], looks_back: bool, changes: bool, forbids: bool
) -> None:
    found = GenerationSettings(**rules)
    assert (found.looks_back, found.changes, found.forbids) == (looks_back, changes, forbids)


def test_only_temperature_zero_is_greedy() -> None:
    assert GenerationSettings().greedy
    assert not GenerationSettings(temperature=0.1).greedy


def test_a_row_without_any_token_left_is_an_error() -> None:
    forbidden = torch.tensor([[0.0, -math.inf, -math.inf], [1.0, 0.0, -math.inf]])
    S.check_tokens_left(forbidden, 3)
    forbidden[0, 0] = -math.inf
    with pytest.raises(InputError, match="after 3 tokens"):
        S.check_tokens_left(forbidden, 3)


def test_rules_that_look_back_do_not_see_padding(logits: Tensor, tokens: Tensor) -> None:
    short = tokens[:, 12:]
    padded = torch.cat((torch.full((4, 12), -1), short), 1)
    rules = GenerationSettings(repetition=1.3, frequency=0.2, presence=0.1, no_repeat=2)
    assert torch.equal(
        S.apply_penalties(rules, logits, padded, 8), S.apply_penalties(rules, logits, short, 8)
    )


def test_two_paddings_are_no_repeated_pair(logits: Tensor) -> None:
    padded = torch.tensor([[-1, -1, -1, 4]]).expand(4, -1)
    assert torch.equal(S.no_repeat(logits, padded, 2), logits)


def test_draws_follow_the_distribution() -> None:
    chances = torch.tensor([0.5, 0.0, 0.2, 0.299, 0.001])
    u = torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = S.draw(chances.log().expand(len(u), -1), u)
    expected = chances * len(u)
    counted = torch.bincount(drawn, minlength=5)
    assert counted[1] == 0
    kept = chances > 0
    chi = ((counted - expected)[kept] ** 2 / expected[kept]).sum()
    assert chi < 16.3  # 3 degrees of freedom, one in a thousand


def test_a_draw_never_takes_a_forbidden_last_token() -> None:
    z = torch.tensor([[0.0, 1.0, -math.inf]])
    assert int(S.draw(z, torch.tensor([1 - 2**-53], dtype=torch.float64))) == 1


def test_a_draw_never_takes_a_forbidden_first_token() -> None:
    z = torch.tensor([[-math.inf, 0.0, 1.0]])
    assert int(S.draw(z, torch.zeros(1, dtype=torch.float64))) == 1


def test_a_seed_gives_the_same_numbers_in_every_version() -> None:
    numbers = S.uniforms([S.generator(7), S.generator(-1, 2, 3)], 1)
    assert numbers.tolist() == [[0.3599088437558461], [0.4673532131790994]]


def test_rows_and_samples_have_their_own_numbers() -> None:
    numbers = {
        float(torch.rand(1, generator=S.generator(7, row, sample))) for row in range(3) for sample in range(3)
    }
    assert len(numbers) == 9
    assert torch.rand(1, generator=S.generator(7, 1, 2)) == torch.rand(1, generator=S.generator(7, 1, 2))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.5}, "temperature=-0.5"),
    ({"temperature": math.nan}, "temperature=nan"),
    ({"top_k": 0}, "top_k=0"),
    ({"top_p": 0.0}, "top_p=0.0"),
    ({"top_p": 1.2}, "top_p=1.2"),
    ({"min_p": -0.1}, "min_p=-0.1"),
    ({"min_p": 1.1}, "min_p=1.1"),
    ({"temperature": math.inf}, "temperature=inf"),
    ({"repetition": math.inf}, "repetition=inf"),
    ({"bias": {1: math.nan}}, "bias"),
    ({"typical": 1.2}, "typical=1.2"),
    ({"typical": 0.0}, "typical=0.0"),
    ({"repetition": 0.0}, "repetition=0.0"),
    ({"presence": math.inf}, "presence=inf"),
    ({"no_repeat": 0}, "no_repeat=0"),
    ({"bias": {1: math.inf}}, "bias"),
]


@pytest.mark.parametrize(("values", "said"), BAD, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_a_value_that_cannot_be_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        GenerationSettings(**values)


def test_the_values_at_the_ends_of_each_range_are_allowed(logits: Tensor) -> None:
    ends = [{"top_k": 1}, {"top_p": 1.0}, {"typical": 1.0}, {"min_p": 0.0}, {"min_p": 1.0}, {"no_repeat": 1}]
    for values in ends:
        assert S.warp(GenerationSettings(temperature=1.0, **values), logits).isfinite().any(-1).all()
