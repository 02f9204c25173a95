"""The functions that students write, each as a textbook would write it.

A stub is the signature and the docstring; `code_exercises.py` cuts the rest off. Tests run the examples in
the docstrings, and hold every function against the library's own part. The mistakes that grading can name are
edits of these lines (`code_exercises.yaml`), so each step is on a separate line.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
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


def causal_mask(q_pos: Tensor, k_pos: Tensor, window: int | None = None) -> Tensor:
    """keep(i, j) = 0 ≤ k_pos_j ≤ q_pos_i, and q_pos_i − k_pos_j < window if there is a window

    q_pos (T,) and k_pos (S,) are the positions of queries and keys in the text, in any order: after a cache
    of 7 tokens the first query has position 7. A key at a negative position is an empty place and stays
    hidden. A window of 1 leaves each token itself alone. Returns (T, S), True where the query may look.

    >>> causal_mask(torch.tensor([2, 3]), torch.tensor([0, 1, 2, 3]))
    tensor([[ True,  True,  True, False],
            [ True,  True,  True,  True]])
    """
    distance = q_pos[:, None] - k_pos[None, :]
    keep = distance >= 0
    keep = keep & (k_pos >= 0)
    if window is not None:
        keep = keep & (distance < window)
    return keep


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """out = softmax(q [keys; k]ᵀ / √d_k, causal) [values; v]: attention of new tokens with a cache

    q, k (H, T, d_k) and v (H, T, d_v) belong to T new tokens, keys (H, S, d_k) and values (H, S, d_v) to the
    S tokens before them; S may be 0. A new token looks at all S, at the new ones before it and at itself.
    Returns the output (H, T, d_v) and the new cache: keys (H, S + T, d_k) and values (H, S + T, d_v).

    >>> one, cache = torch.ones(1, 1, 1), torch.zeros(1, 1, 1)
    >>> cached_attention(one, one, one, cache, cache)[0]
    tensor([[[0.7311]]])
    """
    S, T = keys.shape[-2], q.shape[-2]
    keys = torch.cat((keys, k), -2)
    values = torch.cat((values, v), -2)
    scores = q @ keys.mT / math.sqrt(q.shape[-1])
    keep = torch.ones(T, S + T, dtype=torch.bool).tril(S)
    weights = scores.masked_fill(~keep, -math.inf).softmax(-1)
    return weights @ values, keys, values


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


def next_token_loss(logits: Tensor, tokens: Tensor, pad: int) -> Tensor:
    """L = −mean log softmax(logits_t)[token_{t+1}], over all t whose next token is not padding

    logits (B, T, V): those at t are computed from the tokens up to t. tokens (B, T); the token `pad` fills
    short rows up at their end. Natural logarithms. Every token that is predicted counts the same, so the mean
    goes over all rows at once. Returns a number, (). The logits at the last place predict nothing here.

    >>> next_token_loss(torch.zeros(1, 3, 4), torch.tensor([[1, 2, 3]]), pad=0)
    tensor(1.3863)
    """
    logits, labels = logits[:, :-1], tokens[:, 1:]
    log_p = logits.log_softmax(-1)
    chosen = log_p.gather(-1, labels[..., None])[..., 0]
    real = labels != pad
    return -(chosen * real).sum() / real.sum()


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
    continuations with the largest sum of log-probabilities. Those that end with the token `end` are
    finished and leave the beam; the others are continued. When no beginning or no step is left,
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


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose probabilities sum to at least p; share 1 among them

    logits (V,), 0 < p ≤ 1. The token that makes the sum reach p belongs to the set, so it is never empty.
    The kept probabilities are divided by their sum, all others are 0. Returns (V,), in the order of the
    logits.   (Holtzman et al. 2020 §3.1)

    >>> top_p(torch.tensor([0.5, 0.3, 0.2]).log(), 0.7)
    tensor([0.6250, 0.3750, 0.0000])
    """
    probs = logits.softmax(-1)
    sorted_probs, order = probs.sort(descending=True)
    before = sorted_probs.cumsum(-1) - sorted_probs
    kept = torch.zeros_like(probs)
    kept[order] = sorted_probs * (before < p)
    return kept / kept.sum()


def bleu(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    """BLEU = min(1, exp(1 − r/c)) · (p_1 p_2 p_3 p_4)^(1/4)   (Papineni et al. 2002)

    Each hypothesis is a list of words and has one reference. p_n is the share of all n-grams of all
    hypotheses that also stand in their own reference, where an n-gram counts at most as often as it stands
    there. c and r are the numbers of words of all hypotheses and of all references. Returns a number from 0
    to 1; it is 0 if some p_n is 0. At least one hypothesis has four words.

    >>> bleu([["a", "b", "c", "d"]], [["a", "b", "c", "d", "e"]])
    0.7788...
    """
    logs = []
    for n in range(1, 5):
        right, total = 0, 0
        for words, reference in zip(hypotheses, references, strict=True):
            grams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
            allowed = Counter(tuple(reference[i : i + n]) for i in range(len(reference) - n + 1))
            right += sum(min(count, allowed[gram]) for gram, count in grams.items())
            total += sum(grams.values())
        if right == 0:
            return 0.0
        logs.append(math.log(right / total))
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    penalty = min(1.0, math.exp(1 - r / c))
    return penalty * math.exp(sum(logs) / 4)


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
