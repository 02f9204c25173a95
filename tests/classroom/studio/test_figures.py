"""The page of figures: the server sends what heedful.view draws, and the page needs to know none of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.classroom import figures as view
from tests.classroom.studio.conftest import KINDS, SEQUENCES, TEXT, get, traced
from tests.classroom.studio.test_snippets import ran


# Heads of other kinds predict no words; cells without attention have no positions and no steps.
@pytest.mark.parametrize("kind", [*KINDS, "classifier", "tagger", "spans", "lstm", "mamba"])
def test_every_figure_that_is_offered_is_drawn(client: TestClient, kind: str) -> None:
    found = traced(client, kind)
    listed = get(client, f"/api/models/{kind}/figures")["figures"]
    assert all(row["about"] and "`" not in row["about"] for row in listed)
    names = {row["name"] for row in listed}
    for name in names:
        answer = client.get(f"/api/trace/{found['id']}/figures/{name}")
        assert answer.status_code == 200, answer.text
    assert names >= ({"embeddings"} if kind == "vectors" else {"attention", "heads", "embeddings", "model"})
    assert ("surprisal" in names) == (kind in (*SEQUENCES, "lstm", "mamba"))
    assert ("beams" in names) == (kind in ("decoder", "encoder-decoder", "rnn", "lstm", "mamba"))
    assert ("positions" in names) == (kind not in ("vectors", "rnn", "lstm", "mamba"))


def test_a_figure_of_the_page_is_that_of_python(
    client: TestClient, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    found = traced(client, "decoder")
    figure = get(client, f"/api/trace/{found['id']}/figures/surprisal")
    _, names = ran(figure.pop("python"))
    assert names["seen"].to_dict() | {"python": ""} == figure | {"python": ""}


@pytest.mark.parametrize(("format", "start"), [("html", "<!doctype"), ("svg", "<?xml"), ("csv", "panel,row")])
def test_a_figure_is_sent_as_the_file_that_python_saves(
    client: TestClient, models: Path, format: str, start: str
) -> None:
    found = traced(client, "decoder")
    answer = client.get(f"/api/trace/{found['id']}/figures/surprisal", params={"format": format})
    figure = view.surprisal(heedful.load(models / "decoder"), TEXT)
    assert answer.text.startswith(start)
    assert answer.text == getattr(figure, f"to_{format}")()
    assert answer.headers["content-disposition"] == f'attachment; filename="surprisal.{format}"'


def test_a_figure_that_is_none_is_refused(client: TestClient) -> None:
    answer = client.get(f"/api/trace/{traced(client, 'decoder')['id']}/figures/suprisal")
    assert answer.status_code == 422
    assert "surprisal" in answer.json()["error"]["hint"]
    assert set(view.FIGURES) <= {getattr(heedful.view, name) for name in view.__all__}
