"""Few-shot prompts, and what comes back for them."""

from __future__ import annotations

import pytest

from heedful.core.errors import InputError
from heedful.tasks.likelihood import FewShot, few_shot, rank
from tests.tasks.real import scribbler, smol

EXAMPLES = [("great fun", "good"), {"text": "a bore", "label": "bad"}]


def test_a_prompt_ends_where_the_answer_begins() -> None:
    assert few_shot(EXAMPLES, "I loved it", "Good or bad?", names=("Review", "Verdict")) == (
        "Good or bad?\n\nReview: great fun\nVerdict: good\n\nReview: a bore\nVerdict: bad\n\n"
        "Review: I loved it\nVerdict:"
    )


def test_examples_may_be_a_mapping_or_come_one_after_the_other() -> None:
    expected = few_shot(EXAMPLES, "x")
    assert few_shot((e for e in EXAMPLES), "x") == expected
    assert few_shot({"a": "b", "c": "d"}, "x") == few_shot([("a", "b"), ("c", "d")], "x")
    task = FewShot(scribbler(), (e for e in EXAMPLES))
    assert task.prompt("x") == task.prompt("x") == expected


def test_without_examples_the_prompt_is_the_query_alone() -> None:
    assert few_shot([], "why") == "Text: why\nAnswer:"


def test_the_label_is_the_best_of_the_ranked() -> None:
    model = scribbler()
    task = FewShot(model, EXAMPLES, labels=["good", "bad"])
    rows = rank(model, task.prompt("x"), [" good", " bad"])
    found = task("x")
    assert f" {found['label']}" == rows[0]["text"]
    assert found["score"] == found["scores"][found["label"]] == rows[0]["probability"]
    assert sum(found["scores"].values()) == pytest.approx(1)


def test_a_list_of_queries_gives_a_list() -> None:
    task = FewShot(scribbler(), EXAMPLES, labels=["good", "bad"])
    assert task(["x", "y"]) == [task("x"), task("y")]


def test_without_labels_a_text_of_one_line_comes_back() -> None:
    task = FewShot(scribbler(), EXAMPLES, max_tokens=12)
    assert isinstance(task("x"), str)
    assert "\n" not in task("x")


def test_a_real_model_learns_capitals_from_examples() -> None:
    examples = [("France", "Paris"), ("Japan", "Tokyo"), ("Italy", "Rome")]
    task = FewShot(smol(), examples, names=("Country", "Capital"), max_tokens=4)
    assert task("Germany") == "Berlin"
    assert FewShot(smol(), examples[:2], labels=["Paris", "Tokyo", "Madrid"])("Spain")["label"] == "Madrid"


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: few_shot(EXAMPLES, " "), "query"),
        (lambda: few_shot([("a", "b", "c")], "x"), "example 0"),
        (lambda: few_shot(["ab"], "x"), "example 0"),
        (lambda: few_shot(None, "x"), "examples must be a list of pairs"),  # type: ignore[arg-type]
        (lambda: few_shot(EXAMPLES, "x", names=("Text",)), "names must be two texts"),  # type: ignore[arg-type]
        (lambda: FewShot(scribbler(), EXAMPLES, labels=["good"]), "two different"),
        (lambda: FewShot(scribbler(), EXAMPLES, labels=["good", "poor"]), "'bad', which is not one of"),
    ],
)
def test_what_cannot_be_prompted_is_said_in_a_line(ask: object, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        ask()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
