"""Number exercises that work back from a loss: gradients of a softmax, a norm, attention, an RNN, an LSTM."""

from __future__ import annotations

import random

from heedful.classroom.exercises.numbers import Values, number_exercise
from heedful.classroom.exercises.numbers_forward import bits, tenths


@number_exercise(
    "softmax-gradient",
    "The softmax, the rows of its Jacobian, and dz for the gradient given as “above”.",
    ("weights of all", "row . of the Jacobian", "mean gradient.*", "gradient of the scores.*"),
)
def draw_softmax_gradient(rng: random.Random) -> Values:
    logits = [float(n) for n in rng.sample(range(-1, 4), 3)]
    return {"topic": "softmax-gradient", "logits": logits, "above": rng.sample([-2, -1, 0, 1, 2], 3)}


@number_exercise(
    "cross-entropy-gradient",
    "Probabilities, loss in nats and in bits, and the gradient of the logits.",
    ("weights of all", "loss", "the same in bits", "gradient of the logits"),
)
def draw_cross_entropy(rng: random.Random) -> Values:
    words = ["mat", "floor", "moon"]
    logits = [n / 10 for n in rng.sample(range(-10, 31), 3)]
    return {"topic": "cross-entropy-gradient", "tokens": words, "logits": logits, "target": rng.choice(words)}


@number_exercise(
    "norm-gradient",
    "Normalise x (ε is 1e-5), then work back from the gradient given as “above”.",
    (
        "mean",
        "variance",
        "normalised",
        "gradient of γ",
        "gradient of the normalised",
        "mean of dn.*",
        "gradient of x",
    ),
)
def draw_norm_gradient(rng: random.Random) -> Values:
    while len(set(x := [rng.randint(-3, 3) for _ in range(4)])) < 3:
        pass
    above = [rng.choice([-2, -1, 1, 2]) for _ in range(4)]
    return {"topic": "norm-gradient", "x": x, "gamma": [rng.choice([1, 2]) for _ in range(4)], "eps": 1e-5,
            "above": above}  # fmt: skip


@number_exercise(
    "attention-gradient",
    "Weights and outputs, then dw, ds and dq of each query, dk and dv of each key.",
    ("scores of .*", "weights of .*", "gradient of the .*", "d[qkv] of .*"),
)
def draw_attention_gradient(rng: random.Random) -> Values:
    Q, K, V = (bits(rng, 2, 2) for _ in range(3))
    above = [[rng.choice([-1, 1, 2]) for _ in range(2)] for _ in range(2)]
    return {"topic": "attention-gradient", "tokens": ["The", "cat"], "Q": Q, "K": K, "V": V, "above": above}


@number_exercise(
    "rnn-gradient",
    "Forward through three steps (h starts at 0), then back: da and dh at every step.",
    ("state .", "slope .", "da .", "dh .", "gradient of .*"),
)
def draw_rnn_gradient(rng: random.Random) -> Values:
    return {"topic": "rnn-gradient", "X": tenths(rng, 3, 1), "h": [0], "W": [[1]],
            "U": [[rng.choice([0.5, 1.5, 2.0])]], "above": [1]}  # fmt: skip


@number_exercise(
    "lstm-gradient",
    "Forward through two steps, then back: the gates' gradients, dh and dc at every step.",
    ("[ifgo]", "new cell", "new state", r"dc . with.*", r"da_. .", r"d[hc] \d"),
)
def draw_lstm_gradient(rng: random.Random) -> Values:
    return {
        "topic": "lstm-gradient", "X": tenths(rng, 2, 1), "h": [0], "c": [0], "W": tenths(rng, 4, 1),
        "U": tenths(rng, 4, 1), "b": [0, rng.choice([-2, 1, 3]), 0, 0], "above": [1],
    }  # fmt: skip
