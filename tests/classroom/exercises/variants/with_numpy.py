# ruff: noqa
"""NumPy throughout: arrays are made of the tensors and returned as they are."""

import numpy as np


def softmax(x, dim=-1):
    x = x.numpy()
    e = np.exp(x - np.max(x, axis=dim, keepdims=True))
    return e / np.sum(e, axis=dim, keepdims=True)


def attention(q, k, v, mask=None):
    q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(np.asarray(mask), scores, -np.inf)
    scores = scores - scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    return (weights / weights.sum(-1, keepdims=True)) @ v


def layer_norm(x, gamma, beta, eps=1e-5):
    x = np.array(x)
    return np.array(gamma) * (x - x.mean(-1, keepdims=True)) / np.sqrt(
        x.var(-1, keepdims=True) + eps
    ) + np.array(beta)


def positional_encoding(length, dim, base=10000.0):
    pos = np.arange(length)[:, np.newaxis]
    i = np.arange(dim)[np.newaxis, :]
    angle = pos / np.power(base, (2 * (i // 2)) / dim)
    angle[:, 0::2] = np.sin(angle[:, 0::2])
    angle[:, 1::2] = np.cos(angle[:, 1::2])
    return angle


def lstm_step(x, h, c, W, U, b):
    z = x.numpy() @ W.numpy().T + h.numpy() @ U.numpy().T + b.numpy()
    i, f, g, o = np.split(z, 4, axis=-1)
    s = lambda a: 1.0 / (1.0 + np.exp(-a))
    c = s(f) * c.numpy() + s(i) * np.tanh(g)
    return [s(o) * np.tanh(c), c]


def bahdanau_score(query, memory, W, U, v):
    query, memory, W, U, v = map(np.asarray, (query, memory, W, U, v))
    return np.tanh((query @ W.T)[:, None, :] + memory @ U.T).dot(v)


def skipgram_step(V, U, centre, contexts, negatives, rate):
    V, U = V.numpy().astype(np.float64), U.numpy().astype(np.float64)
    rows = np.array(list(contexts) + list(negatives), dtype=int)
    label = np.r_[np.ones(len(contexts)), np.zeros(len(negatives))]
    error = 1 / (1 + np.exp(-U[rows] @ V[centre])) - label
    change_v = error @ U[rows]
    change_u = np.outer(error, V[centre])
    np.add.at(U, rows, -rate * change_u)
    V[centre] -= rate * change_v
    return V, U


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):
    p, g, m, v = (np.array(a) for a in (p, g, m, v))
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (np.square(g) - v)
    step = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return p - lr * weight_decay * p - lr * step, m, v
