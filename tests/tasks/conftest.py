"""Tiny random models with a head and a tokenizer each, and a way to be without a network."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch

import heedful
from heedful.models.base import Model
from heedful.text.tokenizer import Tokenizer

TEXT = """Ada Lovelace was born in London and worked with Charles Babbage.
The cat sat on the mat while the dog slept under the table in Paris.
Dragons breathe fire; they are mythical creatures, unbelievably dangerous.
He went to the bank. Then he bought a gallon of milk, didn't he?
"""
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
NLI = ["contradiction", "neutral", "entailment"]

Tiny = Callable[..., Model]


@pytest.fixture(scope="session")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """A tokenizer for each family: pieces marked with ##, bytes, pieces of sentences."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    roles = ["bos", "pad", "eos", "unk", "mask", "cls", "sep"]
    bert = heedful.train_tokenizer("wordpiece", path, 160, lower=True)
    bert.settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return {
        "bert": bert,
        "roberta": heedful.train_tokenizer("bpe", path, 340, special=roles),
        "distilbert": heedful.train_tokenizer("unigram", path, 120, special=roles[1:]),
    }


@pytest.fixture
def tiny(vocabularies: dict[str, Tokenizer]) -> Tiny:
    """A model whose weights are large enough that its answers differ."""

    def make(head: str, labels: list[str] | None = None, family: str = "bert", **changes: Any) -> Model:
        tokenizer = vocabularies[family]
        sizes: dict[str, Any] = {"vocab": len(tokenizer), "dim": 32, "layers": 2, "heads": 4, "context": 64}
        named = labels or ["NEGATIVE", "POSITIVE"]
        model = heedful.build(family, head=head, labels=len(named), seed=0, **{**sizes, **changes}).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        model.tokenizer = tokenizer
        if head in ("classify", "tag"):
            model.hf_config = {
                "id2label": {str(i): name for i, name in enumerate(named)},
                "label2id": {name: i for i, name in enumerate(named)},
            }
        model.hf_config["pad_token_id"] = tokenizer.pad
        return model

    return make


@pytest.fixture
def local(tiny: Tiny, vocabularies: dict[str, Tokenizer]) -> Tiny:
    """A model in which no token sees another or its own position: every window tells the same of it."""

    def make(head: str, labels: list[str] | None = None, **changes: Any) -> Model:
        model = tiny(head, labels, **changes)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".attn.o." in name or name.startswith("embed.position"):
                    parameter.zero_()
        return model

    return make


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a socket fails."""

    class Refused(socket.socket):  # a class, for whoever is imported now and derives from it
        def __init__(self, *_: Any, **__: Any) -> None:
            raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", Refused)
