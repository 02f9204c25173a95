# ruff: noqa
"""The shortest way with torch."""

import math

import torch


def softmax(x, dim=-1):
    e = torch.exp(x - x.max(dim, keepdim=True).values)
    return e / e.sum(dim, keepdim=True)


def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.softmax(scores, -1) @ v


def layer_norm(x, gamma, beta, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    var = x.var(-1, keepdim=True, unbiased=False)
    return gamma * (x - mean) / torch.sqrt(var + eps) + beta


def positional_encoding(length, dim, base=10000.0):
    pe = torch.zeros(length, dim)
    position = torch.arange(length).unsqueeze(1)
    div = torch.exp(torch.arange(0, dim, 2) * -(math.log(base) / dim))
    pe[:, 0::2] = torch.sin(position * div)
    pe[:, 1::2] = torch.cos(position * div)
    return pe


def lstm_step(x, h, c, W, U, b):
    i, f, g, o = torch.chunk(x @ W.T + h @ U.T + b, 4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def bahdanau_score(query, memory, W, U, v):
    return torch.tanh((query @ W.T).unsqueeze(1) + memory @ U.T) @ v


def bpe_merge(words):
    counts = {}
    for pieces, n in words.items():
        for pair in zip(pieces, pieces[1:]):
            counts[pair] = counts.get(pair, 0) + n
    best = sorted(counts, key=lambda p: (-counts[p], p))[0]
    merged = {}
    for pieces, n in words.items():
        out, i = [], 0
        while i < len(pieces):
            if i + 1 < len(pieces) and (pieces[i], pieces[i + 1]) == best:
                out.append(pieces[i] + pieces[i + 1])
                i += 2
            else:
                out.append(pieces[i])
                i += 1
        merged[tuple(out)] = n
    return best, merged


def beam_search(log_probs, end, width, max_length, penalty=1.0):
    beams, done = [([], 0.0)], []
    for _ in range(max_length):
        options = []
        for ids, score in beams:
            for token, lp in enumerate(log_probs(ids)):
                options.append((ids + [token], score + lp.item()))
        options.sort(key=lambda o: o[1], reverse=True)
        beams = []
        for ids, score in options[:width]:
            (done if ids[-1] == end else beams).append((ids, score))
        if not beams:
            break
    done += beams
    ids, score = max(done, key=lambda o: o[1] / len(o[0]) ** penalty)
    return ids, score / len(ids) ** penalty


def skipgram_step(V, U, centre, contexts, negatives, rate):
    V, U = V.clone(), U.clone()
    v = V[centre].clone()
    grad_v = torch.zeros_like(v)
    changes = []
    for word, label in [(w, 1.0) for w in contexts] + [(w, 0.0) for w in negatives]:
        error = torch.sigmoid(U[word] @ v) - label
        grad_v += error * U[word]
        changes.append((word, error * v))
    for word, grad in changes:
        U[word] -= rate * grad
    V[centre] -= rate * grad_v
    return V, U


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    return p - lr * (m_hat / (v_hat.sqrt() + eps) + weight_decay * p), m, v


def causal_mask(q_pos, k_pos, window=None):
    q, k = q_pos.unsqueeze(1), k_pos.unsqueeze(0)
    keep = (k <= q) & (k >= 0)
    return keep if window is None else keep & (q - k <= window - 1)


def cached_attention(q, k, v, keys, values):
    keys, values = torch.cat([keys, k], dim=1), torch.cat([values, v], dim=1)
    scores = q @ keys.transpose(1, 2) / q.size(-1) ** 0.5
    later = torch.triu(torch.ones(q.size(1), keys.size(1)), diagonal=keys.size(1) - q.size(1) + 1).bool()
    return torch.softmax(scores.masked_fill(later, float("-inf")), -1) @ values, keys, values


def next_token_loss(logits, tokens, pad):
    losses = []
    for row, ids in zip(logits, tokens):
        for t in range(len(ids) - 1):
            if ids[t + 1] != pad:
                losses.append(torch.logsumexp(row[t], 0) - row[t, ids[t + 1]])
    return torch.stack(losses).mean()


def top_p(logits, p):
    probs = torch.softmax(logits, -1)
    total, out = 0.0, torch.zeros_like(probs)
    for i in probs.argsort(descending=True):
        if total >= p:
            break
        out[i] = probs[i]
        total += probs[i].item()
    return out / out.sum()


def bleu(hypotheses, references):
    precisions = []
    for n in (1, 2, 3, 4):
        right = total = 0
        for h, r in zip(hypotheses, references):
            left = [tuple(r[i : i + n]) for i in range(len(r) - n + 1)]
            for i in range(len(h) - n + 1):
                total += 1
                if tuple(h[i : i + n]) in left:
                    left.remove(tuple(h[i : i + n]))
                    right += 1
        precisions.append(right / total)
    c, r = sum(len(h) for h in hypotheses), sum(len(r) for r in references)
    product = precisions[0] * precisions[1] * precisions[2] * precisions[3]
    return (1.0 if c > r else math.exp(1 - r / c)) * product**0.25
