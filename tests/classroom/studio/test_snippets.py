"""Every "copy Python" runs as it stands, and gives the numbers of the page."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

from heedful.classroom.studio.snippets import VIEWS
from heedful.serve.json_response import json_bytes
from tests.classroom.studio.conftest import KINDS, SEQUENCES, TEXT, get, tensor, traced


def ran(python: str) -> tuple[str, dict[str, Any]]:
    names: dict[str, Any] = {}
    said = io.StringIO()
    with contextlib.redirect_stdout(said), torch.no_grad():
        exec(compile(python, "snippet", "exec"), names)
    return said.getvalue(), names


@pytest.mark.parametrize("kind", SEQUENCES)
def test_the_pattern_of_the_snippet_is_that_of_the_page(client: TestClient, kind: str) -> None:
    for more in ({}, {"edit": {"heads": {}}}, {"edit": {"tokens": {"1": 5}}}):
        found = traced(client, kind, **more)
        layer = found["groups"][-1]["layers"][-1]
        python = get(client, f"/api/trace/{found['id']}/python", view="attention", name=layer, head=0)[
            "python"
        ]
        _, names = ran(python)
        got = tensor(client, f"/api/trace/{found['id']}/tensor", name=f"{layer}.pattern", head=0)
        np.testing.assert_allclose(names["seen"][layer].values[0].numpy(), got, atol=1e-6)


def test_the_snippet_of_an_edited_run_edits(client: TestClient) -> None:
    found = traced(client, "decoder", edit={"heads": {"blocks.0.attn": [0]}})
    ran(found["python"])
    python = get(client, f"/api/trace/{found['id']}/python", view="attention", name="blocks.1.attn")["python"]
    _, names = ran(python)
    got = tensor(client, f"/api/trace/{found['id']}/tensor", name="blocks.1.attn.pattern")
    np.testing.assert_allclose(names["watch"]["blocks.1.attn.pattern"][0].numpy(), got, atol=1e-6)


@pytest.mark.parametrize("view", sorted(set(VIEWS) - {"ablate", "steps", "attribution", "effects"}))
def test_every_view_has_lines_that_run(client: TestClient, view: str) -> None:
    found = traced(client, "decoder")
    name = "blocks.0.attn" if view in ("attention", "words") else "blocks.0.output"
    said, _ = ran(get(client, f"/api/trace/{found['id']}/python", view=view, name=name)["python"])
    assert said


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_beside_each_answer_run(client: TestClient, kind: str) -> None:
    found = traced(client, kind)
    base = f"/api/trace/{found['id']}"
    paths = [f"/api/models/{kind}", f"/api/models/{kind}/positions",
             f"/api/models/{kind}/space/map?count=9", f"/api/models/{kind}/space/neighbours?word=cat",
             f"/api/models/{kind}/space/analogy?a=the&b=cat&c=dog"]  # fmt: skip
    if kind != "vectors":
        topic = get(client, f"/api/models/{kind}")["topics"][0]
        paths += [f"{base}/{p}" for p in ("order", "states", "lens", "surprisal", "reach", "scores", "top")]
        paths += [f"{base}/explain?topic={topic}", f"{base}/attribution?method=gradient"]
    for path in paths:
        assert ran(get(client, path)["python"])[0], path
    assert ran(found["python"])[0]
    assert ran(
        client.post("/api/tokenize", json={"model": kind, "text": TEXT}).json()["tokenizers"][0]["python"]
    )[0]


def test_the_lines_of_a_prediction_print_the_token(client: TestClient) -> None:
    found = traced(client, "decoder")
    answer = client.post(
        "/api/predict", json={"trace": found["id"], "temperature": 1.1, "top_k": 9, "seed": 4}
    ).json()
    said, _ = ran(answer["python"])
    assert said.strip() == repr([answer["token"]["text"]])


def test_the_lines_of_a_task_print_its_result(client: TestClient) -> None:
    body = {"model": "decoder", "task": "text-generation", "inputs": {"text": "the cat"},
            "parameters": {"max_tokens": 4}}  # fmt: skip
    answer = client.post("/api/play", json=body).json()
    assert ran(answer["python"])[0].strip() == repr(answer["result"])
    body = {"text": TEXT, "a": {"model": "decoder"}, "b": {"model": "rotary"}}
    assert ran(client.post("/api/compare", json=body).json()["python"])[0]
    body = {"model": "encoder", "word": "cat", "sentences": ["the cat"]}
    assert ran(client.post("/api/space/contextual", json=body).json()["python"])[0]


@pytest.mark.parametrize("kind", SEQUENCES)
@pytest.mark.parametrize(
    "path", ["surprisal", "reach", "neighbours?count=3&name=embed.output", "attribution?method=gradient"]
)
def test_the_snippet_is_the_call_that_gave_the_answer(client: TestClient, kind: str, path: str) -> None:
    answer = get(client, f"/api/trace/{traced(client, kind)['id']}/{path}")
    _, names = ran(answer.pop("python"))
    assert json.loads(json_bytes(names["seen"].to_dict())) == answer
