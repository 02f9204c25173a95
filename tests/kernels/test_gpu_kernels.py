"""Kernels of training say what their definitions say. Without a GPU, Triton's interpreter can run them:

TRITON_INTERPRET=1 pytest tests/kernels/test_gpu_kernels.py
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.kernels.gpu.state_space.mamba_mix import conv_silu, mamba2_mix, mamba_mix
from heedful.nn.attention.multi_head import join_heads, split_heads
from heedful.nn.context import Context, Mask
from heedful.nn.state_space.chunked import decayed_scores, decayed_scores_backward
from heedful.nn.state_space.scan import linear_scan, selective
from heedful.nn.state_space.selective import block_backward, block_forward
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import Mamba
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
    from heedful.kernels.gpu.state_space import selective as gpu_selective
    from heedful.kernels.gpu.state_space.selective import launch_backward, launch_forward

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
    from heedful.kernels.gpu.state_space import selective as kernels

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
    from heedful.kernels.gpu.state_space.conv import launch_conv, launch_conv_backward

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


@pytest.mark.parametrize("name", ["mamba", "mamba2", "convolution"])
def test_the_compiler_learns_the_shapes_of_what_operators_return(name: str) -> None:
    (rows, length, D, N), (rank, heads, H) = (2, 21, 8, 4), (3, 2, 32)
    rand = lambda *size: torch.randn(*size, device=DEVICE).requires_grad_()
    rates = lambda *size: (-torch.rand(*size, device=DEVICE)).requires_grad_()
    wide, width = rand(rows, length, 2 * D), H + 2 * 16
    of_mamba = rand(rank + 2 * N, D), rand(D, rank), rand(D), rates(D, N), rand(D)
    of_mamba2 = rand(width, 1, 4), rand(width), rand(heads), rates(heads), rand(heads), H, 1
    made, given = {
        "mamba": (mamba_mix, (wide, rand(D, 1, 4), rand(D), *of_mamba)),
        "mamba2": (mamba2_mix, (rand(rows, length, H + width + heads), *of_mamba2)),
        "convolution": (conv_silu, (wide, rand(2 * D, 1, 4), rand(2 * D))),
    }[name]
    torch.library.opcheck(made, given, test_utils=("test_schema", "test_faketensor"))
    leaves, slopes = [t for t in given if isinstance(t, torch.Tensor)], []
    for form in (made, torch.compile(made, backend="aot_eager", fullgraph=True)):
        out = form(*given)
        out = out if isinstance(out, torch.Tensor) else out[0]
        slopes.append([out, *torch.autograd.grad(out.sum(), leaves)])
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize(("size", "channels"), [(16, 96), (8, 5)])
def test_decayed_scores_and_their_gradients_are_the_definition(size: int, channels: int) -> None:
    from heedful.kernels.gpu.state_space.decayed import launch_scores, launch_scores_backward

    torch.manual_seed(0)
    q, k, log = (torch.randn(2, size, channels) for _ in range(3))
    log, dP = -log.abs().cumsum(1), torch.randn(2, size, size)
    expected = decayed_scores(q, k, log), *decayed_scores_backward(dP, q, k, log)
    dP, q, k, log = (x.to(DEVICE) for x in (dP, q, k, log))
    found = launch_scores(q, k, log), *launch_scores_backward(dP, q, k, log)
    for wanted, value in zip(expected, found, strict=True):
        torch.testing.assert_close(value.cpu(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "length", "heads", "groups", "state", "size"), [(2, 70, 6, 2, 16, 16), (1, 150, 3, 1, 32, 16)]
)
def test_the_operator_of_mamba_2_and_its_gradients_are_the_definition(
    rows: int, length: int, heads: int, groups: int, state: int, size: int
) -> None:
    torch.manual_seed(0)
    channels, shared = heads * size, groups * state
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    joint, conv = draw(rows, length, 2 * channels + 2 * shared + heads + 3), draw(channels + 2 * shared, 1, 4)
    conv_bias, bias, skip, A_log = draw(len(conv)), draw(heads), draw(heads), draw(heads)
    leaves = joint, conv, conv_bias, bias, A_log, skip
    z, read, raw, _ = joint.split((channels, len(conv), heads, 3), -1)
    mixed = F.silu(F.conv1d(read.mT, conv, conv_bias, padding=3, groups=len(conv))[..., :length].mT)
    u, B, C = mixed.split((channels, shared, shared), -1)
    step = F.softplus(raw + bias).mT[..., None]
    v, k, q = (split_heads(t, n) for t, n in ((u, heads), (B, groups), (C, groups)))
    log_a, S = -A_log.exp()[:, None, None] * step, v.new_zeros(rows, heads, state, size)
    y = linear_scan(q, k, step * v, log_a, None, S)[0] + skip[:, None, None] * v
    expected, up = join_heads(y) * F.silu(z), torch.randn(rows, length, channels, dtype=torch.float64)
    right = [expected, *torch.autograd.grad(expected, leaves, up)]
    leaves = tuple(t.detach().float().to(DEVICE).requires_grad_() for t in leaves)
    joint, conv, conv_bias, bias, A_log, skip = leaves
    out, *_ = mamba2_mix(joint, conv, conv_bias, bias, -A_log.exp(), skip, channels, groups)
    got = [out, *torch.autograd.grad(out, leaves, up.float().to(DEVICE))]
    for a, b in zip(got, right, strict=True):
        assert (a.detach().cpu() - b.detach()).norm() <= 1e-4 * b.norm()


def test_mamba_2_by_one_operator_is_as_near_to_float32_as_the_plain_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused, "runs_on_gpu", lambda *_: True)  # the interpreter runs on a CPU
    narrow_type = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # it cannot multiply bfloat16
    torch.manual_seed(0)
    part = Mamba2(16, 32, 2, 16).to(DEVICE)
    with torch.no_grad():
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=0.3)
        part.initialise()
    x, up = torch.randn(2, 150, 16, device=DEVICE), torch.randn(2, 150, 16, device=DEVICE)
    positions = torch.arange(150, device=DEVICE)[None]
    ctx, results = Context(positions, positions, Mask(causal=True)), []
    for kind, narrow in ((Mamba2, False), (Mamba2, True), (fused.FusedMamba2, True)):
        part.__class__ = kind
        leaf = x.clone().requires_grad_()
        with torch.autocast(DEVICE, narrow_type, enabled=narrow):
            y = part(leaf, ctx)
        results.append([y.float(), *torch.autograd.grad(y.float(), [leaf, *part.parameters()], up)])
    for wide, plain, joined in zip(*results, strict=True):
        assert (joined - wide).norm() <= 3 * (plain - wide).norm() + 1e-2 * wide.norm()
