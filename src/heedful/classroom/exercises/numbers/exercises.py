"""Number exercises: what is to be done, which lines are asked for, known mistakes, how numbers are drawn.

They are small enough for paper where those of the worked example are.
"""

from __future__ import annotations

import random

from heedful.classroom.exercises.numbers.numbers import EXERCISES, Values, WrongValues, number_exercise

SENTENCE = ["The", "cat", "sat", "on", "the", "mat"]
ROW = (r"scores of .*", r"scaled scores of .*", r"weights of .*", r"output of .*")


def bits(rng: random.Random, rows: int, columns: int) -> list[list[int]]:
    """Return rows of 0 and 1 that are not all alike."""
    while True:
        found = [[rng.randint(0, 1) for _ in range(columns)] for _ in range(rows)]
        if len({tuple(row) for row in found}) > 1:
            return found


def tenths(rng: random.Random, *shape: int) -> list:
    """Return numbers with one digit after the point, between −0.9 and 0.9, never 0."""
    if len(shape) > 1:
        return [tenths(rng, *shape[1:]) for _ in range(shape[0])]
    return [rng.choice([n for n in range(-9, 10) if n]) / 10 for _ in range(shape[0])]


def permutation_matrix(rng: random.Random, size: int) -> list[list[int]]:
    """Return a matrix that puts entries in another order."""
    order = rng.sample(range(size), size)
    return [[int(column == row) for column in range(size)] for row in order]


def swap_values(values: Values, first: str, second: str) -> Values:
    """Return the values with two of them in each other's place."""
    return values | {first: values[second], second: values[first]}


@number_exercise(
    "cat-sat",
    "Work out the attention of the query word: scores, scaled scores, weights and output.",
    (*ROW, "their sum"),
    mistakes=lambda v: {
        "query vectors stand where keys belong": v | {"K": v["Q"]},
        "keys stand where the query belongs": v | {"Q": v["K"]},
        "keys stand where values belong": v | {"V": v["K"]},
        "the scores are not divided by √d_k": v | {"scale": 1.0},
        "the scores are divided by d_k, not by √d_k": v | {"scale": 1 / len(v["Q"][0])},
    },
)
def draw_cat_sat(rng: random.Random) -> Values:
    query = rng.choice(SENTENCE)
    while True:
        Q, K, V = (bits(rng, 6, 2) for _ in range(3))
        if any(Q[SENTENCE.index(query)]):
            break
    return {"topic": "attention", "tokens": SENTENCE, "query": query, "Q": Q, "K": K, "V": V}


@number_exercise(
    "positions",
    "Work out the sinusoidal encodings, and add them to the vector of “Dragons”. The base is 10,000.",
    (r"PE\(\d+\)", r"Dragons \+ PE\(\d+\)"),
    mistakes=lambda v: {"the base is 100,000, not 10,000": v | {"base": 100000}},
)
def draw_positions(rng: random.Random) -> Values:
    first, second = sorted(rng.sample(range(1, 10), 2))
    return {
        "topic": "positions", "dim": 4, "positions": [first, second], "add": tenths(rng, 4),
        "tokens": ["Dragons", "Dragons"],
    }  # fmt: skip


@number_exercise(
    "queries-keys",
    "Work out all scores and weights of the queries with the keys.",
    (r"scores of .*", r"weights of .*"),
    mistakes=lambda v: {
        "queries and keys are taken for each other": swap_values(v, "Q", "K"),
        "the scores are not divided by √d_k": v | {"scale": 1.0},
    },
)
def draw_queries_keys(rng: random.Random) -> Values:
    names = [[f"{letter}{n}" for n in (1, 2, 3)] for letter in "QK"]
    Q, K = bits(rng, 3, 2), bits(rng, 3, 2)
    return {"topic": "attention", "tokens": names[0], "keys": names[1], "Q": Q, "K": K}


@number_exercise(
    "dragons",
    "Make q, k and v by their matrices (x W), then work out the attention of the query word.",
    (r"[qkv] of .*", *ROW),
    mistakes=lambda v: {
        "the scores are not divided by √d_k": v | {"scale": 1.0},
        "W_K stands where W_Q belongs": swap_values(v, "W_Q", "W_K"),
        "W_K stands where W_V belongs": swap_values(v, "W_V", "W_K"),
    },
)
def draw_dragons(rng: random.Random) -> Values:
    words = ["Dragons", "breathe", "fire"]
    W = {f"W_{letter}": permutation_matrix(rng, 3) for letter in "QKV"}
    X = [[int(i == j) * rng.randint(1, 2) for j in range(3)] for i in range(3)]
    return {"topic": "attention", "tokens": words, "query": rng.choice(words), "X": X, **W}


@number_exercise(
    "add-norm",
    "Add f(x), given as “add”, to x, then normalise: mean, variance, result. ε is 0, γ is 1, β is 0.",
    ("added", "mean", "variance", "normalised"),
    mistakes=lambda v: {"f(x) is not added": {key: value for key, value in v.items() if key != "add"}},
)
def draw_add_norm(rng: random.Random) -> Values:
    while True:
        x, add = tenths(rng, 4), tenths(rng, 4)
        total = [round(a + b, 1) for a, b in zip(x, add, strict=True)]
        if len(set(total)) > 1:
            return {"topic": "norm", "x": x, "add": add}


@number_exercise(
    "wampimuk",
    "One step of skip-gram with negative sampling: σ, loss and error of each word, then the gradient "
    "and the new vector of the centre. “rate” is η.",
    (r"σ of .*", r"loss of .*", r"error of .*", "loss", "gradient of wampimuk", "new .*"),
    mistakes=lambda v: {
        "observed and drawn words are taken for each other": swap_values(v, "observed", "drawn"),
        "the step goes up the gradient, not down": v | {"rate": -v["rate"]},
    },
)
def draw_wampimuk(rng: random.Random) -> Values:
    observed = rng.sample(["furry", "little", "hiding", "in"], 1)
    drawn = rng.sample(["Australia", "cyber", "the", "1985"], 2)
    return {
        "topic": "word2vec", "centre": "wampimuk", "vector": tenths(rng, 2),
        "observed": {word: tenths(rng, 2) for word in observed},
        "drawn": {word: tenths(rng, 2) for word in drawn}, "rate": rng.choice([0.1, 0.5]),
    }  # fmt: skip


@number_exercise(
    "hello",
    "An RNN reads the letters one-hot: h_t = tanh(U h + W x), p = softmax(V h), h starts at 0.",
    ("before tanh", "state", "scores", r"weights of .*"),
)
def draw_hello(rng: random.Random) -> Values:
    letters = ["h", "e", "l", "o"]
    W, U, V = tenths(rng, 2, 4), tenths(rng, 2, 2), tenths(rng, 4, 2)
    return {
        "topic": "rnn",
        "text": rng.choice(["hel", "ell", "llo"]),
        "letters": letters,
        "W": W,
        "U": U,
        "V": V,
    }


def lstm_mistakes(values: Values) -> WrongValues:
    W, U, b = (values[key] for key in ("W", "U", "b"))
    mixed = lambda rows: [rows[0], rows[1], rows[3], rows[2]]
    return {
        "the biases are left out": values | {"b": [0, 0, 0, 0]},
        "the rows of g and o are taken for each other": values
        | {"W": mixed(W), "U": mixed(U), "b": mixed(b)},
    }


@number_exercise(
    "hello-lstm",
    "One step of an LSTM with one cell; the rows of W, U and b belong to i, f, g, o in turn.",
    ("[ifgo] before", "[ifgo]", "new cell", "new state"),
    mistakes=lstm_mistakes,
)
def draw_lstm(rng: random.Random) -> Values:
    x = [0, 0, 0, 0]
    x[rng.randrange(4)] = 1
    return {
        "topic": "lstm", "x": x, "h": tenths(rng, 1), "c": tenths(rng, 1), "W": tenths(rng, 4, 4),
        "U": tenths(rng, 4, 1), "b": [0, 1, 0, 0],
    }  # fmt: skip


@number_exercise(
    "alignment",
    "One step of Bahdanau's attention: query W s, energies v·tanh(W s + U m), weights, context.",
    ("query", "energies", "weights of the state", "context"),
    mistakes=lambda v: {"W and U are taken for each other": swap_values(v, "W", "U")},
)
def draw_alignment(rng: random.Random) -> Values:
    return {
        "topic": "alignment", "tokens": ["How", "are", "you"], "s": tenths(rng, 2),
        "memory": tenths(rng, 3, 2), "W": bits(rng, 2, 2), "U": bits(rng, 2, 2),
        "v": rng.choice([[1, -1], [-1, 1], [1, 1]]),
    }  # fmt: skip


@number_exercise(
    "temperature",
    "Divide the logits by the temperature, take the softmax and its entropy in bits.",
    ("cooled|heated", "their sum", "weights of all", "entropy"),
    mistakes=lambda v: {
        "the logits are multiplied by T": v | {"temperature": 1 / v["temperature"]},
        "the temperature is left out": v | {"temperature": 1.0},
    },
)
def draw_temperature(rng: random.Random) -> Values:
    logits = [n / 10 for n in rng.sample(range(-20, 31), 3)]
    T = rng.choice([0.5, 2.0])
    return {"topic": "softmax", "tokens": ["mat", "floor", "moon"], "logits": logits, "temperature": T}


@number_exercise(
    "two-heads",
    "Two heads read all words: q, scores, scaled scores, weights and output of each, then W_O.",
    (r"[qkv] of .*", *ROW, "new vector of .*"),
    mistakes=lambda v: {
        "the scores are not divided by √d_k": v | {"scale": 1.0},
        "the heads are joined in the wrong order": v | {"heads": v["heads"][::-1]},
    },
)
def draw_two_heads(rng: random.Random) -> Values:
    words = ["Dragons", "breathe", "creatures"]
    X = [[rng.randint(0, 2) for _ in range(4)] for _ in words]
    heads = [{f"W_{letter}": bits(rng, 4, 2) for letter in "QKV"} for _ in range(2)]
    return {"topic": "heads", "tokens": words, "query": rng.choice(words), "X": X, "heads": heads,
            "W_O": permutation_matrix(rng, 4)}  # fmt: skip


@number_exercise(
    "apple",
    "First the raw attention softmax(x·x) x of “apple”, then the same word with q, k, v, and W_O.",
    (r"[qkv] of .*", *ROW, "new vector of .*"),
)
def draw_apple(rng: random.Random) -> Values:
    word = rng.choice(["orange", "watch"])
    words = ["bought", "apple", word]
    X = [[0, 0, 1], [1, 1, 0], [rng.randint(1, 2), 0, 0] if word == "orange" else [0, rng.randint(1, 2), 0]]
    raw = {"topic": "attention", "title": "raw x·x", "tokens": words, "query": "apple", "scale": 1,
           "Q": X, "K": X, "V": X}  # fmt: skip
    head = {f"W_{letter}": bits(rng, 3, 2) for letter in "QKV"}
    projected = {"topic": "heads", "title": "q, k, v and W_O", "tokens": words, "query": "apple", "X": X,
                 "heads": [head], "W_O": bits(rng, 2, 3)}  # fmt: skip
    return {"title": f"apple beside {word}", "parts": [raw, projected]}


@number_exercise(
    "embedding", "Multiply the one-hot vector of each word of the text with E.", (r"x of .*", "product of .*")
)
def draw_embedding(rng: random.Random) -> Values:
    words = ["the", "cat", "sat", "mat"]
    return {"topic": "embedding", "words": words, "E": tenths(rng, 4, 3), "text": rng.sample(words, 2)}


@number_exercise(
    "motel",
    "Dot product and cosine of the two words: one-hot, then dense.",
    (r"motel · hotel", "length of .*", "cosine of .*"),
)
def draw_motel(rng: random.Random) -> Values:
    size = 6
    places = rng.sample(range(size), 2)
    one_hot = {
        w: [int(i == at) for i in range(size)] for w, at in zip(("motel", "hotel"), places, strict=True)
    }
    vectors = {word: [rng.choice([-2, -1, 1, 2, 3]) for _ in range(2)] for word in ("motel", "hotel")}
    pairs = [["motel", "hotel"]]
    return {"title": "motel and hotel", "parts": [
        {"topic": "similarity", "title": "one-hot", "vectors": one_hot, "pairs": pairs},
        {"topic": "similarity", "title": "dense", "vectors": vectors, "pairs": pairs},
    ]}  # fmt: skip


@number_exercise(
    "likelihood",
    "P(o | c) over all three words for each centre c, then J(θ) with window 1.",
    (r"scores of .*", r"weights of .*", r"−ln P.*", r"J\(θ\)"),
    mistakes=lambda v: {
        "centre and outside vectors are taken for each other": swap_values(v, "centre", "outside")
    },
)
def draw_likelihood(rng: random.Random) -> Values:
    words = ["turning", "into", "banking"]
    tables = {key: {word: tenths(rng, 2) for word in words} for key in ("centre", "outside")}
    return {"topic": "likelihood", "text": rng.sample(words, 3), "window": 1, **tables}


@number_exercise(
    "encoding-properties",
    "d = 4, base 10,000: the length of PE(1), and R_k PE(1), where R_k turns every pair by "
    "k steps, given as “shift”.",
    (r"length of PE\(1\)", r"R_\d+ PE\(1\)"),
)
def draw_encoding_properties(rng: random.Random) -> Values:
    return {"topic": "encoding-properties", "dim": 4, "count": 10, "shift": rng.randint(1, 6)}


@number_exercise(
    "additive-dot",
    "Score the keys additively and by the scaled dot product; weights and contexts of both.",
    (r"(additive|scaled dot) scores", "weights of .*", "context, .*", "products per pair.*"),
)
def draw_additive_dot(rng: random.Random) -> Values:
    return {
        "topic": "scores", "tokens": ["How", "are", "you"], "q": tenths(rng, 2), "K": tenths(rng, 3, 2),
        "V": bits(rng, 3, 2), "W": bits(rng, 2, 2), "U": bits(rng, 2, 2), "v": rng.choice([[1, -1], [1, 1]]),
        "sizes": [],
    }  # fmt: skip


@number_exercise(
    "counselor",
    "How many steps lie between the two words: recurrent, by one-sided convolutions of this width, and by "
    "centred ones, which reach ⌊k/2⌋ words to each side? How many steps must follow one another in a "
    "recurrent network?",
    (
        "steps of a recurrent network",
        "layers of a one-sided convolution",
        "layers of a centred convolution",
        "one after another, recurrent",
    ),
)
def draw_counselor(rng: random.Random) -> Values:
    words = ["The", "counselor", "who", "knew", "them", "helped", "frame", "this", "situation"]
    first, second = sorted(rng.sample(range(len(words)), 2))
    return {"topic": "distance", "tokens": words, "first": words[first], "second": words[second],
            "kernel": rng.choice([2, 3, 5])}  # fmt: skip


@number_exercise(
    "order",
    "Work out raw attention (q, k and v are x, scaled by √2) of the query word in both orders.",
    (*ROW, "difference"),
    mistakes=lambda v: {"the scores are masked": v | {"mask": "causal"}},
)
def draw_order(rng: random.Random) -> Values:
    words = ["dog", "bites", "man"]
    while (other := rng.sample(words, 3)) == words:
        pass
    X = bits(rng, 3, 2)
    return {"topic": "order", "tokens": words, "order": other, "query": rng.choice(words), "X": X}


@number_exercise(
    "gpt3-weights",
    "Count the weights: tables, queries of all heads and layers, outputs, up-projections, all.",
    ("embedding", "query of all.*", "output projections", "up-projections", "all weights", "matrices"),
)
def draw_gpt3(rng: random.Random) -> Values:
    heads, head_dim = rng.choice([2, 4, 8, 12]), rng.choice([16, 32, 64])
    return {"topic": "weight-count", "layers": rng.choice([2, 4, 6, 12]), "heads": heads,
            "head_dim": head_dim, "dim": heads * head_dim,
            "vocab": rng.choice([1000, 8000, 50257])}  # fmt: skip


@number_exercise(
    "block-cost",
    "Count the operations of a block, and the share that grows with n².",
    ("matrices of weights", "scores and sums", "a block", "share.*", "equal at"),
)
def draw_block_cost(rng: random.Random) -> Values:
    return {
        "topic": "block-cost",
        "n": rng.choice([128, 512, 1024, 4096]),
        "d": rng.choice([64, 256, 512, 768]),
    }


@number_exercise(
    "distilbert",
    "The first number of a pair is the teacher's, the second the student's. Score kept, weights "
    "saved, times as fast, faster by, less time.",
    ("score kept", "weights saved", "times as fast", "faster by", "less time"),
    digits=2,
)
def draw_distilbert(rng: random.Random) -> Values:
    teacher = {
        "scores": rng.randint(700, 900) / 10,
        "sizes": rng.randint(90, 350),
        "times": rng.randint(300, 900),
    }
    share = {"scores": rng.uniform(0.9, 0.99), "sizes": rng.uniform(0.4, 0.7), "times": rng.uniform(0.4, 0.7)}
    pairs = {key: [value, round(value * share[key], 1)] for key, value in teacher.items()}
    return {"topic": "distillation", **pairs}


# Number exercises that work back from a loss: gradients of a softmax, a norm, attention, an RNN, an LSTM.


@number_exercise(
    "softmax-gradient",
    "The softmax, the rows of its Jacobian, and dz for the gradient given as “above”.",
    ("weights of all", "row . of the Jacobian", "mean gradient.*", "gradient of the scores.*"),
)
def draw_softmax_gradient(rng: random.Random) -> Values:
    logits = [float(n) for n in rng.sample(range(-1, 4), 3)]
    return {"topic": "softmax-gradient", "logits": logits, "above": rng.sample([-2, -1, 0, 1, 2], 3)}


@number_exercise(
    "cross-entropy-gradient",
    "Probabilities, loss in nats and in bits, and the gradient of the logits.",
    ("weights of all", "loss", "the same in bits", "gradient of the logits"),
)
def draw_cross_entropy(rng: random.Random) -> Values:
    words = ["mat", "floor", "moon"]
    logits = [n / 10 for n in rng.sample(range(-10, 31), 3)]
    return {"topic": "cross-entropy-gradient", "tokens": words, "logits": logits, "target": rng.choice(words)}


@number_exercise(
    "norm-gradient",
    "Normalise x (ε is 1e-5), then work back from the gradient given as “above”.",
    (
        "mean",
        "variance",
        "normalised",
        "gradient of γ",
        "gradient of the normalised",
        "mean of dn.*",
        "gradient of x",
    ),
)
def draw_norm_gradient(rng: random.Random) -> Values:
    while len(set(x := [rng.randint(-3, 3) for _ in range(4)])) < 3:
        pass
    above = [rng.choice([-2, -1, 1, 2]) for _ in range(4)]
    return {"topic": "norm-gradient", "x": x, "gamma": [rng.choice([1, 2]) for _ in range(4)], "eps": 1e-5,
            "above": above}  # fmt: skip


@number_exercise(
    "attention-gradient",
    "Weights and outputs, then dw, ds and dq of each query, dk and dv of each key.",
    ("scores of .*", "weights of .*", "gradient of the .*", "d[qkv] of .*"),
)
def draw_attention_gradient(rng: random.Random) -> Values:
    Q, K, V = (bits(rng, 2, 2) for _ in range(3))
    above = [[rng.choice([-1, 1, 2]) for _ in range(2)] for _ in range(2)]
    return {"topic": "attention-gradient", "tokens": ["The", "cat"], "Q": Q, "K": K, "V": V, "above": above}


@number_exercise(
    "rnn-gradient",
    "Forward through three steps (h starts at 0), then back: da and dh at every step.",
    ("state .", "slope .", "da .", "dh .", "gradient of .*"),
)
def draw_rnn_gradient(rng: random.Random) -> Values:
    return {"topic": "rnn-gradient", "X": tenths(rng, 3, 1), "h": [0], "W": [[1]],
            "U": [[rng.choice([0.5, 1.5, 2.0])]], "above": [1]}  # fmt: skip


@number_exercise(
    "lstm-gradient",
    "Forward through two steps, then back: the gates' gradients, dh and dc at every step.",
    ("[ifgo]", "new cell", "new state", r"dc . with.*", r"da_. .", r"d[hc] \d"),
)
def draw_lstm_gradient(rng: random.Random) -> Values:
    return {
        "topic": "lstm-gradient", "X": tenths(rng, 2, 1), "h": [0], "c": [0], "W": tenths(rng, 4, 1),
        "U": tenths(rng, 4, 1), "b": [0, rng.choice([-2, 1, 3]), 0, 0], "above": [1],
    }  # fmt: skip


__all__ = ["EXERCISES"]  # all of them, in the order in which they are listed
