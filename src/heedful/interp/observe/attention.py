"""Attention patterns: which token takes how much from which other token.

A pattern is the matrix that a layer multiplies its values with, `heads = pattern @ v`. A row is a query, and
the row of a softmax sums to 1. Linear attention and state spaces compute no such matrix, but their recurrence
amounts to one, whose entries can be negative (Ali et al. 2024, arXiv 2403.01590). `head_scores` sums up each
head in a few numbers. `rollout` and `attention_flow` follow attention through all layers (Abnar and Zuidema
2020). A pattern shows where values come from, not why the model answers as it does: to find that out, switch
a head off (`change`) or patch it (`patching`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.checks import check_integer
from heedful.core.errors import InputError, nearest
from heedful.interp.inputs import (
    Input,
    Result,
    Side,
    Text,
    attends_to_source,
    key_side,
    names_of,
    part_at,
    position_of,
    reading,
    row_side,
    to_plain,
    with_progress,
    written_names,
)
from heedful.interp.observe.prediction import special_ids
from heedful.models.base import LM, Model
from heedful.nn.attention.attend import masked_softmax
from heedful.nn.attention.multi_head import Attention, SinkAttention
from heedful.nn.context import Watch
from heedful.nn.watch import LAYER_OUTPUT

STATES = re.compile(rf"\.(h|c|i|f|g|o|r|z|n|hidden)$|{LAYER_OUTPUT.pattern}")


@dataclass(frozen=True)
class Pattern(Result):
    """Who looks at whom: (H, T, S). Kind "softmax": rows sum to 1, with a sink to less, to 0 where all is
    masked. Kind "effective": signed, what a recurrence amounts to. pattern @ v = heads; `leaves_out` says
    what goes into the layer's output besides, such as the skip D of a state space. `queries` names the rows
    by the token read, or, where the keys are a source's, by the word written (see `row_labels`).
    """

    name: str
    kind: str
    values: Tensor
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    cross: bool  # the keys are another sequence's
    written: bool = False  # the rows are the words written, not those read
    leaves_out: str = ""

    @property
    def heads(self) -> int:
        return self.values.shape[0]


@dataclass(frozen=True)
class AttentionResult:
    """All patterns of one pass. A model without patterns has a `note` and offers its states; of the others
    the note says what their patterns leave out, if anything.
    """

    input: Input
    patterns: dict[str, Pattern]
    states: dict[str, Tensor]  # (T, ·) by name; empty where there are patterns
    note: str = ""

    def __getitem__(self, name: str) -> Pattern:
        """A pattern by its name, with or without `.pattern`."""
        for full_name in (name, f"{name}.pattern"):
            if full_name in self.patterns:
                return self.patterns[full_name]
        if not self.patterns:
            raise InputError(self.note)
        close = nearest(name, self.patterns) or f"there are {', '.join(self.patterns)}"
        raise InputError(f"no pattern {name!r}", hint=close)

    def to_dict(self) -> dict[str, Any]:
        return {
            "tokens": list(self.input.tokens), "target": list(self.input.target_tokens), "note": self.note,
            "patterns": [p.to_dict() for p in self.patterns.values()],
            "states": to_plain(self.states),
        }  # fmt: skip


@torch.no_grad()
def attention(
    model: Model, text: Text, target: Text | None = None, *, only: Sequence[str] = ("*",)
) -> AttentionResult:
    """Every pattern of one pass over `text`; `only` keeps some: ("blocks.0.*", "decoder.*.cross")."""
    given = reading(model, text, target)
    watch = Watch(*(n if n.endswith(".pattern") else f"{n}.pattern" for n in only))
    output = given.run(model, watch)
    patterns = patterns_of(model, given, watch, output)
    if patterns:
        left_out = dict.fromkeys(p.leaves_out for p in patterns.values() if p.leaves_out)
        note = f"The patterns leave out {'; '.join(left_out)}." if left_out else ""
        return AttentionResult(given, patterns, {}, note)
    if tuple(only) != ("*",):
        raise InputError(
            f"nothing here is called {', '.join(only)}", hint="leave `only` out to see every pattern"
        )
    every = given.record(model, "*")
    states = {name: every[name][0] for name in every if STATES.search(name)}
    note = f"{model.family.name} has no attention, so it has no pattern; its states are {', '.join(states)}"
    return AttentionResult(given, {}, states, note)


def patterns_of(
    model: Model, inputs: Input, watch: Watch | Mapping[str, Tensor], output: Tensor
) -> dict[str, Pattern]:
    """Return the patterns that were watched in a pass over `inputs`, which gave `output`, by their names."""
    names: dict[Side, tuple[str, ...]] = {"tokens": inputs.tokens, "target": inputs.target_tokens}
    if inputs.target is not None:
        names["written"] = written_names(model, inputs, output)
    patterns: dict[str, Pattern] = {}
    for name in (name for name in watch if name.endswith(".pattern")):
        path = name.removesuffix(".pattern")
        part = part_at(model, path)
        rows, keys = (side(path, part, has_target="written" in names) for side in (row_side, key_side))
        patterns[name] = Pattern(
            name, part.pattern_kind or "effective", watch[name][0], names[rows], names[keys],
            attends_to_source(part), rows == "written", part.pattern_leaves_out,
        )  # fmt: skip
    return patterns


@dataclass(frozen=True)
class HeadScore(Result):
    """What one head does, in a few numbers. Those of order are None where the keys are another sequence's."""

    name: str
    head: int
    entropy: float  # in bits, the mean over queries
    distance: float | None = None  # Σ_j p_ij |i − j|, the mean over queries
    previous: float | None = None  # mean p(i, i−1)
    first: float | None = None  # mean p(i, 0), i > 0: where heads look that look nowhere
    induction: float | None = None  # mean p(i, j), j what followed the last token like i (Olsson et al. 2022)
    diagonal: float | None = None  # mean p(i, i)
    special: float | None = None  # the mean share of tokens that stand for no text: [CLS], </s> …


def shares(pattern: Tensor, kind: str | None = "effective") -> Tensor:
    """|p| as shares of each row. A softmax is one already: with a sink, its rows sum to less than 1."""
    size = pattern.abs().double()
    return size if kind == "softmax" else size / size.sum(-1, keepdim=True).clamp(min=1e-30)


def head_scores(
    model: Model, text: Text, target: Text | None = None, *, induction: int = 16, seed: int = 0
) -> list[HeadScore]:
    """Scores of every head on `text`. A signed pattern is scored by the sizes of its entries.

    Induction is measured on random tokens written twice, `induction` of them; 0 leaves it out,
    and so does a model that reads no tokens.
    """
    check_integer("induction", induction, minimum=0)
    seen = attention(model, text, target)
    repeated = {}
    if induction and isinstance(model, LM) and model.processor is None:
        twice = repeated_tokens(model, 1, induction, seed)[0]
        length = twice.ids.shape[1] // 2
        # The share that each token of the second half gives to the one after its twin in the first.
        repeated = {
            name: shares(p.values, p.kind).diagonal(1 - length, -2, -1)[:, 1:].mean(-1)
            for name, p in attention(model, twice).patterns.items()
        }
    ids, special = {"tokens": seen.input.ids, "target": seen.input.target}, special_ids(model)
    out: list[HeadScore] = []
    for name, pattern in seen.patterns.items():
        path = name.removesuffix(".pattern")
        side = key_side(path, part_at(model, path), has_target=seen.input.target is not None)
        keys = cast(Tensor, ids[side])
        listed = keys[0].tolist() if keys.dim() == 2 else pattern.keys  # of an image the names of patches
        marks = torch.tensor([token in special for token in listed])
        scores = pattern_scores(
            name, pattern.values, same_tokens=not pattern.cross, marks=marks, kind=pattern.kind
        )
        more = repeated.get(name)
        out += [
            score if more is None else replace(score, induction=float(more[score.head])) for score in scores
        ]
    return out


def pattern_scores(
    name: str, pattern: Tensor, *, same_tokens: bool, marks: Tensor | None = None, kind: str = "effective"
) -> list[HeadScore]:
    """Scores of the heads of one pattern (H, T, S) from its weights alone.

    `same_tokens` says that rows and columns are the same tokens in one order, `marks` which keys are special.
    The entropy is that of the tokens looked at, without a sink.
    """
    p = shares(pattern, kind).cpu()
    T, S = p.shape[-2:]
    entropy = torch.special.entr(shares(p)).sum(-1).mean(-1) / math.log(2)
    measures: dict[str, Tensor] = {"entropy": entropy}
    if same_tokens:
        measures["distance"] = (p * (torch.arange(T)[:, None] - torch.arange(S)).abs()).sum(-1).mean(-1)
        measures["diagonal"] = p.diagonal(0, -2, -1).mean(-1)
    if same_tokens and S > 1:
        measures |= {"previous": p.diagonal(-1, -2, -1).mean(-1), "first": p[:, 1:, 0].mean(-1)}
    if marks is not None:
        measures["special"] = p[..., marks].sum(-1).mean(-1)
    values = {score: tensor.tolist() for score, tensor in measures.items()}
    return [HeadScore(name, h, **{score: row[h] for score, row in values.items()}) for h in range(len(p))]


def repeated_tokens(model: LM, count: int, length: int, seed: int = 0) -> list[Input]:
    """Return rows of `length` random tokens written twice."""
    length = min(length, (model.embed.context or 2 * length) // 2)
    draw = torch.Generator().manual_seed(seed)
    special = special_ids(model)
    usual = torch.tensor([i for i in range(model.embed.vocab) if i not in special])
    half = usual[torch.randint(len(usual), (count, length), generator=draw)]
    rows = torch.cat((half, half), 1).to(model.device)
    return [Input(row[None], names_of(model, row)) for row in rows]


def pool_pattern(pattern: Tensor, size: int) -> Tensor:
    """(H, T, S) → (H, ≤ size, ≤ size): the largest entry of each tile; of signed ones the largest by size."""
    values = pattern.detach().float()
    T, S = values.shape[-2:]
    if size >= max(T, S):
        return values
    shape = (min(T, size), min(S, size))
    high = F.adaptive_max_pool2d(values, shape)
    if not bool((values < 0).any()):
        return high
    low = -F.adaptive_max_pool2d(-values, shape)
    return torch.where(high >= -low, high, low)


def value_effects(model: Model, path: str, pattern: Tensor, v: Tensor) -> Tensor:
    """(H, T, S): ‖a_ij v_j W_O‖, the size of what key j adds to query i through a head of the part at `path`

    (Kobayashi et al. 2020, eq. 5.) A weight says how much is taken, this how much there was to take.
    `pattern` is (H, T, S), `v` are the values (H or fewer, S, K).
    """
    pattern, v = pattern.float(), v.float()
    if v.shape[0] != pattern.shape[0]:  # several query heads share one value head
        v = v.repeat_interleave(pattern.shape[0] // v.shape[0], 0)
    out = part_at(model, path)._modules.get("o")
    if isinstance(out, nn.Linear) and out.weight.shape[1] == v.shape[0] * v.shape[2]:
        matrix = out.weight.detach().float().unflatten(1, (v.shape[0], v.shape[2]))  # (D, H, K)
        v = torch.einsum("hsk,dhk->hsd", v, matrix)
    return pattern.abs() * v.norm(dim=-1)[:, None, :]


def divides_by_root(part: nn.Module, size: int) -> bool:
    """Return whether a part's weights are softmax(q kᵀ / √d_k + bias) for queries of this size.

    Some divide by another number or by none, cap their scores, or have a sink besides the keys.
    """
    scale = getattr(part, "scale", None)
    if isinstance(part, SinkAttention) or (isinstance(part, Attention) and part.softcap is not None):
        return False
    return isinstance(scale, float) and math.isclose(scale, size**-0.5, rel_tol=1e-6)


def unscaled_pattern(
    model: Model, path: str, scores: Tensor, pattern: Tensor, q: Tensor, k: Tensor
) -> Tensor:
    """(H, T, S): softmax(q kᵀ + bias), the pattern of the part at `path` without its division by √d_k

    (Vaswani et al. 2017 §3.2.1.) `scores` and `pattern` are what it computed with the division, `q` and `k`
    its queries (H, T, K) and keys (H or fewer, S, K). What a mask hides stays hidden.
    """
    part = part_at(model, path)
    if not divides_by_root(part, q.shape[-1]):
        raise InputError(
            f"{path} does not only divide its scores by √d_k", hint="choose a model with plain attention"
        )
    k = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    products = torch.einsum("htk,hsk->hts", q.float(), k.float())
    bias = scores.float() - q.shape[-1] ** -0.5 * products
    return masked_softmax(products + bias, pattern != 0)


def rollout(model: Model, text: Text, target: Text | None = None, *, side: str = "") -> Tensor:
    """A_L … A_1 with A = ½ mean_h pattern + ½ I: how far each input token reaches each output, (T, T)

    (Abnar and Zuidema 2020, eq. 1.) `side` is a stack: encoder, decoder, blocks; the last by
    default. It follows attention alone: what values, matrices and feed-forward layers do is not in it.
    """
    layers = mixed_layers(model, text, side, target)
    out = torch.eye(layers[0].shape[-1], dtype=torch.float64, device=layers[0].device)
    for layer in layers:
        out = layer @ out
    return out


def mixed_layers(model: Model, text: Text, side: str = "", target: Text | None = None) -> list[Tensor]:
    """Return ½ mean_h pattern + ½ I of every layer of a stack, rows summing to 1, in float64."""
    seen = attention(model, text, target)
    stacks = list(dict.fromkeys(name.split(".")[0] for name in seen.patterns))
    if not stacks:
        raise InputError(seen.note)
    side = side or stacks[-1]
    layers = [p for p in seen.patterns.values() if p.name.startswith(f"{side}.") and not p.cross]
    if not layers:
        raise InputError(f"{side!r} has no attention over itself", hint=f"choose among {', '.join(stacks)}")
    if any(p.kind != "softmax" for p in layers):
        raise InputError("this needs rows that sum to 1", hint="this model's patterns are signed")
    eye = torch.eye(layers[0].values.shape[-1], dtype=torch.float64, device=layers[0].values.device)
    mixed = [layer.values.double().mean(0) / 2 + eye / 2 for layer in layers]
    return [layer / layer.sum(-1, keepdim=True) for layer in mixed]


# Attention flow: each weight is the capacity of a pipe between two layers, and the maximum flow from a token
# to a position is the most that can reach it. Unlike a product of weights, the narrowest place bounds it.


def attention_flow(
    model: Model, text: Text, target: Text | None = None, *, side: str = "", position: int | str | None = -1
) -> Tensor:
    """Return the most that can flow from each input token to `position` of the last layer, (T,)

    (Abnar and Zuidema 2020 §3.) Weights, ½ mean_h pattern + ½ I, are capacities of pipes between layers. With
    position=None of every position, (T, T). `rollout` multiplies where this finds bottlenecks. As there,
    `side` is a stack, and what values and other parts do is not in it.
    """
    # torch installs networkx, whose import takes a while.
    from networkx import DiGraph, maximum_flow_value  # type: ignore[import-untyped]
    from networkx.algorithms.flow import build_residual_network, preflow_push  # type: ignore[import-untyped]

    given = reading(model, text, target)
    layers = mixed_layers(model, given, side)
    count, size = len(layers), layers[0].shape[-1]
    names = given.names if len(given.names) == size else given.tokens
    network = DiGraph()
    for depth, layer in enumerate(layers, 1):
        for t, s in (layer > 0).nonzero().tolist():
            network.add_edge((depth, t), (depth - 1, s), capacity=float(layer[t, s]))
    residual = build_residual_network(network, "capacity")
    tops = range(size) if position is None else [position_of(names, position)]
    out = torch.zeros(len(tops), size, dtype=torch.float64)
    pairs = itertools.product(range(len(tops)), range(size))
    for i, s in with_progress(pairs, "flows", out.numel()):
        ends, push = ((count, tops[i]), (0, s)), preflow_push
        out[i, s] = maximum_flow_value(network, *ends, flow_func=push, residual=residual)
    return out if position is None else out[0]
