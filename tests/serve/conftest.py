"""Tiny random models of each kind behind the server, without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.serve.openai_app import Server, create_openai_app
from heedful.serve.openai_server import ServedModel, make_served_model
from tests.classroom.studio.made import LINES, made

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass(frozen=True)
class Models:
    """One of each kind, and the folder one of them lies in."""

    decoder: Any
    talker: Any
    encoder: Any
    translator: Any
    folder: Path

    def all(self) -> list[ServedModel]:
        named = {"decoder": self.decoder, "org/talker": self.talker, "encoder": self.encoder,
                 "translator": self.translator}  # fmt: skip
        return [make_served_model(id, model) for id, model in named.items()]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("served")
    file = folder / "lines.txt"
    file.write_text("\n".join([*LINES * 3, "ein Käse für 5 € und 😀"]), encoding="utf-8")
    bpe = heedful.train_tokenizer("bpe", [file], 330, special=["eos", "bos"])
    talking = heedful.train_tokenizer("bpe", [file], 330, special=["eos", "bos"])
    talking.chat_template = TEMPLATE
    pieces = heedful.train_tokenizer("wordpiece", [file], 120)
    decoder = made("gpt2", bpe, heads=2, context=64)
    heedful.save(decoder, folder / "small")
    return Models(
        decoder,
        made("llama", talking, heads=4, kv_heads=2, context=256),
        made("bert", pieces, heads=2, context=24, head="mlm"),
        made("transformer", bpe, heads=2),
        folder / "small",
    )


@pytest.fixture
def server(models: Models) -> Iterator[tuple[TestClient, Server]]:
    app, shared = create_openai_app(models.all())
    with TestClient(app, base_url="http://127.0.0.1") as found:
        yield found, shared
    shared.engine.close()


@pytest.fixture
def client(server: tuple[TestClient, Server]) -> TestClient:
    return server[0]
