# ruff: noqa
"""A student's file; each function has the mistake that its comment names; some have two."""

import math

import torch


def softmax(x, dim=-1):  # mistake: global_max
    e = torch.exp(x - x.max())
    return e / e.sum(dim, keepdim=True)


def attention(q, k, v, mask=None):  # mistake: mask_zero
    s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        s = s * mask
    return torch.softmax(s, dim=-1) @ v


def layer_norm(x, gamma, beta, eps=1e-5):  # mistake: unbiased, eps_outside
    return gamma * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + beta


def positional_encoding(length, dim, base=10000.0):  # mistake: fixed_base
    t = torch.arange(length).float()[:, None]
    w = torch.exp(torch.arange(0, dim, 2).float() * (-math.log(10000.0) / dim))
    pe = torch.zeros(length, dim)
    pe[:, 0::2] = torch.sin(t * w)
    pe[:, 1::2] = torch.cos(t * w)
    return pe


def lstm_step(x, h, c, W, U, b):  # mistake: input_forget_swapped
    z = W @ x.T + U @ h.T + b[:, None]
    f, i, g, o = z.T.chunk(4, 1)
    c = c * f.sigmoid() + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def bahdanau_score(query, memory, W, U, v):  # mistake: multiplied
    return torch.tanh((query @ W.T)[:, None] * (memory @ U.T)) @ v


def bpe_merge(words):  # mistake: largest_of_ties
    counts = {}
    for w, n in words.items():
        for pair in zip(w, w[1:]):
            counts[pair] = counts.get(pair, 0) + n
    best = max(counts, key=lambda p: (counts[p], p))
    merged = {}
    for w, n in words.items():
        pieces, i = [], 0
        while i < len(w):
            two = w[i : i + 2]
            pieces.append("".join(two) if two == best else w[i])
            i += 2 if two == best else 1
        merged[tuple(pieces)] = n
    return best, merged


def beam_search(log_probs, end, width, max_length, penalty=1.0):  # mistake: length_without_end
    beams, done = [([], 0.0)], []
    for _ in range(max_length):
        more = [(i + [t], s + x) for i, s in beams for t, x in enumerate(log_probs(i).tolist())]
        more = sorted(more, key=lambda b: b[1], reverse=True)[:width]
        beams = []
        for ids, s in more:
            if ids[-1] == end:
                done.append((ids, s / max(1, len(ids) - 1) ** penalty))
            else:
                beams.append((ids, s))
        if not beams:
            break
    return max(done + [(ids, s / len(ids) ** penalty) for ids, s in beams], key=lambda b: b[1])


def skipgram_step(V, U, centre, contexts, negatives, rate):  # mistake: no_sigmoid
    V, U = V.clone(), U.clone()
    words = contexts + negatives
    y = torch.tensor([1.0] * len(contexts) + [0.0] * len(negatives))
    v = V[centre].clone()
    e = U[words] @ v - y
    V[centre] -= rate * (e @ U[words])
    U.index_add_(0, torch.tensor(words), -rate * torch.outer(e, v))
    return V, U


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):  # mistake: no_correction, coupled
    g = g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    return p - lr * m / (v.sqrt() + eps), m, v
