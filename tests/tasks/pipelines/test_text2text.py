"""Translations, summaries and texts for texts, in transformers' shapes."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import heedful
from heedful.core.errors import InputError
from heedful.models.base import Model
from heedful.tasks import Truncated, pipeline
from heedful.tasks.generation import clean_text
from heedful.tasks.pipelines.text2text import split_into_sentences
from tests.decode.toy import letters
from tests.properties.tiny import tiny
from tests.tasks.real import scribbler, smol


@functools.cache
def translator() -> Model:
    model = tiny("transformer", vocab=260)
    model.tokenizer = letters()
    model.hf_config["languages"] = ["en", "de"]
    return model


def by_beams(text: str, **settings: Any) -> str:
    """What the model writes for a text with its end, as it was trained."""
    model = translator()
    ids = [*model.tokenizer.encode(text), model.tokenizer.eos]
    return heedful.generate(model, ids, beams=4, details=True, **settings).text.strip()


def test_a_sentence_is_translated_by_a_search() -> None:
    translate = pipeline("translation", translator())
    found = translate("a cat", max_new_tokens=9)
    assert found == [{"translation_text": by_beams("a cat", max_tokens=9)}]


def test_sentences_are_translated_one_by_one_and_their_gaps_kept() -> None:
    translate = pipeline("translation_en_to_de", translator())
    one, two, three = (by_beams(s, max_tokens=5) for s in ("A cat.", "A dog!", "No."))
    found = translate("A cat. A dog!\n\nNo.", max_new_tokens=5)
    assert found == [{"translation_text": f"{one} {two}\n\n{three}"}]
    whole = translate("A cat. A dog!\n\nNo.", max_new_tokens=5, split_sentences=False)
    assert whole == [{"translation_text": by_beams("A cat. A dog!\n\nNo.", max_tokens=5)}]


def test_a_list_gives_a_row_each_and_several_sequences_a_list_each() -> None:
    translate = pipeline("translation", translator(), max_new_tokens=4)
    one, two = translate("ab")[0], translate("cd")[0]
    assert translate(["ab", "cd"]) == [one, two]
    assert list(translate(t for t in ["ab", "cd"])) == [[one], [two]]  # only of a list, as in transformers
    several = translate(["ab", "cd"], num_return_sequences=2)
    assert [rows[0] for rows in several] == [one, two]
    assert [len(rows) for rows in several] == [2, 2]


def test_max_length_of_an_encoder_decoder_counts_the_start_token() -> None:
    write = pipeline("text2text-generation", translator())
    found = write("ab", max_length=6, min_length=6, return_tensors=True)
    assert len(found[0]["generated_token_ids"]) == 5


def test_another_direction_is_refused() -> None:
    with pytest.raises(InputError, match="from en to de; en to fr"):
        pipeline("translation_en_to_fr", translator())("a")
    with pytest.raises(InputError, match="from en to de"):
        pipeline("translation", translator())("a", src_lang="fr", tgt_lang="en")
    assert pipeline("translation", translator())("a", src_lang="en", tgt_lang="de_DE", max_new_tokens=2)


def test_a_model_of_many_tasks_reads_the_prefix_of_this_one() -> None:
    model = tiny("t5", vocab=260)
    model.tokenizer = letters()
    model.hf_config["task_specific_params"] = {
        "translation_en_to_fr": {"prefix": "fr: "},
        "summarization": {"prefix": "sum: "},
    }
    for task, prefix, key in (
        ("translation_en_to_fr", "fr: ", "translation_text"),
        ("summarization", "sum: ", "summary_text"),
    ):
        found = pipeline(task, model)("abc", max_new_tokens=5, num_beams=1)[0][key]
        ids = [*model.tokenizer.encode(prefix + "abc"), model.tokenizer.eos]
        assert found == heedful.generate(model, ids, max_tokens=5, details=True).text.strip()


def test_published_settings_of_generation_hold_unless_the_caller_says_otherwise() -> None:
    model = tiny("transformer", vocab=260, seed=4)
    model.tokenizer = letters()
    model.generation = {"max_length": 4, "num_beams": 1, "eos_token_id": []}
    write = pipeline("text2text-generation", model)
    length = lambda **options: len(write("ab", return_tensors=True, **options)[0]["generated_token_ids"])
    assert (length(), length(max_new_tokens=7), length(max_length=6)) == (3, 7, 5)


def test_a_decoder_summarises_by_the_prompt_it_was_trained_with() -> None:
    model = tiny("llama", vocab=260, context=512)
    model.tokenizer = letters()
    bare = pipeline("summarization", model)("a {b}", max_new_tokens=5)[0]["summary_text"]
    assert bare == heedful.generate(model, "a {b}\nTL;DR:", max_tokens=5).strip()
    model.hf_config["task_prompt"] = "Sum up:\n{text}\n=>"
    found = pipeline("summarization", model)("a {b}", max_new_tokens=5)[0]["summary_text"]
    assert found == heedful.generate(model, "Sum up:\na {b}\n=>", max_tokens=5).strip()


def test_max_length_of_a_summary_counts_no_prompt() -> None:
    model = tiny("llama", vocab=260, context=512)
    model.tokenizer = letters()
    summarize = pipeline("summarization", model, eos_token_id=[], return_tensors=True)
    both, neither = {"max_length": 3, "max_new_tokens": 7}, {"max_length": 7, "max_new_tokens": None}
    for lengths in ({"max_length": 7}, {"max_length": 7, "min_length": 7}, both, neither):
        found = summarize("a cat " * 20, do_sample=False, **lengths)
        assert len(found[0]["summary_token_ids"]) == 7


def test_a_decoder_reads_the_beginning_of_a_text_beyond_its_context_if_asked() -> None:
    model = tiny("llama", vocab=260, context=64)
    model.tokenizer = letters()
    model.hf_config["task_prompt"] = "Sum up:\n{text}\n=>"
    summarize = pipeline("summarization", model)
    text = "".join(chr(97 + i % 26) for i in range(200))
    with pytest.raises(InputError, match=r"input 0 has 211 tokens, .* is 64, .* pass truncation=True"):
        summarize(text, max_new_tokens=5)
    with pytest.warns(Truncated, match="cut off: 151 of 200 tokens"):
        found = summarize(text, max_new_tokens=5, truncation=True)
    assert found == summarize(text[:49], max_new_tokens=5)
    with pytest.raises(InputError, match="max_new_tokens=60 leaves no room"):
        summarize(text, max_new_tokens=60, truncation=True)


def test_a_real_model_is_asked_in_its_conversation() -> None:
    found = pipeline("text2text-generation", smol())("Say the word: hello", max_new_tokens=8)
    assert "hello" in found[0]["generated_text"].lower()


def test_a_source_beyond_the_context_is_cut_only_if_asked() -> None:
    model = tiny("bart", vocab=260, context=16)
    model.tokenizer = letters()
    write = pipeline("summarization", model)
    with pytest.raises(InputError, match="nothing was cut"):
        write("a" * 30)
    with pytest.warns(Truncated, match="15 of 31"):
        write("a" * 30, truncation=True, max_new_tokens=3)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("One. Two?", ["One.", "Two?"]),
        ("Dr. Smith met J. Doe. They left.", ["Dr. Smith met J. Doe.", "They left."]),
        ("It costs 3.5 dollars e.g. here. \n\nYes", ["It costs 3.5 dollars e.g. here.", "Yes"]),
        ("„Gut.“ Dann ging er.", ["„Gut.“", "Dann ging er."]),
        ("猫です。犬です。", ["猫です。", "犬です。"]),
        ("no end", ["no end"]),
        ("  Wait... what? ÉTÉ!\n", ["  Wait... what?", "ÉTÉ!"]),
    ],
)
def test_sentences_and_gaps_make_the_text_again(text: str, cut: list[str]) -> None:
    found = split_into_sentences(text)
    assert [sentence for sentence, _ in found] == cut
    assert "".join(sentence + gap for sentence, gap in found) == text


def test_clean_text_has_no_space_before_its_points() -> None:
    assert clean_text(" I do n't know , it 's late . ", True) == "I don't know, it's late."
    assert clean_text(" a , b ", None) == "a , b"


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: pipeline("translation", translator())("  "), "not empty"),
        (lambda: pipeline("translation", translator())(3), "must be a str"),
        (
            lambda: pipeline("translation", translator())("a", return_tensors=True, return_text=True),
            "exclude",
        ),
        (
            lambda: pipeline("summarization", translator())("a", return_tensors=False, return_text=False),
            "exclude",
        ),
        (lambda: pipeline("translation", translator())(["a", None]), "not empty"),
        (lambda: pipeline("summarization", translator())("a", max_token=3), "no option 'max_token'"),
        (lambda: pipeline("translation", scribbler()), "needs an encoder-decoder"),
        (lambda: pipeline("translation", translator())("a", truncation="yes"), "truncation='yes' is unknown"),
        (lambda: pipeline("summarization", tiny("bert")), "needs a model that writes"),
    ],
)
def test_what_cannot_be_written_is_said_in_a_line(ask: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        ask()
    assert "\n" not in str(caught.value)
