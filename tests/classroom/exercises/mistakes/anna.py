# ruff: noqa
"""A student's file; each function has the mistake that its comment names."""

import math

import torch


def softmax(x, dim=-1):  # mistake: no_max
    e = torch.exp(x)
    return e / e.sum(dim=dim, keepdim=True)


def attention(q, k, v, mask=None):  # mistake: no_scale
    scores = torch.matmul(q, k.transpose(-1, -2))
    if mask is not None:
        scores[~mask] = -1e30
    return torch.matmul(scores.softmax(dim=-1), v)


def layer_norm(x, gamma, beta, eps=1e-5):  # mistake: unbiased
    return gamma * (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + eps) ** 0.5 + beta


def positional_encoding(length, dim, base=10000.0):  # mistake: from_one
    pe = torch.zeros(length, dim)
    for pos in range(1, length + 1):
        for i in range(0, dim, 2):
            pe[pos - 1, i] = math.sin(pos / base ** (i / dim))
            pe[pos - 1, i + 1] = math.cos(pos / base ** (i / dim))
    return pe


def lstm_step(x, h, c, W, U, b):  # mistake: no_forget
    gates = x @ W.t() + h @ U.t() + b
    i, _, g, o = gates.chunk(4, 1)
    c = c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return h, c


def bahdanau_score(query, memory, W, U, v):  # mistake: no_tanh
    return ((query @ W.T)[:, None] + memory @ U.T) @ v


def bpe_merge(words):  # mistake: first_of_ties
    from collections import Counter

    counts = Counter()
    for w, n in words.items():
        for a, b in zip(w, w[1:]):
            counts[a, b] += n
    pair = counts.most_common(1)[0][0]
    result = {}
    for w, n in words.items():
        new, i = [], 0
        while i < len(w):
            if w[i : i + 2] == pair:
                new.append(w[i] + w[i + 1])
                i += 2
            else:
                new.append(w[i])
                i += 1
        result[tuple(new)] = n
    return pair, result


def beam_search(log_probs, end, width, max_length, penalty=1.0):  # mistake: no_penalty
    beams, finished = [([], 0.0)], []
    for _ in range(max_length):
        new = []
        for ids, s in beams:
            lp = log_probs(ids)
            for t in range(len(lp)):
                new.append((ids + [t], s + float(lp[t])))
        new = sorted(new, key=lambda b: b[1], reverse=True)[:width]
        finished += [b for b in new if b[0][-1] == end]
        beams = [b for b in new if b[0][-1] != end]
        if not beams:
            break
    return max(finished + beams, key=lambda b: b[1])


def skipgram_step(V, U, centre, contexts, negatives, rate):  # mistake: sign
    V, U = V.clone(), U.clone()
    words = contexts + negatives
    labels = torch.tensor([1.0] * len(contexts) + [0.0] * len(negatives))
    v = V[centre].clone()
    err = torch.sigmoid(U[words] @ v) - labels
    grad_v = err @ U[words]
    for w, e in zip(words, err):
        U[w] += rate * e * v
    V[centre] += rate * grad_v
    return V, U


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):  # mistake: no_correction
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    p = p - lr * weight_decay * p
    p = p - lr * m / (torch.sqrt(v) + eps)
    return p, m, v
