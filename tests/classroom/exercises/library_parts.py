"""The library's own part for each code exercise, with the arguments of the exercise.

The solutions of the exercises are written out for students; these hold them to what the library computes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from sacrebleu.metrics import BLEU
from torch import Tensor
from torch.func import functional_call

from heedful.decode import sampling
from heedful.decode.engines.step_operators import Definitions, Norm
from heedful.nn.attention.attend import Call, masked_softmax, reference
from heedful.nn.attention.attentive import Additive
from heedful.nn.context import Context, Mask
from heedful.nn.position import Sinusoidal
from heedful.text.bpe import merge_pair
from heedful.train.config import TrainConfig
from heedful.train.optim import adamw
from heedful.word2vec.definition import Window, gradient_step
from heedful.word2vec.hyperparameters import Settings

Pair = tuple[str, str]
Words = dict[tuple[str, ...], int]


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    return masked_softmax(x.movedim(dim, -1), None).movedim(-1, dim)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    heads = lambda t: t.reshape(1, -1, *t.shape[-2:])
    bias = None if mask is None else torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    bias = None if bias is None else heads(bias.expand(*q.shape[:-1], k.shape[-2]))
    q_pos, k_pos = torch.arange(q.shape[-2])[None], torch.arange(k.shape[-2])[None]
    call = Call(heads(q), heads(k), heads(v), q_pos, k_pos, Mask(), bias, q.shape[-1] ** -0.5, 0.0)
    return reference(call, Context(q_pos, k_pos, Mask())).reshape(*q.shape[:-1], v.shape[-1])


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    return Definitions().normalise(x, Norm("layer", gamma, beta, eps))


def positional_encoding(length: int, dim: int, base: float = 10000.0) -> Tensor:
    table: Tensor = Sinusoidal(dim, base)(torch.arange(length)[None])[0]
    return table


def lstm_step(x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return Definitions().lstm_cell(F.linear(x, W, b) + F.linear(h, U), c)


def bahdanau_score(query: Tensor, memory: Tensor, W: Tensor, U: Tensor, v: Tensor) -> Tensor:
    score = Additive(W.shape[1], U.shape[1], len(v))
    weights = {"q.weight": W, "k.weight": U, "v.weight": v[None]}
    scores: Tensor = functional_call(score, weights, (query, F.linear(memory, U)))
    return scores


def bpe_merge(words: Words) -> tuple[Pair, Words]:
    counts: Counter[Pair] = Counter()
    for pieces, count in words.items():
        for pair in pairwise(pieces):
            counts[pair] += count
    best = min(counts, key=lambda pair: (-counts[pair], pair))
    return best, {merge_pair(pieces, best): count for pieces, count in words.items()}


def skipgram_step(
    V: Tensor, U: Tensor, centre: int, contexts: list[int], negatives: list[int], rate: float
) -> tuple[Tensor, Tensor]:
    V, U = V.clone(), U.clone()
    signs = [1.0] * len(contexts) + [-1.0] * len(negatives)
    gradient_step(V, U, Window(centre, [centre], [*contexts, *negatives], signs), Settings(), rate)
    return V, U


def adamw_step(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    weight = torch.nn.Parameter(p.clone())
    weight.grad = g.clone()
    config = TrainConfig(lr=lr, betas=(beta1, beta2), eps=eps)
    optimiser = adamw([{"params": [weight], "weight_decay": weight_decay}], config)
    state = {"step": torch.tensor(float(t - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimiser.state[weight] = state
    optimiser.step()
    return weight.detach(), state["exp_avg"], state["exp_avg_sq"]


def causal_mask(q_pos: Tensor, k_pos: Tensor, window: int | None = None) -> Tensor:
    mask = Mask(causal=True, window=window, valid=k_pos[None] >= 0)
    return mask.dense(q_pos[None], k_pos[None])[0, 0]


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = torch.cat((keys, k), 1), torch.cat((values, v), 1)
    k_pos = torch.arange(keys.shape[1])[None]
    q_pos, mask = k_pos[:, -q.shape[1] :], Mask(causal=True)
    call = Call(q[None], keys[None], values[None], q_pos, k_pos, mask, None, q.shape[-1] ** -0.5, 0.0)
    return reference(call, Context(q_pos, k_pos, mask))[0], keys, values


def next_token_loss(logits: Tensor, tokens: Tensor, pad: int) -> Tensor:
    labels = tokens[:, 1:].masked_fill(tokens[:, 1:] == pad, -100)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten())


def top_p(logits: Tensor, p: float) -> Tensor:
    return sampling.top_p(logits[None], p)[0].softmax(-1)


def bleu(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    metric = BLEU(tokenize="none", smooth_method="none")
    join = lambda texts: [" ".join(words) for words in texts]
    score: float = metric.corpus_score(join(hypotheses), [join(references)]).score / 100
    return score


# Beam search has no such part: its place in the translator is held against `generate` with beams.
PARTS: dict[str, Callable[..., object]] = {
    part.__name__: part
    for part in (
        softmax, attention, layer_norm, positional_encoding, lstm_step, bahdanau_score, bpe_merge,
        skipgram_step, adamw_step, causal_mask, cached_attention, next_token_loss, top_p, bleu,
    )
}  # fmt: skip
