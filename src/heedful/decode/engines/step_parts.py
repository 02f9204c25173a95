"""How parts take one step over static state: the table that the graph engine looks a part's class up in.

    model  →  stepping_copy(model, operators), the same tensors under the same names

In the copy, a part whose class is a key of STEP_METHODS has the methods of the class next to it. They compute
the same equation for one new token by the operators of a step (step_operators.py). A part without a row stays
what it is, and is recorded as it is; so does any of a subclass, whose equation may be another. The parts
themselves know nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.decode.engines.static_state import (
    StaticCache,
    StaticRecurrentState,
    StaticSlidingKV,
)
from heedful.decode.engines.step_operators import Newest, Product
from heedful.models.base import LM, Seq2Seq
from heedful.nn.adapt import KeptHeads
from heedful.nn.attention.multi_head import (
    Attention,
    CrossAttention,
    SinkAttention,
    join_heads,
    normed_heads,
    split_heads,
)
from heedful.nn.context import Context, PartState
from heedful.nn.norm import RMSNorm
from heedful.nn.quantised import Int4Linear, Int8Linear, Quantised, TiedLinear
from heedful.nn.recurrent import GRU, LSTM, RNN, Carry, Recurrence, See
from heedful.nn.state_space.delta import GatedDeltaNet
from heedful.nn.state_space.linear_attention import GatedConv, GatedLinearAttention
from heedful.nn.state_space.scan import to_float32
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import Mamba, NarrowRMSNorm, ShortConv

if TYPE_CHECKING:
    from heedful.decode.engines.step_fusion import FusedOperators

MAX_HEAD = 256  # numbers of a head that the operator of attention takes


class StepPart(nn.Module):
    """A part of the copy; `operators` are those of the step that it is part of."""

    operators: FusedOperators


class RMSNormStep(StepPart, RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.weight.dtype and not isinstance(self, NarrowRMSNorm):
            return super().forward(x)
        return self.operators.rms_norm(x, self.weight, self.eps)


class QuantisedStep(StepPart, Quantised):
    def forward(self, x: Tensor) -> Tensor:
        group = self.group if isinstance(self, Int4Linear) else 0
        product = Product(self.weight, self.bias, scale=self.scale, group=group)
        out = self.operators.defer_product(x, product)
        return super().forward(x) if out is None else out


class AttentionStep(StepPart, Attention):
    """One query; the newest key is turned and put into its slot where the others are looked at."""

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        plain = self.rotary is None or not self.rotary.by_length
        plain = plain and (ctx.bias is None or not isinstance(state, StaticSlidingKV))
        if not isinstance(state, StaticCache) or not plain or x.shape[1] > 1 or self.head_dim > MAX_HEAD:
            return super().forward(x, ctx, state)
        q, k, v = self.project(x)
        if self.clip is not None:
            q, k, v = (t.clamp(-self.clip, self.clip) for t in (q, k, v))
        q = normed_heads(q, self.heads, self.q_norm, ctx)  # (B, H, 1, K)
        k = normed_heads(k, self.kv_heads, self.k_norm, ctx)
        assert isinstance(ctx.past, Tensor)
        angles = None if self.rotary is None else self.operators.angles(self.rotary, ctx.k_pos)
        v, bias, ops = split_heads(v, self.kv_heads), ctx.bias, self.operators
        if isinstance(self, KeptHeads) and bias is not None and bias.shape[1] > 1:
            bias = bias[:, list(self.kept)]
        newest = Newest(ops.compute(k), ops.compute(v), ctx.past, angles, self.window)
        heads = ops.call(
            ops.base.attend, q, state.k, state.v, self.scale, newest=newest, bias=bias, softcap=self.softcap,
            sinks=self.sinks if isinstance(self, SinkAttention) else None,
        )  # fmt: skip
        out: Tensor = self.o(join_heads(heads))
        return out


class CrossAttentionStep(StepPart, CrossAttention):
    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if not isinstance(state, StaticRecurrentState) or x.shape[1] > 1 or self.head_dim > MAX_HEAD:
            return super().forward(x, ctx, state)
        q, ops = split_heads(self.q(x), self.heads), self.operators
        keep = None if ctx.memory_mask is None else ctx.memory_mask.valid
        heads = ops.call(ops.base.attend, q, state["k"], state["v"], self.scale, keep=keep)
        out: Tensor = self.o(join_heads(heads))
        return out


class ConvStep(StepPart):
    """What parts with a short convolution share."""

    conv: ShortConv

    def steps(self, x: Tensor, state: PartState | None) -> bool:
        """Whether this is one token after a text that a static state remembers."""
        return x.shape[1] == 1 and isinstance(state, StaticRecurrentState)

    def conv_silu(self, x: Tensor, state: PartState | None) -> Tensor:
        window, ops = cast(StaticRecurrentState, state)["window"], self.operators
        return ops.call(ops.base.conv_silu, x, window, self.conv.weight, self.conv.bias)


class MambaStep(ConvStep, Mamba):
    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if not self.steps(x, state):
            return super().forward(x, ctx, state)
        value, gate = self.value(x), self.gate(x)
        u = self.conv_silu(value, state)
        low, B, C = self.low(u), self.B(u), self.C(u)  # products of one x, asked for one after the other
        h, ops = cast(StaticRecurrentState, state)["h"], self.operators
        y = ops.call(ops.base.selective_step, u, self.delta(low), B, C, self.A_log, self.D, gate, h)
        out: Tensor = self.out(y)
        return out


class Mamba2Step(ConvStep, Mamba2):
    """The channels of a head share its numbers: with them repeated it is the step of a Mamba."""

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if not self.steps(x, state) or self.groups > 1 or self.limits != (0.0, None):
            return super().forward(x, ctx, state)
        rows = torch.cat((self.value(x), self.B(x), self.C(x)), -1)
        u, B, C = self._split(self.conv_silu(rows, state))
        spread = lambda row: row.repeat_interleave(self.head_dim, -1)
        A_log = spread(self.A_log)[:, None].expand(-1, self.state).contiguous()
        delta = spread(to_float32(self.delta(x)) + to_float32(self.step_bias))
        h, ops = cast(StaticRecurrentState, state)["h"], self.operators
        y = ops.call(ops.base.selective_step, u, delta, B, C, A_log, spread(self.D), self.gate(x), h)
        out: Tensor = self.out(self.norm(y))
        return out


class GatedLinearAttentionStep(StepPart, GatedLinearAttention):
    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if x.shape[1] > 1 or not isinstance(state, StaticRecurrentState):
            return super().forward(x, ctx, state)
        rows, ops = (self.q(x), self.k(x), self.v(x), self.decay(self.low(x))), self.operators
        heads = ops.call(ops.base.gated_linear_step, *rows, state["S"], self.tau, self.scale)
        out: Tensor = self.o(join_heads(self.norm(heads)) * F.silu(self.gate(x)))
        return out


class GatedConvStep(ConvStep, GatedConv):
    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        if not self.steps(x, state):
            return super().forward(x, ctx, state)
        out: Tensor = self.out(self.conv_silu(self.value(x), state) * self.gate(x))
        return out


class GatedDeltaNetStep(ConvStep, GatedDeltaNet):
    def mix(self, rows: Tensor, ctx: Context, state: PartState | None) -> Tensor:
        return self.conv_silu(rows, state) if self.steps(rows, state) else super().mix(rows, ctx, state)


class RecurrenceStep(StepPart, Recurrence):
    """Products are a kernel each: cuDNN would copy the weights into one piece first."""

    def _can_fuse(self, ctx: Context) -> bool:
        return False


class LSTMStep(RecurrenceStep, LSTM):
    def cell(self, x: Tensor, carry: Carry, see: See) -> Carry:
        ops = self.operators
        h, c = ops.call(ops.base.lstm_cell, x + self.h(carry["h"]), carry["c"])
        return {"h": see("h", h), "c": see("c", c)}


STEP_METHODS: dict[type[nn.Module], type[StepPart]] = {
    RMSNorm: RMSNormStep, NarrowRMSNorm: RMSNormStep,
    Int8Linear: QuantisedStep, Int4Linear: QuantisedStep, TiedLinear: QuantisedStep,
    Attention: AttentionStep, KeptHeads: AttentionStep, SinkAttention: AttentionStep,
    CrossAttention: CrossAttentionStep,
    Mamba: MambaStep, Mamba2: Mamba2Step, GatedConv: GatedConvStep, GatedDeltaNet: GatedDeltaNetStep,
    GatedLinearAttention: GatedLinearAttentionStep, RNN: RecurrenceStep, GRU: RecurrenceStep, LSTM: LSTMStep,
}  # fmt: skip
STEP_PARTS: dict[type[nn.Module], type[nn.Module]] = {
    kind: type(f"{kind.__name__}Step", (methods, kind), {}) for kind, methods in STEP_METHODS.items()
}


def stepping_copy(model: LM | Seq2Seq, operators: FusedOperators) -> LM | Seq2Seq:
    """Return a model of the same tensors whose parts step by the operators, as the table says."""
    copies: dict[nn.Module, nn.Module] = {}

    def copy(module: nn.Module) -> nn.Module:
        kind = STEP_PARTS.get(type(module), type(module))
        if kind is type(module) and not module._modules:
            return module
        if module not in copies:
            copies[module] = new = object.__new__(kind)
            new.__dict__ |= module.__dict__ | {"training": False}
            if issubclass(kind, StepPart):
                new.__dict__["operators"] = operators
            children = module._modules.items()
            new.__dict__["_modules"] = {name: child and copy(child) for name, child in children}
        return copies[module]

    return cast(LM | Seq2Seq, copy(model))


def compute_by_operators(
    model: LM | Seq2Seq, operators: FusedOperators, function: Callable[[Any], Tensor]
) -> Tensor:
    """Return function(model), in which parts compute as the table says."""
    operators.pending.clear()  # of a step that failed
    with operators:
        result: Tensor = operators.compute(function(stepping_copy(model, operators)))
    return result
