"""Positions: the claims papers and notes make about them, as tests."""

from __future__ import annotations

import math

import pytest
import torch

from heedful.core.errors import ConfigError
from heedful.nn.context import Context, Mask
from heedful.nn.position import (
    ALiBi,
    BucketBias,
    Learned,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    NTKScaling,
    Rotary,
    RoundedALiBi,
    Scaling,
    Sinusoidal,
    YarnScaling,
    frequencies,
)
from tests.refusal import refused


def context(T: int, S: int | None = None) -> Context:
    k_pos = torch.arange(S or T)[None]
    return Context(k_pos[:, -T:], k_pos, Mask())


def test_sinusoids_are_the_numbers_of_the_formula() -> None:
    table = Sinusoidal(4)(torch.arange(3))
    expected = [[0, 1, 0, 1], [0.8415, 0.5403, 0.0100, 1.0000], [0.9093, -0.4161, 0.0200, 0.9998]]
    assert torch.allclose(table, torch.tensor(expected), atol=5e-5)


def test_sinusoids_stay_between_minus_one_and_one_and_never_repeat() -> None:
    table = Sinusoidal(64)(torch.arange(5000))
    assert table.abs().max() <= 1
    assert torch.cdist(table, table).fill_diagonal_(1).min() > 1e-3


def test_a_shift_of_sinusoids_is_one_linear_map_for_all_positions() -> None:
    D, shift = 16, 7
    table = Sinusoidal(D)(torch.arange(200)).double()
    angle = shift / 10000.0 ** (torch.arange(0, D, 2).double() / D)
    turn = torch.block_diag(*(torch.tensor([[a.cos(), -a.sin()], [a.sin(), a.cos()]]) for a in angle))
    assert (table[:190] @ turn - table[shift : 190 + shift]).abs().max() < 1e-6


def test_the_norm_of_a_sinusoid_is_the_root_of_half_the_dimension() -> None:
    assert torch.allclose(Sinusoidal(512)(torch.arange(9)).norm(dim=-1), torch.full((9,), 16.0))


def test_halves_are_the_pairs_in_another_order() -> None:
    pairs, halves = Sinusoidal(8)(torch.arange(5)), Sinusoidal(8, layout="halves")(torch.arange(5))
    assert torch.equal(torch.cat((pairs[:, 0::2], pairs[:, 1::2]), -1), halves)


@pytest.mark.parametrize("dim", [5, 6])
def test_sinusoids_have_as_many_entries_as_asked_for_and_begin_at_their_offset(dim: int) -> None:
    table = Sinusoidal(dim, base=50.0, offset=2)(torch.arange(3)[None])
    assert table.shape == (1, 3, dim)
    expected = [(math.cos if i % 2 else math.sin)(4 / 50 ** ((i - i % 2) / dim)) for i in range(dim)]
    assert table[0, 2].tolist() == pytest.approx(expected, abs=1e-6)


def test_learned_positions_begin_at_the_first_row_of_their_table() -> None:
    table = Learned(4, 3)
    assert (table.num_embeddings, table.context) == (4, 4)
    assert torch.equal(table(torch.arange(4)), table.weight)


def test_learned_positions_skip_their_offset() -> None:
    table = Learned(4, 3, offset=2)
    assert torch.equal(table(torch.arange(4)), table.weight[2:])


SCALINGS = [None, LinearScaling(2.0), NTKScaling(2.0, 16), YarnScaling(4.0, 16), Llama3Scaling(8.0, 16)]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: type(s).__name__)
def test_rotated_products_depend_on_the_distance_alone(scaling: object) -> None:
    rotary, q, k = Rotary(8, scaling=scaling), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    ctx = context(32)
    product = lambda t, s: (rotary(q, torch.tensor([[t]]), ctx) * rotary(k, torch.tensor([[s]]), ctx)).sum()
    assert torch.allclose(product(3, 1), product(23, 21), atol=1e-5)
    assert not torch.allclose(product(3, 1), product(4, 1), atol=1e-3)


def test_a_rotation_turns_each_pair_by_its_angle_and_leaves_the_rest() -> None:
    x, pos = torch.randn(2, 6, 4, 7, dtype=torch.float64), torch.tensor([[0, 1, 5, 9], [2, 3, 4, 40]])
    turned = Rotary(6, base=100.0)(x, pos, context(4))
    for i, frequency in enumerate((1.0, 100 ** (-1 / 3), 100 ** (-2 / 3))):
        number = torch.complex(x[..., i], x[..., i + 3]) * torch.polar(
            torch.ones(2, 1, 4).double(), pos[:, None].double() * frequency
        )
        assert torch.allclose(turned[..., i], number.real, atol=1e-5)
        assert torch.allclose(turned[..., i + 3], number.imag, atol=1e-5)
    assert torch.equal(turned[..., 6], x[..., 6])
    assert turned.dtype == x.dtype


def test_two_rotations_in_one_pass_have_their_own_angles() -> None:
    x, ctx = torch.randn(1, 1, 3, 4), context(3)
    early, late, fast = torch.arange(3)[None], torch.arange(3)[None] + 7, Rotary(4, base=10.0)
    for rotary in (Rotary(4), fast, fast):
        for pos in (early, late, early):
            assert torch.equal(rotary(x, pos, ctx), rotary(x, pos, context(3)))


def test_the_layers_of_a_pass_share_one_table_of_angles(monkeypatch: pytest.MonkeyPatch) -> None:
    made, table = [], Rotary.table
    monkeypatch.setattr(Rotary, "table", lambda self, *args: made.append(1) or table(self, *args))
    rotary, pos, ctx = Rotary(4), torch.arange(3)[None], context(3)
    for _ in range(3):
        rotary(torch.randn(1, 1, 3, 4), pos, ctx)
    assert len(made) == 1


def test_a_head_without_pairs_or_angles_is_refused() -> None:
    with refused(ConfigError, "a head of 5 entries", hint="choose 6 or 4"):
        Rotary(5)
    with refused(ConfigError, "rope_base=0", hint="above 0"):
        Rotary(4, base=0.0)
    assert Rotary(4, base=0.5).base == 0.5


def rotary_frequencies(scaling: Scaling | None, dim: int, length: int, base: float = 10000.0) -> list[float]:
    freq, _ = frequencies(dim, base, scaling, torch.tensor([[length]]))
    return [float(f) for f in freq[0]]


def test_interpolated_positions_divide_every_frequency() -> None:
    expected = [10000.0 ** (-i / 4) / 3 for i in range(4)]
    assert rotary_frequencies(LinearScaling(3.0), 8, 100) == pytest.approx(expected)
    assert LinearScaling(3.0).gain == Scaling().gain == 1.0


@pytest.mark.parametrize("length", [5, 16, 17, 40])
def test_a_dynamic_base_is_its_formula(length: int) -> None:
    stretch = 3.0 * max(length, 16) / 16 - 3.0 + 1
    base = 10000.0 * stretch ** (8 / 6)
    expected = [base ** (-i / 4) for i in range(4)]
    assert rotary_frequencies(NTKScaling(3.0, 16), 8, length) == pytest.approx(expected)


@pytest.mark.parametrize("context", [24, 184, 600, 4096])
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("dim", "base"), [(8, 10000.0), (64, 10000.0), (8, 5.0)])
def test_yarn_blends_between_the_pairs_that_turn_often_and_seldom(
    context: int, truncate: bool, dim: int, base: float
) -> None:
    scaling = YarnScaling(4.0, context, fast=16.0, slow=2.0, truncate=truncate)
    # pair i turns context · f_i / 2π times: the pair that turns n times is K log(context/2πn) / (2 log base)
    low, high = (dim * math.log(context / (n * math.tau)) / (2 * math.log(base)) for n in (16, 2))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    expected = []
    for i in range(dim // 2):
        f = base ** (-2 * i / dim)
        slowed = min(max((i - low) / (high - low if high > low else 0.001), 0.0), 1.0)
        expected.append(f * (1 - slowed) + f / 4 * slowed)
    assert rotary_frequencies(scaling, dim, 10, base) == pytest.approx(expected, rel=1e-4)


def test_the_gain_of_yarn_is_its_formula_or_what_a_checkpoint_states() -> None:
    assert YarnScaling(4.0).gain == pytest.approx(0.1 * math.log(4) + 1)
    assert YarnScaling(1.5).gain == pytest.approx(0.1 * math.log(1.5) + 1)
    assert YarnScaling(1.0).gain == YarnScaling(0.5).gain == 1.0
    two = YarnScaling(40.0, mscale=0.7, mscale_all_dim=2.0)
    assert two.gain == pytest.approx((0.07 * math.log(40) + 1) / (0.2 * math.log(40) + 1))
    assert YarnScaling(40.0, mscale=0.7).gain == pytest.approx(0.1 * math.log(40) + 1)
    assert YarnScaling(40.0, mscale=0.7, mscale_all_dim=2.0, attention_factor=1.3).gain == 1.3


@pytest.mark.parametrize("context", [16, 300, 8192])
def test_llama3_keeps_short_waves_and_stretches_long_ones(context: int) -> None:
    expected = []
    for i in range(16):
        f = 10000.0 ** (-i / 16)
        wave = math.tau / f
        blend = (context / wave - 1) / (4 - 1)
        smooth = (1 - blend) * f / 8 + blend * f
        expected.append(f if wave < context / 4 else f / 8 if wave > context else smooth)
    assert rotary_frequencies(Llama3Scaling(8.0, context), 32, 10) == pytest.approx(expected, rel=1e-4)


def test_long_factors_begin_after_the_trained_length() -> None:
    scaling = LongScaling(4.0, 12, (1.0, 2.0), (3.0, 5.0))
    assert rotary_frequencies(scaling, 4, 12) == pytest.approx([1.0, 0.01 / 2])
    assert rotary_frequencies(scaling, 4, 13) == pytest.approx([1 / 3, 0.01 / 5])
    assert scaling.gain == pytest.approx(math.sqrt(1 + math.log(4) / math.log(12)))
    assert LongScaling(1.5, 12).gain == pytest.approx(math.sqrt(1 + math.log(1.5) / math.log(12)))
    assert LongScaling(1.0, 12).gain == LongScaling(0.5, 12).gain == 1.0
    assert LongScaling(4.0, 12, attention_factor=1.3).gain == 1.3
    assert frequencies(4, 10000.0, scaling, torch.tensor([[5]]))[1] == scaling.gain


def test_lengths_share_a_regime_if_they_share_their_frequencies() -> None:
    regimes = lambda scaling: [scaling.regime(n) for n in (1, 11, 12, 13, 14)]
    assert regimes(NTKScaling(2.0, 12)) == [12, 12, 12, 13, 14]
    assert regimes(LongScaling(2.0, 12)) == [0, 0, 0, 1, 1]
    for scaling in (Scaling(), LinearScaling(2.0), YarnScaling(2.0, 12), Llama3Scaling(2.0, 12)):
        assert regimes(scaling) == [0] * 5
        assert (scaling.by_length, scaling.reread_length, scaling.is_unlimited) == (False, None, False)
        assert not Rotary(4, scaling=scaling).by_length
    long, dynamic = LongScaling(2.0, 12), NTKScaling(2.0, 12)
    assert (long.by_length, long.reread_length, long.is_unlimited) == (True, 12, False)
    assert (dynamic.by_length, dynamic.reread_length, dynamic.is_unlimited) == (True, None, True)
    assert Rotary(4, scaling=long).by_length
    assert not Rotary(4).by_length


def test_a_scaling_has_the_values_of_its_publication_unless_told_otherwise() -> None:
    assert Scaling().factor == 1.0
    assert (NTKScaling().context, LongScaling().context) == (2048, 4096)
    yarn, llama = YarnScaling(), Llama3Scaling()
    assert (yarn.context, yarn.fast, yarn.slow, yarn.truncate) == (2048, 32.0, 1.0, True)
    assert (llama.context, llama.low, llama.high) == (8192, 1.0, 4.0)
    assert (Rotary(4).base, Sinusoidal(4).base) == (10000.0, 10000.0)


def test_a_rotation_keeps_the_length_of_a_vector() -> None:
    x = torch.randn(1, 2, 5, 8)
    turned = Rotary(8)(x, torch.arange(5)[None], context(5))
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)


def test_dynamic_frequencies_change_only_beyond_the_trained_length() -> None:
    scaling, length = NTKScaling(2.0, 16), torch.tensor([[8], [16], [40]])
    freq, _ = frequencies(8, 10000.0, scaling, length)
    plain, _ = frequencies(8, 10000.0, None, length)
    assert torch.allclose(freq[:2], plain.expand(2, -1))
    assert (freq[2, 1:] < plain[0, 1:]).all()


def test_alibi_slopes_are_a_geometric_series_also_for_twelve_heads() -> None:
    assert torch.allclose(ALiBi(8).slopes(torch.device("cpu")), torch.tensor([2.0**-h for h in range(1, 9)]))
    twelve = ALiBi(12).slopes(torch.device("cpu"))
    assert torch.allclose(twelve[8:], torch.tensor([2.0 ** -(h + 0.5) for h in range(4)]))


def test_alibi_is_zero_at_home_and_falls_with_distance() -> None:
    bias = ALiBi(4)(context(3, 6))
    assert bias.shape == (1, 4, 3, 6)
    assert bias[0, :, 2, 5].abs().max() == 0
    assert (bias[0, :, 2, :5].diff(dim=-1) > 0).all()


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 16])
def test_alibi_slopes_of_any_number_of_heads(heads: int) -> None:
    low = 1 << (heads.bit_length() - 1)
    expected = [2 ** (-8 * h / low) for h in range(1, low + 1)]
    expected += [2 ** (-4 * h / low) for h in range(1, 2 * low, 2)][: heads - low]
    assert ALiBi(heads).slopes(torch.device("cpu")).tolist() == pytest.approx(expected)


def test_alibi_is_minus_the_slope_times_the_distance() -> None:
    bias, slopes = ALiBi(4)(context(3, 6))[0], [0.25, 0.0625, 0.015625, 0.00390625]
    for h, i, j in torch.cartesian_prod(torch.arange(4), torch.arange(3), torch.arange(6)).tolist():
        assert bias[h, i, j] == -slopes[h] * (i + 3 - j)


def test_rounded_alibi_is_alibi_over_the_root_of_the_head_up_to_rounding() -> None:
    bias = RoundedALiBi(4, head_dim=16)(context(3, 6))
    assert bias.shape == (1, 4, 3, 6)
    difference = bias - ALiBi(4)(context(3, 6)) / 4
    assert torch.allclose(difference, difference[..., :1].expand_as(difference), atol=1e-6)
    two = Context(torch.tensor([[1, 2], [4, 5]]), torch.tensor([[0, 1, 2], [3, 4, 5]]), Mask())
    assert torch.equal(RoundedALiBi(4, 16)(two)[1, :, 1], bias[0, :, 0, 3:])
    slopes, far = ALiBi(12).slopes(torch.device("cpu")).bfloat16(), torch.tensor([[1001]])
    bias = RoundedALiBi(12, head_dim=64)(Context(far, far, Mask()))
    assert torch.equal(bias[0, :, 0, 0], (slopes * torch.tensor(1001)).float() / 8)


@pytest.mark.parametrize("causal", [True, False])
def test_the_bias_of_a_score_is_that_of_the_bucket_of_its_distance(causal: bool) -> None:
    part = BucketBias(2, buckets=8, max_distance=20, causal=causal)
    bias = part(context(3, 6))
    assert bias.shape == (1, 2, 3, 6)
    for i, j in torch.cartesian_prod(torch.arange(3), torch.arange(6)).tolist():
        assert torch.equal(bias[0, :, i, j], part.table.weight[part.bucket(torch.tensor(j - i - 3))])


def test_keys_ahead_of_a_causal_query_share_the_bucket_of_the_query_itself() -> None:
    assert BucketBias(2, causal=True).bucket(torch.tensor([0, 1, 9])).tolist() == [0, 0, 0]


def test_buckets_of_both_directions_are_the_formula_of_the_paper() -> None:
    part, distances = (
        BucketBias(2, buckets=8, max_distance=20, causal=False),
        torch.tensor([1, 2, 3, 5, 8, 19, 99]),
    )
    steps = [1, 2, *(min(2 + math.floor(math.log(d / 2) / math.log(10) * 2), 3) for d in (3, 5, 8, 19, 99))]
    assert part.bucket(-distances).tolist() == steps
    assert part.bucket(distances).tolist() == [4 + step for step in steps]


def test_buckets_are_exact_near_and_logarithmic_far() -> None:
    bias = BucketBias(2, buckets=32, max_distance=128, causal=True)
    near = bias.bucket(-torch.arange(16))
    assert near.tolist() == list(range(16))
    assert bias.bucket(torch.tensor([-1000, -127])).tolist() == [31, 31]
    both = BucketBias(2, buckets=32, max_distance=128, causal=False).bucket(torch.tensor([-3, 0, 3]))
    assert both.tolist() == [3, 0, 19]


def test_a_bucket_is_the_formula_of_the_paper() -> None:
    bias, distances = BucketBias(2, causal=True), torch.arange(16, 128)
    expected = [16 + math.floor(math.log(d / 16) / math.log(128 / 16) * 16) for d in distances.tolist()]
    got = bias.bucket(-distances).tolist()
    assert (
        sum(a != b for a, b in zip(got, expected, strict=True)) <= 1
    )  # one distance sits on a rounding edge
