"""Number exercises: a worked example with other numbers, drawn for a student, and the questions about it.

A problem is a calculation of `heedful.explain` whose numbers follow from the exercise and the seed alone. The
questions are some of its lines. An operand of a line refers to the line it comes from, so a line can be
worked again with a student's earlier results. The worked example of the same name
(arithmetic/examples/NAME.yaml) says what the task is and which lines are asked for. This file draws its
numbers, and lists the mistakes that other numbers make.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from heedful.classroom.arithmetic.example_files import LEARNING_ORDER, read_exercise
from heedful.classroom.arithmetic.from_values import explain_values
from heedful.classroom.arithmetic.worked import Derivation, Line
from heedful.core.errors import InputError, NotFound, nearest

DEFAULT_DIGITS = 4
MAX_DIGITS = 9
Values = dict[str, Any]
Draw = Callable[[random.Random], Values]
WrongValues = Mapping[str, Values]  # the name of a mistake → the values with which its answers come out


@dataclass(frozen=True)
class NumberExercise:
    """One exercise: what is to be done, how its numbers are drawn, and which lines are asked for.

    A question is asked about each line whose label matches one of `label_patterns`. `mistakes(values)` has
    other values with which common mistakes come out.
    """

    name: str
    task: str
    draw: Draw
    label_patterns: Sequence[str]
    mistakes: Callable[[Values], WrongValues]
    digits: int


EXERCISES: dict[str, NumberExercise] = {}  # all of them; at the end of this file, in learning order


@dataclass(frozen=True)
class NumberQuestion:
    """One line that is asked for."""

    number: int
    section: str
    line: Line
    digits: int

    @property
    def count(self) -> int:
        """The number of numbers in the answer."""
        return self.line.value.size

    @property
    def answer_format(self) -> str:
        """The form of the answer in words: how many numbers, with how many digits, in which unit."""
        entries = "1 number" if self.count == 1 else f"{self.count} numbers"
        unit = f", in {self.line.unit}" if self.line.unit else ""
        exact = bool(np.all(np.abs(self.line.value - np.round(self.line.value)) < 1e-12))
        return entries + (unit if exact else f", {self.digits} digits after the point{unit}")

    @property
    def prompt(self) -> str:
        """The label and the formula, with the section they belong to."""
        where = f"{self.section}: " if self.section else ""
        return f"{where}{self.line.label}"


@dataclass(frozen=True)
class Owner:
    """The class that a sheet belongs to: only who knows its secret can draw the numbers again."""

    name: str
    secret: str
    due: str = ""


@dataclass(frozen=True)
class Problem:
    """An exercise with the numbers of one student."""

    exercise: NumberExercise
    seed: str
    digits: int
    owner: Owner | None = None

    @cached_property
    def values(self) -> Values:
        """The numbers, as `heedful.explain` takes them; those of a class also follow from its secret."""
        secret = f" {self.owner.secret}" if self.owner else ""
        return self.exercise.draw(random.Random(f"{self.exercise.name} {self.seed}{secret}"))

    @property
    def header(self) -> dict[str, Any]:
        """The header of a sheet, from which it can be drawn again."""
        own = {"class": self.owner.name, "due": self.owner.due} if self.owner else {}
        fields = {"exercise": self.exercise.name, "seed": self.seed, "digits": self.digits} | own
        return {name: value for name, value in fields.items() if value != ""}

    @cached_property
    def derivation(self) -> Derivation:
        """The worked solution."""
        return explain_values(self.values)

    @cached_property
    def questions(self) -> tuple[NumberQuestion, ...]:
        """The lines that are asked for, in the order in which they are worked."""
        asked = [
            (section, line)
            for section, line in named_lines(self.derivation)
            if any(re.fullmatch(pattern, line.label) for pattern in self.exercise.label_patterns)
        ]
        sections = len({section for section, _ in asked}) > 1
        return tuple(
            NumberQuestion(n, section if sections else "", line, self.digits)
            for n, (section, line) in enumerate(asked, 1)
        )

    @property
    def given_values(self) -> list[tuple[str, Any]]:
        """The values printed on the sheet, each a name and a number, a vector, a matrix, or words."""
        return list(named_values(self.values))

    @property
    def command(self) -> str:
        """The command that writes this very sheet."""
        digits = "" if self.digits == self.exercise.digits else f" --digits {self.digits}"
        return f"heed exercise {self.exercise.name} --seed {self.seed}{digits}"


def named_values(values: Mapping[str, Any], part: str = "") -> Iterator[tuple[str, Any]]:
    """The values of an exercise that a student needs, by name; those of parts and heads with their titles."""
    for key, value in values.items():
        if key in ("topic", "title", "note", "about") or value == []:
            continue
        if isinstance(value, list) and isinstance(value[0], Mapping):  # parts, or heads
            for n, inner in enumerate(value, 1):
                yield from named_values(inner, inner.get("title") or f"{part + ', ' if part else ''}head {n}")
        elif isinstance(value, Mapping):
            for word, vector in value.items():
                yield f"{part + ', ' if part else ''}{key}, {word}", vector
        else:
            yield f"{part + ', ' if part else ''}{key}", value


def named_lines(derivation: Derivation, section: str = "") -> Iterator[tuple[str, Line]]:
    """Yield every line with the titles of the sections it stands in."""
    for line in derivation.lines:
        if isinstance(line, Derivation):
            yield from named_lines(line, f"{section}, {line.title}" if section else line.title)
        else:
            yield section, line


def new_problem(name: str, seed: str, digits: int | None = None, owner: Owner | None = None) -> Problem:
    """Return the exercise `name` with the numbers of `seed`, a student's name or number."""
    if name not in EXERCISES:
        close = nearest(name, EXERCISES) or "heed exercise --list names them"
        raise NotFound(f"no exercise {name!r}", hint=close)
    if not seed or seed != seed.strip() or len(seed) > 100 or not seed.isprintable():
        raise InputError(
            f"`seed={seed!r}` is not a student's name", hint="give a short word or number, such as alice"
        )
    digits = EXERCISES[name].digits if digits is None else digits
    if not 1 <= digits <= MAX_DIGITS:
        raise InputError(f"`digits={digits}` is out of range", hint=f"choose 1 … {MAX_DIGITS}")
    return Problem(EXERCISES[name], seed, digits, owner)


# How numbers are drawn: small enough for paper where those of the worked example are.


def number_exercise(mistakes: Callable[[Values], WrongValues] = lambda values: {}) -> Callable[[Draw], Draw]:
    """Add the exercise whose numbers the function below draws; its name is that of the function."""

    def add_exercise(draw: Draw) -> Draw:
        name = draw.__name__.replace("_", "-")
        texts = read_exercise(name)["exercise"]
        digits = texts.get("digits", DEFAULT_DIGITS)
        EXERCISES[name] = NumberExercise(name, texts["task"], draw, texts["ask"], mistakes, digits)
        return draw

    return add_exercise


SENTENCE = ["The", "cat", "sat", "on", "the", "mat"]


def bits(rng: random.Random, rows: int, columns: int) -> list[list[int]]:
    """Return rows of 0 and 1 that are not all alike."""
    while True:
        matrix = [[rng.randint(0, 1) for _ in range(columns)] for _ in range(rows)]
        if len({tuple(row) for row in matrix}) > 1:
            return matrix


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
    lambda v: {
        "query vectors stand where keys belong": v | {"K": v["Q"]},
        "keys stand where the query belongs": v | {"Q": v["K"]},
        "keys stand where values belong": v | {"V": v["K"]},
        "the scores are not divided by √d_k": v | {"scale": 1.0},
        "later words are hidden by a causal mask": v | {"mask": "causal"},
        "the scores are divided by d_k, not by √d_k": v | {"scale": 1 / len(v["Q"][0])},
    }
)
def cat_sat(rng: random.Random) -> Values:
    query = rng.choice(SENTENCE)
    while True:
        Q, K, V = (bits(rng, 6, 2) for _ in range(3))
        if any(Q[SENTENCE.index(query)]):
            break
    return {"topic": "attention", "tokens": SENTENCE, "query": query, "Q": Q, "K": K, "V": V}


@number_exercise(lambda v: {"the base is 100,000, not 10,000": v | {"base": 100000}})
def positions(rng: random.Random) -> Values:
    first, second = sorted(rng.sample(range(1, 10), 2))
    return {
        "topic": "positions", "dim": 4, "positions": [first, second], "add": tenths(rng, 4),
        "tokens": ["Dragons", "Dragons"],
    }  # fmt: skip


@number_exercise(
    lambda v: {
        "queries and keys are taken for each other": swap_values(v, "Q", "K"),
        "the scores are not divided by √d_k": v | {"scale": 1.0},
    }
)
def queries_keys(rng: random.Random) -> Values:
    names = [[f"{letter}{n}" for n in (1, 2, 3)] for letter in "QK"]
    Q, K = bits(rng, 3, 2), bits(rng, 3, 2)
    return {"topic": "attention", "tokens": names[0], "keys": names[1], "Q": Q, "K": K}


@number_exercise(
    lambda v: {
        "the scores are not divided by √d_k": v | {"scale": 1.0},
        "W_K stands where W_Q belongs": swap_values(v, "W_Q", "W_K"),
        "W_K stands where W_V belongs": swap_values(v, "W_V", "W_K"),
    }
)
def dragons(rng: random.Random) -> Values:
    words = ["Dragons", "breathe", "fire"]
    W = {f"W_{letter}": permutation_matrix(rng, 3) for letter in "QKV"}
    X = [[int(i == j) * rng.randint(1, 2) for j in range(3)] for i in range(3)]
    return {"topic": "attention", "tokens": words, "query": rng.choice(words), "X": X, **W}


@number_exercise(lambda v: {"f(x) is not added": {key: value for key, value in v.items() if key != "add"}})
def add_norm(rng: random.Random) -> Values:
    while True:
        x, add = tenths(rng, 4), tenths(rng, 4)
        total = [round(a + b, 1) for a, b in zip(x, add, strict=True)]
        if len(set(total)) > 1:
            return {"topic": "norm", "x": x, "add": add}


@number_exercise(
    lambda v: {
        "observed and drawn words are taken for each other": swap_values(v, "observed", "drawn"),
        "the step goes up the gradient, not down": v | {"rate": -v["rate"]},
    }
)
def wampimuk(rng: random.Random) -> Values:
    observed = rng.sample(["furry", "little", "hiding", "in"], 1)
    drawn = rng.sample(["Australia", "cyber", "the", "1985"], 2)
    return {
        "topic": "word2vec", "centre": "wampimuk", "vector": tenths(rng, 2),
        "observed": {word: tenths(rng, 2) for word in observed},
        "drawn": {word: tenths(rng, 2) for word in drawn}, "rate": rng.choice([0.1, 0.5]),
    }  # fmt: skip


@number_exercise()
def hello(rng: random.Random) -> Values:
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
    """Return the step without biases, and with the rows of two gates in each other's place."""
    wrong = {"the biases are left out": values | {"b": [0, 0, 0, 0]}}
    for first, second in combinations("ifgo", 2):
        order = ["ifgo".index({first: second, second: first}.get(gate, gate)) for gate in "ifgo"]
        swapped = {key: [values[key][row] for row in order] for key in ("W", "U", "b")}
        wrong[f"the rows of {first} and {second} are swapped"] = values | swapped
    return wrong


@number_exercise(lstm_mistakes)
def hello_lstm(rng: random.Random) -> Values:
    x = [0, 0, 0, 0]
    x[rng.randrange(4)] = 1
    return {
        "topic": "lstm", "x": x, "h": tenths(rng, 1), "c": tenths(rng, 1), "W": tenths(rng, 4, 4),
        "U": tenths(rng, 4, 1), "b": [0, 1, 0, 0],
    }  # fmt: skip


@number_exercise(lambda v: {"W and U are taken for each other": swap_values(v, "W", "U")})
def alignment(rng: random.Random) -> Values:
    return {
        "topic": "alignment", "tokens": ["How", "are", "you"], "s": tenths(rng, 2),
        "memory": tenths(rng, 3, 2), "W": bits(rng, 2, 2), "U": bits(rng, 2, 2),
        "v": rng.choice([[1, -1], [-1, 1], [1, 1]]),
    }  # fmt: skip


@number_exercise(
    lambda v: {
        "the logits are multiplied by T": v | {"temperature": 1 / v["temperature"]},
        "the temperature is left out": v | {"temperature": 1.0},
    }
)
def temperature(rng: random.Random) -> Values:
    logits = [n / 10 for n in rng.sample(range(-20, 31), 3)]
    T = rng.choice([0.5, 2.0])
    return {"topic": "softmax", "tokens": ["mat", "floor", "moon"], "logits": logits, "temperature": T}


@number_exercise(
    lambda v: {
        "the scores are not divided by √d_k": v | {"scale": 1.0},
        "the heads are joined in the wrong order": v | {"heads": v["heads"][::-1]},
    }
)
def two_heads(rng: random.Random) -> Values:
    words = ["Dragons", "breathe", "creatures"]
    X = [[rng.randint(0, 2) for _ in range(4)] for _ in words]
    heads = [{f"W_{letter}": bits(rng, 4, 2) for letter in "QKV"} for _ in range(2)]
    return {"topic": "heads", "tokens": words, "query": rng.choice(words), "X": X, "heads": heads,
            "W_O": permutation_matrix(rng, 4)}  # fmt: skip


@number_exercise()
def apple(rng: random.Random) -> Values:
    word = rng.choice(["orange", "watch"])
    words = ["bought", "apple", word]
    X = [[0, 0, 1], [1, 1, 0], [rng.randint(1, 2), 0, 0] if word == "orange" else [0, rng.randint(1, 2), 0]]
    raw = {"topic": "attention", "title": "raw x·x", "tokens": words, "query": "apple", "scale": 1,
           "Q": X, "K": X, "V": X}  # fmt: skip
    head = {f"W_{letter}": bits(rng, 3, 2) for letter in "QKV"}
    projected = {"topic": "heads", "title": "q, k, v and W_O", "tokens": words, "query": "apple", "X": X,
                 "heads": [head], "W_O": bits(rng, 2, 3)}  # fmt: skip
    return {"title": f"apple beside {word}", "parts": [raw, projected]}


@number_exercise()
def embedding(rng: random.Random) -> Values:
    words = ["the", "cat", "sat", "mat"]
    return {"topic": "embedding", "words": words, "E": tenths(rng, 4, 3), "text": rng.sample(words, 2)}


@number_exercise()
def motel(rng: random.Random) -> Values:
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
    lambda v: {"centre and outside vectors are taken for each other": swap_values(v, "centre", "outside")}
)
def likelihood(rng: random.Random) -> Values:
    words = ["turning", "into", "banking"]
    tables = {key: {word: tenths(rng, 2) for word in words} for key in ("centre", "outside")}
    return {"topic": "likelihood", "text": rng.sample(words, 3), "window": 1, **tables}


@number_exercise()
def encoding_properties(rng: random.Random) -> Values:
    return {"topic": "encoding-properties", "dim": 4, "count": 10, "shift": rng.randint(1, 6)}


@number_exercise()
def additive_dot(rng: random.Random) -> Values:
    return {
        "topic": "scores", "tokens": ["How", "are", "you"], "q": tenths(rng, 2), "K": tenths(rng, 3, 2),
        "V": bits(rng, 3, 2), "W": bits(rng, 2, 2), "U": bits(rng, 2, 2), "v": rng.choice([[1, -1], [1, 1]]),
        "sizes": [],
    }  # fmt: skip


@number_exercise()
def counselor(rng: random.Random) -> Values:
    words = ["The", "counselor", "who", "knew", "them", "helped", "frame", "this", "situation"]
    first, second = sorted(rng.sample(range(len(words)), 2))
    return {"topic": "distance", "tokens": words, "first": words[first], "second": words[second],
            "kernel": rng.choice([2, 3, 5])}  # fmt: skip


@number_exercise(lambda v: {"the scores are masked": v | {"mask": "causal"}})
def order(rng: random.Random) -> Values:
    words = ["dog", "bites", "man"]
    while (other := rng.sample(words, 3)) == words:
        pass
    X = bits(rng, 3, 2)
    return {"topic": "order", "tokens": words, "order": other, "query": rng.choice(words), "X": X}


@number_exercise()
def gpt3_weights(rng: random.Random) -> Values:
    heads, head_dim = rng.choice([2, 4, 8, 12]), rng.choice([16, 32, 64])
    return {"topic": "weight-count", "layers": rng.choice([2, 4, 6, 12]), "heads": heads,
            "head_dim": head_dim, "dim": heads * head_dim,
            "vocab": rng.choice([1000, 8000, 50257])}  # fmt: skip


@number_exercise()
def block_cost(rng: random.Random) -> Values:
    return {
        "topic": "block-cost",
        "n": rng.choice([128, 512, 1024, 4096]),
        "d": rng.choice([64, 256, 512, 768]),
    }


@number_exercise()
def distilbert(rng: random.Random) -> Values:
    teacher = {
        "scores": rng.randint(700, 900) / 10,
        "sizes": rng.randint(90, 350),
        "times": rng.randint(300, 900),
    }
    share = {"scores": rng.uniform(0.9, 0.99), "sizes": rng.uniform(0.4, 0.7), "times": rng.uniform(0.4, 0.7)}
    pairs = {key: [value, round(value * share[key], 1)] for key, value in teacher.items()}
    return {"topic": "distillation", **pairs}


# Number exercises that work back from a loss: gradients of a softmax, a norm, attention, an RNN, an LSTM.


@number_exercise()
def softmax_gradient(rng: random.Random) -> Values:
    logits = [float(n) for n in rng.sample(range(-1, 4), 3)]
    return {"topic": "softmax-gradient", "logits": logits, "above": rng.sample([-2, -1, 0, 1, 2], 3)}


@number_exercise()
def cross_entropy_gradient(rng: random.Random) -> Values:
    words = ["mat", "floor", "moon"]
    logits = [n / 10 for n in rng.sample(range(-10, 31), 3)]
    return {"topic": "cross-entropy-gradient", "tokens": words, "logits": logits, "target": rng.choice(words)}


@number_exercise()
def norm_gradient(rng: random.Random) -> Values:
    while len(set(x := [rng.randint(-3, 3) for _ in range(4)])) < 3:
        pass
    above = [rng.choice([-2, -1, 1, 2]) for _ in range(4)]
    return {"topic": "norm-gradient", "x": x, "gamma": [rng.choice([1, 2]) for _ in range(4)], "eps": 1e-5,
            "above": above}  # fmt: skip


@number_exercise()
def attention_gradient(rng: random.Random) -> Values:
    Q, K, V = (bits(rng, 2, 2) for _ in range(3))
    above = [[rng.choice([-1, 1, 2]) for _ in range(2)] for _ in range(2)]
    return {"topic": "attention-gradient", "tokens": ["The", "cat"], "Q": Q, "K": K, "V": V, "above": above}


@number_exercise()
def rnn_gradient(rng: random.Random) -> Values:
    return {"topic": "rnn-gradient", "X": tenths(rng, 3, 1), "h": [0], "W": [[1]],
            "U": [[rng.choice([0.5, 1.5, 2.0])]], "above": [1]}  # fmt: skip


@number_exercise()
def lstm_gradient(rng: random.Random) -> Values:
    return {
        "topic": "lstm-gradient", "X": tenths(rng, 2, 1), "h": [0], "c": [0], "W": tenths(rng, 4, 1),
        "U": tenths(rng, 4, 1), "b": [0, rng.choice([-2, 1, 3]), 0, 0], "above": [1],
    }  # fmt: skip


EXERCISES = {name: EXERCISES[name] for name in LEARNING_ORDER}
