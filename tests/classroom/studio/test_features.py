"""Features of a dictionary on the page of figures: each number, from the texts of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient

import heedful
from heedful import view
from heedful.classroom.studio.features import FeatureSource
from heedful.classroom.studio.model_registry import ModelRegistry
from heedful.classroom.studio.studio_app import create_studio_app
from heedful.classroom.studio.traces import Studio
from heedful.core.errors import HeedfulError
from heedful.interp.activations import collect_activations
from heedful.interp.learn.dictionary import Dictionary, fit_dictionary, strongest_features
from tests.classroom.studio.conftest import get, traced
from tests.classroom.studio.made import LINES
from tests.classroom.studio.test_snippets import ran


@pytest.fixture
def dictionary(models: Path) -> Dictionary:
    width = heedful.load(models / "decoder").config.dim
    values = torch.randn(60, width, generator=torch.Generator().manual_seed(0))
    return fit_dictionary(values, values, "blocks.0.output", "blocks.0.output", width=10, k=3, steps=3)


@pytest.fixture
def page(models: Path, dictionary: Dictionary, tmp_path: Path) -> Iterator[TestClient]:
    """A studio with a dictionary, and the texts of a file."""
    (tmp_path / "texts.txt").write_text("\n".join([*LINES, "", " "]), encoding="utf-8")
    file = dictionary.save(tmp_path / "d.safetensors")
    app = create_studio_app(models_folder=models, dictionary=file, texts=tmp_path / "texts.txt")
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def test_a_feature_of_the_page_is_that_of_python(
    page: TestClient, models: Path, dictionary: Dictionary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    id = traced(page, "decoder")["id"]
    figure = get(page, f"/api/trace/{id}/figures/feature", feature=4)
    assert "Feature 4 of 10" in figure["title"]
    model = heedful.load(models / "decoder")
    texts = [model.tokenizer.encode(line)[:32] for line in LINES]
    assert figure["data"] == view.feature(model, dictionary, texts, 4).to_dict()["data"]
    ran(figure["python"])
    assert "Feature 4 of 10" in (tmp_path / "feature.html").read_text(encoding="utf-8")
    strongest = get(page, f"/api/trace/{id}/figures/feature")
    assert strongest["data"]["panels"][0]["title"] == "strongest tokens"


def test_the_strongest_features_of_the_text_are_listed(page: TestClient) -> None:
    trace = traced(page, "decoder")
    figure = get(page, f"/api/trace/{trace['id']}/figures/features")
    assert figure["kind"] == "features"
    assert page.get(f"/api/trace/{trace['id']}/figures/feature?format=svg&feature=2").text.startswith("<?xml")


def test_the_feature_shown_first_is_active_on_few_tokens(page: TestClient) -> None:
    studio: Studio = page.app.state.studio  # type: ignore[attr-defined]
    assert studio.features is not None
    with torch.no_grad():  # feature 7 is active on every token, and by far the strongest
        studio.features.dictionary.encoder.bias[7] = 1e4
    trace, loaded = traced(page, "decoder"), studio.registry.get("decoder")
    seen = studio.features.activations(loaded)
    assert int(seen.values.amax(0).argmax()) == 7
    (first,) = strongest_features(loaded.sequence, seen, 1)
    assert first != 7
    figure = get(page, f"/api/trace/{trace['id']}/figures/feature")
    assert f"Feature {first} of 10" in figure["title"]


def test_features_are_offered_for_models_that_have_the_values_of_the_dictionary(page: TestClient) -> None:
    rows = {row["name"]: row for row in get(page, "/api/models/decoder/figures")["figures"]}
    assert rows["feature"]["numbers"] == {"feature": [0, 9]}
    assert rows["surprisal"]["numbers"] == {}
    for other in ("vectors", "encoder-decoder"):
        names = [row["name"] for row in get(page, f"/api/models/{other}/figures")["figures"]]
        assert "feature" not in names


def test_a_dictionary_of_heads_fits_the_model_whose_heads_it_reads(models: Path, tmp_path: Path) -> None:
    loaded = ModelRegistry([], models, dict).get("decoder")
    name = "blocks.0.attn.heads"
    values = collect_activations(heedful.load(models / "decoder"), LINES, [name])[name].values
    for x, fits in ((values, True), (values[:, 1:], False)):
        file = fit_dictionary(x, x, name, name, width=10, k=3, steps=3).save(tmp_path / f"{fits}.safetensors")
        assert FeatureSource(file).fits(loaded) is fits


def test_an_unknown_feature_is_named(page: TestClient) -> None:
    answer = page.get(f"/api/trace/{traced(page, 'decoder')['id']}/figures/feature?feature=10")
    assert answer.status_code == 422
    assert "0 … 9" in answer.json()["error"]["hint"]


def test_a_dictionary_or_texts_that_cannot_be_read_are_an_error_at_once(
    dictionary: Dictionary, tmp_path: Path
) -> None:
    file = dictionary.save(tmp_path / "d.safetensors")
    (tmp_path / "empty.txt").write_text("\n \n")
    missing, empty = tmp_path / "no", tmp_path / "empty.txt"
    for path, texts in ((missing, None), (file, missing), (file, empty), (None, empty)):
        with pytest.raises(HeedfulError):
            create_studio_app(dictionary=path, texts=texts)
