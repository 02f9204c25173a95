"""What is asked wrongly gets one clear answer in OpenAI's shape; the small addresses."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.serve.guard import AccessRules
from heedful.serve.openai_app import Limits, create_openai_app
from heedful.serve.openai_server import make_served_model
from tests.serve.conftest import Models

HELLO = [{"role": "user", "content": "the cat"}]
ODD: list[Any] = [True, -1.5, 10**30, "x", "", [], [[]], {}, {"a": 1}, [None], ["", 3], "\ud800"]
COMPLETION = (
    "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed", "stream", "echo",
    "logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "stream_options",
    "model",
)  # fmt: skip
CHAT = ("messages", "max_completion_tokens", "top_logprobs", "logprobs", "model", "max_tokens")


def failed(answer: Any, status: int, code: str, param: str | None = None) -> str:
    """The message of an error, which has the one shape and the right words."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert answer.json().keys() == {"error"}
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param)
    assert answer.headers["x-request-id"]
    assert answer.headers["openai-processing-ms"].isdigit()
    return str(error["message"])


def post(client: TestClient, path: str, body: Any) -> Any:
    """JSON as Python writes it, half surrogates included."""
    return client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


@pytest.mark.parametrize("name", COMPLETION)
def test_a_field_of_any_type_is_taken_or_refused_by_its_name(client: TestClient, name: str) -> None:
    for value in ODD:
        body = {"model": "decoder", "prompt": "the cat", "max_tokens": 2, name: value}
        answer = post(client, "/v1/completions", body)
        assert answer.status_code in (200, 400, 404), (value, answer.text)
        if answer.status_code == 400:
            assert answer.json()["error"]["param"] in (name, None), (value, answer.text)


@pytest.mark.parametrize("name", CHAT)
def test_a_field_of_a_conversation_is_taken_or_refused(client: TestClient, name: str) -> None:
    for value in ODD:
        body = {"model": "org/talker", "messages": HELLO, "max_tokens": 2, name: value}
        answer = post(client, "/v1/chat/completions", body)
        assert answer.status_code in (200, 400, 404), (value, answer.text)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/detokenize"])
def test_a_field_of_the_other_addresses_is_taken_or_refused(client: TestClient, path: str) -> None:
    for name in ("model", "input", "prompt", "tokens", "encoding_format", "dimensions", "add_special_tokens"):
        for value in ODD:
            body = {"model": "decoder", "input": "the", "prompt": "the", "tokens": [1], name: value}
            assert post(client, path, body).status_code in (200, 400, 404), (path, name, value)


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"temperature": "hot"}, "temperature", "temperature='hot' must be a number"),
        ({"temperature": 2.5}, "temperature", "between 0 and 2"),
        ({"top_p": 1.5}, "top_p", "above 0 and at most 1"),
        ({"n": 0}, "n", "between 1 and 64"),
        ({"n": 2, "temperature": 0}, "n", "the same text 2 times"),
        ({"n": 33, "prompt": ["a", "the"]}, "n", "66 texts; 64 are the most"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "4 are the most"),
        ({"logit_bias": {"cat": 1}}, "logit_bias", "not the id of a token"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "between -100 and 100"),
        ({"logprobs": 21}, "logprobs", "between 0 and 20"),
        ({"prompt": ["the", 5]}, "prompt", "a string, strings, ids"),
        ({"stream_options": {}}, "stream_options", "stream=true only"),
        ({"logit_bias": {"99999": 1}}, None, "the vocabulary is"),
        ({"prompt": [99999]}, None, "the vocabulary is"),
    ],
)
def test_a_bad_value_is_named(client: TestClient, change: dict[str, Any], param: str, words: str) -> None:
    body = {"model": "decoder", "prompt": "the cat", **change}
    assert words in failed(post(client, "/v1/completions", body), 400, "invalid_value", param)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b'{"a": NaN}', b"\xff\xfe\x00", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(client: TestClient, body: bytes) -> None:
    failed(client.post("/v1/completions", content=body), 400, "invalid_value")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]), ("guided_grammar", "x"), ("best_of", 3),
        ("suffix", "end"), ("audio", {}), ("store", True),
        ("messages", [{"role": "tool", "content": "x"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    ],
)  # fmt: skip
def test_what_is_known_but_not_built_is_refused_by_its_name(
    client: TestClient, name: str, value: object
) -> None:
    body = {"model": "org/talker", "messages": HELLO, name: value}
    failed(post(client, "/v1/chat/completions", body), 400, "unsupported_parameter", name)


def test_what_is_unknown_is_ignored_and_logged(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    body = {"model": "org/talker", "messages": HELLO, "max_tokens": 2, "keep_alive": "5m", "tools": []}
    with caplog.at_level(logging.WARNING, "heedful.serve"):
        assert post(client, "/v1/chat/completions", body | {"user": "me"}).status_code == 200
    assert "ignored 'keep_alive'" in caplog.text
    assert "user" not in caplog.text


def test_an_unknown_model_is_not_found(client: TestClient) -> None:
    answer = post(client, "/v1/completions", {"model": "/etc/passwd", "prompt": "a"})
    assert "this server has decoder" in failed(answer, 404, "model_not_found", "model")
    failed(client.get("/v1/models/org/nobody"), 404, "model_not_found", "model")


def test_unknown_paths_and_methods_have_the_same_shape(client: TestClient) -> None:
    failed(client.get("/v1/nothing"), 404, "unknown_url")
    failed(client.get("/docs"), 404, "unknown_url")
    failed(client.get("/v1/completions"), 405, "unknown_url")
    failed(client.delete("/v1/models"), 405, "unknown_url")


def test_a_prompt_that_fills_the_context_is_refused(client: TestClient, models: Models) -> None:
    for size in (64, 65, 5000):
        answer = post(client, "/v1/completions", {"model": "decoder", "prompt": [5] * size})
        said = failed(answer, 400, "context_length_exceeded")
        assert said.startswith(
            f"This model's maximum context length is 64 tokens. However, your prompt has {size}"
        )
    body = {"model": "decoder", "prompt": [5] * 63, "temperature": 0}
    assert post(client, "/v1/completions", body).json()["usage"]["completion_tokens"] == 1
    scored = {"model": "decoder", "prompt": [5] * 64, "echo": True, "logprobs": 1, "max_tokens": 0}
    assert len(post(client, "/v1/completions", scored).json()["choices"][0]["logprobs"]["tokens"]) == 64


def test_strict_length_refuses_what_would_be_clamped(models: Models) -> None:
    app, shared = create_openai_app(models.all(), limits=Limits(strict=True))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        body = {"model": "decoder", "prompt": [5] * 10, "max_tokens": 55}
        failed(post(client, "/v1/completions", body), 400, "context_length_exceeded", "max_tokens")
        assert post(client, "/v1/completions", body | {"max_tokens": 54}).status_code == 200
    shared.engine.close()


def test_an_encoder_says_what_it_can_do(client: TestClient) -> None:
    for path, body in (("completions", {"prompt": "a"}), ("chat/completions", {"messages": HELLO})):
        answer = post(client, f"/v1/{path}", {"model": "encoder", **body})
        assert "it answers /v1/embeddings" in failed(answer, 400, "model_not_supported", "model")
    answer = post(client, "/v1/embeddings", {"model": "translator", "input": "a"})
    failed(answer, 400, "model_not_supported", "model")


def test_models_are_listed_with_what_they_are(client: TestClient) -> None:
    found = client.get("/v1/models").json()
    assert found["object"] == "list"
    by_id = {m["id"]: m for m in found["data"]}
    assert by_id["decoder"]["max_model_len"] == 64
    assert by_id["decoder"]["heedful"]["chat"] == "plain"
    assert by_id["encoder"]["heedful"]["endpoints"] == ["/v1/embeddings"]
    assert client.get("/v1/models/org/talker").json() == by_id["org/talker"]
    assert all(type(m["created"]) is int and m["object"] == "model" for m in found["data"])


def test_health_and_version(client: TestClient) -> None:
    assert client.get("/health").json() == client.get("/v1/health").json() == {"status": "ok"}
    assert client.get("/version").json() == {"version": heedful.__version__}


@pytest.mark.parametrize("model", ["encoder", "decoder"])
def test_embeddings_are_those_of_embed(client: TestClient, models: Models, model: str) -> None:
    texts = ["the cat sat", "a dog"]
    expected = heedful.embed(getattr(models, model), texts).numpy()
    body = {"model": model, "input": texts}
    found = post(client, "/v1/embeddings", body).json()
    assert np.array([d["embedding"] for d in found["data"]]) == pytest.approx(expected, abs=1e-6)
    raw = post(client, "/v1/embeddings", body | {"encoding_format": "base64"}).json()["data"]
    bits = [np.frombuffer(base64.b64decode(d["embedding"]), "<f4") for d in raw]
    assert np.array(bits) == pytest.approx(expected, abs=1e-6)
    ids = [getattr(models, model).tokenizer.encode(text) for text in texts]
    by_ids = post(client, "/v1/embeddings", {"model": model, "input": ids}).json()
    assert np.array([d["embedding"] for d in by_ids["data"]]) == pytest.approx(expected, abs=1e-5)
    assert (
        found["usage"]
        == by_ids["usage"]
        == {k: sum(map(len, ids)) for k in ("prompt_tokens", "total_tokens")}
    )


def test_an_embedding_of_nothing_or_too_much_is_refused(client: TestClient) -> None:
    for empty in ("", [""], [], [[]]):
        failed(
            post(client, "/v1/embeddings", {"model": "encoder", "input": empty}),
            400,
            "invalid_value",
            "input",
        )
    answer = post(client, "/v1/embeddings", {"model": "encoder", "input": "cat " * 40})
    failed(answer, 400, "context_length_exceeded")
    answer = post(client, "/v1/embeddings", {"model": "encoder", "input": "a", "dimensions": 8})
    failed(answer, 400, "unsupported_parameter", "dimensions")


def test_text_goes_to_ids_and_back(client: TestClient, models: Models) -> None:
    found = post(client, "/tokenize", {"model": "decoder", "prompt": "Käse 😀"}).json()
    assert found["tokens"] == models.decoder.tokenizer.encode("Käse 😀")
    assert found["count"] == len(found["tokens"])
    back = post(client, "/detokenize", {"model": "decoder", "tokens": found["tokens"]}).json()
    assert back == {"prompt": "Käse 😀"}


def test_the_clients_request_id_comes_back_if_it_is_one(client: TestClient) -> None:
    assert client.get("/health", headers={"x-request-id": "mine-7"}).headers["x-request-id"] == "mine-7"
    made = client.get("/health", headers={"x-request-id": "a b" * 100}).headers["x-request-id"]
    assert made.startswith("req_")


def test_a_foreign_host_or_page_is_refused(client: TestClient) -> None:
    failed(client.get("/health", headers={"host": "evil.example"}), 403, "bad_host")
    failed(client.get("/v1/models", headers={"origin": "http://evil.example"}), 403, "bad_host")
    assert client.get("/health", headers={"host": "localhost:8000"}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["notlocalhost", "evil.localhost", "localhost.evil.example", "127.0.0.1.evil.example", "evil127.0.0.1",
     "1127.0.0.1", "x[::1]", "[::1]x", "localhost:80.evil.example", "evil@localhost", "localhost.", "local",
     ""],
)  # fmt: skip
def test_a_name_that_only_contains_ours_is_refused(client: TestClient, host: str) -> None:
    failed(client.get("/health", headers={"host": host}), 403, "bad_host")


@pytest.mark.parametrize("host", ["LocalHost", "127.0.0.1:1", "[::1]", "[::1]:65535"])
def test_a_name_of_loopback_is_answered_in_any_case_and_on_any_port(client: TestClient, host: str) -> None:
    assert client.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil127.0.0.1", "http://127.0.0.1.evil.example", "http://127.0.0.1:9", "null", "", "127.0.0.1",
     "http://evil.example/http://127.0.0.1", "ftp://127.0.0.1", "http://localhost"],
)  # fmt: skip
def test_a_page_whose_origin_is_not_exactly_the_host_is_refused(client: TestClient, origin: str) -> None:
    failed(client.get("/health", headers={"origin": origin}), 403, "bad_host")


def test_a_page_of_the_server_itself_is_answered(client: TestClient) -> None:
    for scheme in ("http", "https"):
        assert client.get("/health", headers={"origin": f"{scheme}://127.0.0.1"}).status_code == 200


def test_a_key_is_asked_of_everything_but_health(models: Models) -> None:
    app, shared = create_openai_app(models.all(), rules=AccessRules(None, "sesam"))
    with TestClient(app, base_url="http://any.example") as client:
        assert client.get("/v1/health").status_code == 200
        for wrong in ({}, {"authorization": "Bearer sesa"}, {"authorization": "sesam"},
                      {"authorization": "Basic sesam"}, {"authorization": b"Bearer \xff"}):  # fmt: skip
            answer = client.get("/v1/models", headers=wrong)
            failed(answer, 401, "invalid_api_key")
            assert answer.json()["error"]["type"] == "authentication_error"
        assert client.get("/v1/models", headers={"authorization": "Bearer sesam"}).status_code == 200
        assert client.get("/v1/nothing").status_code == 401
    shared.engine.close()


def test_a_body_over_the_limit_is_refused_before_it_is_read(models: Models) -> None:
    app, shared = create_openai_app(models.all(), rules=AccessRules(max_body_bytes=1000))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        failed(client.post("/v1/completions", content=b"x" * 1001), 413, "request_too_large")

        def pieces() -> Any:
            yield from [b"x" * 600] * 3

        failed(client.post("/v1/completions", content=pieces()), 413, "request_too_large")
    shared.engine.close()


def test_a_context_may_be_shortened_and_given_where_there_is_none(models: Models) -> None:
    asked = [(models.decoder, None), (models.decoder, 16), (models.decoder, 999), (models.translator, None),
             (models.translator, 9000)]  # fmt: skip
    assert [make_served_model("x", model, ctx=ctx).context for model, ctx in asked] == [
        64,
        16,
        64,
        4096,
        9000,
    ]
    app, shared = create_openai_app([make_served_model("short", models.decoder, ctx=16)])
    with TestClient(app, base_url="http://127.0.0.1") as client:
        failed(
            post(client, "/v1/completions", {"model": "short", "prompt": [5] * 16}),
            400,
            "context_length_exceeded",
        )
        body = {"model": "short", "prompt": [5] * 10, "max_tokens": 50, "temperature": 0}
        assert post(client, "/v1/completions", body).json()["usage"]["total_tokens"] == 16
    shared.engine.close()
