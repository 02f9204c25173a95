"""The arithmetic of one attention head of a model: x → q, k, v → scores → weights → weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.classroom.arithmetic import topics
from heedful.classroom.arithmetic.subject import (
    Array,
    Subject,
    array,
    check_lines,
    distinct_labels,
    find_part,
    parameters,
)
from heedful.classroom.arithmetic.topics_backward import softmax_backward_lines
from heedful.classroom.arithmetic.worked import (
    AUTOGRAD,
    Derivation,
    Line,
    Operation,
    Quantity,
    Sheet,
    entry,
    op,
)
from heedful.core.errors import InputError
from heedful.interp.inputs import names_of, part_at, row_side, word_head, written_ids
from heedful.interp.intervene.ablation import KeptHeads
from heedful.models.base import LM, Seq2Seq
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.context import Watch

EXACT = (
    torch.float32,
    torch.float64,
)  # a model in fewer bits rounds q, k and v: they are taken as it has them


def head_row(s: Subject) -> Derivation:
    """The row of `pattern` and `heads` that belong to the token and the head asked for."""
    part = cast(Attention, part_at(s.model, s.path))
    if not 0 <= s.head < part.heads:
        raise InputError(f"{s.path} has heads 0 … {part.heads - 1}", hint=f"unknown head {s.head}")
    cross = isinstance(part, CrossAttention)
    keys = distinct_labels(s.given.tokens if cross else s.names)
    pattern, scores = s.value("pattern")[s.head, s.at], array(s.value("scores")[s.head, s.at])
    name, what = s.names[s.at], "attention while writing" if cross else "attention of"
    sheet = Sheet()
    q, K, V = project_qkv(sheet, s, part, keys)
    worked = topics.attention_row(
        q, K, V, query=name, keys=keys, scale=part.scale, softcap=None if cross else part.softcap,
        keep=visible_keys(array(pattern), scores),
        bias=None if cross else shared_bias(s, part), title=f"{s.path}, head {s.head}: {what} “{name}”",
        sheet=sheet,
    )  # fmt: skip
    output = s.value("heads")[s.head, s.at]
    return check_lines(worked, {f"weights of {name}": pattern, f"output of {name}": output})


def shared_bias(s: Subject, part: Attention) -> Array | None:
    """Return what the stack adds to the scores of this head and token, or None."""
    name = f"{s.path.partition('.')[0]}.bias"
    if name not in s.watch:
        return None
    head = part.kept[s.head] if isinstance(part, KeptHeads) else s.head
    bias = s.watch[name][0]
    return array(bias[head if len(bias) > 1 else 0, s.at])


def visible_keys(pattern: Array, scores: Array) -> Array:
    """Return which keys are not hidden: those with a weight, and those whose weight underflows."""
    seen = pattern > 0
    return seen | (scores < scores[seen].max() - 80.0) if seen.any() else seen


def vectors_read(s: Subject, part: Attention | CrossAttention) -> tuple[Tensor, Tensor, str] | None:
    """Return the inputs of queries and of keys and values (T, D each), and the name of the first.

    None where the model's block is none of ours, or where it shows no such value.
    """
    path, _, name = s.path.rpartition(".")
    block = part_at(s.model, path) if path else None
    if not isinstance(block, Block | ParallelBlock) or type(part) not in (
        Attention,
        CrossAttention,
        KeptHeads,
    ):
        return None
    if isinstance(part, Attention) and (part.q_norm is not None or part.clip is not None):
        return None  # q and k are not W x alone: they are shown as the model has them
    at = block.names.index(name)
    if isinstance(block, ParallelBlock) or block.order == "pre":
        where, description = f"{path}.{block.norm_name(name)}.output", "what the norm before it gives"
    else:
        where = f"{path}.after_{block.names[at - 1]}" if at else f"{path}.input"
        description = "what the part before it gives"
    memory = s.memory if isinstance(part, CrossAttention) else s.watch.values.get(where)
    if where not in s.watch or memory is None:
        return None
    return s.watch[where][0], memory[0], description


@dataclass(frozen=True)
class Projection:
    """One of q, k, v of one head: its rows of the matrix and of the bias."""

    letter: str
    weight: Quantity
    bias: Quantity | None

    def vector(self, sheet: Sheet, label: str, x: Array) -> Quantity:
        """W x + b as a line."""
        capital, lower = self.letter.upper(), self.letter
        product = op("·", self.weight, x)
        formula = f"{lower} = W_{capital} x" + ("" if self.bias is None else f" + b_{capital}")
        return sheet.line(label, formula, product if self.bias is None else op("+", product, self.bias))


def project_qkv(
    sheet: Sheet, s: Subject, part: Attention | CrossAttention, keys: list[str]
) -> tuple[Array, list[Array], list[Array]]:
    """Return query, keys and values, by the lines that make them of x; or as the model has them."""
    q, k, v = (s.value(word) for word in "qkv")
    group = s.head // (part.heads // k.shape[0])
    theirs = {"q": q[s.head, s.at], "k": k[group], "v": v[group]}
    read = vectors_read(s, part) if q.dtype in EXACT else None
    try:
        weights = {letter: parameters(getattr(part, letter)) for letter in "qkv"} if read else {}
    except InputError:  # an adapter next to the matrix: q, k and v are shown from where they are whole
        weights = {}
    if not weights or read is None:
        return array(theirs["q"]), list(array(theirs["k"])), list(array(theirs["v"]))
    inner, size = Sheet(), q.shape[-1]
    made = {}
    for letter, (weight, bias) in weights.items():
        rows = slice((at := s.head if letter == "q" else group) * size, (at + 1) * size)
        capital = letter.upper()
        matrix = inner.add_given(f"W_{capital}", f'W_{capital} "rows of this head"', weight[rows])
        made[letter] = Projection(
            letter,
            matrix,
            None if bias is None else inner.add_given(f"b_{capital}", f"b_{capital}", bias[rows]),
        )
    name, x = s.names[s.at], array(read[0][s.at])
    vector = inner.add_given(f"x of {name}", f'x "{read[2]}"', x)
    turn = None if isinstance(part, CrossAttention) else rotation_table(s, part)
    query = rotate_vector(inner, "q", name, made["q"].vector(inner, f"q of {name}", vector), turn, s.at)
    memory = array(read[1])
    K = [
        rotate_vector(inner, "k", key, made["k"].vector(inner, f"k of {key}", x), turn, t)
        for t, (key, x) in enumerate(zip(keys, memory, strict=True))
    ]
    V = [made["v"].vector(inner, f"v of {key}", x) for key, x in zip(keys, memory, strict=True)]
    inner.compare("query", query, theirs["q"])
    inner.compare("keys", np.stack(K), theirs["k"])
    inner.compare("values", np.stack(V), theirs["v"])
    sheet.section(inner.finish("where q, k and v come from"))
    return query, list(K), list(V)


def rotation_table(s: Subject, part: Attention) -> tuple[Array, Array] | None:
    """cos and sin (T, K/2) of the angles by which this part turns queries and keys, if it does."""
    if part.rotary is None:
        return None
    length = len(s.names)
    pos = torch.arange(length, device=s.model.device)[None]
    with torch.no_grad():
        cos, sin = part.rotary.table(pos, torch.tensor([[length]], device=s.model.device))
    return array(cos[0, 0]), array(sin[0, 0])


def rotate_vector(
    sheet: Sheet, letter: str, name: str, x: Quantity, table: tuple[Array, Array] | None, at: int
) -> Quantity:
    """R_t x: the pairs (a, b) of the two halves, each turned by its angle   (Su et al. 2021)"""
    if table is None:
        return x
    cos, sin = table[0][at], table[1][at]
    half = len(cos)
    a, b = op("slice", x, 0, half), op("slice", x, half, 2 * half)
    parts: list[Operation] = [
        op("-", op("⊙", a, cos), op("⊙", b, sin)),
        op("+", op("⊙", b, cos), op("⊙", a, sin)),
    ]
    if letter == "q":
        low = sheet.line(f"first half of q, turned by position {at}", "a ⊙ cos − b ⊙ sin", parts[0])
        high = sheet.line("second half", "b ⊙ cos + a ⊙ sin", parts[1])
        parts = [op("slice", low, 0, half), op("slice", high, 0, half)]
    if 2 * half < len(x):
        parts.append(op("slice", x, 2 * half, len(x)))
    return sheet.line(
        f"{letter} of {name}, turned by position {at}", f"R_{at} {letter}", op("concat", *parts)
    )


def rotation(s: Subject) -> Derivation:
    """The query of one head before and after its rotation."""
    part = cast(Attention, part_at(s.model, s.path))
    table = rotation_table(s, part)
    if table is None:
        raise InputError(f"{s.path} has no positions to write out")
    q = array(s.value("q_unrotated")[s.head, s.at])
    worked = topics.rotary(q, table[0][s.at], table[1][s.at], position=s.at, of=s.names[s.at])
    low, high = s.value("q")[s.head, s.at, : 2 * table[0].shape[1]].chunk(2)
    theirs = {"turned first half": low, "turned second half": high}
    return check_lines(worked, theirs, title=f"{s.path}, head {s.head}: {worked.title}")


# Gradients of a model's own loss on a text, worked number by number: of logits, and of an attention head.
#
# The loss is −ln p of one word: of a causal model the word that follows the token (the most likely one after
# the
# last), of others the token itself.


def target_word(s: Subject, at: int, logits: Tensor) -> int:
    """The id of the word whose loss is taken at a position."""
    word_head(s.model)  # an error where the model predicts no words
    follows = isinstance(s.model, Seq2Seq) or (isinstance(s.model, LM) and s.model.causal)
    word = written_ids(s.model, s.given, logits)[at] if follows else int(s.given.read[0, at])
    if word is None:
        raise InputError("this model predicts no word here", hint="choose another token")
    return word


def cross_entropy_gradient(s: Subject, count: int = 8) -> Derivation:
    """p = exp(z − ln Σ exp z), L = −ln p_y, dz = p − y, for the most likely words and the right one"""
    logits = s.watch["head.logits"]
    if logits.dim() != 3:
        raise InputError("this head gives no logits per token")
    at = s.at if s.path == "" else len(s.given.names) - 1
    right, z = target_word(s, at, logits), logits[0, at].detach().double()
    shown = z.topk(min(count, len(z))).indices.tolist()
    shown = shown if right in shown else [*shown[:-1], right]
    names = distinct_labels(names_of(s.model, torch.tensor(shown)))
    place, sheet = shown.index(right), Sheet(check_source=AUTOGRAD)
    scores = sheet.add_given(f"logits of {' '.join(names)}", "z", array(z[shown]))
    total = sheet.add_given("all words", f'ln Σ exp(z) "over {len(z):,} tokens"', float(z.logsumexp(0)))
    p = sheet.line("probabilities", "p = exp(z − ln Σ exp(z))", op("exp", op("-", scores, total)))
    y = sheet.add_given(f"the right word, {names[place]}", 'y "one-hot"', [float(i == right) for i in shown])
    loss = sheet.line("loss", "L = −ln p_y", op("-", 0.0, op("ln", entry(p, place))), "nats")
    sheet.line("the same in bits", "L / ln 2", op("/", loss, op("ln", 2.0)), "bits")
    dz = sheet.line("gradient of the logits", "dz = p − y", op("-", p, y))
    leaf = z.clone().requires_grad_()
    value = F.cross_entropy(leaf[None], torch.tensor([right], device=leaf.device))
    (theirs,) = torch.autograd.grad(value, leaf)
    sheet.compare("loss", loss, value)
    sheet.compare("gradient", dz, theirs[shown])
    title = f"the loss after “{s.given.names[at]}” and its gradient"
    return sheet.finish(title, f"{len(shown)} of {len(z):,} words are shown; the loss counts all.")


def gradients_of(s: Subject, at: int) -> dict[str, Tensor]:
    """The gradients of the loss at a position by q and by a head's weights and output, from autograd."""
    leaves: dict[str, Tensor] = {}

    def as_leaf(value: Tensor) -> Tensor:
        leaves["q"] = value.detach().requires_grad_()
        return leaves["q"]

    watch = Watch(f"{s.path}.pattern", f"{s.path}.heads", edit={f"{s.path}.q": as_leaf})
    with torch.enable_grad():
        logits = s.given.run(s.model, watch)
        right = target_word(s, at, logits)
        loss = F.cross_entropy(logits[0, at][None], torch.tensor([right], device=logits.device))
        values = [leaves["q"], watch[f"{s.path}.pattern"], watch[f"{s.path}.heads"]]
        gradients = torch.autograd.grad(loss, values)
    return dict(zip(("q", "pattern", "heads"), (value[0] for value in gradients), strict=True))


def attention_gradient(subject: Subject) -> Derivation:
    """dw = do Vᵀ, ds = w ⊙ (dw − w·dw), dq = Σ_j ds_j k_j × scale, for one query of one head"""
    s = find_part(subject, Attention, CrossAttention)
    part = cast(Attention, part_at(s.model, s.path))
    if isinstance(part, Attention) and part.softcap is not None:
        raise InputError(
            f"{s.path} caps its scores, whose gradient is not written out", hint="choose another model"
        )
    forward = head_row(s)  # also refuses a head that is not there
    on_target = s.given.target is None or row_side(s.path, part, has_target=True) != "tokens"
    theirs = gradients_of(s, s.at if on_target else len(s.given.names) - 1)
    keys = distinct_labels(s.given.tokens if isinstance(part, CrossAttention) else s.names)
    group = s.head // (part.heads // s.value("k").shape[0])
    K, V = array(s.value("k")[group]), array(s.value("v")[group])
    sheet, name = Sheet(list(forward.lines), check_source=AUTOGRAD), s.names[s.at]
    lines = {line.label: line for line in forward.lines if isinstance(line, Line)}
    w = sheet.reference(lines[f"weights of {name}"])
    above = array(theirs["heads"][s.head, s.at])
    do = sheet.add_given("from above", 'do "the gradient of the output, by autograd"', above)
    dots = [
        sheet.line(f"dw of {name}, {key}", "do·v", op("·", do, v)) for key, v in zip(keys, V, strict=True)
    ]
    dw = sheet.line(f"gradient of the weights of {name}", "dw = do Vᵀ", op("row", *dots))
    ds = softmax_backward_lines(sheet, w, dw, name)
    terms = op("+", *(op("×", entry(ds, j), k) for j, k in enumerate(K)))
    dq = sheet.line(f"dq of {name}", 'dq = Σ_j ds_j k_j × "scale"', op("×", terms, part.scale))
    seen = w > 0  # what a mask hides has no gradient
    sheet.compare(
        "gradient of the weights", dw[seen], theirs["pattern"][s.head, s.at].cpu()[torch.tensor(seen)]
    )
    sheet.compare("gradient of the query", dq, theirs["q"][s.head, s.at])
    return sheet.finish(f"{s.path}, head {s.head}: the gradient of the attention of “{name}”")
