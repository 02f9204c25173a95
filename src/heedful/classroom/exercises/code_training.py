"""The code exercises of training: skipgram_step, adamw_step."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.classroom.exercises import code_models as models
from heedful.classroom.exercises import mutations_training as mutations
from heedful.classroom.exercises.code_exercise import Case, CodeExercise
from heedful.classroom.exercises.code_transformer import random_tensors
from heedful.train.config import TrainConfig
from heedful.train.optim import adamw
from heedful.word2vec.definition import Window, gradient_step
from heedful.word2vec.hyperparameters import Settings


def skipgram_step(
    V: Tensor, U: Tensor, centre: int, contexts: list[int], negatives: list[int], rate: float
) -> tuple[Tensor, Tensor]:
    """The library's step (`word2vec/definition.py:gradient_step`), from the centre to its contexts."""
    V, U = V.clone(), U.clone()
    signs = [1.0] * len(contexts) + [-1.0] * len(negatives)
    gradient_step(V, U, Window(centre, [centre], [*contexts, *negatives], signs), Settings(), rate)
    return V, U


def skipgram_cases() -> list[Case]:
    V, U = random_tensors(40, (7, 3), (7, 3))
    return [
        Case("two contexts, three negatives", (V, U, 2, [1, 4], [0, 5, 6], 0.5)),
        Case("one context, no negatives", (V, U, 0, [3], [], 0.5)),
        Case("a negative word that was drawn twice", (V, U, 3, [1], [6, 6, 2], 0.3)),
        Case("the centre among the negatives", (V, U, 5, [0, 1], [5, 4], 0.4)),
    ]


def adamw_step(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The library's AdamW (`train/optim.py:adamw`), for one step."""
    weight = torch.nn.Parameter(p.clone())
    weight.grad = g.clone()
    config = TrainConfig(lr=lr, betas=(beta1, beta2), eps=eps)
    optimiser = adamw([{"params": [weight], "weight_decay": weight_decay}], config)
    state = {"step": torch.tensor(float(t - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimiser.state[weight] = state
    optimiser.step()
    return weight.detach(), state["exp_avg"], state["exp_avg_sq"]


def adamw_cases() -> list[Case]:
    p, g, m, v = random_tensors(50, (3, 4), (3, 4), (3, 4), (3, 4))
    zero = torch.zeros_like(p)
    return [
        Case("the first step", (p, g, zero, zero, 1, 0.1, 0.9, 0.95, 1e-8, 0.0)),
        Case("the first step, with weight decay", (p, g, zero, zero, 1, 0.1, 0.9, 0.99, 1e-8, 0.5)),
        Case("the fourth step", (p, g, m, v.square(), 4, 0.1, 0.8, 0.95, 1e-8, 0.5)),
        Case("a large ε", (p, 0.3 * g, 0.3 * m, 0.1 * v.square(), 2, 0.2, 0.9, 0.95, 0.2, 0.3)),
        Case("a vector", (p[0], g[0], m[0], v[0].square(), 12, 0.1, 0.9, 0.95, 1e-3, 1.0)),
    ]


EXERCISES = (
    CodeExercise(
        "skipgram_step", "pull a word to its contexts and away from noise", skipgram_step, skipgram_cases,
        mutations.mutate_skipgram_step, mutations.SKIPGRAM_MISTAKES,
        "word2vec on 60 words", models.place_skipgram_step, ("V", "U"),
    ),
    CodeExercise(
        "adamw_step", "change a weight by running means of its gradient", adamw_step, adamw_cases,
        mutations.mutate_adamw_step, mutations.ADAMW_MISTAKES,
        "fit, 8 steps of a small GPT", models.place_adamw_step, ("p", "m", "v"), ("AdamW", "Adam"),
    ),
)  # fmt: skip
