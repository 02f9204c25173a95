"""The names of the values that a model computes, with their shapes, found without computing them.

A copy of the model on torch's `meta` device, which has shapes and no numbers, is watched twice, with texts of
two sizes. A size that changes with the batch is B, with the length T, and with the length of a source S.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.nn.context import Watch

if TYPE_CHECKING:
    from heedful.models.base import Model

Shape = tuple[int | str, ...]
SIZES = ((1, 2, 3), (2, 4, 5))  # of the two passes: rows, tokens, source tokens
# The meaning of the last word of a name, in every model.
MEANINGS = {
    "token": "the vectors of the tokens, before any scale",
    "position": "the vectors of the positions that are added to them",
    "types": "the vectors of the segments that are added to them",
    "input": "the input of a block or a layer",
    "output": "the output of an embedding, a block or a stack",
    "norm.input": "the input of a norm",
    "norm.output": "the output of a norm",
    "part.output": "what a part within a block adds to the residual stream",
    "experts.output": "the output of each chosen expert, before its weight",
    "experts.hidden": "what the last matrix of each chosen expert reads",
    "after_attn": "the residual stream after self-attention, which the next part finds",
    "after_cross": "the residual stream after cross-attention",
    "after_conv": "the residual stream after the convolution",
    "after_ffn": "the residual stream after the feed-forward network",
    "scale": "what a norm divides by, √(var + ε) or √(mean square + ε)",
    "q_unrotated": "queries before rotary positions; of latent attention, both parts of them",
    "k_unrotated": "keys before rotary positions; of latent attention, the part that all heads share",
    "q_latent": "the latent that queries are read from, after its norm",
    "kv_latent": "the latent that keys and values are read from, after its norm: what is remembered",
    "q": "queries as they are compared with keys",
    "k": "keys as they are compared with queries; in a cached step, of all tokens so far",
    "v": "values; of a state space, what it reads",
    "bias": "what is added to the scores of every layer",
    "position_scores": "what distances add to the scores",
    "sentence_scores": "what belonging to the same sentence, or not, adds to the scores",
    "scores": "scaled products of queries and keys, before the mask and the softmax",
    "pattern": "the weights of attention; of a recurrence, what it amounts to",
    "heads": "what each head gives, pattern @ v, before the output matrix",
    "gate": "the gate before its activation",
    "up": "the up-projection; without a gate, the pre-activation",
    "hidden": "what the last matrix of a part reads, after activation and gate",
    "router": "how much each expert is liked, after softmax or sigmoid",
    "chosen": "the numbers of the experts that a token is sent to",
    "weights": "the weights of the chosen experts, in their order",
    "value": "the input of a convolution",
    "conv": "the output of a convolution over the last few tokens, before its activation",
    "delta": "the step size Δ of a selective state space",
    "B": "how a selective state space writes",
    "C": "how a selective state space reads",
    "h": "the hidden state after each token",
    "c": "the cell of an LSTM after each token",
    "skip": "what goes past a state space, D v",
    "log_decay": "the logarithm of what gated linear attention keeps",
    "beta": "how much of what a key holds the delta rule replaces",
    "i": "the input gate", "f": "the forget gate", "o": "the output gate", "g": "the candidate of an LSTM",
    "r": "the reset gate", "z": "the update gate", "n": "the candidate of a GRU",
    "a": "the attentional vector", "read": "what the deep output reads: state, word and context",
    "features": "what the output matrix of a head is multiplied with",
    "pooled": "the vector of the whole text that a head reads",
    "logits": "the output of the head",
}  # fmt: skip
SYMBOLS = dict(zip(zip(*SIZES, strict=True), "BTS", strict=True))


def value_names(model: Model, batch: int | None = None, length: int | None = None) -> dict[str, Shape]:
    """Return the shape of every value by its name: with B, T and S in it, or of a text of the sizes given."""
    for argument, value in (("batch", batch), ("length", length)):
        if value is not None and (type(value) is not int or value < 1):
            raise InputError("must be a whole number, at least 1", argument=argument, value=value)
    first, second = two_passes(model)
    shapes = {name: tuple(map(symbol, shape, second[name])) for name, shape in first.items()}
    given: dict[int | str, int | str | None] = {"B": batch, "T": length, "S": length}
    return {name: tuple(given.get(n) or n for n in shape) for name, shape in shapes.items()}


def value_meaning(name: str) -> str:
    """Describe a value by the last word of its name and by the part that shows it."""
    path, _, word = name.rpartition(".")
    owner = path.rpartition(".")[2].rpartition("_")[2]
    if f"{owner}.{word}" in MEANINGS:
        return MEANINGS[f"{owner}.{word}"]
    within = word == "output" and path.count(".") > 1 and owner not in ("ahead", "back")
    return MEANINGS.get("part.output" if within else word, "")  # a part of yours may have words of its own


def symbol(size: int, other: int) -> int | str:
    """Return what a size stands for that is `other` in the second pass."""
    return size if size == other else SYMBOLS.get((size, other), f"{size}…{other}")


def two_passes(model: Model) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of both; a model with a part that `meta` does not know is computed in earnest."""
    try:
        outline = meta_copy(model)
        return [watched_shapes(outline, *sizes) for sizes in SIZES]
    except (NotImplementedError, RuntimeError):
        if model.device.type == "meta":
            raise
        return [watched_shapes(model, *sizes) for sizes in SIZES]


@torch.no_grad()
def watched_shapes(model: Model, batch: int, length: int, source: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one pass."""
    tokens, watch = torch.zeros(batch, length, dtype=torch.long, device=model.device), Watch("*")
    run_pass(model, tokens, source, watch)
    return {name: tuple(watch[name].shape) for name in watch}


def run_pass(model: Model, tokens: Tensor, source: int, watch: Watch) -> None:
    """Read the tokens, after `source` tokens if the model has an encoder; without a head, as far as it
    goes.
    """
    from heedful.models.base import DualEncoder, Seq2Seq
    from heedful.nn.head import NoHead

    bare = isinstance(getattr(model, "head", None), NoHead)
    if isinstance(model, Seq2Seq):
        (model.hidden if bare else model)(model.embed.blank(len(tokens), source), tokens, watch=watch)
    elif isinstance(model, DualEncoder):
        model(tokens, model.image.embed.blank(len(tokens), 1), watch=watch)
    else:
        reads = tokens if model.processor is None else model.embed.blank(len(tokens), 1)  # type: ignore
        (model.encode if bare else model)(reads, watch=watch)  # type: ignore[operator]


def meta_copy(model: Model) -> Model:
    """Return a copy in evaluation mode that has the shapes of the model's weights, and no memory for them."""
    if model.device.type == "meta" and not model.training:
        return model
    memo: dict[int, object] = {id(model.tokenizer): model.tokenizer}
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is None:
                continue
            bare, learned = tensor.detach().to("meta"), isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(bare, requires_grad=False) if learned else bare
    return copy.deepcopy(model, memo).eval()
