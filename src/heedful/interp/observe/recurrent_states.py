"""What a model carries from token to token, and how long its vectors are on their way up.

A recurrent network or a state space has to put all it remembers into a state of fixed size. The norm of the
state shows how full it is, and gates near 0 or 1 show where it forgets or keeps. Attention keeps the keys and
values of every token instead, which costs memory that grows with the text (`cache_size`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.interp.inputs import Result, Text, reading
from heedful.interp.observe.mixing import attention_groups, parts_of, state_note
from heedful.interp.observe.prediction import is_causal
from heedful.models.base import Model
from heedful.nn.recurrent import Recurrence
from heedful.nn.state_space.delta import GatedDeltaNet
from heedful.nn.state_space.ssd import Mamba2
from heedful.nn.state_space.ssm import S4, Mamba
from heedful.nn.watch import LAYER_OUTPUT


@dataclass(frozen=True)
class RecurrentPart(Result):
    """A part that shows a state which it carries along: a recurrent cell or a state space.

    `words` are the values it shows, `gates` and `states` those of them that are one; `side` is whose tokens
    it reads (source, target, or tokens), `hidden` how many numbers its state has.
    """

    path: str
    cell: str
    gates: list[str]
    states: list[str]
    words: list[str]
    hidden: int
    side: str
    reverse: bool


def recurrent_parts(model: Model) -> list[RecurrentPart]:
    """Return every part that shows a state, in the order they run."""
    out = []
    for path, part in parts_of(model):
        if isinstance(part, Recurrence):
            words, size = list(part.shown), part.hidden
        elif isinstance(part, Mamba):
            words, size = ["delta", "h"], part.A_log.numel()
        elif isinstance(part, Mamba2):
            words, size = ["delta", "h"], part.heads * part.head_dim * part.state
        elif isinstance(part, GatedDeltaNet):
            words = ["beta", "log_decay", "h"]
            size = part.heads * (part.k.out_features // part.key_heads) * (part.v.out_features // part.heads)
        elif isinstance(part, S4):
            words, size = ["h"], 2 * part.A_log.numel()
        else:
            continue
        gates = [word for word in words if word not in ("h", "c", "delta", "log_decay")]
        states = [word for word in words if word in ("h", "c")]
        side = {"encoder": "source", "decoder": "target"}.get(path.partition(".")[0], "tokens")
        reverse = isinstance(part, Recurrence) and part.reverse
        out.append(RecurrentPart(path, type(part).__name__, gates, states, words, size, side, reverse))
    return out


@torch.no_grad()
def states(model: Model, text: Text, target: Text | None = None) -> dict[str, Any]:
    """Run a model and summarise its states, norms, neurons and cache: see `summarise_states`."""
    watch = reading(model, text, target).record(model, "*")
    return summarise_states(
        model, {name: tuple(watch[name][0].shape) for name in watch}, lambda name: watch[name][0]
    )


def summarise_states(
    model: Model, shapes: Mapping[str, tuple[int, ...]], value: Callable[[str], Tensor]
) -> dict[str, Any]:
    """Summarise a pass by the shapes of its values, and by those values that are asked for.

    `parts`: of each recurrent part the norms of states, the shares of gates near their ends, and means, over
    time. `norms`: the length of each vector at each layer. `neurons`: the layers that have some. `cache`: the
    bytes that are kept while writing.
    """
    parts = []
    for cell in recurrent_parts(model):
        names = {word: f"{cell.path}.{word}" for word in cell.words if f"{cell.path}.{word}" in shapes}
        if not names:
            continue
        # A state space has a few numbers for each channel, (T, F, N); a gate of heads is (H, T, 1).
        values = {
            word: (series.transpose(0, 1) if word in ("beta", "log_decay") else series).flatten(1)
            for word, series in ((word, value(name).float()) for word, name in names.items())
        }
        parts.append({
            "path": cell.path, "cell": cell.cell, "side": "target" if cell.side == "target" else "tokens",
            "reverse": cell.reverse, "words": list(names), "names": names,
            "norm": {w: values[w].norm(dim=-1).tolist() for w in cell.states if w in values},
            "saturation": {w: saturation(values[w]) for w in cell.gates if w in values},
            "mean": {w: values[w].mean(-1).tolist() for w in names},
        })  # fmt: skip
    norms: list[dict[str, Any]] = []
    for name in (n for n in shapes if LAYER_OUTPUT.search(n) and len(shapes[n]) == 2):
        lengths = value(name).float().norm(dim=-1).tolist()
        if not norms or lengths != norms[-1]["values"]:  # a stack may end with its last layer's output
            norms.append({"name": name, "values": lengths})
    hidden = [name for name, shape in shapes.items() if name.endswith(".hidden") and len(shape) == 2]
    neurons = [{"name": name, "shape": list(shapes[name])} for name in hidden]
    note = "" if parts else state_note(model)
    cache = cache_size(model, shapes)
    return {"parts": parts, "norms": norms, "neurons": neurons, "cache": cache, "note": note}


def saturation(gate: Tensor) -> dict[str, float]:
    """Return the shares of values near their ends; a tanh is near both of its."""
    signed = bool((gate < 0).any())
    high = (gate.abs() > 0.9) if signed else (gate > 0.9)
    low = 0.0 if signed else float((gate < 0.1).float().mean())
    return {"low": low, "high": float(high.float().mean())}


def cache_size(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int] | None:
    """Return how many bytes of keys and values are kept while writing, in all and for each further token.

    An encoder writes nothing; a recurrence and what attends without a softmax keep a state of one size: None.
    """
    if not is_causal(model):
        return None
    size = lambda n: 4 * math.prod(shapes[n])
    each = whole = 0
    for group in (g for g in attention_groups(model) if g.kind == "softmax" and g.stack != "encoder"):
        cached = [n for layer in group.layers for n in (f"{layer}.k", f"{layer}.v") if n in shapes]
        whole += sum(map(size, cached))
        each += 0 if group.cross else sum(size(n) // shapes[n][-2] for n in cached)
    return {"bytes_per_token": each, "bytes": whole} if each else None


def top_neurons(hidden: Tensor, count: int = 10) -> list[dict[str, Any]]:
    """Return the neurons of a feed-forward layer (T, F) that fire most, and the tokens they fire for."""
    best = hidden.amax(0).topk(min(max(1, count), hidden.shape[1]))
    out = []
    for index, high in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        order = hidden[:, index].topk(min(5, len(hidden)))
        pairs = zip(order.indices.tolist(), order.values.tolist(), strict=True)
        out.append({"index": index, "max": high, "tokens": [list(pair) for pair in pairs]})
    return out
