"""What cannot be asked for is refused in one clear line, before anything is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.core.errors import InputError
from heedful.models.base import Model
from tests.decode.toy import speller
from tests.properties.tiny import ENCODERS, source_ids, tiny


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny("gpt2")


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens=0"),
    ({"temperature": -1.0}, "temperature=-1.0"),
    ({"top_p": 0.0}, "top_p=0.0"),
    ({"top_k": 0}, "top_k=0"),
    ({"n": 0}, "n=0"),
    ({"n": 3, "temperature": 0}, "the same text 3 times"),
    ({"bias": {500: 1.0}}, "token 500"),
    ({"eos": 500}, "token 500"),
    ({"logprobs": -1}, "logprobs=-1"),
    ({"logprobs": 999}, "logprobs=999"),
    ({"stop": "x"}, "no tokenizer"),
    ({"temprature": 1.0}, "did you mean 'temperature'"),
    ({"beams": 0}, "beams=0"),
    ({"beams": 4, "temperature": 0.8}, "beams searches and never draws"),
    ({"beams": 4, "top_p": 0.8}, "beams searches and never draws"),
    ({"beams": 2, "n": 3}, "n=3"),
    ({"beams": 2, "stop": "x"}, "beams does not go with stop"),
    ({"beams": 2, "lookup": 2}, "beams does not go with lookup"),
    ({"beams": 4, "groups": 3, "diversity": 1.0}, "groups=3"),
    ({"beams": 4, "groups": 2}, "diversity"),
    ({"beams": 4, "diversity": 1.0}, "groups=2 or more"),
    ({"beams": 4, "early_stopping": "always"}, "early_stopping='always'"),
    ({"beams": 4, "coverage": 1.0}, "encoder-decoder"),
    ({"beams": 4, "coverage": -1.0}, "coverage=-1.0"),
    ({"beams": 4, "length_penalty": float("nan")}, "length_penalty=nan"),
    ({"length_penalty": 2.0}, "need beams"),
    ({"early_stopping": True}, "need beams"),
    ({"contrastive": 2.0}, "contrastive=2.0"),
    ({"contrastive": 0.6, "beams": 4}, "two ways to search"),
    ({"contrastive": 0.6, "temperature": 1.0}, "contrastive searches"),
    ({"contrastive": 0.6, "n": 2}, "n=2"),
    ({"lookup": 0}, "lookup=0"),
    ({"lookup": 2, "propose": 0}, "propose=0"),
    ({"max_tokens": 2.5}, "max_tokens=2.5 must be a whole number"),
    ({"max_tokens": "3"}, "max_tokens='3' must be a whole number"),
    ({"temperature": "hot"}, "temperature='hot' must be a number"),
    ({"seed": 1.5}, "seed=1.5 must be a whole number"),
    ({"n": 2.5}, "n=2.5 must be a whole number"),
    ({"beams": 2.5}, "beams=2.5 must be a whole number"),
    ({"bias": [1]}, "must be a mapping"),
    ({"eos": "x"}, "eos names the token 'x'"),
    ({"draft": "smollm2"}, "'smollm2' is not a model; heedful.load"),
]


@pytest.mark.parametrize(("how", "said"), SETTINGS, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_a_setting_that_cannot_be_is_named(model: Model, how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        heedful.generate(model, [5, 6], **how)
    assert "\n" not in str(error.value)


PROMPTS: list[tuple[Any, str]] = [
    ([], "the prompt is empty"),
    ([[5, 6], []], "the prompt is empty"),
    (torch.zeros(0, dtype=torch.long), "the prompt is empty"),
    ([5, 900], "the id 900"),
    ([-1], "the id -1"),
    ("text", "no tokenizer"),
    ([[5], "a"], "all texts or all lists"),
    (torch.zeros(2), r"\(2,\) of torch.float32"),
    (torch.zeros(1, 1, 1, dtype=torch.long), r"\(1, 1, 1\)"),
]


@pytest.mark.parametrize(("prompt", "said"), PROMPTS, ids=[said for _, said in PROMPTS])
def test_a_prompt_that_cannot_be_read_is_named(model: Model, prompt: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        heedful.generate(model, prompt, max_tokens=2)


@pytest.mark.parametrize("family", ["gpt2", "llama", "bart"])
def test_a_prompt_longer_than_the_context_is_refused_not_cut(family: str) -> None:
    long = tiny(family)
    with pytest.raises(InputError, match="65 tokens, the model's context is 64.*nothing was cut"):
        heedful.generate(long, source_ids(long, 1, 65)[0])


def test_a_prompt_as_long_as_the_context_leaves_room_for_one_token(model: Model) -> None:
    found = heedful.generate(model, source_ids(model, 1, 64)[0], eos=(), details=True)
    assert (len(found.ids), found.finish) == (1, "context")


def test_recurrent_models_have_no_longest_prompt() -> None:
    endless = tiny("gru")
    assert len(heedful.generate(endless, source_ids(endless, 1, 300)[0], max_tokens=3, eos=())) == 3


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_asked_to_generate_says_what_to_load(family: str) -> None:
    with pytest.raises(InputError, match="cannot generate; take a decoder"):
        heedful.generate(tiny(family), [5, 6])


def test_a_decoder_that_classifies_says_so() -> None:
    with pytest.raises(InputError, match="head 'classify'"):
        heedful.generate(tiny("gpt2", head="classify"), [5, 6])


def test_an_empty_text_needs_a_token_to_begin_with() -> None:
    with pytest.raises(InputError, match="the prompt is empty"):
        heedful.generate(speller(), "")


def test_errors_come_before_the_first_piece(model: Model) -> None:
    with pytest.raises(InputError):
        heedful.stream(model, [5], max_tokens=0)


@pytest.mark.parametrize(
    ("draft", "said"),
    [({"vocab": 64}, "share them"), ("t5", "both be decoders"), ("bert", "cannot generate")],
    ids=["other vocabulary", "other kind", "encoder"],
)
def test_a_draft_that_cannot_propose_is_named(model: Model, draft: Any, said: str) -> None:
    smaller = tiny(draft) if isinstance(draft, str) else tiny("gpt2", **draft)
    with pytest.raises(InputError, match=said):
        heedful.generate(model, [5, 6], draft=smaller)


@pytest.mark.parametrize("stop", ["", ["a", ""], [3]])
def test_a_stop_string_must_be_text(stop: Any) -> None:
    with pytest.raises(InputError, match="stop="):
        heedful.generate(speller(), "a", stop=stop)


def test_draft_and_lookup_are_one_or_the_other(model: Model) -> None:
    with pytest.raises(InputError, match="give one of them"):
        heedful.generate(model, [5], draft=model, lookup=2)


@pytest.mark.parametrize("prompt", [None, 5, b"abc", {1: 2}, [True], [["a"]], [1.5]], ids=repr)
def test_what_is_no_prompt_is_refused(model: Model, prompt: Any) -> None:
    with pytest.raises(InputError, match="text"):
        heedful.generate(model, prompt, max_tokens=1)


def test_ids_may_come_from_numpy(model: Model) -> None:
    ids = [3, 4, 5]
    assert heedful.generate(model, np.array(ids), max_tokens=2) == heedful.generate(model, ids, max_tokens=2)


def test_a_models_name_in_its_place_is_refused() -> None:
    with pytest.raises(InputError, match=r"'gpt2' is not a model; heedful\.load"):
        heedful.generate("gpt2", "Once")  # type: ignore[arg-type]


def test_half_a_character_in_a_prompt_is_refused() -> None:
    with pytest.raises(InputError, match="half a character"):
        heedful.generate(speller(), "a\ud800", max_tokens=1)


WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"beams": 2},
    {"contrastive": 0.5},
    {"lookup": 1},
]


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_rules_that_leave_no_token_are_an_error_and_not_a_forbidden_token(
    model: Model, how: dict[str, Any]
) -> None:
    every = {token: float("-inf") for token in range(model.config.vocab)}
    with pytest.raises(InputError, match="loosen one"):
        heedful.generate(model, [3, 4], bias=every, max_tokens=2, **how)


@pytest.mark.parametrize("how", [{"temperature": 1.0}, {"repetition": 1.1}], ids=str)
def test_asking_for_more_than_memory_could_hold_ends_with_the_context(how: dict[str, Any]) -> None:
    found = heedful.generate(tiny("gpt2", context=16), [3, 4], max_tokens=10**12, eos=(), details=True, **how)
    assert found.finish == "context"


def test_a_model_without_a_context_makes_no_room_for_all_that_might_be_written() -> None:
    endless = heedful.stream(tiny("t5"), [3, 4], max_tokens=10**12, eos=())
    assert len([next(endless) for _ in range(3)]) == 3
