"""The studio's token: only who knows the printed address is let in."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from heedful.classroom.studio.studio_app import create_studio_app

TOKEN = "a-random-token"


@pytest.fixture
def fresh(tmp_path: Path) -> TestClient:
    app = create_studio_app(models_folder=tmp_path, runs_folder=tmp_path, token=TOKEN)
    return TestClient(app, base_url="http://127.0.0.1")


@pytest.mark.parametrize("path", ["/", "/exercises", "/static/studio.js", "/api/status", "/api/exercises"])
def test_nothing_is_answered_without_the_token(fresh: TestClient, path: str) -> None:
    answer = fresh.get(path)
    assert answer.status_code == 401
    assert "the address that heed studio printed" in answer.json()["error"]["hint"]


def test_python_is_not_graded_without_the_token(fresh: TestClient) -> None:
    body = {"text": "raise SystemExit", "names": ["softmax"]}
    assert fresh.post("/api/exercises/grade", json=body).status_code == 401
    assert fresh.post(f"/api/exercises/grade?token={TOKEN}", json=body).status_code == 401
    wrong = {"Authorization": "Bearer another", "Cookie": "heed-studio=x; token"}
    assert fresh.post("/api/exercises/grade", json=body, headers=wrong).status_code == 401


def test_the_printed_address_lets_a_browser_in_and_goes_on_without_the_token(fresh: TestClient) -> None:
    answer = fresh.get(f"/attention?m=prose&token={TOKEN}")
    assert 'content="0;url=/attention?m=prose"' in answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert fresh.get("/attention?m=prose").status_code == 200
    assert fresh.get("/api/exercises").status_code == 200


def test_an_address_cannot_lead_to_another_host(fresh: TestClient) -> None:
    answer = fresh.get(f"http://127.0.0.1//elsewhere.example/?token={TOKEN}")
    assert "url=/elsewhere.example/" in answer.text


def test_a_wrong_token_in_the_address_is_refused(fresh: TestClient) -> None:
    answer = fresh.get("/?token=wrong")
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_a_program_sends_the_token_as_a_header(fresh: TestClient) -> None:
    assert fresh.get("/api/status", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_cookies_of_two_studios_have_different_names(fresh: TestClient, tmp_path: Path) -> None:
    other = TestClient(
        create_studio_app(models_folder=tmp_path, runs_folder=tmp_path, token="another"),
        base_url="http://127.0.0.1",
    )
    fresh.get(f"/?token={TOKEN}")
    other.get("/?token=another")
    assert set(fresh.cookies) & set(other.cookies) == set()
