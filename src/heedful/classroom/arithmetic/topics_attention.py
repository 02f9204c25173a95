"""More of attention, worked out: several heads, order, distance, properties of positions, two scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heedful.classroom.arithmetic.topics import (
    attention_row,
    encodings,
    name_rows,
    softmax_lines,
    weighted_sum,
)
from heedful.classroom.arithmetic.worked import Derivation, Sheet, op
from heedful.core.errors import InputError
from heedful.interp.inputs import position_of

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


def attention(
    *, tokens: Sequence[str] | None = None, keys: Sequence[str] | None = None, query: Any = None,
    scale: float | None = None, mask: bool = False, **matrices: Array,
) -> Derivation:  # fmt: skip
    """Q, K and V as given, or X with W_Q, W_K and W_V; one row of attention for each query asked for."""
    whole, made, X = Sheet(), Sheet(), matrices.get("X")
    if X is None and "Q" not in matrices:
        raise InputError("attention needs Q, or X and W_Q")
    names = name_rows(tokens, len(matrices["Q"] if X is None else X))
    vectors: dict[str, Any] = {letter: matrices.get(letter) for letter in "QKV"}
    for letter in "QKV":
        if vectors[letter] is None and X is not None and f"W_{letter}" in matrices:
            vectors[letter] = project_rows(made, X, names, letter, matrices[f"W_{letter}"])
        if vectors[letter] is None and letter != "V":
            raise InputError(f"attention needs {letter}, or X and W_{letter}")
    Q, K, V = vectors.values()
    keys = names if keys is None else keys
    if len(names) != len(Q) or len(keys) != len(K) or (V is not None and len(V) != len(K)):
        sizes = f"{len(names)} tokens, {len(Q)} queries, {len(K)} keys"
        raise InputError(f"{sizes}: each query needs a name, each key a name and a value")
    if made.lines:
        whole.section(made.finish("queries, keys and values"))
    queries = names if query is None else [query] if isinstance(query, str | int) else query
    for at in (position_of(names, word) for word in queries):
        keep = np.arange(len(K)) <= at if mask else None
        whole.section(attention_row(Q[at], K, V, query=names[at], keys=keys, scale=scale, keep=keep))
    return whole.finish("attention")


def multi_head(
    X: Array, heads: Sequence[Mapping[str, Array]], query: str | int, *, tokens: Sequence[str] | None = None,
    W_O: Array | None = None, scale: float | None = None, mask: bool = False,
) -> Derivation:  # fmt: skip
    """concat(head_1, …, head_H) W_O; every head sees the whole sequence   (Vaswani et al. 2017 §3.2.2)"""
    whole, outputs, names = Sheet(), [], name_rows(tokens, len(X))
    at = position_of(names, query)
    for n, matrices in enumerate(heads, 1):
        # One head: q of the query, k and v of all, and the row of attention.
        sheet = Sheet()
        q = project_rows(sheet, X, names, "Q", matrices.get("W_Q"), [at])[at]
        K, V = (project_rows(sheet, X, names, letter, matrices.get(f"W_{letter}")) for letter in "KV")
        keep = np.arange(len(X)) <= at if mask else None
        attention_row(q, K, V, query=names[at], keys=names, scale=scale, keep=keep, sheet=sheet)
        outputs.append(sheet.last())
        whole.section(sheet.finish(f"head {n}"))
    joined = whole.line("heads side by side", "concat(head_1, …, head_H)", op("concat", *outputs))
    if W_O is not None:
        matrix = whole.add_given("W_O", "W_O", W_O)
        whole.line(f"new vector of {names[at]}", "concat W_O", op("·", joined, matrix))
    return whole.finish(f"{len(heads)} heads, “{names[at]}”")


def order(
    X: Array, order: Sequence[str], query: str | int, *, tokens: Sequence[str] | None = None,
    positions: bool = False, mask: bool = False,
) -> Derivation:  # fmt: skip
    """Attention is a function of a set: in another order the same word gets the same vector.

    Not so once positions are added, or under a causal mask.
    """
    whole, outputs, names = Sheet(), [], name_rows(tokens, len(X))
    asked, other = position_of(names, query), [position_of(names, word) for word in order]
    if sorted(other) != list(range(len(X))):
        raise InputError("order must name every token once")
    encoded = encodings(np.arange(len(X)), X.shape[1])
    for order_name, index in (("as written", list(range(len(X)))), ("in another order", other)):
        words, sheet = [names[i] for i in index], Sheet()
        at = index.index(asked)
        rows: list[Array] = [X[i] for i in index]
        if positions:
            rows = [
                sheet.line(f"{word} at {t}", f"x + PE({t})", op("+", row, encoded[t]))
                for t, (word, row) in enumerate(zip(words, rows, strict=True))
            ]
        keep = np.arange(len(X)) <= at if mask else None
        attention_row(rows[at], rows, rows, query=words[at], keys=words, keep=keep, sheet=sheet)
        outputs.append(sheet.last())
        whole.section(sheet.finish(f"{order_name}: {' '.join(words)}"))
    gap = whole.line("difference", "y′ − y", op("-", outputs[1], outputs[0]))
    same = np.abs(gap).max() < 1e-12
    verdict = (
        "The same vector: order makes no difference." if same else "Another vector: order makes a difference."
    )
    return whole.finish(f"“{names[asked]}” in two orders", verdict)


def distance(tokens: Sequence[str], first: str | int, second: str | int, kernel: int = 3) -> Derivation:
    """|i − j| steps by recurrence, ⌈|i − j| / reach⌉ layers of convolutions, 1 layer of attention

    A one-sided (causal) convolution of width k reaches k − 1 words back; a centred one, as an encoder has it,
    reaches ⌊k/2⌋ words to each side.
    """
    sheet, (start, end) = Sheet(), sorted(position_of(tokens, word) for word in (first, second))
    i = sheet.add_given(f"position of {tokens[start]}", "i", float(start))
    j = sheet.add_given(f"position of {tokens[end]}", "j", float(end))
    n = sheet.add_given("length of the sentence", "n", float(len(tokens)))
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
    return sheet.finish(f"from “{tokens[start]}” to “{tokens[end]}”")


def encoding_properties(
    dim: int, *, count: int = 50, shift: int = 2, far: int = 10_000, base: float = 10000.0
) -> Derivation:
    """Range, uniqueness, any length, and PE(t + k) = R_k PE(t) with the same R_k for every t"""
    whole, at = Sheet(), np.arange(count)
    table, shifted = encodings(at, dim, base), encodings(at + shift, dim, base)
    distant = encodings(np.array([far]), dim, base)[0]
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
    pair = [part.add_given(f"PE({t})", "PE", table[t]) for t in (a, b)]
    part.line("the closest pair is apart by", "‖PE(s) − PE(t)‖", op("norm", op("-", *pair)))
    whole.section(part.finish(f"2 unique: no two of {len(table)} positions share a vector"))
    part = Sheet()
    part.add_given(f"PE({far})", f'"position {far:,}, by the same formula"', distant)
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
    q: Array, K: Array, V: Array, W: Array, U: Array, v: Array, sizes: Sequence[int],
    tokens: Sequence[str] | None = None,
) -> Derivation:  # fmt: skip
    """v·tanh(W q + U k) next to q·k / √d_k: what differs, row by row, and what scaling does as d_k grows"""
    whole, d, n, names = Sheet(), len(q), len(K), name_rows(tokens, len(K))
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
