"""Looking inside every family: patterns or a word why not, ablation, pruning, the lens, gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import heedful
from heedful import Watch
from heedful.core.errors import InputError
from heedful.interp.gradients import attribution, gradient_by_distance
from heedful.interp.inputs import Input, part_at, reading
from heedful.interp.intervene.ablation import ablate, prune
from heedful.interp.observe.attention import attention, head_scores, rollout
from heedful.interp.observe.lens import logit_lens
from heedful.models.base import Model, Seq2Seq
from heedful.nn.attention.multi_head import (
    Attention,
    BiasedAttention,
    CrossAttention,
    GatedAttention,
    SinkAttention,
)
from heedful.nn.attention.relative import RelativeAttention
from heedful.nn.attention.sparse import BlockSparseAttention, WindowedAttention
from tests.properties.tiny import ALL, ids, source_ids, tiny

# Norms taken head by head pass near zero on the way: completeness takes thousands of points.
STEEP = ("gla",)

# A norm of each head makes what rounding leaves of a head at zero up to 1/√eps = 1000 times larger, so these
# are compared in float64, where next to nothing is left.
NORMED = ("gla", "retnet")

# Attention whose heads have more than columns of q, k, v and o: sinks, gates, a bias of distances, or blocks.
MORE_PER_HEAD = (
    SinkAttention, GatedAttention, RelativeAttention, BiasedAttention,
    WindowedAttention, BlockSparseAttention,
)  # fmt: skip


def given(model: Model, length: int = 6) -> Input:
    if isinstance(model, Seq2Seq):
        return reading(model, source_ids(model, 1, 5), ids(model, 1, length))
    return reading(model, ids(model, 1, length))


@pytest.mark.parametrize("family", ALL)
def test_every_pattern_is_there_with_its_tokens_or_the_model_says_it_has_none(family: str) -> None:
    model = tiny(family)
    seen = attention(model, given(model))
    if not seen.patterns:
        assert "has no attention" in seen.note
        assert len(seen.states) >= 2
        with pytest.raises(InputError, match="has no attention"):
            seen["blocks.0.attn"]
        return
    for pattern in seen.patterns.values():
        assert pattern.values.shape[1:] == (len(pattern.queries), len(pattern.keys)), pattern.name
        if isinstance(part_at(model, pattern.name.removesuffix(".pattern")), SinkAttention):
            assert (pattern.values.sum(-1) < 1).all(), "a sink takes the rest"
        elif pattern.kind == "softmax":
            assert (pattern.values.sum(-1) - 1).abs().max() <= 1e-5
        else:
            assert pattern.values.min() < 0, "an effective pattern is signed"
    assert all(0 <= s.entropy < 3 for s in head_scores(model, seen.input, induction=4))


@pytest.mark.parametrize("family", ["mamba", "s4", "gla", "gpt2"])
def test_figures_of_a_pattern_say_what_it_leaves_out(family: str) -> None:
    model = tiny(family)
    seen = attention(model, given(model))
    left_out = next(iter(seen.patterns.values())).leaves_out
    figure = heedful.view.attention(model, given(model))
    assert bool(left_out) == (family != "gpt2")
    assert left_out in figure.title
    assert left_out in figure.note
    assert ("skip D" in figure.title) == (family in ("mamba", "s4"))
    svg = " ".join(figure.to_svg().split())
    assert all(word in svg for word in left_out.split())


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_ablation_equals_recomputing_with_that_head_zeroed(family: str) -> None:
    model, near = (tiny(family).double(), 1e-10) if family in NORMED else (tiny(family), 2e-5)
    text = given(model)
    for name, pattern in attention(model, text).patterns.items():
        path, head = name.removesuffix(".pattern"), pattern.heads - 1
        got = ablate(model, text, heads={path: [head]})
        assert (got.logits - got.plain).abs().max() > 1e-7, name

        def blind(p: torch.Tensor, head: int = head) -> torch.Tensor:
            return p.index_fill(1, torch.tensor([head]), 0.0)

        assert (got.logits - text.run(model, Watch(edit={name: blind}))).abs().max() <= near, name
        part = part_at(model, path)
        if isinstance(part, Attention | CrossAttention) and family != "albert":
            assert (got.logits - with_zeroed_columns(model, part, head, text)).abs().max() <= near, name


def with_zeroed_columns(model: Model, part: nn.Module, head: int, text: Input) -> torch.Tensor:
    weight, K = part.o.weight, part.head_dim
    kept = weight.clone()
    weight[:, head * K : (head + 1) * K] = 0
    out = text.run(model)
    weight.copy_(kept)
    return out


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_head_at_its_mean_adds_a_constant(family: str) -> None:
    """Σ_h W_h mean_h is one vector for every position: o without the head's columns, and that vector.

    Where every position gates what the heads say, it is the vector W_h (gate ⊙ mean_h) of each.
    """
    model = tiny(family)
    text = given(model)
    for name, pattern in attention(model, text).patterns.items():
        path, head = name.removesuffix(".pattern"), pattern.heads - 1
        part = part_at(model, path)
        if not isinstance(part, Attention | CrossAttention) or family == "albert":
            continue
        watch = Watch(f"{path}.heads")
        text.run(model, watch)
        usual = watch[f"{path}.heads"][0, head].mean(0)
        K = part.head_dim
        columns = slice(head * K, (head + 1) * K)
        weight, gates = part.o.weight[:, columns].clone(), [torch.ones(K)]

        def add(module, given, out, weight=weight, usual=usual, gates=gates):
            return out + (gates[-1] * usual) @ weight.mT

        def keep(module, given, out, columns=columns, gates=gates):
            gates.append(out[..., columns].sigmoid())

        hooks = [part.o.register_forward_hook(add)]
        if isinstance(part, GatedAttention):
            hooks.append(part.gate.register_forward_hook(keep))
        expected = with_zeroed_columns(model, part, head, text)
        for hook in hooks:
            hook.remove()
        got = ablate(model, text, heads={path: [head]}, mean=text)
        assert (got.logits - expected).abs().max() <= 2e-5, name


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_pruned_equals_ablated_with_fewer_parameters(family: str) -> None:
    model = tiny(family)
    text = given(model)
    heads = {}
    for name in attention(model, text).patterns:
        path = name.removesuffix(".pattern")
        part = part_at(model, path)
        norm = getattr(part, "q_norm", None)  # one over all heads would change with their number
        joint = norm is not None and norm.weight.shape[-1] != part.head_dim
        joint = joint or isinstance(part, MORE_PER_HEAD)  # that would have to go too
        if joint or not isinstance(part, Attention | CrossAttention):
            with pytest.raises(InputError, match="cannot lose single heads"):
                prune(model, {path: [0]})
            continue
        group = 1 if isinstance(part, CrossAttention) or part.kv_heads == 1 else part.heads // part.kv_heads
        heads[path] = list(range(group))
    if not heads:
        return
    smaller, before = prune(model, heads), sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for p in smaller.parameters()) < before
    assert (text.run(smaller) - ablate(model, text, heads=heads).logits).abs().max() <= 2e-5
    assert sum(p.numel() for p in model.parameters()) == before, "the model itself is left alone"


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_the_last_layer_through_the_lens_is_the_model_itself(family: str) -> None:
    model = tiny(family)
    text = given(model)
    if model.config.head == "detect":
        with pytest.raises(InputError, match="predicts no words"):
            logit_lens(model, text)
        return
    lens = logit_lens(model, text)
    assert (lens.logits[-1] - text.run(model)[0]).abs().max() <= 1e-5
    assert len(lens.top(2)) == len(lens.layers)


@pytest.mark.parametrize("family", ALL)
def test_gradients_reach_the_tokens_of_every_family(family: str) -> None:
    model = tiny(family)
    text = given(model)
    reach = gradient_by_distance(model, source_ids(model, 1, 7), samples=2)
    assert len(reach.norms) == 7
    assert max(reach.norms) > 0
    if model.config.head == "detect":
        return
    simple = attribution(model, text, position=2, method="gradient")
    assert simple.scores.abs().max() > 0
    if family in STEEP:
        with pytest.raises(InputError, match="have not converged"):
            attribution(model, text, position=2, steps=64)
        return
    found = attribution(model, text, position=2, method="integrated", steps=2048)
    assert found.gap is not None
    assert found.total is not None
    said = found.scores.sum() + (0.0 if found.target_scores is None else found.target_scores.sum())
    assert abs(found.total - float(said) - found.gap) <= 1e-6, "the gap is what is missing"
    assert abs(found.gap) <= 1e-3 * max(1.0, abs(found.total)), found
    if isinstance(model, Seq2Seq) or model.causal:
        later = found.scores if found.target_scores is None else found.target_scores
        assert later[3:].abs().max() <= 1e-6, "the future has no share"


@pytest.mark.parametrize("family", [f for f in ALL if f in ("bert", "gpt2", "t5", "transformer")])
def test_rollout_keeps_rows_that_sum_to_one(family: str) -> None:
    model = tiny(family)
    rolled = rollout(model, given(model))
    assert (rolled.sum(-1) - 1).abs().max() <= 1e-12
