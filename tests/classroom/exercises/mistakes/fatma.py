# ruff: noqa
"""A student's file; each function has the mistake that its comment names."""

import math

import torch


def softmax(x, dim=-1):  # mistake: negative
    x = -x
    e = (x - x.max(dim, keepdim=True)[0]).exp()
    return e / e.sum(dim, keepdim=True)


def attention(q, k, v, mask=None):  # mistake: times_scale
    s = (q @ k.transpose(-2, -1)) * math.sqrt(q.shape[-1])
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    return torch.softmax(s, dim=-1) @ v


def layer_norm(x, gamma, beta, eps=1e-5):  # mistake: variance_not_root
    mu = x.mean(dim=-1, keepdim=True)
    var = ((x - mu) ** 2).mean(dim=-1, keepdim=True)
    return gamma * ((x - mu) / (var + eps)) + beta


def positional_encoding(length, dim, base=10000.0):  # mistake: multiplied
    t = torch.arange(length, dtype=torch.float64)[:, None]
    w = base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    pe = torch.zeros(length, dim)
    pe[:, 0::2], pe[:, 1::2] = torch.sin(t * w), torch.cos(t * w)
    return pe


def lstm_step(x, h, c, W, U, b):  # mistake: swapped_outputs
    i, f, g, o = (x @ W.T + h @ U.T + b).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return c, h


def bahdanau_score(query, memory, W, U, v):  # mistake: tanh_each
    return (torch.tanh(query @ W.T)[:, None] + torch.tanh(memory @ U.T)) @ v


def bpe_merge(words):  # mistake: substring
    counts = {}
    for w, n in words.items():
        for pair in zip(w, w[1:]):
            counts[pair] = counts.get(pair, 0) + n
    best = min(counts, key=lambda p: (-counts[p], p))
    merged = {}
    for w, n in words.items():
        text = " ".join(w).replace(" ".join(best), "".join(best))
        merged[tuple(text.split())] = n
    return best, merged


def beam_search(log_probs, end, width, max_length, penalty=1.0):  # mistake: never_finishes
    beams = [([], 0.0)]
    for _ in range(max_length):
        more = [(i + [t], s + x) for i, s in beams for t, x in enumerate(log_probs(i).tolist())]
        more.sort(key=lambda b: b[1], reverse=True)
        beams = more[:width]
    scored = [(i, s / len(i) ** penalty) for i, s in beams]
    return max(scored, key=lambda b: b[1])


def skipgram_step(V, U, centre, contexts, negatives, rate):  # mistake: labels_swapped
    V, U = V.clone(), U.clone()
    v = V[centre].clone()
    g = torch.zeros_like(v)
    steps = []
    for w in contexts:
        e = torch.sigmoid(U[w] @ v)
        g = g + e * U[w]
        steps.append((w, e))
    for w in negatives:
        e = torch.sigmoid(U[w] @ v) - 1
        g = g + e * U[w]
        steps.append((w, e))
    for w, e in steps:
        U[w] = U[w] - rate * e * v
    V[centre] = v - rate * g
    return V, U


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):  # mistake: correction_from_zero
    t = t - 1
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    return p - lr * (m_hat / (v_hat.sqrt() + eps) + weight_decay * p), m, v
