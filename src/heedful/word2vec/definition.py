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

from heedful.word2vec.huffman import HuffmanTree
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.random_bits import RandomStream


@dataclass(frozen=True)
class Window:
    """One step: the rows read from the input table, the rows of the output table and their signs."""

    centre: int
    contexts: list[int]
    outputs: list[int]
    signs: list[float]


def window_objective(contexts: Tensor, outputs: Tensor, signs: Tensor, settings: Settings) -> Tensor:
    """L of one window from the vectors of its context words (C, D) and of its outputs (M, D)."""
    h = contexts
    if settings.mode == "cbow":
        h = h.mean(0, keepdim=True) if settings.cbow == "mean" else h.sum(0, keepdim=True)  # (1, D)
    return -logsigmoid(h @ outputs.T * signs).sum()


def window_loss(v: Tensor, u: Tensor, window: Window, settings: Settings) -> Tensor:
    """L of one window; v and u are the input and the output table."""
    signs = torch.tensor(window.signs, dtype=v.dtype)
    return window_objective(v[window.contexts], u[window.outputs], signs, settings)


def gradient_step(v: Tensor, u: Tensor, window: Window, settings: Settings, rate: float) -> float:
    """θ ← θ - η ∂L/∂θ in place; returns L before the step. A row that occurs twice moves twice."""
    contexts, outputs = torch.tensor(window.contexts), torch.tensor(window.outputs)
    rows = v[contexts].requires_grad_(), u[outputs].requires_grad_()
    loss = window_objective(*rows, torch.tensor(window.signs, dtype=v.dtype), settings)
    to_contexts, to_outputs = torch.autograd.grad(loss, rows)
    v.index_add_(0, contexts, to_contexts, alpha=-rate)
    u.index_add_(0, outputs, to_outputs, alpha=-rate)
    return float(loss.detach())


def word_probabilities(h: Tensor, u: Tensor, tree: HuffmanTree) -> Tensor:
    """P(w | h) of every word by hierarchical softmax: Π_j σ(s_j u_j · h)."""
    scores = u @ h
    probabilities = []
    for word in range(tree.words):
        nodes, turns = (torch.from_numpy(array) for array in tree.path(word))
        probabilities.append(torch.sigmoid(turns.to(u.dtype) * scores[nodes]).prod())
    return torch.stack(probabilities)


def draw_windows(
    ids: np.ndarray, keep: np.ndarray, noise: np.ndarray, tree: HuffmanTree | None, settings: Settings,
    seed: int,
) -> Iterator[Window]:  # fmt: skip
    """Yield the windows of one job in order: subsampling, reaches and noise words come from one stream."""
    stream = RandomStream(seed)
    sentence: list[int] = []
    for word in [*ids.tolist(), -1]:
        if word >= 0:
            if stream.bits() >> 32 <= int(keep[word]):
                sentence.append(word)
            continue
        for i, centre in enumerate(sentence):
            reach = 1 + stream.below(settings.window) if settings.dynamic else settings.window
            if tree is not None:
                nodes, turns = tree.path(centre)
                outputs, signs = nodes.tolist(), turns.tolist()
            else:
                drawn = [stream.draw_noise(noise) for _ in range(settings.negatives)]
                outputs = [centre] + [n for n in drawn if n != centre]
                signs = [1.0] + [-1.0] * (len(outputs) - 1)
            contexts = sentence[max(0, i - reach) : i] + sentence[i + 1 : i + reach + 1]
            if contexts:
                yield Window(centre, contexts, outputs, signs)
        sentence = []
