"""The sliders choose the token that Python chooses for the same seed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

import heedful
from heedful.decode.sampling import draw, generator, uniforms, warp
from heedful.decode.settings import GenerationSettings
from tests.classroom.studio.conftest import get, tensor, traced

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0}, {"temperature": 0.7}, {"temperature": 2.0, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 1.0, "min_p": 0.3}, {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 0.0}, {"temperature": 1.0, "typical": 0.5},
]  # fmt: skip


def by_the_page(z: np.ndarray, how: dict[str, Any], u: float) -> int:
    """What docs/studio-api.md says the page does, in float64."""
    z = z.astype(np.float32)
    if how["temperature"] == 0:
        return int(z.argmax())
    if how["temperature"] != 1:
        z = (z / np.float32(how["temperature"])).astype(np.float32)
    z = z.astype(np.float64)

    def softmax(z: np.ndarray) -> np.ndarray:
        e = np.exp(z - z.max())
        out: np.ndarray = e / e.sum()
        return out

    if how.get("top_k"):
        z = np.where(z < np.sort(z)[-how["top_k"]], -math.inf, z)
    if how.get("top_p") and how["top_p"] < 1:
        order = np.argsort(-z, kind="stable")
        reached = int((np.cumsum(softmax(z)[order]) < how["top_p"]).sum())
        z = np.where(z < z[order[min(reached, len(z) - 1)]], -math.inf, z)
    if how.get("min_p"):
        p = softmax(z)
        z = np.where(p < how["min_p"] * p.max(), -math.inf, z)
    below = np.cumsum(softmax(z))
    return int(np.argmax(below > u * below[-1]))


@pytest.mark.parametrize("how", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder", "rnn", "encoder"])
def test_server_library_and_page_choose_one_token(client: TestClient, kind: str, how: dict[str, Any]) -> None:
    found = traced(client, kind)
    logits = tensor(client, f"/api/trace/{found['id']}/logits", position=-1).astype(np.float32)
    settings = GenerationSettings(**how)
    for seed in range(3):
        answer = client.post("/api/predict", json={"trace": found["id"], "seed": seed, **how}).json()
        (u,) = get(client, "/api/draw", seed=seed, count=1)["u"]
        z = torch.from_numpy(logits)[None]
        drawn = (
            draw(warp(settings, z), uniforms([generator(seed)], 1)[:, 0])
            if how["temperature"]
            else z.argmax(-1)
        )
        assert answer["token"]["id"] == int(drawn[0])
        assert answer["u"] == (u if how["temperature"] else None)
        if "typical" not in how:
            assert by_the_page(logits, how, u) == answer["token"]["id"]


def test_the_table_tells_where_u_fell(client: TestClient) -> None:
    found = traced(client, "decoder")
    how = {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "seed": 3, "count": 400}
    answer = client.post("/api/predict", json={"trace": found["id"], **how}).json()
    row = next(r for r in answer["table"] if r["id"] == answer["token"]["id"])
    assert row["low"] <= answer["u"] < row["high"]
    assert sum(r["final"] for r in answer["table"]) == pytest.approx(1, abs=1e-5)
    assert answer["kept"] == sum(r["final"] > 0 for r in answer["table"]) <= 20
    assert answer["counts"]["top_k"] == 20
    assert all(r["p"] > 0 for r in answer["table"])


def test_the_steps_of_a_seed_are_those_of_generate(client: TestClient, models: Path) -> None:
    """Each token that `generate` draws is the one the page draws with the number of that step."""
    model = heedful.load(models / "decoder")
    ids = model.tokenizer.encode("the cat")
    written = heedful.generate(model, ids, max_tokens=6, temperature=1.4, seed=11)
    for step, token in enumerate(written):
        found = traced(client, "decoder", ids=[*ids, *written[:step]])
        asked = {"trace": found["id"], "temperature": 1.4, "seed": 11, "step": step}
        assert client.post("/api/predict", json=asked).json()["token"]["id"] == token


def test_a_setting_that_cannot_be_is_refused_in_one_line(client: TestClient) -> None:
    found = traced(client, "decoder")
    for wrong in ({"temperature": -1}, {"top_p": 0.0}, {"top_k": 0}, {"position": 99}):
        answer = client.post("/api/predict", json={"trace": found["id"], **wrong})
        assert answer.status_code == 422, wrong
        assert answer.json()["error"]["code"] == "cannot"
    assert client.post("/api/predict", json={"trace": found["id"], "seed": -1}).status_code == 400
    assert client.get("/api/draw?seed=-1").status_code == 422


def test_a_model_that_predicts_no_words_says_so(client: TestClient) -> None:
    for kind, word in (("tagger", "tags"), ("vectors", "no words")):
        answer = client.post("/api/predict", json={"trace": traced(client, kind)["id"]})
        assert answer.status_code == 422
        assert word in answer.json()["error"]["message"]
