"""Answers of a form that was asked for, and what evaluation harnesses and Prometheus ask."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.serve.openai_app import Limits, Server, create_openai_app
from heedful.serve.openai_server import make_served_model
from tests.serve.asking import said
from tests.serve.conftest import Models

MESSAGES = [{"role": "user", "content": "the cat"}]
SCHEMA = {
    "type": "object", "required": ["cat", "n"], "additionalProperties": False,
    "properties": {"cat": {"enum": ["black", "white"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
}  # fmt: skip


def talk(client: TestClient, **body: Any) -> Any:
    asked = {"model": "org/talker", "messages": MESSAGES, "max_tokens": 80, "seed": 1, **body}
    return client.post("/v1/chat/completions", content=json.dumps(asked))


def test_a_schema_on_the_wire_is_kept(client: TestClient) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "cat", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        choice = talk(client, response_format=asked, seed=seed).json()["choices"][0]
        answer = json.loads(choice["message"]["content"])
        assert answer.keys() == {"cat", "n"}
        assert answer["cat"] in ("black", "white")
        assert choice["finish_reason"] == "stop"


def test_a_schema_is_kept_by_a_stream_and_beside_others(client: TestClient) -> None:
    asked = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    whole = talk(client, response_format=asked, n=2).json()["choices"]
    streamed = talk(client, response_format=asked, n=2, stream=True).text
    for index in range(2):
        assert said(streamed, index) == whole[index]["message"]["content"]
        assert json.loads(said(streamed, index))


def test_a_json_object_begins_as_one(client: TestClient) -> None:
    text = talk(client, response_format={"type": "json_object"}).json()["choices"][0]["message"]["content"]
    assert text.startswith("{")


@pytest.mark.parametrize(
    "asked",
    [{"guided_regex": "[ab]{3}-[0-9]"}, {"structured_outputs": {"regex": "[ab]{3}-[0-9]"}}],
)
def test_a_regular_expression_is_kept(client: TestClient, asked: dict[str, Any]) -> None:
    body = {"model": "decoder", "prompt": "the", "max_tokens": 30, "seed": 4} | asked
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    assert re.fullmatch("[ab]{3}-[0-9]", choice["text"])
    assert choice["finish_reason"] == "stop"


def test_one_of_several_texts_is_kept(client: TestClient) -> None:
    choices = ["the cat", "a dog"]
    for asked in ({"guided_choice": choices}, {"structured_outputs": {"choice": choices}}):
        assert talk(client, **asked).json()["choices"][0]["message"]["content"] in choices


def test_text_is_no_constraint(client: TestClient) -> None:
    plain, asked = talk(client).json(), talk(client, response_format={"type": "text"}).json()
    assert asked["choices"] == plain["choices"]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}},
         "response_format"),
        ({"guided_regex": "(("}, "response_format"),
        ({"guided_regex": "\ud800"}, "response_format"),
        ({"guided_json": {"enum": ["\ud800"]}}, "response_format"),
        ({"guided_choice": ["\ud800"]}, "response_format"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": 3}, "guided_json"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_kept_is_refused(client: TestClient, asked: dict[str, Any], param: str) -> None:
    answer = talk(client, **asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_openais_client_parses_what_a_schema_kept(client: TestClient) -> None:
    with openai.OpenAI(base_url="http://127.0.0.1/v1", api_key="x", http_client=client) as asking:  # type: ignore[arg-type]
        answer = asking.chat.completions.create(
            model="org/talker", messages=[{"role": "user", "content": "a"}], max_tokens=80,
            response_format={"type": "json_schema", "json_schema": {"name": "cat", "schema": SCHEMA}},
        )  # fmt: skip
    assert json.loads(answer.choices[0].message.content or "").keys() == {"cat", "n"}


@pytest.fixture
def single(models: Models) -> Any:
    app, server = create_openai_app([make_served_model("only", models.talker)])
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client
    server.engine.close()


def test_the_only_model_need_not_be_named_for_its_tokens(single: TestClient, models: Models) -> None:
    ids = single.post("/tokenize", json={"prompt": "the cat", "add_special_tokens": False}).json()["tokens"]
    assert ids == models.talker.tokenizer.encode("the cat", special=False)
    assert single.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "the cat"}


def test_the_tokenizer_says_what_harnesses_ask(single: TestClient, models: Models) -> None:
    found = single.get("/tokenizer_info").json()
    tokenizer = models.talker.tokenizer
    assert found["eos_token"] == tokenizer.roles["eos"]
    assert found["bos_token"] == tokenizer.roles["bos"]
    assert found["chat_template"] == tokenizer.chat_template
    assert found["vocab_size"] == len(tokenizer)
    ids = single.post("/tokenize", json={"prompt": found["eos_token"], "add_special_tokens": False}).json()
    assert ids["tokens"] == [tokenizer.eos]


def test_of_several_models_one_must_be_named(client: TestClient) -> None:
    for answer in (client.post("/tokenize", json={"prompt": "a"}), client.get("/tokenizer_info")):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert client.get("/tokenizer_info?model=decoder").json()["model"] == "decoder"


def parse_metrics(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^(heedful_\S+) (\S+)$", text, re.MULTILINE)}


def test_what_is_counted_is_what_happened(server: tuple[TestClient, Server]) -> None:
    client, _ = server
    body = {"model": "decoder", "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}
    for streamed in (False, True):
        assert client.post("/v1/completions", json=body | {"stream": streamed}).status_code == 200
    client.post("/v1/completions", json=body | {"temperature": -1})
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = parse_metrics(answer.text)
    labels = 'endpoint="/v1/completions",status="200",finish_reason="length"'
    assert found[f"heedful_requests_total{{{labels}}}"] == 2
    assert found['heedful_requests_total{endpoint="/v1/completions",status="400",finish_reason="error"}'] == 1
    assert found["heedful_prompt_tokens_total"] == 6
    assert found["heedful_generation_tokens_total"] == 8
    assert found["heedful_time_to_first_token_seconds_count"] == 2
    assert found["heedful_inter_token_latency_seconds_count"] == 6
    assert found["heedful_e2e_request_latency_seconds_count"] == 2
    assert found["heedful_queue_time_seconds_count"] == 2
    assert found['heedful_queue_time_seconds_bucket{le="+Inf"}'] == 2
    assert found["heedful_requests_running"] == found["heedful_requests_waiting"] == 0
    assert found["heedful_kv_cache_usage_ratio"] == 0
    assert found["heedful_aborted_total"] == 0


def test_equal_beginnings_are_read_once_and_change_nothing(
    server: tuple[TestClient, Server], models: Models
) -> None:
    client, shared = server
    system = "the cat sat on the mat . " * 6
    slots = shared.models["org/talker"].batch.slots  # type: ignore[union-attr]
    reused = []
    opened = slots.open
    slots.open = lambda ids, length: reused.append(opened(ids, length)) or reused[-1]  # type: ignore[method-assign]
    for ending in ("a dog", "the mat", "a dog"):
        prompt = models.talker.tokenizer.encode(system + ending)
        body = {"model": "org/talker", "prompt": [prompt], "max_tokens": 8, "temperature": 0}
        text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert text == heedful.generate(models.talker, prompt, max_tokens=8, details=True).text
    assert reused[0].reused == 0
    assert all(slot.reused > 20 for slot in reused[1:])


def test_the_server_bounds_every_answer(models: Models) -> None:
    app, server = create_openai_app([make_served_model("only", models.talker)], limits=Limits(tokens=5))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for path, body in (("completions", {"prompt": "the"}), ("chat/completions", {"messages": MESSAGES})):
            asked = {"model": "only", "temperature": 0, **body}
            answer = client.post(f"/v1/{path}", json=asked).json()
            assert answer["usage"]["completion_tokens"] == 5
            assert answer["choices"][0]["finish_reason"] == "length"
    server.engine.close()
