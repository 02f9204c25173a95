"""Labels for whole texts: trained ones, and those given with the question."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heedful import pipeline
from heedful.core.errors import InputError
from heedful.tasks import Truncated
from heedful.tasks.pipelines.text_classification import TextClassification
from heedful.weights.hub import installed_models
from tests.tasks.conftest import NLI, Tiny

TEXT = "Ada lived in London"


@pytest.fixture
def nlp(tiny: Tiny) -> Any:
    return pipeline(model=tiny("classify", ["bad", "fair", "good"]))


def test_the_score_is_the_softmax_of_the_logits(nlp: Any) -> None:
    tokens = torch.tensor([nlp.tokenizer.encode(TEXT)])
    with torch.no_grad():
        p = nlp.model(tokens)[0].softmax(-1)
    found = nlp(TEXT, top_k=None)
    assert {row["label"]: row["score"] for row in found} == pytest.approx(
        dict(zip(["bad", "fair", "good"], p.tolist(), strict=True))
    )
    assert [row["score"] for row in found] == sorted(p.tolist(), reverse=True)
    assert nlp(TEXT) == nlp(inputs=TEXT) == found[:1]


def test_all_scores_the_old_way_are_in_the_order_of_the_labels(nlp: Any) -> None:
    [found] = nlp(TEXT, return_all_scores=True)
    assert [row["label"] for row in found] == ["bad", "fair", "good"]


def test_classes_without_names_are_numbered(tiny: Tiny) -> None:
    model = tiny("classify")
    model.hf_config = {}
    assert {row["label"] for row in pipeline(model=model)(TEXT, top_k=None)} == {"LABEL_0", "LABEL_1"}


def test_one_class_alone_is_scored_by_a_sigmoid(tiny: Tiny) -> None:
    nlp = pipeline(model=tiny("classify", ["relevance"]))
    assert isinstance(nlp, TextClassification)
    assert nlp.default_function == "sigmoid"
    assert nlp(TEXT)[0]["score"] == pytest.approx(
        1 / (1 + torch.tensor(-nlp(TEXT, function_to_apply="none")[0]["score"]).exp().item())
    )


def test_a_pair_is_read_as_one(nlp: Any) -> None:
    pair = {"text": TEXT, "text_pair": "the cat sat"}
    ids, types = nlp.tokenizer.encode_pair(TEXT, "the cat sat")
    with torch.no_grad():
        p = nlp.model(torch.tensor([ids]), types=torch.tensor([types]))[0].softmax(-1)
    assert nlp(pair)["score"] == pytest.approx(float(p.max()))
    alone, second = nlp(TEXT)[0], nlp([pair, {"text": TEXT}])[1]
    assert second == {"label": alone["label"], "score": pytest.approx(alone["score"], abs=1e-6)}


def test_forms_that_transformers_takes_are_taken(nlp: Any) -> None:
    pair = {"text": TEXT, "text_pair": "the cat sat"}
    assert nlp([[[TEXT, "the cat sat"]]]) == nlp([pair])
    how = SimpleNamespace(value="sigmoid")  # transformers' own enumeration
    assert nlp(TEXT, function_to_apply=how) == nlp(TEXT, function_to_apply="sigmoid")
    assert nlp(TEXT, topk=2) == nlp(TEXT, top_k=2)


@pytest.mark.parametrize("options", [{"top_k": 0}, {"function_to_apply": "tanh"}], ids=str)
def test_options_that_cannot_be_are_named(nlp: Any, options: dict[str, Any]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(InputError, match=f"{name}={value!r}"):
        nlp(TEXT, **options)


def test_two_texts_in_a_list_inside_a_list_are_pointed_to_the_right_form(nlp: Any) -> None:
    with pytest.raises(InputError, match="a pair {\"text\": …, \"text_pair\": …}; got \\['a', 'b'\\]"):
        nlp([["a", "b"]])


def test_a_sentence_encoder_ranks_labels_by_cosine(tiny: Tiny) -> None:
    model = tiny("none")
    nlp = pipeline("zero-shot-classification", model=model)
    assert "cosine" in nlp.equation
    found = nlp(TEXT, ["the cat", TEXT], hypothesis_template="{}")
    near = pipeline("sentence-similarity", model=model)(TEXT, ["the cat", TEXT])
    assert found["labels"] == [TEXT, "the cat"]
    expected = (torch.tensor(near) * 20).softmax(-1).tolist()
    assert found["scores"] == pytest.approx(expected[::-1], abs=1e-5)


def test_labels_that_may_hold_together_are_scored_each_by_itself(tiny: Tiny) -> None:
    for model in (tiny("none"), tiny("classify", NLI)):
        nlp = pipeline("zero-shot-classification", model=model)
        alone = [nlp(TEXT, [label], multi_label=True)["scores"][0] for label in ("cats", "London")]
        both = nlp(TEXT, ["cats", "London"], multi_label=True)
        assert dict(zip(both["labels"], both["scores"], strict=True)) == pytest.approx(
            {"cats": alone[0], "London": alone[1]}, abs=1e-5
        )


def test_of_a_long_text_only_the_text_is_cut_and_never_the_hypothesis(tiny: Tiny) -> None:
    nlp = pipeline("zero-shot-classification", model=tiny("classify", NLI))
    with pytest.warns(Truncated, match="tokens of input 0"):
        found = nlp("the cat sat on the mat " * 30, ["cats", "dogs"])
    assert sum(found["scores"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"candidate_labels": ""}, "candidate_labels must name at least one label"),
        ({"candidate_labels": [3]}, "candidate_labels must name at least one label"),
        ({"candidate_labels": 3}, "candidate_labels must name at least one label"),
        ({"candidate_labels": "a", "hypothesis_template": 3}, "hypothesis_template=3 cannot be filled in"),
        ({"candidate_labels": "a", "hypothesis_template": "no place"}, "has no {} where the label goes"),
        ({"candidate_labels": "a", "hypothesis_template": "{a}"}, "cannot be filled in"),
    ],
)
def test_labels_and_templates_that_cannot_be_are_named(tiny: Tiny, options: Any, said: str) -> None:
    nlp = pipeline("zero-shot-classification", model=tiny("none"))
    with pytest.raises(InputError, match=said):
        nlp(TEXT, **options)


@pytest.mark.parametrize("given", ["", ["a cat", ""]])
@pytest.mark.parametrize("head", ["none", "classify"])
def test_an_empty_text_is_not_judged(tiny: Tiny, head: str, given: Any) -> None:
    nlp = pipeline("zero-shot-classification", model=tiny(head, NLI))
    with pytest.raises(InputError, match="is empty"):
        nlp(given, candidate_labels="politics")


@pytest.mark.skipif("all-minilm-l6-v2" not in installed_models(), reason="all-minilm-l6-v2 is not installed")
def test_the_published_encoder_knows_what_a_text_is_about() -> None:
    nlp = pipeline("zero-shot-classification")
    texts = [
        "The striker scored twice in the final.",
        "Parliament passed the budget.",
        "My cake did not rise.",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = nlp(texts, "sports, politics, cooking")
    assert [row["labels"][0] for row in found] == ["sports", "politics", "cooking"]
