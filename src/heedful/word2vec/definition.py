"""The four objectives in a few lines of PyTorch, and the windows in plain Python: what kernels.py and gpu.py
must equal.

For a window with centre word w and context words c_1 … c_C:

    inputs    skip-gram   h_1 … h_C = v_{c_1} … v_{c_C}        C examples: its pairs with the centre
              CBOW        h = mean or sum of the v_c           1 example
    outputs   negative sampling     u_w, s = +1; u_n, s = -1 for noise words n ~ count^¾   (2013b eq. 4)
              hierarchical softmax  u_j of the nodes on the path to w, s_j = ±1 by the turn (2013b eq. 3)

    L = -Σ_examples Σ_outputs log σ(s_j u_j · h)        one step per window: θ ← θ - η ∂L/∂θ

The noise words are drawn once per window and shared by its examples; one that equals the centre is left out
(a noise word that happens to be a true context stays: it is noise, not a judgement). Maximising Π σ(u_w·h) Π
σ(-u_n·h) is what this does; minimising Π σ(u_n·h) would not be the same. As in the authors' program the
context words are the inputs and the centre the output; over a text the pairs are symmetric.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from heedful.word2vec.huffman import Paths
from heedful.word2vec.settings import Settings
from heedful.word2vec.training import MASK, scramble

GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Window:
    """One step: the rows read from the input table, the rows of the output table and their signs."""

    centre: int
    contexts: list[int]
    outputs: list[int]
    signs: list[float]


def objective(contexts: Tensor, outputs: Tensor, signs: Tensor, settings: Settings) -> Tensor:
    """L of one window from the vectors of its context words (C, D) and of its outputs (M, D)."""
    h = contexts
    if settings.mode == "cbow":
        h = h.mean(0, keepdim=True) if settings.cbow == "mean" else h.sum(0, keepdim=True)  # (1, D)
    return -logsigmoid(h @ outputs.T * signs).sum()


def window_loss(v: Tensor, u: Tensor, window: Window, settings: Settings) -> Tensor:
    """L of one window; v and u are the input and the output table."""
    signs = torch.tensor(window.signs, dtype=v.dtype)
    return objective(v[window.contexts], u[window.outputs], signs, settings)


def step(v: Tensor, u: Tensor, window: Window, settings: Settings, rate: float) -> float:
    """θ ← θ - η ∂L/∂θ in place; returns L before the step. A row that occurs twice moves twice."""
    contexts, outputs = torch.tensor(window.contexts), torch.tensor(window.outputs)
    rows = v[contexts].requires_grad_(), u[outputs].requires_grad_()
    loss = objective(*rows, torch.tensor(window.signs, dtype=v.dtype), settings)
    to_contexts, to_outputs = torch.autograd.grad(loss, rows)
    v.index_add_(0, contexts, to_contexts, alpha=-rate)
    u.index_add_(0, outputs, to_outputs, alpha=-rate)
    return float(loss.detach())


def probabilities(h: Tensor, u: Tensor, paths: Paths) -> Tensor:
    """P(w | h) of every word by hierarchical softmax: Π_j σ(s_j u_j · h)."""
    scores = u @ h
    every = []
    for word in range(len(paths.first) - 1):
        nodes, turns = paths.of(word)
        every.append(
            torch.sigmoid(torch.from_numpy(turns).to(u.dtype) * scores[torch.from_numpy(nodes)]).prod()
        )
    return torch.stack(every)


class Stream:
    """SplitMix64 on Python integers, as kernels.mix: 64 bits a call."""

    def __init__(self, seed: int) -> None:
        self.state = scramble(seed)

    def bits(self) -> int:
        self.state = (self.state + GOLDEN) & MASK
        return scramble(self.state)

    def below(self, limit: int) -> int:
        """Evenly from 0 … limit - 1, by the high 32 bits."""
        return ((self.bits() >> 32) * limit) >> 32

    def noise(self, alias: np.ndarray) -> int:
        bits = self.bits()
        column = ((bits >> 32) * (len(alias) // 2)) >> 32
        return column if bits & 0xFFFFFFFF < int(alias[2 * column]) else int(alias[2 * column + 1])


def windows(
    ids: np.ndarray, keep: np.ndarray, alias: np.ndarray, paths: Paths | None, settings: Settings, seed: int
) -> Iterator[Window]:
    """The windows of one job in order: words thinned out, reaches and noise words drawn from one stream."""
    stream = Stream(seed)
    sentence: list[int] = []
    for word in [*ids.tolist(), -1]:
        if word >= 0:
            if stream.bits() >> 32 <= int(keep[word]):
                sentence.append(word)
            continue
        for i, centre in enumerate(sentence):
            reach = 1 + stream.below(settings.window) if settings.dynamic else settings.window
            if paths is not None:
                nodes, turns = paths.of(centre)
                outputs, signs = nodes.tolist(), turns.tolist()
            else:
                noise = [stream.noise(alias) for _ in range(settings.negatives)]
                outputs = [centre] + [n for n in noise if n != centre]
                signs = [1.0] + [-1.0] * (len(outputs) - 1)
            contexts = sentence[max(0, i - reach) : i] + sentence[i + 1 : i + reach + 1]
            if contexts:
                yield Window(centre, contexts, outputs, signs)
        sentence = []
