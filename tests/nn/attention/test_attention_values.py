"""What the values of attention do, beside loops: norms of q and k, caps, clips, biases, sinks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.nn.attention.attend import BACKENDS, Call, attend, blocked, reference
from heedful.nn.attention.multi_head import Attention, SinkAttention
from heedful.nn.context import Context, Mask, Watch
from heedful.nn.norm import OffsetRMSNorm, RMSNorm
from heedful.nn.watch import Axes
from tests.refusal import refused

DIM, HEADS, KV_HEADS, SIZE, LENGTH = 12, 4, 2, 5, 6


def context(watch: Watch | None = None, backend: str = "auto") -> Context:
    pos = torch.arange(LENGTH)[None]
    return Context(pos, pos, Mask(causal=True), watch=watch, path="attn", backend=backend)


def make(kind: type[Attention] = Attention, **values: Any) -> Attention:
    torch.manual_seed(0)
    part = kind(DIM, HEADS, KV_HEADS, SIZE, **values)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.normal_(std=0.7)
    return part.eval()


def rms(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return gain * x / (x.square().mean() + eps).sqrt()


def naive(part: Attention, x: Tensor, softcap: float | None = None) -> Tensor:
    """Return o(concat_h p_h v_h) of one text (T, D), a query and a key at a time."""
    rows = []
    sinks = part.sinks.tolist() if isinstance(part, SinkAttention) else None
    for t in range(len(x)):
        heads = []
        for h in range(HEADS):
            g = h // (HEADS // KV_HEADS)
            project = lambda layer, s, at: layer(x[s])[at * SIZE : (at + 1) * SIZE]
            q, keys = project(part.q, t, h), [project(part.k, s, g) for s in range(t + 1)]
            if part.q_norm is not None and part.q_norm.weight.shape[0] == SIZE:
                q = rms(q, part.q_norm.weight, part.q_norm.eps)
                keys = [rms(k, part.k_norm.weight, part.k_norm.eps) for k in keys]
            elif part.q_norm is not None:  # of all heads at once, and then the entries of this one
                q = rms(part.q(x[t]), part.q_norm.weight, part.q_norm.eps)[h * SIZE : (h + 1) * SIZE]
                whole = [rms(part.k(x[s]), part.k_norm.weight, part.k_norm.eps) for s in range(t + 1)]
                keys = [k[g * SIZE : (g + 1) * SIZE] for k in whole]
            scores = [float(q @ k) / math.sqrt(SIZE) for k in keys]
            scores = [s if softcap is None else softcap * math.tanh(s / softcap) for s in scores]
            total = sum(math.exp(s) for s in scores) + (math.exp(sinks[h]) if sinks else 0.0)
            values = [project(part.v, s, g) for s in range(t + 1)]
            heads.append(sum(math.exp(s) / total * v for s, v in zip(scores, values, strict=True)))
        rows.append(part.o(torch.cat(heads)))
    return torch.stack(rows)


@pytest.mark.parametrize(
    "values",
    [
        {"softcap": 0.8},
        {"q_norm": SIZE, "k_norm": SIZE},
        {"q_norm": HEADS * SIZE, "k_norm": KV_HEADS * SIZE, "bias": True, "out_bias": False},
    ],
    ids=["capped", "heads-normed", "all-heads-normed"],
)
@torch.no_grad()
def test_attention_is_its_formula(values: dict[str, Any]) -> None:
    norms = {name: RMSNorm(size) for name, size in values.items() if name.endswith("_norm")}
    part, x = make(**values | norms), torch.randn(LENGTH, DIM)
    assert (part(x[None], context())[0] - naive(part, x, values.get("softcap"))).abs().max() <= 1e-5


@torch.no_grad()
def test_a_sink_takes_its_share_and_gives_nothing() -> None:
    part, x, watch = make(SinkAttention, bias=True), torch.randn(LENGTH, DIM), Watch("*.pattern")
    assert (part(x[None], context())[0] - naive(part, x)).abs().max() <= 1e-5
    part(x[None], context(watch))
    assert watch["attn.pattern"].sum(-1).mean() < 0.95
    part.sinks.fill_(-1e4)  # type: ignore[operator, union-attr]
    plain = make(bias=True)
    plain.load_state_dict({n: t for n, t in part.state_dict().items() if n != "sinks"})
    assert (part(x[None], context()) - plain(x[None], context())).abs().max() <= 1e-5


@torch.no_grad()
def test_a_clip_bounds_every_entry_of_queries_keys_and_values() -> None:
    part, watch = make(clip=0.3), Watch("*.q", "*.k", "*.v")
    part(torch.randn(2, LENGTH, DIM), context(watch))
    assert all(watch[f"attn.{name}"].abs().max() <= 0.3 for name in "qkv")
    assert any((watch[f"attn.{name}"].abs() == 0.3).any() for name in "qkv")


def test_biases_are_said_apart_for_the_output() -> None:
    has = lambda part: [layer.bias is not None for layer in (part.q, part.k, part.v, part.o)]
    assert has(make()) == [False] * 4
    assert has(make(bias=True)) == [True] * 4
    assert has(make(bias=True, out_bias=False)) == [True, True, True, False]


@torch.no_grad()
def test_norms_of_queries_are_shown_with_their_scale() -> None:
    part, watch = make(q_norm=OffsetRMSNorm(SIZE), k_norm=OffsetRMSNorm(SIZE)), Watch("*")
    part(torch.randn(2, LENGTH, DIM), context(watch))
    normed = watch["attn.q_norm.input"] / watch["attn.q_norm.scale"] * (1 + part.q_norm.weight)
    assert watch["attn.q_norm.input"].shape == (2, HEADS, LENGTH, SIZE)
    assert (watch["attn.q_norm.output"] - normed).abs().max() <= 1e-5


def call(softcap: float | None, sinks: Tensor | None, padded: bool = False) -> Call:
    torch.manual_seed(1)
    valid = torch.ones(2, LENGTH, dtype=torch.bool) if padded else None
    if valid is not None:
        valid[0] = False  # a row whose keys are all hidden
    pos = torch.arange(LENGTH)[None]
    q, k, v = (torch.randn(2, heads, LENGTH, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))
    bias = torch.randn(1, HEADS, LENGTH, LENGTH)
    return Call(q, k, v, pos, pos, Mask(True, 3, valid), bias, 0.9, 0.0, softcap, sinks)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])], ids=["", "sinks"])
def test_blocks_of_keys_equal_the_reference_with_caps_and_sinks(
    softcap: float | None, sinks: Tensor | None, padded: bool
) -> None:
    c = call(softcap, sinks, padded)
    exact = reference(c, context())
    assert (blocked(c, context(), block=2) - exact).abs().max() <= 1e-5
    assert not padded or exact[0].abs().max() == 0


def test_a_call_with_many_scores_never_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    c, asked = call(0.7, None), list[str]()
    for name, backend in list(BACKENDS.items()):
        monkeypatch.setitem(
            BACKENDS, name, lambda c, ctx, name=name, run=backend: asked.append(name) or run(c, ctx)
        )
    attend(c, context())
    monkeypatch.setattr("heedful.nn.attention.attend.MAX_HELD_SCORES", 0)
    attend(c, context())
    assert asked == ["reference", "blocked"]


@pytest.mark.parametrize(
    ("limit", "name"), [(2 * HEADS * LENGTH**2, "reference"), (2 * HEADS * LENGTH**2 - 1, "blocked")]
)
def test_scores_are_many_if_there_are_more_than_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int, name: str
) -> None:
    monkeypatch.setattr("heedful.nn.attention.attend.MAX_HELD_SCORES", limit)
    monkeypatch.setitem(BACKENDS, name, lambda c, ctx: torch.tensor(7.0))
    assert attend(call(0.7, None), context()) == 7


def test_a_watcher_is_told_which_axes_run_over_queries_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    axes, show = {}, Watch.show

    def record(self: Watch, path: str, value: Tensor, along: Axes) -> Tensor:
        axes[path] = (along.positions, along.keys)
        return show(self, path, value, along)

    monkeypatch.setattr(Watch, "show", record)
    attend(call(None, None), context(Watch("*.pattern")))
    assert axes == {"attn.scores": (-2, -1), "attn.pattern": (-2, -1), "attn.heads": (-2, None)}


@pytest.mark.parametrize("values", [(0.7, None), (None, torch.zeros(HEADS))], ids=["softcap", "sinks"])
def test_a_fused_kernel_is_not_given_what_it_does_not_know(values: tuple[Any, Any]) -> None:
    with refused(InputError, hint="backend='auto'"):
        attend(call(*values), context(backend="sdpa"))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_offset_norm_multiplies_by_one_more_than_its_weight(dtype: torch.dtype) -> None:
    norm, x = OffsetRMSNorm(DIM, 1e-3).to(dtype), torch.randn(3, DIM).to(dtype)
    assert torch.equal(norm(x), RMSNorm(DIM, 1e-3).to(dtype)(x))  # γ starts at 0
    nn.init.normal_(norm.weight)
    wide, gain = x.float(), 1 + norm.weight.float()
    wanted = torch.stack([rms(row, gain, 1e-3) for row in wide])
    assert (norm(x).float() - wanted).abs().max() <= (1e-5 if dtype == torch.float32 else 0.05)
