"""Lines that learners paste: the calls of Hugging Face's course on pipelines give the shapes it shows."""

from __future__ import annotations

from typing import Any

import pytest

from heedful import pipeline

WORK = "My name is Sylvain and I work at Hugging Face in Brooklyn"


def is_probability(value: Any) -> bool:
    return isinstance(value, float) and 0 <= value <= 1


def test_sentiment_of_one_text_and_of_several() -> None:
    classifier = pipeline("sentiment-analysis")
    text = "I've been waiting for a HuggingFace course my whole life."
    one = classifier(text)
    assert [set(row) for row in one] == [{"label", "score"}]
    two = classifier([text, "I hate this so much!"])
    assert [row["label"] for row in two] == ["POSITIVE", "NEGATIVE"]
    assert all(is_probability(row["score"]) for row in two)


def test_labels_of_ones_own() -> None:
    classifier = pipeline("zero-shot-classification")
    labels = ["education", "politics", "business"]
    found = classifier("This is a course about the Transformers library", candidate_labels=labels)
    assert list(found) == ["sequence", "labels", "scores"]
    assert sorted(found["labels"]) == sorted(labels)
    assert found["labels"][0] == "education"
    assert found["scores"] == sorted(found["scores"], reverse=True)
    assert sum(found["scores"]) == pytest.approx(1)


def test_a_text_continued_in_two_ways() -> None:
    generator = pipeline("text-generation")
    prompt = "In this course, we will teach you how to"
    found = generator(prompt, max_length=14, num_return_sequences=2)
    assert [set(row) for row in found] == [{"generated_text"}] * 2
    assert all(row["generated_text"].startswith(prompt) for row in found)
    assert len(generator.tokenizer.encode(found[0]["generated_text"], special=False)) <= 14


@pytest.mark.parametrize("mask", ["<mask>", "[MASK]", "___"])
def test_the_two_likeliest_words_for_a_mask(mask: str) -> None:
    unmasker = pipeline("fill-mask")
    found = unmasker(f"This course will teach you all about {mask} models.", top_k=2)
    assert [set(row) for row in found] == [{"score", "token", "token_str", "sequence"}] * 2
    assert all(row["token_str"] in row["sequence"] for row in found)
    assert found[0]["score"] >= found[1]["score"]


@pytest.mark.parametrize("option", [{"grouped_entities": True}, {"aggregation_strategy": "simple"}])
def test_names_as_whole_words_of_the_text(option: dict[str, Any]) -> None:
    ner = pipeline("ner", **option)
    for text in (f"{WORK}.", "Satya Nadella was born in Hyderabad and leads Microsoft."):
        found = ner(text)
        assert [list(row) for row in found] == [["entity_group", "score", "word", "start", "end"]] * len(
            found
        )
        assert len(found) >= 2
        for row in found:
            assert text[row["start"] : row["end"]] == row["word"]
            assert set(row["word"].split()) <= set(text.replace(".", " ").split())


def test_an_answer_in_a_text() -> None:
    question_answerer = pipeline("question-answering")
    found = question_answerer(question="Where do I work?", context=WORK)
    assert list(found) == ["score", "start", "end", "answer"]
    assert WORK[found["start"] : found["end"]] == found["answer"] == "Hugging Face"
    assert is_probability(found["score"])


def test_a_summary() -> None:
    summarizer = pipeline("summarization")
    found = summarizer(
        "The old bridge over the river was closed in March. Engineers had found cracks in two of its piers. "
        "The town will build a new one beside it, which is to open in three years and will carry trams.",
        max_length=24,
    )
    assert [set(row) for row in found] == [{"summary_text"}]
    assert found[0]["summary_text"].strip()


def test_a_translation() -> None:
    translator = pipeline("translation_en_to_fr")
    found = translator("This course is free.")
    assert [set(row) for row in found] == [{"translation_text"}]
    assert found[0]["translation_text"].strip()
