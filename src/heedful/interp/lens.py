"""What a model would say if it stopped at each layer; how surprised it is; what its states are near to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import InputError
from heedful.interp.inputs import Input, Text, names_of, reading, stack_of, token_vectors, word_head
from heedful.interp.results import Result
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.context import Context, Mask, Watch


@dataclass(frozen=True)
class Lens:
    """Logits (L, T, V) of every layer and position; the last layer's are the model's own."""

    model: Model
    layers: tuple[str, ...]
    tokens: tuple[str, ...]
    logits: Tensor

    @cached_property
    def log_probabilities(self) -> Tensor:
        """log p (L, T, V)."""
        return self.logits.float().log_softmax(-1)

    def top(self, count: int = 5) -> list[list[list[tuple[str, float]]]]:
        """The likeliest tokens and their probabilities, by layer and position."""
        best = self.log_probabilities.topk(min(count, self.logits.shape[-1]), -1)
        values, indices = best.values.exp().tolist(), best.indices.tolist()
        return [
            [list(zip(names_of(self.model, i), p, strict=True)) for i, p in zip(ids, probs, strict=True)]
            for ids, probs in zip(indices, values, strict=True)
        ]

    def ranks(self, token: int) -> Tensor:
        """The rank of a token at every layer and position, 0 the likeliest: (L, T)."""
        return (self.logits > self.logits[..., token, None]).sum(-1)

    def final_ranks(self) -> Tensor:
        """The rank that each layer gives to what the last one finds likeliest: (L, T)."""
        final = self.logits[-1].argmax(-1).expand(len(self.logits), -1)[..., None]
        return (self.logits > self.logits.gather(-1, final)).sum(-1)

    def entropy(self) -> Tensor:
        """The entropy of each layer's prediction in bits: (L, T)."""
        return torch.special.entr(self.log_probabilities.exp()).sum(-1) / math.log(2)

    def surprisal(self, ids: Tensor) -> Tensor:
        """−log₂ p of the token that follows each position, of the ids (T,) that were read: (L, T−1)."""
        follows = ids[1:].expand(len(self.logits), -1)[..., None]
        return self.log_probabilities[:, :-1].gather(-1, follows)[..., 0] / -math.log(2)

    def to_dict(self, count: int = 5) -> dict[str, Any]:
        return {"layers": list(self.layers), "tokens": list(self.tokens), "top": self.top(count)}


@torch.no_grad()
def logit_lens(model: Model, text: Text | Input, target: Text | None = None) -> Lens:
    """head(norm(x_l)) of every layer l: the model's own last norm and head on what each layer hands on

    (nostalgebraist 2020.) A layer whose vectors have another width than the last one's is left out.
    """
    given, (where, stack), head = reading(model, text, target), stack_of(model), word_head(model)
    start = "target_embed" if isinstance(model, Seq2Seq) else "embed"
    names = [f"{start}.output", *(f"{where}.{i}.output" for i in range(len(stack)))]
    watch = Watch(*names)
    given.run(model, watch)
    width = watch[names[-1]].shape[-1]
    names = [name for name in names if watch[name].shape[-1] == width]
    pos = torch.arange(given.read.shape[1], device=model.device)[None]
    ctx = Context(pos, pos, Mask())
    every = torch.cat([watch[name] for name in names])  # a row for each layer
    logits = cast(Tensor, head(stack.finish(every), ctx))
    return Lens(model, tuple(n.removesuffix(".output") for n in names), given.names, logits)


@dataclass(frozen=True)
class Surprisal(Result):
    """−log₂ p of each token, in bits; None for a token that nothing predicts."""

    also = ("perplexity",)

    tokens: tuple[str, ...]
    bits: tuple[float | None, ...]

    @property
    def mean(self) -> float:
        known = [b for b in self.bits if b is not None]
        return math.fsum(known) / max(1, len(known))

    @property
    def perplexity(self) -> float:
        return float(2**self.mean)


@torch.no_grad()
def surprisal(
    model: Model, text: Text | Input, target: Text | None = None, *, mask: int | None = None,
    checkpoint: Callable[[], None] = lambda: None,
) -> Surprisal:  # fmt: skip
    """−log₂ p(x_t | x_<t); of an encoder −log₂ p(x_t | all others), each token masked in turn.

    (The second: Salazar et al. 2020.) `mask` is the id that hides a token, where no tokenizer says it.
    `checkpoint` is called before each pass and may raise to stop.
    """
    given = reading(model, text, target)
    word_head(model)  # an error where the head predicts no words
    if isinstance(model, LM) and not model.causal:
        return _mask_positions(model, given, mask, checkpoint)
    checkpoint()
    logp = F.log_softmax(given.run(model).float(), -1)[0]
    surprisals = logp[:-1].gather(-1, given.read[0, 1:, None])[:, 0] / -math.log(2)
    return Surprisal(given.names, (None, *surprisals.tolist()))


@dataclass(frozen=True)
class Losses(Result):
    """Mean −log p by place, in nats: `loss[t]` is over `count[t]` texts; None where nothing predicts."""

    loss: tuple[float | None, ...]
    count: tuple[int, ...]


def loss_by_position(
    model: Model, texts: Sequence[Text | Input], *, checkpoint: Callable[[], None] = lambda: None
) -> Losses:
    """What a model gains from what came before: the mean over texts of −log p(x_t | x_<t), for each place t

    (Kaplan et al. 2020 §4.) A model that uses its context gets surer with t; one that forgets stays as it is.
    """
    sums: dict[int, list[float]] = {}
    longest = 0
    for text in texts:
        bits = surprisal(model, text, checkpoint=checkpoint).bits
        longest = max(longest, len(bits))
        for t, value in enumerate(bits):
            if value is not None:
                sums.setdefault(t, []).append(value * math.log(2))
    mean = lambda t: math.fsum(sums[t]) / len(sums[t]) if t in sums else None
    return Losses(tuple(map(mean, range(longest))), tuple(len(sums.get(t, ())) for t in range(longest)))


def _mask_positions(model: LM, inputs: Input, mask: int | None, checkpoint: Callable[[], None]) -> Surprisal:
    hide = getattr(model.tokenizer, "mask", None) if mask is None else mask
    if hide is None:
        raise InputError("an encoder is asked with each token hidden in turn: give mask=, the id that hides")
    special = {getattr(model.tokenizer, role, None) for role in ("cls", "sep", "bos", "eos", "pad")}
    ids = inputs.ids[0]
    bits: list[float | None] = []
    for t, token in enumerate(ids.tolist()):
        if token in special:
            bits.append(None)
            continue
        checkpoint()
        hidden = ids.clone()
        hidden[t] = hide
        logits = replace(inputs, ids=hidden[None]).run(model).float()
        bits.append(float(-F.log_softmax(logits[0, t], -1)[token] / math.log(2)))
    return Surprisal(inputs.tokens, tuple(bits))


@dataclass(frozen=True)
class NearestTokens(Result):
    """The nearest rows of the embedding table for each position, by the cosine."""

    name: str
    tokens: tuple[str, ...]
    near: tuple[tuple[tuple[str, float], ...], ...]


@torch.no_grad()
def neighbours(
    model: Model, text: Text | Input, target: Text | None = None, *, name: str = "", count: int = 5
) -> NearestTokens:
    """The token vectors nearest to the states called `name` ("blocks.3.output"); the last layer's if ''."""
    given, (where, stack) = reading(model, text, target), stack_of(model)
    name = name or f"{where}.{len(stack) - 1}.output"
    watch = Watch(name)
    given.run(model, watch)
    x = watch[name][0].float()
    source = name.startswith(("encoder.", "embed.")) or not isinstance(model, Seq2Seq)
    table = token_vectors(model.tables["tokens" if source else "target"]).float()
    if x.dim() != 2 or x.shape[-1] != table.shape[-1]:
        raise InputError(
            f"{name} has shape {tuple(x.shape)}", hint=f"token vectors have {table.shape[-1]} entries"
        )
    near = (F.normalize(x, dim=-1) @ F.normalize(table, dim=-1).T).topk(count, -1)
    rows = zip(near.indices.tolist(), near.values.tolist(), strict=True)
    return NearestTokens(
        name, given.tokens if source else given.names,
        tuple(tuple(zip(names_of(model, i), c, strict=True)) for i, c in rows),
    )  # fmt: skip
