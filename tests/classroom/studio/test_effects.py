"""Which heads matter: several switched off side by side, told as they are done, stopped when nobody waits."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from heedful.classroom.studio.traces import Studio
from heedful.core.progress import call_between_steps
from heedful.interp.inputs import Input, reading
from heedful.interp.intervene import ablation as effects
from heedful.interp.intervene.ablation import ablate, each_head_effect, head_effects
from tests.classroom.browser.conftest import Server
from tests.classroom.studio.conftest import SEQUENCES, TEXT, events, traced
from tests.properties.tiny import ALL, tiny

IDS = [5, 9, 2, 7]


def one_at_a_time(
    model: Any, given: Input, paths: dict[str, int], mean: Input | None = None
) -> dict[str, Any]:
    change = lambda path, h: float(ablate(model, given, heads={path: [h]}, mean=mean).change.mean())
    return {path: [change(path, h) for h in range(heads)] for path, heads in paths.items()}


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "rnnsearch", "deepseek-v3", "gla", "albert"])
def test_heads_in_one_batch_have_the_effects_they_have_alone(family: str, mean: bool) -> None:
    model = tiny(family)
    given = reading(model, IDS)
    usual = given if mean else None
    found = head_effects(model, given, mean=usual)
    wanted = one_at_a_time(model, given, {path: len(row) for path, row in found.items()}, usual)
    assert found.keys() == wanted.keys()
    for path, row in found.items():
        assert row == pytest.approx(wanted[path], rel=1e-3, abs=1e-9), path


def test_sixteen_heads_take_one_pass_and_not_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, runs = tiny("gpt2", heads=8, layers=2), []
    run = Input.run
    monkeypatch.setattr(
        Input, "run", lambda self, *a, **k: runs.append(k.get("repeat", 1)) or run(self, *a, **k)
    )
    given = reading(model, IDS)
    assert len(list(each_head_effect(model, given, {"blocks.0.attn": 8, "blocks.1.attn": 8}))) == 16
    assert runs == [1, 16]


def test_a_batch_stays_small_where_the_vocabulary_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "MAX_BYTES", 1)
    model = tiny("gpt2")
    given = reading(model, IDS)
    assert len(list(each_head_effect(model, given, {"blocks.0.attn": 4}))) == 4


def test_the_work_is_left_in_the_middle_of_a_pass() -> None:
    model, seen = tiny("gpt2"), []

    def stop() -> None:
        seen.append(1)
        if len(seen) == 5:
            raise TimeoutError

    with call_between_steps(stop), pytest.raises(TimeoutError):
        list(each_head_effect(model, reading(model, IDS), {"blocks.0.attn": 4}))
    assert len(seen) == 5


@pytest.mark.parametrize("kind", SEQUENCES)
def test_progress_is_told_until_it_is_done(client: TestClient, kind: str) -> None:
    found = traced(client, kind)
    group = found["groups"][-1]
    answer = client.get(f"/api/trace/{found['id']}/effects", params={"group": group["name"]})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *steps, (last, done) = events(answer)
    assert last == "done"
    heads = sum(group["heads"])
    assert [name for name, _ in steps] == ["progress"] * len(steps)
    assert [step["of"] for _, step in steps] == [heads] * len(steps)
    assert steps[-1][1]["done"] == heads
    assert {path: len(row) for path, row in done["effects"].items()} == dict(
        zip(group["layers"], group["heads"], strict=True)
    )
    names: dict[str, Any] = {}
    exec(compile(done["python"], "snippet", "exec"), names)


def test_a_second_look_needs_no_second_run(client: TestClient, studio: Studio) -> None:
    found = traced(client, "decoder")
    ask = lambda: events(client.get(f"/api/trace/{found['id']}/effects", params={"group": "blocks.attn"}))
    first = ask()
    again = ask()
    assert again[-1] == first[-1]
    assert len(again) == 1


def test_an_unknown_group_is_refused_before_anything_runs(client: TestClient) -> None:
    found = traced(client, "decoder")
    answer = client.get(f"/api/trace/{found['id']}/effects", params={"group": "blocks.atn"})
    assert answer.status_code == 422


@pytest.fixture
def server(models: Path, tmp_path: Path) -> Iterator[Server]:
    running = Server(models, tmp_path).start()
    yield running
    running.stop()


def test_a_tab_that_is_closed_lets_go_of_the_model_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One head in a pass of a third of a second: the eight heads of two layers would take almost three."""
    monkeypatch.setattr(effects, "MAX_ROWS", 1)
    runs, run = [], Input.run

    def slow(self: Input, *args: Any, **more: Any) -> Any:
        runs.append(self)
        time.sleep(0.3)
        return run(self, *args, **more)

    client = TestClient(server.app, base_url="http://127.0.0.1")
    found = traced(client, "rotary", TEXT)  # 2 layers × 4 heads
    monkeypatch.setattr(Input, "run", slow)
    with socket.create_connection(("127.0.0.1", server.port)) as tab:
        path = f"/api/trace/{found['id']}/effects?group=blocks.attn"
        tab.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        read = b""
        while b"event: progress" not in read:
            read += tab.recv(4096)
    before = len(runs)
    held = server.app.state.studio.registry.get("rotary")
    while held.worker.waiting:
        assert len(runs) <= before + 3
        time.sleep(0.02)
    assert len(runs) < 1 + 8  # the plain pass, and not every head


def test_every_family_that_attends_has_effects() -> None:
    for family in ALL:
        model = tiny(family)
        found = head_effects(model, IDS)
        assert all(kl >= -1e-9 for row in found.values() for kl in row), family
