"""A server on a real port, asked by the client it is for; the command, from its first line to its end."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

import heedful
from heedful.serve import openai_server as served_model
from heedful.serve.guard import AccessRules
from heedful.serve.http_connection import bind_socket
from heedful.serve.openai_app import Draining, Server, create_openai_app, run_until_signal
from tests.serve.asking import Slow, run_async
from tests.serve.conftest import Models

HELLO: Any = [{"role": "user", "content": "the cat"}]
KEY = "sesam"


@dataclass(frozen=True)
class Running:
    port: int
    server: Server
    handle: Draining

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@pytest.fixture
def running(models: Models) -> Iterator[Running]:
    """In a thread; it ends when the test does."""
    app, server = create_openai_app(models.all(), queue=1, rules=AccessRules(api_key=KEY))
    sock = bind_socket(0)
    found: list[Draining] = []
    thread = threading.Thread(
        target=run_until_signal, args=(app, server, sock), kwargs={"on_ready": found.append}
    )
    thread.start()
    while not found or not found[0].started:
        time.sleep(0.01)
    yield Running(sock.getsockname()[1], server, found[0])
    found[0].stop()
    found[0].stop()
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def client(running: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=running.url, api_key=KEY, max_retries=0, timeout=30) as found:
        yield found


def test_the_client_lists_writes_and_embeds(client: openai.OpenAI, models: Models) -> None:
    assert [m.id for m in client.models.list()] == ["decoder", "org/talker", "encoder", "translator"]
    assert client.models.retrieve("org/talker").id == "org/talker"
    about = (client.models.retrieve("encoder").model_extra or {})["heedful"]
    assert (about["task"], about["inputs"], about["endpoints"]) == ("fill-mask", ["text"], ["/v1/embeddings"])
    text = heedful.generate(models.decoder, "the cat", max_tokens=8)
    whole = client.completions.create(model="decoder", prompt="the cat", max_tokens=8, temperature=0)
    assert whole.choices[0].text == text
    parts = client.completions.create(
        model="decoder", prompt="the cat", max_tokens=8, temperature=0, stream=True
    )
    assert "".join(part.choices[0].text for part in parts) == text
    texts = ["the cat", "a dog"]
    found = client.embeddings.create(model="encoder", input=texts)  # asks for base64 by itself
    expected = heedful.embed(models.encoder, texts)
    for row, vector in zip(found.data, expected.tolist(), strict=True):
        assert row.embedding == pytest.approx(vector, abs=1e-6)


def test_the_client_streams_a_conversation(client: openai.OpenAI) -> None:
    asked: Any = {"model": "org/talker", "messages": HELLO, "max_tokens": 9, "temperature": 0}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.content or ()) == 9
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    end = text[-3:]  # the helper takes an answer that was cut by its length for a failure
    with client.chat.completions.stream(**asked, stop=end) as stream:
        assert stream.get_final_completion().choices[0].message.content == text[: text.find(end)]


def test_the_async_client_does_the_same(running: Running, models: Models) -> None:
    async def scene() -> list[str]:
        async with openai.AsyncOpenAI(base_url=running.url, api_key=KEY, max_retries=5) as client:

            async def one(prompt: str) -> str:
                made = await client.completions.create(
                    model="decoder", prompt=prompt, max_tokens=6, temperature=0, stream=True
                )
                return "".join([part.choices[0].text async for part in made])

            return [await one("the cat"), *await asyncio.gather(one("a dog"), one("the mat"))]

    prompts = ["the cat", "a dog", "the mat"]
    assert run_async(scene()) == [heedful.generate(models.decoder, p, max_tokens=6) for p in prompts]


def test_errors_are_those_the_client_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nobody", prompt="a")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="decoder", prompt=[5] * 99)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="decoder", messages=HELLO, temperature=9)
    assert wrong.value.param == "temperature"
    assert wrong.value.request_id
    stranger = client.with_options(api_key="other")
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


@pytest.mark.parametrize("streamed", [True, False])
def test_a_connection_that_is_cut_frees_the_engine(running: Running, streamed: bool) -> None:
    slow = Slow()
    slow.take_over(running.server)
    body = json.dumps({"model": "decoder", "prompt": "a", "stream": streamed, "max_tokens": 60})
    with closing(http.client.HTTPConnection("127.0.0.1", running.port)) as wire:
        wire.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {KEY}"})
        wait(lambda: slow.tokens > 3)
    wait(lambda: running.server.engine.is_idle)
    seen = slow.tokens
    time.sleep(0.05)
    assert slow.tokens == seen


def test_a_full_line_is_told_to_the_client(running: Running, client: openai.OpenAI) -> None:
    slow = Slow()
    slow.take_over(running.server)
    asked: Any = {"model": "decoder", "prompt": "a", "stream": True, "max_tokens": 60}
    with client.completions.create(**asked) as first:
        next(iter(first))
        waiting = socket.create_connection(("127.0.0.1", running.port))
        line = json.dumps(asked).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
        waiting.sendall(f"{head}Content-Length: {len(line)}\r\n\r\n".encode() + line)
        wait(lambda: running.server.engine.waiting == 1)
        with pytest.raises(openai.RateLimitError) as full:
            client.completions.create(**asked)
        assert full.value.code == "queue_full"
        assert full.value.response.headers["retry-after"] == "1"
        waiting.close()
        wait(lambda: running.server.engine.waiting == 0)
    wait(lambda: running.server.engine.is_idle)


def test_half_a_body_holds_nobody_up(running: Running, client: openai.OpenAI) -> None:
    with socket.create_connection(("127.0.0.1", running.port)) as half:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
        half.sendall(f'{head}Content-Length: 500\r\n\r\n{{"model": "deco'.encode())
        assert client.completions.create(model="decoder", prompt="a", max_tokens=1).choices
    assert client.models.list().data


def test_a_failure_in_the_middle_reaches_the_client(running: Running, client: openai.OpenAI) -> None:
    slow = Slow()
    slow.take_over(running.server)
    stream = client.chat.completions.create(model="decoder", messages=HELLO, stream=True)
    for number, _ in enumerate(stream):
        if number == 3:
            break
    slow.fails = MemoryError()
    with pytest.raises(openai.APIError) as failed:
        list(stream)
    assert failed.value.code == "out_of_memory"


def test_a_first_signal_lets_the_last_answer_out(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(0.1)
    monkeypatch.setattr(served_model, "choose_slots", slow.slots)
    app, server = create_openai_app(models.all())
    sock, found = bind_socket(0), []
    port = sock.getsockname()[1]
    thread = threading.Thread(
        target=run_until_signal, args=(app, server, sock), kwargs={"on_ready": found.append, "patience": 0.6}
    )
    thread.start()
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as wire:
        wire.request(
            "POST", "/v1/completions", json.dumps({"model": "decoder", "prompt": "a", "stream": True})
        )
        wait(lambda: slow.tokens > 1)
        found[0].stop()
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as other:
            other.request("GET", "/health")
            assert other.getresponse().status == 503
        text = wire.getresponse().read().decode()
    thread.join(20)
    assert not thread.is_alive()
    assert '"code":"shutting_down"' in text
    assert text.endswith("data: [DONE]\n\n")


def test_the_command_says_what_it_serves_answers_and_ends_on_a_signal(models: Models) -> None:
    line = [sys.executable, "-m", "heedful.cli", "serve", str(models.folder), "--port", "0"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().strip())
        try:
            assert (url.hostname, url.path) == ("127.0.0.1", "/v1")
            with closing(http.client.HTTPConnection(url.netloc, timeout=60)) as wire:
                body = json.dumps({"model": "small", "prompt": "the cat", "temperature": 0, "max_tokens": 4})
                wire.request("POST", "/v1/completions", body)
                answer = json.loads(wire.getresponse().read())
        finally:
            process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=60)
    assert answer["choices"][0]["text"] == heedful.generate(models.decoder, "the cat", max_tokens=4)
    assert (process.returncode, said) == (0, "")
    assert "no chat template: a conversation is read as plain lines" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines; give --api-key"),
        (["--api-key", ""], "the key is empty"),
        (["--chat-template", "nowhere.jinja"], "no file or folder nowhere.jinja"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    models: Models, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from heedful.cli import main

    with pytest.raises(SystemExit) as stop:
        main(["serve", str(models.folder), "--port", "0", *options])
    assert stop.value.code == 3
    assert words in capsys.readouterr().err.replace("\nhint: ", "; ")


def test_importing_the_command_imports_no_server_and_no_torch() -> None:
    code = "import sys, heedful.serve, heedful.cli.servers\n"
    code += "print({'torch', 'fastapi', 'starlette', 'uvicorn'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"


def wait(true: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)
