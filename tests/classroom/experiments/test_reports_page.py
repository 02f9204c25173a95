"""Reports in the studio: listed, shown, and clear about what is missing or damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from heedful.classroom.experiments.report import Report, Section
from heedful.classroom.figures import panels
from heedful.classroom.studio.studio_app import create_studio_app


@pytest.fixture
def page(tmp_path: Path) -> TestClient:
    runs = tmp_path / "runs"
    lines = panels.lines(
        "loss", np.array([[2.0, 1.0], [2.0, np.nan]]), ["RNN", "LSTM"], [1, 2], axes=("y", "x")
    )
    table = panels.table("sizes", [["10"], ["12"]], ["RNN", "LSTM"], ["parameters"], axes=("system", ""))
    section = Section("loss", "Loss <b>", ["It falls."], [lines], [table])
    Report("A race", "heed race --quick", {"text": "x.txt"}, [section]).save(runs / "race")
    return TestClient(
        create_studio_app(models_folder=tmp_path, runs_folder=runs), base_url="http://127.0.0.1"
    )


def test_reports_are_listed_and_read(page: TestClient) -> None:
    assert page.get("/api/reports").json()["reports"] == ["race"]
    found = page.get("/api/reports/race").json()
    assert (found["title"], found["command"]) == ("A race", "heed race --quick")
    (section,) = found["sections"]
    assert section["text"] == ["It falls."]
    assert [p["as"] for p in section["figure"]["data"]["panels"]] == ["lines", "table"]
    assert page.get("/reports").status_code == 200


def test_a_report_that_is_not_there_or_damaged_is_one_clear_error(page: TestClient, tmp_path: Path) -> None:
    missing = page.get("/api/reports/rice")
    assert missing.status_code == 404
    assert "race" in missing.json()["error"]["hint"]
    (tmp_path / "runs/race/report.json").write_text('{"title": 3}')
    damaged = page.get("/api/reports/race")
    assert damaged.status_code >= 400
    assert "is not a report" in damaged.json()["error"]["message"]


def test_texts_are_escaped_in_the_page_and_numbers_stand_in_the_csv(page: TestClient, tmp_path: Path) -> None:
    folder = tmp_path / "runs/race"
    assert "Loss &lt;b&gt;" in (folder / "report.html").read_text(encoding="utf-8")
    assert "loss,loss,RNN,2,1.0" in (folder / "report.csv").read_text(encoding="utf-8").splitlines()
    assert "| RNN | 10 |" in (folder / "report.md").read_text(encoding="utf-8")
    assert (folder / "figures/loss.svg").is_file()
