"""The page of code exercises: its list, its hints, and grading in a process of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from heedful.classroom.exercises.number_exercises import EXERCISES, new_problem
from heedful.classroom.exercises.sheets import key_text

SOLUTIONS = Path(__file__).parents[1] / "exercises"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEED_STATE", str(tmp_path))


def states(client: TestClient) -> dict[str, str]:
    return {row["name"]: row["state"] for row in client.get("/api/exercises").json()["exercises"]}


def test_the_list_has_every_exercise_with_a_stub_and_no_hint_yet(client: TestClient) -> None:
    found = client.get("/api/exercises").json()
    assert len(found["exercises"]) == 15
    assert found["next"] == found["exercises"][0]["name"]
    for row in found["exercises"]:
        assert row["stub"].startswith(f"def {row['name']}(")
        ast.parse(row["file"])
        assert (row["hints"], row["levels"]) == ([], 3)
    ast.parse(found["file"])


def test_hints_are_given_one_by_one_and_stay(client: TestClient) -> None:
    first, second = (client.post("/api/exercises/attention/hint").json() for _ in range(2))
    assert (first["level"], second["level"]) == (1, 2)
    rows = {row["name"]: row for row in client.get("/api/exercises").json()["exercises"]}
    assert rows["attention"]["hints"] == [first["hint"], second["hint"]]
    assert (
        client.post("/api/exercises/atention/hint")
        .json()["error"]["hint"]
        .startswith("did you mean 'attention'")
    )


def test_a_text_and_a_file_are_graded_and_what_is_right_is_done(client: TestClient) -> None:
    path = SOLUTIONS / "variants" / "plain.py"
    text = path.read_text(encoding="utf-8")
    found = client.post("/api/exercises/grade", json={"text": text, "names": ["bpe_merge"]}).json()
    assert (found["right"], found["grades"][0]["inside"]["same"]) == (1, True)
    assert states(client)["bpe_merge"] == "done"
    wrong = {"path": str(SOLUTIONS / "mistakes" / "anna.py"), "names": ["bpe_merge", "skipgram_step"]}
    found = client.post("/api/exercises/grade", json=wrong).json()
    assert [grade["mistakes"] for grade in found["grades"]] == [["first_of_ties"], ["sign"]]
    assert repr(wrong["path"]) in found["python"]
    assert (states(client)["bpe_merge"], states(client)["skipgram_step"]) == ("done", "tried")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"text": "x = 1", "path": "solution.py"}, 422),
        ({"path": "nowhere.py"}, 404),
        ({"text": "x = 1", "names": ["gru_step"]}, 404),
        ({"text": 3}, 400),
    ],
)
def test_what_cannot_be_graded_is_one_line(client: TestClient, body: dict[str, object], status: int) -> None:
    answer = client.post("/api/exercises/grade", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_another_site_cannot_have_code_run(client: TestClient) -> None:
    headers = {"Origin": "http://elsewhere.example"}
    answer = client.post("/api/exercises/grade", json={"text": "def softmax(x): pass"}, headers=headers)
    assert answer.status_code == 403


def test_every_number_exercise_has_a_sheet_that_its_own_key_fills(client: TestClient) -> None:
    names = [row["name"] for row in client.get("/api/exercises/numbers").json()["exercises"]]
    assert names == list(EXERCISES)
    for name in names[:4]:
        sheet = client.get(f"/api/exercises/numbers/{name}", params={"seed": "alice"}).json()
        keys = {q.number: key_text(q) for q in new_problem(name, "alice").questions}
        assert [q["number"] for q in sheet["questions"]] == list(keys)
        marks = client.post(f"/api/exercises/numbers/{name}", json={"seed": "alice", "answers": keys}).json()
        assert marks["points"] == marks["total"] == len(keys)
        keys[1] = "77"
        marks = client.post(f"/api/exercises/numbers/{name}", json={"seed": "alice", "answers": keys}).json()
        assert marks["first_error"] == 1
