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

`skipgram_step` shows one step of skip-gram with negative sampling with every number, for a page, a table or a
test. For the centre's vector v and outside vectors u_o with label y_o (1 observed, 0 drawn as noise):

    x_o = u_o · v     p_o = σ(x_o)     L = -Σ_o [y_o log p_o + (1 - y_o) log(1 - p_o)]
    e_o = p_o - y_o     ∂L/∂u_o = e_o v     ∂L/∂v = Σ_o e_o u_o     θ ← θ - η ∂L/∂θ   (Goldberg & Levy 2014)
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from heedful.core.checks import check_number
from heedful.core.errors import ConfigError
from heedful.word2vec.corpus import GOLDEN, MASK, mix_bits
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.word_counts import HuffmanTree


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


class RandomStream:
    """The draws of one job, in the order kernels.py makes them."""

    def __init__(self, seed: int) -> None:
        self.state = mix_bits(seed)

    def bits(self) -> int:
        """Return the next 64 random bits."""
        self.state = (self.state + GOLDEN) & MASK
        return mix_bits(self.state)

    def below(self, limit: int) -> int:
        """Draw evenly from 0 … limit - 1, by the high 32 bits."""
        return ((self.bits() >> 32) * limit) >> 32

    def draw_noise(self, alias: np.ndarray) -> int:
        """Draw a word from an alias table."""
        bits = self.bits()
        column = ((bits >> 32) * len(alias)) >> 32
        return column if bits & 0xFFFFFFFF < int(alias[column, 0]) else int(alias[column, 1])


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


SENTENCE = "Marco saw a furry little wampimuk hiding in the tree ."
NOISE = ("Australia", "cyber", "the", "1985")
NOTE = (
    "A drawn word may well be a true context (“the” stands in this sentence, outside the window): "
    "it is drawn without looking. The objective is to maximise Π σ(x) over observed pairs times "
    "Π (1 − σ(x)) over drawn ones; "
    "to minimise Π σ(x) over the drawn ones is not the same problem."
)


@dataclass(frozen=True)
class OutsideWord:
    """One outside word: from its vector to its new vector."""

    word: str
    label: int
    vector: list[float]
    products: list[float]  # u_k v_k
    dot: float
    sigmoid: float
    loss: float
    error: float  # σ - label
    gradient: list[float]
    new_vector: list[float]
    dot_after: float
    sigmoid_after: float


@dataclass(frozen=True)
class SkipGramStep:
    """The centre and its outside words; `note` says what the numbers do not."""

    sentence: str
    centre: str
    window: int
    rate: float
    vector: list[float]
    rows: list[OutsideWord]
    gradient: list[float]
    new_vector: list[float]
    loss: float
    loss_after: float
    note: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_markdown(self, digits: int = 4) -> str:
        """Return the arithmetic as text; every line can be checked by hand from the numbers it shows."""
        n = lambda value: f"{value + 0.0:.{digits}f}".replace("-", "−")
        vec = lambda values: "[" + " ".join(map(n, values)) + "]"
        lines = [
            f"centre **{self.centre}**, window {self.window}: “{self.sentence}”",
            "",
            f"v = {vec(self.vector)}, η = {self.rate}",
            "",
            "| outside word | y | u | x = u·v | σ(x) | −log | σ − y | ∂L/∂u = (σ − y) v | new u | σ after |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r.word} | {r.label} | {vec(r.vector)} | {n(r.dot)} | {n(r.sigmoid)} | {n(r.loss)} "
            f"| {n(r.error)} | {vec(r.gradient)} | {vec(r.new_vector)} | {n(r.sigmoid_after)} |"
            for r in self.rows
        ]
        lines += [
            "",
            f"L = {n(self.loss)}",
            f"∂L/∂v = Σ (σ − y) u = {vec(self.gradient)}",
            f"new v = v − η ∂L/∂v = {vec(self.new_vector)}",
            f"L after the step = {n(self.loss_after)}",
            "",
            self.note,
        ]
        return "\n".join(lines)


def skipgram_step(
    vector: Sequence[float], outside: Sequence[tuple[str, int, Sequence[float]]], rate: float = 0.5, *,
    centre: str = "", sentence: str = "", window: int = 0, note: str = "",
) -> SkipGramStep:  # fmt: skip
    """Compute one step; `outside` is (word, label, vector) for each observed and each drawn word."""
    v, u = np.array(vector, dtype=np.float64), np.array([u for _, _, u in outside], dtype=np.float64)
    y = np.array([label for _, label, _ in outside])
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    losses = lambda x: np.logaddexp(0, np.where(y == 1, -x, x))  # -log σ(x) if observed, -log σ(-x) if drawn
    x = u @ v
    error = sigmoid(x) - y
    gradient_u, gradient_v = error[:, None] * v, error @ u
    new_u, new_v = u - rate * gradient_u, v - rate * gradient_v
    x_after = new_u @ new_v
    columns = (u, u * v, x, sigmoid(x), losses(x), error, gradient_u, new_u, x_after, sigmoid(x_after))
    rows = [
        OutsideWord(word, label, *(column[o].tolist() for column in columns))
        for o, (word, label, _) in enumerate(outside)
    ]
    return SkipGramStep(
        sentence=sentence, centre=centre, window=window, rate=rate, vector=v.tolist(), rows=rows,
        gradient=gradient_v.tolist(), new_vector=new_v.tolist(), loss=float(losses(x).sum()),
        loss_after=float(losses(x_after).sum()), note=note,
    )  # fmt: skip


def wampimuk(
    dim: int = 4, window: int = 2, noise: Sequence[str] = NOISE, rate: float = 0.5, seed: int = 1
) -> SkipGramStep:
    """Work through an example: wampimuk, its observed neighbours, four drawn words, small round numbers."""
    check_number("rate", rate, error=ConfigError)
    words = SENTENCE.split()
    at = words.index("wampimuk")
    observed = words[max(0, at - window) : at] + words[at + 1 : at + 1 + window]
    draw = random.Random(seed)
    vector = lambda: [round(draw.uniform(-1, 1), 1) for _ in range(dim)]
    v = vector()
    outside = [(word, 1, vector()) for word in observed] + [(word, 0, vector()) for word in noise]
    return skipgram_step(v, outside, rate, centre="wampimuk", sentence=SENTENCE, window=window, note=NOTE)
