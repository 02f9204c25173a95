"""Vectors of texts, and how near they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful import pipeline
from heedful.core.errors import InputError
from heedful.tasks import Truncated
from heedful.text.tokenizer import Tokenizer
from heedful.weights.hub import installed_models
from heedful.weights.pooling import Pooling
from tests.tasks.conftest import Tiny

published = pytest.mark.skipif(
    "all-minilm-l6-v2" not in installed_models(), reason="all-minilm-l6-v2 is not installed"
)


def test_the_features_are_the_last_hidden_states(tiny: Tiny) -> None:
    nlp = pipeline("feature-extraction", model=tiny("classify"))
    with torch.no_grad():
        expected = nlp.model.encode(torch.tensor([nlp.tokenizer.encode("a cat")]))
    assert torch.allclose(nlp("a cat", return_tensors="pt"), expected, atol=1e-6)
    assert torch.allclose(torch.tensor(nlp("a cat")), expected, atol=1e-6)


def test_padding_leaves_no_rows_behind(tiny: Tiny) -> None:
    nlp = pipeline("feature-extraction", model=tiny("none"), return_tensors=True)
    texts = ["a", "the cat sat on the mat", ""]
    assert [x.shape[1] for x in nlp(texts)] == [len(nlp.tokenizer.encode(t)) for t in texts]


def test_a_long_text_is_cut_where_asked(tiny: Tiny) -> None:
    nlp = pipeline("feature-extraction", model=tiny("none"), return_tensors=True)
    with pytest.warns(Truncated):
        assert nlp("the cat " * 100, tokenize_kwargs={"truncation": True, "max_length": 7}).shape[1] == 7


def test_an_encoder_decoder_gives_its_memory(vocabularies: dict[str, Tokenizer]) -> None:
    model = heedful.build("t5", vocab=160, dim=16, layers=1, heads=2, hidden=32, seed=0).eval()
    nlp = pipeline("feature-extraction", model=model, tokenizer=vocabularies["bert"], return_tensors=True)
    with torch.no_grad():
        memory = model.encode(torch.tensor([nlp.tokenizer.encode("a cat")]))
    assert torch.allclose(nlp("a cat"), memory, atol=1e-6)


def test_similarity_is_the_cosine_of_pooled_vectors(tiny: Tiny) -> None:
    model = tiny("none")
    texts = ["he went to the bank", "the cat sat", ""]
    a, b, c = F.normalize(heedful.embed(model, texts), dim=-1)
    nlp = pipeline("sentence-similarity", model=model)
    assert nlp(texts[0], texts[1]) == pytest.approx(float(a @ b), abs=1e-5)
    both = pytest.approx([float(a @ b), float(a @ c)], abs=1e-5)
    asked = {"source_sentence": texts[0], "sentences": texts[1:]}
    assert nlp(asked) == both
    assert nlp([asked, asked])[1] == both
    assert nlp(texts[0], texts[1:]) == both
    assert nlp([texts[0], texts[0]], texts[1:]) == both
    assert nlp([], []) == []


def test_vectors_are_pooled_as_the_checkpoint_says(tiny: Tiny) -> None:
    model = tiny("none")
    model.pooling = Pooling("first")
    a, b = F.normalize(heedful.embed(model, ["the cat", "he went"]), dim=-1)
    assert pipeline("sentence-similarity", model=model)("the cat", "he went") == pytest.approx(
        float(a @ b), abs=1e-5
    )


def test_what_an_encoder_of_sentences_does_not_read_is_reported(tiny: Tiny) -> None:
    model = tiny("none")
    model.pooling = Pooling(length=10)
    nlp = pipeline(model=model)
    assert nlp.task == "sentence-similarity"
    tokens = len(nlp.tokenizer.encode("the cat " * 50, special=False))
    with pytest.warns(Truncated, match=f"{tokens - 8} of {tokens} tokens of input 1"):
        nlp("a cat", "the cat " * 50)
    with pytest.raises(InputError, match="input 1 has"):
        nlp("a cat", "the cat " * 50, truncation=False)


@pytest.mark.parametrize(
    "bad", [("alone",), ({"source_sentence": "a"},), (["a", "b"], ["c"]), (["a"], "b"), ("a", [3]),
            ("a", 3), (["a"], 3), ({"source_sentence": "a", "sentences": "b"},)], ids=str,
)  # fmt: skip
def test_what_cannot_be_compared_is_one_clear_line(tiny: Tiny, bad: Any) -> None:
    with pytest.raises(InputError) as error:
        pipeline("sentence-similarity", model=tiny("none"))(*bad)
    assert "\n" not in str(error.value)


@published
def test_the_published_encoder_tells_near_from_far() -> None:
    nlp = pipeline("sentence-similarity")
    sentences = ["That is a happy dog", "That is a very happy person", "Today is a sunny day"]
    found = nlp({"source_sentence": "That is a happy person", "sentences": sentences})
    # What the model's own page shows for these sentences.
    assert found == pytest.approx([0.695, 0.943, 0.257], abs=2e-3)
