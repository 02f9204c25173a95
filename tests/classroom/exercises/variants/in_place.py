# ruff: noqa
"""Everything in place, in float64 where it helps; autograd where a gradient is asked for."""

import torch
import torch.nn.functional as F


def softmax(x, dim=-1):
    x = x.double()
    x -= torch.logsumexp(x, dim, keepdim=True)
    return x.exp_()


def attention(q, k, v, mask=None):
    q /= q.shape[-1] ** 0.5
    scores = torch.matmul(q, k.mT)
    if mask is not None:
        scores += torch.zeros_like(scores).masked_fill_(~mask, float("-inf"))
    scores -= scores.max(-1, keepdim=True)[0]
    scores.exp_()
    scores /= scores.sum(-1, keepdim=True)
    return scores.matmul(v)


def layer_norm(x, gamma, beta, eps=1e-5):
    x = x.to(torch.float64)
    x -= x.mean(-1, keepdim=True)
    x /= (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    x *= gamma
    x += beta
    return x


def positional_encoding(length, dim, base=10000.0):
    angle = torch.outer(
        torch.arange(length).double(), base ** (-torch.arange(dim).double().div(2).floor() * 2 / dim)
    )
    angle[:, 1::2] += torch.pi / 2  # cos(a) = sin(a + π/2)
    return angle.sin_()


def lstm_step(x, h, c, W, U, b):
    W, U = W.view(4, -1, W.shape[1]), U.view(4, -1, U.shape[1])
    z = torch.einsum("ghd,bd->gbh", W, x) + torch.einsum("ghk,bk->gbh", U, h) + b.view(4, 1, -1)
    z[0].sigmoid_(), z[1].sigmoid_(), z[2].tanh_(), z[3].sigmoid_()
    c.mul_(z[1]).add_(z[0] * z[2])
    return z[3] * c.tanh(), c


def bahdanau_score(query, memory, W, U, v):
    both = torch.cat((query[:, None].expand(-1, memory.shape[1], -1), memory), -1)
    return F.linear(torch.tanh(F.linear(both, torch.cat((W, U), 1))), v[None]).squeeze(-1)


def bpe_merge(words):
    from collections import Counter
    import re

    pairs = Counter()
    for pieces, n in words.items():
        pairs.update({p: n * list(zip(pieces, pieces[1:])).count(p) for p in set(zip(pieces, pieces[1:]))})
    top = max(pairs.values())
    best = min(p for p, n in pairs.items() if n == top)
    pattern = re.compile(r"(?<!\S)" + re.escape(" ".join(best)) + r"(?!\S)")
    return best, {tuple(pattern.sub("".join(best), " ".join(w)).split()): n for w, n in words.items()}


def skipgram_step(V, U, centre, contexts, negatives, rate):
    V = V.clone().requires_grad_()
    U = U.clone().requires_grad_()
    loss = -F.logsigmoid(U[contexts] @ V[centre]).sum()
    if negatives:
        loss = loss - F.logsigmoid(-(U[negatives] @ V[centre])).sum()
    loss.backward()
    with torch.no_grad():
        V -= rate * V.grad
        U -= rate * U.grad
    return V, U


def adamw_step(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay):
    p.mul_(1 - lr * weight_decay)
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    p.addcdiv_(m / (1 - beta1**t), (v / (1 - beta2**t)).sqrt_().add_(eps), value=-lr)
    return p, m, v
