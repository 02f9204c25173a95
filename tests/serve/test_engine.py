"""One thread, a bounded line: who leaves stops the work, one too many is told, who comes first is first."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

import heedful
from heedful.core.progress import report_progress
from heedful.decode.continuous import GenerationTask
from heedful.decode.request import make_request
from heedful.decode.settings import GenerationSettings
from heedful.serve import openai_responses as streams
from heedful.serve import openai_server as served_model
from heedful.serve.engine import Engine, Work
from heedful.serve.json_response import Json
from heedful.serve.openai_app import Limits, Server, create_openai_app
from heedful.serve.openai_errors import OpenAIError
from heedful.serve.openai_server import make_served_model
from tests.serve.asking import LOOP_THREAD, Caller, Slow, events, run_async, said, until
from tests.serve.conftest import Models

BODY = {"model": "decoder", "prompt": "the cat", "max_tokens": 50}


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    made = Slow()
    monkeypatch.setattr(served_model, "choose_slots", made.slots)
    return made


@pytest.fixture
def made(models: Models) -> Iterator[Any]:
    """A way to make servers that are closed at the end."""
    servers: list[Server] = []

    def make(**how: Any) -> tuple[Any, Server]:
        app, server = create_openai_app(models.all(), **how)
        servers.append(server)
        return app, server

    yield make
    for server in servers:
        server.engine.close()
        assert not server.engine._thread.is_alive()


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_goes_away_stops_the_work(slow: Slow, made: Any, streamed: bool) -> None:
    async def scene() -> None:
        app, server = made()
        caller = Caller(app, "/v1/completions", BODY | {"stream": streamed})
        asking = asyncio.create_task(caller())
        await until(lambda: slow.tokens >= 5)
        caller.left.set()
        await asking
        await until(lambda: server.engine.is_idle)
        seen = slow.tokens
        await asyncio.sleep(0.05)
        assert slow.tokens == seen
        slow.pause = 0.0
        other = Caller(app, "/v1/completions", BODY)  # the engine is free for the next
        again = asyncio.create_task(other())
        await until(lambda: slow.tokens > seen)
        other.left.set()
        await again

    run_async(scene())


def test_no_more_than_a_token_is_computed_for_nobody(slow: Slow, made: Any) -> None:
    async def scene() -> None:
        app, server = made()
        caller = Caller(app, "/v1/completions", BODY)
        asking = asyncio.create_task(caller())
        await until(lambda: slow.tokens >= 3)
        slow.held.clear()
        await asyncio.sleep(0.02)
        seen = slow.tokens
        caller.left.set()
        await asking
        slow.held.set()
        await until(lambda: server.engine.is_idle)
        assert slow.tokens <= seen + 1

    run_async(scene())


def test_who_leaves_the_line_makes_room_and_is_never_begun(slow: Slow, made: Any) -> None:
    async def scene() -> None:
        app, server = made(queue=1)
        first, second, third = (Caller(app, "/v1/completions", BODY) for _ in range(3))
        slow.held.clear()  # so the first is not done, however seldom a busy machine runs this loop
        running = asyncio.create_task(first())
        await until(lambda: slow.begun == 1)
        waiting = asyncio.create_task(second())
        await until(lambda: server.engine.waiting == 1)
        await third()
        assert third.status == 429
        assert '"queue_full"' in third.text
        assert (b"retry-after", b"1") in third.sent[0]["headers"]
        second.left.set()
        await waiting
        assert server.engine.waiting == 0
        fourth = Caller(app, "/v1/completions", BODY)
        later = asyncio.create_task(fourth())
        await until(lambda: server.engine.waiting == 1)
        first.left.set()
        slow.held.set()
        await until(lambda: slow.begun == 2)
        fourth.left.set()
        await asyncio.gather(running, later)

    run_async(scene())


def test_a_full_queue_counts_only_requests_that_have_to_wait(models: Models) -> None:
    """Rows are free for four of the seven requests that come before the engine's next step."""

    async def scene() -> None:
        _, server = create_openai_app([make_served_model("decoder", models.decoder, max_rows=4)], queue=2)
        batch = server.models["decoder"].batch
        begun, free = threading.Event(), threading.Event()

        def block(rows: Any) -> Any:
            begun.set()
            assert free.wait(60)
            return rows

        server.engine.submit(Work(rows=[1], compute=block))
        assert await asyncio.to_thread(begun.wait, 60)
        request = make_request(models.decoder, GenerationSettings(max_tokens=2))
        for _ in range(6):
            server.engine.submit(Work(batch=batch, task=GenerationTask(request, [[5]])))
        with pytest.raises(OpenAIError, match="2 requests are waiting already, which is the most"):
            server.engine.submit(Work(batch=batch, task=GenerationTask(request, [[5]])))
        free.set()
        await until(lambda: server.engine.is_idle)
        server.engine.close()

    run_async(scene())


def test_rows_of_several_requests_are_computed_together_and_each_gets_its_own(made: Any) -> None:
    async def scene() -> None:
        engine, sizes = Engine(64), []
        gate = threading.Event()

        def double(rows: Any) -> Any:
            gate.wait(60)
            sizes.append(len(rows))
            return [2 * row for row in rows]

        jobs = [engine.submit(Work(rows=[10 * n, 10 * n + 1], compute=double)) for n in range(20)]
        gate.set()
        assert [await job.collect() for job in jobs] == [[20 * n, 20 * n + 2] for n in range(20)]
        assert sum(sizes) == 40
        assert len(sizes) <= 3  # the first may begin alone
        engine.close()

    run_async(scene())


def test_a_row_that_fails_ends_its_own_request_alone(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        engine = Engine(64)
        gate = threading.Event()

        def invert(rows: Any) -> Any:
            gate.wait(60)
            return [1 / row for row in rows]

        jobs = [engine.submit(Work(rows=[n], compute=invert)) for n in (1, 2, 0, 4)]
        gate.set()
        assert [await jobs[i].collect() for i in (0, 1, 3)] == [[1.0], [0.5], [0.25]]
        with pytest.raises(OpenAIError, match="ZeroDivisionError"):
            await jobs[2].collect()
        engine.close()

    with caplog.at_level(logging.CRITICAL, "heedful.serve"):
        run_async(scene())


def test_first_come_first_served(made: Any) -> None:
    async def scene() -> list[int]:
        engine, order = Engine(8), []
        gate = threading.Event()

        def run(number: int, rows: Any) -> Any:
            gate.wait(60)
            order.append(number)
            return rows

        jobs = [engine.submit(Work(rows=[number], compute=partial(run, number))) for number in range(5)]
        gate.set()
        for task in jobs:
            assert await task.collect()
        engine.close()
        return order

    assert run_async(scene()) == [0, 1, 2, 3, 4]


def test_the_event_loop_answers_while_the_engine_works(slow: Slow, made: Any) -> None:
    async def scene() -> None:
        app, _ = made()
        slow.held.clear()  # a token that takes as long as it likes
        busy = Caller(app, "/v1/completions", BODY)
        asking = asyncio.create_task(busy())
        await until(lambda: slow.begun == 1)
        for path in ("/tokenize", "/v1/completions"):
            other = Caller(app, path, {"model": "decoder", "prompt": "the", "max_tokens": -1})
            await other()
            assert other.status == (200 if path == "/tokenize" else 400)
        assert slow.tokens == 0
        slow.held.set()
        busy.left.set()
        await asking

    run_async(scene())


def test_a_request_that_takes_too_long_is_ended(slow: Slow, made: Any) -> None:
    async def scene() -> None:
        app, server = made(limits=Limits(seconds=0.1))
        caller = Caller(app, "/v1/completions", BODY)
        await caller()
        assert caller.status == 504
        assert (b"x-should-retry", b"false") in caller.sent[0]["headers"]
        streamed = Caller(app, "/v1/completions", BODY | {"stream": True})
        await streamed()
        assert streamed.status == 200
        assert events(streamed.text)[-1]["error"]["code"] == "timeout"
        await until(lambda: server.engine.is_idle)

    run_async(scene())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("a secret of the server"), "internal_error"),
        (MemoryError(), "out_of_memory"),
        (torch.OutOfMemoryError("cuda"), "out_of_memory"),
    ],
)
def test_a_failure_is_told_and_the_engine_goes_on(
    slow: Slow, made: Any, error: Exception, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        app, _ = made()
        slow.fails = error
        for streamed in (False, True):  # before the first token a failure has a status, streamed or not
            caller = Caller(app, "/v1/completions", BODY | {"stream": streamed})
            await caller()
            assert caller.status == 500
            assert f'"{code}"' in caller.text
            assert "secret" not in caller.text
        slow.fails = None
        caller = Caller(app, "/v1/chat/completions", {"model": "decoder", "stream": True, "messages": [
            {"role": "user", "content": "a"}]})  # fmt: skip
        slow.stops_at = 5
        asking = asyncio.create_task(caller())
        await until(lambda: len(caller.sent) > 2)
        slow.fails, slow.stops_at = error, sys.maxsize
        await asking
        assert caller.status == 200
        assert events(caller.text)[-1]["error"]["code"] == code

    with caplog.at_level(logging.CRITICAL, "heedful.serve"):
        run_async(scene())


@pytest.mark.parametrize("where", ["open", "close", "piece"])
def test_a_failure_anywhere_in_a_step_is_told_and_the_engine_goes_on(
    slow: Slow, made: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError("broken")

    async def scene() -> None:
        app, server = made()
        slots = server.models["decoder"].batch.slots
        with monkeypatch.context() as broken:
            broken.setattr(slots, where, fail)
            caller = Caller(app, "/v1/completions", BODY | {"max_tokens": 2})
            await caller()
            assert (caller.status, '"internal_error"' in caller.text) == (500, True)
        slots.live.clear()  # what could not be closed
        server.models["decoder"].batch.rows.clear()
        caller = Caller(app, "/v1/completions", BODY | {"max_tokens": 2})
        await caller()
        assert caller.status == 200

    run_async(scene())


def test_a_silent_stream_is_pinged(slow: Slow, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PING_SECONDS", 0.02)

    async def scene() -> None:
        app, _ = made()
        slow.held.clear()
        caller = Caller(app, "/v1/completions", BODY | {"stream": True})
        asking = asyncio.create_task(caller())
        await until(lambda: b": ping\n\n" in [m.get("body") for m in caller.sent])
        assert caller.status == 200
        slow.held.set()
        await until(lambda: "data: " in caller.text)
        caller.left.set()
        await asking

    run_async(scene())


def test_a_client_that_stops_reading_is_given_up(
    slow: Slow, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STALLED_SECONDS", 0.05)

    async def scene() -> None:
        app, server = made()
        caller = Caller(app, "/v1/completions", BODY | {"stream": True})
        asking = asyncio.create_task(caller())
        await until(lambda: len(caller.sent) > 2)
        caller.reading.clear()
        await asking
        await until(lambda: server.engine.is_idle)

    run_async(scene())


def test_a_body_that_was_half_sent_asks_for_nothing(slow: Slow, made: Any) -> None:
    async def scene() -> None:
        app, server = made()
        caller = Caller(app, "/v1/completions", BODY)
        caller.whole = False
        asking = asyncio.create_task(caller())
        await asyncio.sleep(0.02)
        caller.left.set()
        await asking
        assert caller.sent == []
        assert server.engine.is_idle
        assert slow.begun == 0

    run_async(scene())


def test_a_server_that_ends_refuses_what_is_new_and_tells_who_waits(slow: Slow, made: Any) -> None:
    async def scene() -> None:
        app, server = made()
        running = Caller(app, "/v1/completions", BODY | {"stream": True})
        waiting = Caller(app, "/v1/completions", BODY)
        slow.stops_at = 3
        tasks = [asyncio.create_task(running())]
        await until(lambda: slow.tokens > 1)
        tasks.append(asyncio.create_task(waiting()))
        await until(lambda: server.engine.waiting == 1)
        server.engine.draining = True
        late = Caller(app, "/v1/completions", BODY)
        await late()
        assert late.status == 503
        assert '"shutting_down"' in late.text
        slow.stops_at = 6
        await until(lambda: slow.tokens > 3)  # what is begun goes on
        server.engine.abandon()
        slow.stops_at = sys.maxsize
        await asyncio.gather(*tasks)
        assert events(running.text)[-1]["error"]["code"] == "shutting_down"
        assert waiting.status == 503
        await until(lambda: server.engine.is_idle)

    run_async(scene())


def test_a_reader_far_behind_is_given_up(made: Any, slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.serve.engine.MAX_UNREAD_ITEMS", 10)
    slow.stops_at = 3

    async def scene() -> None:
        app, server = made()
        caller = Caller(app, "/v1/completions", BODY | {"stream": True})
        asking = asyncio.create_task(caller())
        await until(lambda: len(caller.sent) > 2)
        caller.reading.clear()  # it reads nothing more, while tokens come
        slow.stops_at = sys.maxsize
        await until(lambda: server.engine.is_idle)
        assert slow.tokens < 40
        caller.reading.set()
        await asking
        assert events(caller.text)[-1]["error"]["code"] == "slow_reader"

    run_async(scene())


def test_sixty_four_streams_at_once_get_each_their_own_text(made: Any, models: Models) -> None:
    words = ["the", "cat", "a dog", "mat ."]
    texts = [heedful.generate(models.decoder, word, max_tokens=5) for word in words]

    async def scene() -> None:
        app, server = made()
        body = {"model": "decoder", "max_tokens": 5, "temperature": 0, "stream": True}
        callers = [Caller(app, "/v1/completions", body | {"prompt": words[i % 4]}) for i in range(64)]
        await asyncio.gather(*(caller() for caller in callers))
        assert [said(caller.text) for caller in callers] == texts * 16
        await until(lambda: server.engine.is_idle)

    run_async(scene())


def test_large_answers_are_not_written_out_in_the_event_loop(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    render = Json.render

    def seen(self: Any, content: Any) -> bytes:
        threads.add(threading.current_thread().name)
        return render(self, content)

    monkeypatch.setattr(Json, "render", seen)

    async def scene() -> None:
        app, _ = made()
        asked = {
            "/v1/embeddings": {"model": "encoder", "input": ["the"]},
            "/v1/completions": {"model": "decoder", "prompt": "the", "max_tokens": 2},
            "/tokenize": {"model": "decoder", "prompt": "the"},
            "/detokenize": {"model": "decoder", "tokens": [5]},
        }
        for path, body in asked.items():
            caller = Caller(app, path, body)
            await caller()
            assert caller.status == 200

    run_async(scene())
    assert threads
    assert LOOP_THREAD not in threads


def test_quick_work_is_done_between_the_steps_of_a_slow_function() -> None:
    answered, steps = threading.Event(), 0

    def write(rows: Any) -> Any:
        nonlocal steps
        while not answered.is_set():
            time.sleep(0.001)
            steps += 1
            assert steps < 5000
            report_progress("tokens", steps)
        return rows

    async def scene() -> None:
        engine = Engine()
        slow = engine.submit(Work(rows=["text"], compute=write, slow=True))
        await until(lambda: steps > 3)
        assert await engine.submit(Work(rows=[1, 2], compute=list)).collect() == [1, 2]
        other = engine.submit(Work(rows=["other"], compute=lambda rows: rows, slow=True))
        answered.set()
        assert await slow.collect() == ["text"]
        assert await other.collect() == ["other"]
        engine.close()

    run_async(scene())


def test_a_slow_function_ends_when_nobody_waits_for_it() -> None:
    ended = threading.Event()

    def write(rows: Any) -> Any:
        try:
            for step in range(5000):
                time.sleep(0.001)
                report_progress("tokens", step)
        finally:
            ended.set()

    async def scene() -> None:
        engine = Engine()
        job = engine.submit(Work(rows=["text"], compute=write, slow=True))
        await until(lambda: bool(engine.writing))
        job.end()
        await until(lambda: engine.is_idle)
        assert ended.is_set()
        assert not job.items
        engine.close()

    run_async(scene())
