"""The exercises lstm_step and bahdanau_score.

Each has the mistakes that grading can name, a function with any of them in it, the definition, which calls
the library's own part, and the inputs it is tried on.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from heedful.classroom.exercises.code import models
from heedful.classroom.exercises.code.exercise import Case, CodeExercise, mistakes
from heedful.classroom.exercises.code.transformer import random_tensors
from heedful.decode.engines.step_operators import Definitions
from heedful.nn.attention.additive import Additive

Names = frozenset[str]

LSTM_MISTAKES = mistakes(
    no_forget="there is no forget gate: c' = c + i ⊙ g",
    no_input="there is no input gate: c' = f ⊙ c + g",
    no_output="there is no output gate: h' = tanh(c')",
    output_candidate_swapped="the gates are read in the order i, f, o, g instead of i, f, g, o",
    input_forget_swapped="the gates are read in the order f, i, g, o instead of i, f, g, o",
    input_output_swapped="the gates are read in the order o, f, g, i instead of i, f, g, o",
    no_cell_tanh="h' = o ⊙ c', without tanh on the cell",
    sigmoid_cell="h' = o ⊙ σ(c'): a sigmoid stands where tanh belongs",
    sigmoid_candidate="the candidate g has a sigmoid instead of tanh",
    linear_candidate="the candidate g has no tanh",
    tanh_gates="the gates have tanh instead of a sigmoid",
    linear_gates="the gates have no sigmoid",
    linear_input="the input gate has no sigmoid",
    linear_forget="the forget gate has no sigmoid",
    linear_output="the output gate has no sigmoid",
    no_bias="the bias is not added",
    no_hidden="U h is not added: the step forgets the state before it",
    no_x="W x is not added: the step does not read its input",
    nothing_written="nothing new is written: c' = f ⊙ c",
    old_dropped="the old cell is dropped: c' = i ⊙ g",
    no_candidate="the candidate is missing: c' = f ⊙ c + i",
    old_cell="h' is made of the old cell instead of the new one",
    coupled="the input gate is replaced by 1 − f",
    forget_plus_one="1 is added to the forget gate: that belongs into the bias, which is given",
    forget_inverted="the forget gate is inverted: c' = (1 − f) ⊙ c + i ⊙ g",
    swapped_outputs="c' and h' are returned in the wrong order",
    cell_as_state="c stands where h belongs: the gates read the cell",
)


def mutate_lstm_step(
    m: Names, x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """lstm_step with the mistakes `m`."""
    z = torch.zeros(len(x), len(W)) if "no_x" in m else x @ W.T
    if "no_hidden" not in m:
        z = z + (c if "cell_as_state" in m else h) @ U.T
    if "no_bias" not in m:
        z = z + b
    i, f, g, o = z.chunk(4, -1)
    if "output_candidate_swapped" in m:
        g, o = o, g
    if "input_forget_swapped" in m:
        i, f = f, i
    if "input_output_swapped" in m:
        i, o = o, i
    f = f + 1 if "forget_plus_one" in m else f
    squash = torch.tanh if "tanh_gates" in m else torch.sigmoid
    i = i if m & {"linear_gates", "linear_input"} else squash(i)
    f = f if m & {"linear_gates", "linear_forget"} else squash(f)
    o = o if m & {"linear_gates", "linear_output"} else squash(o)
    if "linear_candidate" not in m:
        g = g.sigmoid() if "sigmoid_candidate" in m else g.tanh()
    i = 1 - f if "coupled" in m else torch.ones_like(i) if "no_input" in m else i
    keep = 1 - f if "forget_inverted" in m else torch.ones_like(f) if "no_forget" in m else f
    g = torch.ones_like(g) if "no_candidate" in m else g
    new = keep * c * ("old_dropped" not in m) + i * g * ("nothing_written" not in m)
    shown = c if "old_cell" in m else new
    if "no_cell_tanh" not in m:
        shown = shown.sigmoid() if "sigmoid_cell" in m else shown.tanh()
    out = shown if "no_output" in m else o * shown
    return (new, out) if "swapped_outputs" in m else (out, new)


SCORE_MISTAKES = mistakes(
    no_tanh="there is no tanh: the score is linear",
    swapped_matrices="W and U are swapped: W belongs to the query, U to the memory",
    no_v="v is not used: the entries are summed as they are",
    weights_not_scores="a softmax is applied: scores are asked for, not weights",
    no_query="W q is not added: the scores do not depend on the query",
    no_memory="U m is not added: all scores are alike",
    tanh_each="tanh is applied to W q and U m apart instead of to their sum",
    sigmoid="a sigmoid stands where tanh belongs",
    multiplied="W q and U m are multiplied instead of added",
    subtracted="U m is subtracted instead of added",
    scaled="the score is divided by √A, which belongs to the dot product",
    mean_not_sum="the mean over the A entries is taken instead of the sum",
    tanh_outside="tanh is applied to the score instead of inside it",
    dot_product="this is the dot product of W q and U m, not the additive score",
)


def mutate_bahdanau_score(m: Names, query: Tensor, memory: Tensor, W: Tensor, U: Tensor, v: Tensor) -> Tensor:
    """bahdanau_score with the mistakes `m`."""
    W, U = (U, W) if "swapped_matrices" in m else (W, U)
    q, k = (query @ W.T)[:, None], memory @ U.T  # (B, 1, A) and (B, S, A)
    if "dot_product" in m:
        return (q * k).sum(-1)
    q = torch.zeros_like(q) if "no_query" in m else q
    k = torch.zeros_like(k) if "no_memory" in m else -k if "subtracted" in m else k
    squash = torch.sigmoid if "sigmoid" in m else torch.tanh
    if "tanh_each" in m:
        inner = squash(q) + squash(k)
    else:
        inner = q * k if "multiplied" in m else q + k
        inner = inner if m & {"no_tanh", "tanh_outside"} else squash(inner)
    products = inner if "no_v" in m else inner * v
    score = products.mean(-1) if "mean_not_sum" in m else products.sum(-1)
    score = score / math.sqrt(len(v)) if "scaled" in m else score
    score = score.tanh() if "tanh_outside" in m else score
    return score.softmax(-1) if "weights_not_scores" in m else score


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
    """The library's additive score (`nn/attention/additive.py:Additive`)."""
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
        mutate_lstm_step, LSTM_MISTAKES,
        "an LSTM trained for 60 steps", models.place_lstm_step, ("h", "c"), ("LSTMCell", "lstm_cell", "LSTM"),
    ),
    CodeExercise(
        "bahdanau_score", "score each word of the source by a small network", bahdanau_score, score_cases,
        mutate_bahdanau_score, SCORE_MISTAKES,
        models.ALIGNER, models.place_bahdanau_score,
    ),
)  # fmt: skip
