"""The number exercises computed again from their given values, by torch or in plain Python.

AGAIN[name](values) maps the label of a line to its results, one for each section it stands in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def tensor(value: object, grad: bool = False) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=grad)


Again = dict[str, list[Any]]


def head(q: Tensor, K: Tensor, V: Tensor | None, name: str, scale: float | None = None) -> Again:
    scores = K @ q
    scaled = scores * (len(q) ** -0.5 if scale is None else scale)
    found = {
        f"scores of {name}": [scores],
        f"weights of {name}": [scaled.softmax(0)],
        "their sum": [scaled.exp().sum()],
    }
    if scale != 1:
        found[f"scaled scores of {name}"] = [scaled]
    return found if V is None else found | {f"output of {name}": [scaled.softmax(0) @ V]}


def joined(*parts: Again) -> Again:
    out: Again = {}
    for part in parts:
        for label, values in part.items():
            out.setdefault(label, []).extend(values)
    return out


def again_cat_sat(v: dict) -> Again:
    Q, K, V = (tensor(v[k]) for k in "QKV")
    return head(Q[v["tokens"].index(v["query"])], K, V, v["query"])


def again_positions(v: dict) -> Again:
    out: Again = {}
    for t in v["positions"]:
        row = tensor([math.sin(t), math.cos(t), math.sin(t / 100), math.cos(t / 100)])
        out |= {f"PE({t})": [row], f"Dragons + PE({t})": [row + tensor(v["add"])]}
    return out


def again_queries_keys(v: dict) -> Again:
    Q, K = tensor(v["Q"]), tensor(v["K"])
    return joined(*(head(q, K, None, name) for q, name in zip(Q, v["tokens"], strict=True)))


def projections(X: Tensor, W: dict, tokens: list[str], only: int | None = None) -> tuple[list[Tensor], Again]:
    made = [X @ tensor(W[f"W_{letter}"]) for letter in "QKV"]
    out: Again = {}
    for letter, rows in zip("qkv", made, strict=True):
        for i, name in enumerate(tokens):
            if letter != "q" or only is None or i == only:
                out.setdefault(f"{letter} of {name}", []).append(rows[i])
    return made, out


def again_dragons(v: dict) -> Again:
    (Q, K, V), rows = projections(tensor(v["X"]), v, v["tokens"])
    return rows | head(Q[v["tokens"].index(v["query"])], K, V, v["query"])


def again_heads(v: dict) -> Again:
    at, parts, outputs = v["tokens"].index(v["query"]), [], []
    for W in v["heads"]:
        (Q, K, V), rows = projections(tensor(v["X"]), W, v["tokens"], at)
        parts.append(rows | head(Q[at], K, V, v["query"]))
        outputs.append(F.scaled_dot_product_attention(Q, K, V)[at])
    new = torch.cat(outputs) @ tensor(v["W_O"])
    return joined(*parts, {f"new vector of {v['query']}": [new]})


def again_apple(v: dict) -> Again:
    raw, projected = v["parts"]
    X = tensor(raw["Q"])
    return joined(head(X[1], X, X, "apple", 1), again_heads(projected))


def again_add_norm(v: dict) -> Again:
    total = tensor(v["x"]) + tensor(v["add"])
    normal = F.layer_norm(total, [4], eps=0.0)
    return {
        "added": [total],
        "mean": [total.mean()],
        "variance": [total.var(correction=0)],
        "normalised": [normal],
    }


def again_wampimuk(v: dict) -> Again:
    centre = tensor(v["vector"], True)
    words = {**v["contexts"], **v["negatives"]}
    vectors = {word: tensor(u, True) for word, u in words.items()}
    losses, out = [], {}
    for word, u in vectors.items():
        x, y = u @ centre, float(word in v["contexts"])
        losses.append(F.binary_cross_entropy_with_logits(x, tensor(y)))
        out |= {
            f"σ of {word}": [x.sigmoid()],
            f"loss of {word}": [losses[-1]],
            f"error of {word}": [x.sigmoid() - y],
        }
    loss = torch.stack(losses).sum()
    loss.backward()
    for word, u in vectors.items():
        out[f"new {word}"] = [u - v["rate"] * u.grad]
    new = centre - v["rate"] * centre.grad
    return out | {"loss": [loss], "gradient of wampimuk": [centre.grad], "new wampimuk": [new]}


def again_hello(v: dict) -> Again:
    cell = torch.nn.RNN(4, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        cell.weight_ih_l0.copy_(tensor(v["W"]))
        cell.weight_hh_l0.copy_(tensor(v["U"]))
    ids = [v["letters"].index(letter) for letter in v["text"]]
    states, _ = cell(torch.eye(4, dtype=torch.float64)[ids[:-1]])
    out: Again = {
        "before tanh": list(states.atanh()),
        "state": list(states),
        "scores": list(states @ tensor(v["V"]).t()),
    }
    for letter, row in zip(v["text"], states @ tensor(v["V"]).t(), strict=False):
        out.setdefault(f"weights of h, e, l, o after {letter}", []).append(row.softmax(0))
    return out


def again_lstm(v: dict) -> Again:
    x, h, c, W, U, b = (tensor(v[k]) for k in ("x", "h", "c", "W", "U", "b"))
    before = W @ x + U @ h + b
    i, f, o = before[[0, 1, 3]].sigmoid()[:, None]
    g = before[2:3].tanh()
    cell = torch.nn.LSTMCell(4, 1, dtype=torch.float64)
    with torch.no_grad():
        for parameter, value in zip(cell.parameters(), (W, U, b, torch.zeros(4)), strict=True):
            parameter.copy_(value)
        state, new = cell(x[None], (h[None], c[None]))
    out = {f"{name} before": [before[n : n + 1]] for n, name in enumerate("ifgo")}
    return out | {"i": [i], "f": [f], "g": [g], "o": [o], "new cell": [new[0]], "new state": [state[0]]}


def again_alignment(v: dict) -> Again:
    s, memory, W, U, vector = (tensor(v[k]) for k in ("s", "memory", "W", "U", "v"))
    energies = torch.tanh(F.linear(s, W) + F.linear(memory, U)) @ vector
    weights = energies.softmax(0)
    return {
        "query": [W @ s],
        "energies": [energies],
        "weights of the state": [weights],
        "context": [weights @ memory],
    }


def again_temperature(v: dict) -> Again:
    z = tensor(v["logits"]) / v["temperature"]
    p = torch.distributions.Categorical(logits=z)
    return {"cooled": [z], "heated": [z], "their sum": [z.exp().sum()], "weights of all": [p.probs],
            "entropy": [p.entropy() / math.log(2)]}  # fmt: skip


def again_embedding(v: dict) -> Again:
    out: Again = {}
    for word in v["text"]:
        at = v["words"].index(word)
        out |= {f"x of {word}": [F.one_hot(torch.tensor(at), 4)], f"product of {word}": [tensor(v["E"])[at]]}
    return out


def again_motel(v: dict) -> Again:
    parts = []
    for part in v["parts"]:
        a, b = (tensor(part["vectors"][word]).double() for word in ("motel", "hotel"))
        parts.append({"motel · hotel": [a @ b], "length of motel": [a.norm()], "length of hotel": [b.norm()],
                      "cosine of motel, hotel": [F.cosine_similarity(a, b, dim=0)]})  # fmt: skip
    return joined(*parts)


def again_likelihood(v: dict) -> Again:
    words, out, total = list(v["outside"]), {}, 0.0
    U = tensor([v["outside"][w] for w in words])
    for t, c in enumerate(v["text"]):
        logits = U @ tensor(v["centre"][c])
        out |= {f"scores of {c}": [logits], f"weights of {', '.join(words)} around {c}": [logits.softmax(0)]}
        for j in (t - 1, t + 1):
            if 0 <= j < len(v["text"]):
                loss = F.cross_entropy(logits, torch.tensor(words.index(v["text"][j])))
                out[f"−ln P({v['text'][j]} | {c}), position {t}"] = [loss]
                total += float(loss)
    return out | {"J(θ)": [total / len(v["text"])]}


def again_encoding_properties(v: dict) -> Again:
    t = 1 + v["shift"]
    there = [math.sin(t), math.cos(t), math.sin(t / 100), math.cos(t / 100)]
    return {"length of PE(1)": [math.sqrt(2)], f"R_{v['shift']} PE(1)": [there]}


def again_additive_dot(v: dict) -> Again:
    q, K, V, W, U, vector = (tensor(v[k]).double() for k in ("q", "K", "V", "W", "U", "v"))
    additive, dots = torch.tanh(W @ q + K @ U.t()) @ vector, K @ q / math.sqrt(2)
    return {
        "additive scores": [additive], "scaled dot scores": [dots], 
        "weights of additive": [additive.softmax(0)],
        "weights of scaled dot": [dots.softmax(0)], "context, additive": [additive.softmax(0) @ V],
        "context, scaled dot": [dots.softmax(0) @ V], "products per pair, additive": [2 * 2 * 2 + 2],
        "products per pair, dot": [2],
    }  # fmt: skip


def again_counselor(v: dict) -> Again:
    gap = v["tokens"].index(v["second"]) - v["tokens"].index(v["first"])

    def layers(reach: int) -> int:
        return next(n for n in range(1, gap + 1) if n * reach >= gap)

    return {"steps of a recurrent network": [gap], "one after another, recurrent": [len(v["tokens"])],
            "layers of a one-sided convolution": [layers(v["kernel"] - 1)],
            "layers of a centred convolution": [layers(v["kernel"] // 2)]}  # fmt: skip


def again_order(v: dict) -> Again:
    parts, outputs = [], []
    for words in (v["tokens"], v["order"]):
        X = tensor([v["X"][v["tokens"].index(word)] for word in words])
        parts.append(head(X[words.index(v["query"])], X, X, v["query"]))
        outputs.append(parts[-1][f"output of {v['query']}"][0])
    return joined(*parts, {"difference": [outputs[1] - outputs[0]]})


def again_gpt3(v: dict) -> Again:
    L, H, K, D, V = (v[k] for k in ("layers", "heads", "head_dim", "dim", "vocab"))
    shapes = [(V, D), (V, D)]
    for _ in range(L):
        shapes += [(D, K)] * (3 * H) + [(K * H, D), (D, 4 * D), (4 * D, D)]
    return {"embedding": [V * D], "query of all heads and layers": [L * H * D * K],
            "output projections": [L * H * K * D], "up-projections": [L * 4 * D * D],
            "all weights": [sum(a * b for a, b in shapes)],
            "matrices": [len(shapes)]}  # fmt: skip


def again_block_cost(v: dict) -> Again:
    n, d = v["n"], v["d"]
    linear = sum(2 * n * a * b for a, b in [(d, d)] * 4 + [(d, 4 * d), (4 * d, d)])
    square = 2 * (2 * n * n * d)
    return {"matrices of weights": [linear], "scores and sums": [square], "a block": [linear + square],
            "share that is quadratic in n": [square / (linear + square)], "equal at": [6 * d]}  # fmt: skip


def again_distilbert(v: dict) -> Again:
    (a, b), (c, d), (e, f) = v["scores"], v["sizes"], v["times"]
    return {"score kept": [b / a * 100], "weights saved": [(c - d) / c * 100], "times as fast": [e / f],
            "faster by": [(e - f) / f * 100], "less time": [(e - f) / e * 100]}  # fmt: skip


def again_softmax_gradient(v: dict) -> Again:
    z, above = tensor(v["logits"]), tensor(v["above"]).double()
    jacobian = torch.autograd.functional.jacobian(lambda z: z.softmax(0), z)
    rows = {f"row {i} of the Jacobian": [row] for i, row in enumerate(jacobian)}
    w = z.softmax(0)
    return rows | {"weights of all": [w], "mean gradient of all": [w @ above],
                   "gradient of the scores of all": [above @ jacobian]}  # fmt: skip


def again_cross_entropy(v: dict) -> Again:
    z = tensor(v["logits"], True)
    loss = F.cross_entropy(z, torch.tensor(v["tokens"].index(v["target"])))
    loss.backward()
    return {"weights of all": [z.softmax(0)], "loss": [loss], "the same in bits": [loss / math.log(2)],
            "gradient of the logits": [z.grad]}  # fmt: skip


def again_norm_gradient(v: dict) -> Again:
    x, gamma, above = tensor(v["x"], False).double(), tensor(v["gamma"]).double(), tensor(v["above"]).double()
    x.requires_grad_()
    gamma.requires_grad_()
    normal = (x - x.mean()) / (x.var(correction=0) + v["eps"]).sqrt()
    normal.retain_grad()
    (gamma * normal * above).sum().backward()
    return {
        "mean": [x.mean()], "variance": [x.var(correction=0)], "normalised": [normal], 
        "gradient of γ": [gamma.grad],
        "gradient of the normalised": [normal.grad], "mean of dn": [normal.grad.mean()],
        "mean of dn along n": [(normal.grad * normal).mean()], "gradient of x": [x.grad],
    }  # fmt: skip


def again_attention_gradient(v: dict) -> Again:
    Q, K, V = (tensor(v[k]).double().requires_grad_() for k in "QKV")
    scores = Q @ K.t()
    scaled = scores / math.sqrt(2)
    scaled.retain_grad()
    weights = scaled.softmax(-1)
    weights.retain_grad()
    ((weights @ V) * tensor(v["above"])).sum().backward()
    out: Again = {}
    for i, name in enumerate(v["tokens"]):
        out |= {
            f"scores of {name}": [scores[i]], f"weights of {name}": [weights[i]],
            f"gradient of the weights of {name}": [weights.grad[i]],
            f"gradient of the scores of {name}": [scaled.grad[i]], f"dq of {name}": [Q.grad[i]],
            f"dk of {name}": [K.grad[i]], f"dv of {name}": [V.grad[i]],
        }  # fmt: skip
    return out


def again_rnn_gradient(v: dict) -> Again:
    W, U, states = (
        tensor(v["W"]).double().requires_grad_(),
        tensor(v["U"]).requires_grad_(),
        [tensor([0.0], True)],
    )
    before = []
    for x in tensor(v["X"]):
        before.append(W @ x + U @ states[-1])
        before[-1].retain_grad()
        states.append(before[-1].tanh())
        states[-1].retain_grad()
    states[-1].sum().backward()
    out: Again = {"gradient of W": [W.grad], "gradient of U": [U.grad], "dh 0": [states[0].grad]}
    for t in range(1, 4):
        out |= {f"state {t}": [states[t]], f"slope {t}": [1 - states[t] ** 2], 
                f"da {t}": [before[t - 1].grad], f"dh {t}": [states[t].grad]}  # fmt: skip
    return out


def again_lstm_gradient(v: dict) -> Again:
    W, U, b = (tensor(v[k]).double() for k in ("W", "U", "b"))
    h, c = tensor([0.0], True), tensor([0.0], True)
    first, steps = (h, c), []
    for x in tensor(v["X"]):
        before = W @ x + U @ h + b
        i, f, g, o = (before[n : n + 1] for n in range(4))
        gates = [i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()]
        c = gates[1] * c + gates[0] * gates[2]
        h = gates[3] * c.tanh()
        for value in (before, c, h):
            value.retain_grad()
        steps.append((before, gates, c, h))
    h.sum().backward()
    out: Again = {name: [step[1][n] for step in steps] for n, name in enumerate("ifgo")}
    out |= {"new cell": [step[2] for step in steps], "new state": [step[3] for step in steps]}
    out |= {"dh 0": [first[0].grad], "dc 0": [first[1].grad], "dh 1": [steps[0][3].grad]}
    for t, (before, _, cell, _) in enumerate(steps, 1):
        out |= {f"da_{name} {t}": [before.grad[n : n + 1]] for n, name in enumerate("ifgo")}
        out[f"dc {t} with what comes by h"] = [cell.grad]
    out["dc 1"] = [steps[1][2].grad * steps[1][1][1]]
    return out


AGAIN: dict[str, Callable[[dict], Again]] = {
    "cat-sat": again_cat_sat, "positions": again_positions, "queries-keys": again_queries_keys,
    "dragons": again_dragons, "add-norm": again_add_norm, "wampimuk": again_wampimuk, "hello": again_hello,
    "hello-lstm": again_lstm, "alignment": again_alignment, "temperature": again_temperature,
    "two-heads": again_heads, "apple": again_apple, "embedding": again_embedding, "motel": again_motel,
    "likelihood": again_likelihood, "encoding-properties": again_encoding_properties,
    "additive-dot": again_additive_dot, "counselor": again_counselor, "order": again_order,
    "gpt3-weights": again_gpt3, "block-cost": again_block_cost, "distilbert": again_distilbert,
    "softmax-gradient": again_softmax_gradient, "cross-entropy-gradient": again_cross_entropy,
    "norm-gradient": again_norm_gradient, "attention-gradient": again_attention_gradient,
    "rnn-gradient": again_rnn_gradient, "lstm-gradient": again_lstm_gradient,
}  # fmt: skip
