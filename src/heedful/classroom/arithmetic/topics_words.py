"""Words as vectors, worked out: one-hot and dense, the embedding as a product, word2vec's likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from heedful.classroom.arithmetic.topics import softmax_lines
from heedful.classroom.arithmetic.worked import Derivation, Sheet, entry, op
from heedful.core.errors import InputError

Array = np.ndarray


def similarity(vectors: Mapping[str, Array], pairs: Sequence[tuple[str, str]]) -> Derivation:
    """a·b and cos(a, b) = a·b / (‖a‖ ‖b‖)"""
    sheet = Sheet()
    known = {word: sheet.add_given(word, "a", vector) for word, vector in vectors.items()}
    for first, second in pairs:
        part = Sheet()
        a, b = known[first], known[second]
        dot = part.line(f"{first} · {second}", "a·b", op("·", a, b))
        sizes = [part.line(f"length of {word}", "‖a‖", op("norm", known[word])) for word in (first, second)]
        part.line(f"cosine of {first}, {second}", "a·b / (‖a‖ ‖b‖)", op("/", dot, op("×", *sizes)))
        sheet.section(part.finish(f"{first} and {second}"))
    return sheet.finish("how alike two words are")


def embedding(E: Array, words: Sequence[str], text: Sequence[str]) -> Derivation:
    """x E, x one-hot, is a row of E: an embedding is a matrix product that is never carried out"""
    sheet = Sheet()
    table = sheet.add_given("E", 'E "a row for each word"', E)
    for word in text:
        at = words.index(word)
        x = sheet.add_given(f"x of {word}", f'x "one-hot at {at}"', np.eye(len(words))[at])
        sheet.line(f"product of {word}", "x E", op("·", x, table))
        sheet.line(f"row {at} of E, for {word}", f"E_{at}", op("entry", table, float(at)))
    return sheet.finish("an embedding is a product with a one-hot vector")


def likelihood(
    text: Sequence[str], window: int, centre: Mapping[str, Array], outside: Mapping[str, Array]
) -> Derivation:
    """P(o | c) = exp(u_o·v_c) / Σ_w exp(u_w·v_c), J(θ) = −(1/T) Σ_t Σ_{0<|j|≤m} ln P(w_{t+j} | w_t)

    (Mikolov et al. 2013 §2, eq. 1 and 2: the full softmax, over every word of the vocabulary.)
    """
    words = list(outside)
    if missing := [word for word in text if word not in centre or word not in outside]:
        raise InputError(
            f"{missing[0]!r} has no vector", hint="every word needs one as centre and one outside"
        )
    whole, chances, losses = Sheet(), {}, []
    for c in dict.fromkeys(text):
        sheet = Sheet()
        v = sheet.add_given(f"v of {c}", "v_c", centre[c])
        dots = [sheet.line(f"{o} · {c}", "u_o·v_c", op("·", outside[o], v)) for o in words]
        scores = sheet.line(f"scores of {c}", '"one for every word"', op("row", *dots))
        chances[c] = softmax_lines(sheet, scores, f"{', '.join(words)} around {c}")
        whole.section(sheet.finish(f"P(o | {c})"))
    for t, c in enumerate(text):
        for j in range(max(0, t - window), min(len(text), t + window + 1)):
            if j == t:
                continue
            chance = entry(chances[c], words.index(text[j]))
            loss = op("-", 0.0, op("ln", chance))
            losses.append(whole.line(f"−ln P({text[j]} | {c}), position {t}", "−ln P(o|c)", loss, "nats"))
    total = op("sum", op("row", *losses))
    whole.line("J(θ)", "J(θ) = −(1/T) Σ ln P(o|c)", op("/", total, float(len(text))), "nats")
    return whole.finish(f"the likelihood of “{' '.join(text)}”, window {window}")
