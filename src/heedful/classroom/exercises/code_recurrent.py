"""The code exercises of recurrent models: lstm_step, bahdanau_score."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from heedful.classroom.exercises import code_models as models
from heedful.classroom.exercises import mutations_recurrent as mutations
from heedful.classroom.exercises.code_exercise import Case, CodeExercise
from heedful.classroom.exercises.code_transformer import random_tensors
from heedful.decode.engines.step_operators import Definitions
from heedful.nn.additive import Additive


def lstm_step(x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The library's definition of a step (`decode/engines/step_operators.py:Definitions.lstm_cell`)."""
    return Definitions().lstm_cell(F.linear(x, W, b) + F.linear(h, U), c)


def lstm_cases() -> list[Case]:
    cases = []
    for seed, (about, B, D, H) in enumerate([
        ("two rows, three inputs, four states", 2, 3, 4), ("as many inputs as states", 3, 3, 3),
        ("one row", 1, 2, 5),
    ]):  # fmt: skip
        shapes = ((B, D), (B, H), (B, H), (4 * H, D), (4 * H, H), (4 * H,))
        cases.append(Case(about, tuple(random_tensors(10 + seed, *shapes))))
    x, _, _, W, U, b = cases[0].arguments
    zero = torch.zeros(2, 4)
    return [*cases, Case("the first step: h and c are zero", (x, zero, zero, W, U, b))]


def bahdanau_score(query: Tensor, memory: Tensor, W: Tensor, U: Tensor, v: Tensor) -> Tensor:
    """The library's additive score (`nn/additive.py:Additive`)."""
    score = Additive(W.shape[1], U.shape[1], len(v))
    weights = {"q.weight": W, "k.weight": U, "v.weight": v[None]}
    scores: Tensor = functional_call(score, weights, (query, F.linear(memory, U)))
    return scores


def score_cases() -> list[Case]:
    shapes = [
        ("query and memory of one size", 2, 5, 3, 3, 4),
        ("query and memory of different sizes", 2, 4, 3, 5, 6),
        ("one sentence of one word", 1, 1, 2, 3, 4),
    ]  # fmt: skip
    return [
        Case(about, tuple(random_tensors(20 + i, (B, Q), (B, S, M), (A, Q), (A, M), (A,))))
        for i, (about, B, S, Q, M, A) in enumerate(shapes)
    ]


EXERCISES = (
    CodeExercise(
        "lstm_step", "keep, write and read a cell by gates", lstm_step, lstm_cases,
        mutations.mutate_lstm_step, mutations.LSTM_MISTAKES,
        "an LSTM trained for 60 steps", models.place_lstm_step, ("h", "c"), ("LSTMCell", "lstm_cell", "LSTM"),
    ),
    CodeExercise(
        "bahdanau_score", "score each word of the source by a small network", bahdanau_score, score_cases,
        mutations.mutate_bahdanau_score, mutations.SCORE_MISTAKES,
        models.ALIGNER, models.place_bahdanau_score,
    ),
)  # fmt: skip
