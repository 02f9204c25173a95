"""What a model predicts at a position, and how a word is drawn from it.

A head predicts words, labels, tags, spans or nothing, and the functions here turn its output into
probabilities of named answers. `divergence` is KL(p ‖ q) in nats, with which this package measures how far a
prediction moved. `draw_token` repeats one step of `heedful.generate` and keeps the probabilities after each
sampling rule, so that you can see what temperature, top-k, top-p and min-p take away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import InputError
from heedful.decode import sampling as rules
from heedful.decode.settings import GenerationSettings
from heedful.interp.inputs import Input, label_names, written_names
from heedful.models.base import LM, Model, Seq2Seq

PREDICTS = {
    "lm": "words", "mlm": "words", "pretrain": "words", "classify": "labels", "next": "labels", "tag": "tags",
    "detect": "tags", "span": "spans", "none": "vectors",
}  # fmt: skip


def predicts(model: Model) -> str:
    """Return what the head speaks of: words, labels, tags, spans or vectors."""
    return PREDICTS.get(model.config.head, "vectors")


def answer_names(model: Model) -> list[str] | None:
    """Return the names of the labels or tags that a head chooses from; None if it chooses something else."""
    if model.config.head == "detect":
        return ["original", "replaced"]
    return label_names(model) if predicts(model) in ("labels", "tags") else None


def special_ids(model: Model) -> set[int]:
    """Return the ids of the tokens that stand for no text: [CLS], </s> …"""
    roles = () if model.tokenizer is None else model.tokenizer.roles
    return {i for role in roles if (i := getattr(model.tokenizer, role)) is not None}


def is_causal(model: Model) -> bool:
    """Return whether a prediction is of the next token: that of a decoder, or of an encoder-decoder."""
    return isinstance(model, Seq2Seq) or (isinstance(model, LM) and model.causal)


def default_position(model: Model, inputs: Input) -> int:
    """Return where the mask stands, if an encoder reads one; else the last token that is not special."""
    ids = inputs.read[0].tolist()
    if is_causal(model) or model.tokenizer is None:
        return len(ids) - 1
    if model.tokenizer.mask in ids:
        return ids.index(model.tokenizer.mask)
    special = special_ids(model)
    return max((i for i, token in enumerate(ids) if token not in special), default=len(ids) - 1)


def changed_position(model: Model, inputs: Input, change: Tensor, output: Tensor) -> tuple[int, str]:
    """Return where to look at a change (T,) of the predictions, and the token there.

    An encoder-decoder, whose last prediction is the end of the text after any change, is compared where it
    moved most, and the token is the one it writes by `output` (T, V).
    """
    if inputs.target is None or predicts(model) != "words":
        at = default_position(model, inputs)
        return at, inputs.names[at]
    at = int(change.argmax())
    return at, written_names(model, inputs, output[None])[at]


def words_at(model: Model, output: Tensor, position: int) -> Tensor:
    """Return the logits (V,) at a position of `output` (T, V); an error where the head speaks of no words."""
    if predicts(model) != "words":
        raise InputError(
            f"this {model.family.name} predicts {predicts(model)}, not words", hint="choose a language model"
        )
    if not -len(output) <= position < len(output):
        raise InputError(f"position {position} is outside 0 … {len(output) - 1}")
    return output[position].detach().float().cpu()


def answer_chances(model: Model, output: Tensor) -> Tensor:
    """Return the probabilities that the head gives to its answers, of `output` without the batch axis.

    Words and tags have one row per token, labels one row, spans a row for the start and one for the end
    over all tokens; a model that predicts vectors has none.
    """
    kind, output = predicts(model), output.detach().float()
    if kind == "vectors":
        return output.new_zeros(0, 0)
    if kind == "spans":
        return output.softmax(0).mT
    if kind == "tags" and output.dim() == 1:  # one logit per token says whether it was replaced
        output = torch.stack((torch.zeros_like(output), output), -1)
    chances = output.softmax(-1)
    return chances[None] if kind == "labels" else chances


def divergence(logits: Tensor, other_logits: Tensor) -> Tensor:
    """KL(p ‖ q) in nats over the last axis, of two tensors of logits."""
    p, q = (x.double().log_softmax(-1) for x in (logits, other_logits))
    return (p.exp() * (p - q)).sum(-1)


@dataclass(frozen=True)
class DrawnToken:
    """A token, the number in [0, 1) that chose it (None if it is the most likely), and the probabilities (V,)
    after each rule of sampling, in the order they are applied: p, temperature, top_k, top_p, min_p, final.
    """

    token: int
    u: float | None
    chances: dict[str, Tensor]

    def candidates(self, rule: str = "final") -> int:
        """Return how many tokens may still be drawn after a rule."""
        return int((self.chances[rule] > 0).sum())

    def entropy(self, rule: str = "final") -> float:
        """Return the entropy after a rule, in bits."""
        return float(torch.special.entr(self.chances[rule]).sum() / math.log(2))


def draw_token(logits: Tensor, settings: GenerationSettings, *, seed: int = 0, step: int = 0) -> DrawnToken:
    """Draw the token that `heedful.generate(…, seed=seed)` draws at a step from these logits (V,)."""
    chances = lambda z: z.double().softmax(-1)[0]
    z = logits.float()[None]
    if settings.greedy:
        one = F.one_hot(z.argmax(-1), z.shape[1]).double()[0]
        after = dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "final"), one)
        return DrawnToken(int(z.argmax()), None, {"p": chances(z)} | after)
    u = rules.uniforms([rules.generator(seed)], step + 1)[:, -1]
    token = int(rules.draw(rules.warp(settings, z), u)[0])
    by_rule, applied = {"p": chances(z)}, dict[str, Any]()
    for rule in ("temperature", "top_k", "top_p", "min_p"):
        applied[rule] = getattr(settings, rule)
        by_rule[rule] = chances(rules.warp(GenerationSettings(**applied), z))
    by_rule["final"] = chances(rules.warp(settings, z))
    return DrawnToken(token, float(u), by_rule)
