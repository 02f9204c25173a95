"""Completions and conversations, whole and streamed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from fastapi.testclient import TestClient

import heedful
from heedful.decode.continuous import ContinuousBatch
from heedful.serve.openai_app import create_openai_app
from heedful.serve.openai_server import ServedModel, make_served_model
from tests.serve.asking import Scripted, events, said
from tests.serve.conftest import Models

GREEDY = {"temperature": 0, "max_tokens": 12}
HELLO = [{"role": "user", "content": "the cat"}]


def complete(client: TestClient, **body: object) -> dict:
    answer = client.post("/v1/completions", json={"model": "decoder", "prompt": "the cat", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def talk(client: TestClient, **body: object) -> dict:
    answer = client.post("/v1/chat/completions", json={"model": "org/talker", "messages": HELLO, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def scripted(models: Models) -> Iterator[TestClient]:
    """A server whose model writes one German sentence with a face in it."""
    tokenizer = models.decoder.tokenizer
    ids = [*tokenizer.encode("Käse 😀 für 5 € ende . aus", special=False), tokenizer.eos]
    app, shared = create_openai_app(
        [ServedModel("told", models.decoder, ContinuousBatch(Scripted(models.decoder, ids)), 64)]
    )
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client
    shared.engine.close()


def test_greedy_text_is_that_of_generate(client: TestClient, models: Models) -> None:
    whole = complete(client, **GREEDY)
    assert whole["choices"][0]["text"] == heedful.generate(models.decoder, "the cat", max_tokens=12)
    assert whole["object"] == "text_completion"
    assert whole["id"].startswith("cmpl-")
    assert whole["usage"] == {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14}


def test_a_stream_says_what_the_whole_says(client: TestClient) -> None:
    asked = {"model": "decoder", "prompt": ["the cat", "a dog"], **GREEDY}
    whole = client.post("/v1/completions", json=asked).json()["choices"]
    streamed = client.post("/v1/completions", json=asked | {"stream": True}).text
    assert [said(streamed, i) for i in range(2)] == [choice["text"] for choice in whole]
    assert {chunk["object"] for chunk in events(streamed)} == {"text_completion"}


def test_a_conversation_goes_through_the_template(client: TestClient, models: Models) -> None:
    whole = talk(client, **GREEDY)
    ids = models.talker.tokenizer.encode("<user>the cat<assistant>", special=False)
    own = heedful.generate(models.talker, ids, max_tokens=12, details=True)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": own.text, "refusal": None}
    assert whole["usage"]["prompt_tokens"] == len(ids)
    assert whole["object"] == "chat.completion"


def test_a_model_without_a_template_reads_plain_lines(client: TestClient, models: Models) -> None:
    whole = talk(client, model="decoder", **GREEDY)
    text = heedful.generate(models.decoder, "user: the cat\nassistant:", max_tokens=12)
    assert whole["choices"][0]["message"]["content"] == text


def test_parts_of_text_and_the_developer_are_read(client: TestClient) -> None:
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]
    messages = [{"role": "developer", "content": "a dog"}, {"role": "user", "content": parts}]
    plain = [{"role": "system", "content": "a dog"}, *HELLO]
    one, two = (talk(client, messages=m, **GREEDY)["choices"][0]["message"] for m in (messages, plain))
    assert one == two


def test_a_stream_of_a_conversation_has_the_contracts_chunks(client: TestClient) -> None:
    body = {"model": "org/talker", "messages": HELLO, "stream": True, **GREEDY}
    answer = client.post("/v1/chat/completions", json=body | {"stream_options": {"include_usage": True}})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    first, *middle, last, usage = events(answer.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(c["choices"][0]["delta"].keys() == {"content"} for c in middle)
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 12
    assert first["usage"] is None
    assert len({(c["id"], c["created"]) for c in events(answer.text)}) == 1
    without = events(client.post("/v1/chat/completions", json=body).text)
    assert not any("usage" in chunk for chunk in without)


def test_no_chunk_has_half_a_character(scripted: TestClient) -> None:
    body = {"model": "told", "messages": HELLO, "stream": True, "temperature": 0}
    text = scripted.post("/v1/chat/completions", json=body).text
    assert "\ufffd" not in text
    assert said(text) == "Käse 😀 für 5 € ende . aus"
    assert events(text)[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", ["ende", "5 € e", ["aus", " € "], "😀"])
def test_a_stop_string_across_chunks_is_never_shown(scripted: TestClient, stop: str | list[str]) -> None:
    body = {"model": "told", "prompt": "the", "temperature": 0, "max_tokens": 60, "stop": stop}
    whole = scripted.post("/v1/completions", json=body).json()["choices"][0]
    text = "Käse 😀 für 5 € ende . aus"
    expected = text[: min(text.find(s) for s in ([stop] if isinstance(stop, str) else stop))]
    assert (whole["text"], whole["finish_reason"]) == (expected, "stop")
    assert said(scripted.post("/v1/completions", json=body | {"stream": True}).text) == expected


def test_a_seed_gives_the_same_choices_again_and_they_differ(client: TestClient) -> None:
    one, two, other = (complete(client, n=3, seed=seed, top_p=0.9)["choices"] for seed in (7, 7, 8))
    assert one == two
    assert one != other
    assert [choice["index"] for choice in one] == [0, 1, 2]
    assert len({choice["text"] for choice in one}) == 3


def test_the_temperature_is_one_unless_said(client: TestClient) -> None:
    assert complete(client, seed=3) | {"id": 0, "created": 0} == complete(client, seed=3, temperature=1) | {
        "id": 0,
        "created": 0,
    }
    assert len({complete(client)["choices"][0]["text"] for _ in range(3)}) > 1


def test_a_bias_decides_and_top_k_one_is_greedy(client: TestClient, models: Models) -> None:
    cat = models.decoder.tokenizer.encode(" cat")[0]
    forced = complete(client, logit_bias={str(cat): 100}, max_tokens=3)
    assert forced["choices"][0]["text"] == " cat cat cat"
    drawn, greedy = complete(client, top_k=1), complete(client, temperature=0)
    assert drawn["choices"][0]["text"] == greedy["choices"][0]["text"]


def test_penalties_change_what_is_written(client: TestClient) -> None:
    plain = complete(client, **GREEDY)["choices"][0]["text"]
    assert complete(client, frequency_penalty=2, **GREEDY)["choices"][0]["text"] != plain
    assert complete(client, presence_penalty=2, **GREEDY)["choices"][0]["text"] != plain


def test_a_completion_has_sixteen_tokens_unless_said(client: TestClient) -> None:
    found = complete(client, temperature=0)
    assert found["usage"]["completion_tokens"] == 16
    assert found["choices"][0]["finish_reason"] == "length"


def test_more_tokens_than_fit_are_clamped(client: TestClient) -> None:
    found = complete(client, temperature=0, max_tokens=1000, logit_bias={"0": -100})
    assert found["usage"]["total_tokens"] == 64
    assert found["choices"][0]["finish_reason"] == "length"


def test_both_names_of_the_length_are_known(client: TestClient) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        assert talk(client, temperature=0, **{name: 3})["usage"]["completion_tokens"] == 3


def test_ids_are_prompts_too(client: TestClient, models: Models) -> None:
    ids = models.decoder.tokenizer.encode("the cat")
    texts = [complete(client, prompt=p, **GREEDY)["choices"][0]["text"] for p in ("the cat", ids, [ids])]
    assert len(set(texts)) == 1


def test_echo_with_logprobs_scores_the_prompt(client: TestClient, models: Models) -> None:
    """As lm-eval asks: token_logprobs[:-1] are those of the prompt, the last is the token written."""
    ids = models.decoder.tokenizer.encode("the cat sat on the mat .")
    body = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    found = complete(client, **body)["choices"][0]
    with torch.no_grad():
        logs = models.decoder(torch.tensor([ids]))[0].log_softmax(-1)
    expected = [float(logs[t, ids[t + 1]]) for t in range(len(ids) - 1)]
    said = found["logprobs"]
    assert said["token_logprobs"][0] is None
    assert said["top_logprobs"][0] is None
    assert said["token_logprobs"][1:-1] == pytest.approx(expected, abs=1e-5)
    assert len(said["tokens"]) == len(said["text_offset"]) == len(said["top_logprobs"]) == len(ids) + 1
    assert found["text"].startswith("the cat sat on the mat .")
    assert "".join(said["tokens"][:-1]) == "the cat sat on the mat ."
    assert max(said["top_logprobs"][-1].values()) == said["token_logprobs"][-1]
    only = complete(client, **body | {"max_tokens": 0})["choices"][0]
    assert only["text"] == "the cat sat on the mat ."
    assert only["logprobs"]["token_logprobs"] == pytest.approx(said["token_logprobs"][:-1])


def test_an_echo_is_streamed_too(client: TestClient) -> None:
    body = {"model": "decoder", "prompt": "the cat", "echo": True, "logprobs": 0, **GREEDY}
    whole = client.post("/v1/completions", json=body).json()["choices"][0]
    streamed = client.post("/v1/completions", json=body | {"stream": True}).text
    assert said(streamed) == whole["text"]
    parts = [c["choices"][0]["logprobs"] for c in events(streamed) if c["choices"][0]["logprobs"]]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [x for part in parts for x in part[name]] == pytest.approx(whole["logprobs"][name])


def test_chat_logprobs_have_bytes_and_the_likeliest(client: TestClient) -> None:
    found = talk(client, logprobs=True, top_logprobs=3, **GREEDY)["choices"][0]
    entries = found["logprobs"]["content"]
    assert len(entries) == 12
    for entry in entries:
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"])
        assert len(entry["top_logprobs"]) == 3
        assert math.exp(entry["logprob"]) <= 1
    raw = bytes(b for entry in entries for b in entry["bytes"])
    assert raw.decode("utf-8", errors="replace") == found["message"]["content"]


def test_an_encoder_decoder_reads_the_prompt_as_its_source(client: TestClient, models: Models) -> None:
    own = heedful.generate(models.translator, "the cat sat", max_tokens=12)
    assert complete(client, model="translator", prompt="the cat sat", **GREEDY)["choices"][0]["text"] == own
    messages = [*HELLO, {"role": "user", "content": "the cat sat"}]
    whole = talk(client, model="translator", messages=messages, **GREEDY)
    assert whole["choices"][0]["message"]["content"] == own


def test_a_template_of_ones_own_takes_the_place_of_the_models(models: Models) -> None:
    one = make_served_model("talker", models.talker, template="{{ messages[-1].content }}")
    assert one.conversation(HELLO) == models.talker.tokenizer.encode("the cat", special=False)


def test_a_probability_that_is_no_number_is_said(models: Models) -> None:
    class Broken(Scripted):
        def logits(self, at: int) -> torch.Tensor:
            return super().logits(at) * math.nan

    batch = ContinuousBatch(Broken(models.decoder, [1]))
    app, shared = create_openai_app([ServedModel("broken", models.decoder, batch, 64)])
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/completions", json={"model": "broken", "prompt": "the"})
    shared.engine.close()
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "numerical_error")
    assert answer.headers["x-should-retry"] == "false"


def test_several_choices_of_a_conversation_are_streamed_apart(client: TestClient) -> None:
    body = {"model": "org/talker", "messages": HELLO, "n": 2, "seed": 5, "max_tokens": 6}
    whole = client.post("/v1/chat/completions", json=body).json()["choices"]
    streamed = client.post("/v1/chat/completions", json=body | {"stream": True}).text
    assert [said(streamed, i) for i in range(2)] == [choice["message"]["content"] for choice in whole]
    roles = [c["choices"][0]["index"] for c in events(streamed) if "role" in c["choices"][0]["delta"]]
    assert roles == [0, 1]
