"""The inputs that students' functions are tried on, a function for each exercise.

They are chosen so that every known mistake shows on one of them, and no two mistakes look alike on all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from heedful.classroom.exercises.code_exercises import Case


def random_tensors(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Return normal random tensors that are the same every time."""
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source) for shape in shapes]


def softmax() -> list[Case]:
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


def attention() -> list[Case]:
    square = random_tensors(2, (4, 3), (4, 3), (4, 3))
    wide = random_tensors(3, (2, 4), (5, 4), (5, 3))
    causal = random_tensors(4, (5, 4), (5, 4), (5, 3))
    batch = random_tensors(5, (2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 2))
    triangle = torch.ones(5, 5).tril().bool()
    padding = torch.ones(2, 3, 4, 4).bool()
    padding[1, ..., 2:] = False
    return [
        Case("four queries, four keys", tuple(square)),
        Case("more keys than queries, values of another size", tuple(wide)),
        Case("a causal mask", (*causal, triangle)),
        Case("a batch of heads with padding", (*batch, padding)),
    ]


def causal_mask() -> list[Case]:
    row = torch.arange
    return [
        Case("five tokens", (row(5), row(5), None)),
        Case("two new tokens after a cache of four", (row(4, 6), row(6), None)),
        Case("a window of two", (row(5), row(5), 2)),
        Case("a window of three after a cache", (row(5, 7), row(7), 3)),
        Case("empty places before the text", (row(3), torch.tensor([-1, -1, 0, 1, 2]), None)),
        Case("keys in another order", (torch.tensor([3, 1]), torch.tensor([2, 0, 3, 1]), None)),
    ]


def cached_attention() -> list[Case]:
    sizes = [
        ("one token after three", 2, 1, 3, 4, 4), ("three tokens after two", 2, 3, 2, 4, 3),
        ("the first tokens: an empty cache", 1, 4, 0, 3, 3), ("four tokens after one", 3, 4, 1, 2, 5),
    ]  # fmt: skip
    return [
        Case(about, tuple(random_tensors(60 + i, (H, T, K), (H, T, K), (H, T, V), (H, S, K), (H, S, V))))
        for i, (about, H, T, S, K, V) in enumerate(sizes)
    ]


def layer_norm() -> list[Case]:
    x, gamma, beta, block, small = random_tensors(6, (3, 6), (6,), (6,), (2, 3, 6), (4, 6))
    constant = torch.full((2, 6), 0.5)
    return [
        Case("three vectors", (2 * x + 1, gamma, beta, 1e-5)),
        Case("a batch of sequences", (block, gamma, beta, 1e-5)),
        Case("entries close together and a large ε", (0.3 * small + 2, gamma, beta, 0.1)),
        Case("vectors whose entries are all equal", (constant, gamma, beta, 1e-5)),
    ]


def positional_encoding() -> list[Case]:
    return [
        Case("eight positions of six entries", (8, 6, 10000.0)),
        Case("another base", (5, 4, 100.0)),
        Case("twenty positions", (20, 8, 10000.0)),
    ]


def next_token_loss() -> list[Case]:
    one, batch, large = random_tensors(70, (1, 5, 6), (3, 6, 7), (2, 4, 5))
    padded = torch.tensor([[3, 1, 4, 1, 5, 2], [2, 6, 5, 0, 0, 0], [1, 3, 0, 0, 0, 0]])
    return [
        Case("one row", (one, torch.tensor([[2, 4, 1, 3, 5]]), 0)),
        Case("three rows of different lengths", (2 * batch, padded, 0)),
        Case("another number for padding", (large, torch.tensor([[1, 0, 3, 2], [0, 2, 4, 4]]), 4)),
        Case("large logits", (300 * large, torch.tensor([[1, 2, 3, 1], [3, 2, 1, 4]]), 0)),
    ]


def lstm_step() -> list[Case]:
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


def bahdanau_score() -> list[Case]:
    shapes = [
        ("query and memory of one size", 2, 5, 3, 3, 4),
        ("query and memory of different sizes", 2, 4, 3, 5, 6),
        ("one sentence of one word", 1, 1, 2, 3, 4),
    ]
    return [
        Case(about, tuple(random_tensors(20 + i, (B, Q), (B, S, M), (A, Q), (A, M), (A,))))
        for i, (about, B, S, Q, M, A) in enumerate(shapes)
    ]


def bpe_merge() -> list[Case]:
    split = lambda text: {tuple(word.split("-")): int(count) for word, count in map(str.split, text)}
    several = ["re-s-t 1", "e-s-t 3", "e-st 1", "l-e-s-s 2", "s-t-y 1"]
    return [
        Case("four words", (split(["l-o-w 5", "l-o-w-e-r 2", "n-e-w-e-s-t 6", "w-i-d-e-s-t 3"]),)),
        Case("letters that repeat", (split(["x-a-a-a 4", "a-a-a-a-b 1", "b-x 2", "y-x-a 3"]),)),
        Case("equally frequent pairs", (split(["d-e-f 2", "b-c-g 2", "h-i-k 2", "k-m 1"]),)),
        Case("pieces of several letters", (split(several),)),
        Case("a pair that stands twice in a word", (split(["b-a-n-a-n-a 2", "c-a-t 4", "t-a-n 1"]),)),
        Case("a pair and its mirror image", (split(["a-b-d 3", "b-a-c 2", "c-d-e 4", "b-a-f 1"]),)),
    ]


def toy_language(seed: int, tokens: int, ending: float) -> Callable[[list[int]], Tensor]:
    """Return log-probabilities that depend on everything before; `ending` raises those of token 0."""

    @functools.cache
    def row(ids: tuple[int, ...]) -> Tensor:
        number = functools.reduce(lambda total, token: total * 31 + token + 1, ids, seed)
        logits = torch.randn(tokens, generator=torch.Generator().manual_seed(number % (1 << 40))) * 1.5
        logits[0] += ending
        return logits.log_softmax(-1)

    return lambda ids: row(tuple(map(int, ids)))


def beam_search() -> list[Case]:
    rows = [
        ("a width of two", 37, 5, 0.5, 2, 5, 1.0), ("a width of three, no penalty", 69, 5, 1.0, 3, 5, 0.0),
        ("a strong penalty", 45, 4, 1.5, 3, 6, 1.5), ("texts without an end", 32, 6, -6.0, 3, 4, 1.0),
        ("texts that end early", 47, 4, 2.0, 4, 6, 0.7), ("a width of one", 55, 5, 0.5, 1, 5, 1.0),
        ("another wide beam", 61, 5, 0.0, 4, 6, 1.0), ("a penalty below one", 51, 6, 0.0, 2, 6, 0.6),
    ]  # fmt: skip
    return [
        Case(about, (toy_language(seed, tokens, ending), 0, width, length, penalty))
        for about, seed, tokens, ending, width, length, penalty in rows
    ]


def top_p() -> list[Case]:
    (ten,) = random_tensors(80, (10,))
    flat, peak = torch.tensor([0.2, 0.05, 0.3, 0.15, 0.3001]), torch.tensor([0.02, 0.9, 0.05, 0.03])
    return [
        Case("ten tokens", (2 * ten, 0.8)),
        Case("nearly equal probabilities", (flat.log() + 2, 0.7)),
        Case("one token alone is more than p", (peak.log(), 0.6)),
        Case("p = 1 keeps everything", (ten, 1.0)),
        Case("a small p", (ten, 0.05)),
    ]


def bleu() -> list[Case]:
    split = lambda *texts: [text.split() for text in texts]
    reference = "the old man reads a long book in the garden"
    return [
        Case("one wrong word", (split("the old man reads a short book in the garden"), split(reference))),
        Case("a translation that is too short", (split("the old man reads a long book"), split(reference))),
        Case("one that is too long", (split(reference + " and in the house there"), split(reference))),
        Case("a phrase repeated", (split("the old man reads the old man reads a"), split(reference))),
        Case("two texts of different quality", (
            split("a cat sat on the mat today", "we went home by train"),
            split("a cat sat on the red mat today", "we all went home by the train at night"),
        )),
        Case("words of one sentence in the other", (
            split("a cat sat on the mat", "he went to the sea now"),
            split("he went to the mat on the", "he went to the sea a cat sat on the mat"),
        )),
        Case("no four words in order", (split("the man a book reads old garden"), split(reference))),
    ]  # fmt: skip


def skipgram_step() -> list[Case]:
    V, U = random_tensors(40, (7, 3), (7, 3))
    return [
        Case("two contexts, three negatives", (V, U, 2, [1, 4], [0, 5, 6], 0.5)),
        Case("one context, no negatives", (V, U, 0, [3], [], 0.5)),
        Case("a negative word that was drawn twice", (V, U, 3, [1], [6, 6, 2], 0.3)),
        Case("the centre among the negatives", (V, U, 5, [0, 1], [5, 4], 0.4)),
    ]


def adamw_step() -> list[Case]:
    p, g, m, v = random_tensors(50, (3, 4), (3, 4), (3, 4), (3, 4))
    zero = torch.zeros_like(p)
    return [
        Case("the first step", (p, g, zero, zero, 1, 0.1, 0.9, 0.95, 1e-8, 0.0)),
        Case("the first step, with weight decay", (p, g, zero, zero, 1, 0.1, 0.9, 0.99, 1e-8, 0.5)),
        Case("the fourth step", (p, g, m, v.square(), 4, 0.1, 0.8, 0.95, 1e-8, 0.5)),
        Case("a large ε", (p, 0.3 * g, 0.3 * m, 0.1 * v.square(), 2, 0.2, 0.9, 0.95, 0.2, 0.3)),
        Case("a vector", (p[0], g[0], m[0], v[0].square(), 12, 0.1, 0.9, 0.95, 1e-3, 1.0)),
    ]
