"""One step of skip-gram with negative sampling with every number, as data a page, a table or a test can read.

For the centre's vector v and outside vectors u_o with label y_o (1 observed, 0 drawn as noise):

    x_o = u_o · v     p_o = σ(x_o)     L = -Σ_o [y_o log p_o + (1 - y_o) log(1 - p_o)]
    e_o = p_o - y_o     ∂L/∂u_o = e_o v     ∂L/∂v = Σ_o e_o u_o     θ ← θ - η ∂L/∂θ     (Goldberg & Levy 2014)
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SENTENCE = "Marco saw a furry little wampimuk hiding in the tree ."
NOISE = ("Australia", "cyber", "the", "1985")


@dataclass(frozen=True)
class Row:
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
class Step:
    """The centre and its outside words; `note` says what the numbers do not."""

    sentence: str
    centre: str
    window: int
    rate: float
    vector: list[float]
    rows: list[Row]
    gradient: list[float]
    new_vector: list[float]
    loss: float
    loss_after: float
    note: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def markdown(self, digits: int = 4) -> str:
        """The arithmetic as text; every line can be checked by hand from the numbers it shows."""
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


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b))


def moved(values: Sequence[float], gradient: Sequence[float], rate: float) -> list[float]:
    return [x - rate * g for x, g in zip(values, gradient)]


def sgns_step(
    vector: Sequence[float],
    outside: Sequence[tuple[str, int, Sequence[float]]],
    rate: float = 0.5,
    centre: str = "",
    sentence: str = "",
    window: int = 0,
    note: str = "",
) -> Step:
    """The whole step; `outside` is (word, label, vector) for each observed and each drawn word."""
    v = list(vector)
    errors = [sigmoid(dot(u, v)) - label for _, label, u in outside]
    gradient = [math.fsum(e * u[k] for e, (_, _, u) in zip(errors, outside)) for k in range(len(v))]
    new_v = moved(v, gradient, rate)
    rows = []
    for error, (word, label, u) in zip(errors, outside):
        new_u = moved(u, [error * x for x in v], rate)
        after = dot(new_u, new_v)
        rows.append(
            Row(
                word,
                label,
                list(u),
                [a * b for a, b in zip(u, v)],
                dot(u, v),
                sigmoid(dot(u, v)),
                example_loss(dot(u, v), label),
                error,
                [error * x for x in v],
                new_u,
                after,
                sigmoid(after),
            )
        )
    loss_after = math.fsum(example_loss(row.dot_after, row.label) for row in rows)
    return Step(
        sentence,
        centre,
        window,
        rate,
        v,
        rows,
        gradient,
        new_v,
        math.fsum(row.loss for row in rows),
        loss_after,
        note,
    )


def example_loss(x: float, label: int) -> float:
    """-log σ(x) for an observed pair, -log(1 - σ(x)) = -log σ(-x) for a drawn one."""
    return -math.log(sigmoid(x if label else -x))


def wampimuk(
    dim: int = 4, window: int = 2, noise: Sequence[str] = NOISE, rate: float = 0.5, seed: int = 1
) -> Step:
    """The notes' example: wampimuk with its observed neighbours and four drawn words, vectors of small round
    numbers.
    """
    words = SENTENCE.split()
    at = words.index("wampimuk")
    observed = words[max(0, at - window) : at] + words[at + 1 : at + 1 + window]
    draw = random.Random(seed)
    vector = lambda: [round(draw.uniform(-1, 1), 1) for _ in range(dim)]
    v = vector()
    outside = [(word, 1, vector()) for word in observed] + [(word, 0, vector()) for word in noise]
    note = (
        "A drawn word may well be a true context (“the” stands in this sentence, outside the window): "
        "it is drawn without looking. The objective is to maximise Π σ(x) over observed pairs times "
        "Π (1 − σ(x)) over drawn ones; "
        "to minimise Π σ(x) over the drawn ones is not the same problem."
    )
    return sgns_step(v, outside, rate, "wampimuk", SENTENCE, window, note)
