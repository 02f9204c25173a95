"""Tokens, merges, the arithmetic, maps and neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.classroom.studio.tokens import words_of
from heedful.classroom.studio.traces import Studio
from heedful.word2vec import Settings, Word2Vec
from tests.classroom.studio.conftest import KINDS, TEXT, get, traced


def cut(client: TestClient, model: str, text: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/api/tokenize", json={"model": model, "text": text, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_have_their_places_in_the_text(client: TestClient, models: Path, kind: str) -> None:
    (found,) = cut(client, kind, TEXT)["tokenizers"]
    if kind == "vectors":
        assert [TEXT[t["start"] : t["end"]] for t in found["tokens"]] == TEXT.split()
        assert all(0 < t["keep"] <= 1 and 0 < t["noise"] < 1 for t in found["tokens"] if t["known"])
        return
    pieces = heedful.load(models / kind).tokenizer.split(TEXT)
    assert [(t["id"], t["text"], t["start"], t["end"]) for t in found["tokens"]] == [tuple(p) for p in pieces]


def test_a_word_is_noise_as_often_as_its_own_training_drew_it() -> None:
    table, counts = np.eye(2, dtype=np.float32), np.array([9, 1])
    shown = lambda **settings: words_of(
        Word2Vec(["the", "cat"], table, table, counts, Settings(**settings)), "cat"
    )
    assert shown(noise_exponent=0.5)[0]["noise"] == pytest.approx(1 / (3 + 1))
    assert shown(noise_exponent=1.0)[0]["noise"] == pytest.approx(1 / (9 + 1))
    assert "noise" not in shown(loss="hierarchical")[0]  # none is drawn


def test_merges_replayed_end_in_the_tokens(client: TestClient) -> None:
    text = "the cat sat on the unheard-of mät"
    (found,) = cut(client, "decoder", text)["tokenizers"]
    assert [p for word in found["words"] for p in word["pieces"]] == [t["shown"] for t in found["tokens"]]
    word = found["words"][1]
    assert "".join(word["start"]) == "·cat"
    ranks = [step["rank"] for step in word["steps"]]
    assert ranks
    for before, step in zip(
        [word["start"], *(s["pieces"] for s in word["steps"])], word["steps"], strict=False
    ):
        assert len(step["pieces"]) < len(before)
        assert "".join(step["pair"]) in step["pieces"]
    (other,) = cut(client, "encoder", TEXT)["tokenizers"]
    assert other["words"] is None


def test_a_vector_is_sent_whole_where_the_page_asks_for_all_of_it(client: TestClient) -> None:
    rows = {"topic": "softmax", "logits": [0.01 * i for i in range(300)]}
    (found, *_) = client.post("/api/explain?wide=1000000", json=rows).json()["lines"]
    assert found["result"] == pytest.approx(rows["logits"])
    (cut, *_) = client.post("/api/explain?wide=12", json=rows).json()["lines"]
    assert "… 288 more …" in cut["result"]


def test_a_letter_of_several_bytes_is_replayed_from_its_bytes(client: TestClient) -> None:
    (found,) = cut(client, "decoder", "日")["tokenizers"]
    assert found["words"][0]["text"] == "日"
    assert found["words"][0]["start"] == ["<E6>", "<97>", "<A5>"]


def test_bytes_that_are_no_character_are_shown_as_bytes(client: TestClient) -> None:
    (found,) = cut(client, "decoder", "ä 日")["tokenizers"]
    assert [t["shown"] for t in found["tokens"]] == ["<C3>", "<A4>", "·", "<E6>", "<97>", "<A5>"]
    assert " ".join(t["bytes"] for t in found["tokens"]) == "C3 A4 20 E6 97 A5"


def test_two_tokenizers_can_be_compared(client: TestClient) -> None:
    found = cut(client, "decoder", TEXT, other="encoder")["tokenizers"]
    assert [f["kind"] for f in found] == ["BPE", "WordPiece"]


def test_a_token_is_shown_with_every_space_and_control_character_visible() -> None:
    from heedful.classroom.figures.token_labels import visible_token

    shown = {
        " a b": "·a·b",
        "▁cat": "·cat",
        "\n": "⏎",
        "\t": "⇥",
        "\x00": "<00>",
        "<0x0A>": "<0A>",
        "est</w>": "est",
    }
    assert {token: visible_token(token) for token in shown} == shown


def test_a_unigram_lattice_marks_the_best_path(tmp_path: Path, client: TestClient, models: Path) -> None:
    from heedful.classroom.studio.tokens import tokenize_text

    file = tmp_path / "lines.txt"
    file.write_text("the cat sat on the mat and the cats sat on the mats\n" * 20)
    model = heedful.load(models / "decoder")
    model.tokenizer = heedful.train_tokenizer("unigram", [file], 40)
    found = tokenize_text(model, "the cats sat", special=False, max_tokens=100)
    chosen = [p["text"] for word in found["lattice"] for p in word["pieces"] if p["chosen"]]
    assert chosen == [t["text"] for t in found["tokens"]]


@pytest.mark.parametrize(("kind", "topic"), [
    ("encoder", "attention"), ("decoder", "block"), ("decoder", "softmax"), ("encoder-decoder", "positions"),
    ("rnn", "alignment"), ("lstm", "lstm"), ("rotary", "norm"),
])  # fmt: skip
def test_steps_are_those_of_explain_with_their_check(
    client: TestClient, models: Path, kind: str, topic: str
) -> None:
    found = traced(client, kind)
    got = get(client, f"/api/trace/{found['id']}/explain", topic=topic, wide=64, token=1)
    target = None if found["target"] is None else [t["id"] for t in found["target"]]
    want = heedful.explain(
        heedful.load(models / kind), [t["id"] for t in found["tokens"]], target, topic=topic, token=1
    ).to_dict()

    def numbers(worked: dict[str, Any]) -> list[Any]:
        return [
            numbers(x) if "lines" in x else (x["label"], x["operands"], x["result"]) for x in worked["lines"]
        ]

    assert numbers(got) == [*map(_as_json, numbers(want))]
    assert got["title"] == want["title"]
    assert got["check"] == pytest.approx(want["check"])
    assert got["checked"]["ok"] is True
    assert got["text"].startswith(got["title"])


def _as_json(value: Any) -> Any:
    return tuple(map(_as_json, value)) if isinstance(value, tuple) else value


def test_long_vectors_are_cut_in_the_middle_and_say_so(client: TestClient) -> None:
    found = traced(client, "decoder")
    got = get(client, f"/api/trace/{found['id']}/explain", topic="norm", wide=6)
    first = got["lines"][0]["result"]
    assert first[4] == "… 10 more …"
    assert len(first) == 7


def test_exercises_and_own_vectors_are_worked(client: TestClient) -> None:
    exercise = get(client, "/api/explain/cat-sat")
    assert exercise["lines"]
    assert client.get("/api/explain/cat-sit").status_code == 404
    assert client.get("/api/explain/own.yaml").status_code == 422
    own = {"topic": "softmax", "logits": [1, 2, 3]}
    got = client.post("/api/explain", json=own).json()
    (weights,) = [line["result"] for line in got["lines"] if line["label"].startswith("weights")]
    assert weights == pytest.approx([0.0900, 0.2447, 0.6652], abs=1e-4)
    assert client.post("/api/explain", json={"topic": "softmax"}).status_code == 422


def test_one_update_of_word_vectors_is_worked_with_their_own_numbers(
    client: TestClient, studio: Studio
) -> None:
    body = {
        "model": "vectors",
        "topic": "word2vec",
        "centre": "king",
        "contexts": ["queen"],
        "negatives": ["mat", "dog"],
    }
    answer = client.post("/api/explain", json=body)
    assert answer.status_code == 200, answer.text
    vectors = studio.registry.get("vectors").vectors
    assert vectors.output is not None
    dot = float(
        vectors["king"].astype(np.float64) @ vectors.output[vectors.index["queen"]].astype(np.float64)
    )
    assert any(line.get("result") == pytest.approx(dot) for line in _lines(answer.json()))


def _lines(worked: dict[str, Any]) -> list[dict[str, Any]]:
    return [x for line in worked["lines"] for x in (_lines(line) if "lines" in line else [line])]


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_found_in_the_full_space(client: TestClient, studio: Studio, kind: str) -> None:
    from heedful.classroom.studio.routes.space import embedding_table

    table = embedding_table(studio.registry.get(kind), "input")
    got = get(client, f"/api/models/{kind}/space/neighbours", word="cat", count=3)
    unit = table.input / np.linalg.norm(table.input, axis=1, keepdims=True)
    cosine = unit @ unit[table.row(got["word"])]
    cosine[table.row(got["word"])] = -2
    assert got["near"][0]["text"] == table.words[int(cosine.argmax())]
    assert got["near"][0]["score"] == pytest.approx(float(cosine.max()), abs=1e-6)
    far = get(client, f"/api/models/{kind}/space/neighbours", word="cat", count=3, metric="euclid")["near"]
    assert far[0]["score"] <= far[1]["score"]
    answer = client.get(f"/api/models/{kind}/space/neighbours", params={"word": "catt!"})
    assert answer.status_code == 404


@pytest.mark.parametrize("kind", KINDS)
def test_the_map_is_the_exact_projection(client: TestClient, studio: Studio, kind: str) -> None:
    from heedful.classroom.studio.routes.space import embedding_table

    found = get(client, f"/api/models/{kind}/space/map", count=12, axis="cat:dog")
    at = np.array([[p["x"], p["y"], p["z"]] for p in found["points"]])
    table = embedding_table(studio.registry.get(kind), "input")
    assert all(p["text"].lstrip("Ġ").isalpha() for p in found["points"])  # words, no marks and no pieces
    rows = np.asarray(table.input[[table.row(p["text"]) for p in found["points"]]], dtype=np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows -= rows.mean(0)
    values = np.linalg.eigvalsh(rows.T @ rows)[::-1]
    np.testing.assert_allclose(found["explained"], values[:3] / values.sum(), atol=1e-8)
    np.testing.assert_allclose((at**2).sum(0), values[:3], atol=1e-8)
    assert all(-1.001 <= p["axis"] <= 1.001 for p in found["points"])
    some = get(client, f"/api/models/{kind}/space/map", words="cat,dog,the")
    assert [p["text"].strip("Ġ") for p in some["points"]] == ["cat", "dog", "the"]


def test_a_map_by_tsne_is_that_of_the_library(client: TestClient, studio: Studio) -> None:
    pytest.importorskip("sklearn")
    from heedful.interp.observe.projection import project

    asked = {"method": "tsne", "perplexity": 4, "seed": 2, "count": 14, "dims": 2}
    found = get(client, "/api/models/vectors/space/map", **asked)
    vectors = studio.registry.get("vectors").vectors
    rows = np.asarray(vectors.input[[vectors.row(p["text"]) for p in found["points"]]], dtype=np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    want = project(rows, "tsne", 2, perplexity=4, seed=2).points
    np.testing.assert_allclose([[p["x"], p["y"]] for p in found["points"]], want, atol=1e-3)
    assert (found["method"], found["explained"]) == ("tsne", [])
    compile(found["python"], "snippet", "exec")


def test_a_slow_map_is_made_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from heedful.classroom.studio.routes import space
    from heedful.interp.observe.projection import project

    made: list[str] = []

    def counted(rows: np.ndarray, method: str, *rest: int, **how: float) -> object:
        made.append(method)
        return project(rows, "pca", 2)

    monkeypatch.setattr(space, "project", counted)
    for seed in (71, 71, 72, *range(80, 80 + space.MAX_MAPS), 71):
        get(client, "/api/models/vectors/space/map", method="tsne", count=9, seed=seed, dims=2)
    assert len(made) == 2 + space.MAX_MAPS + 1  # the repeated one is remembered, and let go when others came


def test_a_method_whose_package_is_missing_is_told(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "umap", None)
    answer = client.get("/api/models/vectors/space/map", params={"method": "umap", "count": 14})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert "umap-learn" in error["message"]
    assert "pip install umap-learn" in error["hint"]


def test_an_analogy_shows_its_arithmetic_and_what_the_inputs_would_say(
    client: TestClient, studio: Studio
) -> None:
    vectors = studio.registry.get("vectors").vectors
    got = get(client, "/api/models/vectors/space/analogy", a="man", b="king", c="woman", count=4)
    assert [(r["text"], r["score"]) for r in got["near"]] == list(vectors.analogy("man", "king", "woman", 4))
    assert got["excluded"] == ["man", "king", "woman"]
    assert {"king", "woman"} & {r["text"] for r in got["with_inputs"]}


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder", "rnn"])
def test_one_word_has_other_vectors_in_other_company(client: TestClient, kind: str) -> None:
    body = {"model": kind, "word": "cat", "sentences": ["the cat sat", "a cat and a dog", "no such word"]}
    answer = client.post("/api/space/contextual", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [i["sentence"] for i in found["items"]] == [0, 1]
    assert np.shape(found["cosine"])[1:] == (2, 2)
    assert found["cosine"][-1][0][1] < 1 - 1e-6
