# ruff: noqa
"""A student's file; each function has the mistake that its comment names."""

import math
from collections import Counter

import torch


def causal_mask(q_pos, k_pos, window=None):  # mistake: self_hidden
    q, k = q_pos.unsqueeze(1), k_pos.unsqueeze(0)
    keep = (k < q) & (k >= 0)
    return keep if window is None else keep & (q - k < window)


def cached_attention(q, k, v, keys, values):  # mistake: no_offset
    keys, values = torch.cat([keys, k], dim=1), torch.cat([values, v], dim=1)
    scores = q @ keys.transpose(1, 2) / q.size(-1) ** 0.5
    later = torch.triu(torch.ones_like(scores[0]), diagonal=1).bool()
    return torch.softmax(scores.masked_fill(later, float("-inf")), -1) @ values, keys, values


def next_token_loss(logits, tokens, pad):  # mistake: not_shifted
    p = torch.log_softmax(logits, -1)
    chosen = torch.stack([p[b, t, i] for b, row in enumerate(tokens) for t, i in enumerate(row) if i != pad])
    return -chosen.mean()


def top_p(logits, p):  # mistake: crossing_left_out
    probs, order = torch.softmax(logits, -1).sort(descending=True)
    keep = probs.cumsum(0) <= p
    out = torch.zeros_like(logits)
    out[order[keep]] = probs[keep]
    return out / out.sum()


def bleu(hypotheses, references):  # mistake: not_clipped
    logs = 0
    for n in range(1, 5):
        right = total = 0
        for h, r in zip(hypotheses, references):
            known = {tuple(r[i : i + n]) for i in range(len(r) - n + 1)}
            grams = [tuple(h[i : i + n]) for i in range(len(h) - n + 1)]
            right += sum(g in known for g in grams)
            total += len(grams)
        if not right:
            return 0.0
        logs += math.log(right / total) / 4
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    return min(1.0, math.exp(1 - r / c)) * math.exp(logs)
