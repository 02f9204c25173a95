# ruff: noqa
"""A student's file; each function has the mistake that its comment names."""

import math
from collections import Counter

import torch


def softmax(x, dim=-1):  # mistake: mean_subtracted
    e = torch.exp(x - x.mean(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def attention(q, k, v, mask=None):  # mistake: keys_for_values
    scores = q @ k.transpose(-1, -2) / math.sqrt(k.shape[-1])
    if mask is not None:
        scores = scores + (1 - mask.float()) * -1e9
    return scores.softmax(-1) @ k


def layer_norm(x, gamma, beta, eps=1e-5):  # mistake: all_but_first
    dims = tuple(range(1, x.dim()))
    var, mean = torch.var_mean(x, dim=dims, keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(var + eps) * gamma + beta


def positional_encoding(length, dim, base=10000.0):  # mistake: twice_exponent
    pe = torch.zeros(length, dim)
    for pos in range(length):
        for i in range(0, dim, 2):
            pe[pos, i] = math.sin(pos / base ** (2 * i / dim))
            pe[pos, i + 1] = math.cos(pos / base ** (2 * i / dim))
    return pe


def lstm_step(x, h, c, W, U, b):  # mistake: forget_plus_one
    i, f, g, o = torch.addmm(b, torch.cat((x, h), 1), torch.cat((W, U), 1).T).chunk(4, 1)
    c = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def bahdanau_score(query, memory, W, U, v):  # mistake: dot_product
    q, k = query @ W.T, memory @ U.T
    return torch.bmm(k, q.unsqueeze(2)).squeeze(2)


def bpe_merge(words):  # mistake: counts_without_overlap
    counts = Counter()
    for w, n in words.items():
        last = None
        for i, p in enumerate(zip(w, w[1:])):
            if last == (i - 1, p):
                last = None
                continue
            counts[p] += n
            last = (i, p)
    best = min(counts, key=lambda p: (-counts[p], p))
    out = {}
    for w, n in words.items():
        stack = []
        fresh = False  # a piece that was just merged is not merged again
        for piece in w:
            if stack and not fresh and (stack[-1], piece) == best:
                stack[-1] += piece
                fresh = True
            else:
                stack.append(piece)
                fresh = False
        out[tuple(stack)] = n
    return best, out


def beam_search(log_probs, end, width, max_length, penalty=1.0):  # mistake: google_penalty
    rank = lambda b: b[1] / ((5 + len(b[0])) / 6) ** penalty
    beams, done = [([], 0.0)], []
    for _ in range(max_length):
        pool = [(ids + [t], s + lp) for ids, s in beams for t, lp in enumerate(log_probs(ids).tolist())]
        pool.sort(key=lambda b: -b[1])
        done += [b for b in pool[:width] if b[0][-1] == end]
        beams = [b for b in pool[:width] if b[0][-1] != end]
        if not beams:
            break
    best = max(done + beams, key=rank)
    return best[0], rank(best)


def skipgram_step(V, U, centre, contexts, negatives, rate):  # mistake: centre_without_negatives
    V, U = V.clone(), U.clone()
    v = V[centre].clone()
    pull = torch.zeros_like(v)
    new = U.clone()
    for o in contexts:
        e = torch.sigmoid(U[o] @ v) - 1
        pull += e * U[o]
        new[o] -= rate * e * v
    for n in negatives:
        new[n] -= rate * torch.sigmoid(U[n] @ v) * v
    V[centre] -= rate * pull
    return V, new


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):  # mistake: no_one_minus
    m = beta1 * m + g
    v = beta2 * v + g**2
    mh = m / (1 - beta1**t)
    vh = v / (1 - beta2**t)
    return p - lr * (mh / (vh.sqrt() + eps) + weight_decay * p), m, v
