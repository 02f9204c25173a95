"""The studio and a model that reads images: a text is drawn, traced, and shown where the model looked."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

import heedful
from heedful.classroom import figures as view
from heedful.classroom.studio.studio_app import create_studio_app
from heedful.core.errors import InputError
from heedful.core.images import draw_text
from tests.classroom.studio.conftest import get, tensor, traced
from tests.image_toy import reader, shape, vit
from tests.refusal import refused


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server over one tiny reader."""
    folder = tmp_path_factory.mktemp("models")
    heedful.save(reader(folder), folder / "reader")
    app = create_studio_app(models_folder=folder, runs_folder=folder)
    with TestClient(app, base_url="http://127.0.0.1") as found:
        yield found


def test_a_text_is_drawn_and_its_patches_are_traced(client: TestClient) -> None:
    found = traced(client, "reader", text="305")
    assert [token["text"] for token in found["tokens"][:3]] == ["[CLS]", "1,1", "1,2"]
    assert any("drawn" in said for said in found["warnings"])
    cross = next(group for group in found["groups"] if "cross" in group["name"])
    pattern = tensor(client, f"/api/trace/{found['id']}/tensor", name=f"{cross['layers'][0]}.pattern")
    assert pattern.shape[-1] == len(found["tokens"]) == 9
    assert np.allclose(pattern.sum(-1), 1, atol=1e-5)
    assert "draw_text('305', 16, 32)" in found["python"]


def test_the_page_of_figures_has_the_image_first_and_its_python_runs(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get(client, "/api/models/reader/figures")["figures"][0]["name"] == "image_attention"
    found = traced(client, "reader", text="305")
    for one in get(client, "/api/models/reader/figures")["figures"]:
        figure = get(client, f"/api/trace/{found['id']}/figures/{one['name']}")
        assert figure["kind"]
    shown = get(client, f"/api/trace/{found['id']}/figures/image_attention")
    model = client.app.state.studio.registry.get("reader").model  # type: ignore[attr-defined]
    direct = view.image_attention(model, draw_text("305", 16, 32))
    assert shown["title"] == direct.title.replace("vision-encoder-decoder", "reader")
    assert "data:image/png" in shown["drawn"]["light"]
    monkeypatch.chdir(tmp_path)
    exec(compile(shown["python"], "<python>", "exec"), {})
    assert (tmp_path / "image_attention.html").is_file()


def test_the_first_picture_reads_a_drawn_number(client: TestClient) -> None:
    assert "draw_text('2026', 16, 32)" in get(client, "/api/picture", model="reader")["python"]


def test_the_first_picture_knows_the_text_that_was_drawn(client: TestClient) -> None:
    assert get(client, "/api/picture", model="reader")["data"]["texts"] == ["2026"]
    assert get(client, "/api/picture", model="reader", text="305")["data"]["texts"] == ["305"]


def test_a_patch_is_neither_replaced_nor_shuffled(client: TestClient) -> None:
    answer = client.post("/api/trace", json={"model": "reader", "text": "1", "edit": {"tokens": {"0": "2"}}})
    assert answer.status_code == 422
    assert "cannot be replaced like a token" in answer.text
    found = traced(client, "reader", text="305")
    answer = client.get(f"/api/trace/{found['id']}/order")
    assert answer.status_code == 422
    assert "not shuffled" in answer.text
    assert client.get("/api/models/reader/speed").status_code == 422  # an image has one length


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server over a tiny ViT and CLIP's image encoder."""
    folder = tmp_path_factory.mktemp("encoders")
    vit(folder)
    sizes: dict[str, Any] = dict(dim=24, heads=3, layers=2, height=16, patch=8, project_dim=20, seed=0)
    heedful.save(heedful.build("clip-vision-model", **sizes), folder / "clip")
    app = create_studio_app(models_folder=folder, runs_folder=folder)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


@pytest.mark.parametrize("model", ["vit", "clip"])
def test_where_an_image_encoder_looks_is_offered_and_drawn(encoders: TestClient, model: str) -> None:
    assert get(encoders, f"/api/models/{model}")["reads"] == "images"
    assert get(encoders, f"/api/models/{model}/figures")["figures"][0]["name"] == "image_attention"
    trace = traced(encoders, model, text="305")
    figure = get(encoders, f"/api/trace/{trace['id']}/figures/image_attention")
    assert figure["kind"] == "image_attention"
    assert figure["data"]["panels"][0]["rows"] == ["layer 0", "layer 1"]
    assert "of all weight goes to [CLS]" in figure["note"]


def test_an_image_is_labelled_in_play(encoders: TestClient) -> None:
    assert get(encoders, "/api/models/vit")["tasks"] == ["image-classification"]
    file = io.BytesIO()
    shape("cross", 0).save(file, "PNG")
    sent = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    body = {"model": "vit", "task": "image-classification", "inputs": {"image": sent}}
    answer = encoders.post("/api/play", json=body).json()
    model = encoders.app.state.studio.registry.get("vit").model  # type: ignore[attr-defined]
    assert answer["result"] == heedful.pipeline(model=model)(shape("cross", 0))
    assert answer["figure"]["kind"] == "image_attention"


def play(client: TestClient, **inputs: str) -> Response:
    return client.post("/api/play", json={"model": "reader", "task": "image-to-text", "inputs": inputs})


@pytest.mark.filterwarnings("ignore:the text ends early")  # the tiny reader writes until its context is full
def test_play_reads_a_drawn_text_and_an_image_of_the_visitor(client: TestClient) -> None:
    record = get(client, "/api/models/reader")
    assert record["reads"] == "images"
    assert record["tasks"] == ["image-to-text"]
    image, file = draw_text("305", 16, 32), io.BytesIO()
    image.save(file, "PNG")
    sent = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    typed, drawn = play(client, text="305").json(), play(client, image=sent).json()
    model = client.app.state.studio.registry.get("reader").model  # type: ignore[attr-defined]
    assert typed["result"] == drawn["result"] == heedful.pipeline("image-to-text", model=model)(image)
    assert typed["figure"]["kind"] == drawn["figure"]["kind"] == "image_attention"
    assert typed["figure"]["data"] == drawn["figure"]["data"]
    exec(compile(typed["python"], "<python>", "exec"), {})


@pytest.mark.parametrize(
    "image",
    ["/etc/hostname", "data:image/png;base64,!!!", "data:image/png;base64,aGVsbG8=", "data:text/html,x"],
)
def test_what_is_no_image_is_refused_and_no_path_is_opened(client: TestClient, image: str) -> None:
    answer = play(client, image=image)
    assert answer.status_code == 422
    assert "image" in answer.json()["error"]["message"]
    body = {"model": "reader", "task": "image-to-text", "inputs": {"image": image}}
    assert client.post("/api/beams", json=body | {"parameters": {"beams": 2}}).status_code == 422
    assert client.post("/api/play", json=body | {"stream": True}).status_code == 422


def test_what_cannot_be_read_of_a_drawn_text_is_said(client: TestClient) -> None:
    read = play(client, text="305").json()["warnings"]
    assert not [said for said in read if "ends early" not in said]
    long, strange = (play(client, text=text).json()["warnings"] for text in ("30530530530", "3x"))
    assert any("squeezed" in said for said in long)
    assert any("'x'" in said for said in strange)
    assert any("'x'" in said for said in traced(client, "reader", text="3x")["warnings"])


def test_a_model_of_texts_and_images_is_refused_by_name(tmp_path: Path) -> None:
    sizes: dict[str, Any] = dict(height=16, patch=8, image_dim=24, image_layers=1, image_heads=3)
    clip = heedful.build("clip", vocab=99, dim=24, heads=3, layers=1, project_dim=20, **sizes)
    with refused(InputError, "reads a text and an image", hint="model.image"):
        view.attention(clip, shape("cross", 0))
    heedful.save(clip, tmp_path / "both")
    app = create_studio_app(models_folder=tmp_path, runs_folder=tmp_path)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.get("/api/models/both")
    assert answer.status_code == 422
    assert "reads a text and an image" in answer.json()["error"]["message"]
