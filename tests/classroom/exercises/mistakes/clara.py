# ruff: noqa
"""A student's file; each function has the mistake that its comment names."""

import math
from collections import defaultdict

import torch
import torch.nn.functional as F


def softmax(x, dim=-1):  # mistake: all_entries
    e = (x - x.max()).exp()
    return e / e.sum()


def attention(q, k, v, mask=None):  # mistake: mask_after_softmax
    w = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)
    if mask is not None:
        w = w * mask.float()
    return w @ v


def layer_norm(x, gamma, beta, eps=1e-5):  # mistake: no_affine
    mean = torch.mean(x, dim=-1, keepdim=True)
    std = torch.sqrt(torch.mean((x - mean).pow(2), dim=-1, keepdim=True) + eps)
    return (x - mean) / std


def positional_encoding(length, dim, base=10000.0):  # mistake: half_exponent
    rows = []
    for t in range(length):
        row = []
        for i in range(dim // 2):
            a = t / (base ** (i / dim))
            row.extend([math.sin(a), math.cos(a)])
        rows.append(row)
    return torch.tensor(rows)


def lstm_step(x, h, c, W, U, b):  # mistake: no_cell_tanh
    i, f, g, o = (F.linear(x, W) + F.linear(h, U) + b).split(h.shape[1], dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c, c


def bahdanau_score(query, memory, W, U, v):  # mistake: weights_not_scores
    e = torch.tanh(query.matmul(W.t()).unsqueeze(1) + memory.matmul(U.t())).matmul(v)
    return torch.softmax(e, dim=1)


def bpe_merge(words):  # mistake: first_pair
    word = next(iter(words))
    pair = (word[0], word[1])
    out = {}
    for w, n in words.items():
        pieces, skip = [], False
        for a, b in zip(w, w[1:] + ("",)):
            if skip:
                skip = False
                continue
            if (a, b) == pair:
                pieces.append(a + b)
                skip = True
            else:
                pieces.append(a)
        out[tuple(pieces)] = n
    return pair, out


def beam_search(log_probs, end, width, max_length, penalty=1.0):  # mistake: not_sorted
    beams, done = [([], 0.0)], []
    for _ in range(max_length):
        cand = []
        for ids, s in beams:
            for t, lp in enumerate(log_probs(ids).tolist()):
                cand.append((ids + [t], s + lp))
        cand = cand[:width]
        done += [c for c in cand if c[0][-1] == end]
        beams = [c for c in cand if c[0][-1] != end]
        if not beams:
            break
    best = max(done + beams, key=lambda c: c[1] / len(c[0]) ** penalty)
    return best[0], best[1] / len(best[0]) ** penalty


def skipgram_step(V, U, centre, contexts, negatives, rate):  # mistake: centre_first
    V, U = V.clone(), U.clone()
    rows = torch.tensor(contexts + negatives)
    label = torch.cat([torch.ones(len(contexts)), torch.zeros(len(negatives))])
    err = (U[rows] @ V[centre]).sigmoid() - label
    V[centre] -= rate * (err[:, None] * U[rows]).sum(0)
    U.index_add_(0, rows, -rate * err[:, None] * V[centre][None])
    return V, U


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):  # mistake: eps_inside
    m, v = torch.lerp(m, g, 1 - beta1), torch.lerp(v, g * g, 1 - beta2)
    mh, vh = m / (1 - beta1**t), v / (1 - beta2**t)
    return p * (1 - lr * weight_decay) - lr * mh / torch.sqrt(vh + eps), m, v
