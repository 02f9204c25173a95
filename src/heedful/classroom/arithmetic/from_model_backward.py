"""Gradients of a model's own loss on a text, worked number by number: of logits, and of an attention head.

The loss is −ln p of one word: of a causal model the word that follows the token (the likeliest one after the
last), of others the token itself.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.classroom.arithmetic.from_model_attention import head_row
from heedful.classroom.arithmetic.subject import Subject, array, distinct_labels, find_part
from heedful.classroom.arithmetic.topics_backward import softmax_backward_lines
from heedful.classroom.arithmetic.worked import AUTOGRAD, Derivation, Line, Sheet, entry, op
from heedful.core.errors import InputError
from heedful.interp.inputs import names_of, part_at, word_head
from heedful.interp.row_labels import row_side, written_ids
from heedful.models.base import LM, Seq2Seq
from heedful.nn.attention import Attention, CrossAttention
from heedful.nn.context import Watch


def target_word(s: Subject, at: int, logits: Tensor) -> int:
    """The id of the word whose loss is taken at a position."""
    word_head(s.model)  # an error where the model predicts no words
    follows = isinstance(s.model, Seq2Seq) or (isinstance(s.model, LM) and s.model.causal)
    found = written_ids(s.model, s.given, logits)[at] if follows else int(s.given.read[0, at])
    if found is None:
        raise InputError("this model predicts no word here", hint="choose another token")
    return found


def cross_entropy_gradient(s: Subject, count: int = 8) -> Derivation:
    """p = exp(z − ln Σ exp z), L = −ln p_y, dz = p − y, for the likeliest words and the right one"""
    logits = s.watch["head.logits"]
    if logits.dim() != 3:
        raise InputError("this head gives no logits for each token")
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
        found = torch.autograd.grad(loss, values)
    return dict(zip(("q", "pattern", "heads"), (value[0] for value in found), strict=True))


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
