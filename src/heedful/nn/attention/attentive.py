"""Attention before 2017: decoders that look at a memory at every step, and bridges from an encoder's state.

A score e(q, m_j) compares a decoder's state q with each vector m_j of a memory. It is a class with two
methods: `keys` is what can be computed once per source, `forward` what a step adds. Scores that are products
of the query and a key differ by their keys alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.errors import ConfigError
from heedful.nn.attention.attend import masked_softmax
from heedful.nn.context import Context, Part, PartState
from heedful.nn.recurrent import LSTM, Carry, GatedUnit, See, initial_carry, unroll
from heedful.nn.state import RecurrentState, StatefulPart, StateGroup, child, recall, remember


class Score(nn.Module):
    """e_j = qᵀ keys_j unless a score says otherwise, keys = score.keys(memory)"""

    def __init__(self, query_dim: int, memory_dim: int, dim: int) -> None:
        super().__init__()
        self.query_dim, self.memory_dim, self.dim = query_dim, memory_dim, dim

    def keys(self, memory: Tensor) -> Tensor:
        """The part of the score that the memory (B, S, M) gives alone."""
        return memory

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """(B, S) from a query (B, Q) and the keys of the memory."""
        return torch.einsum("bq,bsq->bs", query, keys)


class Additive(Score):
    """e_j = vᵀ tanh(W q + U m_j)   (Bahdanau et al. 2015, A.1.2); U m_j does not depend on q"""

    def __init__(self, query_dim: int, memory_dim: int, dim: int) -> None:
        super().__init__(query_dim, memory_dim, dim)
        self.q = nn.Linear(query_dim, dim, bias=False)
        self.k = nn.Linear(memory_dim, dim, bias=False)
        self.v = nn.Linear(dim, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        out: Tensor = self.k(memory)  # (B, S, A)
        return out

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        score: Tensor = self.v(torch.tanh(self.q(query)[:, None] + keys))
        return score[..., 0]


class Dot(Score):
    """e_j = qᵀ m_j   (Luong et al. 2015, eq. 8, dot)"""

    def __init__(self, query_dim: int, memory_dim: int, dim: int) -> None:
        super().__init__(query_dim, memory_dim, dim)
        if query_dim != memory_dim:
            raise ConfigError(
                f"the dot score needs states and memory of one size, got {query_dim} and {memory_dim}",
                hint="use the general score",
            )


class General(Score):
    """e_j = qᵀ W m_j   (Luong et al. 2015, eq. 8, general)"""

    def __init__(self, query_dim: int, memory_dim: int, dim: int) -> None:
        super().__init__(query_dim, memory_dim, dim)
        self.k = nn.Linear(memory_dim, query_dim, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        out: Tensor = self.k(memory)  # (B, S, Q)
        return out


class Concat(Score):
    """e_j = vᵀ tanh(W [q ; m_j])   (Luong et al. 2015, eq. 8, concat)

    W [q ; m] = W₁ q + W₂ m, so this is `Additive` with one matrix in place of two.
    """

    def __init__(self, query_dim: int, memory_dim: int, dim: int) -> None:
        super().__init__(query_dim, memory_dim, dim)
        self.w = nn.Linear(query_dim + memory_dim, dim, bias=False)
        self.v = nn.Linear(dim, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        return memory @ self.w.weight[:, self.query_dim :].t()  # (B, S, A)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        score: Tensor = self.v(torch.tanh((query @ self.w.weight[:, : self.query_dim].t())[:, None] + keys))
        return score[..., 0]


SCORES: dict[str, type[Score]] = {"additive": Additive, "dot": Dot, "general": General, "concat": Concat}


class Decoding(StatefulPart):
    """What decoders share that look at a memory at every step: c = Σ_j α_j m_j, α = softmax_j e(q, m_j)

    `pattern` is α, (B, 1, T, S). The part of the score that the memory gives alone is computed once per
    source and kept in the state.
    """

    pattern_kind = "softmax"

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def mixing_flops(self, length: int) -> int:
        return 0  # its matrices are its cost

    def state_numbers(self, length: int) -> dict[str, int]:
        return {}  # its unit counts for itself

    def memory(self, ctx: Context, state: PartState | None) -> tuple[Tensor, Tensor]:
        """The keys (B, S, A) and the vectors themselves (B, S, M)."""
        assert ctx.memory is not None, "this decoder needs a memory: call the model with a source"
        projected = recall(state, "keys")
        keys = self.score.keys(ctx.memory) if projected is None else projected
        remember(state, keys=keys)
        k, v = ctx.see("k", keys[:, None], keys=-2), ctx.see("v", ctx.memory[:, None], keys=-2)
        return k[:, 0], v[:, 0]

    def look(self, query: Tensor, keys: Tensor, values: Tensor, ctx: Context, see: See) -> Tensor:
        """The context vector c (B, M) for one query (B, Q)."""
        valid = None if ctx.memory_mask is None else ctx.memory_mask.valid
        scores = see("scores", self.score(query, keys)[:, None])  # (B, 1, S)
        pattern = see("pattern", masked_softmax(scores, None if valid is None else valid[:, None]))
        return see("heads", pattern @ values)[:, 0]


def see_under(see: See, path: str) -> See:
    """`see` inside the child called `path`."""
    return lambda name, value: see(f"{path}.{name}", value)


class AttentiveUnit(Decoding):
    """c_t = look(s_{t−1}),  s_t = unit([y_{t−1} ; c_t], s_{t−1});  gives [s_{t−1} ; y_{t−1} ; c_t]

    (Bahdanau et al. 2015, A.2.2.) What comes out is what the deep output reads: there s_{t−1}, not s_t.
    """

    def __init__(self, dim: int, hidden: int, memory_dim: int, score: Score, *, bias: bool = True) -> None:
        super().__init__(score)
        self.unit = GatedUnit(dim + memory_dim, hidden, bias=bias)

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        x = ctx.see("input", x)
        keys, values = self.memory(ctx, state)

        def step(t: int, carry: Carry, see: See) -> Carry:
            c = self.look(carry["h"], keys, values, ctx, see)
            see("read", torch.cat((carry["h"], x[:, t], c), -1))
            return self.unit.cell(self.unit.x(torch.cat((x[:, t], c), -1)), carry, see_under(see, "unit"))

        out, last = unroll(step, initial_carry(state, x, {"h": self.unit.hidden}), x.shape[1], ctx, "read")
        remember(state, **last)
        return ctx.see("output", out)


class InputFeeding(Decoding):
    """h_t = LSTM([x_t ; a_{t−1}], h_{t−1}),  c_t = look(h_t),  a_t = tanh(W [c_t ; h_t])

    (Luong et al. 2015, eq. 5 and §3.3.) The attentional vector a is the output, and is fed to the next step
    with its word, so that the model knows where it looked. `layers` LSTMs stand on each other; the top one
    looks.
    """

    def __init__(
        self, dim: int, hidden: int, layers: int, memory_dim: int, score: Score, *, dropout: float = 0.0
    ) -> None:
        super().__init__(score)
        sizes = [dim + hidden] + [hidden] * (layers - 1)
        self.layers = nn.ModuleList([LSTM(size, hidden) for size in sizes])
        self.mix = nn.Linear(memory_dim + hidden, hidden, bias=False)
        self.hidden, self.dropout = hidden, dropout

    def state_numbers(self, length: int) -> dict[str, int]:
        return {"fixed": self.hidden}  # the attentional vector; its layers count for themselves

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        x = ctx.see("input", x)
        keys, values = self.memory(ctx, state)

        def step(t: int, carry: Carry, see: See) -> Carry:
            new: Carry = {}
            h = torch.cat((x[:, t], carry["a"]), -1)
            for i, layer in enumerate(self.layers):
                assert isinstance(layer, LSTM)
                new_state = layer.cell(
                    layer.x(h), {n: carry[f"{n}{i}"] for n in "hc"}, see_under(see, f"layers.{i}")
                )
                new |= {f"{n}{i}": value for n, value in new_state.items()}
                h = F.dropout(new_state["h"], self.dropout, self.training)
            c = self.look(h, keys, values, ctx, see)
            return new | {"a": see("a", torch.tanh(self.mix(torch.cat((c, h), -1))))}

        sizes = {f"{n}{i}": self.hidden for i in range(len(self.layers)) for n in "hc"} | {"a": self.hidden}
        out, last = unroll(step, initial_carry(state, x, sizes), x.shape[1], ctx, "a")
        remember(state, **last)
        return ctx.see("output", F.dropout(out, self.dropout, self.training))


class Maxout(Part):
    """t_k = max(t̃_{2k−1}, t̃_{2k}),  t̃ = W x + b   (Goodfellow et al. 2013; Bahdanau et al. 2015, A.2.2)"""

    def __init__(self, dim: int, out: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.pairs = nn.Linear(dim, 2 * out, bias=bias)
        self.dropout = dropout

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        largest = self.pairs(x).unflatten(-1, (-1, 2)).amax(-1)
        return ctx.see("output", F.dropout(largest, self.dropout, self.training))


class Bridge(nn.Module):
    """The decoder's first state, made from what the encoder remembers after its last token."""

    def forward(self, encoder: PartState | None) -> StateGroup:
        raise NotImplementedError


class LayerByLayer(Bridge):
    """Layer l of the decoder starts where layer l of the encoder ended   (Sutskever et al. 2014 §2)

    `single_part` is for a decoder that keeps all its layers in one part.
    """

    def __init__(self, single_part: bool = False) -> None:
        super().__init__()
        self.single_part = single_part

    def forward(self, encoder: PartState | None) -> StateGroup:
        assert isinstance(encoder, StateGroup)
        layers = {
            name: part.tensors for name, part in encoder.parts.items() if isinstance(part, RecurrentState)
        }
        if not self.single_part:
            return StateGroup({name: RecurrentState(**tensors) for name, tensors in layers.items()})
        every = {f"{n}{i}": value for i, tensors in layers.items() for n, value in tensors.items()}
        return StateGroup({"0": RecurrentState(**every)})


class FromBack(Bridge):
    """s_0 = tanh(W ←h_1): from the reader that ended at the first token   (Bahdanau et al. 2015, A.2.2)"""

    def __init__(self, dim: int, hidden: int, *, bias: bool = True) -> None:
        super().__init__()
        self.w = nn.Linear(dim, hidden, bias=bias)

    def forward(self, encoder: PartState | None) -> StateGroup:
        assert isinstance(encoder, StateGroup)
        back = child(encoder["0"], "back")
        assert isinstance(back, RecurrentState)
        return StateGroup({"0": RecurrentState(h=torch.tanh(self.w(back["h"]))), "1": None})
