"""The exercises skipgram_step and adamw_step.

Each has the mistakes that grading can name, a function with any of them in it, the definition, which calls
the library's own part, and the inputs it is tried on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.classroom.exercises.code import models
from heedful.classroom.exercises.code.exercise import Case, CodeExercise, mistakes
from heedful.classroom.exercises.code.transformer import random_tensors
from heedful.train.config import TrainConfig
from heedful.train.optim import adamw
from heedful.word2vec.definition import Window, gradient_step
from heedful.word2vec.hyperparameters import Settings

Names = frozenset[str]

SKIPGRAM_MISTAKES = mistakes(
    sign="the sign is wrong: the step goes up the gradient",
    no_negatives="the negative words are not used",
    no_contexts="the context words are not used",
    negatives_as_contexts="negative words are pulled closer like contexts: their label is 0, not 1",
    negatives_minus_one="the label of a negative word is −1 instead of 0",
    labels_swapped="the labels are swapped: contexts are pushed away and negatives pulled closer",
    centre_first="the centre moves before the contexts use it: both steps start from the old values",
    outputs_first="the contexts move before the centre uses them: both steps start from the old values",
    one_by_one="the words are taken one after another, each from the values that the one before left",
    repeated_once="a word that is there twice moves once",
    centre_fixed="the centre's vector does not move",
    outputs_fixed="the vectors of contexts and negatives do not move",
    one_table="contexts and negatives are read from V, the table of the centres",
    no_sigmoid="there is no sigmoid: the score itself is compared with the label",
    squared_error="there is a factor p (1 − p) too many, the gradient of a squared error",
    no_rate="the rate is not used",
    averaged="the gradient is divided by the number of words",
    centre_row_of_u="the centre's row of U moves instead of its row of V",
    centre_without_negatives="the centre moves by the contexts alone, not away from the negatives",
    wrong_argument="for negatives σ(−u·v) stands where σ(u·v) belongs",
)


def mutate_skipgram_step(
    m: Names, V: Tensor, U: Tensor, centre: int, contexts: list[int], negatives: list[int], rate: float
) -> tuple[Tensor, Tensor]:
    """skipgram_step with the mistakes `m`."""
    V, U = V.clone(), U.clone()
    words = [] if "no_contexts" in m else [(w, 1.0) for w in contexts]
    noise = 1.0 if "negatives_as_contexts" in m else -1.0 if "negatives_minus_one" in m else 0.0
    words += [] if "no_negatives" in m else [(w, noise) for w in negatives]
    if "labels_swapped" in m:
        words = [(w, 1 - label) for w, label in words]
    step = -rate if "sign" in m else 1.0 if "no_rate" in m else rate
    step = step / max(1, len(words)) if "averaged" in m else step
    for part in [[pair] for pair in words] if "one_by_one" in m else [words]:
        rows = torch.tensor([w for w, _ in part], dtype=torch.long)
        label = torch.tensor([x for _, x in part])
        v = V[centre].clone()
        u = (V if "one_table" in m else U)[rows]
        score = u @ v
        p = score if "no_sigmoid" in m else score.sigmoid()
        if "wrong_argument" in m:
            p = torch.where(label == 1, p, 1 - p)
        error = (p - label) * (p * (1 - p) if "squared_error" in m else 1)  # (M,)
        pull = error * label if "centre_without_negatives" in m else error
        to_centre = -step * (pull @ u)
        if "outputs_first" in m:
            to_centre = -step * (pull @ (u - step * error[:, None] * v))
        if "centre_fixed" not in m:
            (U if "centre_row_of_u" in m else V)[centre] += to_centre
        v = V[centre] if "centre_first" in m else v
        if "outputs_fixed" not in m:
            change = -step * error[:, None] * v
            if "repeated_once" in m:
                U[rows] = U[rows] + change
            else:
                U.index_add_(0, rows, change)
    return V, U


ADAMW_MISTAKES = mistakes(
    no_correction="there is no bias correction: m and v are used as they are",
    first_only="only m is corrected for its bias, v is not",
    second_only="only v is corrected for its bias, m is not",
    correction_from_zero="the correction uses t − 1: in the first step t is 1",
    correction_one_more="the correction uses t + 1: in the first step t is 1",
    correction_without_power="the correction is 1 − β instead of 1 − β^t",
    coupled="weight decay is added to the gradient (Adam with L2), not to the step",
    decay_without_rate="weight decay is not multiplied by lr",
    no_decay="there is no weight decay",
    decay_sign="weight decay has the wrong sign: weights grow",
    decay_after="weight decay is taken of the new p instead of the old one",
    eps_inside="ε stands inside the root instead of beside it",
    no_eps="ε is not used",
    sign="the sign is wrong: the step goes up the gradient",
    no_root="the step is divided by v̂ instead of its root",
    no_square="v is the mean of g instead of g²",
    betas_swapped="β₁ and β₂ are swapped",
    weights_swapped="β weighs the new gradient and 1 − β the old mean: the wrong way round",
    no_one_minus="the new gradient has no factor 1 − β: m' = β₁ m + g",
    m_without_factor="the new gradient has no factor 1 − β₁ in m",
    v_without_factor="the new g² has no factor 1 − β₂ in v",
    correction_multiplied="m and v are multiplied by 1 − β^t instead of divided",
    not_divided="m̂ is not divided by √v̂ + ε: this is plain momentum",
    no_momentum="the gradient itself is used instead of m̂",
    corrected_returned="the corrected m̂ and v̂ are returned: the next step would correct them again",
    old_moments="the old m and v are used for the step, before the new gradient is taken in",
    no_rate="the step is not multiplied by lr",
    outputs_swapped="m' and v' are returned in the wrong order",
)


def mutate_adamw_step(
    m: Names, p: Tensor, g: Tensor, first: Tensor, second: Tensor, t: int, lr: float, beta1: float,
    beta2: float, eps: float, weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """adamw_step with the mistakes `m`."""
    if "betas_swapped" in m:
        beta1, beta2 = beta2, beta1
    g = g + weight_decay * p if "coupled" in m else g
    square = g if "no_square" in m else g * g
    a, b = (1 - beta1, 1 - beta2) if "weights_swapped" in m else (beta1, beta2)
    new_a = 1.0 if m & {"no_one_minus", "m_without_factor"} else 1 - a
    new_b = 1.0 if m & {"no_one_minus", "v_without_factor"} else 1 - b
    m1, v1 = a * first + new_a * g, b * second + new_b * square
    used_m, used_v = (first, second) if "old_moments" in m else (m1, v1)
    power = t - ("correction_from_zero" in m) + ("correction_one_more" in m)
    power = 1 if "correction_without_power" in m else power
    m_hat = used_m / (1 - beta1**power)
    v_hat = used_v / (1 - beta2**power)
    if "correction_multiplied" in m:
        m_hat, v_hat = used_m * (1 - beta1**power), used_v * (1 - beta2**power)
    m_hat = used_m if m & {"no_correction", "second_only"} else m_hat
    v_hat = used_v if m & {"no_correction", "first_only"} else v_hat
    eps = 0.0 if "no_eps" in m else eps
    root = v_hat if "no_root" in m else (v_hat + eps).sqrt() if "eps_inside" in m else v_hat.sqrt()
    spread = root if "eps_inside" in m else root + eps
    spread = torch.ones_like(spread) if "not_divided" in m else spread
    step = (g if "no_momentum" in m else m_hat) / spread * (1.0 if "no_rate" in m else lr)
    new = p + step if "sign" in m else p - step
    if not m & {"no_decay", "coupled"}:
        rate = weight_decay * (1.0 if "decay_without_rate" in m else lr)
        new = new - (-rate if "decay_sign" in m else rate) * (new if "decay_after" in m else p)
    moments = (m_hat, v_hat) if "corrected_returned" in m else (m1, v1)
    return (new, *moments[::-1]) if "outputs_swapped" in m else (new, *moments)


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
        mutate_skipgram_step, SKIPGRAM_MISTAKES,
        "word2vec on 60 words", models.place_skipgram_step, ("V", "U"),
    ),
    CodeExercise(
        "adamw_step", "change a weight by running means of its gradient", adamw_step, adamw_cases,
        mutate_adamw_step, ADAMW_MISTAKES,
        "fit, 8 steps of a small GPT", models.place_adamw_step, ("p", "m", "v"), ("AdamW", "Adam"),
    ),
)  # fmt: skip
