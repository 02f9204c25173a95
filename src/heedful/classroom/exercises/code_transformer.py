"""The code exercises of the Transformer: softmax, attention, layer_norm, positional_encoding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from heedful.classroom.exercises import code_models as models
from heedful.classroom.exercises import mutations_transformer as mutations
from heedful.classroom.exercises.code_exercise import Case, CodeExercise
from heedful.decode.engines.step_operators import Definitions, Norm
from heedful.nn.attend import Call, masked_softmax, reference
from heedful.nn.context import Context, Mask
from heedful.nn.position import Sinusoidal


def random_tensors(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Return normal random tensors that are the same every time."""
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source) for shape in shapes]


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """The softmax of the library's attention, over any dimension."""
    return masked_softmax(x.movedim(dim, -1), None).movedim(-1, dim)


def softmax_cases() -> list[Case]:
    vector, matrix, block = random_tensors(1, (5,), (3, 4), (2, 3, 4))
    hidden = matrix.clone()
    hidden[0, 1:], hidden[2, 0] = -math.inf, -math.inf
    scales = torch.tensor([[0.5, 1.0, 2.0], [1000.0, 1001.0, 1000.5]])
    return [
        Case("a vector", (vector, -1)),
        Case("a matrix, over its rows", (matrix, -1)),
        Case("a matrix, over its columns", (matrix, 0)),
        Case("three dimensions, over the middle one", (block, 1)),
        Case("large entries", (torch.tensor([1000.0, 1001.0, 999.0]), -1)),
        Case("rows of very different size", (scales, -1)),
        Case("entries of −∞", (hidden, -1)),
    ]


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The library's definition of attention (`nn/attend.py:reference`)."""
    heads = lambda t: t.reshape(1, -1, *t.shape[-2:])
    bias = None if mask is None else torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    bias = None if bias is None else heads(bias.expand(*q.shape[:-1], k.shape[-2]))
    q_pos, k_pos = torch.arange(q.shape[-2])[None], torch.arange(k.shape[-2])[None]
    call = Call(heads(q), heads(k), heads(v), q_pos, k_pos, Mask(), bias, q.shape[-1] ** -0.5, 0.0)
    return reference(call, Context(q_pos, k_pos, Mask())).reshape(*q.shape[:-1], v.shape[-1])


def attention_cases() -> list[Case]:
    square, wide, causal, batch = (
        random_tensors(seed, *shapes)
        for seed, shapes in (
            (2, ((4, 3), (4, 3), (4, 3))),
            (3, ((2, 4), (5, 4), (5, 3))),
            (4, ((5, 4), (5, 4), (5, 3))),
            (5, ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 2))),
        )
    )
    triangle = torch.ones(5, 5).tril().bool()
    padding = torch.ones(2, 3, 4, 4).bool()
    padding[1, ..., 2:] = False
    return [
        Case("four queries, four keys", tuple(square)),
        Case("more keys than queries, values of another size", tuple(wide)),
        Case("a causal mask", (*causal, triangle)),
        Case("a batch of heads with padding", (*batch, padding)),
    ]


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    """The library's definition of a layer norm (`decode/engines/step_operators.py:Definitions.normalise`)."""
    return Definitions().normalise(x, Norm("layer", gamma, beta, eps))


def layer_norm_cases() -> list[Case]:
    x, gamma, beta, block, small = random_tensors(6, (3, 6), (6,), (6,), (2, 3, 6), (4, 6))
    constant = torch.full((2, 6), 0.5)
    return [
        Case("three vectors", (2 * x + 1, gamma, beta, 1e-5)),
        Case("a batch of sequences", (block, gamma, beta, 1e-5)),
        Case("entries close together and a large ε", (0.3 * small + 2, gamma, beta, 0.1)),
        Case("vectors whose entries are all equal", (constant, gamma, beta, 1e-5)),
    ]


def positional_encoding(length: int, dim: int, base: float = 10000.0) -> Tensor:
    """The library's sinusoidal positions (`nn/position.py:Sinusoidal`)."""
    table: Tensor = Sinusoidal(dim, base)(torch.arange(length)[None])[0]
    return table


def positional_encoding_cases() -> list[Case]:
    return [
        Case("eight positions of six entries", (8, 6, 10000.0)),
        Case("another base", (5, 4, 100.0)),
        Case("twenty positions", (20, 8, 10000.0)),
    ]


EXERCISES = (
    CodeExercise(
        "softmax", "turn scores into weights that sum to 1", softmax, softmax_cases,
        mutations.mutate_softmax, mutations.SOFTMAX_MISTAKES,
        models.TRANSLATOR, models.place_softmax, ready_made=("softmax", "log_softmax", "softmin"),
    ),
    CodeExercise(
        "attention", "mix values by how well queries fit keys", attention, attention_cases,
        mutations.mutate_attention, mutations.ATTENTION_MISTAKES,
        models.TRANSLATOR, models.place_attention,
        ready_made=("scaled_dot_product_attention", "MultiheadAttention"),
    ),
    CodeExercise(
        "layer_norm", "centre and scale each vector", layer_norm, layer_norm_cases,
        mutations.mutate_layer_norm, mutations.LAYER_NORM_MISTAKES,
        models.TRANSLATOR, models.place_layer_norm, ready_made=("layer_norm", "LayerNorm"),
    ),
    CodeExercise(
        "positional_encoding", "tell positions apart by sines and cosines", positional_encoding,
        positional_encoding_cases, mutations.mutate_positional_encoding, mutations.POSITION_MISTAKES,
        models.TRANSLATOR, models.place_positional_encoding,
    ),
)  # fmt: skip
