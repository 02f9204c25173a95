"""More of attention, worked out: several heads, order, distance, properties of positions, two scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from heedful.classroom.arithmetic.topics import (
    Array,
    Rows,
    attention_row,
    encodings,
    name_rows,
    softmax_lines,
    weighted_sum,
)
from heedful.classroom.arithmetic.worked import Derivation, Matrix, Vector, op
from heedful.core.checks import position_of
from heedful.core.errors import InputError

Mask = Literal["causal"] | None
Place = Any  # a token by its name or position, or several of them


def visible(mask: Mask, at: int, count: int) -> Array | None:
    """Return which of `count` keys the query at a position may look at; None if nothing is hidden."""
    return np.arange(count) <= at if mask else None


def project_rows(
    derivation: Derivation, X: Matrix, names: Sequence[str], letter: str, W: Matrix | None,
    only: int | None = None,
) -> Rows:  # fmt: skip
    """x W of every token, each on its line; with `only`, the others without a line."""
    if W is None:
        return X
    matrix = derivation.given(f"W_{letter}", f"W_{letter}", W)
    formula, lower = f"{letter.lower()} = x W_{letter}", letter.lower()
    return [
        derivation.line(f"{lower} of {name}", formula, x @ matrix) if only in (None, i) else x @ W
        for i, (name, x) in enumerate(zip(names, X, strict=True))
    ]


def attention(
    *, Q: Matrix | None = None, K: Matrix | None = None, V: Matrix | None = None, X: Matrix | None = None,
    W_Q: Matrix | None = None, W_K: Matrix | None = None, W_V: Matrix | None = None,
    tokens: Sequence[str] | None = None, keys: Sequence[str] | None = None, query: Place = None,
    scale: float | None = None, mask: Mask = None,
) -> Derivation:  # fmt: skip
    """Q, K and V as given, or X with W_Q, W_K and W_V; one row of attention for each query asked for."""
    if X is None and Q is None:
        raise InputError("attention needs Q, or X and W_Q")
    names = name_rows(tokens, len(Q if X is None else X))  # type: ignore[arg-type]
    made = Derivation("queries, keys and values")
    rows: dict[str, Any] = {"Q": Q, "K": K, "V": V}
    for letter, W in (("Q", W_Q), ("K", W_K), ("V", W_V)):
        if rows[letter] is None and X is not None and W is not None:
            rows[letter] = project_rows(made, X, names, letter, W)
        if rows[letter] is None and letter != "V":
            raise InputError(f"attention needs {letter}, or X and W_{letter}")
    queries, all_keys, values = rows.values()
    keys = names if keys is None else keys
    count = len(all_keys)
    if len(names) != len(queries) or len(keys) != count or (values is not None and len(values) != count):
        sizes = f"{len(names)} tokens, {len(queries)} queries, {count} keys"
        raise InputError(f"{sizes}: each query needs a name, and each key needs a name and a value")
    derivation = Derivation("attention")
    if made.lines:
        derivation.add(made)
    chosen = names if query is None else [query] if isinstance(query, str | int) else query
    for at in (position_of(names, word) for word in chosen):
        with derivation.part(f"attention of “{names[at]}”") as part:
            q, keep = queries[at], visible(mask, at, count)
            attention_row(part, q, all_keys, values, query=names[at], keys=keys, scale=scale, keep=keep)
    return derivation


def multi_head(
    X: Matrix, heads: Sequence[Mapping[str, Matrix]], query: Place, *, tokens: Sequence[str] | None = None,
    W_O: Matrix | None = None, scale: float | None = None, mask: Mask = None,
) -> Derivation:  # fmt: skip
    """concat(head_1, …, head_H) W_O; every head sees the whole sequence   (Vaswani et al. 2017 §3.2.2)"""
    names, outputs = name_rows(tokens, len(X)), []
    at = position_of(names, query)
    derivation = Derivation(f"{len(heads)} heads, “{names[at]}”")
    for n, matrices in enumerate(heads, 1):
        with derivation.part(f"head {n}") as head:  # q of the query, k and v of all, and the row of attention
            q = project_rows(head, X, names, "Q", matrices.get("W_Q"), at)[at]
            K, V = (project_rows(head, X, names, letter, matrices.get(f"W_{letter}")) for letter in "KV")
            keep = visible(mask, at, len(X))
            attention_row(head, q, K, V, query=names[at], keys=names, scale=scale, keep=keep)
            outputs.append(head.find(f"output of {names[at]}"))
    joined = derivation.line("heads side by side", "concat(head_1, …, head_H)", op("concat", *outputs))
    if W_O is not None:
        derivation.line(
            f"new vector of {names[at]}", "concat W_O", joined @ derivation.given("W_O", "W_O", W_O)
        )
    return derivation


def order(
    X: Matrix, order: Sequence[str], query: Place, *, tokens: Sequence[str] | None = None,
    positions: bool = False, mask: Mask = None,
) -> Derivation:  # fmt: skip
    """Attention is a function of a set: in another order the same word gets the same vector.

    Not so once positions are added, or under a causal mask.
    """
    names, outputs = name_rows(tokens, len(X)), []
    asked, other = position_of(names, query), [position_of(names, word) for word in order]
    if sorted(other) != list(range(len(X))):
        raise InputError("order must name every token once")
    derivation = Derivation(f"“{names[asked]}” in two orders")
    encoded = encodings(np.arange(len(X)), X.value.shape[1])
    for order_name, index in (("as written", list(range(len(X)))), ("in another order", other)):
        words, at = [names[i] for i in index], index.index(asked)
        rows = [X[i] for i in index]
        with derivation.part(f"{order_name}: {' '.join(words)}") as part:
            if positions:
                places = enumerate(zip(words, rows, strict=True))
                rows = [part.line(f"{w} at {t}", f"x + PE({t})", x + encoded[t]) for t, (w, x) in places]
            keep = visible(mask, at, len(X))
            attention_row(part, rows[at], rows, rows, query=words[at], keys=words, keep=keep)
            outputs.append(part.find(f"output of {words[at]}"))
    gap = derivation.line("difference", "y′ − y", outputs[1] - outputs[0])
    same = np.abs(gap.value).max() < 1e-12
    derivation.note = (
        "The same vector: order makes no difference." if same else "Another vector: order makes a difference."
    )
    return derivation


def distance(tokens: Sequence[str], first: Place, second: Place, kernel: int = 3) -> Derivation:
    """|i − j| steps by recurrence, ⌈|i − j| / reach⌉ layers of convolutions, 1 layer of attention

    A one-sided (causal) convolution of width k reaches k − 1 words back; a centred one, as an encoder has it,
    reaches ⌊k/2⌋ words to each side.
    """
    start, end = sorted(position_of(tokens, word) for word in (first, second))
    derivation = Derivation(f"from “{tokens[start]}” to “{tokens[end]}”")
    i = derivation.given(f"position of {tokens[start]}", "i", start)
    j = derivation.given(f"position of {tokens[end]}", "j", end)
    n = derivation.given("length of the sentence", "n", len(tokens))
    gap = derivation.line("steps of a recurrent network", "j − i", j - i, "steps")
    k = derivation.given("width of a convolution", "k", kernel)
    layers = op("ceil", gap / (k - 1.0))
    derivation.line("layers of a one-sided convolution", "⌈(j − i) / (k − 1)⌉", layers, "steps")
    layers = op("ceil", gap / op("floor", k / 2.0))
    derivation.line("layers of a centred convolution", "⌈(j − i) / ⌊k/2⌋⌉", layers, "steps")
    derivation.given("steps of self-attention", '"every word sees every word at once"', 1.0)
    formula = 'n "because step t waits for step" t − 1'
    derivation.line("one after another, recurrent", formula, n * 1.0, "steps")
    derivation.given("one after another, attention", '"all positions at once"', 1.0)
    return derivation


def encoding_properties(
    dim: int, *, count: int = 50, shift: int = 2, far_position: int = 10_000, base: float = 10000.0
) -> Derivation:
    """Range, uniqueness, any length, and PE(t + k) = R_k PE(t) with the same R_k for every t"""
    derivation, at = Derivation(f"four properties of sinusoidal positions, d = {dim}"), np.arange(count)
    table, shifted = encodings(at, dim, base), encodings(at + shift, dim, base)
    with derivation.part("1 range: every entry lies between −1 and 1") as part:
        part.line("smallest entry", "min PE", op("min", table))
        part.line("largest entry", "max PE", op("max", table))
        part.line("length of PE(1)", "‖PE‖ = √(d/2)", op("norm", table[1]))
    gaps = np.linalg.norm(table[:, None] - table[None], axis=-1)
    np.fill_diagonal(gaps, np.inf)
    a, b = (int(n) for n in np.unravel_index(np.argmin(gaps), gaps.shape))
    with derivation.part(f"2 unique: no two of {count} positions share a vector") as part:
        first, second = (part.given(f"PE({t})", "PE", table[t]) for t in (a, b))
        part.line("the closest pair is apart by", "‖PE(s) − PE(t)‖", op("norm", first - second))
    title = "3 any length: nothing ends at a longest text (to be defined is not to generalise)"
    with derivation.part(title) as part:
        distant = encodings(np.array([far_position]), dim, base)[0]
        part.given(f"PE({far_position})", f'"position {far_position:,}, by the same formula"', distant)
        part.line("its largest entry", "max PE", op("max", op("row", *distant)))
    R = np.zeros((dim, dim))
    for n, angle in enumerate(shift / base ** (2 * np.arange(dim // 2) / dim)):
        cos, sin = np.cos(angle), np.sin(angle)
        R[2 * n : 2 * n + 2, 2 * n : 2 * n + 2] = [[cos, sin], [-sin, cos]]
    with derivation.part("4 a shift is linear") as part:
        matrix = part.given(f"R_{shift}", f'"turns every pair by {shift} steps; the same for all" t', R)
        for t in (0, 1, count - 1):
            turned = part.line(f"R_{shift} PE({t})", f"R_{shift} PE({t})", matrix @ table[t])
            there = part.given(f"PE({t + shift})", f"PE({t} + {shift})", shifted[t])
            part.line(f"difference at {t}", f"R_{shift} PE({t}) − PE({t + shift})", turned - there)
    return derivation


def score_comparison(
    q: Vector, K: Matrix, V: Matrix, W: Matrix, U: Matrix, v: Vector, sizes: Sequence[int],
    tokens: Sequence[str] | None = None,
) -> Derivation:  # fmt: skip
    """v·tanh(W q + U k) next to q·k / √d_k: what differs, row by row, and what scaling does as d_k grows"""
    derivation = Derivation("additive against scaled dot-product attention")
    d, n, names = float(len(q)), float(len(K)), name_rows(tokens, len(K))
    with derivation.part("1 the score") as part:
        scores = {
            "additive": [
                part.line(f"additive, {name}", "v·tanh(W q + U k)", v @ op("tanh", W @ q + U @ k))
                for name, k in zip(names, K, strict=True)
            ],
            "scaled dot": [
                part.line(f"scaled dot, {name}", "q·k / √d_k", q @ k / op("√", d))
                for name, k in zip(names, K, strict=True)
            ],
        }
    weights = {}
    with derivation.part("2 the alignment: a softmax over all keys in both") as part:
        for kind, lines in scores.items():
            row = part.line(f"{kind} scores", "s", op("row", *lines))
            weights[kind] = softmax_lines(part, row, kind)
    with derivation.part("3 efficiency") as part:
        size = float(len(v))
        part.line("products per pair, additive", "2 d_k d_a + d_a", op("×", 2.0, d, size) + size)
        part.line("products per pair, dot", "d_k", op("×", 1.0, d))
        part.given("steps one after another, additive in an RNN", '"one per word"', n)
        part.given("steps one after another, self-attention", '"one product of matrices"', 1.0)
    with derivation.part("4 the context: a weighted sum in both") as part:
        for kind, w in weights.items():
            part.line(f"context, {kind}", "Σ w v", weighted_sum(w, V))
    title = "5 self-attention: the Transformer also asks every word about every other"
    with derivation.part(title) as part:
        part.given("pairs, decoder over encoder", "n", n)
        part.line("pairs, self-attention", "n²", op("×", n, n))
    derivation.add(scaling_measurement(sizes))
    return derivation


def scaling_measurement(sizes: Sequence[int]) -> Derivation:
    """Var(q·k) = d_k for entries of variance 1: measured, and the largest weight with and without 1/√d_k"""
    derivation, rng, draws, keys = Derivation("what scaling does, measured"), np.random.default_rng(0), 400, 8
    for d in sizes:
        q, K = rng.standard_normal((draws, 1, d)), rng.standard_normal((draws, keys, d))
        dots = (q * K).sum(-1)
        with derivation.part(f"d_k = {d}, {draws} random queries over {keys} keys") as part:
            part.given("variance of q·k", "Var(q·k) ≈ d_k", dots.var())
            for kind, scores in (("without scaling", dots), ("with 1/√d_k", dots / np.sqrt(d))):
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                part.given(f"largest weight, {kind}", "mean(max(w))", weights.max(-1).mean())
                slope = (weights * (1 - weights)).sum(-1).mean()
                part.given(f"slope of the softmax, {kind}", "mean(Σ w (1 − w))", slope)
    derivation.note = (
        "Unscaled, one weight nears 1 as d_k grows and the slope of the softmax nears 0; scaled, both stay."
    )
    return derivation
