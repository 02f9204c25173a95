# ruff: noqa
"""A student's file; each function has the mistake that its comment names."""

import math
from collections import Counter

import numpy as np
import torch


def softmax(x, dim=-1):  # mistake: base_two
    p = 2.0 ** (x - torch.max(x, dim, keepdim=True).values)
    return p / p.sum(dim, keepdim=True)


def attention(q, k, v, mask=None):  # mistake: base_two
    s = torch.einsum("...td,...sd->...ts", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        s = torch.where(mask, s, torch.full_like(s, float("-inf")))
    p = 2.0 ** (s - s.max(-1, keepdim=True).values)
    return p / p.sum(-1, keepdim=True) @ v


def causal_mask(q_pos, k_pos, window=None):  # mistake: next_visible
    rows = []
    for q in q_pos.tolist():
        first = 0 if window is None else max(0, q - window + 1)
        rows.append([first <= k < q + 2 and k >= 0 for k in k_pos.tolist()])
    return torch.tensor(rows).reshape(len(q_pos), len(k_pos))


def cached_attention(q, k, v, keys, values):  # mistake: self_hidden
    old = keys.shape[1]
    keys, values = torch.cat([keys, k], dim=1), torch.cat([values, v], dim=1)
    scores = torch.matmul(q, keys.transpose(1, 2)) / math.sqrt(k.size(2))
    for t in range(q.shape[1]):
        scores[:, t, old + t :] = float("-inf")
    return torch.softmax(scores, 2) @ values, keys, values


def positional_encoding(length, dim, base=10000.0):  # mistake: degrees
    out = np.zeros((length, dim))
    for t in range(length):
        for i in range(dim // 2):
            angle = np.deg2rad(t / base ** (2 * i / dim))
            out[t, 2 * i], out[t, 2 * i + 1] = np.sin(angle), np.cos(angle)
    return out


def next_token_loss(logits, tokens, pad):  # mistake: log_ten, log_of_softmax
    total, count = 0.0, 0
    for row, scores in zip(tokens.tolist(), torch.softmax(logits, -1)):
        for t, token in enumerate(row[1:]):
            if token != pad:
                total, count = total - torch.log10(scores[t, token]), count + 1
    return total / count


def lstm_step(x, h, c, W, U, b):  # mistake: input_candidate_swapped
    H = h.shape[1]
    z = torch.nn.functional.linear(x, W) + torch.nn.functional.linear(h, U, b)
    candidate, forget, write, read = (z[:, n * H : (n + 1) * H] for n in range(4))
    c = torch.sigmoid(forget) * c + torch.sigmoid(write) * torch.tanh(candidate)
    return torch.sigmoid(read) * torch.tanh(c), c


def top_p(logits, p):  # mistake: base_two
    q = 2.0**logits / (2.0**logits).sum()
    out, total = torch.zeros_like(q), 0.0
    for i in q.argsort(descending=True).tolist():
        if total < p:
            out[i] = q[i]
        total += float(q[i])
    return out / out.sum()


def bleu(hypotheses, references):  # mistake: log_ten
    mean = 0
    for n in range(1, 5):
        right = total = 0
        for h, r in zip(hypotheses, references):
            grams, others = (Counter(zip(*(text[i:] for i in range(n)))) for text in (h, r))
            right, total = right + (grams & others).total(), total + grams.total()
        if not right:
            return 0.0
        mean += 0.25 * math.log10(right / total)
    c, r = len(sum(hypotheses, [])), len(sum(references, []))
    return (1.0 if c > r else math.exp(1 - r / c)) * math.exp(mean)
