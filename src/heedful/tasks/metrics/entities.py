"""The F1 of entities in tagged sentences: an entity counts only if type, first and last word are right.

(Tjong Kim Sang and De Meulder 2003.) Tags are O, or a letter and a type: I-PER goes on with a PER, B-PER
begins one (IOB1, IOB2); S- is one alone and E- ends one (BIOES).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from heedful.core.errors import InputError
from heedful.tasks.metrics.scores import accuracy, bootstrap_interval, f1_of, interval

Entity = tuple[int, int, str]


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the first word, the word after the last, and the type of every entity of a sentence."""
    found: list[Entity] = []
    start, kind = 0, ""
    for i, tag in enumerate([*tags, "O"]):
        letter, _, name = tag.partition("-")
        name = name or (letter if letter != "O" else "")
        continues = letter in ("I", "E") and name == kind and kind
        if kind and not continues:
            found.append((start, i, kind))
            kind = ""
        if letter != "O" and not continues:
            start, kind = i, name
        if letter in ("E", "S") and kind:
            found.append((start, i + 1, kind))
            kind = ""
    return found


def entity_f1(truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 over all sentences, and the F1 of every type."""
    if len(truth) != len(guess):
        raise InputError(f"{len(truth)} sentences are expected and {len(guess)} were given")
    right: Counter[str] = Counter()
    references: Counter[str] = Counter()
    predictions: Counter[str] = Counter()
    for t, g in zip(truth, guess, strict=True):
        if len(t) != len(g):
            raise InputError(f"a sentence of {len(t)} words was given {len(g)} tags")
        true, predicted = set(entities(t)), set(entities(g))
        references.update(kind for _, _, kind in true)
        predictions.update(kind for _, _, kind in predicted)
        right.update(kind for _, _, kind in true & predicted)
    hits, expected, predicted_total = right.total(), references.total(), predictions.total()
    each = {
        f"f1_{kind}": f1_of(right[kind], references[kind], predictions[kind])
        for kind in sorted(references | predictions)
    }
    share = lambda part, whole: part / whole if whole else 0.0
    return {
        "precision": share(hits, predicted_total),
        "recall": share(hits, expected),
        "f1": f1_of(hits, expected, predicted_total),
    } | each


def entity_f1_interval(truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Return the 95 % interval of the F1: over samples of the sentences, but no narrower than Wilson's.

    A few sentences without a mistake give samples without one; as many trials as entities still leave doubt.
    """
    pairs = [(set(entities(t)), set(entities(g))) for t, g in zip(truth, guess, strict=True)]
    counts = np.array([(len(true & predicted), len(true), len(predicted)) for true, predicted in pairs])
    right, references, predictions = counts.sum(0).tolist()
    trials = (references + predictions) / 2
    if not trials:
        return 0.0, 1.0
    drawn = bootstrap_interval(lambda sample: f1_of(*counts[sample].sum(0).tolist()), len(counts))
    wilson = interval(f1_of(right, references, predictions), trials)
    return min(drawn[0], wilson[0]), max(drawn[1], wilson[1])


def tag_scores(truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the F1 of whole entities after its 95 % interval, and the accuracy by word."""
    flat = lambda rows: [tag for row in rows for tag in row]
    found, between = entity_f1(truth, guess), list(entity_f1_interval(truth, guess))
    scores = {"f1_95": between, "f1": found.pop("f1")} | found
    return scores | {"accuracy": accuracy(flat(truth), flat(guess)), "sentences": len(truth)}
