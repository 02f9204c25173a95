"""Training runs: read whole, read while they are written, followed live; their checkpoints are models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.classroom.studio.routes import runs
from heedful.classroom.studio.studio_app import create_studio_app
from tests.classroom.studio.conftest import get, traced


def line(step: int, **values: float) -> str:
    return (
        json.dumps({"train/global_step": step} | {k.replace("_", "/", 1): v for k, v in values.items()})
        + "\n"
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "gpt"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(line(1, train_loss=4.0) + line(2, train_loss=3.5, eval_loss=3.9))
    (folder / "samples.jsonl").write_text(json.dumps({"train/global_step": 2, "text": "<b>once</b>"}) + "\n")
    (folder / "config.yaml").write_text("model: gpt2\n")
    return folder


@pytest.fixture
def page(run: Path) -> TestClient:
    return TestClient(
        create_studio_app(models_folder=run, runs_folder=run.parent), base_url="http://127.0.0.1"
    )


def test_a_run_is_curves_samples_and_checkpoints(page: TestClient, run: Path) -> None:
    (listed,) = get(page, "/api/runs")["runs"]
    assert (listed["id"], listed["steps"], listed["live"]) == ("gpt", 2, True)
    found = get(page, "/api/runs/gpt")
    assert found["metrics"]["train/loss"]["step"] == [1, 2]
    assert found["metrics"]["train/loss"]["value"] == [4.0, 3.5]
    assert found["metrics"]["eval/loss"]["value"] == [3.9]
    assert found["samples"] == [{"step": 2, "text": "<b>once</b>"}]
    assert found["config"] == "model: gpt2\n"


def test_half_a_line_is_left_for_later_and_a_damaged_one_is_counted(page: TestClient, run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write("{broken\n" + line(3, train_loss=3.0) + '{"train/global_step": 4, "train/lo')
    found = get(page, "/api/runs/gpt")
    assert found["metrics"]["train/loss"]["step"] == [1, 2, 3]
    assert found["skipped"] == 1
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ss": 2.5}\n')
    assert get(page, "/api/runs/gpt")["metrics"]["train/loss"]["value"][-1] == 2.5


def test_an_infinite_loss_is_no_curve_and_no_error(page: TestClient, run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"train/global_step": 3, "train/loss": Infinity, "train/grad_norm": NaN}\n')
    assert get(page, "/api/runs/gpt")["metrics"]["train/loss"]["step"] == [1, 2]
    assert get(page, "/api/runs")["runs"][0]["last"]["train/loss"] == "inf"


def test_an_unknown_run_is_answered_with_the_nearest(page: TestClient) -> None:
    answer = page.get("/api/runs/gtp")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
    assert "'gpt'" in answer.json()["error"]["hint"]
    assert page.get("/api/runs/..%2F..").status_code == 404


def test_what_is_written_is_followed_from_where_the_page_stopped(run: Path) -> None:
    events, end = runs.follow("gpt", run, 0, set())
    assert [e.split(b"\n")[0] for e in events] == [b"event: metrics"] * 2
    assert b"id: %d" % end in events[-1]
    assert runs.follow("gpt", run, end, set()) == ([], end)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(line(3, train_loss=3.0) + '{"half')
    events, later = runs.follow("gpt", run, end, set())
    assert b'"train/global_step":3' in events[0]
    assert runs.follow("gpt", run, later, set())[0] == []
    (run / "metrics.jsonl").write_text(line(1, train_loss=4.0))  # a resumed run forgets what it lost
    events, _ = runs.follow("gpt", run, later, set())
    assert events[0].startswith(b"event: reset")


def test_the_stream_goes_on_after_the_last_event(page: TestClient, run: Path) -> None:
    app = page.app
    studio = app.state.studio  # type: ignore[attr-defined]
    looks = iter([False, True])
    studio.stopping = lambda: next(looks)
    first = (run / "metrics.jsonl").read_text().index("\n") + 1
    text = page.get("/api/runs/gpt/live", headers={"Last-Event-ID": str(first)}).text
    assert text.count("event: metrics") == 1
    assert '"train/global_step":2' in text


def test_checkpoints_of_a_run_are_models(models: Path, run: Path) -> None:
    for step in (100, 200):
        heedful.save(heedful.load(models / "decoder"), run / "checkpoints" / f"step-{step:06d}")
    (run / "checkpoints" / "step-000300.part").mkdir()
    page = TestClient(
        create_studio_app(models_folder=models, runs_folder=run.parent), base_url="http://127.0.0.1"
    )
    assert get(page, "/api/runs/gpt")["checkpoints"] == [
        {"step": 100, "model": "gpt@100"}, {"step": 200, "model": "gpt@200"}]  # fmt: skip
    assert get(page, "/api/models/gpt@100")["run"] == "gpt"
    assert traced(page, "gpt@200")["prediction"]["top"] == traced(page, "decoder")["prediction"]["top"]


def test_where_there_is_no_report_an_example_is_shown(tmp_path: Path) -> None:
    client = TestClient(create_studio_app(runs_folder=tmp_path), base_url="http://127.0.0.1")
    (name,) = get(client, "/api/reports")["reports"]
    report = get(client, f"/api/reports/{name}")
    assert report["example"]
    assert report["path"] is None
    assert {"loss", "positions", "gradients"} <= {section["name"] for section in report["sections"]}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.json").write_text('{"title": "Mine", "sections": []}', encoding="utf-8")
    assert get(client, "/api/reports")["reports"] == ["mine"]
    assert not get(client, "/api/reports/mine")["example"]


def test_where_there_is_no_run_an_example_is_shown(tmp_path: Path) -> None:
    app = create_studio_app(models_folder=tmp_path, runs_folder=tmp_path)
    with TestClient(app, base_url="http://127.0.0.1") as empty:
        (listed,) = get(empty, "/api/runs")["runs"]
        assert listed["example"]
        assert not listed["live"]
        found = get(empty, f"/api/runs/{listed['id']}")
        loss = found["metrics"]["train/loss"]["value"]
        assert len(loss) >= 20
        assert loss[-1] < loss[0] - 1
        assert found["samples"][0]["text"]
        assert found["command"].startswith("heed train shakespeare-char-cpu")
        assert found["checkpoints"] == []
