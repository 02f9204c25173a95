"""The arithmetic of a model on a text: the model's own operands, worked in float64, checked against it."""

from __future__ import annotations

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
from heedful.classroom.arithmetic.subject import (
    Array,
    Subject,
    array,
    check_lines,
    distinct_labels,
    find_part,
    parameters,
)
from heedful.classroom.arithmetic.worked import Derivation, Sheet, op
from heedful.core.errors import InputError
from heedful.interp.inputs import Input, Text, names_of, part_at, reading
from heedful.models.base import Model
from heedful.nn.attention.additive import Additive, Concat
from heedful.nn.attention.attentive import AttentiveUnit, Decoding, InputFeeding
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
    return head_row(find_part(subject, Attention, CrossAttention))


def alignment(subject: Subject) -> Derivation:
    """One step of a recurrent decoder: energies, alignment, context."""
    s = find_part(subject, Decoding)
    part = cast(Decoding, part_at(s.model, s.path))
    keys, values = array(s.value("k")[0]), array(s.value("v")[0])
    names = distinct_labels(s.given.tokens)
    if isinstance(part, AttentiveUnit) and isinstance(part.score, Additive):
        state = array(s.value("output")[s.at, : part.unit.hidden])
        weights = [parameters(m)[0] for m in (part.score.q, part.score.k, part.score.v)]
        worked = topics.additive_step(state, values, weights[0], weights[1], weights[2][0], tokens=names)
    elif isinstance(part, InputFeeding) and not isinstance(part.score, Additive | Concat):
        top = len(part.layers) - 1
        worked = topics.scored_step(array(s.value(f"layers.{top}.h")[s.at]), keys, values, names)
    else:
        raise InputError(f"the steps of a {type(part.score).__name__} score here are not written out yet")
    theirs = {"weights of the state": s.value("pattern")[0, s.at], "context": s.value("heads")[0, s.at]}
    return check_lines(worked, theirs, title=f"{s.path}: {worked.title}, writing “{s.names[s.at]}”")


def norm_of(module: nn.Module) -> dict[str, Any]:
    """Return the values of a norm that `topics.norm_lines` needs."""
    if isinstance(module, nn.LayerNorm | RMSNorm):
        gamma, beta = (array(t) if isinstance(t, Tensor) else None for t in gain_and_shift(module))
        return {"gamma": gamma, "beta": beta, "eps": module.eps, "rms": isinstance(module, RMSNorm)}
    raise InputError(f"a {type(module).__name__} is not a norm that can be written out")


def norm(subject: Subject) -> Derivation:
    """The first norm a block takes: of its input, or of its input plus the sub-layer."""
    s = find_part(subject, Block, ParallelBlock)
    block = cast(Any, part_at(s.model, s.path))
    x = s.value("input")[s.at]
    if isinstance(block, ParallelBlock) or block.order == "pre":
        module = block.get_submodule(block.norm_name(block.names[0]))
        worked = topics.add_norm(array(x), **norm_of(module), title=f"{s.path}: norm of “{s.names[s.at]}”")
    else:
        sheet = Sheet()
        added = _part(sheet, s, block.names[0], array(x))
        module = block.get_submodule(f"{block.names[0]}_norm")
        worked = topics.add_norm(
            array(x), added, **norm_of(module), title=f"{s.path}: add & norm of “{s.names[s.at]}”"
        )
    with torch.no_grad():
        inside = worked["x"] if "added" not in [i.label for i in worked.walk()] else worked["added"]
        theirs = module(torch.from_numpy(inside).to(x))
    return check_lines(worked, {cast(Any, worked.lines[-1]).label: theirs})


def block(subject: Subject) -> Derivation:
    """A whole block, from its input to its output, for one token."""
    s = find_part(subject, Block, ParallelBlock)
    this, sheet = cast(Any, part_at(s.model, s.path)), Sheet()
    if type(this) not in (Block, ParallelBlock):
        raise InputError(f"{s.path} is a {type(this).__name__}, which is joined in its own way")
    x: Array = sheet.add_given("input", "x", array(s.value("input")[s.at]))
    if isinstance(this, ParallelBlock):
        normed = {name: _norm_section(sheet, name, x, this.get_submodule(name)) for name in this.norm_names}
        outs = [_part(sheet, s, name, normed[this.norm_name(name)]) for name in this.names]
        read = "norm_{}(x)" if this.separate else "n"
        terms = " + ".join(f"{name}({read.format(name)})" for name in this.names)
        x = sheet.line("output", f"x + {terms}", op("+", x, *outs))
    else:
        for name in this.names:
            module = this.get_submodule(f"{name}_norm")
            if this.order == "pre":
                out = _part(sheet, s, name, _norm_section(sheet, f"{name}_norm", x, module))
                x = sheet.line(f"after {name}", f"x + {name}(norm(x))", op("+", x, out))
            else:
                added = sheet.line(f"{name} added", f"x + {name}(x)", op("+", x, _part(sheet, s, name, x)))
                x = _norm_section(sheet, f"{name}_norm", added, module)
    sheet.compare("block", x, s.value("output")[s.at])
    order = "parallel" if isinstance(this, ParallelBlock) else f"{this.order}-norm"
    return sheet.finish(f"{s.path}, {order}: the whole block for “{s.names[s.at]}”")


def _norm_section(sheet: Sheet, name: str, x: Array, module: nn.Module) -> Array:
    inner = Sheet()
    out = topics.norm_lines(inner, x, **norm_of(module))
    sheet.section(inner.finish(name))
    return out


def _part(sheet: Sheet, s: Subject, name: str, x: Array) -> Array:
    """One part of a block, all its lines; x is what it reads at this position."""
    path = f"{s.path}.{name}"
    part, inner = part_at(s.model, path), Sheet()
    if isinstance(part, Attention | CrossAttention):
        heads = [s.within(path, h, s.at) for h in range(part.heads)]
        rows, name = [head_row(h) for h in heads], heads[0].names[s.at]
        for row in rows:
            inner.section(row)
        joined = inner.add_given(
            "heads side by side",
            '"concat of all heads"',
            np.concatenate([row[f"output of {name}"] for row in rows]),
        )
        out = topics.linear_line(inner, "o", 'W_O "heads"', joined, *parameters(part.o))
    elif isinstance(part, MLP | GatedMLP):
        out = _feed_forward(inner, part, x)
    else:
        raise InputError(
            f"{path} is a {type(part).__name__}", hint="only plain attention and MLPs are written out"
        )
    sheet.section(inner.finish(path))
    return out


def _feed_forward(sheet: Sheet, part: MLP | GatedMLP, x: Array) -> Array:
    act = ACT_NAMES.get(id(part.act))
    if act is None:
        raise InputError("this activation has no name", hint="it cannot be written out")
    up = topics.linear_line(sheet, "up", "W_up x", x, *parameters(part.up))
    if isinstance(part, GatedMLP):
        gate = topics.linear_line(sheet, "gate", "W_gate x", x, *parameters(part.gate))
        hidden = sheet.line("hidden", f'{act.replace("_", " ")}("gate") ⊙ "up"', op("⊙", op(act, gate), up))
    else:
        hidden = sheet.line("hidden", f'{act.replace("_", " ")}("up")', op(act, up))
    return topics.linear_line(sheet, "down", 'W_down "hidden"', hidden, *parameters(part.down))


def positions(subject: Subject) -> Derivation:
    """Work out what tells the model where the token stands: a sinusoid, a learned vector, a rotation of q."""
    model = subject.model
    side = "target_embed" if subject.given.target is not None else "embed"
    table = model.tables["target" if subject.given.target is not None else "tokens"]
    place = table.position
    if isinstance(place, Sinusoidal | Learned):
        name, at, vectors = subject.given.names, subject.at, subject.watch[f"{side}.position"][0]
        token = array(subject.watch[f"{side}.token"][0, at]) * table.scale
        if isinstance(place, Sinusoidal):
            worked = topics.sinusoid(
                [at], place.dim, base=place.base, layout=place.layout, add=token, tokens=[name[at]]
            )
            return check_lines(worked, {f"PE({at})": vectors[at]})
        sheet = Sheet()
        row = sheet.add_given(f"row {at} of the table", "p_t", array(vectors[at]))
        both = sheet.line(f"{name[at]} + p", "x + p", op("+", token, row))
        if table.types is None and table.norm is None and table.project is None:
            sheet.compare("sum", both, subject.watch[f"{side}.output"][0, at])
        return sheet.finish("a learned position")
    return rotation(find_part(subject, Attention))


def lstm(subject: Subject) -> Derivation:
    """One step of an LSTM: gates, candidate, cell, state."""
    s = find_part(subject, LSTM)
    part, at = cast(LSTM, part_at(s.model, s.path)), s.at
    before = at + 1 if part.reverse else at - 1
    started = 0 <= before < len(s.names)
    if not started and s.path.startswith("decoder"):
        raise InputError("the first step starts where the encoder ended", hint="choose a later token")
    zero = np.zeros(part.hidden)
    h, c = (array(s.value(word)[before]) if started else zero for word in "hc")
    (W, b), (U, d) = parameters(part.x), parameters(part.h)
    bias = None if b is None or d is None else b + d
    title = f"{s.path}: one LSTM step, reading “{s.names[at]}”"
    worked = topics.lstm_step(array(s.value("input")[at]), h, c, W, U, bias, title)
    return check_lines(worked, {"new state": s.value("h")[at], "new cell": s.value("c")[at]})


def prediction(subject: Subject, temperature: float = 1.0, count: int = 8) -> Derivation:
    """The softmax over the most likely words after the token, at a temperature."""
    logits = subject.watch["head.logits"]
    if logits.dim() != 3:
        raise InputError("this head gives no logits per token")
    best = logits[0, subject.at].topk(min(count, logits.shape[-1]))
    names = distinct_labels(names_of(subject.model, best.indices))
    worked = topics.softmax(array(best.values), temperature=temperature, tokens=names)
    after = subject.given.names[subject.at]
    note = f"Over the {len(names)} most likely of {logits.shape[-1]:,} tokens after “{after}”."
    return check_lines(
        worked, {"weights of all": (best.values.double() / temperature).softmax(-1)}, note=note
    )


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


def explain_model(
    model: Model, text: Text | Input, target: Text | None = None, *, topic: str = "attention", part: str = "",
    head: int = 0, token: int | str = -1, **more: Any,
) -> Derivation:  # fmt: skip
    """The arithmetic of `model` on `text`."""
    if topic not in TOPICS:
        raise InputError(f"topic={topic!r} is unknown for a model", hint=f"choose {', '.join(TOPICS)}")
    return TOPICS[topic](Subject(model, reading(model, text, target), part, head, token), **more)
