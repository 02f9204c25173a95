"""Of everyday inputs a known share is answered as a person would; the wrong answers are printed."""

from __future__ import annotations

import pytest

from heedful.weights.hub import installed_models
from tests.everyday.judging import TASKS, describe, false_statements, read_table

# How many are right now. The goals stand in judging.py; a number here is raised when a model gets better.
REACHED = {
    "sentiment": 42, "questions": 41, "entities": 43, "zero-shot": 42, "translation-de": 44,
    "translation-fr": 45, "fill-mask": 33, "similarity": 35, "summaries": 32,
}  # fmt: skip
BASES = {"translation-de": None, "translation-fr": None, "summaries": "smollm2-135m-instruct"}


@pytest.mark.parametrize(
    "task", [pytest.param(name, marks=pytest.mark.slow if name == "summaries" else ()) for name in TASKS]
)
def test_the_share_of_right_answers_does_not_fall(task: str) -> None:
    base = BASES.get(task, "all-minilm-l6-v2")
    if base is not None and base not in installed_models():
        pytest.skip(f"{base} is not installed")
    judge, goal = TASKS[task]
    judgements = judge()
    print(f"{task}, goal {goal:.0%}: {describe(judgements)}")
    assert len(judgements) >= 40
    assert sum(one.right for one in judgements) >= REACHED[task], describe(judgements)


def test_a_summary_is_held_to_the_numbers_and_names_of_its_text() -> None:
    text = "Mrs. Green lost eighty pounds in York."
    assert not false_statements(text, "In York she lost 80 pounds.", ["Green found"])
    assert false_statements(text, "In Leeds she lost 80 pounds.", []) == ["Leeds"]
    assert false_statements(text, "She lost 90 pounds.", []) == ["90"]
    assert false_statements(text, "Mrs. Green found money.", ["Green found"]) == ["Green found"]


def test_lists_have_no_input_twice() -> None:
    for name in (
        "sentiment",
        "entities",
        "zero_shot",
        "translation_de",
        "translation_fr",
        "fill_mask",
        "summaries",
    ):
        texts = [row["text"] for row in read_table(name)]
        assert len(set(texts)) == len(texts), name
