"""What there is and what it has: the catalogue and the capability record, told by parts and not by names."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.classroom.studio.studio_app import create_studio_app
from heedful.interp.observe.attention import attention
from heedful.weights.adapters import save_adapter
from tests.classroom.studio.conftest import KINDS, TEXT, get


def test_the_catalogue_names_every_folder_with_its_kind_and_loads_nothing(models: Path) -> None:
    app = create_studio_app(models_folder=models)
    found = get(TestClient(app, base_url="http://127.0.0.1"), "/api/models")
    kinds = {row["id"]: row["kind"] for row in found["models"] if row["source"] == "folder"}
    assert kinds["encoder"] == kinds["tagger"] == "encoder"
    assert kinds["decoder"] == kinds["lstm"] == "decoder"
    assert kinds["encoder-decoder"] == kinds["rnn"] == "encoder-decoder"
    assert kinds["vectors"] == "vectors"
    (words,) = [row for row in found["models"] if row["id"] == "words"]
    assert (words["source"], words["kind"], words["error"]) == ("bundled", "vectors", None)
    assert list(app.state.studio.registry.in_memory) == []
    assert found["default"] is not None


def test_a_model_given_on_the_command_line_comes_first_and_is_the_default(models: Path) -> None:
    app = create_studio_app([str(models / "rotary")], models_folder=models)
    found = get(TestClient(app, base_url="http://127.0.0.1"), "/api/models")
    assert found["models"][0]["id"] == found["default"] == "rotary"
    assert [row["id"] for row in found["models"]].count("rotary") == 1


def test_a_folder_that_cannot_be_read_is_listed_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    client = TestClient(create_studio_app(models_folder=tmp_path), base_url="http://127.0.0.1")
    (row,) = [r for r in get(client, "/api/models")["models"] if r["id"] == "broken"]
    assert row["kind"] is None
    assert "not JSON" in row["error"]
    assert client.get("/api/models/broken").status_code == 422


def test_an_adapter_is_listed_by_its_config_and_merged_when_loaded(models: Path, tmp_path: Path) -> None:
    base = heedful.load(models / "decoder")
    beside = tmp_path / "beside"
    heedful.lora(base, rank=2)
    heedful.save(base, beside)  # the weights, and the adapter beside them
    apart = save_adapter(base, tmp_path / "apart", base=str(models / "decoder"))
    (apart / "config.json").write_bytes((models / "decoder" / "config.json").read_bytes())
    client = TestClient(create_studio_app(models_folder=tmp_path), base_url="http://127.0.0.1")
    kinds = {row["id"]: (row["kind"], row["error"]) for row in get(client, "/api/models")["models"]}
    for name in ("apart", "beside"):
        assert kinds[name] == ("decoder", None)
        assert "block" in get(client, f"/api/models/{name}")["topics"]  # its matrices are plain
    assert "heedful.merge" in get(client, "/api/models/beside")["python"]


@pytest.mark.parametrize("kind", [*KINDS, "lstm", "rotary", "classifier", "tagger", "spans"])
def test_the_record_says_what_the_model_has(client: TestClient, models: Path, kind: str) -> None:
    record = get(client, f"/api/models/{kind}")
    if kind == "vectors":
        assert (record["attention"], record["recurrent"], record["counts"]) == ([], [], True)
        return
    model = heedful.load(models / kind)
    assert record["params"] == sum(p.numel() for p in model.parameters())
    patterns = attention(model, TEXT, [0, 5, 6] if record["kind"] == "encoder-decoder" else None).patterns
    told = {
        f"{p}.pattern": h for g in record["attention"] for p, h in zip(g["layers"], g["heads"], strict=True)
    }
    assert told == {name: pattern.heads for name, pattern in patterns.items()}
    for group in record["attention"]:
        assert all(patterns[f"{p}.pattern"].cross == group["cross"] for p in group["layers"])


def test_the_records_of_the_kinds_differ_where_the_kinds_do(client: TestClient) -> None:
    of = {kind: get(client, f"/api/models/{kind}") for kind in (*KINDS, "lstm", "rotary", "tagger")}
    assert [g["name"] for g in of["encoder-decoder"]["attention"]] == [
        "encoder.attn", "decoder.attn", "decoder.cross"]  # fmt: skip
    assert [g["causal"] for g in of["encoder-decoder"]["attention"]] == [False, True, False]
    assert of["encoder"]["attention"][0]["causal"] is False
    assert of["decoder"]["attention"][0]["causal"] is True
    assert of["rnn"]["attention"][0]["cross"] is True
    assert {c["cell"] for c in of["rnn"]["recurrent"]} == {"GatedUnit"}
    assert of["lstm"]["attention"] == []
    assert of["lstm"]["recurrent"][0]["gates"] == ["i", "f", "g", "o"]
    types = {kind: of[kind]["position"]["type"] for kind in of}
    assert types["rotary"] == "rotary"
    assert types["encoder"] == "learned"
    assert types["encoder-decoder"] == "sinusoidal"
    assert types["rnn"] == types["lstm"] == "recurrence"
    assert types["vectors"] == "none"
    assert of["encoder"]["context"] == {"tokens": 24}
    assert of["encoder"]["tasks"] == ["fill-mask"]
    assert of["tagger"]["tasks"] == ["token-classification"]
    assert of["tagger"]["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert "lstm" in of["lstm"]["topics"]
    assert "alignment" in of["rnn"]["topics"]
    assert {"attention", "block", "positions", "norm", "softmax"} <= set(of["decoder"]["topics"])


def test_a_name_that_is_not_there_is_answered_with_the_nearest(client: TestClient) -> None:
    answer = client.get("/api/models/encodr")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "model_not_found"
    assert "'encoder'" in error["hint"]


def test_the_notes_sentences_and_exercises_are_offered(client: TestClient) -> None:
    found = get(client, "/api/examples")
    assert {"id": "cat", "text": "The cat sat on the mat.", "look": "from tokens to the next word"} in found[
        "sentences"
    ]
    assert "cat-sat" in [e["id"] for e in found["exercises"]]


def test_the_vocabulary_is_in_the_order_of_ids(client: TestClient, models: Path) -> None:
    found = get(client, "/api/models/decoder/vocabulary")
    tokenizer = heedful.load(models / "decoder").tokenizer
    assert found["tokens"] == tokenizer.tokens(range(len(tokenizer)))
    assert found["shown"][tokenizer.id("Ġcat")] == "·cat"
    assert "�" not in "".join(found["shown"])


def test_only_the_models_used_last_stay_in_memory(models: Path) -> None:
    app = create_studio_app(models_folder=models)
    client = TestClient(app, base_url="http://127.0.0.1")
    names = ["encoder", "decoder", "tagger", "spans", "rotary"]
    first = client.post("/api/trace", json={"model": "encoder", "text": TEXT}).json()
    for name in names[1:]:
        client.get(f"/api/models/{name}")
    assert list(app.state.studio.registry.in_memory) == names[1:]
    # A trace whose model was put away still answers: the model is read again.
    assert client.get(f"/api/trace/{first['id']}/lens").status_code == 200


def test_the_record_says_how_good_a_model_is_by_its_card() -> None:
    from heedful.classroom.studio.capabilities import CARDS, read_card, score_of
    from heedful.classroom.studio.model_registry import Entry
    from heedful.weights.hub import bundled_models

    for name, path in bundled_models().items():
        measured = score_of(read_card(Entry(name, "bundled", name, path)))
        assert measured is not None, name
        assert f"score: {measured['score']}" in (path / "README.md").read_text(encoding="utf-8")
    chat = score_of(read_card(Entry("smollm2-135m-instruct", "package", "x", CARDS / "no-such-model")))
    assert chat == {"metric": "right answers to ten questions of general knowledge", "score": 5}
    assert score_of(None) is score_of("no head") is score_of("---\n[\n---\n") is None
