"""Two models measured on the spot: loss by place, and speed by length."""

from __future__ import annotations

import json
import math
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

import heedful
from heedful.interp.inputs import Input
from heedful.interp.observe.lens import loss_by_position
from tests.classroom.browser.conftest import Server
from tests.classroom.studio.conftest import SEQUENCES, TEXT, get


def asked(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/losses", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_loss_at_a_place_is_the_mean_over_windows(client: TestClient, models: Path) -> None:
    model = heedful.load(models / "decoder")
    text = " ".join([TEXT] * 4)
    found = asked(client, model="decoder", text=text, window=6)
    ids = model.tokenizer.encode(text, special=False)
    cut = [ids[i : i + 6] for i in range(0, len(ids) - 5, 6)]
    before = model.tokenizer.encode("the")[: -len(model.tokenizer.encode("the", special=False))]
    rows = torch.tensor([[*before, *c] for c in cut])
    with torch.no_grad():
        logs = model(rows).log_softmax(-1)[:, :-1].gather(-1, rows[:, 1:, None])[..., 0]
    assert found["windows"] == len(cut) > 2
    assert found["position"] == list(range(1, rows.shape[1]))
    assert found["loss"] == pytest.approx((-logs.mean(0)).tolist(), abs=1e-5)
    assert set(found["count"]) == {len(cut)}
    names: dict[str, Any] = {}
    exec(compile(found["python"], "snippet", "exec"), names)


def test_an_encoder_hides_each_token_and_an_encoder_decoder_needs_a_target(client: TestClient) -> None:
    found = asked(client, model="encoder", text=TEXT, window=4)
    assert found["hidden"]
    assert 0 not in found["position"]  # nothing is asked about [CLS]
    assert asked(client, model="rnn", text=TEXT, target="a dog sat")["windows"] == 1
    answer = client.post("/api/losses", json={"model": "rnn", "text": TEXT})
    assert answer.status_code == 422
    assert answer.json()["error"]["hint"] == "give one"
    short = client.post("/api/losses", json={"model": "decoder", "text": ""})
    assert "too short" in short.json()["error"]["message"]


def test_losses_of_one_text_are_its_surprise(models: Path) -> None:
    from heedful.interp.observe.lens import surprisal

    model = heedful.load(models / "decoder")
    bits = surprisal(model, TEXT).bits
    found = loss_by_position(model, [TEXT, TEXT])
    assert found.loss[0] is None
    assert found.count[:2] == (0, 2)
    assert found.loss[1:] == pytest.approx([b * math.log(2) for b in bits[1:] if b is not None])


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=() if k in ("encoder", "decoder") else pytest.mark.slow) for k in SEQUENCES],
)
def test_speed_is_measured_at_lengths_that_the_model_reads(client: TestClient, kind: str) -> None:
    found = get(client, f"/api/models/{kind}/speed")
    assert found["read"]["length"] == sorted(found["read"]["length"])
    assert all(rate > 0 for rate in found["read"]["rate"])
    if kind in ("encoder", "decoder"):
        assert max(found["read"]["length"]) <= 32  # their contexts are 24 and 32 tokens
    assert (found["write"] is None) == (kind == "encoder")
    names: dict[str, Any] = {}
    exec(compile(found["python"], "snippet", "exec"), names)


@pytest.mark.parametrize("route", ["losses", "speed"])
def test_a_client_that_leaves_lets_go_of_the_model(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    """Every pass takes a third of a second, and a dozen of them are to be made."""
    server = Server(models, tmp_path).start()
    runs, run = [], Input.run

    def slow(self: Input, *args: Any, **more: Any) -> Any:
        runs.append(self)
        time.sleep(0.3)
        return run(self, *args, **more)

    held = server.app.state.studio.registry.get("decoder")
    monkeypatch.setattr(Input, "run", slow)
    body = json.dumps({"model": "decoder", "text": " ".join([TEXT] * 12), "window": 6}).encode()
    head = f"Host: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
    request = {
        "losses": f"POST /api/losses HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body,
        "speed": f"GET /api/models/decoder/speed HTTP/1.1\r\n{head}\r\n".encode(),
    }[route]
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request)
        while len(runs) < 2:
            time.sleep(0.02)
    before = len(runs)
    while held.worker.waiting:
        assert len(runs) <= before + 3
        time.sleep(0.02)
    server.stop()
