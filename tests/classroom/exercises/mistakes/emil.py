# ruff: noqa
"""A student's file; each function has the mistake that its comment names."""

import math

import torch


def softmax(x, dim=-1):  # mistake: logarithm
    top = x.amax(dim, keepdim=True)
    return x - top - (x - top).exp().sum(dim, keepdim=True).log()


def attention(q, k, v, mask=None):  # mistake: queries_for_keys
    a = q @ q.mT / q.shape[-1] ** 0.5
    if mask is not None:
        a = torch.where(mask, a, torch.full_like(a, -math.inf))
    return torch.softmax(a, -1) @ v


def layer_norm(x, gamma, beta, eps=1e-5):  # mistake: root_mean_square
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * gamma + beta


def positional_encoding(length, dim, base=10000.0):  # mistake: own_exponent
    out = torch.zeros(length, dim)
    for t in range(length):
        for j in range(dim):
            angle = t / base ** (j / dim)
            out[t, j] = math.sin(angle) if j % 2 == 0 else math.cos(angle)
    return out


def lstm_step(x, h, c, W, U, b):  # mistake: sigmoid_candidate
    s = torch.sigmoid(x @ W.T + h @ U.T + b)
    i, f, g, o = s.chunk(4, 1)
    c = f * c + i * g
    return o * torch.tanh(c), c


def bahdanau_score(query, memory, W, U, v):  # mistake: no_query
    return torch.tanh(memory @ U.T) @ v


def bpe_merge(words):  # mistake: first_occurrence
    counts = {}
    for w, n in words.items():
        for p in zip(w[:-1], w[1:]):
            counts[p] = counts.get(p, 0) + n
    pair = sorted(counts.items(), key=lambda kv: (-kv[1], kv[0]))[0][0]
    out = {}
    for w, n in words.items():
        pieces = list(w)
        for i in range(len(pieces) - 1):
            if (pieces[i], pieces[i + 1]) == pair:
                pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
                break
        out[tuple(pieces)] = n
    return pair, out


def beam_search(log_probs, end, width, max_length, penalty=1.0):  # mistake: running_dropped
    beams, done = [([], 0.0)], []
    for _ in range(max_length):
        pool = []
        for ids, s in beams:
            pool += [(ids + [t], s + float(l)) for t, l in enumerate(log_probs(ids))]
        pool.sort(key=lambda b: -b[1])
        beams = []
        for b in pool[:width]:
            if b[0][-1] == end:
                done.append(b)
            else:
                beams.append(b)
        if not beams:
            break
    best = max(done, key=lambda b: b[1] / len(b[0]) ** penalty)
    return best[0], best[1] / len(best[0]) ** penalty


def skipgram_step(V, U, centre, contexts, negatives, rate):  # mistake: repeated_once
    V, U = V.clone(), U.clone()
    idx = torch.tensor(contexts + negatives)
    y = torch.zeros(len(idx))
    y[: len(contexts)] = 1
    u, v = U[idx], V[centre].clone()
    e = torch.sigmoid(u @ v) - y
    U[idx] -= rate * e[:, None] * v
    V[centre] -= rate * e @ u
    return V, U


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):  # mistake: decay_without_rate
    m.mul_(beta1).add_(g, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    step = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)
    return p - lr * step - weight_decay * p, m, v
