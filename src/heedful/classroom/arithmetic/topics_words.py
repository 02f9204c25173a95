"""Words as vectors, worked out: one-hot and dense, the embedding as a product, word2vec's likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from heedful.classroom.arithmetic.topics import name_rows, softmax_lines
from heedful.classroom.arithmetic.worked import Derivation, Matrix, Vector, op
from heedful.core.errors import InputError


def similarity(vectors: Mapping[str, Vector], pairs: Sequence[tuple[str, str]]) -> Derivation:
    """a·b and cos(a, b) = a·b / (‖a‖ ‖b‖)"""
    if missing := [word for pair in pairs for word in pair if word not in vectors]:
        raise InputError(f"{missing[0]!r} has no vector", hint=f"there are {', '.join(vectors)}")
    derivation = Derivation("how alike two words are")
    given = {word: derivation.given(word, "a", vector) for word, vector in vectors.items()}
    for first, second in pairs:
        with derivation.part(f"{first} and {second}") as part:
            dot = part.line(f"{first} · {second}", "a·b", given[first] @ given[second])
            a = part.line(f"length of {first}", "‖a‖", op("norm", given[first]))
            b = part.line(f"length of {second}", "‖b‖", op("norm", given[second]))
            part.line(f"cosine of {first}, {second}", "a·b / (‖a‖ ‖b‖)", dot / (a * b))
    return derivation


def embedding(E: Matrix, text: Sequence[str], words: Sequence[str] | None = None) -> Derivation:
    """x E, x one-hot, is a row of E: an embedding is a matrix product that is never carried out"""
    derivation = Derivation("an embedding is a product with a one-hot vector")
    words = name_rows(words, len(E), "words")
    if missing := [word for word in text if word not in words]:
        raise InputError(f"{missing[0]!r} has no row in E", hint=f"the words are {', '.join(words)}")
    table = derivation.given("E", 'E "a row for each word"', E)
    for word in text:
        at = words.index(word)
        x = derivation.given(f"x of {word}", f'x "one-hot at {at}"', np.eye(len(words))[at])
        derivation.line(f"product of {word}", "x E", x @ table)
        derivation.line(f"row {at} of E, for {word}", f"E_{at}", op("entry", table, at))
    return derivation


def likelihood(
    text: Sequence[str], centre: Mapping[str, Vector], outside: Mapping[str, Vector], window: int = 1
) -> Derivation:
    """P(o | c) = exp(u_o·v_c) / Σ_w exp(u_w·v_c), J(θ) = −(1/T) Σ_t Σ_{0<|j|≤m} ln P(w_{t+j} | w_t)

    (Mikolov et al. 2013 §2, eq. 1 and 2: the full softmax, over every word of the vocabulary.)
    """
    words = list(outside)
    if missing := [word for word in text if word not in centre or word not in outside]:
        raise InputError(
            f"{missing[0]!r} has no vector", hint="every word needs a vector as centre and one as context"
        )
    derivation, chances, losses = Derivation(f"the likelihood of “{' '.join(text)}”, window {window}"), {}, []
    for c in dict.fromkeys(text):
        with derivation.part(f"P(o | {c})") as part:
            v = part.given(f"v of {c}", "v_c", centre[c])
            dots = [part.line(f"{o} · {c}", "u_o·v_c", outside[o] @ v) for o in words]
            scores = part.line(f"scores of {c}", '"one for every word"', op("row", *dots))
            chances[c] = softmax_lines(part, scores, f"{', '.join(words)} around {c}")
    for t, c in enumerate(text):
        for j in range(max(0, t - window), min(len(text), t + window + 1)):
            if j != t:
                loss = 0.0 - op("ln", chances[c][words.index(text[j])])
                losses.append(
                    derivation.line(f"−ln P({text[j]} | {c}), position {t}", "−ln P(o|c)", loss, "nats")
                )
    total = op("sum", op("row", *losses))
    derivation.line("J(θ)", "J(θ) = −(1/T) Σ ln P(o|c)", total / float(len(text)), "nats")
    return derivation


# Sizes and costs, worked out: weights of a decoder, operations of a block, what distillation kept.


def weight_count(layers: int, heads: int, head_dim: int, dim: int, vocab: int) -> Derivation:
    """Query, key and value matrices per head, an output, an up- and a down-projection per layer, two tables.

    That is a count of the large matrices alone: no biases, norms or positions, and a tied table twice.
    """
    note = "Large matrices alone: no biases, norms or positions; a tied table of tokens is counted twice."
    derivation = Derivation("the weights of a decoder", note=note)
    L = derivation.given("layers", "L", layers)
    H = derivation.given("heads", "H", heads)
    K = derivation.given("head size", "K", head_dim)
    D = derivation.given("model size", "D", dim)
    V = derivation.given("vocabulary", "V", vocab)
    table = derivation.line("embedding", "V D", V * D)
    one = derivation.line("query of all heads and layers", "D K H L", D * K * H * L)
    output = derivation.line("output projections", "K H D L", K * H * D * L)
    up = derivation.line("up-projections", "4 D D L", 4.0 * D * D * L)
    total = 2.0 * table + 3.0 * one + output + 2.0 * up
    derivation.line("all weights", '2 "tables" + 3 (D K H L) + K H D L + 2 (4 D D L)', total)
    derivation.line("matrices", "2 + L (3 H + 3)", 2.0 + L * (3.0 * H + 3.0))
    return derivation


def block_cost(n: int, d: int) -> Derivation:
    """24 n d² + 4 n² d operations of a block: projections and feed-forward, and scores and weighted sums"""
    derivation = Derivation("what a block costs, in floating-point operations")
    length, dim = derivation.given("tokens", "n", n), derivation.given("model size", "d", d)
    linear = derivation.line("matrices of weights", "24 n d²", 24.0 * length * dim * dim)
    square = derivation.line("scores and sums", "4 n² d", 4.0 * length * length * dim)
    total = derivation.line("a block", "24 n d² + 4 n² d", linear + square)
    derivation.line("share that is quadratic in n", "4 n² d / (24 n d² + 4 n² d)", square / total)
    derivation.line("equal at", "n = 6 d", 6.0 * dim, "tokens")
    return derivation


def distillation(scores: Vector, sizes: Vector, times: Vector) -> Derivation:
    """The share of the score kept, of weights saved, and how much faster; pairs of (teacher, student)"""
    if any(len(pair) != 2 for pair in (scores, sizes, times)):
        raise InputError(
            "scores, sizes and times each have two numbers: one for the teacher and one for the student"
        )
    derivation = Derivation("what distillation kept")
    given = {"score": scores, "weights in millions": sizes, "time in seconds": times}
    teacher, student = {}, {}
    for name, pair in given.items():
        teacher[name] = derivation.given(f"{name}, teacher", "t", pair[0])
        student[name] = derivation.given(f"{name}, student", "s", pair[1])
    share = {name: student[name] / teacher[name] for name in given}
    derivation.line("score kept", "100 s / t", 100.0 * share["score"], "%")
    saved = 100.0 * (1.0 - share["weights in millions"])
    derivation.line("weights saved", "100 (1 − s/t)", saved, "%")
    seconds = "time in seconds"
    ratio = derivation.line("times as fast", "t / s", teacher[seconds] / student[seconds])
    faster = derivation.line("faster by", "100 (t/s − 1)", 100.0 * (ratio - 1.0), "%")
    less = derivation.line("less time", "100 (1 − s/t)", 100.0 * (1.0 - share[seconds]), "%")
    derivation.note = (
        f"“{float(faster.value):.1f} % faster” and “{float(less.value):.1f} % less time” are the same "
        "measurement. 60 % faster would be 37.5 % less time."
    )
    return derivation
