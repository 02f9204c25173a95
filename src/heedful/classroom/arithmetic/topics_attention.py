"""More of attention, worked out: several heads, order, distance, properties of positions, two scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from heedful.classroom.arithmetic.topics import attention_row, softmax_lines, weighted_sum
from heedful.classroom.arithmetic.worked import Derivation, Line, Quantity, Sheet, op

Array = np.ndarray


def project_rows(
    sheet: Sheet,
    X: Array,
    names: Sequence[str],
    letter: str,
    W: Array | None,
    rows: Sequence[int] | None = None,
) -> list[Array]:
    """x W of every token, each on its line; of the tokens at `rows` only, the others without a line."""
    if W is None:
        return list(X)
    matrix = sheet.add_given(f"W_{letter}", f"W_{letter}", W)
    formula = f"{letter.lower()} = x W_{letter}"
    shown_rows = range(len(X)) if rows is None else rows
    return [
        sheet.line(f"{letter.lower()} of {name}", formula, op("·", X[i], matrix))
        if i in shown_rows
        else X[i] @ W
        for i, name in enumerate(names)
    ]


def self_attention(
    sheet: Sheet, X: Array, names: Sequence[str], matrices: Mapping[str, Array | None], query: int,
    scale: float | None, keep: Array | None,
) -> Quantity:  # fmt: skip
    """One head: q of the query, k and v of all, and the row of attention; the output of the query."""
    q = project_rows(sheet, X, names, "Q", matrices.get("W_Q"), [query])[query]
    K, V = (project_rows(sheet, X, names, letter, matrices.get(f"W_{letter}")) for letter in "KV")
    attention_row(q, K, V, query=names[query], keys=names, scale=scale, keep=keep, sheet=sheet)
    last = sheet.lines[-1]
    assert isinstance(last, Line)
    return sheet.reference(last)


def multi_head(
    X: Array, names: Sequence[str], heads: Sequence[Mapping[str, Array | None]], W_O: Array | None,
    query: int, *, scale: float | None = None, keep: Array | None = None,
) -> Derivation:  # fmt: skip
    """concat(head_1, …, head_H) W_O; every head sees the whole sequence   (Vaswani et al. 2017 §3.2.2)"""
    whole, outputs = Sheet(), []
    for n, matrices in enumerate(heads, 1):
        sheet = Sheet()
        outputs.append(self_attention(sheet, X, names, matrices, query, scale, keep))
        whole.section(sheet.finish(f"head {n}"))
    joined = whole.line("heads side by side", "concat(head_1, …, head_H)", op("concat", *outputs))
    if W_O is not None:
        matrix = whole.add_given("W_O", "W_O", W_O)
        whole.line(f"new vector of {names[query]}", "concat W_O", op("·", joined, matrix))
    return whole.finish(f"{len(heads)} heads, “{names[query]}”")


def order(
    X: Array, names: Sequence[str], swap: Sequence[int], query: int, positions: Array | None, causal: bool
) -> Derivation:
    """Attention is a function of a set: in another order the same word gets the same vector.

    Not so once positions are added, or under a causal mask.
    """
    whole = Sheet()
    outputs = []
    for order_name, index in (("as written", list(range(len(X)))), ("in another order", list(swap))):
        words, sheet = [names[i] for i in index], Sheet()
        at = index.index(query)
        rows: list[Array] = [X[i] for i in index]
        if positions is not None:
            rows = [
                sheet.line(f"{word} at {t}", f"x + PE({t})", op("+", row, positions[t]))
                for t, (word, row) in enumerate(zip(words, rows, strict=True))
            ]
        keep = np.arange(len(X)) <= at if causal else None
        attention_row(rows[at], rows, rows, query=words[at], keys=words, keep=keep, sheet=sheet)
        whole.section(sheet.finish(f"{order_name}: {' '.join(words)}"))
        last = sheet.lines[-1]
        assert isinstance(last, Line)
        outputs.append(whole.reference(last))
    gap = whole.line("difference", "y′ − y", op("-", outputs[1], outputs[0]))
    same = np.abs(gap).max() < 1e-12
    verdict = (
        "The same vector: order makes no difference." if same else "Another vector: order makes a difference."
    )
    return whole.finish(f"“{names[query]}” in two orders", verdict)


def distance(names: Sequence[str], first: int, second: int, kernel: int) -> Derivation:
    """|i − j| steps by recurrence, ⌈|i − j| / reach⌉ layers of convolutions, 1 layer of attention

    A one-sided (causal) convolution of width k reaches k − 1 words back; a centred one, as an encoder has it,
    reaches ⌊k/2⌋ words to each side.
    """
    sheet = Sheet()
    i = sheet.add_given(f"position of {names[first]}", "i", float(first))
    j = sheet.add_given(f"position of {names[second]}", "j", float(second))
    n = sheet.add_given("length of the sentence", "n", float(len(names)))
    gap = sheet.line("steps of a recurrent network", "j − i", op("-", j, i), "steps")
    width = sheet.add_given("width of a convolution", "k", float(kernel))
    exact = op("/", gap, op("-", width, 1.0))
    sheet.line("layers of a one-sided convolution", "⌈(j − i) / (k − 1)⌉", op("ceil", exact), "steps")
    exact = op("/", gap, op("floor", op("/", width, 2.0)))
    sheet.line("layers of a centred convolution", "⌈(j − i) / ⌊k/2⌋⌉", op("ceil", exact), "steps")
    sheet.add_given("steps of self-attention", '"every word sees every word at once"', 1.0)
    sheet.line(
        "one after another, recurrent", 'n "because step t waits for step" t − 1', op("×", n, 1.0), "steps"
    )
    sheet.add_given("one after another, attention", '"all positions at once"', 1.0)
    return sheet.finish(f"from “{names[first]}” to “{names[second]}”")


def encoding_properties(
    positions: Array, shift: int, distant_position: int, encode: Sequence[Array], base: float
) -> Derivation:
    """Range, uniqueness, any length, and PE(t + k) = R_k PE(t) with the same R_k for every t"""
    whole, (table, shifted, distant) = Sheet(), encode
    dim = table.shape[1]
    part = Sheet()
    part.line("smallest entry", "min PE", op("min", table))
    part.line("largest entry", "max PE", op("max", table))
    part.line("length of PE(1)", "‖PE‖ = √(d/2)", op("norm", table[1]))
    whole.section(part.finish("1 range: every entry lies between −1 and 1"))
    gaps = np.linalg.norm(table[:, None] - table[None], axis=-1) + np.where(
        np.eye(len(table)) > 0, np.inf, 0.0
    )
    a, b = (int(n) for n in np.unravel_index(np.argmin(gaps), gaps.shape))
    part = Sheet()
    pair = [part.add_given(f"PE({int(positions[t])})", "PE", table[t]) for t in (a, b)]
    part.line("the closest pair is apart by", "‖PE(s) − PE(t)‖", op("norm", op("-", *pair)))
    whole.section(part.finish(f"2 unique: no two of {len(table)} positions share a vector"))
    part = Sheet()
    formula = f'"position {distant_position:,}, by the same formula"'
    part.add_given(f"PE({distant_position})", formula, distant)
    part.line("its largest entry", "max PE", op("max", op("row", *distant)))
    whole.section(
        part.finish("3 any length: nothing ends at a longest text (to be defined is not to generalise)")
    )
    part, angles = Sheet(), shift / base ** (2 * np.arange(dim // 2) / dim)
    R = np.zeros((dim, dim))
    for n, angle in enumerate(angles):
        R[2 * n : 2 * n + 2, 2 * n : 2 * n + 2] = [
            [np.cos(angle), np.sin(angle)],
            [-np.sin(angle), np.cos(angle)],
        ]
    matrix = part.add_given(f"R_{shift}", f'"turns every pair by {shift} steps; the same for all" t', R)
    for t in (0, 1, len(table) - 1):
        turned = part.line(f"R_{shift} PE({t})", f"R_{shift} PE({t})", op("·", matrix, table[t]))
        there = part.add_given(f"PE({t + shift})", f"PE({t} + {shift})", shifted[t])
        part.line(f"difference at {t}", f"R_{shift} PE({t}) − PE({t + shift})", op("-", turned, there))
    whole.section(part.finish("4 a shift is linear"))
    return whole.finish(f"four properties of sinusoidal positions, d = {dim}")


def score_comparison(
    q: Array, K: Array, V: Array, W: Array, U: Array, v: Array, names: Sequence[str], sizes: Sequence[int]
) -> Derivation:
    """v·tanh(W q + U k) beside q·k / √d_k: what differs, row by row, and what scaling does as d_k grows"""
    whole, d, n = Sheet(), len(q), len(K)
    part = Sheet()
    additive = [
        part.line(f"additive, {name}", "v·tanh(W q + U k)",
                  op("·", v, op("tanh", op("+", op("·", W, q), op("·", U, k)))))
        for name, k in zip(names, K, strict=True)
    ]  # fmt: skip
    dots = [
        part.line(f"scaled dot, {name}", "q·k / √d_k", op("/", op("·", q, k), op("√", float(d))))
        for name, k in zip(names, K, strict=True)
    ]
    whole.section(part.finish("1 the score"))
    part, weights = Sheet(), []
    for kind, scores in (("additive", additive), ("scaled dot", dots)):
        row = part.line(f"{kind} scores", "s", op("row", *scores))
        weights.append(softmax_lines(part, row, kind))
    whole.section(part.finish("2 the alignment: a softmax over all keys in both"))
    part, size = Sheet(), float(len(v))
    products = op("+", op("×", 2.0, float(d), size), size)
    part.line("products per pair, additive", "2 d_k d_a + d_a", products)
    part.line("products per pair, dot", "d_k", op("×", 1.0, float(d)))
    part.add_given("steps one after another, additive in an RNN", '"one per word written"', float(n))
    part.add_given("steps one after another, self-attention", '"one product of matrices"', 1.0)
    whole.section(part.finish("3 efficiency"))
    part = Sheet()
    for kind, w in zip(("additive", "scaled dot"), weights, strict=True):
        part.line(f"context, {kind}", "Σ w v", weighted_sum(w, V))
    whole.section(part.finish("4 the context: a weighted sum in both"))
    part = Sheet()
    part.add_given("pairs, decoder over encoder", "n", float(n))
    part.line("pairs, self-attention", "n²", op("×", float(n), float(n)))
    whole.section(part.finish("5 self-attention: the Transformer also asks every word about every other"))
    whole.section(scaling_measurement(sizes))
    return whole.finish("additive against scaled dot-product attention")


def scaling_measurement(sizes: Sequence[int], draws: int = 400, keys: int = 8) -> Derivation:
    """Var(q·k) = d_k for entries of variance 1: measured, and the largest weight with and without 1/√d_k"""
    whole, rng = Sheet(), np.random.default_rng(0)
    for d in sizes:
        q, K = rng.standard_normal((draws, 1, d)), rng.standard_normal((draws, keys, d))
        dots = (q * K).sum(-1)
        part = Sheet()
        part.add_given("variance of q·k", "Var(q·k) ≈ d_k", dots.var())
        for kind, scores in (("without scaling", dots), ("with 1/√d_k", dots / np.sqrt(d))):
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            part.add_given(f"largest weight, {kind}", "mean(max(w))", weights.max(-1).mean())
            slope = (weights * (1 - weights)).sum(-1).mean()
            part.add_given(f"slope of the softmax, {kind}", "mean(Σ w (1 − w))", slope)
        whole.section(part.finish(f"d_k = {d}, {draws} random queries over {keys} keys"))
    note = (
        "Unscaled, one weight nears 1 as d_k grows and the slope of the softmax nears 0; scaled, both stay."
    )
    return whole.finish("what scaling does, measured", note)
