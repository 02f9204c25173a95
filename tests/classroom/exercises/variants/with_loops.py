# ruff: noqa
"""Loops over everything, as one writes it after reading the formula."""

import math

import torch


def softmax(x, dim=-1):
    out = torch.empty_like(x)
    moved, target = x.movedim(dim, -1), out.movedim(dim, -1)
    flat, result = (
        moved.reshape(-1, moved.shape[-1]),
        torch.empty(moved.numel() // moved.shape[-1], moved.shape[-1]),
    )
    for r in range(flat.shape[0]):
        row = flat[r].tolist()
        top = max(row)
        powers = [math.exp(e - top) for e in row]
        result[r] = torch.tensor([p / sum(powers) for p in powers])
    target.copy_(result.reshape(moved.shape))
    return out


def attention(q, k, v, mask=None):
    if q.dim() > 2:
        rows = [attention(q[i], k[i], v[i], None if mask is None else mask[i]) for i in range(q.shape[0])]
        return torch.stack(rows)
    out = torch.zeros(q.shape[0], v.shape[1])
    for t in range(q.shape[0]):
        scores = []
        for s in range(k.shape[0]):
            visible = mask is None or bool(mask[t, s])
            scores.append(float(torch.dot(q[t], k[s])) / math.sqrt(len(q[t])) if visible else -math.inf)
        weights = softmax(torch.tensor(scores))
        for s in range(k.shape[0]):
            out[t] += weights[s] * v[s]
    return out


def layer_norm(x, gamma, beta, eps=1e-5):
    flat = x.reshape(-1, x.shape[-1])
    rows = []
    for vector in flat:
        mean = sum(vector) / len(vector)
        variance = sum((e - mean) ** 2 for e in vector) / len(vector)
        rows.append(
            torch.stack(
                [
                    gamma[i] * (vector[i] - mean) / (variance + eps) ** 0.5 + beta[i]
                    for i in range(len(vector))
                ]
            )
        )
    return torch.stack(rows).reshape(x.shape)


def positional_encoding(length, dim, base=10000.0):
    table = []
    for t in range(length):
        row = []
        for i in range(dim // 2):
            angle = t / base ** (2 * i / dim)
            row += [math.sin(angle), math.cos(angle)]
        table.append(row)
    return table


def lstm_step(x, h, c, W, U, b):
    sigmoid = lambda z: 1 / (1 + math.exp(-z))
    B, H = h.shape
    new_h, new_c = torch.zeros(B, H), torch.zeros(B, H)
    for row in range(B):
        for j in range(H):
            pre = [float(W[g * H + j] @ x[row] + U[g * H + j] @ h[row] + b[g * H + j]) for g in range(4)]
            i, f, o = sigmoid(pre[0]), sigmoid(pre[1]), sigmoid(pre[3])
            new_c[row, j] = f * c[row, j] + i * math.tanh(pre[2])
            new_h[row, j] = o * math.tanh(new_c[row, j])
    return new_h, new_c


def bahdanau_score(query, memory, W, U, v):
    scores = torch.zeros(memory.shape[0], memory.shape[1])
    for b in range(memory.shape[0]):
        for j in range(memory.shape[1]):
            scores[b, j] = v.dot(torch.tanh(W.matmul(query[b]) + U.matmul(memory[b, j])))
    return scores


def bpe_merge(words):
    from collections import defaultdict

    frequency = defaultdict(int)
    for word in words:
        for i in range(len(word) - 1):
            frequency[word[i], word[i + 1]] += words[word]
    highest = max(frequency.values())
    pair = min(p for p in frequency if frequency[p] == highest)
    after = {}
    for word in words:
        pieces = list(word)
        i = 0
        while i < len(pieces) - 1:
            if pieces[i] == pair[0] and pieces[i + 1] == pair[1]:
                pieces[i : i + 2] = ["".join(pair)]
            i += 1
        after[tuple(pieces)] = words[word]
    return list(pair), after


def beam_search(log_probs, end, width, max_length, penalty=1.0):
    import heapq

    alive = [(0.0, ())]
    complete = []
    for step in range(max_length):
        heap = []
        for total, ids in alive:
            row = log_probs(list(ids)).tolist()
            heap.extend((total + value, ids + (token,)) for token, value in enumerate(row))
        alive = []
        for total, ids in heapq.nlargest(width, heap):
            if ids[-1] == end:
                complete.append((total / len(ids) ** penalty, ids))
            else:
                alive.append((total, ids))
        if len(alive) == 0:
            break
    complete.extend((total / len(ids) ** penalty, ids) for total, ids in alive)
    score, ids = max(complete)
    return ids, score


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):
    new_p, new_m, new_v = p.clone().flatten(), m.clone().flatten(), v.clone().flatten()
    for i, (w, d) in enumerate(zip(p.flatten().tolist(), g.flatten().tolist())):
        new_m[i] = beta1 * new_m[i] + (1 - beta1) * d
        new_v[i] = beta2 * new_v[i] + (1 - beta2) * d**2
        rate = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
        scaled = eps * math.sqrt(1 - beta2**t)
        new_p[i] = w * (1 - lr * weight_decay) - rate * new_m[i] / (math.sqrt(new_v[i]) + scaled)
    return new_p.view_as(p), new_m.view_as(p), new_v.view_as(p)
