"""One large text costs little: a bounded part is tokenized, once, outside the event loop and the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.serve.openai_app import create_openai_app
from heedful.serve.openai_server import make_served_model
from heedful.text import Tokenizer
from heedful.weights.pooling import Pooling
from tests.classroom.studio.made import LINES, made
from tests.serve.conftest import TEMPLATE
from tests.serve.test_requests import failed, post

LARGE = "the cat sat on the mat . " * 40_000  # a megabyte
CONTEXT = 32
Encodings = list[tuple[int, str]]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A decoder that converses, an encoder that cuts its texts and one that does not, and a cross-encoder."""
    file = tmp_path_factory.mktemp("large") / "lines.txt"
    file.write_text("\n".join(LINES * 3))
    bpe, pieces = (heedful.train_tokenizer(kind, [file], 330) for kind in ("bpe", "wordpiece"))
    bpe.chat_template = TEMPLATE
    sizes: dict[str, Any] = {"heads": 2, "context": CONTEXT}
    models = {
        "decoder": made("llama", bpe, kv_heads=2, **sizes),
        "encoder": made("bert", pieces, head="mlm", **sizes),
        "sentences": made("bert", pieces, head="mlm", **sizes),
        "ranker": made("bert", pieces, head="classify", labels=1, **sizes),
    }
    models["sentences"].pooling = Pooling(length=16)
    app, server = create_openai_app([make_served_model(id, model) for id, model in models.items()])
    with TestClient(app, base_url="http://127.0.0.1") as found:
        yield found
    server.engine.close()


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> Encodings:
    """How many characters were tokenized, and in which thread."""
    calls: Encodings = []
    encoding = Tokenizer.encoding

    def record(self: Tokenizer, text: str, pair: str | None = None, special: bool = True) -> Any:
        calls.append((len(text) + len(pair or ""), threading.current_thread().name))
        return encoding(self, text, pair, special)

    monkeypatch.setattr(Tokenizer, "encoding", record)
    return calls


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"model": "decoder", "prompt": LARGE}),
    ("/v1/chat/completions", {"model": "decoder", "messages": [{"role": "user", "content": LARGE}]}),
    ("/v1/embeddings", {"model": "encoder", "input": ["short", LARGE]}),
    ("/rerank", {"model": "ranker", "query": "cat", "documents": [LARGE], "truncate": False}),
]
CUT: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"model": "sentences", "input": LARGE}),
    ("/rerank", {"model": "ranker", "query": "cat", "documents": [LARGE]}),
    ("/rerank", {"model": "ranker", "query": "cat", "documents": [LARGE], "max_tokens_per_doc": 5}),
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_a_text_far_beyond_the_context_is_refused_before_all_of_it_is_tokenized(
    client: TestClient, encodings: Encodings, path: str, body: dict[str, Any]
) -> None:
    message = failed(post(client, path, body), 400, "context_length_exceeded")
    assert "characters" in message
    assert sum(count for count, _ in encodings) < 20_000


@pytest.mark.parametrize(("path", "body"), CUT)
def test_a_text_that_is_cut_is_tokenized_in_part_and_never_by_the_engine(
    client: TestClient, encodings: Encodings, path: str, body: dict[str, Any]
) -> None:
    assert post(client, path, body).status_code == 200
    assert sum(count for count, _ in encodings) < 20_000
    assert "heed-engine" not in [thread for _, thread in encodings]


def test_a_large_query_is_refused_before_all_of_it_is_tokenized(
    client: TestClient, encodings: Encodings
) -> None:
    for truncate in (True, False):
        body = {"model": "ranker", "query": LARGE, "documents": ["cat"] * 20, "truncate": truncate}
        failed(post(client, "/rerank", body), 400, "invalid_value", "query")
    assert sum(count for count, _ in encodings) < 20_000


def test_a_short_text_is_tokenized_once(client: TestClient, encodings: Encodings) -> None:
    assert post(client, "/v1/embeddings", {"model": "sentences", "input": "a cat"}).status_code == 200
    assert len(encodings) == 1


def test_the_vector_of_a_large_text_is_that_of_its_beginning(client: TestClient) -> None:
    vectors = [
        post(client, "/v1/embeddings", {"model": "sentences", "input": text}).json()["data"][0]["embedding"]
        for text in (LARGE, LARGE[:200])
    ]
    assert vectors[0] == vectors[1]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"model": "decoder", "prompt": "x" * 1_000_001}, "prompt"),
        ("/detokenize", {"model": "decoder", "tokens": [5] * 250_001}, "tokens"),
    ],
)
def test_texts_without_a_context_have_a_limit_as_well(
    client: TestClient, path: str, body: dict[str, Any], param: str
) -> None:
    assert "in parts" in failed(post(client, path, body), 400, "invalid_value", param)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("guided_regex", "a" * 60_000),
        ("guided_choice", ["a" * 60_000]),
        ("guided_json", {"enum": ["a" * 60_000]}),
        ("structured_outputs", {"regex": "a" * 60_000}),
    ],
)
def test_a_form_that_takes_long_to_compile_is_refused(client: TestClient, name: str, value: Any) -> None:
    answer = post(client, "/v1/completions", {"model": "decoder", "prompt": "the", name: value})
    assert answer.status_code == 400, answer.text
    assert "50000 are the most" in answer.json()["error"]["message"]


def test_other_threads_run_while_a_long_text_is_tokenized(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES * 3))
    tokenizer = heedful.train_tokenizer("bpe", [tmp_path / "lines.txt"], 330)
    thread = threading.Thread(target=tokenizer.encode, args=(LARGE,))
    turns = 0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 20
