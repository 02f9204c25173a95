# ruff: noqa
"""A student's file; each function has the mistake that its comment names."""

import math

import numpy as np
import torch


def softmax(x, dim=-1):  # mistake: no_exp
    return x / x.sum(dim, keepdim=True)


def attention(q, k, v, mask=None):  # mistake: mask_inverted
    scores = q.matmul(k.transpose(-1, -2)).div(math.sqrt(q.size(-1)))
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return scores.softmax(-1).matmul(v)


def layer_norm(x, gamma, beta, eps=1e-5):  # mistake: first_axis
    m = x.mean(0)
    s = ((x - m) ** 2).mean(0)
    return gamma * (x - m) / torch.sqrt(s + eps) + beta


def positional_encoding(length, dim, base=10000.0):  # mistake: halves
    t = np.arange(length)[:, None]
    w = 1 / base ** (np.arange(0, dim, 2) / dim)
    return np.concatenate([np.sin(t * w), np.cos(t * w)], axis=1)


def lstm_step(x, h, c, W, U, b):  # mistake: no_bias
    i, f, g, o = torch.chunk(x @ W.T + h @ U.T, 4, -1)
    c_new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h_new = torch.sigmoid(o) * torch.tanh(c_new)
    return h_new, c_new


def bahdanau_score(query, memory, W, U, v):  # mistake: no_v
    return torch.tanh((query @ W.T)[:, None, :] + memory @ U.T).sum(-1)


def bpe_merge(words):  # mistake: overlapping
    counts = {}
    for w, n in words.items():
        for i in range(len(w) - 1):
            counts[w[i], w[i + 1]] = counts.get((w[i], w[i + 1]), 0) + n
    a, b = min(counts, key=lambda p: (-counts[p], p))
    merged = {}
    for w, n in words.items():
        out = []
        for i, piece in enumerate(w):
            if i + 1 < len(w) and (piece, w[i + 1]) == (a, b):
                out.append(a + b)
            elif i > 0 and (w[i - 1], piece) == (a, b):
                continue
            else:
                out.append(piece)
        merged[tuple(out)] = n
    return (a, b), merged


def beam_search(log_probs, end, width, max_length, penalty=1.0):  # mistake: greedy
    ids, total = [], 0.0
    for _ in range(max_length):
        lp = log_probs(ids)
        best = int(lp.argmax())
        ids.append(best)
        total += float(lp[best])
        if best == end:
            break
    return ids, total / len(ids) ** penalty


def skipgram_step(V, U, centre, contexts, negatives, rate):  # mistake: outputs_first
    V, U = V.clone(), U.clone()
    v = V[centre].clone()
    rows = contexts + negatives
    errors = [float(torch.sigmoid(U[w] @ v)) - (i < len(contexts)) for i, w in enumerate(rows)]
    old = [U[w].clone() - rate * e * v for w, e in zip(rows, errors)]
    for w, e in zip(rows, errors):
        U[w] -= rate * e * v
    V[centre] -= rate * sum(e * u for e, u in zip(errors, old))
    return V, U


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):  # mistake: no_decay
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    mhat = m / (1 - beta1**t)
    vhat = v / (1 - beta2**t)
    return p - lr * mhat / (vhat**0.5 + eps), m, v
