"""The answers that are scored are those that the pipeline gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.tasks.evaluate import evaluate
from heedful.tasks.finetune.request import EvaluationRequest
from tests.tasks.pipelines.test_question_answering import qa, reader

CONTEXTS = [
    "The cats lives in Paris.  A dog sat on the red house in Berlin.",
    "A blue cat sat on the house. The dog lives in a red house in Paris. " * 3,
    "the dogsing lives in Berlin",
]
QUESTIONS = ["where is the cat?", "who lives in Paris?", "where is the red dog?"]


def squad_file(path: Path, answers: list[dict[str, Any]]) -> str:
    pairs = [(q, c) for q in QUESTIONS for c in CONTEXTS]
    paragraphs = []
    for i, ((question, context), found) in enumerate(zip(pairs, answers, strict=True)):
        spans = [{"text": found["answer"], "answer_start": found["start"]}] if found["answer"] else []
        row = {"id": str(i), "question": question, "answers": spans, "is_impossible": not spans}
        paragraphs.append({"context": context, "qas": [row]})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return str(path)


@pytest.mark.parametrize("impossible", [False, True])
def test_the_evaluated_answer_is_the_pipelines_answer(impossible: bool, tmp_path: Path) -> None:
    window = {"max_seq_len": 24, "doc_stride": 4, "max_question_len": 8, "max_answer_len": 30}
    rows = [{"question": q, "context": c} for q in QUESTIONS for c in CONTEXTS]
    answers = qa()(rows, handle_impossible_answer=impossible, **window)
    if impossible:
        answers[0] = {"answer": "", "start": 0}  # at least one question without an answer
    file = squad_file(tmp_path / "questions.json", answers)
    request = EvaluationRequest([file], batch=2, length=24, options={"stride": 4, "question": 8})
    scores = evaluate(reader(), "answer", request)
    right = len(rows) - (
        impossible and qa()(rows[:1], handle_impossible_answer=True, **window)["answer"] != ""
    )
    assert scores["questions"] == len(rows)
    assert scores["exact_match"] == pytest.approx(100 * right / len(rows))


@pytest.mark.parametrize("impossible", [False, True])
def test_predicted_answers_are_found_as_measured_ones(
    impossible: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A model that learnt that some questions have no answer may say so of a table, too.
    monkeypatch.setitem(reader().hf_config, "unanswerable_questions", impossible)
    rows = [{"question": q, "context": c} for q in QUESTIONS for c in CONTEXTS]
    found = heedful.predict(reader(), rows, task="answer")
    assert isinstance(found, list)
    expected = qa()(rows, max_answer_len=30, handle_impossible_answer=impossible)
    assert [row["answer"] for row in found] == [row["answer"] for row in expected]
    assert any(len(row["answer"].split()) > 15 for row in found) or impossible


def test_where_every_question_has_an_answer_one_is_always_given(tmp_path: Path) -> None:
    rows = [{"question": q, "context": c} for q in QUESTIONS for c in CONTEXTS]
    file = squad_file(tmp_path / "questions.json", qa()(rows, max_answer_len=30))
    assert evaluate(reader(), "answer", EvaluationRequest([file]))["exact_match"] == 100
