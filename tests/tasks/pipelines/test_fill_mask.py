"""Hidden words, and whether a sentence follows."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import heedful
from heedful import pipeline
from heedful.core.errors import InputError
from heedful.tasks import Truncated
from tests.tasks.conftest import Tiny


@pytest.fixture(params=["mlm", "pretrain"])
def fill(tiny: Tiny, request: pytest.FixtureRequest) -> Any:
    return pipeline("fill-mask", model=tiny(request.param))


def test_the_scores_are_those_of_the_masked_place(fill: Any) -> None:
    ids = fill.tokenizer.encode("the [MASK] sat")
    at = ids.index(fill.tokenizer.mask)
    with torch.no_grad():
        p = fill.model(torch.tensor([ids]))[0, at].softmax(-1)
    best, words = p.topk(5)
    found = fill("the [MASK] sat")
    assert [row["token"] for row in found] == words.tolist()
    assert [row["score"] for row in found] == pytest.approx(best.tolist(), rel=1e-4)


def test_all_words_can_be_asked_for_and_not_more(fill: Any) -> None:
    found = fill("the [MASK] sat", top_k=10**6)
    assert len(found) == fill.model.config.vocab
    assert sum(row["score"] for row in found) == pytest.approx(1, abs=1e-4)


def test_the_sequence_has_the_word_in_its_place(fill: Any) -> None:
    [row] = fill("the [MASK] sat", targets="cat")
    assert row["token_str"] == "cat"
    assert row["sequence"] == "the cat sat"


def test_several_masks_are_filled_each_by_itself_the_others_in_sight(fill: Any) -> None:
    found = fill("the [MASK] sat on the [MASK]", targets=["cat", "dog"])
    assert len(found) == 2
    assert all(len(rows) == 2 for rows in found)
    assert {row["sequence"] for row in found[1]} >= {"[CLS] the [MASK] sat on the cat [SEP]"}


def test_texts_with_different_numbers_of_masks_go_in_one_batch(fill: Any) -> None:
    texts = ["[MASK]", "the [MASK] sat on [MASK] [MASK] in London", "[MASK] 🐉 [MASK]"]
    together = fill(texts)
    assert [len(one) for one in together] == [5, 3, 2]
    for one, text in zip(together, texts, strict=True):
        assert scores(one) == pytest.approx(scores(fill(text)), rel=1e-3)


def scores(rows: list[Any]) -> list[float]:
    flat = [r for row in rows for r in ([row] if isinstance(row, dict) else row)]
    return [row["score"] for row in flat]


@pytest.mark.parametrize(
    ("family", "foreign"),
    [("bert", "<mask>"), ("roberta", "[MASK]"), ("bert", "[mask]"), ("bert", "<MASK>"), ("roberta", "_____")],
)
def test_the_mask_of_another_model_is_understood(tiny: Tiny, family: str, foreign: str) -> None:
    fill = pipeline("fill-mask", model=tiny("mlm", family=family))
    own = fill.tokenizer.roles["mask"]
    assert fill(f"the {foreign} sat") == fill(f"the {own} sat")
    assert len(fill(f"the {foreign} sat on {foreign}")) == 2


def test_a_text_without_a_mask_is_told_how_to_write_one(fill: Any) -> None:
    with pytest.raises(InputError, match=r"input 1 has no \[MASK\]; put one where a word is missing"):
        fill(["a [MASK]", "the cat sat"])


def test_a_mask_that_was_cut_off_is_said(fill: Any) -> None:
    text = "the cat sat " * 40 + "[MASK]"
    with (
        pytest.warns(Truncated),
        pytest.raises(InputError, match=r"input 0 has no \[MASK\] \(it was cut off\)"),
    ):
        fill(text, tokenizer_kwargs={"truncation": True})


def test_a_target_of_several_pieces_is_its_first_and_a_warning(fill: Any) -> None:
    for target, first in (("the cat", "the"), ("漢", "[UNK]")):
        with pytest.warns(
            UserWarning, match=f"'{target}' is not one token; its first piece '{re.escape(first)}'"
        ):
            [row] = fill("the [MASK]", targets=[target])
        assert row["token_str"] == first


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"targets": []}, "targets is empty"),
        ({"targets": [" "]}, "the target ' '"),
        ({"top_k": 0}, "top_k=0"),
    ],
)
def test_options_that_cannot_be_are_named(fill: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        fill("the [MASK]", **options)


def test_an_encoder_decoder_fills_masks_by_writing_the_text_anew(tiny: Tiny) -> None:
    sizes = dict(vocab=340, dim=16, layers=1, heads=2, hidden=32, context=64)
    model = heedful.build("bart", seed=0, **sizes).eval()
    tokenizer = tiny("mlm", family="roberta").tokenizer
    nlp = pipeline("fill-mask", model=model, tokenizer=tokenizer)
    ids = tokenizer.encode("the <mask> sat")
    with torch.no_grad():
        p = model(torch.tensor([ids]))[0, ids.index(tokenizer.mask)].softmax(-1)
    assert [row["token"] for row in nlp("the <mask> sat")] == p.topk(5).indices.tolist()


@pytest.mark.parametrize("head", ["next", "pretrain"])
def test_next_sentence_is_the_softmax_of_its_head(tiny: Tiny, head: str) -> None:
    model = tiny(head)
    nlp = pipeline("next-sentence", model=model)
    ids, types = nlp.tokenizer.encode_pair("he went", "to the bank")
    with torch.no_grad():
        hidden, ctx = model.read(torch.tensor([ids]), types=torch.tensor([types]))
        part = model.head.next if head == "pretrain" else model.head
        p = part(hidden, ctx)[0].softmax(-1)
    found = nlp("he went", "to the bank")
    assert found["label"] == ["isNext", "notNext"][int(p.argmax())]
    assert found["score"] == pytest.approx(float(p.max()), abs=1e-5)


def test_pairs_come_in_every_shape(tiny: Tiny) -> None:
    nlp = pipeline("next-sentence-prediction", model=tiny("next"))
    one, two = nlp("he went", "to the bank"), nlp("the cat", "")
    for pairs in (
        [("he went", "to the bank"), ("the cat", "")],
        [["he went", "to the bank"], ["the cat", ""]],
        [{"text": "he went", "text_pair": "to the bank"}, {"text": "the cat", "text_pair": ""}],
    ):
        found = nlp(pairs)
        assert [row["label"] for row in found] == [one["label"], two["label"]]
        assert [row["score"] for row in found] == pytest.approx([one["score"], two["score"]], abs=1e-5)
    assert nlp(["he went", "the cat"], ["to the bank", ""])[0]["label"] == one["label"]
    assert nlp({"text": "he went", "text_pair": "to the bank"}) == one
    assert [row["label"] for row in nlp(iter([("the cat", "")]))] == [two["label"]]


def test_pairs_that_are_none_are_one_clear_line(tiny: Tiny) -> None:
    nlp = pipeline("next-sentence", model=tiny("next"))
    with pytest.raises(InputError, match="takes two texts, or a list of pairs of them; got 'alone'"):
        nlp("alone")
    with pytest.raises(InputError, match="the first texts are 2 and the second 1"):
        nlp(["a", "b"], ["c"])
