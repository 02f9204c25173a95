"""Positions: the claims papers and notes make about them, as tests."""

from __future__ import annotations

import math

import pytest
import torch

from heedful.nn.context import Context, Mask
from heedful.nn.position import ALiBi, BucketBias, Learned, Rotary, Sinusoidal
from heedful.nn.rope import LinearScaling, Llama3Scaling, NTKScaling, YarnScaling, frequencies


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
