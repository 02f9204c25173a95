"""What goes wrong is said and breaks nothing: long, large and hostile texts, strangers, lost pages."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from heedful.classroom.studio import trace_builder
from heedful.classroom.studio.studio_app import content_security_policy, create_studio_app
from heedful.classroom.studio.traces import Studio
from tests.classroom.studio.conftest import KINDS, SEQUENCES, TEXT, get, traced

HOSTILE = {
    "html": "<img src=x onerror=alert(1)> <script>alert(1)</script>",
    "control": "a\x00b\x1b[31m\x7f\u202e \u2028 ok",
    "surrogate": "half \ud83d of a pair",
    "mixed": "日本語 עברית 👩‍👩‍👧 \u200bcat",
    "format": "{0} %s ${x} ' \" \\ \n",
}


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_an_input_longer_than_the_context_is_cut_and_it_is_said_how_much(
    client: TestClient, kind: str
) -> None:
    whole = client.post("/api/tokenize", json={"model": kind, "text": TEXT * 9}).json()["tokenizers"][0][
        "count"
    ]
    context = get(client, f"/api/models/{kind}")["context"]["tokens"]
    found = traced(client, kind, TEXT * 9)
    assert len(found["tokens"]) == context
    assert found["cut"] == whole - context
    assert f"the last {whole - context} were cut" in found["warnings"][0]
    if kind == "encoder":
        assert found["tokens"][-1]["text"] == "[SEP]"  # what ends every text stays


def test_a_model_without_a_limit_is_traced_to_the_studios(client: TestClient) -> None:
    found = traced(client, "lstm", "the cat " * 700)
    assert len(found["tokens"]) == trace_builder.MOST
    assert "the studio traces 1,024" in found["warnings"][0]


def test_writing_that_fills_the_context_says_so(client: TestClient) -> None:
    found = traced(client, "decoder", "the cat", generate=200)
    assert len(found["tokens"]) <= 33
    assert any("context was full" in w for w in found["warnings"])


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", SEQUENCES)
def test_a_hostile_text_stays_text(client: TestClient, kind: str, name: str) -> None:
    body = {"model": kind, "text": HOSTILE[name]}
    for path in ("/api/trace", "/api/tokenize"):
        # json.dumps escapes half a surrogate, as a browser does
        answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        shown = re.findall(r'"shown":"((?:[^"\\]|\\.)*)"', answer.text)
        assert not re.search(r"[\x00-\x1f\x7f]|\\u00[01]", "".join(shown))
    if name == "surrogate":
        assert "half characters" in answer.json()["warnings"][0]


def test_a_text_of_a_megabyte_is_cut_and_not_choked_on(client: TestClient) -> None:
    found = traced(client, "encoder", "the cat sat " * 80_000)
    assert len(found["tokens"]) == 24
    one_word = traced(client, "decoder", "x" * 50_000)
    assert len(one_word["tokens"]) == 32


def test_a_body_over_two_megabytes_is_refused_before_it_is_read(client: TestClient) -> None:
    answer = client.post("/api/trace", json={"model": "decoder", "text": "x" * 2_100_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")

    def pieces():  # type: ignore[no-untyped-def]  # without a Content-Length
        for _ in range(30):
            yield b"x" * 100_000

    answer = client.post("/api/trace", content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"host": "127.0.0.1.evil.example:80"},
                                     {"origin": "http://evil.example"}, {"origin": "null"}])  # fmt: skip
def test_strangers_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    for answer in (client.get("/api/status", headers=headers), client.get("/", headers=headers)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "bad_host")
    assert client.get("/api/status", headers={"origin": "http://127.0.0.1"}).status_code == 200


def test_everything_is_self_and_nothing_is_documented_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/attention", "/tour", "/api/status"):
        answer = client.get(path)
        rules = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
        assert rules["default-src"] == "'self'"
        assert rules["script-src"].startswith("'self'")
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "http" not in answer.headers["content-security-policy"]
    for path in ("/docs", "/redoc", "/openapi.json", "/static/../app.py", "/static/%2e%2e%2fapp.py", "/.env"):
        assert client.get(path).status_code == 404


def test_inline_scripts_of_the_page_are_allowed_by_their_hashes() -> None:
    rules = content_security_policy("<script>alert(1)</script><script src=/a.js></script><style>p{}</style>")
    assert rules.count("'sha256-") == 2
    assert "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='" in rules


def test_every_page_is_the_one_page(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><script src=/studio.js></script>")
    (tmp_path / "studio.js").write_text("1")
    client = TestClient(
        create_studio_app(static=tmp_path, models_folder=tmp_path), base_url="http://127.0.0.1"
    )
    pages = "play tokens attention steps predict layers states positions space train compare tour"
    for page in ("", *pages.split()):
        assert client.get(f"/{page}?m=x").text.startswith("<!doctype html>")
    for path in ("/studio.js", "/static/studio.js"):
        assert client.get(path).headers["content-type"].startswith("text/javascript")


def test_a_trace_that_is_no_longer_held_says_run_again(client: TestClient) -> None:
    answer = client.get("/api/trace/abcdef-1/lens")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (410, "trace_gone")
    assert "run again" in error["hint"]


def test_a_restarted_server_knows_nothing_of_old_traces(client: TestClient, models: Path) -> None:
    old = traced(client, "decoder")["id"]
    fresh = TestClient(create_studio_app(models_folder=models), base_url="http://127.0.0.1")
    assert fresh.get(f"/api/trace/{old}").status_code == 410
    assert fresh.get("/api/status").json()["boot"] != client.get("/api/status").json()["boot"]


def test_traces_are_bounded_in_bytes_and_the_oldest_goes_first(models: Path) -> None:
    app = create_studio_app(models_folder=models)
    client, studio = TestClient(app, base_url="http://127.0.0.1"), app.state.studio
    first = traced(client, "decoder")["id"]
    studio.traces.limit = int(studio.traces.state()["bytes"] * 2.5)
    others = [traced(client, "decoder")["id"] for _ in range(2)]
    assert client.get(f"/api/trace/{first}").status_code == 410
    assert all(client.get(f"/api/trace/{id}").status_code == 200 for id in others)
    assert studio.traces.state()["bytes"] <= studio.traces.limit


def test_a_value_over_the_budget_is_computed_again_when_asked_for(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = TestClient(create_studio_app(models_folder=models), base_url="http://127.0.0.1")
    kept = traced(client, "decoder")
    monkeypatch.setattr("heedful.classroom.studio.traces.TraceRecorder.__init__.__defaults__", (300,))
    short = traced(client, "decoder")
    assert kept["shapes"] == short["shapes"]
    path = {"name": "blocks.1.attn.pattern"}
    want = client.get(f"/api/trace/{kept['id']}/tensor", params=path).content
    assert client.get(f"/api/trace/{short['id']}/tensor", params=path).content == want


def test_a_newer_run_of_one_page_cancels_the_older_and_leaves_other_pages_alone(studio: Studio) -> None:
    first = studio.clients.ticket("page")
    other = studio.clients.ticket("another page")
    studio.clients.ticket("page")
    assert (first.off, other.off) == (True, False)
    assert studio.clients.ticket(None).off is False


def test_a_run_that_was_overtaken_is_answered_as_cancelled(client: TestClient, studio: Studio) -> None:
    held = studio.registry.get("decoder")
    gate, answers = threading.Event(), []
    held.worker.submit(gate.wait)  # the model is busy

    def ask() -> None:
        body = {"model": "decoder", "text": TEXT}
        answers.append(client.post("/api/trace", json=body, headers={"X-Client": "tab"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    while "tab" not in studio.clients._running or held.worker.waiting < 2:
        threading.Event().wait(0.01)
    threads[1].start()
    while held.worker.waiting < 3:
        threading.Event().wait(0.01)
    gate.set()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, 409]


def test_two_browsers_at_once_get_their_own_answers(client: TestClient) -> None:
    texts = ["the cat sat", "the quick brown fox jumps", "a dog", "king queen man woman"]
    found: dict[str, list[str]] = {}

    def ask(text: str) -> None:
        answer = client.post(
            "/api/trace", json={"model": "decoder", "text": text}, headers={"X-Client": text}
        )
        found[text] = [t["text"] for t in answer.json()["tokens"]]

    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {t: "".join(w).replace("Ġ", " ") for t, w in found.items()} == {t: t for t in texts}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_cannot_do_is_one_line_and_a_way_out(client: TestClient, kind: str) -> None:
    body = {"model": kind, "task": "question-answering", "inputs": {"question": "who?", "context": "the cat"}}
    answer = client.post("/api/play", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "cannot")
    assert error["message"]
    assert "\n" not in error["message"]


def test_requests_that_make_no_sense_name_the_field(client: TestClient) -> None:
    for body in ({}, {"model": "decoder", "text": 5}, {"model": "decoder", "text": "a", "generate": -1}):
        answer = client.post("/api/trace", json=body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["code"] == "bad_request"
    assert "generate" in answer.json()["error"]["message"]
    assert client.post("/api/trace", content=b"{").status_code == 400
    assert client.post("/api/trace", json={"model": "decoder"}).status_code == 422
    assert client.post("/api/trace", json={"model": "decoder", "text": ""}).status_code == 422
    assert client.post("/api/trace", json={"model": "decoder", "ids": [99999]}).status_code == 422
    for path in ("/api/nothing/here", "/static/nothing.js", "/nothing.png"):
        assert client.get(path).json()["error"]["code"] == "not_found"
    for path in ("/nowhere", "/attention/deeper"):  # a person reads this: the page says that nothing is there
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"][:9]) == (404, "text/html")
