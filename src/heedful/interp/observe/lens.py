"""The logit lens: what the model would predict if it stopped at each layer.

The lens sends the vectors of each layer through the model's own last norm and head. The first layer whose
best token is the final answer shows how deep the model has to compute for it. The lens misses what a layer
knows but stores in other directions than the head reads, so an early layer can look ignorant without being
it (nostalgebraist 2020). `train_tuned_lens` corrects this with a learnt map per layer. `surprisal` is how
unexpected each token is to the model, in bits, and `neighbours` finds the token vectors nearest to a state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.checks import check_integer, check_number
from heedful.core.errors import InputError
from heedful.interp.activations import Texts, check_predicts_next, make_batches, prepare_inputs
from heedful.interp.inputs import (
    Input,
    Result,
    Text,
    layer_names,
    names_of,
    reading,
    stack_of,
    token_vectors,
    with_progress,
    word_head,
)
from heedful.interp.learn.dictionary import load_module, save_module
from heedful.interp.observe.prediction import divergence
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
        """The most likely tokens and their probabilities, by layer and position."""
        best = self.log_probabilities.topk(min(count, self.logits.shape[-1]), -1)
        values, indices = best.values.exp().tolist(), best.indices.tolist()
        return [
            [list(zip(names_of(self.model, i), p, strict=True)) for i, p in zip(ids, probs, strict=True)]
            for ids, probs in zip(indices, values, strict=True)
        ]

    def ranks(self, token: int) -> Tensor:
        """The rank of a token at every layer and position, 0 for the most likely: (L, T)."""
        return (self.logits > self.logits[..., token, None]).sum(-1)

    def final_ranks(self) -> Tensor:
        """The rank that each layer gives to the most likely token of the last one: (L, T)."""
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


def read_out(model: Model, x: Tensor) -> Tensor:
    """head(norm(x)): logits of vectors (B, T, D)."""
    pos = torch.arange(x.shape[1], device=x.device)[None]
    return cast(Tensor, word_head(model)(stack_of(model)[1].finish(x), Context(pos, pos, Mask())))


@torch.no_grad()
def logit_lens(model: Model, text: Text, target: Text | None = None) -> Lens:
    """head(norm(x_l)) of every layer l: the model's own last norm and head on what each layer hands on

    (nostalgebraist 2020.) A layer whose vectors have another width than the last one's is left out.
    """
    return _read_layers(model, reading(model, text, target), lambda layer, x: x)


def _read_layers(model: Model, inputs: Input, translate: Callable[[int, Tensor], Tensor]) -> Lens:
    """Read out the last layer as it is, and each layer that is as wide after `translate`."""
    names = layer_names(model, predicting=True)
    watch = inputs.record(model, *names)
    last = watch[names[-1]]
    names = [name for name in names if watch[name].shape[-1] == last.shape[-1]]
    rows = [translate(layer, watch[name]) for layer, name in enumerate(names[:-1])]
    logits = read_out(model, torch.cat([*rows, last]))
    return Lens(model, tuple(name.removesuffix(".output") for name in names), inputs.names, logits)


@dataclass(frozen=True)
class Surprisal(Result):
    """−log₂ p of each token, in bits; None for a token that nothing predicts."""

    also = ("perplexity",)

    tokens: tuple[str, ...]
    bits: tuple[float | None, ...]

    @property
    def mean(self) -> float:
        predicted = [b for b in self.bits if b is not None]
        return math.fsum(predicted) / max(1, len(predicted))

    @property
    def perplexity(self) -> float:
        return float(2**self.mean)


@torch.no_grad()
def surprisal(model: Model, text: Text, target: Text | None = None, *, mask: int | None = None) -> Surprisal:
    """−log₂ p(x_t | x_<t); of an encoder −log₂ p(x_t | all others), each token masked in turn.

    (The second: Salazar et al. 2020.) `mask` is the id that hides a token, where no tokenizer says it.
    """
    given = reading(model, text, target)
    word_head(model)  # an error where the head predicts no words
    if isinstance(model, LM) and not model.causal:
        return _mask_positions(model, given, mask)
    logp = F.log_softmax(given.run(model).float(), -1)[0]
    surprisals = logp[:-1].gather(-1, given.read[0, 1:, None])[:, 0] / -math.log(2)
    return Surprisal(given.names, (None, *surprisals.tolist()))


@dataclass(frozen=True)
class Losses(Result):
    """Mean −log p by place, in nats: `loss[t]` is over `count[t]` texts; None where nothing predicts."""

    loss: tuple[float | None, ...]
    count: tuple[int, ...]


def loss_by_position(model: Model, texts: Sequence[Text]) -> Losses:
    """What a model gains from what came before: the mean over texts of −log p(x_t | x_<t), for each place t

    (Kaplan et al. 2020 §4.) A model that uses its context gets surer with t; one that forgets stays as it is.
    """
    sums: dict[int, list[float]] = {}
    longest = 0
    for text in with_progress(texts, "texts", len(texts)):
        bits = surprisal(model, text).bits
        longest = max(longest, len(bits))
        for t, value in enumerate(bits):
            if value is not None:
                sums.setdefault(t, []).append(value * math.log(2))
    mean = lambda t: math.fsum(sums[t]) / len(sums[t]) if t in sums else None
    return Losses(tuple(map(mean, range(longest))), tuple(len(sums.get(t, ())) for t in range(longest)))


def _mask_positions(model: LM, inputs: Input, mask: int | None) -> Surprisal:
    hide = getattr(model.tokenizer, "mask", None) if mask is None else mask
    if hide is None:
        raise InputError(
            "an encoder reads the text with each token masked in turn, and this one has no mask token",
            hint="give its id with `mask=`",
        )
    special = {getattr(model.tokenizer, role, None) for role in ("cls", "sep", "bos", "eos", "pad")}
    ids = inputs.ids[0]
    bits: list[float | None] = []
    for t, token in with_progress(enumerate(ids.tolist()), "tokens", len(ids)):
        if token in special:
            bits.append(None)
            continue
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
    model: Model, text: Text, target: Text | None = None, *, name: str = "", count: int = 5
) -> NearestTokens:
    """The token vectors nearest to the states called `name` ("blocks.3.output"); the last layer's if ''."""
    given, (where, stack) = reading(model, text, target), stack_of(model)
    name = name or f"{where}.{len(stack) - 1}.output"
    x = given.record(model, name)[name][0].float()
    source = name.startswith(("encoder.", "embed.")) or not isinstance(model, Seq2Seq)
    table = token_vectors(model.tables["tokens" if source else "target"]).float()
    if x.dim() != 2 or x.shape[-1] != table.shape[-1]:
        raise InputError(
            f"{name} has shape {tuple(x.shape)}", hint=f"token vectors have {table.shape[-1]} entries"
        )
    cosines = F.normalize(x, dim=-1) @ F.normalize(table, dim=-1).T
    near = cosines.topk(min(check_integer("count", count), len(table)), -1)
    rows = zip(near.indices.tolist(), near.values.tolist(), strict=True)
    return NearestTokens(
        name, given.tokens if source else given.names,
        tuple(tuple(zip(names_of(model, i), c, strict=True)) for i, c in rows),
    )  # fmt: skip


# The tuned lens: an affine map per layer, learnt so that the model's own head reads the layer well.
#
#     logits_l = head(norm(x_l + A_l x_l + b_l)),   min KL(p_model ‖ p_l)      A_l and b_l begin at zero
#
# (Belrose et al. 2023, arXiv 2303.08112.) Untrained, it is the logit lens. The model itself does not change.

FORMAT = "heedful.tuned_lens"


class TunedLens(nn.Module):
    """x_l + A_l x_l + b_l for every layer l, by the names of the values."""

    def __init__(self, names: list[str], dim: int) -> None:
        super().__init__()
        self.names, self.dim = names, dim
        self.weight = nn.Parameter(torch.zeros(len(names), dim, dim))
        self.bias = nn.Parameter(torch.zeros(len(names), dim))

    def translate(self, layer: int, x: Tensor) -> Tensor:
        """Return what the last layer would have handed on, as far as layer `layer` tells: (…, D)."""
        return x + (x.float() @ self.weight[layer].T + self.bias[layer]).to(x.dtype)

    def save(self, path: str | Path) -> Path:
        """Write the lens as one safetensors file."""
        return save_module(self, path, FORMAT, {"names": self.names, "dim": self.dim})


def load_tuned_lens(path: str | Path, device: str | torch.device = "cpu") -> TunedLens:
    """Read what `TunedLens.save` wrote."""
    return load_module(path, FORMAT, lambda settings: TunedLens(**settings), device, "TunedLens.save")


def _layer_values(model: Model) -> list[str]:
    """The values that a tuned lens reads: of the embedding and of every layer but the last."""
    *names, last = layer_names(model, predicting=True)
    shapes = model.names()
    return [name for name in names if shapes[name][-1] == shapes[last][-1]]


@torch.enable_grad()  # whoever calls may have switched gradients off
def train_tuned_lens(
    model: Model, texts: Texts, *, steps: int = 200, learning_rate: float = 1e-3, max_length: int = 128,
    max_tokens: int = 512, seed: int = 0,
) -> TunedLens:  # fmt: skip
    """Learn the lens on texts: in each step, one batch of them, every layer is brought nearer to the last."""
    check_integer("steps", steps, minimum=0)
    check_number("learning_rate", learning_rate, above=0.0)
    check_predicts_next(model)
    names = _layer_values(model)
    if not names:
        raise InputError(f"no layer of this {model.family.name} is as wide as its last")
    lens = TunedLens(names, int(model.names()[names[-1]][-1])).to(model.device)
    batches = list(make_batches(prepare_inputs(model, texts, max_length=max_length), max_tokens))
    order = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(lens.parameters(), lr=learning_rate)
    for step in with_progress(range(steps), "steps", steps):
        batch = batches[int(torch.randint(len(batches), (), generator=order))]
        watch = Watch(*names, detach=True)
        with torch.no_grad():
            final = batch.run(model, watch).float().log_softmax(-1)
        valid = batch.read[1]
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * (1 - step / steps)
        optimiser.zero_grad()
        for layer, name in enumerate(names):  # one after another: logits of all at once are many
            mine = read_out(model, lens.translate(layer, watch[name])).float().log_softmax(-1)
            gap = (final.exp() * (final - mine)).sum(-1)[valid].mean()
            gradients = torch.autograd.grad(gap, (lens.weight, lens.bias))  # the model gets none
            for parameter, gradient in zip((lens.weight, lens.bias), gradients, strict=True):
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        optimiser.step()
    return lens.requires_grad_(False)


@torch.no_grad()
def tuned_lens(model: Model, text: Text, lens: TunedLens, target: Text | None = None) -> Lens:
    """Return what each layer would predict through a tuned lens; the last row is the model's own prediction.

    The result is that of `logit_lens`: the most likely tokens, ranks and entropies by layer and position.
    """
    names = _layer_values(model)
    if names != lens.names or lens.dim != int(model.names()[names[-1]][-1]):
        raise InputError(
            f"the lens was trained on {len(lens.names)} layers of {lens.dim} entries",
            hint=f"this model has {len(names)}: train one for it",
        )
    return _read_layers(model, reading(model, text, target), lens.translate)


def lens_divergence(lens: Lens) -> Tensor:
    """KL(p_model ‖ p_l) of every layer and position in nats, (L, T): how far each is from the last."""
    return torch.stack([divergence(lens.logits[-1], row) for row in lens.logits])
