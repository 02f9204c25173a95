"""Words as vectors, worked out: one-hot and dense, the embedding as a product, word2vec's likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from heedful.classroom.arithmetic.topics import name_rows, softmax_lines
from heedful.classroom.arithmetic.worked import Derivation, Sheet, entry, op
from heedful.core.errors import InputError

Array = np.ndarray


def similarity(vectors: Mapping[str, Array], pairs: Sequence[tuple[str, str]]) -> Derivation:
    """a·b and cos(a, b) = a·b / (‖a‖ ‖b‖)"""
    if missing := [word for pair in pairs for word in pair if word not in vectors]:
        raise InputError(f"{missing[0]!r} has no vector", hint=f"there are {', '.join(vectors)}")
    sheet = Sheet()
    given = {word: sheet.add_given(word, "a", vector) for word, vector in vectors.items()}
    for first, second in pairs:
        part = Sheet()
        a, b = given[first], given[second]
        dot = part.line(f"{first} · {second}", "a·b", op("·", a, b))
        sizes = [part.line(f"length of {word}", "‖a‖", op("norm", given[word])) for word in (first, second)]
        part.line(f"cosine of {first}, {second}", "a·b / (‖a‖ ‖b‖)", op("/", dot, op("×", *sizes)))
        sheet.section(part.finish(f"{first} and {second}"))
    return sheet.finish("how alike two words are")


def embedding(E: Array, text: Sequence[str], words: Sequence[str] | None = None) -> Derivation:
    """x E, x one-hot, is a row of E: an embedding is a matrix product that is never carried out"""
    sheet, words = Sheet(), name_rows(words, len(E), "words")
    if missing := [word for word in text if word not in words]:
        raise InputError(f"{missing[0]!r} has no row in E", hint=f"the words are {', '.join(words)}")
    table = sheet.add_given("E", 'E "a row for each word"', E)
    for word in text:
        at = words.index(word)
        x = sheet.add_given(f"x of {word}", f'x "one-hot at {at}"', np.eye(len(words))[at])
        sheet.line(f"product of {word}", "x E", op("·", x, table))
        sheet.line(f"row {at} of E, for {word}", f"E_{at}", op("entry", table, float(at)))
    return sheet.finish("an embedding is a product with a one-hot vector")


def likelihood(
    text: Sequence[str], centre: Mapping[str, Array], outside: Mapping[str, Array], window: int = 1
) -> Derivation:
    """P(o | c) = exp(u_o·v_c) / Σ_w exp(u_w·v_c), J(θ) = −(1/T) Σ_t Σ_{0<|j|≤m} ln P(w_{t+j} | w_t)

    (Mikolov et al. 2013 §2, eq. 1 and 2: the full softmax, over every word of the vocabulary.)
    """
    words = list(outside)
    if missing := [word for word in text if word not in centre or word not in outside]:
        raise InputError(
            f"{missing[0]!r} has no vector", hint="every word needs one as centre and one outside"
        )
    whole, chances, losses = Sheet(), {}, []
    for c in dict.fromkeys(text):
        sheet = Sheet()
        v = sheet.add_given(f"v of {c}", "v_c", centre[c])
        dots = [sheet.line(f"{o} · {c}", "u_o·v_c", op("·", outside[o], v)) for o in words]
        scores = sheet.line(f"scores of {c}", '"one for every word"', op("row", *dots))
        chances[c] = softmax_lines(sheet, scores, f"{', '.join(words)} around {c}")
        whole.section(sheet.finish(f"P(o | {c})"))
    for t, c in enumerate(text):
        for j in range(max(0, t - window), min(len(text), t + window + 1)):
            if j == t:
                continue
            chance = entry(chances[c], words.index(text[j]))
            loss = op("-", 0.0, op("ln", chance))
            losses.append(whole.line(f"−ln P({text[j]} | {c}), position {t}", "−ln P(o|c)", loss, "nats"))
    total = op("sum", op("row", *losses))
    whole.line("J(θ)", "J(θ) = −(1/T) Σ ln P(o|c)", op("/", total, float(len(text))), "nats")
    return whole.finish(f"the likelihood of “{' '.join(text)}”, window {window}")


# Sizes and costs, worked out: weights of a decoder, operations of a block, what distillation kept.


def weight_count(layers: int, heads: int, head_dim: int, dim: int, vocab: int) -> Derivation:
    """Query, key and value matrices per head, an output, an up- and a down-projection per layer, two tables.

    That is a count of the large matrices alone: no biases, norms or positions, and a tied table twice.
    """
    sheet = Sheet()
    names = ("layers", "heads", "head size", "model size", "vocabulary")
    letters, numbers = ("L", "H", "K", "D", "V"), (layers, heads, head_dim, dim, vocab)
    L, H, K, D, V = (
        sheet.add_given(name, letter, float(n))
        for name, letter, n in zip(names, letters, numbers, strict=True)
    )
    table = sheet.line("embedding", "V D", op("×", V, D))
    one = sheet.line("query of all heads and layers", "D K H L", op("×", D, K, H, L))
    output = sheet.line("output projections", "K H D L", op("×", K, H, D, L))
    up = sheet.line("up-projections", "4 D D L", op("×", 4.0, D, D, L))
    total = op("+", op("×", 2.0, table), op("×", 3.0, one), output, op("×", 2.0, up))
    sheet.line("all weights", '2 "tables" + 3 (D K H L) + K H D L + 2 (4 D D L)', total)
    matrices = op("+", 2.0, op("×", L, op("+", op("×", 3.0, H), 3.0)))
    sheet.line("matrices", "2 + L (3 H + 3)", matrices)
    note = "Large matrices alone: no biases, norms or positions; a tied table of tokens is counted twice."
    return sheet.finish("the weights of a decoder", note)


def block_cost(n: int, d: int) -> Derivation:
    """24 n d² + 4 n² d operations of a block: projections and feed-forward, and scores and weighted sums"""
    sheet = Sheet()
    length, dim = sheet.add_given("tokens", "n", float(n)), sheet.add_given("model size", "d", float(d))
    linear = sheet.line("matrices of weights", "24 n d²", op("×", 24.0, length, dim, dim))
    square = sheet.line("scores and sums", "4 n² d", op("×", 4.0, length, length, dim))
    total = sheet.line("a block", "24 n d² + 4 n² d", op("+", linear, square))
    sheet.line("share that is quadratic in n", "4 n² d / (24 n d² + 4 n² d)", op("/", square, total))
    sheet.line("equal at", "n = 6 d", op("×", 6.0, dim), "tokens")
    return sheet.finish("what a block costs, in floating-point operations")


def distillation(scores: Array, sizes: Array, times: Array) -> Derivation:
    """The share of the score kept, of weights saved, and how much faster; pairs of (teacher, student)"""
    if any(len(pair) != 2 for pair in (scores, sizes, times)):
        raise InputError("scores, sizes and times each have two numbers: of the teacher and of the student")
    sheet = Sheet()
    given = {"score": scores, "weights in millions": sizes, "time in seconds": times}
    rows = {
        name: [
            sheet.add_given(f"{name}, {who}", letter, value)
            for who, letter, value in zip(("teacher", "student"), ("t", "s"), pair, strict=True)
        ]
        for name, pair in given.items()
    }
    teacher, student = rows["score"]
    sheet.line("score kept", "100 s / t", op("×", 100.0, op("/", student, teacher)), "%")
    teacher, student = rows["weights in millions"]
    sheet.line("weights saved", "100 (1 − s/t)", op("×", 100.0, op("-", 1.0, op("/", student, teacher))), "%")
    teacher, student = rows["time in seconds"]
    ratio = sheet.line("times as fast", "t / s", op("/", teacher, student))
    faster = sheet.line("faster by", "100 (t/s − 1)", op("×", 100.0, op("-", ratio, 1.0)), "%")
    share = op("×", 100.0, op("-", 1.0, op("/", student, teacher)))
    less = sheet.line("less time", "100 (1 − s/t)", share, "%")
    note = f"“{faster:.1f} % faster” and “{less:.1f} % less time” are the same measurement. "
    return sheet.finish("what distillation kept", note + "60 % faster would be 37.5 % less time.")
