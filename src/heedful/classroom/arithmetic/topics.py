"""The calculations that can be worked, each from plain numbers: alike for a model, a file and an exercise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from heedful.classroom.arithmetic.worked import Derivation, Expression, Line, Matrix, Operation, Vector, op
from heedful.core.errors import InputError

Array = np.ndarray
Rows = Sequence[Expression] | Expression  # vectors, one below the other
Layout = Literal["pairs", "halves"]
HUGE = 100_000  # entries of a matrix
LARGE = 20.0  # a score whose exponential is no longer a number one reads


def name_rows(tokens: Sequence[str] | None, count: int, key: str = "tokens") -> Sequence[str]:
    """Return one name for each of `count` rows, their numbers if none are given."""
    names = [str(i) for i in range(count)] if tokens is None else tokens
    if len(names) != count:
        raise InputError(f"{key} has {len(names)} names for {count} rows", hint="give one for each")
    return names


def softmax_lines(derivation: Derivation, scores: Line, of: str, sink: float | None = None) -> Line:
    """w_j = exp(s_j) / Σ exp(s); with the largest taken off first where exponentials would be huge.

    A `sink` is a score b that no key has: it joins the sum, so that the weights sum to less than 1.
    """
    if not np.isfinite(scores.value).any():
        none = np.zeros(len(scores))
        return derivation.given(f"weights of {of}", '"every key is hidden: no weights"', none)
    extra = None if sink is None else derivation.given("sink", 'b "a score that no key has"', sink)
    top = scores.value.max()
    if top > LARGE:
        scores = derivation.line("shifted", 's - max(s) "(changes no weight)"', scores - top)
        extra = None if extra is None else derivation.line("sink, shifted", "b - max(s)", extra - top)
    powers = derivation.line("exponentials", "exp(s)", op("exp", scores))
    if extra is None:
        total = derivation.line("their sum", "Σ exp(s)", op("sum", powers))
        return derivation.line(f"weights of {of}", "w = exp(s) / Σ exp(s)", powers / total)
    total = derivation.line("their sum", "Σ exp(s) + exp(b)", op("sum", powers) + op("exp", extra))
    return derivation.line(f"weights of {of}", "w = exp(s) / (Σ exp(s) + exp(b))", powers / total)


def weighted_sum(weights: Line, values: Rows) -> Operation:
    """w_1 v_1 + w_2 v_2 + …, leaving out what has no weight."""
    terms = [weights[j] * v for j, v in enumerate(values) if weights.value[j] != 0.0]
    return op("+", *terms) if terms else op("×", 0.0, values[0])


def attention_row(
    derivation: Derivation, q: Expression, K: Rows, V: Rows | None, *, query: str, keys: Sequence[str],
    scale: float | None = None, softcap: float | None = None, bias: Array | None = None,
    keep: Array | None = None, sink: float | None = None,
) -> Line:  # fmt: skip
    """softmax(q Kᵀ · scale + bias, masked) V of one query   (Vaswani et al. 2017, eq. 1)

    Returns the weights; the output is the line “output of QUERY”.
    """
    dots = [derivation.line(f"{query} · {key}", "q·k", q @ k) for key, k in zip(keys, K, strict=True)]
    scores = derivation.line(f"scores of {query}", 's = q·k "for every key"', op("row", *dots))
    if scale is None or np.isclose(scale, len(q) ** -0.5, rtol=1e-12):
        scores = derivation.line(f"scaled scores of {query}", "s / √d_k", scores / op("√", len(q)))
    elif scale != 1.0:
        scores = derivation.line(f"scaled scores of {query}", 's × "scale"', op("×", scale, scores))
    if softcap is not None:
        bent = op("×", softcap, op("tanh", scores / softcap))
        scores = derivation.line(f"capped scores of {query}", f"{softcap:g} tanh(s / {softcap:g})", bent)
    if bias is not None and np.any(bias):
        scores = derivation.line("with the bias of positions", "s + b", scores + bias)
    if keep is not None and not keep.all():
        scores = derivation.line("masked", "s + m", scores + np.where(keep, 0.0, -np.inf))
    weights = softmax_lines(derivation, scores, query, sink)
    if V is not None:
        derivation.line(f"output of {query}", "Σ w v", weighted_sum(weights, V))
    return weights


def softmax(logits: Vector, *, temperature: float = 1.0, tokens: Sequence[str] = ()) -> Derivation:
    """p = softmax(z / T): T below 1 sharpens, above 1 flattens"""
    if temperature <= 0:
        raise InputError(
            f"`temperature={temperature}` must be above 0",
            hint="a value near 0 gives nearly all weight to the largest",
        )
    derivation = Derivation(f"softmax at temperature {temperature:g}")
    z = derivation.given("logits" + (f" of {' '.join(tokens)}" if tokens else ""), "z", logits)
    if temperature != 1.0:
        z = derivation.line("cooled" if temperature < 1 else "heated", "z / T", z / temperature)
    weights = softmax_lines(derivation, z, "all")
    derivation.line("entropy", "-Σ w log₂ w", 0.0 - weights @ op("log₂", weights), "bits")
    return derivation


def encodings(positions: Array, dim: int, base: float = 10000.0) -> Array:
    """p(t, 2i) = sin(t / base^(2i/d)), p(t, 2i+1) = cos of the same, one row for each position"""
    angles = positions[:, None] / base ** (2 * (np.arange(dim) // 2) / dim)
    return np.where(np.arange(dim) % 2 == 0, np.sin(angles), np.cos(angles))


def sinusoid(
    positions: Sequence[int], dim: int, *, base: float = 10000.0, layout: Layout = "pairs",
    add: Vector | None = None, tokens: Sequence[str] = (),
) -> Derivation:  # fmt: skip
    """p(t, 2i) = sin(t / base^(2i/d)), p(t, 2i+1) = cos of the same   (Vaswani et al. 2017 §3.5)"""
    derivation = Derivation(f"positional encoding, d = {dim}, base {base:g}")
    for n, t in enumerate(positions):
        with derivation.part(f"position {t}") as part:
            entries = []
            for k in range(dim):
                i, cosine = (k // 2, k % 2) if layout == "pairs" else (k % (dim // 2), k // (dim // 2))
                angle = op("/", t, op("^", base, op("/", 2 * i, dim)))
                name = "cos" if cosine else "sin"
                entries.append(part.line(f"PE({t},{k})", f"{name}(t / base^(2i/d))", op(name, angle)))
            vector = part.line(f"PE({t})", f'"position {t}"', op("row", *entries))
            if add is not None:
                part.line(f"{tokens[n] if n < len(tokens) else 'x'} + PE({t})", "x + PE", add + vector)
    return derivation


def norm_lines(
    derivation: Derivation, x: Expression, *, gamma: Vector | None = None, beta: Vector | None = None,
    eps: float = 0.0, rms: bool = False,
) -> Line:  # fmt: skip
    """γ (x − mean x) / √(var x + ε) + β   (Ba et al. 2016); γ x / √(mean x² + ε) if `rms`"""
    if rms:
        square = derivation.line("mean square", "mean(x²)", op("mean", x * x))
        out = derivation.line("normalised", "n = x / √(mean(x²) + ε)", x / op("√", square + eps))
    else:
        mean = derivation.line("mean", "μ = mean(x)", op("mean", x))
        gap = derivation.line("centred", "x − μ", x - mean)
        var = derivation.line("variance", "σ² = mean((x − μ)²)", op("mean", gap * gap))
        formula = "n = (x − μ) / √(σ² + ε)" if eps else "n = (x − μ) / √(σ²)"
        out = derivation.line("normalised", formula, gap / op("√", var + eps if eps else var))
    if gamma is not None and beta is not None:
        return derivation.line("scaled and shifted", "γ ⊙ n + β", gamma * out + beta)
    return out if gamma is None else derivation.line("scaled", "γ ⊙ n", gamma * out)


def add_norm(
    x: Vector, add: Vector | None = None, *, gamma: Vector | None = None, beta: Vector | None = None,
    eps: float = 0.0, rms: bool = False,
) -> Derivation:  # fmt: skip
    """norm(x + sublayer(x))   (Vaswani et al. 2017 §3.1)"""
    derivation = Derivation("layer norm" if add is None else "add & norm")
    x = derivation.given("x", "x", x)
    if add is not None:
        x = derivation.line("added", "x + f(x)", x + derivation.given("sub-layer", "f(x)", add))
    norm_lines(derivation, x, gamma=gamma, beta=beta, eps=eps, rms=rms)
    return derivation


def linear_line(
    derivation: Derivation, label: str, formula: str, x: Expression, weight: Expression,
    bias: Expression | None,
) -> Line:  # fmt: skip
    """W x + b; a matrix too large for a page is not written out, only what comes of it."""
    product = weight @ x if bias is None else weight @ x + bias
    if weight.value.size <= HUGE:
        return derivation.line(label, formula, product)
    rows, columns = weight.value.shape
    return derivation.given(
        label, f'{formula} "({rows} × {columns} numbers, not written out)"', product.value
    )


def rnn_steps(text: str, letters: Sequence[str], W: Matrix, U: Matrix, V: Matrix) -> Derivation:
    """h_t = tanh(U h_{t−1} + W x_t), p = softmax(V h_t): each letter, and which follows   (Elman 1990)

    x_t is one-hot over `letters`, and h_0 = 0.
    """
    if len(text) < 2 or (unknown := [letter for letter in text if letter not in letters]):
        problem = f"{unknown[0]!r} is none of {', '.join(letters)}" if len(text) > 1 else "nothing follows"
        raise InputError(
            f"`text={text!r}`: {problem}", hint="give two letters or more, all of them in `letters`"
        )
    H, C = len(U), len(letters)
    if (W.value.shape, U.value.shape, V.value.shape) != ((H, C), (H, H), (C, H)):
        raise InputError(f"W must be {H} × {C}, U {H} × {H} and V {C} × {H}: a state of {H}, {C} letters")
    derivation = Derivation(f"an RNN reads “{text}”")
    h: Expression | Array = np.zeros(H)
    for now, following in pairwise(text):
        with derivation.part(f"“{now}”") as step:
            x = step.given(f"letter {now}", 'x_t "one-hot"', np.eye(C)[letters.index(now)])
            before = step.line("before tanh", "U h_{t−1} + W x_t", U @ h + W @ x)
            h = step.line("state", "h_t = tanh(U h_{t−1} + W x_t)", op("tanh", before))
            scores = step.line("scores", "V h_t", V @ h)
            weights = softmax_lines(step, scores, f"{', '.join(letters)} after {now}")
            chance = weights.value[letters.index(following)]
            step.note = f"“{following}” follows, with a probability of {chance:.3f}."
    return derivation


def lstm_step(x: Vector, h: Vector, c: Vector, W: Matrix, U: Matrix, b: Vector | None = None) -> Derivation:
    """i, f, o = σ(W x + U h + b), g = tanh(…), c = f ⊙ c + i ⊙ g, h = o ⊙ tanh(c)

    The rows of W, U and b are those of i, f, g, o in turn.
    """
    H = len(h)
    if W.value.shape != (4 * H, len(x)) or U.value.shape != (4 * H, H):
        sizes = f"W must be {4 * H} × {len(x)} and U {4 * H} × {H}"
        raise InputError(f"{sizes}: the rows of i, f, g, o in turn")
    note = "g is the candidate (C with a tilde in many figures), not the cell state: c_t is."
    derivation = Derivation("one LSTM step", note=note)
    x, h = derivation.given("input", "x_t", x), derivation.given("state", "h_{t−1}", h)
    c = derivation.given("cell", "c_{t−1}", c)
    gates = {}
    kinds = {"i": "input gate", "f": "forget gate", "g": "candidate", "o": "output gate"}
    for n, (name, kind) in enumerate(kinds.items()):
        rows = slice(n * H, (n + 1) * H)
        total = W[rows] @ x + U[rows] @ h
        formula = f"a_{name} = W_{name} x_t + U_{name} h_{{t−1}}"
        if b is not None:
            total, formula = total + b[rows], f"{formula} + b_{name}"
        before, squash = derivation.line(f"{name} before", formula, total), "tanh" if name == "g" else "σ"
        gates[name] = derivation.line(name, f'{name} = {squash}(a_{name}) "{kind}"', op(squash, before))
    i, f, g, o = gates.values()
    cell = derivation.line("new cell", "c_t = f ⊙ c_{t−1} + i ⊙ g", f * c + i * g)
    derivation.line("new state", "h_t = o ⊙ tanh(c_t)", o * op("tanh", cell))
    return derivation


def align(derivation: Derivation, energies: Sequence[Line], memory: Rows) -> Derivation:
    """α = softmax(e), c = Σ α_j m_j: the end of a step of either kind"""
    scores = derivation.line("energies", 's = e_j "for every word"', op("row", *energies))
    derivation.line("context", "Σ α m", weighted_sum(softmax_lines(derivation, scores, "the state"), memory))
    return derivation


def additive_step(
    s: Vector, memory: Matrix, W: Matrix, U: Matrix, v: Vector, *, tokens: Sequence[str] = ()
) -> Derivation:
    """e_j = vᵀ tanh(W s + U m_j), α = softmax(e), c = Σ α_j m_j   (Bahdanau et al. 2015, A.1.2)"""
    derivation, energies = Derivation("one Bahdanau step"), []
    query = derivation.line("query", "W s", W @ derivation.given("decoder state", "s_{i−1}", s))
    for name, m in zip(tokens or name_rows(None, len(memory)), memory, strict=True):
        key = derivation.line(f"key of {name}", "U m", U @ m)
        energy = v @ op("tanh", query + key)
        energies.append(derivation.line(f"energy of {name}", "v·tanh(W s + U m)", energy))
    return align(derivation, energies, memory)


def scored_step(s: Vector, keys: Rows, memory: Rows, names: Sequence[str]) -> Derivation:
    """e_j = s·k_j, k_j = m_j (dot) or W m_j (general)   (Luong et al. 2015, eq. 8)"""
    derivation = Derivation("one Luong step")
    s = derivation.given("decoder state", "s_i", s)
    energies = [derivation.line(f"energy of {n}", "s·k", s @ k) for n, k in zip(names, keys, strict=True)]
    return align(derivation, energies, memory)


def sgns(
    vector: Vector, contexts: Mapping[str, Vector], negatives: Mapping[str, Vector], *, rate: float = 0.5,
    centre: str = "centre",
) -> Derivation:  # fmt: skip
    """L = −Σ_o [y ln σ(u·v) + (1−y) ln(1−σ(u·v))], e = σ(u·v) − y, ∂L/∂u = e v, ∂L/∂v = Σ e u

    (Mikolov et al. 2013 §2.2; gradients: Goldberg and Levy 2014.) One step of size `rate` on all of them.
    """
    derivation = Derivation(f"one step of skip-gram with negative sampling: “{centre}”")
    v = derivation.given(centre, "v", vector)
    losses, terms = [], []
    outside = [(word, 1, u) for word, u in contexts.items()]
    outside += [(word, 0, u) for word, u in negatives.items()]
    for word, label, given in outside:
        with derivation.part(word) as part:
            u = part.given(word, 'u "observed:" y = 1' if label else 'u "drawn as noise:" y = 0', given)
            x = part.line(f"{word} · {centre}", "u·v", u @ v)
            p = part.line(f"σ of {word}", "σ(u·v)", op("σ", x))
            formula, right = ("−ln σ", p) if label else ("−ln(1 − σ)", 1.0 - p)
            losses.append(part.line(f"loss of {word}", formula, 0.0 - op("ln", right), "nats"))
            error = part.line(f"error of {word}", "σ − y", p - float(label))
            slope = part.line(f"gradient of {word}", "∂L/∂u = (σ − y) v", error * v)
            part.line(f"new {word}", "u − η (∂L/∂u)", u - rate * slope)
            terms.append(error * u)
    derivation.line("loss", 'L "summed over all words"', op("sum", op("row", *losses)), "nats")
    slope = derivation.line(f"gradient of {centre}", "∂L/∂v = Σ (σ − y) u", op("+", *terms))
    derivation.line(f"new {centre}", "v − η (∂L/∂v)", v - rate * slope)
    return derivation


def rotary(x: Vector, cos: Vector, sin: Vector, *, position: int, of: str) -> Derivation:
    """(a, b) → (a cos − b sin, b cos + a sin); a, b the two halves of what is turned   (Su et al. 2021)"""
    derivation, half = Derivation(f"rotary position {position} of {of}"), len(cos)
    a = derivation.given("first half", "a", x[:half])
    b = derivation.given("second half", "b", x[half : 2 * half])
    cos = derivation.given("cosines", f'cos(t ω) "at" t = {position}', cos)
    sin = derivation.given("sines", "sin(t ω)", sin)
    derivation.line("turned first half", "a ⊙ cos − b ⊙ sin", a * cos - b * sin)
    derivation.line("turned second half", "b ⊙ cos + a ⊙ sin", b * cos + a * sin)
    return derivation


# Words as vectors: one-hot and dense, the embedding as a product, word2vec's likelihood.


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
