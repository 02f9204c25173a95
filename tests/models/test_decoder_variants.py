"""What the sizes of one family differ in: norms of a parallel block, ALiBi, narrow token vectors, long rope.

The properties over the registry look at a family's tiny config; these are the configs beside it.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.decode.engines.fallback import find_fallback_reason
from heedful.decode.engines.static_state import StaticState
from heedful.decode.fast import NumbaStepper
from heedful.decode.quantize import quantize
from heedful.decode.stepper import EagerStepper
from heedful.interp.observe.logit_attribution import logit_attribution
from heedful.models.base import LM
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import ParallelBlock
from heedful.nn.context import Context, Mask
from heedful.nn.ffn import MLP
from heedful.nn.norm import LayerNorm
from heedful.nn.position import ALiBi, LongScaling, RoundedALiBi, frequencies
from heedful.weights.ops import Pairs, PerHead
from tests.properties.tiny import ids, tiny

LONG = LongScaling(4.0, 10, (1.0, 1.5, 2.0, 3.0), (2.0, 4.0, 8.0, 9.0))
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "neox, one after the other": ("gpt-neox", {"parallel": False, "bias": False}),
    "falcon, groups and two norms": ("falcon", {"kv_heads": 2, "norms": 2}),
    "falcon, groups and one norm": ("falcon", {"kv_heads": 2, "bias": True}),
    "falcon, ALiBi": ("falcon", {"alibi": True, "parallel": False, "kv_heads": 4, "bias": True}),
    "opt, narrow and post-norm": ("opt", {"table_dim": 12, "norm_first": False}),
    "opt, narrow": ("opt", {"table_dim": 12, "tied": False}),
    "phi, tied": ("phi", {"tied": True, "rope_dim": 2}),
    "phi3, a window": ("phi3", {"window": 5}),
    "phi3, long rope": ("phi3", {"rope_scaling": LONG}),
    "starcoder2, no window": ("starcoder2", {"window": None, "bias": False}),
}
PLAIN = {  # which of them no fast stepper computes, and why
    "falcon, ALiBi": "RoundedALiBi",
    "opt, narrow and post-norm": "a projection",
    "opt, narrow": "a projection",
    "phi3, long rope": "angles that change with the length",
}


def variant(name: str) -> LM:
    family, changes = VARIANTS[name]
    return cast(LM, tiny(family, **changes))


def context(length: int, **more: Any) -> Context:
    pos = torch.arange(length)[None]
    return Context(pos, pos, Mask(causal=True), **more)


@torch.no_grad()
def test_a_parallel_block_with_a_norm_for_each_part_is_the_papers_sum() -> None:
    torch.manual_seed(0)
    attn, ffn = Attention(12, 3, bias=True), MLP(12, 20, F.gelu)
    block = ParallelBlock(lambda: LayerNorm(12), separate=True, attn=attn, ffn=ffn)
    first, second = block.get_submodule("attn_norm"), block.get_submodule("ffn_norm")
    for norm in (first, second):
        torch.nn.init.normal_(cast(Tensor, norm.weight))
    x, ctx = torch.randn(2, 5, 12), context(5)
    expected = x + attn(first(x), ctx) + ffn(second(x), ctx)
    assert (block(x, ctx) - expected).abs().max() < 1e-6
    assert (block(x, ctx) - (x + attn(first(x), ctx) + ffn(first(x), ctx))).abs().max() > 0.1


def test_long_rope_divides_each_frequency_by_its_own_factor() -> None:
    plain = torch.tensor([100.0 ** (-2 * i / 8) for i in range(4)])
    lengths = torch.tensor([[10], [11]])
    found, gain = frequencies(8, 100.0, LONG, lengths)
    assert torch.allclose(found[0], plain / torch.tensor(LONG.short))
    assert torch.allclose(found[1], plain / torch.tensor(LONG.long))
    assert gain == pytest.approx((1 + torch.tensor(4.0).log() / torch.tensor(10.0).log()).sqrt().item())


def test_rounded_biases_are_alibi_divided_by_the_root_of_the_head_up_to_rounding() -> None:
    ctx = context(300)
    hide = torch.ones(300, 300).triu(1).bool()
    rows = [F.softmax((bias(ctx) / scale).masked_fill(hide, -1e9), -1)
            for bias, scale in ((RoundedALiBi(12, 16), 1.0), (ALiBi(12), 4.0))]  # fmt: skip
    far = (rows[0] - rows[1]).abs()
    assert far[:, :, :16].max() < 2e-3  # small positions have all their digits
    assert 2e-3 < far.max() < 0.1


def test_queries_of_groups_and_pairs_at_the_start_of_a_head_come_back_bit_for_bit() -> None:
    fused = torch.randn(2 * (3 + 2) * 4, 7)  # two groups of three queries, a key and a value of size 4
    shapes = [torch.Size((24, 7)), torch.Size((8, 7)), torch.Size((8, 7))]
    q, k, v = PerHead(2).load([fused], shapes)
    assert torch.equal(q[12:16], fused[20:24])
    assert torch.equal(k[4:], fused[32:36])
    assert torch.equal(PerHead(2).save([q, k, v])[0], fused)
    rows, op = torch.arange(12.0)[:, None], Pairs(2, 4, first=True)
    (turned,) = op.load([rows], [rows.shape])
    assert turned.flatten().tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
    assert torch.equal(op.save([turned])[0], rows)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_cached_and_static_steps_equal_one_pass(name: str) -> None:
    model = variant(name)
    tokens = ids(model, 2, 20)
    whole, start = model(tokens), 12  # long rope changes once, at 10 tokens: in the prompt
    state = model.start(tokens[:, :start], length=20)
    static = StaticState(state, 2, 24)
    static.write(state)
    for t in range(start, 20):
        fixed = static.step(model, tokens[:, t : t + 1])
        step = model.step(tokens[:, t : t + 1], state)
        assert (step[:, -1] - whole[:, t]).abs().max() < 1e-4, t
        assert (fixed[:, -1] - whole[:, t]).abs().max() < 1e-4, t


@pytest.mark.parametrize("name", VARIANTS)
def test_fast_steps_are_exact_or_say_why_they_are_plain(name: str) -> None:
    pytest.importorskip("numba")
    model, quick = variant(name), NumbaStepper(variant(name))
    plain, prompt = EagerStepper(model), ids(model, 2, 6)
    quick.prefill(prompt)
    logits = plain.prefill(prompt)
    for _ in range(8):
        tokens = logits.argmax(-1)
        logits = plain.step(tokens)
        assert (quick.step(tokens) - logits).abs().max() < 1e-5
    if name in PLAIN:
        assert PLAIN[name] in str(quick.fallback_reason)
    else:
        assert quick.fallback_reason is None
        assert find_fallback_reason(model) is None


def test_two_norms_at_once_are_stepped_fast_in_eight_bits() -> None:
    pytest.importorskip("numba")
    model = cast(LM, quantize(variant("falcon, groups and two norms"), "int8"))
    quick, plain, prompt = NumbaStepper(model), EagerStepper(model), ids(model, 1, 6)
    quick.prefill(prompt)
    logits = plain.prefill(prompt)
    for _ in range(4):
        tokens = logits.argmax(-1)
        got, logits = quick.step(tokens), plain.step(tokens)
        assert (got - logits).abs().max() < 0.02 * logits.abs().max()
    assert quick.fallback_reason is None


@pytest.mark.parametrize("name", VARIANTS)
def test_shares_of_a_logit_sum_to_it(name: str) -> None:
    model = variant(name)
    found = logit_attribution(model, ids(model, 1, 7)[0].tolist())
    assert found.total == pytest.approx(found.logit, abs=1e-4)
