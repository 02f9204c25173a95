"""A linear head on the sentence vector: the same in every family, and known to heedful alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import heedful
from heedful.core.errors import ConfigError
from heedful.models import FAMILIES
from heedful.models.base import LM, Model
from heedful.nn.head import POOLINGS
from heedful.weights.loading import with_head
from tests.refusal import refused


def bare(name: str) -> Model:
    """A tiny model without a head."""
    tiny = FAMILIES[name].tiny
    sizes = {field: getattr(tiny, field) for field in tiny.__dict__["given"]}
    return heedful.build(name, seed=0, **sizes | {"head": "none"}).eval()


CLASSIFIERS = [n for n, f in FAMILIES.items() if "classify" in f.heads and isinstance(bare(n), LM)]


def tiny(name: str, pooling: str = "mean") -> Model:
    return with_head(bare(name), "classify", ["a", "b", "c"], classifier_pooling=pooling).eval()


def padded() -> tuple[Tensor, Tensor]:
    tokens = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]])
    return tokens, torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_classifying_family_saves_and_opens_it(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    heedful.save(model, tmp_path)
    again = heedful.load(tmp_path)
    tokens, valid = padded()
    assert again.config == model.config
    assert torch.equal(again(tokens, valid=valid), model(tokens, valid=valid))
    assert not any("pool" in key for key, _ in again.head.named_parameters())


@pytest.mark.parametrize("pooling", POOLINGS)
def test_its_logits_are_linear_in_the_sentence_vector(pooling: str) -> None:
    model = tiny("bert", pooling)
    tokens, valid = padded()
    how = heedful.weights.pooling.Pooling(pooling, normalise=True)
    vectors = heedful.weights.pooling.pool(model.encode(tokens, valid=valid), valid, how)
    torch.testing.assert_close(model(tokens, valid=valid), model.head.linear(vectors))
    torch.testing.assert_close(model(tokens[1:, :3]), model(tokens, valid=valid)[1:])


def test_transformers_refuses_the_folder_instead_of_reading_it_wrongly(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    heedful.save(tiny("bert"), tmp_path)
    with pytest.raises(ValueError, match="heedful-bert"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    assert (said["architectures"], said["classifier_pooling"]) == (["heedful-bert-classify"], "mean")


def test_another_head_on_the_same_body_is_the_familys_own_again(tmp_path: Path) -> None:
    model = with_head(tiny("bert"), "classify", ["a", "b"])
    heedful.save(model, tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["architectures"] == ["BertForSequenceClassification"]
    assert said["model_type"] == "bert"
    assert "classifier_pooling" not in said


def test_a_quantised_one_opens_again(tmp_path: Path) -> None:
    model = heedful.quantize(tiny("bert"), "int8")
    heedful.save(model, tmp_path, quantized=True)
    tokens, valid = padded()
    assert torch.equal(heedful.load(tmp_path)(tokens, valid=valid), model(tokens, valid=valid))


def test_an_unknown_pooling_and_a_head_that_does_not_classify_are_refused() -> None:
    with refused(ConfigError, "classifier_pooling='median'", hint="mean"):
        heedful.build("bert", head="classify", classifier_pooling="median", layers=1)
    with refused(ConfigError, "classifier_pooling='mean'"):
        heedful.build("bert", head="tag", classifier_pooling="mean", layers=1)
