"""What a model can be called with stands in its signature; anything else is one clear error."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest
import torch

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
@pytest.mark.parametrize("tokens", [[[1, 2]], "hi", None, torch.ones(1, 2, dtype=torch.bool)])
def test_what_is_no_tensor_of_ids_is_named(family: str, tokens: object) -> None:
    with refused(InputError, "(B, T)"):
        tiny(family)(tokens)


def test_a_batch_of_no_rows_is_empty() -> None:
    with pytest.raises(InputError, match="tokens is empty"):
        tiny("gpt2")(torch.zeros(0, 3, dtype=torch.long))


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
