"""Operators of state spaces on a GPU, forward and back: all of Mamba between its two large products, as one,
and the short convolution with its SiLU, for the others.

    u = silu(conv(x)),  [low B C] = u W,  Δ = softplus(low W_Δ + b),  out = (scan(u, Δ, B, C) + D u) silu(z)

[x z] is one product's output and gets one gradient: kernels read and write its halves where they lie, so that
nothing is split, copied or joined. What is between two kernels and no product is made inside them.
`heedful.nn.state_space.ssm.Mamba` is the definition.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.kernels.gpu.operators import operator


@operator("mamba_mix")
def mamba_mix(
    xz: Tensor, conv: Tensor, conv_bias: Tensor, project: Tensor, delta: Tensor, delta_bias: Tensor,
    A: Tensor, skip: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """out; and what the gradient needs: u, low B C, B C in float32, what Δ is made of, the states"""
    from heedful.kernels.gpu.state_space.conv import launch_conv
    from heedful.kernels.gpu.state_space.selective import Gate, launch_scan, shared_orders

    x, z = xz.chunk(2, -1)
    rank = delta.shape[1]
    u = launch_conv(x, conv, conv_bias)
    joint = F.linear(u, project)
    # Of matrices: for columns of a wider tensor of three dimensions torch adds the bias in a pass of its own.
    raw = torch.addmm(delta_bias, joint.flatten(0, 1)[:, :rank], delta.t()).view_as(u)
    bc = shared_orders(joint[..., rank:])
    out, _, states = launch_scan(u, raw, A, bc, None, A.new_zeros(len(xz), *A.shape), Gate(z, skip))
    return out, u, joint, bc, raw, states


@operator("mamba_mix_back")
def mamba_mix_backward(
    dout: Tensor, xz: Tensor, conv: Tensor, conv_bias: Tensor, project: Tensor, delta: Tensor, A: Tensor,
    skip: Tensor, u: Tensor, joint: Tensor, bc: Tensor, raw: Tensor, states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of everything `mamba_mix` takes"""
    from heedful.kernels.gpu.state_space.conv import launch_conv_backward
    from heedful.kernels.gpu.state_space.selective import Gate, launch_slopes

    dxz, nothing, rank = torch.empty_like(xz), A.new_zeros(len(xz), *A.shape), delta.shape[1]
    (x, z), (dx, dz) = xz.chunk(2, -1), dxz.chunk(2, -1)
    slopes = launch_slopes(dout.contiguous(), nothing, u, raw, A, bc, None, states, Gate(z, skip), dz)
    du, draw, dbc = (t.flatten(0, 1) for t in (slopes.u, slopes.raw, slopes.bc))
    djoint = torch.cat((draw @ delta, dbc.to(draw.dtype)), 1)
    du.addmm_(djoint, project)
    dconv, dconv_bias = launch_conv_backward(slopes.u, x, conv, conv_bias, dx)
    dproject = djoint.t() @ u.flatten(0, 1)
    ddelta = draw.t() @ joint.flatten(0, 1)[:, :rank]
    dskip, ddelta_bias = slopes.parts.unbind()
    return dxz, dconv, dconv_bias, dproject, ddelta, ddelta_bias.to(delta.dtype), slopes.A, dskip.clone()


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    xz, conv, conv_bias, project, delta, _, A, skip = inputs
    ctx.save_for_backward(xz, conv, conv_bias, project, delta, A, skip, *output[1:])


def _backward(ctx: Any, dout: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    return mamba_mix_backward(dout, *ctx.saved_tensors)


mamba_mix.register_autograd(_backward, setup_context=_save)


@operator("mamba2_mix")
def mamba2_mix(
    joint: Tensor, conv: Tensor, conv_bias: Tensor, bias: Tensor, A: Tensor, skip: Tensor, channels: int,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y silu(z) of `joint`, which is z, what becomes u B C, the steps before softplus, and unused columns

    Also what the gradient needs: u B C after the convolution, y, C Bᵀ, the states, Δ and its sums.
    """
    from heedful.kernels.gpu.state_space.conv import launch_conv
    from heedful.kernels.gpu.state_space.ssd import Sizes, launch_forward

    x = launch_conv(joint[..., channels : channels + len(conv)], conv, conv_bias)
    out, *rest = launch_forward(x, joint, bias, A, skip, Sizes.from_input(x, len(A), groups, channels))
    return out, x, *rest  # type: ignore[return-value]


@operator("mamba2_mix_back")
def mamba2_mix_backward(
    dout: Tensor, joint: Tensor, conv: Tensor, conv_bias: Tensor, bias: Tensor, A: Tensor, skip: Tensor,
    x: Tensor, y: Tensor, scores: Tensor, states: Tensor, steps: Tensor, logs: Tensor, groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of `joint`, of the convolution, and of A, Δ's bias and D, (3, H)"""
    from heedful.kernels.gpu.state_space.conv import launch_conv_backward
    from heedful.kernels.gpu.state_space.ssd import Sizes, launch_backward

    channels, djoint = y.shape[2], torch.empty_like(joint)
    own = slice(channels, channels + len(conv))
    djoint[..., own.stop + len(A) :] = 0.0
    dx, parameters = launch_backward(
        dout.contiguous(), x, joint, bias, A, skip, y, scores, states, steps, logs, djoint,
        Sizes.from_input(x, len(A), groups, channels),
    )  # fmt: skip
    return djoint, *launch_conv_backward(dx, joint[..., own], conv, conv_bias, djoint[..., own]), parameters


def _save2(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:6], *output[1:])
    ctx.groups = inputs[7]


def _backward2(ctx: Any, dout: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *made, parameters = mamba2_mix_backward(dout, *ctx.saved_tensors, ctx.groups)
    dA, dbias, dskip = parameters.unbind()
    return *made, dbias, dA, dskip, None, None


mamba2_mix.register_autograd(_backward2, setup_context=_save2)


@operator("conv_silu")
def conv_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """silu(conv(x)) of x (B, T, D), which may be columns of wider rows, by weights (D, 1, 4)"""
    from heedful.kernels.gpu.state_space.conv import launch_conv

    return launch_conv(x, weight, bias)


@operator("conv_silu_back")
def conv_silu_backward(du: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from heedful.kernels.gpu.state_space.conv import launch_conv_backward

    dx = x.new_empty(x.shape)
    return dx, *launch_conv_backward(du, x, weight, bias, dx)


conv_silu.register_autograd(
    lambda ctx, du: conv_silu_backward(du.contiguous(), *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
