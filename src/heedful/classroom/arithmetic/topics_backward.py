"""Gradients worked number by number, each compared with autograd.

A gradient ∂L/∂x is written dx. What comes from above, the gradient with respect to the result, is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from heedful.classroom.arithmetic.topics import (
    attention_row,
    lstm_step,
    name_rows,
    norm_lines,
    softmax_lines,
)
from heedful.classroom.arithmetic.worked import AUTOGRAD, Derivation, Line, Sheet, entry, op
from heedful.core.errors import InputError
from heedful.interp.inputs import position_of

Array = np.ndarray
VANISHED, EXPLODED = 0.1, 10.0  # of the first gradient: what the note calls vanishing and exploding


def autograd(
    function: Callable[..., Tensor], inputs: Sequence[Array], upstream: Array | float
) -> list[Tensor]:
    """The gradients of sum(function(*inputs) · upstream) by its inputs, from autograd in float64."""
    leaves = [torch.tensor(np.asarray(x), dtype=torch.float64, requires_grad=True) for x in inputs]
    result = function(*leaves)
    weight = torch.as_tensor(np.asarray(upstream), dtype=torch.float64)
    return list(torch.autograd.grad((result * weight).sum(), leaves))


def softmax_backward_lines(sheet: Sheet, w: Array, dw: Array, of: str) -> Array:
    """ds = w ⊙ (dw − w·dw): the Jacobian diag(w) − w wᵀ times dw"""
    mean = sheet.line(f"mean gradient of {of}", "w·dw", op("·", w, dw))
    gap = sheet.line(f"above the mean of {of}", "dw − w·dw", op("-", dw, mean))
    return sheet.line(f"gradient of the scores of {of}", "ds = w ⊙ (dw − w·dw)", op("⊙", w, gap))


def softmax_gradient(logits: Array, above: Array) -> Derivation:
    """w = softmax(z): ∂w_i/∂z_j = w_i (δ_ij − w_j), dz = w ⊙ (dw − w·dw)"""
    sheet = Sheet(check_source=AUTOGRAD)
    z = sheet.add_given("logits", "z", logits)
    w = softmax_lines(sheet, z, "all")
    rows = []
    for i in range(len(w)):
        gap = op("-", np.eye(len(w))[i], w)
        rows.append(
            sheet.line(f"row {i} of the Jacobian", f"w_{i} (δ_{{{i} j}} − w_j)", op("×", entry(w, i), gap))
        )
    jacobian = sheet.line("Jacobian", "∂w/∂z", op("row", *rows))
    dw = sheet.add_given("from above", "dw", above)
    dz = softmax_backward_lines(sheet, w, dw, "all")
    other = sheet.line("the same by the Jacobian", "dz = dw (∂w/∂z)", op("·", dw, jacobian))
    (theirs,) = autograd(lambda z: z.softmax(-1), [logits], above)
    sheet.compare("gradient", dz, theirs)
    sheet.compare("product with the Jacobian", other, theirs)
    note = "The entries of dz sum to 0: a softmax does not change when all scores grow by the same amount."
    return sheet.finish("the gradient of a softmax", note)


def cross_entropy_gradient(
    logits: Array, target: str | int, tokens: Sequence[str] | None = None
) -> Derivation:
    """L = −ln p_y, p = softmax(z): dz = p − y, y one-hot"""
    sheet, names = Sheet(check_source=AUTOGRAD), name_rows(tokens, len(logits))
    right = position_of(names, target)
    z = sheet.add_given(f"logits of {' '.join(names)}", "z", logits)
    p = softmax_lines(sheet, z, "all")
    y = sheet.add_given(f"the right word, {names[right]}", 'y "one-hot"', np.eye(len(logits))[right])
    loss = sheet.line("loss", "L = −ln p_y", op("-", 0.0, op("ln", entry(p, right))), "nats")
    sheet.line("the same in bits", "L / ln 2", op("/", loss, op("ln", 2.0)), "bits")
    dz = sheet.line("gradient of the logits", "dz = p − y", op("-", p, y))
    (theirs,) = autograd(lambda z: -z.log_softmax(-1)[right], [logits], 1.0)
    sheet.compare("gradient", dz, theirs)
    note = "The right word is pushed up by 1 − p, every other word down by its own p; the entries sum to 0."
    return sheet.finish("the gradient of the cross-entropy", note)


def norm_gradient(
    x: Array, above: Array, *, gamma: Array | None = None, beta: Array | None = None, eps: float = 1e-5
) -> Derivation:
    """dx = (dn − mean(dn) − n ⊙ mean(dn ⊙ n)) / √(σ² + ε), dn = γ ⊙ dy, dγ = dy ⊙ n, dβ = dy"""
    sheet = Sheet(check_source=AUTOGRAD)
    gamma, beta = np.ones(len(x)) if gamma is None else gamma, np.zeros(len(x)) if beta is None else beta
    x = sheet.add_given("x", "x", x)
    norm_lines(sheet, x, gamma=gamma, beta=beta, eps=eps)
    results = {line.label: line for line in sheet.lines if isinstance(line, Line)}
    n, var = (sheet.reference(results[label]) for label in ("normalised", "variance"))
    dy = sheet.add_given("from above", "dy", above)
    dgamma = sheet.line("gradient of γ", "dγ = dy ⊙ n", op("⊙", dy, n))
    dn = sheet.line("gradient of the normalised", "dn = γ ⊙ dy", op("⊙", gamma, dy))
    mean = sheet.line("mean of dn", "mean(dn)", op("mean", dn))
    share = sheet.line("mean of dn along n", "mean(dn ⊙ n)", op("mean", op("⊙", dn, n)))
    inner = sheet.line("without mean and scale", "dn − mean(dn) − n mean(dn ⊙ n)",
                       op("-", op("-", dn, mean), op("×", share, n)))  # fmt: skip
    dx = sheet.line("gradient of x", "dx = (dn − mean(dn) − n mean(dn ⊙ n)) / √(σ² + ε)",
                    op("/", inner, op("√", op("+", var, eps))))  # fmt: skip
    size = len(x)
    function = lambda x, g, b: torch.nn.functional.layer_norm(x, [size], g, b, eps)
    for name, mine, theirs in zip(
        ("x", "γ", "β"), (dx, dgamma, dy), autograd(function, [x, gamma, beta], above)
    ):
        sheet.compare(f"gradient of {name}", mine, theirs)
    note = (
        "dβ is dy itself. The entries of dx sum to 0, and so do those of dx ⊙ n but for ε: a norm hides both."
    )
    return sheet.finish("the gradient of a layer norm", note)


def attention_gradient(
    Q: Array, K: Array, V: Array, above: Array, *, tokens: Sequence[str] | None = None, mask: bool = False
) -> Derivation:
    """O = softmax(Q Kᵀ / √d_k) V: dV = Wᵀ dO, dW = dO Vᵀ, dS = W ⊙ (dW − w·dw by rows), dQ = dS K, dK = dSᵀ Q

    with dQ and dK divided by √d_k.
    """
    names = name_rows(tokens, len(Q))
    if not len(Q) == len(K) == len(V) == len(above):
        raise InputError(
            f"{len(Q)} queries, {len(K)} keys, {len(V)} values, {len(above)} gradients: they must be as many"
        )
    whole, root = Sheet(check_source=AUTOGRAD), op("√", Q.shape[1])
    W, dS, dQ = [], [], []
    for i, name in enumerate(names):
        keep = np.arange(len(K)) <= i if mask else None
        sheet = Sheet()
        attention_row(Q[i], K, V, query=name, keys=names, keep=keep, sheet=sheet)
        results = {line.label: line for line in sheet.lines if isinstance(line, Line)}
        w = sheet.reference(results[f"weights of {name}"])
        do = sheet.add_given(f"from above, {name}", "do", above[i])
        dots = [sheet.line(f"dw of {name}, {key}", "do·v", op("·", do, v)) for key, v in zip(names, V)]
        dw = sheet.line(f"gradient of the weights of {name}", "dw = do Vᵀ", op("row", *dots))
        ds = softmax_backward_lines(sheet, w, dw, name)
        terms = [op("×", entry(ds, j), k) for j, k in enumerate(K)]
        dQ.append(sheet.line(f"dq of {name}", "dq = Σ_j ds_j k_j / √d_k", op("/", op("+", *terms), root)))
        W.append(w)
        dS.append(ds)
        whole.section(sheet.finish(f"query {name}"))
    dK, dV, sheet = [], [], Sheet()
    for j, key in enumerate(names):
        terms = [op("×", entry(ds, j), q) for ds, q in zip(dS, Q)]
        dK.append(sheet.line(f"dk of {key}", "dk = Σ_i ds_i q_i / √d_k", op("/", op("+", *terms), root)))
        terms = [op("×", entry(w, j), do) for w, do in zip(W, above)]
        dV.append(sheet.line(f"dv of {key}", "dv = Σ_i w_i do_i", op("+", *terms)))
    whole.section(sheet.finish("keys and values: every query that saw them"))
    attend = torch.nn.functional.scaled_dot_product_attention
    theirs = autograd(lambda q, k, v: attend(q, k, v, is_causal=mask), [Q, K, V], above)
    for name, mine, other in zip("QKV", (dQ, dK, dV), theirs):
        whole.compare(f"d{name}", np.stack(mine), other)
    return whole.finish("the gradient of attention: dQ, dK, dV")


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


def rnn_gradient(X: Array, W: Array, U: Array, above: Array, h: Array | None = None) -> Derivation:
    """da_t = dh_t ⊙ (1 − h_t²), dh_{t−1} = Uᵀ da_t, dW = Σ da_t x_tᵀ, dU = Σ da_t h_{t−1}ᵀ"""
    first = np.zeros(len(U)) if h is None else h
    whole, forward, states = Sheet(check_source=AUTOGRAD), Sheet(), [first]
    for t, x in enumerate(X, 1):
        before = op("+", op("·", U, states[-1]), op("·", W, x))
        states.append(forward.line(f"state {t}", f"h_{t} = tanh(U h_{t - 1} + W x_{t})", op("tanh", before)))
    whole.section(forward.finish("forward"))
    dh: Array = whole.add_given(f"from above, dh {len(X)}", f"dh_{len(X)}", above)
    sizes, dW, dU = [float(np.linalg.norm(above))], [], []
    for t in range(len(X), 0, -1):
        sheet = Sheet()
        slope = sheet.line(f"slope {t}", f"1 − h_{t}²", op("-", 1.0, op("⊙", states[t], states[t])))
        da = sheet.line(f"da {t}", f"da_{t} = dh_{t} ⊙ (1 − h_{t}²)", op("⊙", dh, slope))
        dW.append(op("⊗", da, X[t - 1]))
        dU.append(op("⊗", da, states[t - 1]))
        dh = sheet.line(f"dh {t - 1}", f"dh_{t - 1} = Uᵀ da_{t}", op("·", op("ᵀ", U), da))
        sizes.append(float(sheet.line(f"size {t - 1}", f"‖dh_{t - 1}‖", op("norm", dh))))
        whole.section(sheet.finish(f"back through step {t}"))
    grad_W = whole.line("gradient of W", "dW = Σ_t da_t x_tᵀ", op("+", *dW))
    grad_U = whole.line("gradient of U", "dU = Σ_t da_t h_{t−1}ᵀ", op("+", *dU))

    def final_state(h: Tensor, W: Tensor, U: Tensor) -> Tensor:
        for x in torch.tensor(X, dtype=torch.float64):
            h = torch.tanh(U @ h + W @ x)
        return h

    theirs = autograd(final_state, [first, W, U], above)
    for name, mine, other in zip(("h_0", "W", "U"), (dh, grad_W, grad_U), theirs):
        whole.compare(f"gradient of {name}", mine, other)
    return whole.finish("the gradient of an RNN through time", sizes_note(sizes, "dh"))


def lstm_back_step(
    sheet: Sheet, t: int, dh: Array, dc: Array, c_before: Array, values: Mapping[str, Array], U: Array
) -> tuple[Array, Array, Array]:
    """Work back from dh_t and dc_t to dh_{t−1}, dc_{t−1} and da, the gradient before the gates."""
    i, f, g, o, c = (values[name] for name in ("i", "f", "g", "o", "c"))
    bent = sheet.line(f"tanh of cell {t}", f"tanh(c_{t})", op("tanh", c))
    own = op("⊙", op("⊙", dh, o), op("-", 1.0, op("⊙", bent, bent)))
    total = sheet.line(
        f"dc {t} with what comes by h", f"dc_{t} + dh_{t} ⊙ o ⊙ (1 − tanh(c_{t})²)", op("+", dc, own)
    )
    slope = lambda gate: op("⊙", gate, op("-", 1.0, gate))
    before = {
        "i": ("dc ⊙ g ⊙ i ⊙ (1 − i)", op("⊙", op("⊙", total, g), slope(i))),
        "f": ("dc ⊙ c_{t−1} ⊙ f ⊙ (1 − f)", op("⊙", op("⊙", total, c_before), slope(f))),
        "g": ("dc ⊙ i ⊙ (1 − g²)", op("⊙", op("⊙", total, i), op("-", 1.0, op("⊙", g, g)))),
        "o": ("dh ⊙ tanh(c_t) ⊙ o ⊙ (1 − o)", op("⊙", op("⊙", dh, bent), slope(o))),
    }
    gates = [sheet.line(f"da_{n} {t}", f"da_{n} = {formula}", tree) for n, (formula, tree) in before.items()]
    da = sheet.line(f"da {t}", '"all four"', op("concat", *gates))
    new_dh = sheet.line(f"dh {t - 1}", f"dh_{t - 1} = Uᵀ da_{t}", op("·", op("ᵀ", U), da))
    new_dc = sheet.line(f"dc {t - 1}", f"dc_{t - 1} = dc_{t} ⊙ f_{t}", op("⊙", total, f))
    return new_dh, new_dc, da


def lstm_gradient(
    X: Array, h: Array, c: Array, W: Array, U: Array, above: Array, b: Array | None = None
) -> Derivation:
    """dc_{t−1} = dc_t ⊙ f_t (+ what comes by h): along the cell a gradient shrinks by the forget gate"""
    whole, H = Sheet(check_source=AUTOGRAD), len(h)
    b = np.zeros(4 * H) if b is None else b
    steps, cells, state = [], [c], h
    for t, x in enumerate(X, 1):
        worked = lstm_step(x, state, cells[-1], W, U, b, f"step {t}")
        whole.section(worked)
        lines = {line.label: line for line in worked.walk()}
        values = {name: whole.reference(lines[name]) for name in "ifgo"}
        values["c"] = whole.reference(lines["new cell"])
        state = whole.reference(lines["new state"])
        steps.append(values)
        cells.append(values["c"])
    dh: Array = whole.add_given(f"from above, dh {len(X)}", f"dh_{len(X)}", above)
    dc: Array = np.zeros(H)
    sizes, cell_sizes = [float(np.linalg.norm(above))], []
    for t in range(len(X), 0, -1):
        sheet = Sheet()
        dh, dc, _ = lstm_back_step(sheet, t, dh, dc, cells[t - 1], steps[t - 1], U)
        sizes.append(float(sheet.line(f"size of dh {t - 1}", f"‖dh_{t - 1}‖", op("norm", dh))))
        cell_sizes.append(float(sheet.line(f"size of dc {t - 1}", f"‖dc_{t - 1}‖", op("norm", dc))))
        whole.section(sheet.finish(f"back through step {t}"))

    def final_state(h: Tensor, c: Tensor) -> Tensor:
        cell = torch.nn.LSTMCell(X.shape[1], H, dtype=torch.float64)
        with torch.no_grad():
            for parameter, value in zip(cell.parameters(), (W, U, b, np.zeros(4 * H)), strict=True):
                parameter.copy_(torch.tensor(value))
        for x in torch.tensor(X, dtype=torch.float64):
            h, c = cell(x[None], (h, c)) if h.dim() == 2 else cell(x[None], (h[None], c[None]))
        return h[0]

    for name, mine, other in zip(("h_0", "c_0"), (dh, dc), autograd(final_state, [h, c], above)):
        whole.compare(f"gradient of {name}", mine, other)
    note = f"{sizes_note(cell_sizes, 'dc')} {sizes_note(sizes, 'dh')}"
    return whole.finish("the gradient of an LSTM through time", note)
