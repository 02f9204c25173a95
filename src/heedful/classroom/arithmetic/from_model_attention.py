"""The arithmetic of one attention head of a model: x → q, k, v → scores → weights → weighted sum; gradients.

Gradients are those of the model's own loss on a text, −ln p of one word: of a causal model the word that
follows the token (the most likely one after the last), of others the token itself.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.classroom.arithmetic import topics
from heedful.classroom.arithmetic.subject import Subject, check_lines, distinct_labels, numbers, parameters
from heedful.classroom.arithmetic.topics import Array, Rows
from heedful.classroom.arithmetic.topics_backward import loss_lines, row_gradient_lines
from heedful.classroom.arithmetic.worked import AUTOGRAD, Derivation, Expression, Numbers, op
from heedful.core.errors import InputError
from heedful.interp.inputs import names_of, part_at, row_side, word_head, written_ids
from heedful.interp.intervene.ablation import KeptHeads
from heedful.models.base import LM, Seq2Seq
from heedful.nn.attention.multi_head import Attention, CrossAttention, SinkAttention
from heedful.nn.attention.relative import RelativeAttention
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.context import Watch

# A model in fewer bits rounds q, k and v: they are taken as it has them.
EXACT = (torch.float32, torch.float64)


def attention_part(s: Subject) -> tuple[Attention, bool, list[str]]:
    """Return the part, whether it looks at an encoder's output, and a name for each of its keys."""
    part = cast(Attention, part_at(s.model, s.path))
    if not 0 <= s.head < part.heads:
        raise InputError(f"{s.path} has heads 0 … {part.heads - 1}", hint=f"unknown head {s.head}")
    cross = isinstance(part, CrossAttention)
    return part, cross, distinct_labels(s.given.tokens if cross else s.names)


def head_row(s: Subject) -> Derivation:
    """The row of `pattern` and `heads` that belong to the token and the head asked for."""
    part, cross, keys = attention_part(s)
    pattern, scores = s.value("pattern")[s.head, s.at], numbers(s.value("scores")[s.head, s.at]).value
    name, what = s.names[s.at], "attention while writing" if cross else "attention of"
    derivation = Derivation(f"{s.path}, head {s.head}: {what} “{name}”")
    q, K, V = project_qkv(derivation, s, part, keys)
    if isinstance(part, RelativeAttention):
        liked = derivation.given("what the head likes", "a", numbers(part.content_bias[s.head]))
        q = derivation.line(f"query of {name}", "q + a", q + liked)
    seen = numbers(pattern).value > 0
    if seen.any():  # not hidden are keys with a weight, and those whose weight underflows
        seen |= scores < scores[seen].max() - 80.0
    topics.attention_row(
        derivation, q, K, V, query=name, keys=keys, scale=part.scale, softcap=None if cross else part.softcap,
        bias=None if cross else score_bias(s, part), keep=seen,
        sink=part.sinks[s.head].item() if isinstance(part, SinkAttention) else None,
    )  # fmt: skip
    output = s.value("heads")[s.head, s.at]
    return check_lines(derivation, {f"weights of {name}": pattern, f"output of {name}": output})


def score_bias(s: Subject, part: Attention) -> Array | None:
    """Return what positions add to the scores of this head and token, by the stack or the part, or None."""
    own = [f"{s.path}.{word}" for word in ("bias", "position_scores", "sentence_scores")]
    biases = [s.watch[name][0] for name in (f"{s.path.partition('.')[0]}.bias", *own) if name in s.watch]
    head = part.kept[s.head] if isinstance(part, KeptHeads) else s.head
    rows = [numbers(bias[head if len(bias) > 1 else 0, s.at]).value for bias in biases]
    return np.sum(rows, axis=0) if rows else None


def vectors_read(s: Subject, part: Attention | CrossAttention) -> tuple[Tensor, Tensor, str] | None:
    """Return the inputs of queries and of keys and values (T, D each), and the name of the first.

    None where the model's block is none of ours, or where it shows no such value.
    """
    path, _, name = s.path.rpartition(".")
    block = part_at(s.model, path) if path else None
    ours = type(part) in (Attention, CrossAttention, KeptHeads)
    if not isinstance(block, Block | ParallelBlock) or not ours:
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


def project_qkv(
    derivation: Derivation, s: Subject, part: Attention | CrossAttention, keys: list[str]
) -> tuple[Expression, Rows, Rows]:
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
        return numbers(theirs["q"]), numbers(theirs["k"]), numbers(theirs["v"])
    name, inputs, memory, size = s.names[s.at], numbers(read[0]), numbers(read[1]), q.shape[-1]
    turn = None if isinstance(part, CrossAttention) else rotation_table(s, part)
    with derivation.part("where q, k and v come from") as made:
        layers = {}
        for letter, (weight, bias) in weights.items():
            first, capital = size * (s.head if letter == "q" else group), letter.upper()
            rows = slice(first, first + size)
            matrix = made.given(f"W_{capital}", f'W_{capital} "rows of this head"', weight[rows])
            shift = None if bias is None else made.given(f"b_{capital}", f"b_{capital}", bias[rows])
            layers[letter] = matrix, shift

        def project(letter: str, token: str, x: Expression, at: int | None) -> Expression:
            """W x + b of one token as a line, turned by its position where it is."""
            (matrix, shift), capital = layers[letter], letter.upper()
            product, formula = matrix @ x, f"{letter} = W_{capital} x"
            if shift is not None:
                product, formula = product + shift, f"{formula} + b_{capital}"
            out = made.line(f"{letter} of {token}", formula, product)
            return out if turn is None or at is None else rotate_vector(made, letter, token, out, turn, at)

        x = made.given(f"x of {name}", f'x "{read[2]}"', inputs[s.at])
        query = project("q", name, x, s.at)
        K = [project("k", key, x, t) for t, (key, x) in enumerate(zip(keys, memory, strict=True))]
        V = [project("v", key, x, None) for key, x in zip(keys, memory, strict=True)]
        made.compare("query", query, theirs["q"])
        made.compare("keys", np.stack([key.value for key in K]), theirs["k"])
        made.compare("values", np.stack([value.value for value in V]), theirs["v"])
    return query, K, V


def rotation_table(s: Subject, part: Attention) -> tuple[Numbers, Numbers] | None:
    """cos and sin (T, K/2) of the angles by which this part turns queries and keys, if it does."""
    if part.rotary is None:
        return None
    length = len(s.names)
    pos = torch.arange(length, device=s.model.device)[None]
    with torch.no_grad():
        cos, sin = part.rotary.table(pos, torch.tensor([[length]], device=s.model.device))
    return numbers(cos[0, 0]), numbers(sin[0, 0])


def rotate_vector(
    derivation: Derivation, letter: str, name: str, x: Expression, table: tuple[Numbers, Numbers], at: int
) -> Expression:
    """R_t x: the pairs (a, b) of the two halves, each turned by its angle   (Su et al. 2021)"""
    cos, sin = table[0][at], table[1][at]
    half = len(cos)
    a, b = x[:half], x[half : 2 * half]
    parts: list[Expression] = [a * cos - b * sin, b * cos + a * sin]
    if letter == "q":
        low = derivation.line(
            f"first half of q, turned by position {at}", "a ⊙ cos − b ⊙ sin", a * cos - b * sin
        )
        high = derivation.line("second half", "b ⊙ cos + a ⊙ sin", b * cos + a * sin)
        parts = [low[:half], high[:half]]
    if 2 * half < len(x):
        parts.append(x[2 * half :])
    return derivation.line(
        f"{letter} of {name}, turned by position {at}", f"R_{at} {letter}", op("concat", *parts)
    )


def rotation(s: Subject) -> Derivation:
    """The query of one head before and after its rotation."""
    table = rotation_table(s, cast(Attention, part_at(s.model, s.path)))
    if table is None:
        raise InputError(f"{s.path} has no positions to work out")
    q, (cos, sin) = numbers(s.value("q_unrotated")[s.head, s.at]), (angles[s.at] for angles in table)
    derivation = topics.rotary(q, cos, sin, position=s.at, of=s.names[s.at])
    low, high = s.value("q")[s.head, s.at, : 2 * len(cos)].chunk(2)
    theirs = {"turned first half": low, "turned second half": high}
    return check_lines(derivation, theirs, title=f"{s.path}, head {s.head}: {derivation.title}")


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
    place = shown.index(right)
    note = f"{len(shown)} of {len(z):,} words are shown; the loss counts all."
    title = f"the loss after “{s.given.names[at]}” and its gradient"
    derivation = Derivation(title, note=note, check_source=AUTOGRAD)
    scores = derivation.given(f"logits of {' '.join(names)}", "z", numbers(z[shown]))
    total = derivation.given("all words", f'ln Σ exp(z) "over {len(z):,} tokens"', float(z.logsumexp(0)))
    p = derivation.line("probabilities", "p = exp(z − ln Σ exp(z))", op("exp", scores - total))
    loss, dz = loss_lines(derivation, p, place, names[place])
    leaf = z.clone().requires_grad_()
    value = F.cross_entropy(leaf[None], torch.tensor([right], device=leaf.device))
    (theirs,) = torch.autograd.grad(value, leaf)
    derivation.compare("loss", loss, value)
    derivation.compare("gradient", dz, theirs[shown])
    return derivation


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
    s = subject.at_part(Attention, CrossAttention)
    forward, (part, cross, keys), name = head_row(s), attention_part(s), s.names[s.at]
    if isinstance(part, RelativeAttention) or (not cross and part.softcap is not None):
        what = "scores distances by the query" if isinstance(part, RelativeAttention) else "caps its scores"
        problem = f"{s.path} {what}, and the gradient of that cannot be worked out"
        raise InputError(problem, hint="choose another model")
    on_target = s.given.target is None or row_side(s.path, part, has_target=True) != "tokens"
    theirs = gradients_of(s, s.at if on_target else len(s.given.names) - 1)
    group = s.head // (part.heads // s.value("k").shape[0])
    K, V = numbers(s.value("k")[group]), numbers(s.value("v")[group])
    title = f"{s.path}, head {s.head}: the gradient of the attention of “{name}”"
    derivation = Derivation(title, forward.lines, check_source=AUTOGRAD)
    w, above = derivation.find(f"weights of {name}"), theirs["heads"][s.head, s.at]
    do = derivation.given("from above", 'do "the gradient of the output, by autograd"', numbers(above))
    dw, _, total = row_gradient_lines(derivation, w, do, K, V, name, keys)
    dq = derivation.line(f"dq of {name}", 'dq = Σ_j ds_j k_j × "scale"', total * part.scale)
    seen = w.value > 0  # what a mask hides has no gradient
    their_dw = theirs["pattern"][s.head, s.at].cpu()[torch.tensor(seen)]
    derivation.compare("gradient of the weights", dw.value[seen], their_dw)
    derivation.compare("gradient of the query", dq, theirs["q"][s.head, s.at])
    return derivation
