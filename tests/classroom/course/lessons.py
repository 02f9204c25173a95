"""What each chapter of the course claims, as sentences that hold for the names it leaves when it has run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Lesson = Callable[[dict[str, Any]], bool]


def near_words(names: dict[str, Any], word: str, count: int) -> set[str]:
    return {str(row[0]) for row in names["vectors"].neighbours(word, count=count)}


def apple_cosine(names: dict[str, Any], value: str) -> float:
    fruit, watch = (names["apple"](names[text], value) for text in ("fruit", "watch"))
    return float(names["torch"].cosine_similarity(fruit, watch, dim=0))


def induction_best(names: dict[str, Any], model: str) -> float:
    return max(names["scores"][model].values())


LESSONS: dict[str, dict[str, Lesson]] = {
    "words": {
        "two one-hot vectors have a dot product of 0": lambda n: (
            float(n["one_hot"][0] @ n["one_hot"][1]) == 0
        ),
        "a product with a one-hot vector is a look-up": lambda n: bool(
            (n["one_hot"][3] @ n["E"] == n["E"][3]).all()
        ),
        "a frequent word has sensible neighbours": lambda n: bool(
            near_words(n, "france", 10) & {"italy", "england", "germany", "spain", "paris"}
        ),
        "a rare word does not: hotel is not near motel": lambda n: "hotel" not in near_words(n, "motel", 10),
        "queen is near king − man + woman": lambda n: (
            "queen" in {str(row[0]) for row in n["vectors"].analogy("man", "king", "woman", count=5)}
        ),
        "looked up, both apples are equal": lambda n: apple_cosine(n, "embed.output") > 0.999,
        "in context they are not": lambda n: apple_cosine(n, "blocks.5.output") < 0.9,
    },
    "recurrent": {
        "a gain below 1 makes the gradient vanish": lambda n: math.exp(n["runs"][0]["rate"]["slope"]) < 0.8,
        "a larger gain has a larger rate": lambda n: (
            n["runs"][0]["rate"]["slope"] < n["runs"][1]["rate"]["slope"]
        ),
        "attention's gradient does not fall with distance": lambda n: n["norms"][44] > 0.2 * n["norms"][4],
        "a trained LSTM keeps more of it than an RNN": lambda n: n["rates"]["lstm"] > n["rates"]["rnn"],
    },
    "alignment": {
        "the decoder gets as many numbers for 4 words as for 40": lambda n: n["handed"][4] == n["handed"][40],
        "Mann is written while looking at man": lambda n: "man" in n["looked"]["ĠMann"],
        "the weights of a row sum to 1": lambda n: bool(
            (n["pattern"].values[0].sum(-1) - 1).abs().max() < 1e-4
        ),
    },
    "transformer": {
        "the variance of q·k is d_k": lambda n: all(
            0.85 < n["weights"][d][0] / d < 1.15 for d in n["weights"]
        ),
        "without the scale one weight takes nearly all at d_k = 512": lambda n: n["weights"][512][1] > 0.85,
        "with the scale it does not": lambda n: n["weights"][512][2] < 0.45,
        "“it” looks more at the animal that is tired": lambda n: (
            n["looks"][n["tired"]]["animal"] > n["looks"][n["wide"]]["animal"]
        ),
        "the translation is right": lambda n: "liest ein Buch" in n["german"],
    },
    "bert": {
        "what follows the mask changes the guesses": lambda n: (
            n["guessed"]["I was in the [MASK]."] != n["guessed"]["I was in the [MASK]. I was cooking dinner."]
        ),
        "dinner is cooked in a kitchen": lambda n: (
            "kitchen" in n["guessed"]["I was in the [MASK]. I was cooking dinner."]
        ),
        "mat is not among 200 guesses": lambda n: "mat" not in n["guesses"],
        "two convolutions of width 5 reach 9 places, the others all": lambda n: (
            n["reach"] == {"bilstm": 21, "cnn": 9, "bert": 21}
        ),
        "the two Seattle texts are alike, a motel and a soup are not": lambda n: bool(
            (n["vectors"] @ n["vectors"].T)[0, 1] > 0.6 > 0.3 > (n["vectors"] @ n["vectors"].T)[0, 2]
        ),
    },
    "gpt": {
        "added text changes no earlier vector": lambda n: n["masked_change"] < 1e-4,
        "a small model learns a line by heart": lambda n: n["losses"][-1] < 0.3 < n["losses"][0],
        "and writes it": lambda n: "sat on the mat" in n["rhyme"],
        "ways to choose differ": lambda n: len(set(n["written"].values())) >= 3,
        "GPT has 116,534,784 parameters": lambda n: n["heedful"].count("gpt").parameters == 116_534_784,
        "GPT-3 has 174,604,259,328": lambda n: n["heedful"].count("gpt3").parameters == 174_604_259_328,
        "the chat model knows a capital": lambda n: "Paris" in n["capital"],
    },
    "t5_bart": {
        "the summary takes Amanda for Tom": lambda n: (
            n["summary"].startswith("Amanda") and "cake" in n["summary"]
        ),
        "one model learns both tasks from the prefix": lambda n: min(n["share"].values()) > 0.9,
        "an encoder sees 36 pairs, a decoder 21": lambda n: n["visible"] == {"bert": 36, "gpt2": 21},
        "all three kinds learn to turn words around": lambda n: min(n["turned"].values()) > 0.9,
    },
    "llama_deepseek": {
        "equal distances give equal scores": lambda n: (
            max(n["same_distance"]) - min(n["same_distance"]) < 1e-3
        ),
        "RMSNorm keeps signs": lambda n: bool((n["rms"] > 0).all()),
        "shared keys make the cache 4 times smaller": lambda n: (
            n["heedful"].count("llama-7b").kv_bytes_per_token
            == 4 * n["heedful"].count("llama-3-8b").kv_bytes_per_token
        ),
    },
    "after_attention": {
        "steps give what the parallel form gives": lambda n: n["gap"] < 1e-4,
        "a state does not grow with the text": lambda n: all(
            n["costs"][name].kv_bytes_per_token == 0 < n["costs"][name].state_bytes
            for name in ("linear", "gla", "mamba", "lstm")
        ),
        "a cache does": lambda n: n["costs"]["gpt2"].kv_bytes_per_token > 0,
        "an RNN's gradient falls faster than attention's": lambda n: (
            n["curves"]["rnn"][-1] < n["curves"]["gpt2"][-1]
        ),
    },
    "looking_inside": {
        "the model `induction` has an induction head, `prose` none": lambda n: (
            induction_best(n, "induction") > 0.8 > 0.2 > induction_best(n, "prose")
        ),
        "the second copy of random tokens is predicted": lambda n: n["second_copy"] < 0.5 * n["first_copy"],
        "the parts sum to the logit": lambda n: abs(n["shares"].total - n["shares"].logit) < 1e-2,
        "some head matters": lambda n: n["effects"][n["path"]][n["head"]] > 0,
    },
    "scaling": {
        "about 2 FLOPs per parameter and token": lambda n: all(
            1.5 < n["heedful"].count(name).flops_per_token / n["heedful"].count(name).parameters < 2.6
            for name in ("gpt2-xl", "llama-7b", "gpt3")
        ),
        "more data lowers the loss of every width": lambda n: all(
            losses[0] > losses[1] > losses[2] for losses in n["curves"].values()
        ),
        "no loss is below the entropy of the text": lambda n: (
            min(p[2] for p in n["points"]) > 0.98 * n["floor"]
        ),
        "the widest model with the most data is the best": lambda n: (
            n["points"][-1][2] == min(p[2] for p in n["points"])
        ),
    },
}
