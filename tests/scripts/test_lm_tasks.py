"""Published evaluations on rows made up, against probabilities taken one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from benchmarks.lm_tasks import blimp, hellaswag, lambada

from heedful.core.errors import InputError
from heedful.tasks.likelihood import log_probability, rank
from tests.tasks.real import scribbler, smol


def test_the_last_word_is_right_if_the_model_would_write_it() -> None:
    rows = [{"text": "One, two, three, four, five, six, seven"}, {"text": "One, two, three, four zebra"}]
    found = lambada(smol(), rows)
    assert (found["accuracy"], found["rows"]) == (0.5, 2)


def test_the_perplexity_of_last_words_is_of_words_not_tokens() -> None:
    model = scribbler()
    texts = ["the cat sat", "a bc d ef"]
    nats = [-rank(model, *splits)[0]["total"] for splits in (("the cat", [" sat"]), ("a bc d", [" ef"]))]
    found = lambada(model, ({"text": t} for t in texts))
    assert found["perplexity"] == pytest.approx(math.exp(sum(nats) / 2), rel=1e-4)


def test_endings_are_compared_in_all_and_by_byte() -> None:
    model = scribbler()
    rows = [
        {"ctx": f"a {word}", "endings": ["b", "ccé", "d e f", "gggggg"], "label": 0}
        for word in ("x", "yy", "zzz", "qq q")
    ]
    right = normal = 0
    for row in rows:
        total = {r["text"]: r["total"] for r in rank(model, row["ctx"], [f" {e}" for e in row["endings"]])}
        row["label"] = row["endings"].index(max(total, key=lambda e: total[e])[1:])
        best = max(total, key=lambda e: total[e] / len(e[1:].encode()))[1:]
        right, normal = right + 1, normal + (row["endings"].index(best) == row["label"])
    found = hellaswag(model, rows)
    assert (found["acc"], found["acc_norm"]) == (right / 4, normal / 4)
    wrong = [row | {"label": (row["label"] + 1) % 4} for row in rows]
    assert hellaswag(model, wrong)["acc"] == 0


def test_the_good_sentence_is_the_more_probable_by_paradigm() -> None:
    model = scribbler()
    pairs = [("ab cd", "ab dc"), ("x", "y"), ("same", "same"), ("abc", "ab"), ("qr st", "zz")]
    rows = [
        {"uid": "ab"[i % 2], "field": "f", "good": good, "bad": bad} for i, (good, bad) in enumerate(pairs)
    ]
    better = [log_probability(model, g).total > log_probability(model, b).total for g, b in pairs]
    better[2] = False
    found = blimp(model, rows)
    assert found["paradigms"] == {"a": sum(better[::2]) / 3, "b": sum(better[1::2]) / 2}
    assert found["accuracy"] == pytest.approx(sum(found["paradigms"].values()) / 2)
    assert found["fields"]["f"] == pytest.approx(found["accuracy"])


def test_a_field_that_is_spelt_in_two_ways_is_one() -> None:
    spelt = ("syntax_semantics", "syntax/semantics")
    rows = [{"good": "a b", "bad": "b a", "uid": field, "field": field} for field in spelt]
    assert list(blimp(scribbler(), rows)["fields"]) == ["syntax_semantics"]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: lambada(scribbler(), []), "no rows"),
        (lambda: lambada(scribbler(), [{"text": "word"}]), "no last word"),
        (lambda: hellaswag(scribbler(), [{"ctx": "a"}]), "row 0 has no 'endings'"),
        (lambda: blimp(scribbler(), [{"good": "a", "bad": "b"}]), "row 0 has no 'uid'"),
    ],
)
def test_rows_that_cannot_be_are_named(ask: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        ask()
