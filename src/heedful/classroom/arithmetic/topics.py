"""The calculations that can be worked, each from plain arrays: alike for a model, a file and an exercise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from heedful.classroom.arithmetic.worked import Derivation, Operation, Sheet, entry, op
from heedful.core.errors import InputError

Array = np.ndarray
HUGE = 100_000  # entries of a matrix
LARGE = 20.0  # a score whose exponential is no longer a number one reads


def name_rows(tokens: Sequence[str] | None, count: int, key: str = "tokens") -> Sequence[str]:
    """Return one name for each of `count` rows, their numbers if none are given."""
    names = [str(i) for i in range(count)] if tokens is None else tokens
    if len(names) != count:
        raise InputError(f"{key} has {len(names)} names for {count} rows", hint="give one for each")
    return names


def softmax_lines(sheet: Sheet, scores: Array, of: str) -> Array:
    """w_j = exp(s_j) / Σ exp(s); with the largest taken off first where exponentials would be huge."""
    if not np.isfinite(scores).any():
        return sheet.add_given(f"weights of {of}", '"every key is hidden: no weights"', np.zeros_like(scores))
    top = scores.max()
    if top > LARGE:
        scores = sheet.line("shifted", 's - max(s) "(changes no weight)"', op("-", scores, top))
    powers = sheet.line("exponentials", "exp(s)", op("exp", scores))
    total = sheet.line("their sum", "Σ exp(s)", op("sum", powers))
    return sheet.line(f"weights of {of}", "w = exp(s) / Σ exp(s)", op("/", powers, total))


def weighted_sum(weights: Array, values: Sequence[Array] | Array) -> Operation:
    """w_1 v_1 + w_2 v_2 + …, leaving out what has no weight."""
    terms = [op("×", entry(weights, j), v) for j, v in enumerate(values) if weights[j] != 0.0]
    return op("+", *terms) if terms else op("×", 0.0, values[0])


def attention_row(
    q: Array,
    K: Sequence[Array] | Array,
    V: Sequence[Array] | Array | None,
    *,
    query: str,
    keys: Sequence[str],
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    keep: Array | None = None,
    title: str = "",
    sheet: Sheet | None = None,
) -> Derivation:
    """softmax(q Kᵀ · scale + bias, masked) V of one query   (Vaswani et al. 2017, eq. 1)

    `sheet` has the lines that q, K and V come from, if they are shown.
    """
    sheet = sheet or Sheet()
    dots = [
        sheet.line(f"{query} · {key}", "q·k", op("·", q, k)) for key, k in zip(keys, K, strict=True)
    ]  # fmt: skip
    scores = sheet.line(f"scores of {query}", 's = q·k "for every key"', op("row", *dots))
    if scale is None or np.isclose(scale, len(q) ** -0.5, rtol=1e-12):
        scores = sheet.line(f"scaled scores of {query}", "s / √d_k", op("/", scores, op("√", len(q))))
    elif scale != 1.0:
        scores = sheet.line(f"scaled scores of {query}", 's × "scale"', op("×", scale, scores))
    if softcap is not None:
        bent = op("×", softcap, op("tanh", op("/", scores, softcap)))
        scores = sheet.line(f"capped scores of {query}", f"{softcap:g} tanh(s / {softcap:g})", bent)
    if bias is not None and np.any(bias):
        scores = sheet.line("with the bias of positions", "s + b", op("+", scores, bias))
    if keep is not None and not keep.all():
        scores = sheet.line("masked", "s + m", op("+", scores, np.where(keep, 0.0, -np.inf)))
    weights = softmax_lines(sheet, scores, query)
    if V is not None:
        sheet.line(f"output of {query}", "Σ w v", weighted_sum(weights, V))
    return sheet.finish(title or f"attention of “{query}”")


def softmax(logits: Array, *, temperature: float = 1.0, tokens: Sequence[str] = ()) -> Derivation:
    """p = softmax(z / T): T below 1 sharpens, above 1 flattens"""
    if temperature <= 0:
        raise InputError(f"temperature={temperature} must be above 0", hint="near 0 the largest takes all")
    sheet = Sheet()
    z = sheet.add_given("logits" + (f" of {' '.join(tokens)}" if tokens else ""), "z", logits)
    if temperature != 1.0:
        z = sheet.line("cooled" if temperature < 1 else "heated", "z / T", op("/", z, temperature))
    weights = softmax_lines(sheet, z, "all")
    entropy = op("-", 0.0, op("·", weights, op("log₂", weights)))
    sheet.line("entropy", "-Σ w log₂ w", entropy, "bits")
    return sheet.finish(f"softmax at temperature {temperature:g}")


def encodings(positions: Array, dim: int, base: float = 10000.0) -> Array:
    """p(t, 2i) = sin(t / base^(2i/d)), p(t, 2i+1) = cos of the same, one row for each position"""
    angles = positions[:, None] / base ** (2 * (np.arange(dim) // 2) / dim)
    return np.where(np.arange(dim) % 2 == 0, np.sin(angles), np.cos(angles))


def sinusoid(
    positions: Sequence[int], dim: int, *, base: float = 10000.0, layout: str = "pairs", add: Any = None,
    tokens: Sequence[str] = (),
) -> Derivation:  # fmt: skip
    """p(t, 2i) = sin(t / base^(2i/d)), p(t, 2i+1) = cos of the same   (Vaswani et al. 2017 §3.5)"""
    sheet = Sheet()
    for n, t in enumerate(positions):
        part, entries = Sheet(), []
        for k in range(dim):
            i, cosine = (k // 2, k % 2) if layout == "pairs" else (k % (dim // 2), k // (dim // 2))
            angle = op("/", t, op("^", base, op("/", 2 * i, dim)))
            name, formula = ("cos", "cos(t / base^(2i/d))") if cosine else ("sin", "sin(t / base^(2i/d))")
            entries.append(part.line(f"PE({t},{k})", formula, op(name, angle)))
        vector = part.line(f"PE({t})", f'"position {t}"', op("row", *entries))
        if add is not None:
            word = tokens[n] if n < len(tokens) else "x"
            part.line(f"{word} + PE({t})", "x + PE", op("+", np.asarray(add, dtype=float), vector))
        sheet.section(part.finish(f"position {t}"))
    return sheet.finish(f"positional encoding, d = {dim}, base {base:g}")


def norm_lines(
    sheet: Sheet, x: Array, *, gamma: Array | None = None, beta: Array | None = None, eps: float = 0.0,
    rms: bool = False,
) -> Array:  # fmt: skip
    """γ (x − mean x) / √(var x + ε) + β   (Ba et al. 2016); γ x / √(mean x² + ε) if `rms`"""
    if rms:
        square = sheet.line("mean square", "mean(x²)", op("mean", op("⊙", x, x)))
        root = op("√", op("+", square, eps))
        out = sheet.line("normalised", "x / √(mean(x²) + ε)", op("/", x, root))
    else:
        mean = sheet.line("mean", "μ = mean(x)", op("mean", x))
        gap = sheet.line("centred", "x − μ", op("-", x, mean))
        var = sheet.line("variance", "σ² = mean((x − μ)²)", op("mean", op("⊙", gap, gap)))
        root = op("√", op("+", var, eps)) if eps else op("√", var)
        out = sheet.line(
            "normalised", "(x − μ) / √(σ² + ε)" if eps else "(x − μ) / √(σ²)", op("/", gap, root)
        )
    if gamma is not None and beta is not None:
        return sheet.line("scaled and shifted", "γ ⊙ x + β", op("+", op("⊙", gamma, out), beta))
    if gamma is not None:
        return sheet.line("scaled", "γ ⊙ x", op("⊙", gamma, out))
    return out


def add_norm(x: Array, add: Array | None = None, *, title: str = "", **more: Any) -> Derivation:
    """norm(x + sublayer(x))   (Vaswani et al. 2017 §3.1)"""
    sheet = Sheet()
    x = sheet.add_given("x", "x", x)
    if add is not None:
        other = sheet.add_given("sub-layer", "f(x)", add)
        x = sheet.line("added", "x + f(x)", op("+", x, other))
    norm_lines(sheet, x, **more)
    return sheet.finish(title or ("layer norm" if add is None else "add & norm"))


def linear_line(sheet: Sheet, label: str, formula: str, x: Array, weight: Array, bias: Array | None) -> Array:
    """W x + b; a matrix too large for a page is not written out, only what comes of it."""
    if weight.size > HUGE:
        formula = f'{formula} "({weight.shape[0]} × {weight.shape[1]} numbers, not written out)"'
        return sheet.add_given(label, formula, weight @ x if bias is None else weight @ x + bias)
    product = op("·", weight, x)
    return sheet.line(label, formula, product if bias is None else op("+", product, bias))


def rnn_steps(text: str, letters: Sequence[str], W: Array, U: Array, V: Array) -> Derivation:
    """h_t = tanh(U h_{t−1} + W x_t), p = softmax(V h_t): each letter, and which follows   (Elman 1990)

    x_t is one-hot over `letters`, and h_0 = 0.
    """
    if len(text) < 2 or (unknown := [letter for letter in text if letter not in letters]):
        problem = f"{unknown[0]!r} is none of {', '.join(letters)}" if len(text) > 1 else "nothing follows"
        raise InputError(
            f"text={text!r}: {problem}", hint="give two letters or more, all of them in `letters`"
        )
    H, C = len(U), len(letters)
    if (W.shape, U.shape, V.shape) != ((H, C), (H, H), (C, H)):
        raise InputError(f"W must be {H} × {C}, U {H} × {H} and V {C} × {H}: a state of {H}, {C} letters")
    whole, h = Sheet(), np.zeros(len(U))
    for now, following in pairwise(text):
        sheet = Sheet()
        x = sheet.add_given(f"letter {now}", 'x_t "one-hot"', np.eye(len(letters))[letters.index(now)])
        before = sheet.line("before tanh", "U h_{t−1} + W x_t", op("+", op("·", U, h), op("·", W, x)))
        h = sheet.line("state", "h_t = tanh(U h_{t−1} + W x_t)", op("tanh", before))
        scores = sheet.line("scores", "V h_t", op("·", V, h))
        weights = softmax_lines(sheet, scores, f"{', '.join(letters)} after {now}")
        chance = float(weights[letters.index(following)])
        whole.section(sheet.finish(f"“{now}”", f"“{following}” follows, with a probability of {chance:.3f}."))
    return whole.finish(f"an RNN reads “{text}”")


def lstm_step(
    x: Array, h: Array, c: Array, W: Array, U: Array, b: Array | None = None, title: str = "one LSTM step"
) -> Derivation:
    """i, f, o = σ(W x + U h + b), g = tanh(…), c = f ⊙ c + i ⊙ g, h = o ⊙ tanh(c)

    The rows of W, U and b are those of i, f, g, o in turn.
    """
    sheet, H = Sheet(), len(h)
    if W.shape != (4 * H, len(x)) or U.shape != (4 * H, H):
        sizes = f"W must be {4 * H} × {len(x)} and U {4 * H} × {H}"
        raise InputError(f"{sizes}: the rows of i, f, g, o in turn")
    x, h = sheet.add_given("input", "x_t", x), sheet.add_given("state", "h_{t−1}", h)
    c = sheet.add_given("cell", "c_{t−1}", c)
    gates = {}
    for n, name in enumerate("ifgo"):
        rows = slice(n * H, (n + 1) * H)
        terms = [op("·", W[rows], x), op("·", U[rows], h)] + ([] if b is None else [b[rows]])
        bias = "" if b is None else f" + b_{name}"
        total = sheet.line(
            f"{name} before", f"a_{name} = W_{name} x_t + U_{name} h_{{t−1}}{bias}", op("+", *terms)
        )
        squash = "tanh" if name == "g" else "σ"
        kind = {"i": "input gate", "f": "forget gate", "g": "candidate", "o": "output gate"}[name]
        gates[name] = sheet.line(name, f'{name} = {squash}(a_{name}) "{kind}"', op(squash, total))
    new = op("+", op("⊙", gates["f"], c), op("⊙", gates["i"], gates["g"]))
    cell = sheet.line("new cell", "c_t = f ⊙ c_{t−1} + i ⊙ g", new)
    sheet.line("new state", "h_t = o ⊙ tanh(c_t)", op("⊙", gates["o"], op("tanh", cell)))
    note = "g is the candidate (C with a tilde in many figures), not the cell state: c_t is."
    return sheet.finish(title, note)


def additive_step(
    s: Array, memory: Array, W: Array, U: Array, v: Array, *, tokens: Sequence[str] = ()
) -> Derivation:
    """e_j = vᵀ tanh(W s + U m_j), α = softmax(e), c = Σ α_j m_j   (Bahdanau et al. 2015, A.1.2)"""
    sheet = Sheet()
    s = sheet.add_given("decoder state", "s_{i−1}", s)
    query = sheet.line("query", "W s", op("·", W, s))
    names, scores = tokens or [str(j) for j in range(len(memory))], []
    for name, m in zip(names, memory, strict=True):
        key = sheet.line(f"key of {name}", "U m", op("·", U, m))
        hidden = op("tanh", op("+", query, key))
        scores.append(sheet.line(f"energy of {name}", "v·tanh(W s + U m)", op("·", v, hidden)))
    energies = sheet.line("energies", 's = e_j "for every word"', op("row", *scores))
    weights = softmax_lines(sheet, energies, "the state")
    sheet.line("context", "Σ α m", weighted_sum(weights, memory))
    return sheet.finish("one Bahdanau step")


def scored_step(s: Array, keys: Array, memory: Array, names: Sequence[str]) -> Derivation:
    """e_j = s·k_j, k_j = m_j (dot) or W m_j (general)   (Luong et al. 2015, eq. 8)"""
    sheet = Sheet()
    s = sheet.add_given("decoder state", "s_i", s)
    pairs = zip(names, keys, strict=True)
    scores = [sheet.line(f"energy of {name}", "s·k", op("·", s, k)) for name, k in pairs]
    energies = sheet.line("energies", 's = e_j "for every word"', op("row", *scores))
    weights = softmax_lines(sheet, energies, "the state")
    sheet.line("context", "Σ α m", weighted_sum(weights, memory))
    return sheet.finish("one Luong step")


def sgns(
    vector: Array, observed: Mapping[str, Array], drawn: Mapping[str, Array], *, rate: float = 0.5,
    centre: str = "centre",
) -> Derivation:  # fmt: skip
    """L = −Σ_o [y ln σ(u·v) + (1−y) ln(1−σ(u·v))], e = σ(u·v) − y, ∂L/∂u = e v, ∂L/∂v = Σ e u

    (Mikolov et al. 2013 §2.2; gradients: Goldberg and Levy 2014.) One step of size `rate` on all of them.
    """
    sheet = Sheet()
    v = sheet.add_given(centre, "v", vector)
    errors, losses = [], []
    outside = [(word, label, u) for label, words in ((1, observed), (0, drawn)) for word, u in words.items()]
    for word, label, u in outside:
        part = Sheet()
        u = part.add_given(word, 'u "observed:" y = 1' if label else 'u "drawn as noise:" y = 0', u)
        x = part.line(f"{word} · {centre}", "u·v", op("·", u, v))
        p = part.line(f"σ of {word}", "σ(u·v)", op("σ", x))
        right = op("ln", p) if label else op("ln", op("-", 1.0, p))
        formula = "−ln σ" if label else "−ln(1 − σ)"
        losses.append(part.line(f"loss of {word}", formula, op("-", 0.0, right), "nats"))
        errors.append(part.line(f"error of {word}", "σ − y", op("-", p, float(label))))
        slope = part.line(f"gradient of {word}", "∂L/∂u = (σ − y) v", op("×", errors[-1], v))
        part.line(f"new {word}", "u − η (∂L/∂u)", op("-", u, op("×", rate, slope)))
        sheet.section(part.finish(word))
    sheet.line("loss", 'L "summed over all words"', op("sum", op("row", *losses)), "nats")
    terms = [op("×", e, u) for e, (_, _, u) in zip(errors, outside, strict=True)]
    slope = sheet.line(f"gradient of {centre}", "∂L/∂v = Σ (σ − y) u", op("+", *terms))
    sheet.line(f"new {centre}", "v − η (∂L/∂v)", op("-", v, op("×", rate, slope)))
    return sheet.finish(f"one step of skip-gram with negative sampling: “{centre}”")


def rotary(x: Array, cos: Array, sin: Array, *, position: int, of: str) -> Derivation:
    """(a, b) → (a cos − b sin, b cos + a sin); a, b the two halves of what is turned   (Su et al. 2021)"""
    sheet, half = Sheet(), len(cos)
    a = sheet.add_given("first half", "a", x[:half])
    b = sheet.add_given("second half", "b", x[half : 2 * half])
    cos = sheet.add_given("cosines", f'cos(t ω) "at" t = {position}', cos)
    sin = sheet.add_given("sines", "sin(t ω)", sin)
    sheet.line("turned first half", "a ⊙ cos − b ⊙ sin", op("-", op("⊙", a, cos), op("⊙", b, sin)))
    sheet.line("turned second half", "b ⊙ cos + a ⊙ sin", op("+", op("⊙", b, cos), op("⊙", a, sin)))
    return sheet.finish(f"rotary position {position} of {of}")
