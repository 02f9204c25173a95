"""Sizes and costs, worked out: weights of a decoder, operations of a block, what distillation kept."""

from __future__ import annotations

from heedful.classroom.arithmetic.worked import Derivation, Sheet, op


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


def distillation(
    scores: tuple[float, float], sizes: tuple[float, float], times: tuple[float, float]
) -> Derivation:
    """The share of the score kept, of weights saved, and how much faster; pairs of (teacher, student)"""
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
