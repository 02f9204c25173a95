"""How the next token is chosen: rules over logits (B, V) in a fixed order, then a draw.

A model's probabilities have a long tail: each unlikely token is rare, but all of them together are drawn
every few words, and one bad token leads the rest of the text astray. So the tail is cut off before the draw.
top_k keeps a fixed number of tokens, top_p as many as hold a share of the probability (few where the model is
sure, many where it is not), min_p those within a factor of the most likely. Penalties lower what was written
before, because a likely text tends to repeat itself.

    bias → repetition → frequency → presence → no-repeat n-gram          change what is likely
    → temperature → top-k → top-p → min-p → typical                      only when sampling: narrow it down

That is the order of `transformers` for the rules it has; presence and frequency stand with repetition. A rule
that was not asked for costs nothing. `tokens` are those so far, (B, S), with −1 where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.decode.settings import GenerationSettings


def add_bias(logits: Tensor, bias: Mapping[int, float]) -> Tensor:
    """z_v + b_v for the tokens named; −inf forbids one."""
    tokens = torch.tensor(list(bias), device=logits.device)
    values = torch.tensor(list(bias.values()), dtype=logits.dtype, device=logits.device)
    return logits.index_add(1, tokens, values.expand(len(logits), -1))


def repetition(logits: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """z / penalty where z > 0, else z · penalty, for tokens that occurred   (Keskar et al. 2019 §4.1)"""
    punished = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(token_counts(tokens, logits.shape[1]) > 0, punished, logits)


def frequency(logits: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """z_v − penalty · how often v was written"""
    return logits - penalty * token_counts(tokens, logits.shape[1])


def presence(logits: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """z_v − penalty if v was written at all"""
    return logits - penalty * (token_counts(tokens, logits.shape[1]) > 0)


def token_counts(tokens: Tensor, vocab: int) -> Tensor:
    """(B, V): how often each token occurs in each row; −1 and ids beyond the vocabulary are not counted."""
    inside = (tokens >= 0) & (tokens < vocab)
    zeros = torch.zeros(len(tokens), vocab, device=tokens.device)
    return zeros.scatter_add_(1, tokens.where(inside, 0), inside.float())


def no_repeat(logits: Tensor, tokens: Tensor, size: int) -> Tensor:
    """−inf for a token that would complete an n-gram of that size again   (Paulus et al. 2018 §2.5)"""
    if tokens.shape[1] < size:
        return logits
    windows = tokens.unfold(1, size, 1)  # (B, S − size + 1, size)
    recent = tokens[:, tokens.shape[1] - size + 1 :][:, None]
    again = (windows[..., :-1] == recent).all(-1) & (windows >= 0).all(-1)
    ban = token_counts(windows[..., -1].masked_fill(~again, -1), logits.shape[1])
    return logits.masked_fill(ban > 0, -math.inf)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """z / T"""
    return logits / temperature


def top_k(logits: Tensor, k: int) -> Tensor:
    """The k most likely, and those as likely as the last of them   (Fan et al. 2018 §5.4)"""
    least = logits.topk(min(k, logits.shape[1])).values[:, -1:]
    return logits.masked_fill(logits < least, -math.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """The smallest set of most likely tokens whose probability reaches p   (Holtzman et al. 2020 §3.1)

    Those as likely as the last of them stay too.
    """
    unlikely = -logits
    return logits.masked_fill(unlikely > furthest(unlikely, logits.softmax(-1), p), -math.inf)


def furthest(key: Tensor, chances: Tensor, mass: float) -> Tensor:
    """(B, 1): going from the smallest key on, the key at which the probabilities add up to `mass`.

    A few hundred tokens mostly do, and finding those is far cheaper than sorting a vocabulary.
    """
    few = 512 if key.device.type == "cpu" and key.shape[1] > 2048 else key.shape[1]
    first = key.topk(few, largest=False)
    reached = chances.gather(1, first.indices).cumsum(-1)
    if few < key.shape[1] and bool((reached[:, -1] < mass).any()):
        first = key.topk(key.shape[1], largest=False)
        reached = chances.gather(1, first.indices).cumsum(-1)
    last = (reached < mass).sum(-1, keepdim=True).clamp(max=reached.shape[1] - 1)
    return first.values.gather(1, last)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Tokens at least p times as likely as the most likely   (Nguyen et al. 2024 §3.1)"""
    chances = logits.softmax(-1)
    return logits.masked_fill(chances < p * chances.amax(-1, keepdim=True), -math.inf)


def typical(logits: Tensor, mass: float) -> Tensor:
    """Tokens whose surprise −log p is nearest to the entropy, until their probability reaches `mass`

    (Meister et al. 2023, eq. 10). The most likely token may go.
    """
    logs = logits.log_softmax(-1)
    chances = logs.exp()
    entropy = -(chances * logs).nansum(-1, keepdim=True)
    far = (logs + entropy).abs()
    return logits.masked_fill(far > furthest(far, chances, mass), -math.inf)


def apply_penalties(
    settings: GenerationSettings, logits: Tensor, tokens: Tensor | None, new_tokens: int = 0
) -> Tensor:
    """Apply the first line of the order; the last `new_tokens` columns of `tokens` are the model's own.

    Repetition and n-grams count the prompt and what was written; frequency and presence only the latter.
    """
    if settings.bias:
        logits = add_bias(logits, settings.bias)
    if not settings.looks_back:
        return logits
    assert tokens is not None
    own = tokens[:, tokens.shape[1] - new_tokens :]
    if settings.repetition != 1:
        logits = repetition(logits, tokens, settings.repetition)
    if settings.frequency:
        logits = frequency(logits, own, settings.frequency)
    if settings.presence:
        logits = presence(logits, own, settings.presence)
    if settings.no_repeat is not None:
        logits = no_repeat(logits, tokens, settings.no_repeat)
    return logits


def warp(settings: GenerationSettings, logits: Tensor) -> Tensor:
    """Apply the second line of the order; greedy choice needs none of it."""
    assert settings.temperature is not None
    if settings.temperature != 1:
        logits = apply_temperature(logits, settings.temperature)
    if settings.top_k is not None:
        logits = top_k(logits, settings.top_k)
    if settings.top_p is not None and settings.top_p < 1:
        logits = top_p(logits, settings.top_p)
    if settings.min_p:
        logits = min_p(logits, settings.min_p)
    if settings.typical is not None and settings.typical < 1:
        logits = typical(logits, settings.typical)
    return logits


def choose_token(settings: GenerationSettings, logits: Tensor, u: Tensor | None) -> Tensor:
    """(B,): the most likely token of logits (B, V), or the one that the random numbers u (B,) draw."""
    if settings.greedy:
        return logits.argmax(-1)
    assert u is not None
    return draw(warp(settings, logits.float()), u)


def check_tokens_left(logits: Tensor, new_tokens: int) -> None:
    """An error if a row (B, V) has no token left; else one of the forbidden would be taken."""
    if bool((logits == -math.inf).all(-1).any()):
        raise InputError(
            f"after {new_tokens} tokens bias, no_repeat and the constraint together allow no other",
            hint="loosen one",
        )


def draw(logits: Tensor, u: Tensor) -> Tensor:
    """(B,): the first token whose cumulated probability exceeds u ∈ [0, 1), so that P(v) = softmax(z)_v

    One number per row decides, so a row's token depends on nothing but its logits and its number. Sums in
    float64: in float32 the tail of a large vocabulary would be lost to rounding.
    """
    below = logits.softmax(-1).double().cumsum(-1)
    tokens = torch.searchsorted(below, u[:, None] * below[:, -1:], right=True)[:, 0]
    return tokens.clamp_(max=logits.shape[1] - 1)


def generator(seed: int, row: int = 0, sample: int = 0) -> torch.Generator:
    """The random numbers of one row: always on the CPU, so that a seed means the same on every device."""
    state = np.random.SeedSequence((seed % 2**64, row, sample)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> 1))


def uniforms(generators: list[torch.Generator], count: int) -> Tensor:
    """(B, count) numbers in [0, 1), row b from its own generator."""
    return torch.stack([torch.rand(count, generator=g, dtype=torch.float64) for g in generators])
