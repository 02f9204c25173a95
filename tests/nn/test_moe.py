"""Mixture of experts: the fast ways equal the loop, routers choose as their equations say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import ConfigError
from heedful.nn.context import Context, Mask, Watch
from heedful.nn.ffn import GatedMLP
from heedful.nn.moe import (
    ClippedExperts,
    ExpertMethod,
    Experts,
    GatedExpert,
    MoE,
    Router,
    SigmoidRouter,
    SoftmaxRouter,
    best_method,
    experts_batched,
    experts_grouped,
    experts_one_by_one,
    groupable,
)

E, D, HIDDEN = 12, 16, 8


def context(watch: Watch | None = None) -> Context:
    pos = torch.arange(5)[None]
    return Context(pos, pos, Mask(causal=True), watch=watch, path="ffn")


def make_experts(experts: int = E, dim: int = D, hidden: int = HIDDEN, *, clipped: bool = False) -> Experts:
    made = (
        ClippedExperts(experts, dim, hidden, clip=0.4, slope=1.7)
        if clipped
        else Experts(experts, dim, hidden, F.silu)
    )
    for stack in made.parameters():
        torch.nn.init.normal_(stack, std=0.3)
    return made


def chosen_at_random(tokens: int, active: int = 3) -> tuple[Tensor, Tensor]:
    # The last expert stays idle.
    chosen = torch.stack([torch.randperm(E - 1)[:active] for _ in range(tokens)])
    return torch.rand(tokens, active), chosen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("way", [experts_batched, experts_grouped])
@pytest.mark.parametrize("tokens", [1, 23])
@pytest.mark.parametrize("clipped", [False, True], ids=["", "clipped"])
def test_the_fast_ways_equal_the_loop_also_in_gradients(
    way: ExpertMethod, tokens: int, dtype: torch.dtype, clipped: bool
) -> None:
    experts, x = (
        make_experts(clipped=clipped).to(dtype),
        torch.randn(tokens, D, dtype=dtype, requires_grad=True),
    )
    matrices = experts.matrices("cpu")
    assert groupable(x, matrices)
    weights, chosen = chosen_at_random(tokens)
    weights.requires_grad_()
    everything = [x, weights, *experts.parameters()]
    grad = torch.randn(tokens, D, dtype=dtype)
    slow, fast = experts_one_by_one(matrices, x, weights, chosen), way(matrices, x, weights, chosen)
    limit = 1e-5 if dtype == torch.float32 else 0.1
    assert fast.dtype == dtype
    assert (fast - slow).abs().max() <= limit
    pairs = (torch.autograd.grad(y, everything, grad) for y in (slow, fast))
    for a, b in zip(*pairs, strict=True):
        assert (a - b).abs().max() <= limit * max(1.0, a.abs().max().item())


def test_the_way_follows_from_size_and_alignment(monkeypatch: pytest.MonkeyPatch) -> None:
    x, method = torch.zeros(4, D), lambda x, **sizes: best_method(make_experts(**sizes).matrices("cpu"), x)
    assert method(x) is experts_batched
    monkeypatch.setattr("heedful.nn.moe.SMALL", 0)
    assert method(x) is experts_grouped
    assert method(x, dim=15) is experts_one_by_one


def test_autocast_groups_what_it_narrows_and_gives_the_gradients_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Matrices stay float32, as in training: they are multiplied in bfloat16, by the grouped product."""
    monkeypatch.setattr("heedful.nn.moe.SMALL", 0)
    experts, (weights, chosen) = make_experts(), chosen_at_random(23)
    x, found, grad = torch.randn(23, D, requires_grad=True), [], torch.randn(23, D)
    for narrow in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            method = best_method(experts.matrices("cpu"), x.bfloat16() if narrow else x)
            y = experts(x, weights, chosen)
        assert method is experts_grouped
        assert y.dtype == torch.float32
        found.append((y, *torch.autograd.grad(y, [x, *experts.parameters()], grad)))
    for wide, narrow in zip(*found, strict=True):
        assert narrow.dtype == torch.float32
        assert (narrow - wide).norm() <= 0.02 * wide.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["grouped", "batched"])
@torch.no_grad()
def test_the_compiler_traces_large_ones_too(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.nn.moe.SMALL", 0)
    part = MoE(SigmoidRouter(D, E, 2, groups=4, groups_kept=2), make_experts()).to(dtype)
    x = torch.randn(2, 5, D, dtype=dtype)
    torch._dynamo.reset()
    traced = torch.compile(lambda x: part(x, context()), fullgraph=True, backend="eager")
    assert (traced(x) - part(x, context())).abs().max() <= (1e-5 if dtype == torch.float32 else 1e-2)


@torch.no_grad()
def test_clipped_experts_are_their_formula() -> None:
    experts, x, (weights, chosen) = make_experts(clipped=True), torch.randn(7, D), chosen_at_random(7)
    got = experts(x, weights, chosen)
    for t in range(7):
        wanted = torch.zeros(D)
        for weight, e in zip(weights[t], chosen[t].tolist(), strict=True):
            gate = (experts.gate[e] @ x[t] + experts.gate_bias[e]).clamp(max=0.4)
            up = (experts.up[e] @ x[t] + experts.up_bias[e]).clamp(-0.4, 0.4)
            hidden = gate / (1 + torch.exp(-1.7 * gate)) * (up + 1)
            wanted += weight * (experts.down[e] @ hidden + experts.down_bias[e])
        assert (got[t] - wanted).abs().max() <= 1e-5


@torch.no_grad()
def test_a_gated_expert_is_as_loud_as_each_token_lets_it() -> None:
    expert = GatedMLP(D, HIDDEN, F.silu)
    part, x = GatedExpert(D, expert), torch.randn(2, 5, D)
    wanted = torch.sigmoid(x @ part.gate.weight[0])[..., None] * expert(x, context())
    assert (part(x, context()) - wanted).abs().max() <= 1e-6


@torch.no_grad()
def test_a_router_with_biases_adds_them_to_its_scores() -> None:
    router, x = SoftmaxRouter(D, E, 3, normalise=True, bias=True), torch.randn(2, 5, D)
    router.score.bias.normal_(std=2.0)
    weights, chosen = router(x, context())
    best = (x @ router.score.weight.T + router.score.bias).topk(3)
    assert torch.equal(chosen, best.indices)
    assert (weights - best.values.softmax(-1)).abs().max() <= 1e-6  # over the chosen ones alone


def naive(router: Router, scores: Tensor, liking: Tensor, best_of: int) -> tuple[list[int], list[float]]:
    """One token by hand: which experts, and their scores."""
    size = len(scores) // router.groups
    members = [list(range(g * size, (g + 1) * size)) for g in range(router.groups)]
    worth = [sum(sorted((liking[e].item() for e in m), reverse=True)[:best_of]) for m in members]
    kept = sorted(range(router.groups), key=lambda g: -worth[g])[: router.groups_kept]
    allowed = [e for g in kept for e in members[g]]
    best = sorted(allowed, key=lambda e: -liking[e].item())[: router.active]
    return best, [scores[e].item() for e in best]


@pytest.mark.parametrize("groups", [(1, 1), (4, 2)], ids=["greedy", "groups"])
@pytest.mark.parametrize("normalise", [False, True])
@torch.no_grad()
def test_the_softmax_router_chooses_as_its_equation_says(groups: tuple[int, int], normalise: bool) -> None:
    router = SoftmaxRouter(D, E, 3, groups=groups[0], groups_kept=groups[1], scale=1.5, normalise=normalise)
    x = torch.randn(2, 5, D) * 3
    weights, chosen = router(x, context())
    for b in range(2):
        for t in range(5):
            s = (router.score.weight @ x[b, t]).softmax(0)
            best, values = naive(router, s, s, 1)
            assert chosen[b, t].tolist() == best
            factor = 1 / sum(values) if normalise else 1.5  # a normalised weight is not scaled
            assert weights[b, t].tolist() == pytest.approx([v * factor for v in values], rel=1e-5)


@pytest.mark.parametrize("groups", [(1, 1), (4, 2)], ids=["all", "groups"])
@pytest.mark.parametrize("normalise", [False, True])
@torch.no_grad()
def test_the_sigmoid_routers_bias_steers_the_choice_alone(groups: tuple[int, int], normalise: bool) -> None:
    router = SigmoidRouter(D, E, 3, groups=groups[0], groups_kept=groups[1], scale=2.5, normalise=normalise)
    router.bias.normal_()
    x = torch.randn(2, 5, D) * 3
    weights, chosen = router(x, context())
    for b in range(2):
        for t in range(5):
            s = (router.score.weight @ x[b, t]).sigmoid()
            best, values = naive(router, s, s + router.bias, 2)
            assert chosen[b, t].tolist() == best
            factor = 2.5 / sum(values) if normalise else 2.5
            assert weights[b, t].tolist() == pytest.approx([v * factor for v in values], rel=1e-5)


@torch.no_grad()
def test_balancing_spreads_the_load_without_a_gradient() -> None:
    router = SigmoidRouter(D, E, 2)
    router.score.weight[0] = 1.0  # everybody likes the first expert
    x = torch.randn(1, 200, D) + 1
    assert "bias" not in dict(router.named_parameters())

    def load() -> Tensor:
        return torch.bincount(router(x, context())[1].flatten(), minlength=E).float()

    before = load().std()
    for _ in range(200):
        router.balance(router(x, context())[1], speed=0.01)
    assert load().std() < 0.5 * before


@torch.no_grad()
def test_router_and_chosen_can_be_seen_and_set() -> None:
    part = MoE(SoftmaxRouter(D, E, 2), make_experts(), GatedMLP(D, HIDDEN, F.silu))
    x, watch = torch.randn(1, 5, D), Watch("*")
    plain = part(x, context(watch))
    assert watch["ffn.router"].shape == (1, 5, E)
    assert watch["ffn.chosen"].shape == (1, 5, 2)
    assert watch["ffn.shared.hidden"].shape == (1, 5, HIDDEN)
    other = part(x, context(Watch(edit={"ffn.chosen": lambda chosen: (chosen + 1) % E})))
    assert (other - plain).abs().max() > 1e-4


def test_one_token_uses_its_own_experts_the_shared_one_and_the_router() -> None:
    part = MoE(SigmoidRouter(D, E, 3), make_experts(), GatedMLP(D, HIDDEN, F.silu))
    one = 3 * D * HIDDEN
    assert part.total_parameters() == (E + 1) * one + E * D + E
    assert part.active_parameters() == (3 + 1) * one + E * D + E


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"groups": 5}, "groups=5 does not divide experts=12"),
        ({"groups": 4, "groups_kept": 5}, "between 1 and 4"),
        ({"groups": 4, "groups_kept": 1, "active": 4}, "active=4 must lie between 1 and 3"),
    ],
)
def test_groups_that_cannot_be_are_an_error(values: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SoftmaxRouter(D, E, values.pop("active", 2), **values)
