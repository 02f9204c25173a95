"""Constrained decoding: whatever the model would rather say, the text has the form asked for."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
import tokenizers
import torch

import heedful
from heedful.core.errors import InputError, MissingPackage
from heedful.decode.constrain import Choices
from heedful.text.tokenizer import Tokenizer
from tests.decode.toy import speller
from tests.properties.tiny import tiny

WAYS: list[dict[str, Any]] = [{}, {"temperature": 1.5, "seed": 4, "n": 3}, {"beams": 3, "n": 2}]


def said(how: dict[str, Any], **form: Any) -> list[str]:
    found = heedful.generate(speller(), "Well: ", max_tokens=60, **form, **how)
    return [found] if isinstance(found, str) else found


@pytest.mark.parametrize("how", WAYS, ids=["greedy", "drawn", "beams"])
def test_a_choice_is_one_of_those_given(how: dict[str, Any]) -> None:
    choices = ["yes", "yes, please", "no", "ナ"]
    assert all(text in choices for text in said(how, choices=choices))


@pytest.mark.parametrize("how", WAYS, ids=["greedy", "drawn", "beams"])
@pytest.mark.parametrize("regex", [r"[ab]{2,4}-\d{3}", r"(ab){1,5}é?", r"[0-9]{1,3}(,[0-9]{1,3}){2}"])
def test_the_text_matches_the_expression(regex: str, how: dict[str, Any]) -> None:
    for text in said(how, regex=regex):
        assert re.fullmatch(regex, text), text


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99},
                   "kind": {"enum": ["cat", "dog"]}},
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["object", "text"])
def test_the_text_is_json_of_the_schema(schema: Any) -> None:
    text = heedful.generate(speller(), "x", max_tokens=200, temperature=0.7, seed=1, schema=schema)
    found = json.loads(text)
    assert list(found) == ["name", "age", "kind"]
    assert found["kind"] in ("cat", "dog")
    assert isinstance(found["age"], int)


def test_a_text_that_can_only_end_does_so_without_an_end_token() -> None:
    for form in ({"choices": ["no", "maybe"]}, {"regex": "no|maybe"}):
        found = heedful.generate(speller(), "x", max_tokens=60, eos=(), details=True, **form)
        assert found.finish == "end"
        assert found.text in ("no", "maybe")


def test_a_token_that_ends_one_choice_may_begin_the_rest_of_another() -> None:
    guide = Choices([[1, 2], [1, 2, 3]], 5, frozenset({0}))
    state = guide.next(guide.next(guide.start(), 1), 2)
    assert guide.allowed_tokens(state).tolist() == [True, False, False, True, False]
    assert guide.complete(guide.next(state, 3))
    assert guide.complete(guide.next(state, 0))


def test_choices_that_begin_each_other_need_an_end() -> None:
    with pytest.raises(InputError, match="begins another"):
        heedful.generate(speller(), "x", choices=["a", "ab"], eos=())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"choices": []}, "choices"),
    ({"choices": "yes"}, "choices"),
    ({"choices": ["a", ""]}, "empty text"),
    ({"regex": "(ab"}, "regex"),
    ({"schema": "{"}, "schema is no JSON"),
    ({"schema": {"type": "frog"}}, "schema cannot be followed"),
    ({"regex": "a", "choices": ["a"]}, "choices and regex"),
    ({"regex": "a", "lookup": 2}, "lookup"),
]


@pytest.mark.parametrize(("form", "said"), BAD, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_a_form_that_cannot_be_is_named(form: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        heedful.generate(speller(), "x", **form)


def test_pieces_with_a_mark_for_the_space_are_matched_too() -> None:
    model = tiny("t5", vocab=40)
    pieces = [(p, -1.0) for p in ["<pad>", "</s>", "<unk>", "▁", "▁yes", "no", "0", "1", "2", "-", "a", "b"]]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 2))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.decoder = tokenizers.decoders.Metaspace()
    model.tokenizer = Tokenizer(backend, {"eos": "</s>", "pad": "<pad>", "unk": "<unk>"})
    for how in WAYS:
        found = heedful.generate(model, "no", regex="[ab]{2}-[012]{1,3}", max_tokens=12, **how)
        for text in [found] if isinstance(found, str) else found:
            assert re.fullmatch("[ab]{2}-[012]{1,3}", text)


def test_forms_need_a_tokenizer() -> None:
    with pytest.raises(InputError, match="no tokenizer"):
        heedful.generate(tiny("gpt2"), [5], regex="a")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingPackage, match=r"heedful\[constrain\]"):
        heedful.generate(speller(), "x", regex="a")


def test_a_choice_keeps_the_probabilities_of_what_is_left() -> None:
    """Over first tokens: the draw is the model's own distribution, restricted."""
    model, choices = speller(), ["a", "b", "c"]
    ids = [model.tokenizer.encode(c)[0] for c in choices]
    prompt = model.tokenizer.encode("q")
    with torch.no_grad():
        chances = model(torch.tensor([prompt]))[0, -1, ids].softmax(-1)
    drawn = heedful.generate(model, "q", choices=choices, temperature=1.0, n=2000, seed=0)
    counted = torch.tensor([drawn.count(c) for c in choices])
    assert float(((counted - 2000 * chances) ** 2 / (2000 * chances)).sum()) < 13.8  # one in a thousand
