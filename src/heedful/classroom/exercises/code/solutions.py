"""The functions that students write, each as a textbook would write it.

A stub is the signature and the docstring; `catalogue.py` cuts the rest off. Tests run the examples in the
docstrings, and hold every function against the library's own part. The mistakes that grading can name are
edits of these lines (`exercises.yaml`), so each step has a line of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """softmax(x)_i = exp(x_i) / Σ_j exp(x_j), over the dimension `dim`

    x has any shape, and so has what is returned. Entries may be large (1000) or −∞, as those of a mask
    are; at least one entry of each sum is finite.

    >>> softmax(torch.tensor([1.0, 2.0, 3.0]))
    tensor([0.0900, 0.2447, 0.6652])
    """
    top = x.amax(dim, keepdim=True)
    power = (x - top).exp()
    total = power.sum(dim, keepdim=True)
    return power / total


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ / √d_k) v   (Vaswani et al. 2017, eq. 1)

    q (…, T, d_k), k (…, S, d_k), v (…, S, d_v); … are any leading dimensions, or none. mask (…, T, S) is
    True where a query may look at a key; a key that is hidden gets the weight 0. Every query may look at
    one key at least. Returns (…, T, d_v).

    >>> q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> attention(q, k, torch.tensor([[1.0], [2.0]]))
    tensor([[1.3302]])
    """
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    return weights @ v


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    """γ ⊙ (x − mean) / √(var + ε) + β   (Ba et al. 2016)

    x (…, D), gamma and beta (D,). Mean and variance are those of the D entries of each vector; the
    variance is the mean of the squared differences. Returns (…, D).

    >>> layer_norm(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.ones(4), torch.zeros(4))
    tensor([-1.3416, -0.4472,  0.4472,  1.3416])
    """
    mean = x.mean(-1, keepdim=True)
    var = (x - mean).square().mean(-1, keepdim=True)
    return gamma * (x - mean) / (var + eps).sqrt() + beta


def positional_encoding(length: int, dim: int, base: float = 10000.0) -> Tensor:
    """p(t, 2i) = sin(t / base^(2i/dim)),  p(t, 2i+1) = cos(t / base^(2i/dim))   (Vaswani et al. 2017 §3.5)

    The positions t are 0 … length − 1, and dim is even. Returns (length, dim).

    >>> positional_encoding(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    t = torch.arange(length, dtype=torch.float64)[:, None]
    column = torch.arange(dim, dtype=torch.float64)
    angle = t / base ** (2 * (column // 2) / dim)
    table = torch.where(column % 2 == 0, angle.sin(), angle.cos())
    return table.float()


def lstm_step(x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """i, f, o = σ(W x + U h + b),  g = tanh(W x + U h + b),  c' = f ⊙ c + i ⊙ g,  h' = o ⊙ tanh(c')

    x (B, D), h and c (B, H), W (4H, D), U (4H, H), b (4H,). The rows of W, U and b belong to i, f, g and
    o, in this order, H each. Returns h' and c', (B, H) each.   (Hochreiter and Schmidhuber 1997; Gers et
    al. 2000)

    >>> one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    >>> lstm_step(one, zero, one, torch.zeros(4, 1), torch.zeros(4, 1), torch.zeros(4))
    (tensor([[0.2311]]), tensor([[0.5000]]))
    """
    i, f, g, o = (x @ W.T + h @ U.T + b).chunk(4, -1)
    i, f, o = i.sigmoid(), f.sigmoid(), o.sigmoid()
    new = f * c + i * g.tanh()
    return o * new.tanh(), new


def bahdanau_score(query: Tensor, memory: Tensor, W: Tensor, U: Tensor, v: Tensor) -> Tensor:
    """e_j = vᵀ tanh(W q + U m_j), for every vector m_j of the memory   (Bahdanau et al. 2015, A.1.2)

    query (B, Q), memory (B, S, M), W (A, Q), U (A, M), v (A,). Returns (B, S): scores, before any
    softmax.

    >>> query, memory = torch.tensor([[1.0]]), torch.tensor([[[0.0], [1.0]]])
    >>> bahdanau_score(query, memory, torch.ones(1, 1), torch.ones(1, 1), torch.ones(1))
    tensor([[0.7616, 0.9640]])
    """
    q, k = (query @ W.T)[:, None], memory @ U.T
    inner = (q + k).tanh()
    return (inner * v).sum(-1)


def bpe_merge(words: dict[tuple[str, ...], int]) -> tuple[tuple[str, str], dict[tuple[str, ...], int]]:
    """Merge the most frequent pair of neighbours: one step of byte-pair encoding (Sennrich et al. 2016)

    `words` has each word as a tuple of pieces, and how often it occurs. Every two neighbours in a word
    are a pair, and count as often as the word occurs; of equally frequent pairs the smallest is taken, as
    Python orders tuples. The pair becomes one piece everywhere, in each word from left to right. Returns
    the pair and the words after it, in the same order.

    >>> bpe_merge({("l", "o", "w"): 5, ("l", "o", "t"): 2, ("n", "e", "w"): 6})
    (('l', 'o'), {('lo', 'w'): 5, ('lo', 't'): 2, ('n', 'e', 'w'): 6})
    """
    counts: dict[tuple[str, str], int] = {}
    for pieces, count in words.items():
        pairs = list(itertools.pairwise(pieces))
        for pair in pairs:
            counts[pair] = counts.get(pair, 0) + count
    best = min(counts, key=lambda pair: (-counts[pair], pair))
    merged: dict[tuple[str, ...], int] = {}
    for pieces, count in words.items():
        new, i = [], 0
        while i < len(pieces):
            if pieces[i : i + 2] == best:
                new.append("".join(best))
                i += 2
            else:
                new.append(pieces[i])
                i += 1
        merged[tuple(new)] = count
    return best, merged


def beam_search(
    log_probs: Callable[[list[int]], Tensor], end: int, width: int, max_length: int, penalty: float = 1.0
) -> tuple[list[int], float]:
    """Find the sequence with the largest Σ log p / length^penalty, keeping `width` beginnings at each step

    log_probs(ids) gives the log-probabilities (V,) of the token after `ids`; at the start ids is []. In
    each of at most `max_length` steps: continue every beginning by every token, and keep the `width`
    continuations with the largest sum of log-probabilities. Of these, the ones that end with the token
    `end` are finished and leave the beam; the others are continued. When no beginning or no step is left,
    those still running count as finished too, and the best of all is the one with the largest sum divided
    by length^penalty, where the length counts every token, `end` too. Returns its tokens and that score.
    (Sutskever et al. 2014 §3.2)

    >>> beam_search(lambda ids: torch.tensor([0.6, 0.4]).log(), end=0, width=2, max_length=3, penalty=0.0)
    ([0], -0.5108...)
    """
    beams: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[tuple[list[int], float]] = []
    for _ in range(max_length):
        longer = []
        for ids, total in beams:
            for token, log in enumerate(log_probs(ids).tolist()):
                longer.append(([*ids, token], total + log))
        best = sorted(longer, key=lambda beam: -beam[1])[:width]
        finished += [beam for beam in best if beam[0][-1] == end]
        beams = [beam for beam in best if beam[0][-1] != end]
        if not beams:
            break
    finished += beams
    score = lambda beam: beam[1] / len(beam[0]) ** penalty
    ids, total = max(finished, key=score)
    return ids, score((ids, total))


def skipgram_step(
    V: Tensor, U: Tensor, centre: int, contexts: list[int], negatives: list[int], rate: float
) -> tuple[Tensor, Tensor]:
    """One step of gradient descent on L = −Σ_o log σ(u_o · v_c) − Σ_n log σ(−u_n · v_c)

    V (N, D) has the vector v of every word as a centre, U (N, D) the vector u of every word as a context.
    c is the centre word, o goes over its context words, n over words drawn at random; all are numbers of
    rows. Both tables change by −rate times the gradient of L at the old values; a word that is there
    twice moves twice. Returns the new V and U, (N, D) each.   (Mikolov et al. 2013, eq. 4)

    >>> V, U = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])
    >>> skipgram_step(V, U, 0, [1], [], 1.0)
    (tensor([[1.2689],
            [0.0000]]), tensor([[0.0000],
            [1.2689]]))
    """
    V, U = V.clone(), U.clone()
    rows = torch.tensor([*contexts, *negatives], dtype=torch.long)
    label = torch.tensor([1.0] * len(contexts) + [0.0] * len(negatives))
    v, u = V[centre].clone(), U[rows]
    p = (u @ v).sigmoid()
    error = p - label
    V[centre] -= rate * (error @ u)
    U.index_add_(0, rows, -rate * error[:, None] * v)
    return V, U


def adamw_step(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """p' = p − lr · (m̂ / (√v̂ + ε) + λ p),  m̂ = m' / (1 − β₁^t),  v̂ = v' / (1 − β₂^t)

    m' = β₁ m + (1 − β₁) g,  v' = β₂ v + (1 − β₂) g².  p, g, m and v have one shape; λ is weight_decay,
    and t is 1 in the first step. Returns p', m' and v'.   (Loshchilov and Hutter 2019, algorithm 2)

    >>> one = torch.ones(1)
    >>> adamw_step(one, one, 0 * one, 0 * one, 1, 0.1, 0.9, 0.999, 1e-8, 0.0)
    (tensor([0.9000]), tensor([0.1000]), tensor([0.0010]))
    """
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    step = m_hat / (v_hat.sqrt() + eps)
    return p - lr * step - lr * weight_decay * p, m, v
