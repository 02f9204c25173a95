"""Three hints for each code exercise, from what to compute first to nearly the line itself."""

from __future__ import annotations

HINTS: dict[str, tuple[str, str, str]] = {
    "softmax": (
        "Three steps: exp of every entry, their sum over `dim` with keepdim=True, then divide.",
        "exp(1000) is infinite. A constant added to all entries changes nothing: which keeps exp small?",
        "Subtract x.amax(dim, keepdim=True) first; each row has a maximum of its own.",
    ),
    "attention": (
        "Scores first: every query times every key, (…, T, S). k.transpose(-2, -1) turns the last two.",
        "Divide by √d_k, the size of a query. Each row is one query: the softmax goes over its keys.",
        "Hide with scores.masked_fill(~mask, -inf) before the softmax; then weights @ v.",
    ),
    "layer_norm": (
        "x.mean(-1, keepdim=True) is the mean of each vector; subtract it.",
        "The variance is the mean of the squared differences: divided by D, not torch.var's default.",
        "Divide by √(var + ε), with ε inside the root, then multiply by γ and add β.",
    ),
    "positional_encoding": (
        "A table of angles comes first: row t, column i is t / base^(2i/dim), for i = 0 … dim/2 − 1.",
        "Columns 2i and 2i + 1 share one angle: its sine and its cosine.",
        "table[:, 0::2] = angle.sin() and table[:, 1::2] = angle.cos(); positions begin at 0.",
    ),
    "lstm_step": (
        "One product for all gates: z = x @ W.T + h @ U.T + b, (B, 4H).",
        "i, f, g, o = z.chunk(4, -1); i, f and o get a sigmoid, g gets tanh.",
        "c' = f * c + i * g, then h' = o * tanh(c'), and return (h', c').",
    ),
    "bahdanau_score": (
        "W q is (B, A), one vector a row; U m_j is (B, S, A), one for each word.",
        "Add them with a new dimension: (query @ W.T)[:, None, :] + memory @ U.T.",
        "tanh of the sum, then @ v, which leaves (B, S). No softmax: these are scores.",
    ),
    "bpe_merge": (
        "Count first: in each word, each pair zip(pieces, pieces[1:]) counts as often as it occurs.",
        "The best pair is min(counts, key=lambda pair: (-counts[pair], pair)).",
        "Merge by walking: if pieces[i], pieces[i+1] is the pair, append their sum and go on at i + 2.",
    ),
    "beam_search": (
        "A beam is a list of (tokens, sum of log-probabilities); it begins as [([], 0.0)].",
        "Per step: every continuation of every beginning into one list, sort by the sum, keep `width`.",
        "Move those that end with `end` to a list of finished ones; divide by len(tokens)**penalty last.",
    ),
    "skipgram_step": (
        "d/ds −log σ(s) = σ(s) − 1, d/ds −log σ(−s) = σ(s): the error is σ(u·v) minus the label, 1 or 0.",
        "The centre's gradient is Σ error · u, each output word's is error · v, all with the old values.",
        "U.index_add_(0, rows, change) lets a row that is there twice move twice; U[rows] += does not.",
    ),
    "adamw_step": (
        "Running means first: m' = β₁ m + (1 − β₁) g, and v' with g².",
        "They begin at zero and are too small at first: divide by 1 − β₁^t and 1 − β₂^t.",
        "Weight decay is a term of the step, lr · λ · p, not of the gradient; ε stands beside the root.",
    ),
}
