"""Gradients worked number by number, each compared with autograd.

A gradient ∂L/∂x is written dx. What comes from above, the gradient with respect to the result, is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from heedful.classroom.arithmetic.topics import (
    Rows,
    attention_row,
    lstm_step,
    name_rows,
    norm_lines,
    softmax_lines,
)
from heedful.classroom.arithmetic.topics_attention import Mask, Place, visible
from heedful.classroom.arithmetic.worked import (
    AUTOGRAD,
    Derivation,
    Expression,
    Line,
    Matrix,
    Numbers,
    Operation,
    Vector,
    op,
)
from heedful.core.checks import position_of
from heedful.core.errors import InputError

VANISHED, EXPLODED = 0.1, 10.0  # of the first gradient: what the note calls vanishing and exploding


def autograd(
    function: Callable[..., Tensor], inputs: Sequence[Expression], upstream: Expression | float
) -> list[Tensor]:
    """The gradients of sum(function(*inputs) · upstream) by its inputs, from autograd in float64."""
    leaves = [torch.tensor(x.value, requires_grad=True) for x in inputs]
    result = function(*leaves)
    weight = torch.as_tensor(np.asarray(upstream), dtype=torch.float64)
    return list(torch.autograd.grad((result * weight).sum(), leaves))


def softmax_backward_lines(derivation: Derivation, w: Line, dw: Line, of: str) -> Line:
    """ds = w ⊙ (dw − w·dw): the Jacobian diag(w) − w wᵀ times dw"""
    mean = derivation.line(f"mean gradient of {of}", "w·dw", w @ dw)
    gap = derivation.line(f"above the mean of {of}", "dw − w·dw", dw - mean)
    return derivation.line(f"gradient of the scores of {of}", "ds = w ⊙ (dw − w·dw)", w * gap)


def loss_lines(derivation: Derivation, p: Line, right: int, name: str) -> tuple[Line, Line]:
    """L = −ln p_y and dz = p − y, y one-hot; returns both"""
    y = derivation.given(f"the right word, {name}", 'y "one-hot"', np.eye(len(p))[right])
    loss = derivation.line("loss", "L = −ln p_y", 0.0 - op("ln", p[right]), "nats")
    derivation.line("the same in bits", "L / ln 2", loss / op("ln", 2.0), "bits")
    return loss, derivation.line("gradient of the logits", "dz = p − y", p - y)


def row_gradient_lines(
    derivation: Derivation, w: Line, do: Line, K: Rows, V: Rows, name: str, keys: Sequence[str]
) -> tuple[Line, Line, Operation]:
    """dw = do Vᵀ, ds = w ⊙ (dw − w·dw), Σ_j ds_j k_j, for one query; returns dw, ds and the sum"""
    dots = [derivation.line(f"dw of {name}, {key}", "do·v", do @ v) for key, v in zip(keys, V, strict=True)]
    dw = derivation.line(f"gradient of the weights of {name}", "dw = do Vᵀ", op("row", *dots))
    ds = softmax_backward_lines(derivation, w, dw, name)
    return dw, ds, op("+", *(ds[j] * k for j, k in enumerate(K)))


def softmax_gradient(logits: Vector, above: Vector) -> Derivation:
    """w = softmax(z): ∂w_i/∂z_j = w_i (δ_ij − w_j), dz = w ⊙ (dw − w·dw)"""
    note = "The entries of dz sum to 0: a softmax does not change when all scores grow by the same amount."
    derivation = Derivation("the gradient of a softmax", note=note, check_source=AUTOGRAD)
    w = softmax_lines(derivation, derivation.given("logits", "z", logits), "all")
    rows = [
        derivation.line(f"row {i} of the Jacobian", f"w_{i} (δ_{{{i} j}} − w_j)", w[i] * (row - w))
        for i, row in enumerate(np.eye(len(w)))
    ]
    jacobian = derivation.line("Jacobian", "∂w/∂z", op("row", *rows))
    dw = derivation.given("from above", "dw", above)
    dz = softmax_backward_lines(derivation, w, dw, "all")
    other = derivation.line("the same by the Jacobian", "dz = dw (∂w/∂z)", dw @ jacobian)
    (theirs,) = autograd(lambda z: z.softmax(-1), [logits], above)
    derivation.compare("gradient", dz, theirs)
    derivation.compare("product with the Jacobian", other, theirs)
    return derivation


def cross_entropy_gradient(logits: Vector, target: Place, tokens: Sequence[str] | None = None) -> Derivation:
    """L = −ln p_y, p = softmax(z): dz = p − y, y one-hot"""
    note = "The right word is pushed up by 1 − p, every other word down by its own p; the entries sum to 0."
    derivation = Derivation("the gradient of the cross-entropy", note=note, check_source=AUTOGRAD)
    names = name_rows(tokens, len(logits))
    right = position_of(names, target)
    p = softmax_lines(derivation, derivation.given(f"logits of {' '.join(names)}", "z", logits), "all")
    _, dz = loss_lines(derivation, p, right, names[right])
    (theirs,) = autograd(lambda z: -z.log_softmax(-1)[right], [logits], 1.0)
    derivation.compare("gradient", dz, theirs)
    return derivation


def norm_gradient(
    x: Vector, above: Vector, *, gamma: Vector | None = None, beta: Vector | None = None, eps: float = 1e-5
) -> Derivation:
    """dx = (dn − mean(dn) − n ⊙ mean(dn ⊙ n)) / √(σ² + ε), dn = γ ⊙ dy, dγ = dy ⊙ n, dβ = dy"""
    note = (
        "dβ is dy itself. The entries of dx sum to 0, and so do those of dx ⊙ n but for ε: a norm hides both."
    )
    derivation, size = Derivation("the gradient of a layer norm", note=note, check_source=AUTOGRAD), len(x)
    gamma = Numbers(np.ones(size)) if gamma is None else gamma
    beta = Numbers(np.zeros(size)) if beta is None else beta
    x = derivation.given("x", "x", x)
    norm_lines(derivation, x, gamma=gamma, beta=beta, eps=eps)
    n, var = derivation.find("normalised"), derivation.find("variance")
    dy = derivation.given("from above", "dy", above)
    dgamma = derivation.line("gradient of γ", "dγ = dy ⊙ n", dy * n)
    dn = derivation.line("gradient of the normalised", "dn = γ ⊙ dy", gamma * dy)
    mean = derivation.line("mean of dn", "mean(dn)", op("mean", dn))
    share = derivation.line("mean of dn along n", "mean(dn ⊙ n)", op("mean", dn * n))
    inner = derivation.line("without mean and scale", "dn − mean(dn) − n mean(dn ⊙ n)", dn - mean - share * n)
    formula = "dx = (dn − mean(dn) − n mean(dn ⊙ n)) / √(σ² + ε)"
    dx = derivation.line("gradient of x", formula, inner / op("√", var + eps))
    function = lambda x, g, b: torch.nn.functional.layer_norm(x, [size], g, b, eps)
    gradients = autograd(function, [x, gamma, beta], above)
    for name, mine, theirs in zip(("x", "γ", "β"), (dx, dgamma, dy), gradients):
        derivation.compare(f"gradient of {name}", mine, theirs)
    return derivation


def attention_gradient(
    Q: Matrix, K: Matrix, V: Matrix, above: Matrix, *, tokens: Sequence[str] | None = None, mask: Mask = None
) -> Derivation:
    """O = softmax(Q Kᵀ / √d_k) V: dV = Wᵀ dO, dW = dO Vᵀ, dS = W ⊙ (dW − w·dW by rows), dQ = dS K, dK = dSᵀ Q

    with dQ and dK divided by √d_k.
    """
    names = name_rows(tokens, len(Q))
    if not len(Q) == len(K) == len(V) == len(above):
        raise InputError(
            f"{len(Q)} queries, {len(K)} keys, {len(V)} values, {len(above)} gradients: they must be as many"
        )
    derivation = Derivation("the gradient of attention: dQ, dK, dV", check_source=AUTOGRAD)
    W, dS, dQ, dK, dV, root = [], [], [], [], [], op("√", Q.value.shape[1])
    for i, name in enumerate(names):
        with derivation.part(f"query {name}") as part:
            keep = visible(mask, i, len(K))
            w = attention_row(part, Q[i], K, V, query=name, keys=names, keep=keep)
            do = part.given(f"from above, {name}", "do", above[i])
            _, ds, total = row_gradient_lines(part, w, do, K, V, name, names)
            dQ.append(part.line(f"dq of {name}", "dq = Σ_j ds_j k_j / √d_k", total / root))
            W.append(w)
            dS.append(ds)
    with derivation.part("keys and values: every query that saw them") as part:
        for j, key in enumerate(names):
            total = op("+", *(ds[j] * q for ds, q in zip(dS, Q)))
            dK.append(part.line(f"dk of {key}", "dk = Σ_i ds_i q_i / √d_k", total / root))
            total = op("+", *(w[j] * do for w, do in zip(W, above)))
            dV.append(part.line(f"dv of {key}", "dv = Σ_i w_i do_i", total))
    attend = torch.nn.functional.scaled_dot_product_attention
    theirs = autograd(lambda q, k, v: attend(q, k, v, is_causal=mask is not None), [Q, K, V], above)
    for name, mine, other in zip("QKV", (dQ, dK, dV), theirs):
        derivation.compare(f"d{name}", np.stack([line.value for line in mine]), other)
    return derivation


def sizes_note(sizes: Sequence[float], of: str) -> str:
    """Return in words what became of a gradient on its way back, as a factor per step."""
    first, last, steps = sizes[0], sizes[-1], max(1, len(sizes) - 1)
    if first == 0 or last == 0:
        return f"‖{of}‖ is 0 at the start or at the end."
    share, factor = last / first, (last / first) ** (1 / steps)
    word = "vanishes" if share < VANISHED else "explodes" if share > EXPLODED else "lasts"
    return (
        f"‖{of}‖ goes from {first:.3g} to {last:.3g} over {steps} steps, × {factor:.3g} at each: it {word}."
    )


def rnn_gradient(X: Matrix, W: Matrix, U: Matrix, above: Vector, h: Vector | None = None) -> Derivation:
    """da_t = dh_t ⊙ (1 − h_t²), dh_{t−1} = Uᵀ da_t, dW = Σ da_t x_tᵀ, dU = Σ da_t h_{t−1}ᵀ"""
    first: Expression = Numbers(np.zeros(len(U))) if h is None else h
    derivation, states = Derivation("the gradient of an RNN through time", check_source=AUTOGRAD), [first]
    with derivation.part("forward") as part:
        for t, x in enumerate(X, 1):
            state = op("tanh", U @ states[-1] + W @ x)
            states.append(part.line(f"state {t}", f"h_{t} = tanh(U h_{t - 1} + W x_{t})", state))
    dh = derivation.given(f"from above, dh {len(X)}", f"dh_{len(X)}", above)
    sizes, dW, dU = [float(np.linalg.norm(above.value))], [], []
    for t in range(len(X), 0, -1):
        with derivation.part(f"back through step {t}") as part:
            slope = part.line(f"slope {t}", f"1 − h_{t}²", 1.0 - states[t] * states[t])
            da = part.line(f"da {t}", f"da_{t} = dh_{t} ⊙ (1 − h_{t}²)", dh * slope)
            dW.append(op("⊗", da, X[t - 1]))
            dU.append(op("⊗", da, states[t - 1]))
            dh = part.line(f"dh {t - 1}", f"dh_{t - 1} = Uᵀ da_{t}", op("ᵀ", U) @ da)
            sizes.append(float(part.line(f"size {t - 1}", f"‖dh_{t - 1}‖", op("norm", dh)).value))
    grad_W = derivation.line("gradient of W", "dW = Σ_t da_t x_tᵀ", op("+", *dW))
    grad_U = derivation.line("gradient of U", "dU = Σ_t da_t h_{t−1}ᵀ", op("+", *dU))

    def final_state(h: Tensor, W: Tensor, U: Tensor) -> Tensor:
        for x in torch.tensor(X.value):
            h = torch.tanh(U @ h + W @ x)
        return h

    theirs = autograd(final_state, [first, W, U], above)
    for name, mine, other in zip(("h_0", "W", "U"), (dh, grad_W, grad_U), theirs):
        derivation.compare(f"gradient of {name}", mine, other)
    derivation.note = sizes_note(sizes, "dh")
    return derivation


def lstm_back_step(
    derivation: Derivation, t: int, dh: Expression, dc: Expression, c_before: Expression,
    values: Mapping[str, Line], U: Matrix,
) -> tuple[Line, Line]:  # fmt: skip
    """Work back from dh_t and dc_t to dh_{t−1} and dc_{t−1}."""
    i, f, g, o, c = (values[name] for name in ("i", "f", "g", "o", "c"))
    bent = derivation.line(f"tanh of cell {t}", f"tanh(c_{t})", op("tanh", c))
    formula = f"dc_{t} + dh_{t} ⊙ o ⊙ (1 − tanh(c_{t})²)"
    total = derivation.line(f"dc {t} with what comes by h", formula, dc + dh * o * (1.0 - bent * bent))
    before = {
        "i": ("dc ⊙ g ⊙ i ⊙ (1 − i)", total * g * (i * (1.0 - i))),
        "f": ("dc ⊙ c_{t−1} ⊙ f ⊙ (1 − f)", total * c_before * (f * (1.0 - f))),
        "g": ("dc ⊙ i ⊙ (1 − g²)", total * i * (1.0 - g * g)),
        "o": ("dh ⊙ tanh(c_t) ⊙ o ⊙ (1 − o)", dh * bent * (o * (1.0 - o))),
    }
    gates = [
        derivation.line(f"da_{n} {t}", f"da_{n} = {formula}", tree) for n, (formula, tree) in before.items()
    ]
    da = derivation.line(f"da {t}", '"all four"', op("concat", *gates))
    new_dh = derivation.line(f"dh {t - 1}", f"dh_{t - 1} = Uᵀ da_{t}", op("ᵀ", U) @ da)
    return new_dh, derivation.line(f"dc {t - 1}", f"dc_{t - 1} = dc_{t} ⊙ f_{t}", total * f)


def lstm_gradient(
    X: Matrix, h: Vector, c: Vector, W: Matrix, U: Matrix, above: Vector, b: Vector | None = None
) -> Derivation:
    """dc_{t−1} = dc_t ⊙ f_t (+ what comes by h): along the cell a gradient shrinks by the forget gate"""
    derivation, H = Derivation("the gradient of an LSTM through time", check_source=AUTOGRAD), len(h)
    b = Numbers(np.zeros(4 * H)) if b is None else b
    steps, cells, state = [], [c], h
    for t, x in enumerate(X, 1):
        step = lstm_step(x, state, cells[-1], W, U, b)
        step.title = f"step {t}"
        derivation.add(step)
        cell, state = step.find("new cell"), step.find("new state")
        steps.append({"c": cell} | {name: step.find(name) for name in "ifgo"})
        cells.append(cell)
    dh: Expression = derivation.given(f"from above, dh {len(X)}", f"dh_{len(X)}", above)
    dc: Expression = Numbers(np.zeros(H))
    sizes, cell_sizes = [float(np.linalg.norm(above.value))], []
    for t in range(len(X), 0, -1):
        with derivation.part(f"back through step {t}") as part:
            dh, dc = lstm_back_step(part, t, dh, dc, cells[t - 1], steps[t - 1], U)
            sizes.append(float(part.line(f"size of dh {t - 1}", f"‖dh_{t - 1}‖", op("norm", dh)).value))
            size = part.line(f"size of dc {t - 1}", f"‖dc_{t - 1}‖", op("norm", dc))
            cell_sizes.append(float(size.value))

    def final_state(h: Tensor, c: Tensor) -> Tensor:
        cell = torch.nn.LSTMCell(X.value.shape[1], H, dtype=torch.float64)
        with torch.no_grad():
            for parameter, value in zip(cell.parameters(), (W, U, b, np.zeros(4 * H)), strict=True):
                parameter.copy_(torch.tensor(np.asarray(value)))
        h, c = h[None], c[None]
        for x in torch.tensor(X.value):
            h, c = cell(x[None], (h, c))
        return h[0]

    for name, mine, other in zip(("h_0", "c_0"), (dh, dc), autograd(final_state, [h, c], above)):
        derivation.compare(f"gradient of {name}", mine, other)
    derivation.note = f"{sizes_note(cell_sizes, 'dc')} {sizes_note(sizes, 'dh')}"
    return derivation
