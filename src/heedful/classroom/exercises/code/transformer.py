"""The exercises softmax, attention, layer_norm and positional_encoding.

Each has the mistakes that grading can name, a function with any of them in it, the definition, which calls
the library's own part, and the inputs it is tried on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from heedful.classroom.exercises.code import models
from heedful.classroom.exercises.code.exercise import Case, CodeExercise, mistakes
from heedful.decode.engines.step_operators import Definitions, Norm
from heedful.nn.attention.attend import Call, masked_softmax, reference
from heedful.nn.context import Context, Mask
from heedful.nn.position import Sinusoidal

Names = frozenset[str]

SOFTMAX_MISTAKES = mistakes(
    no_max="no maximum is subtracted, so exp overflows for large entries",
    global_max="one maximum is subtracted everywhere: rows far below it become 0 / 0",
    mean_subtracted="the mean is subtracted instead of the maximum: entries of −∞ give no numbers",
    last_dim="the sum goes over the last dimension, whatever `dim` says",
    first_dim="the sum goes over the first dimension, whatever `dim` says",
    all_entries="the sum goes over all entries, not over one dimension",
    no_exp="there is no exp: entries are divided by their plain sum",
    logarithm="the logarithm of the softmax is returned",
    negative="the sign is wrong: exp(−x), so that small entries get large weights",
    base_two="2 to the power x instead of e to the power x",
    mean_not_sum="exp(x) is divided by the mean, not by the sum",
    not_divided="exp(x) is not divided by its sum",
)


def mutate_softmax(m: Names, x: Tensor, dim: int = -1) -> Tensor:
    """softmax with the mistakes `m`."""
    over: int | tuple[int, ...] = dim
    if "last_dim" in m:
        over = -1
    elif "first_dim" in m:
        over = 0
    elif "all_entries" in m:
        over = tuple(range(x.ndim))
    x = -x if "negative" in m else x
    if "no_exp" in m:
        return x / x.sum(over, keepdim=True)
    top = x.amax(over, keepdim=True)
    if "no_max" in m:
        top = torch.zeros_like(top)
    elif "global_max" in m:
        top = x.max()
    elif "mean_subtracted" in m:
        top = x.mean(over, keepdim=True)
    power = (x - top).exp2() if "base_two" in m else (x - top).exp()
    if "not_divided" in m:
        return power
    total = power.sum(over, keepdim=True)
    if "mean_not_sum" in m:
        total = power.mean(over, keepdim=True)
    return (power / total).log() if "logarithm" in m else power / total


ATTENTION_MISTAKES = mistakes(
    no_scale="the scores are not divided by √d_k",
    times_scale="the scores are multiplied by √d_k instead of divided",
    scale_not_root="the scores are divided by d_k instead of √d_k",
    scale_by_length="the scores are divided by the root of the number of keys instead of √d_k",
    scale_by_queries="the scores are divided by the root of the number of queries instead of √d_k",
    scale_by_values="the scores are divided by √d_v instead of √d_k",
    scale_after_softmax="the division by √d_k comes after the softmax",
    softmax_over_queries="the softmax goes over the queries instead of the keys",
    softmax_dim_one="the softmax goes over dimension 1: these are the keys of a matrix alone",
    softmax_dim_zero="the softmax goes over dimension 0",
    no_softmax="there is no softmax: scores are used as weights",
    mask_after_softmax="the mask is applied after the softmax, so the weights no longer sum to 1",
    mask_inverted="the mask is inverted: True means that a query may look, not that it may not",
    mask_ignored="the mask is not used",
    mask_zero="hidden scores become 0 instead of −∞, which is a weight all the same",
    mask_added="the mask is added as 0 and 1, which hides nothing",
    queries_for_keys="queries stand where keys belong: q qᵀ instead of q kᵀ",
    keys_for_queries="keys stand where queries belong: k kᵀ instead of q kᵀ",
    values_for_keys="values stand where keys belong: q vᵀ instead of q kᵀ",
    keys_for_values="keys stand where values belong: the weighted sum is of k instead of v",
    returns_weights="the weights are returned, not the weighted sum of the values",
    scores_transposed="the scores are k qᵀ, transposed, instead of q kᵀ",
)


def mutate_attention(m: Names, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention with the mistakes `m`."""
    left = k if "keys_for_queries" in m else q
    right = q if "queries_for_keys" in m else v if "values_for_keys" in m else k
    scores = left @ right.mT
    if "scores_transposed" in m:
        scores = scores.mT
    scale = 1 / math.sqrt(q.shape[-1])
    changed = {
        "no_scale": 1.0, "times_scale": math.sqrt(q.shape[-1]), "scale_not_root": 1 / q.shape[-1],
        "scale_by_length": 1 / math.sqrt(k.shape[-2]), "scale_by_queries": 1 / math.sqrt(q.shape[-2]),
        "scale_by_values": 1 / math.sqrt(v.shape[-1]),
        "scale_after_softmax": 1.0,
    }  # fmt: skip
    scores = scores * next((value for name, value in changed.items() if name in m), scale)
    after = None
    if mask is not None and "mask_ignored" not in m:
        keep = ~mask if "mask_inverted" in m else mask
        if "mask_after_softmax" in m:
            after = keep
        elif "mask_added" in m:
            scores = scores + keep
        else:
            scores = scores.masked_fill(~keep, 0.0 if "mask_zero" in m else -math.inf)
    axes = {"softmax_over_queries": -2, "softmax_dim_one": 1, "softmax_dim_zero": 0}
    over = next((axis for name, axis in axes.items() if name in m), -1)
    weights = scores if "no_softmax" in m else scores.softmax(over)
    if "scale_after_softmax" in m:
        weights = weights * scale
    if after is not None:
        weights = weights * after
    return weights if "returns_weights" in m else weights @ (k if "keys_for_values" in m else v)


LAYER_NORM_MISTAKES = mistakes(
    unbiased="the variance is divided by D − 1 (torch's default) instead of D",
    eps_outside="ε is added to the root instead of to the variance inside it",
    no_eps="ε is not used",
    no_affine="γ and β are not used",
    no_gamma="γ is not used",
    no_beta="β is not used",
    beta_subtracted="β is subtracted instead of added",
    swapped_affine="γ and β are swapped",
    affine_first="γ and β are applied before normalising instead of after",
    first_axis="mean and variance go over the first dimension, the batch, instead of the last",
    tokens_axis="mean and variance go over the last dimension but one, the tokens, instead of the last",
    dim_one="mean and variance go over dimension 1, which is the last of a matrix alone",
    all_but_first="mean and variance go over all dimensions but the first instead of the last alone",
    all_axes="mean and variance go over all entries at once instead of each vector",
    variance_not_root="the difference is divided by the variance instead of its root",
    no_mean="the mean is not subtracted",
    not_divided="nothing is divided by the standard deviation",
    multiplied="the difference is multiplied by the standard deviation instead of divided",
    root_mean_square="the mean is subtracted nowhere: this is RMSNorm",
    absolute_deviation="the mean absolute difference stands in the place of the standard deviation",
)


def mutate_layer_norm(m: Names, x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    """layer_norm with the mistakes `m`."""
    over: tuple[int, ...] = (-1,)
    if "first_axis" in m:
        over = (0,)
    elif "tokens_axis" in m:
        over = (-2,)
    elif "dim_one" in m:
        over = (1,)
    elif "all_axes" in m:
        over = tuple(range(x.ndim))
    elif "all_but_first" in m:
        over = tuple(range(1, x.ndim))
    gamma, beta = (beta, gamma) if "swapped_affine" in m else (gamma, beta)
    scale = torch.ones_like(gamma) if m & {"no_affine", "no_gamma"} else gamma
    shift = torch.zeros_like(beta) if m & {"no_affine", "no_beta"} else beta
    x = x * scale + shift if "affine_first" in m else x
    mean = x.mean(over, keepdim=True)
    centred = x if "root_mean_square" in m else x - mean
    var = centred.square().mean(over, keepdim=True)
    if "unbiased" in m:
        count = x.numel() // mean.numel()
        var = var * count / (count - 1)
    elif "absolute_deviation" in m:
        var = centred.abs().mean(over, keepdim=True).square()
    eps = 0.0 if "no_eps" in m else eps
    spread = var.sqrt() + eps if "eps_outside" in m else (var + eps).sqrt()
    if "variance_not_root" in m:
        spread = var + eps
    spread = torch.ones_like(spread) if "not_divided" in m else 1 / spread if "multiplied" in m else spread
    shift = -shift if "beta_subtracted" in m else shift
    normed = (x if "no_mean" in m else centred) / spread
    return normed if "affine_first" in m else normed * scale + shift


POSITION_MISTAKES = mistakes(
    from_one="positions are counted from 1 instead of 0",
    swapped="sine and cosine are swapped",
    halves="all sines stand before all cosines instead of alternating",
    sine_only="odd entries are sines too instead of cosines",
    half_exponent="the exponent is i/dim instead of 2i/dim",
    own_exponent="an odd entry has the exponent of its own column, (2i+1)/dim, instead of its pair's, 2i/dim",
    twice_exponent="the exponent is 4i/dim: the column 2i is doubled once more",
    double_exponent="the exponent is twice the column's number over dim instead of 2i/dim",
    exponent_by_half="the exponent is divided by dim/2 − 1 instead of dim/2, so that it reaches 1",
    multiplied="the position is multiplied by base^(2i/dim) instead of divided",
    no_exponent="the position is divided by the base itself, the same for every pair",
    fixed_base="the base is always 10000, whatever is given",
    transposed="dimensions are transposed: (dim, length) instead of (length, dim)",
    integer_angles="the angles are rounded to whole numbers: an integer division",
    last_position="positions go to length instead of length − 1, one row too many",
    scaled_position="positions are divided by the length",
)


def mutate_positional_encoding(m: Names, length: int, dim: int, base: float = 10000.0) -> Tensor:
    """positional_encoding with the mistakes `m`."""
    base = 10000.0 if "fixed_base" in m else base
    count = length + ("last_position" in m)
    t = torch.arange(count, dtype=torch.float64)[:, None] + ("from_one" in m)
    t = t / length if "scaled_position" in m else t
    column = torch.arange(dim, dtype=torch.float64)
    pair = column.div(2, rounding_mode="floor")
    exponent = 2 * pair / dim
    if "half_exponent" in m:
        exponent = pair / dim
    elif "own_exponent" in m:
        exponent = column / dim
    elif "twice_exponent" in m:
        exponent = 4 * pair / dim
    elif "double_exponent" in m:
        exponent = 2 * column / dim
    elif "exponent_by_half" in m:
        exponent = pair / (dim / 2 - 1)
    elif "no_exponent" in m:
        exponent = torch.ones_like(pair)
    angle = t * base**exponent if "multiplied" in m else t / base**exponent  # (T, D)
    angle = angle.floor() if "integer_angles" in m else angle
    even = column % 2 == (1 if "swapped" in m else 0)
    table = torch.where(even | torch.full_like(even, "sine_only" in m), angle.sin(), angle.cos())
    if "halves" in m:
        table = torch.cat((table[:, 0::2], table[:, 1::2]), 1)
    return (table.T if "transposed" in m else table).float()


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
    """The library's definition of attention (`nn/attention/attend.py:reference`)."""
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
        mutate_softmax, SOFTMAX_MISTAKES,
        models.TRANSLATOR, models.place_softmax, ready_made=("softmax", "log_softmax", "softmin"),
    ),
    CodeExercise(
        "attention", "mix values by how well queries fit keys", attention, attention_cases,
        mutate_attention, ATTENTION_MISTAKES,
        models.TRANSLATOR, models.place_attention,
        ready_made=("scaled_dot_product_attention", "MultiheadAttention"),
    ),
    CodeExercise(
        "layer_norm", "centre and scale each vector", layer_norm, layer_norm_cases,
        mutate_layer_norm, LAYER_NORM_MISTAKES,
        models.TRANSLATOR, models.place_layer_norm, ready_made=("layer_norm", "LayerNorm"),
    ),
    CodeExercise(
        "positional_encoding", "tell positions apart by sines and cosines", positional_encoding,
        positional_encoding_cases, mutate_positional_encoding, POSITION_MISTAKES,
        models.TRANSLATOR, models.place_positional_encoding,
    ),
)  # fmt: skip
