"""The shuffle test: what moves, what stays in place, and over which predictions the change is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

import heedful
from heedful.classroom.studio.studio_app import create_studio_app
from heedful.interp.inputs import Input
from heedful.interp.intervene.ablation import Ablation
from tests.classroom.studio.conftest import TEXT, get, traced

LONG = "the quick brown fox jumps over the lazy dog"


def order(client: TestClient, found: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    answer: dict[str, Any] = get(client, f"/api/trace/{found['id']}/order", seed=seed)
    return answer


def shuffled_ids(model: Any, answer: dict[str, Any]) -> list[int]:
    return [model.tokenizer.id(name) for name in answer["shuffled"]]


@pytest.mark.parametrize("kind", ["encoder-decoder", "rnn"])
def test_an_encoder_decoder_is_asked_at_every_word_of_a_fixed_target(
    client: TestClient, models: Path, kind: str
) -> None:
    found = traced(client, kind, LONG, target="a cat and a dog sat")
    model, answer = heedful.load(models / kind), order(client, found)
    target = torch.tensor([[t["id"] for t in found["target"]]])
    run = lambda ids: Input(torch.tensor([ids]), (), target).run(model)
    with torch.no_grad():
        before, after = run([t["id"] for t in found["tokens"]]), run(shuffled_ids(model, answer))
    change = Ablation(after, before).change
    assert answer["kl"] == pytest.approx(float(change.mean()), rel=1e-4)
    assert (answer["over"], answer["positions"]) == ("target", target.shape[1])
    at = int(change.argmax())
    assert answer["position"] == at  # the table is of the word that moved most, and says so
    assert answer["token"] == found["written"][at]["shown"]


def test_a_trained_translator_notices_the_order_of_its_source(tmp_path: Path) -> None:
    app = create_studio_app(models_folder=tmp_path, runs_folder=tmp_path)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for model in ("translate-en-de", "rnnsearch-en-de"):
            found = traced(client, model, "The old man reads a book in the garden.")
            assert order(client, found)["kl"] > 0.5, model


@pytest.mark.parametrize("kind", ["decoder", "rotary", "lstm", "mamba"])
@pytest.mark.parametrize("seed", range(3))
def test_a_decoder_keeps_its_last_token_in_place(client: TestClient, kind: str, seed: int) -> None:
    found = traced(client, kind, LONG)
    answer, names = order(client, found, seed), [t["text"] for t in found["tokens"]]
    assert answer["shuffled"][-1] == names[-1]
    assert answer["shuffled"] != names
    assert sorted(answer["shuffled"]) == sorted(names)
    assert (answer["over"], answer["position"]) == ("next", len(names) - 1)


def without_positions(models: Path, folder: Path, kind: str) -> None:
    """The same model, blind to order: its positions are zero, and a causal one has a single layer."""
    model: Any = heedful.load(models / kind)
    with torch.no_grad():
        model.embed.position.weight.zero_()
        if kind == "decoder":  # a second layer would see the order through the causal mask
            for parameter in model.blocks[1].attn.o.parameters():
                parameter.zero_()
    heedful.save(model, folder / kind)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "tagger", "spans", "classifier"])
def test_a_model_that_knows_no_order_does_not_notice(models: Path, tmp_path: Path, kind: str) -> None:
    without_positions(models, tmp_path, kind)
    with TestClient(create_studio_app(models_folder=tmp_path), base_url="http://127.0.0.1") as blind:
        assert order(blind, traced(blind, kind, LONG))["kl"] < 1e-9
    with TestClient(create_studio_app(models_folder=models), base_url="http://127.0.0.1") as seeing:
        assert order(seeing, traced(seeing, kind, LONG))["kl"] > 1e-8


def test_a_mask_is_asked_where_it_stands(client: TestClient) -> None:
    answer = order(client, traced(client, "encoder", "the cat [MASK] on the mat ."))
    assert answer["shuffled"][answer["position"]] == "[MASK]"
    assert answer["over"] == "token"


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder", "rnn", "encoder"])
def test_the_python_of_the_shuffle_test_prints_its_change(client: TestClient, kind: str) -> None:
    answer = order(client, traced(client, kind))
    names: dict[str, Any] = {}
    exec(compile(answer["python"], "snippet", "exec"), names)
    assert float(names["seen"].change.mean()) == pytest.approx(answer["kl"], rel=1e-4, abs=1e-9)


def test_a_text_that_has_one_order_is_refused_with_a_way_out(client: TestClient) -> None:
    found = traced(client, "decoder", "the cat")
    answer = client.get(f"/api/trace/{found['id']}/order")
    assert answer.status_code == 422
    assert "longer text" in answer.json()["error"]["hint"]


def test_a_model_without_a_head_has_no_prediction_to_change(models: Path, tmp_path: Path) -> None:
    model: Any = heedful.load(models / "encoder")
    headless = heedful.build(
        "bert", vocab=model.config.vocab, dim=16, layers=2, heads=2, context=24, head="none"
    )
    headless.tokenizer = model.tokenizer
    heedful.save(headless, tmp_path / "vectors-only")
    with TestClient(create_studio_app(models_folder=tmp_path), base_url="http://127.0.0.1") as client:
        answer = order(client, traced(client, "vectors-only", TEXT))
    assert answer["kl"] is None
    assert answer["cosine"] < 1
