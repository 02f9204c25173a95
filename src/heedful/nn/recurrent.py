"""Recurrent layers: RNN, LSTM, GRU, and one that reads both ways.

The definition of a recurrence is a loop over time (`unroll`); torch's fused kernel is its fast twin. The loop
runs where the kernel cannot: where somebody watches the gates, or packed documents make the state forget.
A compiler looks into neither: it would write every step out, and take minutes for what it cannot join anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from heedful.nn.context import Context, Part, PartState
from heedful.nn.state import RecurrentState, StatefulPart, StateGroup, child, remember

Carry = dict[str, Tensor]  # what goes from one step to the next, by name, batch first
See = Callable[[str, Tensor], Tensor]  # shows a value of the present step; what comes back is used
Step = Callable[[int, Carry, See], Carry]
T = TypeVar("T")


class UnrolledValues:
    """The values of one pass over time, by name, as computed; a forced value is used in place of one."""

    def __init__(self, length: int, is_watched: Callable[[str], bool], replacements: Carry) -> None:
        self.length, self.is_watched, self.replacements = length, is_watched, replacements
        self.rows: dict[str, list[Tensor]] = {}
        self.t = 0

    def __call__(self, name: str, value: Tensor) -> Tensor:
        if name in self.rows or self.is_watched(name):
            self.rows.setdefault(name, [value] * self.length)[self.t] = value
        return self.replacements[name].select(-2, self.t) if name in self.replacements else value

    def values(self) -> Carry:
        """Each value over time: (B, T, ·), or (B, 1, T, S) of a pattern."""
        return {name: torch.stack(rows, -2) for name, rows in self.rows.items()}


def outside_compiler(length: int, run: Callable[..., T], *given: Any) -> T:
    """run(*given) for `length` steps, which a compiler leaves as it is; a single step it may compile."""
    if length == 1 or not torch.compiler.is_compiling():
        return run(*given)
    # Only here: as a decorator it would import the compiler with every model.
    whole: Callable[..., T] = torch.compiler.disable(run, reason="a loop over time is not unrolled")
    return whole(*given)


def unroll(
    step: Step, first: Carry, length: int, ctx: Context, out: str, *, reverse: bool = False
) -> tuple[Tensor, Carry]:
    """carry_t = step(t, carry_{t−1}): the value called `out` over time, and the last carry.

    A padded position leaves the carry as it was, a document's first token finds zeros. Values are shown over
    all times at once. If one was replaced the recurrence runs again with it in place, until the edit makes of
    what comes out what was put in: then every step follows from the edited ones before it. Each pass
    settles one more step at least, so that T + 1 are enough.
    """
    return outside_compiler(length, _unroll, step, first, length, ctx, out, reverse)


def _unroll(
    step: Step, first: Carry, length: int, ctx: Context, out: str, reverse: bool
) -> tuple[Tensor, Carry]:
    forced: Carry = {}
    for done in range(length + 1):
        trace = UnrolledValues(length, lambda name: name == out or ctx.watches(name), forced)
        last = _pass(step, first, ctx, trace, reverse)
        values = trace.values()
        edited = _edits(values, forced, ctx)
        settled = edited.keys() == forced.keys() and all(torch.equal(edited[n], forced[n]) for n in forced)
        if settled or done == length:  # an edit that draws random numbers never settles
            break
        forced = edited
    return forced.get(out, values[out]), last


def _edits(values: Carry, replacements: Carry, ctx: Context) -> Carry:
    """Shows the values; gives back those that were replaced."""
    edited = {}
    for name, value in values.items():
        if name in replacements and torch.equal(replacements[name], value):
            edited[name] = replacements[
                name
            ]  # the edit left the numbers alone: the tensor it gave stays in use
        elif ctx.watches(name):
            seen = ctx.see(name, value)
            if seen is not value:
                edited[name] = seen
    return edited


def _pass(step: Step, carry: Carry, ctx: Context, trace: UnrolledValues, reverse: bool) -> Carry:
    valid, fresh = ctx.valid_new, ctx.fresh
    if fresh is not None and reverse:  # read backwards, a document starts at its last token
        fresh = torch.cat((fresh[:, 1:], torch.ones_like(fresh[:, :1])), 1)
    for t in reversed(range(trace.length)) if reverse else range(trace.length):
        trace.t = t
        if fresh is not None:
            carry = {name: value.masked_fill(fresh[:, t, None], 0.0) for name, value in carry.items()}
        new = step(t, carry, trace)
        carry = new if valid is None else {n: torch.where(valid[:, t, None], new[n], carry[n]) for n in new}
    return carry


def initial_carry(state: PartState | None, x: Tensor, sizes: Mapping[str, int]) -> Carry:
    """Return what the state holds under each name; zeros (B, size) at the start."""
    tensors = state.tensors if isinstance(state, RecurrentState) else {}
    return {n: tensors[n] if n in tensors else x.new_zeros(len(x), size) for n, size in sizes.items()}


def orthogonal(weight: Tensor) -> None:
    """Make it a random rotation, found in float32: no half precision has a QR decomposition."""
    weight.copy_(nn.init.orthogonal_(torch.empty_like(weight, dtype=torch.float32)))


class Recurrence(StatefulPart):
    """h_t = cell(W x_t + b, h_{t−1}): what the layers below share. Each gives its cell.

    `reverse` reads from the last token to the first. Dropout falls on the output alone, never on what a step
    hands to the next (Zaremba et al. 2014 §3).
    """

    gates: tuple[str, ...]  # the row blocks of both matrices
    candidate: str  # the one that is no gate but what passes through them
    passes: int = 0  # how many gates
    carried: tuple[str, ...] = ("h",)
    shown: tuple[str, ...]
    fused: Callable[..., Any] | None = None  # torch's kernel for the same equation

    def __init__(
        self, dim: int, hidden: int, *, bias: bool = True, dropout: float = 0.0, reverse: bool = False
    ) -> None:
        super().__init__()
        self.hidden, self.dropout, self.reverse = hidden, dropout, reverse
        self.x = nn.Linear(dim, len(self.gates) * hidden, bias=bias)
        self.h = nn.Linear(hidden, len(self.gates) * hidden, bias=bias)

    def initialise(self) -> None:
        """W uniform with variance 1/D (LeCun et al. 1998 §4.6), U orthogonal per gate (Saxe et al. 2014).

        A gate starts at σ(0) = ½ and lets half of what it meets through, and tanh shrinks it: W of the
        candidate makes up for both.
        """
        for name, x in zip(self.gates, self.x.weight.split(self.hidden), strict=True):
            gain = nn.init.calculate_gain("tanh") * 2**self.passes if name == self.candidate else 1.0
            bound = gain * (3 / self.x.in_features) ** 0.5
            nn.init.uniform_(x, -bound, bound)
        for h in self.h.weight.split(self.hidden):
            orthogonal(h)

    def mixing_flops(self, length: int) -> int:
        return 0  # its matrices are its cost

    def state_numbers(self, length: int) -> dict[str, int]:
        return {"fixed": len(self.carried) * self.hidden}

    def cell(self, x: Tensor, carry: Carry, see: See) -> Carry:
        """One step; `x` (B, gates · H) is W x_t + b."""
        raise NotImplementedError

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        x = ctx.see("input", x)
        first = initial_carry(state, x, {name: self.hidden for name in self.carried})
        run = self._fused if self._can_fuse(ctx) else self._loop
        out, last = outside_compiler(x.shape[1], run, x, first, ctx)  # (B, T, H)
        if ctx.valid_new is not None:
            out = out.masked_fill(~ctx.valid_new[..., None], 0.0)
        remember(state, **last)
        return ctx.see("output", F.dropout(out, self.dropout, self.training))

    def _can_fuse(self, ctx: Context) -> bool:
        # The kernel reads the matrices themselves: an adapter in their place needs the loop.
        plain = type(self.x) is nn.Linear and type(self.h) is nn.Linear
        watched = ctx.fresh is not None or ctx.backend == "reference" or ctx.watches(*self.shown)
        return self.fused is not None and plain and not watched

    def _loop(self, x: Tensor, first: Carry, ctx: Context) -> tuple[Tensor, Carry]:
        gates = self.x(x)  # (B, T, gates · H)
        step = lambda t, carry, see: self.cell(gates[:, t], carry, see)
        return unroll(step, first, x.shape[1], ctx, "h", reverse=self.reverse)

    def _fused(self, x: Tensor, first: Carry, ctx: Context) -> tuple[Tensor, Carry]:
        if ctx.valid_new is None:
            out, last = self._kernel((x.flip(1) if self.reverse else x,), first, batch_first=True)
            return (out.flip(1) if self.reverse else out), last
        # (B, T) positions of the valid tokens as they are read, then of padding
        seen, lengths = ctx.valid_new.flip(1) if self.reverse else ctx.valid_new, ctx.valid_new.sum(1)
        order = seen.int().argsort(dim=1, descending=True, stable=True)
        order = x.shape[1] - 1 - order if self.reverse else order
        read = x.gather(1, order[..., None].expand_as(x))
        # A row of padding alone is read as one token, and what that gives is thrown away.
        pack = pack_padded_sequence(read, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        start = {name: value[pack.sorted_indices] for name, value in first.items()}
        data, last = self._kernel((pack.data, pack.batch_sizes), start)
        out, _ = pad_packed_sequence(pack._replace(data=data), batch_first=True, total_length=x.shape[1])
        out = torch.zeros_like(out).scatter(1, order[..., None].expand_as(out), out)
        real = lengths[:, None] > 0
        return out, {n: torch.where(real, v[pack.unsorted_indices], first[n]) for n, v in last.items()}

    def _kernel(self, inputs: tuple[Tensor, ...], first: Carry, **more: bool) -> tuple[Tensor, Carry]:
        weights = [self.x.weight, self.h.weight]
        if self.x.bias is not None and self.h.bias is not None:
            weights += [self.x.bias, self.h.bias]
        if self.x.weight.is_cuda:  # side by side: cuDNN would copy them itself, with a warning
            pieces = torch.cat([w.reshape(-1) for w in weights]).split([w.numel() for w in weights])
            weights = [piece.view_as(w) for piece, w in zip(pieces, weights, strict=True)]
        hx = tuple(first[name][None].contiguous() for name in self.carried)  # (1, B, H)
        # cuDNN keeps what a gradient needs only if told that it trains, whatever the module's mode.
        options = dict(has_biases=len(weights) == 4, num_layers=1, dropout=0.0, train=torch.is_grad_enabled())
        assert self.fused is not None
        out, *last = self.fused(
            *inputs, hx if len(hx) > 1 else hx[0], weights, **options, bidirectional=False, **more
        )
        return out, {name: value[0] for name, value in zip(self.carried, last, strict=True)}


class RNN(Recurrence):
    """h_t = tanh(W x_t + U h_{t−1} + b)   (Elman 1990)"""

    gates = shown = ("h",)
    candidate = "h"
    fused = staticmethod(torch.rnn_tanh)

    def cell(self, x: Tensor, carry: Carry, see: See) -> Carry:
        return {"h": see("h", torch.tanh(x + self.h(carry["h"])))}


class LSTM(Recurrence):
    """i, f, o = σ(W x_t + U h_{t−1} + b),  g = tanh(…),  c_t = f ⊙ c_{t−1} + i ⊙ g,  h_t = o ⊙ tanh(c_t)

    (Hochreiter and Schmidhuber 1997; with the forget gate of Gers et al. 2000.) That gate starts open, with a
    bias of 1 (Jozefowicz et al. 2015).
    """

    gates = ("i", "f", "g", "o")
    candidate, passes = "g", 2  # i and o
    carried = ("h", "c")
    shown = ("i", "f", "g", "o", "c", "h")
    fused = staticmethod(torch.lstm)

    def initialise(self) -> None:
        super().initialise()
        if self.x.bias is not None:
            nn.init.ones_(self.x.bias.split(self.hidden)[1])

    def cell(self, x: Tensor, carry: Carry, see: See) -> Carry:
        gates = x + self.h(carry["h"])
        i, f, g, o = gates.chunk(4, -1)  # (B, H) each
        i, f, g, o = see("i", i.sigmoid()), see("f", f.sigmoid()), see("g", g.tanh()), see("o", o.sigmoid())
        c = see("c", f * carry["c"] + i * g)
        return {"h": see("h", o * c.tanh()), "c": c}


class GRU(Recurrence):
    """r, z = σ(W x_t + U h_{t−1} + b),  n = tanh(W x_t + b + r ⊙ (U h_{t−1} + b'))
    h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}

    (Cho et al. 2014, eq. 5–8.) There r meets h before U; here after, as fused kernels have it: see GatedUnit.
    """

    gates = ("r", "z", "n")
    candidate, passes = "n", 1  # z
    shown = ("r", "z", "n", "h")
    fused = staticmethod(torch.gru)

    def cell(self, x: Tensor, carry: Carry, see: See) -> Carry:
        h = carry["h"]
        (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), self.h(h).chunk(3, -1)  # (B, H) each
        r, z = see("r", (xr + hr).sigmoid()), see("z", (xz + hz).sigmoid())
        n = see("n", (xn + r * hn).tanh())
        return {"h": see("h", (1 - z) * n + z * h)}


class GatedUnit(Recurrence):
    """r, z = σ(W x_t + U h_{t−1}),  n = tanh(W x_t + U (r ⊙ h_{t−1})),  h_t = (1 − z) ⊙ h_{t−1} + z ⊙ n

    (Bahdanau et al. 2015, A.1.1.) The GRU with r before U, and z = 1 taking what is new. No fused kernel has
    this form. W carries the biases.
    """

    gates = ("r", "z", "n")
    candidate, passes = "n", 1  # z
    shown = ("r", "z", "n", "h")

    def __init__(
        self, dim: int, hidden: int, *, bias: bool = True, dropout: float = 0.0, reverse: bool = False
    ) -> None:
        super().__init__(dim, hidden, bias=bias, dropout=dropout, reverse=reverse)
        self.h = nn.Linear(hidden, 2 * hidden, bias=False)
        self.n = nn.Linear(hidden, hidden, bias=False)

    def initialise(self) -> None:
        super().initialise()
        orthogonal(self.n.weight)

    def cell(self, x: Tensor, carry: Carry, see: See) -> Carry:
        h = carry["h"]
        (xr, xz, xn), (hr, hz) = x.chunk(3, -1), self.h(h).chunk(2, -1)  # (B, H) each
        r, z = see("r", (xr + hr).sigmoid()), see("z", (xz + hz).sigmoid())
        n = see("n", (xn + self.n(r * h)).tanh())
        return {"h": see("h", (1 - z) * h + z * n)}


class Bidirectional(Part):
    """h_t = [→h_t ; ←h_t]: one layer reads ahead, one reads back   (Schuster and Paliwal 1997)"""

    def __init__(self, ahead: Recurrence, backward: Recurrence) -> None:
        super().__init__()
        self.ahead, self.back = ahead, backward

    def new_state(self, batch: int, length: int) -> StateGroup:
        parts = {"ahead": self.ahead, "back": self.back}
        return StateGroup({name: part.new_state(batch, length) for name, part in parts.items()})

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        x = ctx.see("input", x)
        ahead = self.ahead(x, ctx.at("ahead"), child(state, "ahead"))
        back = self.back(x, ctx.at("back"), child(state, "back"))
        return ctx.see("output", torch.cat((ahead, back), -1))
