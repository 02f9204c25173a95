"""Kernels of training say what their definitions say. Without a GPU, Triton's interpreter can run them:

TRITON_INTERPRET=1 pytest tests/nn/test_gpu_kernels.py
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.kernels.gpu.mamba_mix import conv_silu
from heedful.nn.context import Context, Mask
from heedful.nn.state_space.chunked import (
    _inside_chunks,
    _join_group,
    between_chunks,
    decayed_scores,
    decayed_scores_backward,
)
from heedful.nn.state_space.scan import selective
from heedful.nn.state_space.selective import block_backward, block_forward
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import Mamba, ShortConv
from heedful.train import float8 as fused

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET=1 is not set", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("rows", "length", "channels", "states"), [(2, 21, 5, 3), (1, 24, 33, 16), (1, 130, 5, 3)]
)
@pytest.mark.parametrize("forgets", [False, True])
def test_the_selective_scan_by_lanes_is_that_in_blocks(
    rows: int, length: int, channels: int, states: int, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heedful.kernels.gpu import selective as gpu_selective
    from heedful.kernels.gpu.selective import launch_backward, launch_forward

    monkeypatch.setattr(gpu_selective, "BUSY", 2)  # the longest text is cut in two
    torch.manual_seed(0)
    rand = lambda *size: torch.randn(*size, device=DEVICE)
    u, delta, A = (
        rand(rows, length, channels),
        rand(rows, length, channels).abs(),
        -rand(channels, states).exp(),
    )
    B, C, h, dlast = (rand(rows, n, m) for n, m in [(length, states)] * 2 + [(channels, states)] * 2)
    keep = (rand(rows, length) > -1).float() if forgets else None
    dy = rand(rows, length, channels)
    y, last, starts = block_forward(u, delta, A, B, C, keep, h)
    expected = y, last, *block_backward(dy, dlast, u, delta, A, B, C, keep, starts)
    y, last, kept = launch_forward(u, delta, A, B, C, keep, h)
    found = y, last, *launch_backward(dy, dlast, u, delta, A, B, C, keep, kept)
    for wanted, value in zip(expected, found, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [21, 130])
def test_the_gated_scan_and_its_gradients_are_the_definition(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Softplus, the skip and the gate inside the kernels; what they read are columns of wider rows."""
    from heedful.kernels.gpu import selective as kernels

    monkeypatch.setattr(kernels, "BUSY", 2)
    torch.manual_seed(0)
    D, N, rand = 5, 16, lambda *size: torch.randn(*size, device=DEVICE)
    both, u, raw, bc = (rand(1, length, n) for n in (2 * D, D, D, 2 * N))
    A, skip, dout, nothing = (
        -rand(D, N).exp(),
        rand(D),
        rand(1, length, D),
        torch.zeros(1, D, N, device=DEVICE),
    )
    leaves = [x.double().requires_grad_() for x in (both, u, raw, bc, A, skip)]
    z, U, R, BC, a, s = leaves[0][..., D:], *leaves[1:]
    y, _ = selective(U, F.softplus(R), a, BC[..., :N], BC[..., N:], None, nothing.double())
    wanted = (y + s * U) * F.silu(z)
    wanted.backward(dout.double())
    gate, orders = kernels.Gate(both[..., D:], skip), kernels.shared_orders(bc)
    out, _, states = kernels.launch_scan(u, raw, A, orders, None, nothing, gate)
    dboth = torch.zeros_like(both)
    found = kernels.launch_slopes(dout, nothing, u, raw, A, orders, None, states, gate, dboth[..., D:])
    slopes = [x.grad for x in leaves if x.grad is not None]
    expected = wanted, *slopes, slopes[2].sum((0, 1))
    got = out, dboth, found.u, found.raw, found.bc, found.A, *found.parts
    for right, value in zip(expected, got, strict=True):
        torch.testing.assert_close(value.double(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 37, 70])
def test_the_convolution_with_its_silu_is_the_definition(length: int) -> None:
    from heedful.kernels.gpu.conv import launch_conv, launch_conv_backward

    torch.manual_seed(0)
    D = 40
    both, w, b = torch.randn(2, length, 2 * D), torch.randn(D, 1, 4), torch.randn(D)
    du = torch.randn(2, length, D)
    X, W, shift = (x.double().requires_grad_() for x in (both, w, b))
    wanted = F.silu(F.conv1d(F.pad(X[..., :D].mT, (3, 0)), W, shift, groups=D).mT)
    wanted.backward(du.double())
    both, w, b, du = (x.to(DEVICE) for x in (both, w, b, du))
    dboth = torch.zeros_like(both)
    u = launch_conv(both[..., :D], w, b)
    dw, db = launch_conv_backward(du, both[..., :D], w, b, dboth[..., :D])
    leaves = [x.clone().requires_grad_() for x in (both, w, b)]
    by_operator = conv_silu(leaves[0][..., :D], *leaves[1:])
    slopes = torch.autograd.grad(by_operator, leaves, du)
    for found in ((u, dboth, dw, db), (by_operator, *slopes)):
        for right, value in zip((wanted, X.grad, W.grad, shift.grad), found, strict=True):
            torch.testing.assert_close(value.detach().cpu().double(), right, rtol=1e-4, atol=1e-4)


def test_mamba_by_one_operator_is_as_near_to_float32_as_the_plain_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused, "fits_kernels", lambda *_: True)  # the interpreter runs on a CPU
    torch.manual_seed(0)
    part = Mamba(16, 32, 8, 4).to(DEVICE)
    with torch.no_grad():
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=0.3)
        part.initialise()
    x, up = torch.randn(2, 21, 16, device=DEVICE), torch.randn(2, 21, 16, device=DEVICE)
    positions = torch.arange(21, device=DEVICE)[None]
    ctx, results = Context(positions, positions, Mask(causal=True)), []
    for kind, narrow in ((Mamba, False), (Mamba, True), (fused.FusedMamba, True)):
        part.__class__ = kind
        leaf = x.clone().requires_grad_()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=narrow):
            y = part(leaf, ctx)
        gradients = torch.autograd.grad(y.float(), [leaf, *part.parameters()], up)
        results.append([y.float(), *gradients])
    for wide, plain, joined in zip(*results, strict=True):
        assert (joined - wide).norm() <= 3 * (plain - wide).norm() + 1e-3 * wide.norm()


@pytest.mark.parametrize(("size", "channels"), [(16, 96), (8, 5)])
def test_decayed_scores_and_their_gradients_are_the_definition(size: int, channels: int) -> None:
    from heedful.kernels.gpu.decayed import launch_scores, launch_scores_backward

    torch.manual_seed(0)
    q, k, log = (torch.randn(2, size, channels) for _ in range(3))
    log, dP = -log.abs().cumsum(1), torch.randn(2, size, size)
    expected = decayed_scores(q, k, log), *decayed_scores_backward(dP, q, k, log)
    dP, q, k, log = (x.to(DEVICE) for x in (dP, q, k, log))
    found = launch_scores(q, k, log), *launch_scores_backward(dP, q, k, log)
    for wanted, value in zip(expected, found, strict=True):
        torch.testing.assert_close(value.cpu(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("groups", "heads"), [(1, 3), (2, 4)])
def test_chunks_of_heads_with_one_decay_and_their_gradients_are_the_definition(
    groups: int, heads: int
) -> None:
    from heedful.kernels.gpu.decayed import launch_chunks, launch_chunks_backward

    torch.manual_seed(0)
    size, chunks, K, V = 32, 2, 32, 16
    q, k = (torch.randn(2, groups, chunks, size, K, dtype=torch.float64) for _ in range(2))
    v, dy = (torch.randn(2, heads, chunks, size, V, dtype=torch.float64) for _ in range(2))
    log = -torch.rand(2, heads, chunks, size, 1, dtype=torch.float64).cumsum(3)
    leaves = [x.requires_grad_() for x in (q, k, v, log)]
    wanted = _inside_chunks(*leaves, None, 8)
    right = [wanted, *torch.autograd.grad(wanted, leaves, dy)]
    natural = lambda x: x.detach().permute(0, 2, 3, 1, 4).flatten(1, 2).contiguous().float().to(DEVICE)
    rows = [*(natural(x) for x in (q, k, v)), natural(log)[..., 0]]
    dq, dk, dv, dlog = launch_chunks_backward(natural(dy), *rows, size)
    got = [launch_chunks(*rows, size), dq.sum(3), dk.sum(3), dv, dlog.sum(2)[..., None]]
    for a, b in zip(got, right, strict=True):
        torch.testing.assert_close(a, natural(b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("groups", "heads"), [(1, 3), (2, 4)])
def test_states_from_chunk_to_chunk_and_their_gradients_are_the_definition(groups: int, heads: int) -> None:
    from heedful.kernels.gpu.decayed import launch_carry, launch_carry_backward

    torch.manual_seed(0)
    ends, S = torch.randn(2, heads, 5, 6, 8).double(), torch.randn(2, heads, 6, 8).double()
    log, ups = -torch.rand(2, heads, 5, 1).double(), (torch.randn_like(ends), torch.randn_like(S))
    leaves = [x.requires_grad_() for x in (log, ends, S)]
    wanted = between_chunks(log, None, ends, S)
    right = [*wanted, *torch.autograd.grad(wanted, leaves, ups)]
    join = lambda x: _join_group(x.detach(), groups).contiguous().float().to(DEVICE)
    one = lambda x: join(x[:, :, None])[:, :, 0].contiguous()
    logs = lambda x: x.detach()[..., 0].transpose(1, 2).contiguous().float().to(DEVICE)
    got = list(launch_carry(logs(log), join(ends), one(S)))
    dlog, dends, dS = launch_carry_backward(join(ups[0]), one(ups[1]), logs(log), got[0])
    got += [dlog.sum(3).transpose(1, 2).flatten(2), dends, dS]
    for a, b, form in zip(got, right, (join, one, logs, join, one), strict=True):
        torch.testing.assert_close(a, form(b), rtol=1e-4, atol=1e-4)


def test_mamba_2_under_autocast_is_as_near_to_float32_as_its_plain_convolution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused, "runs_on_gpu", lambda *_: True)  # the interpreter runs on a CPU
    torch.manual_seed(0)
    part = Mamba2(16, 32, 2, 16).to(DEVICE)
    with torch.no_grad():
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=0.3)
        part.initialise()
    x, up = torch.randn(2, 150, 16, device=DEVICE), torch.randn(2, 150, 16, device=DEVICE)
    positions = torch.arange(150, device=DEVICE)[None]
    ctx, results = Context(positions, positions, Mask(causal=True)), []
    for kind, narrow in ((ShortConv, False), (ShortConv, True), (fused.FusedShortConv, True)):
        part.conv.__class__ = kind
        leaf = x.clone().requires_grad_()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=narrow):
            y = part(leaf, replace(ctx, backend="reference") if kind is ShortConv else ctx)
        results.append([y.float(), *torch.autograd.grad(y.float(), [leaf, *part.parameters()], up)])
    for wide, plain, joined in zip(*results, strict=True):
        assert (joined - wide).norm() <= 3 * (plain - wide).norm() + 1e-2 * wide.norm()
