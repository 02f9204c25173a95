# ruff: noqa
"""A student's file; each function has the mistake that its comment names."""

import numpy as np
import torch


def softmax(x, dim=-1):  # mistake: last_dim
    x = x.numpy()
    top = x.max(axis=-1, keepdims=True)
    e = np.exp(x - top)
    return e / e.sum(axis=-1, keepdims=True)


def attention(q, k, v, mask=None):  # mistake: softmax_over_queries
    d = q.shape[-1]
    a = torch.einsum("...id,...jd->...ij", q, k) / d**0.5
    if mask is not None:
        a = a.masked_fill(mask.logical_not(), -torch.inf)
    a = a.softmax(dim=-2)
    return torch.einsum("...ij,...jd->...id", a, v)


def layer_norm(x, gamma, beta, eps=1e-5):  # mistake: eps_outside
    mu = x.mean(-1, True)
    sigma = ((x - mu) ** 2).mean(-1, True).sqrt()
    return (x - mu) / (sigma + eps) * gamma + beta


def positional_encoding(length, dim, base=10000.0):  # mistake: swapped
    t = torch.arange(length)[:, None]
    w = base ** (torch.arange(0, dim, 2) / dim)
    out = torch.empty(length, dim)
    out[:, ::2] = (t / w).cos()
    out[:, 1::2] = (t / w).sin()
    return out


def lstm_step(x, h, c, W, U, b):  # mistake: output_candidate_swapped
    H = h.size(1)
    z = torch.cat([x, h], 1) @ torch.cat([W, U], 1).T + b
    i, f, o, g = z[:, :H], z[:, H : 2 * H], z[:, 2 * H : 3 * H], z[:, 3 * H :]
    c2 = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c2.tanh(), c2


def bahdanau_score(query, memory, W, U, v):  # mistake: swapped_matrices
    B, S, _ = memory.shape
    q = query @ U.T
    return torch.stack([torch.tanh(q + memory[:, j] @ W.T) @ v for j in range(S)], 1)


def bpe_merge(words):  # mistake: counts_ignored
    pairs = [p for w in words for p in zip(w, w[1:])]
    best = min(set(pairs), key=lambda p: (-pairs.count(p), p))
    return best, {join(w, best): n for w, n in words.items()}


def join(w, pair):
    if len(w) < 2:
        return tuple(w)
    if tuple(w[:2]) == pair:
        return (w[0] + w[1],) + join(w[2:], pair)
    return (w[0],) + join(w[1:], pair)


def beam_search(log_probs, end, width, max_length, penalty=1.0):  # mistake: stops_at_first
    beams = [([], 0.0)]
    for _ in range(max_length):
        options = [(ids + [t], s + lp) for ids, s in beams for t, lp in enumerate(log_probs(ids).tolist())]
        beams = sorted(options, key=lambda o: -o[1])[:width]
        ended = [b for b in beams if b[0][-1] == end]
        if ended:
            beams = ended
            break
    ids, s = max(beams, key=lambda b: b[1] / len(b[0]) ** penalty)
    return ids, s / len(ids) ** penalty


def skipgram_step(V, U, centre, contexts, negatives, rate):  # mistake: no_negatives
    V, U = V.numpy().copy(), U.numpy().copy()
    v = V[centre].copy()
    total = np.zeros_like(v)
    for o in contexts:
        e = 1 / (1 + np.exp(-U[o] @ v)) - 1
        total += e * U[o]
        U[o] = U[o] - rate * e * v
    V[centre] -= rate * total
    return V, U


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):  # mistake: coupled
    g = g + weight_decay * p
    m = m * beta1 + g * (1 - beta1)
    v = v * beta2 + g.pow(2) * (1 - beta2)
    return p - lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps), m, v
