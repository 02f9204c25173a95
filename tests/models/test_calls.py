"""What a model can be called with stands in its signature; anything else is one clear error."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

import heedful
from heedful.core.errors import InputError
from heedful.models import FAMILIES
from heedful.models.base import LM, Model, Seq2Seq
from heedful.models.calls import ForwardOptions, WatchOptions
from tests.refusal import refused


@pytest.mark.parametrize(("kind", "keywords"), [(LM, ForwardOptions), (Seq2Seq, WatchOptions)])
def test_every_keyword_of_a_call_is_named(kind: type, keywords: type) -> None:
    named = inspect.signature(kind.forward).parameters  # type: ignore[attr-defined]
    assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in named.values())
    assert set(get_type_hints(keywords)) <= set(named)


def tiny(family: str) -> Model:
    config = FAMILIES[family].tiny
    sizes = {name: getattr(config, name) for name in config.__dict__["given"]}
    return heedful.build(family, seed=0, **sizes).eval()


@pytest.mark.parametrize("family", ["gpt2", "lstm", "t5"])
@pytest.mark.parametrize(
    "tokens", [[[1, 2]], "hi", None, torch.ones(1, 2, dtype=torch.bool), torch.ones(3).long()]
)
def test_what_is_no_tensor_of_ids_is_named(family: str, tokens: object) -> None:
    with refused(InputError, "(B, T)"):
        tiny(family)(tokens)


@pytest.mark.parametrize("shape", [(0, 3), (1, 0)])
def test_a_batch_of_no_rows_or_columns_is_empty(shape: tuple[int, int]) -> None:
    with refused(InputError, "tokens is empty"):
        tiny("gpt2")(torch.zeros(shape, dtype=torch.long))


@pytest.fixture
def model() -> Model:
    """A GPT-2 of 50 words with learned positions for 8 tokens."""
    return heedful.build("gpt2", vocab=50, dim=16, layers=1, heads=2, context=8, seed=0).eval()


@pytest.mark.parametrize("bad", [50, -1])
def test_tokens_outside_the_vocabulary_are_named(model: Model, bad: int) -> None:
    with refused(InputError, bad, hint="0 … 49"):
        model(torch.tensor([[1, bad]]))


def test_learned_positions_bound_the_tokens_that_are_no_padding(model: Model) -> None:
    row = torch.zeros(1, 9, dtype=torch.long)
    for longer in (model, model.start, lambda row: model.step(row[:, :1], model.start(row[:, :8]))):
        with refused(InputError, "9 long", hint="8"):
            longer(row)
    valid = torch.arange(12)[None] < 8
    assert model(torch.zeros(1, 12, dtype=torch.long), valid=valid).shape == (1, 12, 50)


@pytest.mark.parametrize("valid", [torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 3, dtype=torch.long)])
def test_a_mask_of_the_wrong_shape_or_dtype_is_named(model: Model, valid: Tensor) -> None:
    with refused(InputError, "valid", "bool", "(2, 3)", valid.dtype):
        model(torch.zeros(2, 3, dtype=torch.long), valid=valid)


def test_calling_a_model_without_a_head_says_so() -> None:
    model = heedful.build("gpt2", dim=16, heads=2, layers=1, vocab=9, head="none")
    assert model.encode(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 16)
    with pytest.raises(InputError, match=r"model\.encode"):
        model(torch.zeros(1, 3, dtype=torch.long))


@pytest.mark.parametrize(("texts", "said"), [("hello", "takes a list"), (["hello"], "no tokenizer")])
def test_what_cannot_be_embedded_is_said(model: Model, texts: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        heedful.embed(model, texts)


@pytest.mark.parametrize("name", ["types", "documents"])
@pytest.mark.parametrize("value", [torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 4), [[0, 0, 0, 0]]])
def test_what_stands_beside_the_tokens_must_fit_them(name: str, value: object) -> None:
    with refused(InputError, name, "(1, 4)"):
        tiny("bert")(torch.ones(1, 4, dtype=torch.long), **{name: value})


def test_a_type_that_the_model_does_not_know_is_named() -> None:
    tokens = torch.ones(1, 4, dtype=torch.long)
    with refused(InputError, "types", 9, hint="2"):
        tiny("bert")(tokens, types=torch.full((1, 4), 9))


@pytest.mark.parametrize("family", ["t5", "rnnsearch", "seq2seq"])
def test_one_target_is_not_spread_over_many_sources(family: str) -> None:
    tokens = torch.ones(2, 4, dtype=torch.long)
    with refused(InputError, "target has 1", "source 2"):
        tiny(family)(tokens, tokens[:1])


@pytest.mark.parametrize("given", [{"batch": 0}, {"length": -1}, {"length": "5"}])
def test_what_cannot_be_counted_is_named(given: dict[str, Any]) -> None:
    with refused(InputError, f"{next(iter(given))}=", "must be"):
        heedful.count("gpt2", **given)


def test_labels_have_the_checkpoint_s_names_whether_its_keys_are_numbers_or_text() -> None:
    model = tiny("bert")
    assert model.label_names == ["LABEL_0", "LABEL_1"]
    for names in ({1: "good", 0: "bad"}, {"1": "good", "0": "bad"}):
        model.hf_config = {"id2label": names}
        assert model.label_names == ["bad", "good"]
