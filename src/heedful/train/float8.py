"""Parts of a model with a faster form in a compiled step on a GPU, and those that multiply in float8.

The faster forms compute the same. The products in float8 are in `kernels/gpu/float8_product.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.kernels.gpu.float8_product import ROWS, Head8
from heedful.kernels.gpu.fused_linear import Float8Linear, fits_float8, hidden_layer, linear_group
from heedful.kernels.gpu.state_space.mamba_mix import conv_silu, mamba2_mix, mamba_mix
from heedful.nn.attention.multi_head import Attention
from heedful.nn.context import Context, PartState
from heedful.nn.ffn import MLP, gelu_tanh
from heedful.nn.head import LMHead, MLMHead
from heedful.nn.state_space.delta import GatedDeltaNet
from heedful.nn.state_space.scan import runs_on_gpu, to_float32
from heedful.nn.state_space.selective import fits_kernels
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import Mamba, ShortConv, autocasts, is_unhooked

WORDS = True  # whether the word head's products join in
CACHE_LINE = 64  # numbers of two bytes


def use_float8(model: nn.Module) -> int:
    """Make every linear layer of the blocks a float8 one, in place, where its sizes are multiples of 16.

    How many there were is given back.
    """
    count = 0
    for name, module in model.named_modules():
        if type(module) is not nn.Linear or name.startswith("head"):
            continue
        if module.in_features % ROWS == 0 and module.out_features % ROWS == 0:
            module.__class__ = Float8Linear
            count += 1
    for module in model.modules():
        if WORDS and isinstance(module, LMHead | MLMHead) and type(module.out) is nn.Linear:
            module.out.__class__ = Head8
        if (form := fused_class(module, Float8Linear)) is not None:
            module.__class__ = form
    return count


class FusedAttention(Attention):
    """Attention whose q, k and v are one product; one kernel joins and sums, or rounds, their gradients."""

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layers = self.q, self.k, self.v
        if not fits_fused(x, *layers):
            return super().project(x)
        q, k, v = linear_group(x, layers, type(self.q) is Float8Linear)
        return q, k, v


class FusedMLP(MLP):
    """down(gelu(up x)) with a kernel for the GELU; going back, it also gives the slope of up's bias.

    The compiler reads the slope again to sum it: at 65,536 × 3,072 numbers 0.4 GB more in every layer. In
    float8, the hidden state is rounded as it is made, forward and back.
    """

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        plain = ctx.watches("up", "hidden") or (self.training and self.dropout > 0)
        if plain or not fits_fused(x, self.up, self.down):
            return super().forward(x, ctx, state)
        return hidden_layer(x, self.up, self.down, type(self.up) is Float8Linear)


def fits_fused(x: Tensor, *layers: nn.Linear) -> bool:
    """Whether x goes through layers in float8 that know its sizes, or is made narrow for other layers."""
    if type(layers[0]) is Float8Linear:
        return fits_float8(x, *layers)
    return torch.is_autocast_enabled(x.device.type)


def fits_mixing(
    conv: ShortConv, layers: Sequence[nn.Module], x: Tensor, ctx: Context, state: PartState | None
) -> bool:
    """Whether nobody watches, changes or hooks the layers that one operator hides, under autocast.

    Padding, packed documents and a state that is carried on are left to the plain part.
    """
    plain = all(type(m) in (nn.Linear, ShortConv) and is_unhooked(m) for m in layers)
    alone = ctx.watch is None and state is None and ctx.valid_new is None and ctx.fresh is None
    return (
        plain and alone and autocasts(x) and ctx.backend != "reference" and x.shape[1] > 1 and conv.width == 4
    )


class FusedMamba(Mamba):
    """Mamba whose work between its two large products is one operator (kernels/gpu/state_space)."""

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if not self.fits_operator(x, ctx, state):
            return super().forward(x, ctx, state)
        dtype = torch.get_autocast_dtype(x.device.type)
        bias = None if self.value.bias is None else torch.cat((self.value.bias, self.gate.bias))
        both = F.linear(x, torch.cat((self.value.weight, self.gate.weight)), bias)
        project = torch.cat((self.low.weight, self.B.weight, self.C.weight)).to(dtype)
        hidden, *_ = mamba_mix(
            both, self.conv.weight, self.conv.bias, project, self.delta.weight.to(dtype),
            self.delta.bias.to(dtype), self._A(), to_float32(self.D),
        )  # fmt: skip
        out: Tensor = self.out(hidden)
        return out

    def fits_operator(self, x: Tensor, ctx: Context, state: PartState | None) -> bool:
        """Whether the operator computes what the part would, and its kernels know all sizes."""
        read = (self.value, self.gate, self.conv, self.low, self.B, self.C, self.delta)
        fits = self.conv.bias is not None and fits_mixing(self.conv, read, x, ctx, state)
        return fits and fits_kernels(x, self.A_log)


class FusedMamba2(Mamba2):
    """Mamba-2 whose work between its first product and its norm is one operator (as in `FusedMamba`)."""

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if not self.fits_operator(x, ctx, state):
            return super().forward(x, ctx, state)
        layers = (self.gate, self.value, self.B, self.C, self.delta)
        # Without the spare columns, the compiler would write rows of whole cache lines and then copy them.
        spare = -sum(layer.out_features for layer in layers) % CACHE_LINE
        weights, biases = [m.weight for m in layers], [m.bias for m in layers if m.bias is not None]
        weight = torch.cat((*weights, weights[0].new_zeros(spare, x.shape[-1])))
        joint = F.linear(x, weight, torch.cat((*biases, weight.new_zeros(spare))) if biases else None)
        conv, bias, A = self.conv.weight, self.conv.bias, -torch.exp(to_float32(self.A_log))
        gated, *_ = mamba2_mix(
            joint, conv, conv.new_zeros(len(conv)) if bias is None else bias, to_float32(self.step_bias), A,
            to_float32(self.D), self.heads * self.head_dim, self.groups,
        )  # fmt: skip
        out: Tensor = self.out(self.norm(gated))
        return out

    def fits_operator(self, x: Tensor, ctx: Context, state: PartState | None) -> bool:
        """Whether the operator computes what the part would, and its kernels know all sizes."""
        read = (self.gate, self.value, self.B, self.C, self.delta, self.conv)
        sizes_fit = {self.state, self.head_dim} <= {16, 32, 64, 128} and self.limits == (0.0, None)
        sizes_fit = sizes_fit and 4 * x.shape[1] * len(self.conv.weight) < 2**31  # 32 bits count them
        return sizes_fit and fits_mixing(self.conv, read, x, ctx, state) and runs_on_gpu(x)


class FusedShortConv(ShortConv):
    """A short convolution that is one operator with the SiLU after it, where nobody looks between the two."""

    def with_silu(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        alone = ctx.watch is None and state is None and ctx.valid_new is None and ctx.fresh is None
        plain = not alone or not autocasts(x) or not is_unhooked(self) or ctx.backend == "reference"
        if plain or self.width != 4 or not runs_on_gpu(x) or x.shape[1] * x.stride(1) >= 2**31:
            return super().with_silu(x, ctx, state)
        bias = self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias
        mixed: Tensor = conv_silu(x, self.weight, bias)
        return mixed


def fused_class(module: nn.Module, kind: type[nn.Linear]) -> type[nn.Module] | None:
    """Return the faster form of a part whose products are of layers of this kind."""
    if type(module) is Attention and alike(kind, module.q, module.k, module.v):
        return FusedAttention
    if type(module) is MLP and module.act is gelu_tanh and module.up.bias is not None:
        return FusedMLP if alike(kind, module.up, module.down) else None
    return None


def alike(kind: type[nn.Linear], *layers: nn.Linear) -> bool:
    """Return whether all layers are of this kind, and all have a bias or none has."""
    return all(type(m) is kind for m in layers) and len({m.bias is None for m in layers}) == 1


def fused_classes(model: nn.Module) -> list[tuple[nn.Module, type[nn.Module]]]:
    """Return the parts of a model that have a faster form, each with the class of that form."""
    replaced: list[tuple[nn.Module, type[nn.Module]]] = []
    for module in model.modules():
        if type(module) is Mamba:
            replaced.append((module, FusedMamba))
        elif type(module) is Mamba2:
            replaced.append((module, FusedMamba2))
        elif type(module) is GatedDeltaNet:
            replaced.append((module.conv, FusedShortConv))
        elif (form := fused_class(module, nn.Linear)) is not None:
            replaced.append((module, form))
    return replaced
