"""From the keys of a file or a mapping to a calculation: what each topic needs and may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heedful.classroom.arithmetic import topics, topics_attention, topics_backward, topics_words
from heedful.classroom.arithmetic import topics_words as topics_counts
from heedful.classroom.arithmetic.worked import Derivation, Sheet
from heedful.core.errors import InputError
from heedful.interp.inputs import position_of

Values = Mapping[str, Any]


def check_numbers(values: Values, key: str, depth: int) -> np.ndarray:
    """A number (0), vector (1) or matrix (2) of finite numbers."""
    try:
        value = np.asarray(values[key], dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{key} is not made of numbers in rows of one length") from None
    kind = ("a number", "a vector", "a matrix")[depth]
    if value.ndim != depth or not value.size or not np.isfinite(value).all():
        raise InputError(f"{key} must be {kind} of finite numbers, got shape {value.shape}")
    return value


def maybe(values: Values, key: str, depth: int) -> np.ndarray | None:
    return check_numbers(values, key, depth) if values.get(key) is not None else None


def check_tokens(values: Values, key: str, count: int, default: Sequence[Any] | None = None) -> list[str]:
    """Return one name for each of `count` rows; raise if they are others."""
    names = [str(t) for t in values.get(key, range(count) if default is None else default)]
    if len(names) != count:
        raise InputError(f"{key} has {len(names)} names for {count} rows", hint="give one for each")
    return names


def mask_row(values: Values, at: int, count: int) -> np.ndarray | None:
    """Return which keys the query at `at` may see, or None if all."""
    mask = values.get("mask")
    if mask not in (None, "causal"):
        raise InputError(f"mask={mask!r} is unknown", hint="write causal, or leave it out")
    return np.arange(count) <= at if mask == "causal" else None


def _attention(values: Values) -> Derivation:
    """Q, K and V as given, or X with W_Q, W_K and W_V; one row for each query asked for."""
    whole, made = Sheet(), Sheet()
    X = maybe(values, "X", 2)
    rows = X if X is not None else check_numbers(values, "Q", 2) if "Q" in values else None
    if rows is None:
        raise InputError("attention needs Q, or X and W_Q")
    names = check_tokens(values, "tokens", len(rows))
    vectors: dict[str, Any] = {}
    for letter in "QKV":
        if letter in values:
            vectors[letter] = check_numbers(values, letter, 2)
        elif X is not None and f"W_{letter}" in values:
            matrix = check_numbers(values, f"W_{letter}", 2)
            vectors[letter] = topics_attention.project_rows(made, X, names, letter, matrix)
        elif letter != "V":
            raise InputError(f"attention needs {letter}, or X and W_{letter}")
    Q, K, V = (vectors.get(letter) for letter in "QKV")
    assert Q is not None
    assert K is not None
    keys = [str(t) for t in values.get("keys", names)]
    if len(names) != len(Q) or len(keys) != len(K) or (V is not None and len(V) != len(K)):
        sizes = f"{len(names)} tokens, {len(Q)} queries, {len(K)} keys"
        raise InputError(f"{sizes}: each query needs a name, each key a name and a value")
    queries = values.get("query", names)
    scale = float(values["scale"]) if values.get("scale") is not None else None
    if made.lines:
        whole.section(made.finish("queries, keys and values"))
    for word in [queries] if isinstance(queries, str | int) else queries:
        at = position_of(names, word)
        keep = mask_row(values, at, len(K))
        whole.section(topics.attention_row(Q[at], K, V, query=names[at], keys=keys, scale=scale, keep=keep))
    return whole.finish("attention")


def _heads(values: Values) -> Derivation:
    X, W_O = check_numbers(values, "X", 2), maybe(values, "W_O", 2)
    names = check_tokens(values, "tokens", len(X))
    heads = [{key: maybe(head, key, 2) for key in ("W_Q", "W_K", "W_V")} for head in values["heads"]]
    at = position_of(names, values["query"])
    scale = float(values["scale"]) if values.get("scale") is not None else None
    keep = mask_row(values, at, len(X))
    return topics_attention.multi_head(X, names, heads, W_O, at, scale=scale, keep=keep)


def _positions(values: Values) -> Derivation:
    add = maybe(values, "add", 1)
    return topics.sinusoid(
        [int(t) for t in values["positions"]], int(values["dim"]), base=float(values.get("base", 10000.0)),
        add=add, tokens=[str(t) for t in values.get("tokens", ())],
    )  # fmt: skip


def _norm(values: Values) -> Derivation:
    return topics.add_norm(
        check_numbers(values, "x", 1), maybe(values, "add", 1), gamma=maybe(values, "gamma", 1),
        beta=maybe(values, "beta", 1), eps=float(values.get("eps", 0.0)), rms=bool(values.get("rms", False)),
    )  # fmt: skip


def _softmax(values: Values) -> Derivation:
    return topics.softmax(
        check_numbers(values, "logits", 1), temperature=float(values.get("temperature", 1.0)),
        tokens=[str(t) for t in values.get("tokens", ())],
    )  # fmt: skip


def _rnn(values: Values) -> Derivation:
    text, letters = str(values["text"]), [str(letter) for letter in values["letters"]]
    W, U, V = (check_numbers(values, key, 2) for key in ("W", "U", "V"))
    if len(text) < 2 or (unknown := [letter for letter in text if letter not in letters]):
        problem = f"{unknown[0]!r} is none of {', '.join(letters)}" if len(text) > 1 else "nothing follows"
        raise InputError(
            f"text={text!r}: {problem}", hint="give two letters or more, all of them in `letters`"
        )
    if W.shape != (len(U), len(letters)) or U.shape != (len(U), len(U)) or V.shape != W.shape[::-1]:
        H, C = len(U), len(letters)
        raise InputError(f"W must be {H} × {C}, U {H} × {H} and V {C} × {H}: a state of {H}, {C} letters")
    return topics.rnn_steps(text, letters, W, U, V)


def _lstm(values: Values) -> Derivation:
    x, h, c = (check_numbers(values, key, 1) for key in ("x", "h", "c"))
    W, U = check_numbers(values, "W", 2), check_numbers(values, "U", 2)
    if W.shape != (4 * len(h), len(x)) or U.shape != (4 * len(h), len(h)):
        sizes = f"W must be {4 * len(h)} × {len(x)} and U {4 * len(h)} × {len(h)}"
        raise InputError(f"{sizes}: the rows of i, f, g, o in turn")
    return topics.lstm_step(x, h, c, W, U, maybe(values, "b", 1))


def _alignment(values: Values) -> Derivation:
    keys = [str(t) for t in values.get("tokens", ())]
    s, v = check_numbers(values, "s", 1), check_numbers(values, "v", 1)
    memory, W, U = (check_numbers(values, key, 2) for key in ("memory", "W", "U"))
    return topics.additive_step(s, memory, W, U, v, keys=keys)


def _word2vec(values: Values) -> Derivation:
    outside: list[tuple[str, int, np.ndarray]] = []
    for label, key in ((1, "observed"), (0, "drawn")):
        outside += [(str(word), label, check_numbers(values[key], word, 1)) for word in values[key]]
    rate, centre = float(values.get("rate", 0.5)), str(values.get("centre", "centre"))
    return topics.sgns(check_numbers(values, "vector", 1), outside, rate=rate, centre=centre)


def _softmax_gradient(values: Values) -> Derivation:
    return topics_backward.softmax_gradient(
        check_numbers(values, "logits", 1), check_numbers(values, "above", 1)
    )


def _cross_entropy_gradient(values: Values) -> Derivation:
    logits = check_numbers(values, "logits", 1)
    tokens = check_tokens(values, "tokens", len(logits))
    return topics_backward.cross_entropy_gradient(logits, position_of(tokens, values["target"]), tokens)


def _norm_gradient(values: Values) -> Derivation:
    x, above = check_numbers(values, "x", 1), check_numbers(values, "above", 1)
    gamma, beta = maybe(values, "gamma", 1), maybe(values, "beta", 1)
    gamma, beta = np.ones(len(x)) if gamma is None else gamma, np.zeros(len(x)) if beta is None else beta
    return topics_backward.norm_gradient(x, gamma, beta, float(values.get("eps", 1e-5)), above)


def _attention_gradient(values: Values) -> Derivation:
    Q, K, V, above = (check_numbers(values, key, 2) for key in ("Q", "K", "V", "above"))
    names = check_tokens(values, "tokens", len(Q))
    if not len(Q) == len(K) == len(V) == len(above):
        raise InputError(
            f"{len(Q)} queries, {len(K)} keys, {len(V)} values, {len(above)} gradients: they must be as many"
        )
    causal = mask_row(values, 0, len(K)) is not None
    return topics_backward.attention_gradient(Q, K, V, above, names, causal)


def _rnn_gradient(values: Values) -> Derivation:
    X, W, U = (check_numbers(values, key, 2) for key in ("X", "W", "U"))
    h, above = maybe(values, "h", 1), check_numbers(values, "above", 1)
    return topics_backward.rnn_gradient(X, np.zeros(len(U)) if h is None else h, W, U, above)


def _lstm_gradient(values: Values) -> Derivation:
    X, W, U = (check_numbers(values, key, 2) for key in ("X", "W", "U"))
    h, c, above = (check_numbers(values, key, 1) for key in ("h", "c", "above"))
    if W.shape != (4 * len(h), X.shape[1]) or U.shape != (4 * len(h), len(h)):
        sizes = f"W must be {4 * len(h)} × {X.shape[1]} and U {4 * len(h)} × {len(h)}"
        raise InputError(f"{sizes}: the rows of i, f, g, o in turn")
    b = maybe(values, "b", 1)
    return topics_backward.lstm_gradient(X, h, c, W, U, np.zeros(4 * len(h)) if b is None else b, above)


def _similarity(values: Values) -> Derivation:
    vectors = {str(word): check_numbers(values["vectors"], word, 1) for word in values["vectors"]}
    for first, second in values["pairs"]:
        if missing := [word for word in (first, second) if word not in vectors]:
            raise InputError(f"{missing[0]!r} has no vector", hint=f"there are {', '.join(vectors)}")
    return topics_words.similarity(vectors, [(str(a), str(b)) for a, b in values["pairs"]])


def _embedding(values: Values) -> Derivation:
    E = check_numbers(values, "E", 2)
    words, text = check_tokens(values, "words", len(E)), [str(word) for word in values["text"]]
    if missing := [word for word in text if word not in words]:
        raise InputError(f"{missing[0]!r} has no row in E", hint=f"the words are {', '.join(words)}")
    return topics_words.embedding(E, words, text)


def _likelihood(values: Values) -> Derivation:
    tables = [
        {str(word): check_numbers(values[key], word, 1) for word in values[key]}
        for key in ("centre", "outside")
    ]
    return topics_words.likelihood([str(w) for w in values["text"]], int(values.get("window", 1)), *tables)


def _order(values: Values) -> Derivation:
    X = check_numbers(values, "X", 2)
    names = check_tokens(values, "tokens", len(X))
    other = [position_of(names, word) for word in values["order"]]
    if sorted(other) != list(range(len(X))):
        raise InputError("order must name every token once")
    encode = topics.encodings(np.arange(len(X)), X.shape[1]) if values.get("positions") else None
    causal = mask_row(values, 0, len(X)) is not None
    return topics_attention.order(X, names, other, position_of(names, values["query"]), encode, causal)


def _distance(values: Values) -> Derivation:
    names = [str(t) for t in values["tokens"]]
    first, second = sorted((position_of(names, values["first"]), position_of(names, values["second"])))
    return topics_attention.distance(names, first, second, int(values.get("kernel", 3)))


def _encoding_properties(values: Values) -> Derivation:
    dim, count = int(values["dim"]), int(values.get("count", 50))
    shift, far, base = (
        int(values.get("shift", 2)),
        int(values.get("far", 10_000)),
        float(values.get("base", 10000.0)),
    )
    at = np.arange(count)
    tables = [topics.encodings(t, dim, base) for t in (at, at + shift)]
    distant = topics.encodings(np.array([far]), dim, base)[0]
    return topics_attention.encoding_properties(at, shift, far, (*tables, distant), base)


def _scores(values: Values) -> Derivation:
    q, v = check_numbers(values, "q", 1), check_numbers(values, "v", 1)
    K, V, W, U = (check_numbers(values, key, 2) for key in ("K", "V", "W", "U"))
    names = check_tokens(values, "tokens", len(K))
    return topics_attention.score_comparison(q, K, V, W, U, v, names, [int(d) for d in values["sizes"]])


def _weight_count(values: Values) -> Derivation:
    return topics_counts.weight_count(
        *(int(values[k]) for k in ("layers", "heads", "head_dim", "dim", "vocab"))
    )


def _block_cost(values: Values) -> Derivation:
    return topics_counts.block_cost(int(values["n"]), int(values["d"]))


def _distillation(values: Values) -> Derivation:
    pairs = [tuple(float(x) for x in check_numbers(values, key, 1)) for key in ("scores", "sizes", "times")]
    if any(len(pair) != 2 for pair in pairs):
        raise InputError("scores, sizes and times each have two numbers: of the teacher and of the student")
    return topics_counts.distillation(*((pair[0], pair[1]) for pair in pairs))


Topic = tuple[Callable[[Values], Derivation], Sequence[str], Sequence[str]]  # what it needs, may have
QKV = ("Q", "K", "V", "X", "W_Q", "W_K", "W_V")
TOPICS: dict[str, Topic] = {
    "attention": (_attention, (), (*QKV, "tokens", "keys", "query", "scale", "mask")),
    "positions": (_positions, ("positions", "dim"), ("base", "add", "tokens")),
    "norm": (_norm, ("x",), ("add", "gamma", "beta", "eps", "rms")),
    "softmax": (_softmax, ("logits",), ("tokens", "temperature")),
    "rnn": (_rnn, ("text", "letters", "W", "U", "V"), ()),
    "lstm": (_lstm, ("x", "h", "c", "W", "U"), ("b",)),
    "alignment": (_alignment, ("s", "memory", "W", "U", "v"), ("tokens",)),
    "word2vec": (_word2vec, ("vector", "observed", "drawn"), ("rate", "centre")),
    "heads": (_heads, ("X", "heads", "query"), ("tokens", "W_O", "scale", "mask")),
    "softmax-gradient": (_softmax_gradient, ("logits", "above"), ()),
    "cross-entropy-gradient": (_cross_entropy_gradient, ("logits", "target"), ("tokens",)),
    "norm-gradient": (_norm_gradient, ("x", "above"), ("gamma", "beta", "eps")),
    "attention-gradient": (_attention_gradient, ("Q", "K", "V", "above"), ("tokens", "mask")),
    "rnn-gradient": (_rnn_gradient, ("X", "W", "U", "above"), ("h",)),
    "lstm-gradient": (_lstm_gradient, ("X", "h", "c", "W", "U", "above"), ("b",)),
    "similarity": (_similarity, ("vectors", "pairs"), ()),
    "embedding": (_embedding, ("E", "text"), ("words",)),
    "likelihood": (_likelihood, ("text", "centre", "outside"), ("window",)),
    "order": (_order, ("X", "order", "query"), ("tokens", "positions", "mask")),
    "distance": (_distance, ("tokens", "first", "second"), ("kernel",)),
    "encoding-properties": (_encoding_properties, ("dim",), ("count", "shift", "far", "base")),
    "scores": (_scores, ("q", "K", "V", "W", "U", "v", "sizes"), ("tokens",)),
    "weight-count": (_weight_count, ("layers", "heads", "head_dim", "dim", "vocab"), ()),
    "block-cost": (_block_cost, ("n", "d"), ()),
    "distillation": (_distillation, ("scores", "sizes", "times"), ()),
}
