"""Texts gone on with and conversations answered, in transformers' shapes."""

from __future__ import annotations

from typing import Any

import pytest

import heedful
from heedful.core.errors import InputError
from heedful.tasks import Truncated, pipeline
from heedful.tasks.pipelines.text_generation import Conversation
from tests.decode.toy import letters
from tests.properties.tiny import tiny
from tests.tasks.real import scribbler, smol


def writer() -> Any:
    return pipeline("text-generation", scribbler())


CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def talker(task: str = "conversational") -> Any:
    model = tiny("llama", vocab=260, context=512)
    model.tokenizer = letters()
    model.tokenizer.chat_template = CHAT
    return pipeline(task, model)


def test_a_text_is_given_back_with_what_follows_it() -> None:
    plain = heedful.generate(scribbler(), "abc", max_tokens=6)
    assert writer()("abc", max_new_tokens=6) == [{"generated_text": "abc" + plain}]
    assert writer()("abc", max_new_tokens=6, return_full_text=False) == [{"generated_text": plain}]


def test_a_list_gives_a_list_of_lists_and_a_generator_a_generator() -> None:
    write = writer()
    one = write("abc", max_new_tokens=4)
    assert write(["abc", "x"], max_new_tokens=4)[0] == one
    assert next(write((t for t in ["abc", "x"]), max_new_tokens=4)) == one


def test_several_samples_differ_and_follow_from_the_seed() -> None:
    ask = dict(num_return_sequences=3, do_sample=True, seed=1, max_new_tokens=8)
    found = writer()("abc", **ask)
    assert len({row["generated_text"] for row in found}) == 3
    assert found == writer()("abc", **ask)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"do_sample": True, "temperature": 0.7, "seed": 3}, {"temperature": 0.7, "top_k": 50, "seed": 3}),
        ({"top_p": 0.5, "top_k": 0, "seed": 3}, {"temperature": 1.0, "top_p": 0.5, "seed": 3}),
        ({"do_sample": False, "temperature": 0.7}, {}),
        ({"num_beams": 3, "length_penalty": 0.5}, {"beams": 3, "length_penalty": 0.5}),
        ({"repetition_penalty": 1.7}, {"repetition": 1.7}),
        ({"no_repeat_ngram_size": 1}, {"no_repeat": 1}),
        ({"penalty_alpha": 0.6, "top_k": 4}, {"contrastive": 0.6, "top_k": 4}),
    ],
)
def test_options_of_transformers_mean_what_ours_mean(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    found = writer()("abc", return_full_text=False, max_new_tokens=8, **theirs)
    assert found == [{"generated_text": heedful.generate(scribbler(), "abc", max_tokens=8, **ours)}]


def test_several_texts_are_drawn_so_that_they_differ() -> None:
    found = writer()("abc", num_return_sequences=4, max_length=20, seed=3)
    assert len({row["generated_text"] for row in found}) > 1
    assert len(writer()("abc", num_return_sequences=2, num_beams=2, max_new_tokens=4)) == 2


def test_what_older_code_says_beside_changes_nothing() -> None:
    expected = writer()("abc", max_new_tokens=4)
    assert writer()("abc", max_new_tokens=4, return_text=True, prefix=None, tokenizer=letters()) == expected
    assert writer()("abc", max_new_tokens=4, return_dict_in_generate=False, batch_size=None) == expected
    assert "generated_token_ids" in writer()("abc", max_new_tokens=4, return_text=False)[0]


def test_max_length_counts_the_prompt_of_every_row() -> None:
    found = writer()(["abc", "abcdefg", "xyz"], max_length=10, return_tensors=True, eos_token_id=[])
    assert [len(row[0]["generated_token_ids"]) for row in found] == [10, 10, 10]


def test_a_text_does_not_end_before_its_least_length() -> None:
    model = scribbler()
    first = heedful.generate(model, [1, 2, 3], max_tokens=1, eos=[])[0]
    ends = {"eos_token_id": [first], "max_new_tokens": 9, "return_tensors": True}
    write = pipeline("text-generation", model)
    prompt = model.tokenizer.decode([1, 2, 3])
    assert len(write(prompt, **ends)[0]["generated_token_ids"]) == 3
    for least in ({"min_new_tokens": 5}, {"min_length": 8}, {"min_new_tokens": 5, "num_beams": 2}):
        assert len(write(prompt, **ends, **least)[0]["generated_token_ids"]) >= 8


def test_a_stop_string_ends_a_text_and_is_not_shown() -> None:
    full = writer()("abc", max_new_tokens=20, return_full_text=False)[0]["generated_text"]
    mark = full[6:8]
    for option in ({"stop": [mark]}, {"stop_sequence": mark}, {"stop_strings": mark}):
        found = writer()("abc", max_new_tokens=20, return_full_text=False, **option)
        assert found[0]["generated_text"] == full[: full.index(mark)]


def test_a_prompt_beyond_the_context_is_cut_only_if_asked() -> None:
    ids = {"return_tensors": True}
    with pytest.raises(InputError, match="nothing was cut"):
        writer()("a" * 600, max_new_tokens=1)
    with pytest.warns(Truncated, match="91 of 600"):
        cut = writer()("b" * 91 + "a" * 509, max_new_tokens=4, handle_long_generation="hole", **ids)
    assert (
        cut[0]["generated_token_ids"]
        == writer()("a" * 509, max_new_tokens=4, **ids)[0]["generated_token_ids"]
    )
    with pytest.raises(InputError, match="leaves no room"):
        writer()("a" * 600, max_new_tokens=900, handle_long_generation="hole")


def test_messages_give_messages() -> None:
    messages = [{"role": "user", "content": "hi"}]
    write = talker("text-generation")
    found = write(messages, max_new_tokens=3)[0]["generated_text"]
    assert found[:1] == messages
    assert found[1]["role"] == "assistant"
    alone = write(messages, max_new_tokens=3, return_full_text=False)
    assert alone == [{"generated_text": found[1]["content"]}]
    assert alone[0]["generated_text"] == heedful.generate(write.model, "<user>hi\n<assistant>", max_tokens=3)
    several = write([messages, messages], max_new_tokens=3)
    assert [row[0]["generated_text"] for row in several] == [found, found]


def test_an_answer_that_was_begun_is_gone_on_with() -> None:
    write = talker("text-generation")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ab"}]
    found = write(messages, max_new_tokens=3)[0]["generated_text"]
    more = heedful.generate(write.model, "<user>hi\n<assistant>ab", max_tokens=3)
    assert found == [messages[0], {"role": "assistant", "content": "ab" + more}]


def test_an_answer_is_appended_to_a_conversation() -> None:
    talk = talker()
    said = Conversation("hello")
    assert talk(said, max_new_tokens=3) is said
    said.add_user_input("and you?")
    talk([said], max_new_tokens=3)
    assert [m["role"] for m in said.messages] == ["user", "assistant", "user", "assistant"]
    assert said.past_user_inputs == ["hello", "and you?"]
    messages = [{"role": "user", "content": "hello"}]
    assert talk(messages, max_new_tokens=3) == said.messages[:2]
    assert len(messages) == 1


def test_a_conversation_has_what_it_had_in_transformers_4() -> None:
    said = Conversation("How?", past_user_inputs=["Hi"], generated_responses=["Hello"])
    assert said.messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "How?"},
    ]
    assert said == Conversation(said.messages)
    assert Conversation(text="Hi") == Conversation("Hi") == Conversation([{"role": "user", "content": "Hi"}])
    said.add_user_input("Why?", overwrite=True)
    assert [m["content"] for m in said] == ["Hi", "Hello", "Why?"]
    with pytest.raises(InputError, match="the content of message 0 must be a text"):
        said.add_user_input(3)  # type: ignore[arg-type]


def test_messages_come_back_as_a_conversation() -> None:
    talk = talker()
    options = {"max_new_tokens": 3, "minimum_tokens": 10, "min_length_for_response": 3}
    found = talk([{"role": "user", "content": "hello"}], **options)
    assert found.messages[-1]["content"] == found.generated_responses[-1]
    assert talk([Conversation("hello")], **options) == found
    assert talk(["hello", "hello"], **options) == [found, found]


def test_a_real_model_knows_the_capital_of_france() -> None:
    talk = pipeline("conversational", smol())
    found = talk([{"role": "user", "content": "What is the capital of France?"}], max_new_tokens=12)
    assert "Paris" in found[-1]["content"]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: writer()("a", max_tokens=4), "no option 'max_tokens'"),
        (lambda: writer()("a", max_length=1), "max_length=1 counts the 1 tokens"),
        (lambda: writer()("a", num_beams=2, do_sample=True), "leave one of them out"),
        (lambda: writer()("a", num_beams=0), "num_beams=0"),
        (lambda: writer()("a", return_text=True, return_full_text=True), "exclude each other; give one"),
        (lambda: writer()("a", return_tensors=True, return_full_text=True), "exclude each other"),
        (lambda: writer()("a", return_tensors=True, return_text=True), "exclude each other"),
        (lambda: writer()("a", num_return_sequences=2, do_sample=False), "the same text each time"),
        (lambda: writer()("a", max_new_tokens=0), "max_new_tokens=0 allows no output"),
        (lambda: writer()(), "takes text_inputs, .*missing"),
        (lambda: writer()(["a", 3]), "list of messages"),
        (lambda: writer()("a", handle_long_generation="no"), "'hole'"),
        (lambda: writer()([{"role": "user", "content": "a"}]), "chat template"),
        (lambda: talker()([{"role": "user"}]), "message 0"),
        (lambda: talker()([{"role": "assistant", "content": "a"}]), "add the next message of the user"),
        (lambda: pipeline("conversational", scribbler())("hi"), "chat template"),
        (lambda: pipeline("text-generation", tiny("bert")), "needs a decoder"),
        (lambda: pipeline("text-generation", tiny("transformer")), "needs a decoder"),
    ],
)
def test_what_cannot_be_written_is_said_in_a_line(ask: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        ask()
    assert "\n" not in str(caught.value)


def test_a_pipeline_speaks_through_the_tokenizer_it_is_given() -> None:
    model = tiny("llama", vocab=260, context=512)
    found = pipeline("text-generation", model, tokenizer=letters())("abc", max_new_tokens=4)
    assert found == writer()("abc", max_new_tokens=4)
    assert model.tokenizer is None
