"""Five kinds of model, tiny and random, saved to a folder; a server over them without a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.classroom.studio.studio_app import create_studio_app
from heedful.classroom.studio.traces import Studio
from tests.classroom.studio.made import LINES, made, save_vectors

KINDS = ["encoder", "decoder", "encoder-decoder", "rnn", "vectors"]
SEQUENCES = KINDS[:4]
TEXT = "the cat sat on the mat ."


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: one of each kind, and some with other heads."""
    root = tmp_path_factory.mktemp("models")
    file = tmp_path_factory.mktemp("text") / "lines.txt"
    file.write_text("\n".join(LINES * 3), encoding="utf-8")
    bpe = heedful.train_tokenizer("bpe", [file], 330, special=["eos", "bos"])
    pieces = heedful.train_tokenizer("wordpiece", [file], 120)
    heedful.save(made("bert", pieces, heads=2, context=24, head="mlm"), root / "encoder")
    heedful.save(made("bert", pieces, heads=2, context=24, head="classify"), root / "classifier")
    heedful.save(made("bert", pieces, heads=2, context=24, head="tag", labels=3), root / "tagger")
    heedful.save(made("bert", pieces, heads=2, context=24, head="span"), root / "spans")
    heedful.save(made("gpt2", bpe, heads=2, context=32), root / "decoder")
    heedful.save(made("llama", bpe, heads=4, kv_heads=2, context=32), root / "rotary")
    heedful.save(made("transformer", bpe, heads=2), root / "encoder-decoder")
    heedful.save(made("rnnsearch", bpe, layers=1, table_dim=12), root / "rnn")
    heedful.save(made("lstm", bpe), root / "lstm")
    heedful.save(made("mamba", bpe, state=4), root / "mamba")
    save_vectors(root / "vectors")
    return root


@pytest.fixture(scope="session")
def client(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The server over that folder."""
    runs = tmp_path_factory.mktemp("runs")
    app = create_studio_app(models_folder=models, runs_folder=runs)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as found:
        yield found


@pytest.fixture
def studio(client: TestClient) -> Studio:
    found: Studio = client.app.state.studio  # type: ignore[attr-defined]
    return found


def traced(client: TestClient, model: str, text: str | None = TEXT, **more: Any) -> dict[str, Any]:
    answer = client.post("/api/trace", json={"model": model, "text": text, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def get(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(answer: Any) -> list[tuple[str, Any]]:
    """The events of a stream, each with its name and its data."""
    out = []
    for block in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            out.append((fields["event"], json.loads(fields["data"])))
    return out


def tensor(client: TestClient, path: str, **query: Any) -> np.ndarray:
    """The numbers of an answer, by its headers."""
    answer = client.get(path, params=query or None)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    kind = {"f32": "<f4", "f16": "<f2", "u8": "u1"}[answer.headers["x-dtype"]]
    shape = [int(n) for n in answer.headers["x-shape"].split(",")]
    stored = np.frombuffer(answer.content, kind).reshape(shape).astype(np.float64)
    return float(answer.headers["x-min"]) + stored * float(answer.headers["x-scale"])
