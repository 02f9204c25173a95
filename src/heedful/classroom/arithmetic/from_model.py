"""The arithmetic of a model on a text: the model's own operands, worked in float64, checked against it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from heedful.classroom.arithmetic import topics
from heedful.classroom.arithmetic.from_model_attention import (
    attention_gradient,
    cross_entropy_gradient,
    head_row,
    rotation,
)
from heedful.classroom.arithmetic.subject import Subject, check_lines, distinct_labels, numbers, parameters
from heedful.classroom.arithmetic.worked import Derivation, Expression, Line, Numbers, op
from heedful.core.checks import check_choice
from heedful.core.errors import HeedfulError, InputError
from heedful.interp.inputs import Text, names_of, part_at, probe_input, reading
from heedful.models.base import Model
from heedful.nn.attention.attentive import Additive, AttentiveUnit, Concat, Decoding, InputFeeding
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.ffn import ACTIVATIONS, MLP, GatedMLP
from heedful.nn.norm import RMSNorm, gain_and_shift
from heedful.nn.position import Learned, Sinusoidal
from heedful.nn.recurrent import LSTM

ACT_NAMES = {id(fn): name for name, fn in ACTIVATIONS.items()} | {
    id(ACTIVATIONS["gelu_new"]): "gelu_tanh", id(ACTIVATIONS["silu"]): "silu",
}  # fmt: skip


def attention(subject: Subject) -> Derivation:
    """One head's row: scores, scaling, bias, mask, softmax, weighted sum."""
    if not subject.path and any(m for m in subject.model.modules() if isinstance(m, Decoding)):
        return alignment(subject)
    return head_row(subject.at_part(Attention, CrossAttention))


def alignment(subject: Subject) -> Derivation:
    """One step of a recurrent decoder: energies, alignment, context."""
    s = subject.at_part(Decoding)
    part = cast(Decoding, part_at(s.model, s.path))
    keys, values = numbers(s.value("k")[0]), numbers(s.value("v")[0])
    names = distinct_labels(s.given.tokens)
    if isinstance(part, AttentiveUnit) and isinstance(part.score, Additive):
        state = numbers(s.value("output")[s.at, : part.unit.hidden])
        W, U, v = (parameters(m)[0] for m in (part.score.q, part.score.k, part.score.v))
        derivation = topics.additive_step(state, values, W, U, v[0], tokens=names)
    elif isinstance(part, InputFeeding) and not isinstance(part.score, Additive | Concat):
        state = numbers(s.value(f"layers.{len(part.layers) - 1}.h")[s.at])
        derivation = topics.scored_step(state, keys, values, names)
    else:
        raise InputError(f"the steps of a {type(part.score).__name__} score here are not written out yet")
    theirs = {"weights of the state": s.value("pattern")[0, s.at], "context": s.value("heads")[0, s.at]}
    return check_lines(derivation, theirs, title=f"{s.path}: {derivation.title}, writing “{s.names[s.at]}”")


def norm_of(module: nn.Module) -> dict[str, Any]:
    """Return the values of a norm that `topics.norm_lines` needs."""
    if isinstance(module, nn.LayerNorm | RMSNorm):
        gamma, beta = (numbers(t) if isinstance(t, Tensor) else None for t in gain_and_shift(module))
        return {"gamma": gamma, "beta": beta, "eps": module.eps, "rms": isinstance(module, RMSNorm)}
    raise InputError(f"a {type(module).__name__} is not a norm that can be worked out")


def norm(subject: Subject) -> Derivation:
    """The first norm a block takes: of its input, or of its input plus the sub-layer."""
    s = subject.at_part(Block, ParallelBlock)
    block = cast(Any, part_at(s.model, s.path))
    x, first = s.value("input")[s.at], block.names[0]
    if isinstance(block, ParallelBlock) or block.order == "pre":
        name, added, inside = block.norm_name(first), None, "x"
    else:
        name, added, inside = f"{first}_norm", _part(Derivation(), s, first, numbers(x)), "added"
    module = block.get_submodule(name)
    derivation = topics.add_norm(numbers(x), added and Numbers(added.value), **norm_of(module))
    with torch.no_grad():
        theirs = module(torch.from_numpy(derivation[inside]).to(x))
    last = cast(Line, derivation.lines[-1])
    title = f"{s.path}: {'add & ' if added else ''}norm of “{s.names[s.at]}”"
    return check_lines(derivation, {last.label: theirs}, title)


def block(subject: Subject) -> Derivation:
    """A whole block, from its input to its output, for one token."""
    s = subject.at_part(Block, ParallelBlock)
    this = cast(Any, part_at(s.model, s.path))
    if type(this) not in (Block, ParallelBlock):
        raise InputError(f"{s.path} is a {type(this).__name__}, which is joined in its own way")
    order = "parallel" if isinstance(this, ParallelBlock) else f"{this.order}-norm"
    derivation = Derivation(f"{s.path}, {order}: the whole block for “{s.names[s.at]}”")
    x = derivation.given("input", "x", numbers(s.value("input")[s.at]))
    if isinstance(this, ParallelBlock):
        normed = {name: _norm_part(derivation, name, x, this) for name in this.norm_names}
        outs = [_part(derivation, s, name, normed[this.norm_name(name)]) for name in this.names]
        read = "norm_{}(x)" if this.separate else "n"
        terms = " + ".join(f"{name}({read.format(name)})" for name in this.names)
        x = derivation.line("output", f"x + {terms}", op("+", x, *outs))
    else:
        for name in this.names:
            if this.order == "pre":
                out = _part(derivation, s, name, _norm_part(derivation, f"{name}_norm", x, this))
                x = derivation.line(f"after {name}", f"x + {name}(norm(x))", x + out)
            else:
                added = derivation.line(f"{name} added", f"x + {name}(x)", x + _part(derivation, s, name, x))
                x = _norm_part(derivation, f"{name}_norm", added, this)
    derivation.compare("block", x, s.value("output")[s.at])
    return derivation


def _norm_part(derivation: Derivation, name: str, x: Line, block: nn.Module) -> Line:
    with derivation.part(name) as part:
        return topics.norm_lines(part, x, **norm_of(block.get_submodule(name)))


def _part(derivation: Derivation, s: Subject, name: str, x: Expression) -> Line:
    """One part of a block, all its lines; x is what it reads at this position."""
    path = f"{s.path}.{name}"
    module = part_at(s.model, path)
    with derivation.part(path) as part:
        if isinstance(module, MLP | GatedMLP):
            return _feed_forward(part, module, x)
        if not isinstance(module, Attention | CrossAttention):
            raise InputError(
                f"{path} is a {type(module).__name__}", hint="only plain attention and MLPs can be worked out"
            )
        heads = [s.within(path, h, s.at) for h in range(module.heads)]
        rows, label = [head_row(h) for h in heads], f"output of {heads[0].names[s.at]}"
        for row in rows:
            part.add(row)
        outputs = np.concatenate([row[label] for row in rows])
        joined = part.given("heads side by side", '"concat of all heads"', outputs)
        return topics.linear_line(part, "o", 'W_O "heads"', joined, *parameters(module.o))


def _feed_forward(derivation: Derivation, part: MLP | GatedMLP, x: Expression) -> Line:
    act = ACT_NAMES.get(id(part.act))
    if act is None:
        raise InputError("this activation has no name", hint="it cannot be worked out")
    up = topics.linear_line(derivation, "up", "W_up x", x, *parameters(part.up))
    if isinstance(part, GatedMLP):
        gate = topics.linear_line(derivation, "gate", "W_gate x", x, *parameters(part.gate))
        hidden = derivation.line("hidden", f'{act.replace("_", " ")}("gate") ⊙ "up"', op(act, gate) * up)
    else:
        hidden = derivation.line("hidden", f'{act.replace("_", " ")}("up")', op(act, up))
    return topics.linear_line(derivation, "down", 'W_down "hidden"', hidden, *parameters(part.down))


def positions(subject: Subject) -> Derivation:
    """Work out what tells the model where the token stands: a sinusoid, a learned vector, a rotation of q."""
    side, kind = ("embed", "tokens") if subject.given.target is None else ("target_embed", "target")
    table = subject.model.tables[kind]
    place = table.position
    if not isinstance(place, Sinusoidal | Learned):
        return rotation(subject.at_part(Attention))
    name, at, vectors = subject.given.names, subject.at, subject.watch[f"{side}.position"][0]
    token = Numbers(numbers(subject.watch[f"{side}.token"][0, at]).value * table.scale)
    if isinstance(place, Sinusoidal):
        derivation = topics.sinusoid(
            [at + place.offset], place.dim, base=place.base, layout=place.layout, add=token, tokens=[name[at]]
        )
        return check_lines(derivation, {f"PE({at + place.offset})": vectors[at]})
    derivation = Derivation("a learned position")
    row = derivation.given(f"row {at + place.offset} of the table", "p_t", numbers(vectors[at]))
    both = derivation.line(f"{name[at]} + p", "x + p", token + row)
    if table.types is None and table.norm is None and table.project is None:
        derivation.compare("sum", both, subject.watch[f"{side}.output"][0, at])
    return derivation


def lstm(subject: Subject) -> Derivation:
    """One step of an LSTM: gates, candidate, cell, state."""
    s = subject.at_part(LSTM)
    part, at = cast(LSTM, part_at(s.model, s.path)), s.at
    before = at + 1 if part.reverse else at - 1
    started = 0 <= before < len(s.names)
    if not started and s.path.startswith("decoder"):
        raise InputError(
            "the first step starts from the last state of the encoder", hint="choose a later token"
        )
    zero = torch.zeros(part.hidden)
    h, c = (numbers(s.value(word)[before] if started else zero) for word in "hc")
    (W, b), (U, d) = parameters(part.x), parameters(part.h)
    bias = None if b is None or d is None else Numbers(b.value + d.value)
    derivation = topics.lstm_step(numbers(s.value("input")[at]), h, c, W, U, bias)
    theirs = {"new state": s.value("h")[at], "new cell": s.value("c")[at]}
    return check_lines(derivation, theirs, f"{s.path}: one LSTM step, reading “{s.names[at]}”")


def prediction(subject: Subject, temperature: float = 1.0, count: int = 8) -> Derivation:
    """The softmax over the most likely words after the token, at a temperature."""
    logits = subject.watch["head.logits"]
    if logits.dim() != 3:
        raise InputError("this head gives no logits per token")
    best = logits[0, subject.at].topk(min(count, logits.shape[-1]))
    names = distinct_labels(names_of(subject.model, best.indices))
    derivation = topics.softmax(numbers(best.values), temperature=temperature, tokens=names)
    after = subject.given.names[subject.at]
    note = f"Over the {len(names)} most likely of {logits.shape[-1]:,} tokens after “{after}”."
    theirs = (best.values.double() / temperature).softmax(-1)
    return check_lines(derivation, {"weights of all": theirs}, note=note)


TOPICS: dict[str, Callable[..., Derivation]] = {
    "attention": attention,
    "block": block,
    "positions": positions,
    "norm": norm,
    "lstm": lstm,
    "alignment": alignment,
    "softmax": prediction,
    "cross-entropy-gradient": cross_entropy_gradient,
    "attention-gradient": attention_gradient,
}


def explainable_topics(model: Model) -> list[str]:
    """Return what `explain_model` can work out of a model, tried once on a few tokens."""
    subject, topics = Subject(model, probe_input(model), "", 0, -1), []
    for topic, work in TOPICS.items():
        with contextlib.suppress(HeedfulError, NotImplementedError):
            work(subject)
            topics.append(topic)
    return topics


def explain_model(
    model: Model, text: Text, target: Text | None = None, *, topic: str = "attention", part: str = "",
    head: int = 0, token: int | str = -1, **more: Any,
) -> Derivation:  # fmt: skip
    """The arithmetic of `model` on `text`."""
    return TOPICS[check_choice("topic", topic, TOPICS)](
        Subject(model, reading(model, text, target), part, head, token), **more
    )
