"""Latent attention: its two forms are one equation, and it remembers R + Kr numbers per position."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from heedful.nn.attention.latent import LatentAttention
from heedful.nn.context import Context, Mask, Watch
from heedful.nn.position import NTKScaling, Rotary, Scaling
from heedful.nn.state import KV

DIM, ROPE = 20, 4


def make(q_rank: int = 0, scaling: Scaling | None = None) -> LatentAttention:
    sizes = {"rank": 7, "q_rank": q_rank, "head_dim": 6, "rope_dim": ROPE, "value_dim": 5}
    return LatentAttention(DIM, 3, rotary=Rotary(ROPE, 100.0, scaling), bias=True, scale=0.4, **sizes).eval()


def context(length: int, past: int = 0, valid: Tensor | None = None, watch: Watch | None = None) -> Context:
    k_pos = torch.arange(past + length)[None]
    mask = Mask(causal=True, valid=valid)
    return Context(k_pos[:, past:], k_pos, mask, past=past, watch=watch, path="attn")


def only(attn: LatentAttention, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attn, "_absorbs", lambda T, S, ctx: form == "absorbed")


@pytest.mark.parametrize("scaling", [None, NTKScaling(2.0, 6)], ids=["plain", "by-length"])
@pytest.mark.parametrize("q_rank", [0, 8])
@torch.no_grad()
def test_absorbed_equals_expanded(
    q_rank: int, scaling: Scaling | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attn, x = make(q_rank, scaling), torch.randn(2, 9, DIM)
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, :2] = False
    outs = {}
    for form in ("expanded", "absorbed"):
        only(attn, form, monkeypatch)
        state = attn.new_state(2, 9)
        spans = ((0, 5), (5, 8), (8, 9))
        outs[form] = torch.cat([attn(x[:, a:b], context(b - a, a, valid[:, :b]), state) for a, b in spans], 1)
    assert (outs["absorbed"] - outs["expanded"]).abs().max() <= 1e-5


@torch.no_grad()
def test_a_long_memory_is_read_absorbed_and_a_prompt_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    attn, used = make(), []
    for form in ("expanded", "absorbed"):
        run = getattr(attn, f"attend_{form}")
        monkeypatch.setattr(
            attn, f"attend_{form}", lambda *a, form=form, run=run: (used.append(form), run(*a))[1]
        )
    state = attn.new_state(1, 20)
    attn(torch.randn(1, 16, DIM), context(16), state)
    attn(torch.randn(1, 1, DIM), context(1, 16), state)
    attn(torch.randn(1, 1, DIM), context(1, 17, watch=Watch("attn.pattern")), state)
    assert used == ["expanded", "absorbed", "expanded"]


@torch.no_grad()
def test_the_state_holds_a_latent_and_a_rotary_key_per_position() -> None:
    attn, state = make(), KV()
    attn(torch.randn(2, 6, DIM), context(6), state)
    assert state.k is not None
    assert state.v is not None
    assert state.k.shape == (2, 1, 6, 7)
    assert state.v.shape == (2, 1, 6, ROPE)
    assert attn.state_numbers(5) == {"token": 7 + ROPE}


@torch.no_grad()
def test_heads_equal_a_loop_over_queries_keys_and_heads() -> None:
    attn, x, watch = make(8), torch.randn(1, 5, DIM), Watch("attn.*")
    ctx = context(5, watch=watch)
    attn(x, ctx)
    down = attn.kv_down(x)
    latent, turned = attn.kv_norm(down[..., :7]), attn.rotary(down[:, None, :, 7:], ctx.q_pos, ctx)[0, 0]
    assert attn.q_down is not None
    assert attn.q_norm is not None
    assert attn.q_up is not None
    q = attn.q_up(attn.q_norm(attn.q_down(x)))[0].view(5, 3, 10)
    up = attn.kv_up.weight.view(3, 11, 7)
    for h in range(3):
        for t in range(5):
            mine = attn.rotary(q[None, None, t : t + 1, h, 6:], ctx.q_pos[:, t : t + 1], ctx)[0, 0, 0]
            scores = [q[t, h, :6] @ up[h, :6] @ latent[0, s] + mine @ turned[s] for s in range(t + 1)]
            weights = (torch.stack(scores) * 0.4).softmax(0)
            value = sum(w * (up[h, 6:] @ latent[0, s]) for s, w in enumerate(weights))
            assert (watch["attn.heads"][0, h, t] - value).abs().max() <= 1e-5


def test_an_adapted_projection_is_never_bypassed() -> None:
    class Adapted(nn.Linear):
        """Stands for a low-rank or quantised projection."""

    attn = make()
    assert attn._absorbs(1, 50, context(1, 49))
    attn.kv_up = Adapted(7, 33, bias=False)
    assert not attn._absorbs(1, 50, context(1, 49))
