"""Disentangled attention against the equation written as a loop; its buckets and its convolution."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from heedful.core.errors import ConfigError
from heedful.nn.attention.disentangled import DisentangledAttention, Distances, Neighbours, log_bucket
from heedful.nn.context import Context, Mask, Watch
from heedful.nn.init import initialise

D, H, T = 12, 3, 9


def context(**more: object) -> Context:
    pos = torch.arange(T)[None]
    return Context(pos, pos, Mask(), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("buckets", [0, 4])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("terms", [("c2p", "p2c"), ("c2p",), ("p2c",), ()])
@torch.no_grad()
def test_scores_are_the_sum_of_their_terms(terms: tuple[str, ...], shared: bool, buckets: int) -> None:
    distances = Distances(D, max_distance=6, buckets=buckets)
    attn = DisentangledAttention(D, H, distances, terms, shared=shared)
    initialise(attn, 0.3)
    x, watch = torch.randn(1, T, D), Watch("attn.scores")
    attn(x, Context(torch.arange(T)[None], torch.arange(T)[None], Mask(), watch=watch, path="attn"))
    heads = lambda y: y.view(*y.shape[:-1], H, D // H)
    q, k = heads(attn.q(x[0])), heads(attn.k(x[0]))
    table = distances.table.weight
    keys, queries = heads((attn.pos_k or attn.k)(table)), heads((attn.pos_q or attn.q)(table))
    for h, i, j in torch.cartesian_prod(torch.arange(H), torch.arange(T), torch.arange(T)).tolist():
        step = int(log_bucket(torch.tensor(i - j), buckets, 6)) if buckets else i - j
        row = min(max(step + distances.span, 0), 2 * distances.span - 1)
        score = q[i, h] @ k[j, h]
        score += q[i, h] @ keys[row, h] if "c2p" in terms else 0
        score += k[j, h] @ queries[row, h] if "p2c" in terms else 0
        assert abs(watch["attn.scores"][0, h, i, j] - score / math.sqrt(D // H * (1 + len(terms)))) <= 1e-5


def test_buckets_are_exact_near_by_and_never_cross_far_away() -> None:
    distance = torch.arange(-600, 601)
    bucket = log_bucket(distance, 256, 512)
    near = distance.abs() <= 128
    assert torch.equal(bucket[near], distance[near])
    assert (bucket.diff() >= 0).all()
    assert torch.equal(bucket, -bucket.flip(0))
    assert bucket[distance.abs() <= 511].abs().max() == 255


@torch.no_grad()
def test_neighbours_equal_a_padded_convolution_and_skip_padding_and_other_documents() -> None:
    conv = Neighbours(D, 5, torch.tanh, groups=2)
    initialise(conv)
    x = torch.randn(1, T, D)
    plain = F.conv1d(x.mT, conv.conv.weight, conv.conv.bias, padding=2, groups=2).mT.tanh()
    assert (conv(x, context()) - plain).abs().max() <= 1e-6
    documents = torch.tensor([[0] * 4 + [1] * 5])
    pos, mask = torch.arange(T)[None], Mask(q_documents=documents, k_documents=documents)
    packed = conv(x, Context(pos, pos, mask))
    alone = torch.cat((conv(x[:, :4], context()), conv(x[:, 4:], context())), 1)
    assert (packed - alone).abs().max() <= 1e-6
    valid = torch.arange(T)[None] >= 3
    assert (conv(x, context(valid_new=valid))[:, 3:] - conv(x[:, 3:], context())).abs().max() <= 1e-6


def test_all_layers_share_one_table_and_make_its_rows_once() -> None:
    distances, ctx = Distances(D, max_distance=6), context()
    first = distances(ctx)
    assert all(a is b for a, b in zip(first, distances(ctx), strict=True))


def test_an_unknown_term_or_an_even_kernel_is_an_error_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="c2p, p2c"):
        DisentangledAttention(D, H, None, ("p2p",))
    with pytest.raises(ConfigError, match="3 or 5"):
        Neighbours(D, 4, torch.tanh)
