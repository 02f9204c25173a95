"""One step of skip-gram with negative sampling with every number, as data a page, a table or a test can read.

For the centre's vector v and outside vectors u_o with label y_o (1 observed, 0 drawn as noise):

    x_o = u_o · v     p_o = σ(x_o)     L = -Σ_o [y_o log p_o + (1 - y_o) log(1 - p_o)]
    e_o = p_o - y_o     ∂L/∂u_o = e_o v     ∂L/∂v = Σ_o e_o u_o     θ ← θ - η ∂L/∂θ     (Goldberg & Levy 2014)
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

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
    words = SENTENCE.split()
    at = words.index("wampimuk")
    observed = words[max(0, at - window) : at] + words[at + 1 : at + 1 + window]
    draw = random.Random(seed)
    vector = lambda: [round(draw.uniform(-1, 1), 1) for _ in range(dim)]
    v = vector()
    outside = [(word, 1, vector()) for word in observed] + [(word, 0, vector()) for word in noise]
    return skipgram_step(v, outside, rate, centre="wampimuk", sentence=SENTENCE, window=window, note=NOTE)
