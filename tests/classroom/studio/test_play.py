"""Every task through heedful.pipeline, whole and streamed."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import heedful
from heedful.classroom.studio import task_runner
from heedful.classroom.studio.jobs import Ticket
from heedful.classroom.studio.traces import Studio
from heedful.decode.search import run_beam_search
from heedful.serve.guard import RequestRefused
from tests.classroom.studio.conftest import TEXT

TASKS: list[tuple[str, str, dict[str, Any], list[Any]]] = [
    ("classifier", "text-classification", {"text": TEXT}, [TEXT]),
    ("tagger", "token-classification", {"text": TEXT}, [TEXT]),
    ("encoder", "fill-mask", {"text": "the [MASK] sat"}, ["the [MASK] sat"]),
    ("spans", "question-answering", {"question": "who sat", "context": TEXT}, ["who sat", TEXT]),
    ("decoder", "text-generation", {"text": "the cat"}, ["the cat"]),
    ("encoder-decoder", "translation", {"text": TEXT}, [TEXT]),
    ("rnn", "translation", {"text": TEXT}, [TEXT]),
]


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("kind", "task", "inputs", "given"), TASKS, ids=lambda x: str(x)[:24])
def test_a_task_gives_what_the_pipeline_gives(
    client: TestClient, models: Path, kind: str, task: str, inputs: dict[str, Any], given: list[Any]
) -> None:
    more = {"max_tokens": 6, "beams": 2} if task in ("translation", "text-generation") else {}
    answer = client.post(
        "/api/play", json={"model": kind, "task": task, "inputs": inputs, "parameters": more}
    )
    assert answer.status_code == 200, answer.text
    options: dict[str, Any] = {"max_new_tokens": 6, "num_beams": 2, "do_sample": False} if more else {}
    options |= {"aggregation_strategy": "simple"} if task == "token-classification" else {}
    want = heedful.pipeline(task, model=heedful.load(models / kind))(*given, **options)
    assert answer.json()["result"] == json.loads(json.dumps(want))


def test_sentence_vectors_answer_similarity(client: TestClient) -> None:
    inputs = {"source": "a cat", "sentences": ["a dog", "the mat"]}
    answer = client.post(
        "/api/play", json={"model": "encoder", "task": "sentence-similarity", "inputs": inputs}
    )
    assert answer.status_code == 200
    assert len(answer.json()["result"]) == 2


def test_text_cut_to_the_context_is_told(client: TestClient) -> None:
    body = {"model": "classifier", "task": "text-classification", "inputs": {"text": TEXT * 20}}
    answer = client.post("/api/play", json=body).json()
    assert any("cut" in w for w in answer["warnings"])
    stream = {"model": "decoder", "task": "text-generation", "inputs": {"text": TEXT * 20}, "stream": True}
    (done,) = [e for e in events(client.post("/api/play", json=stream).text) if e["event"] == "done"]
    assert any("were cut" in w for w in done["warnings"])


def test_word_vectors_answer_neighbours_and_analogies(client: TestClient, studio: Studio) -> None:
    vectors = studio.registry.get("vectors").vectors
    body = {"model": "vectors", "task": "neighbours", "inputs": {"word": "cat"}}
    got = client.post("/api/play", json=body).json()["result"]
    assert [(r["text"], r["score"]) for r in got] == list(vectors.neighbours("cat"))
    body = {"model": "vectors", "task": "analogy", "inputs": {"a": "man", "b": "king", "c": "woman"}}
    got = client.post("/api/play", json=body).json()["result"]
    assert [r["text"] for r in got] == [w for w, _ in vectors.analogy("man", "king", "woman")]


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder", "rnn"])
def test_streamed_text_is_that_of_generate(client: TestClient, models: Path, kind: str) -> None:
    task = "text-generation" if kind == "decoder" else "translation"
    settings = {"max_tokens": 8, "temperature": 1.2, "seed": 5}
    body = {
        "model": kind,
        "task": task,
        "inputs": {"text": "the cat"},
        "parameters": settings,
        "stream": True,
    }
    answer = client.post("/api/play", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *pieces, done = events(answer.text)
    model = heedful.load(models / kind)
    ids = model.tokenizer.encode("the cat") + ([model.tokenizer.eos] if kind != "decoder" else [])
    want = [p.token for p in heedful.stream(model, ids, max_tokens=8, temperature=1.2, seed=5)]
    assert [p["token"] for p in pieces if p["token"] is not None] == want
    assert done["event"] == "done"
    assert done["text"] == "".join(p["text"] for p in pieces)


def test_an_error_in_the_middle_of_a_stream_is_an_event(client: TestClient) -> None:
    body = {"model": "encoder", "task": "text-generation", "inputs": {"text": "a"}, "stream": True}
    (last,) = events(client.post("/api/play", json=body).text)
    assert last["event"] == "error"
    assert last["error"]["code"] == "cannot"


def test_a_task_without_its_fields_names_them(client: TestClient) -> None:
    body = {"model": "spans", "task": "question-answering", "inputs": {"question": "who?"}}
    answer = client.post("/api/play", json=body)
    assert answer.status_code == 422
    assert "context" in answer.json()["error"]["message"]
    body = {"model": "spans", "task": "dancing", "inputs": {}}
    assert "dancing" in client.post("/api/play", json=body).json()["error"]["message"]


def test_two_models_on_one_text_stand_beside_each_other(client: TestClient) -> None:
    same = client.post(
        "/api/compare", json={"text": TEXT, "a": {"model": "decoder"}, "b": {"model": "rotary"}}
    ).json()
    assert same["same_tokens"] is True
    assert {"group_a": "blocks.attn", "group_b": "blocks.attn"} in same["difference"]
    assert len(same["kl"]) == len(same["a"]["tokens"])
    assert all(k >= 0 for k in same["kl"])
    assert {"a", "b", "id"} <= same["shared_top"][0].keys()
    body = {"text": TEXT, "target": "the dog", "a": {"model": "encoder-decoder"}, "b": {"model": "rnn"}}
    crossed = client.post("/api/compare", json=body).json()
    assert {"group_a": "decoder.cross", "group_b": "decoder.look"} in crossed["difference"]
    other = client.post(
        "/api/compare", json={"text": TEXT, "a": {"model": "decoder"}, "b": {"model": "encoder"}}
    ).json()
    assert other["same_tokens"] is False
    assert other["kl"] is None
    assert other["note"]


def test_a_model_beside_itself_without_a_head_differs_by_that_head(client: TestClient) -> None:
    body = {"text": TEXT, "a": {"model": "decoder"},
            "b": {"model": "decoder", "edit": {"heads": {"blocks.0.attn": [0]}}}}  # fmt: skip
    found = client.post("/api/compare", json=body).json()
    assert found["kl"] == pytest.approx(found["b"]["change"]["kl"], abs=1e-7)
    plain = client.post("/api/compare", json=body | {"b": {"model": "decoder"}}).json()
    assert plain["kl"] == pytest.approx([0.0] * len(plain["kl"]), abs=1e-12)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder", "rnn"])
def test_one_search_gives_the_text_of_the_pipeline_and_its_tree(
    client: TestClient, models: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[Any] = []

    def counted(*arguments: Any) -> Any:
        searches.append(arguments)
        return run_beam_search(*arguments)

    monkeypatch.setattr(import_module("heedful.classroom.figures.value_figures"), "run_beam_search", counted)
    monkeypatch.setattr("heedful.decode.search.run_beam_search", counted)
    task = "text-generation" if kind == "decoder" else "translation"
    parameters = {"max_tokens": 6, "beams": 3}
    body = {"model": kind, "task": task, "inputs": {"text": "the cat sat"}, "parameters": parameters}
    answer = client.post("/api/beams", json=body)
    assert answer.status_code == 200, answer.text
    assert len(searches) == 1
    found = answer.json()
    pipe = heedful.pipeline(task, model=heedful.load(models / kind))
    (written,) = pipe("the cat sat", max_new_tokens=6, num_beams=3)
    assert next(iter(written.values())).removeprefix("the cat sat") == found["text"]
    (tree,) = found["trees"]
    assert len(tree["texts"]) == 3
    at, path = tree["texts"][0]["at"], []
    while at >= 0:
        assert tree["branches"][at]["best"]
        path.append(tree["branches"][at])
        at = tree["branches"][at]["parent"]
    assert sum(b["logprob"] for b in path) == pytest.approx(tree["texts"][0]["score"])
    assert found["tokens"] == len(path)
    compile(found["python"], "snippet", "exec")
    compile(tree["python"], "snippet", "exec")


def test_each_sentence_has_a_tree_and_its_own_python(client: TestClient, models: Path) -> None:
    text = "The cat sat.  The dog ran."
    body = {"model": "encoder-decoder", "task": "translation", "inputs": {"text": text},
            "parameters": {"max_tokens": 4, "beams": 2}}  # fmt: skip
    found = client.post("/api/beams", json=body).json()
    pipe = heedful.pipeline("translation", model=heedful.load(models / "encoder-decoder"))
    assert found["text"] == pipe(text, max_new_tokens=4, num_beams=2)[0]["translation_text"]
    one, two = found["trees"]
    assert one["python"] != two["python"]
    many = client.post("/api/beams", json=body | {"inputs": {"text": "The cat sat. " * 20}}).json()
    assert len(many["trees"]) == 16
    assert "20 sentences" in many["warnings"][0]


class Leaving(Ticket):
    """Waits for a few steps, then no longer."""

    asked = 0

    def check(self) -> None:
        self.asked += 1
        if self.asked == 3:
            self.cancel()
        super().check()


def test_a_search_that_nobody_waits_for_stops_where_it_is(studio: Studio) -> None:
    held, ticket = studio.registry.get("decoder"), Leaving()
    given = {"text": "the"}, {"max_tokens": 20, "beams": 2}
    with pytest.raises(RequestRefused, match="a newer run"):
        held.run(lambda: task_runner.search_beams(held, "text-generation", *given), ticket)
    assert ticket.asked == 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_blank_text_is_nothing_given(client: TestClient, stream: bool) -> None:
    body = {"model": "encoder-decoder", "task": "translation", "inputs": {"text": " \n\t"}, "stream": stream}
    answer = client.post("/api/play", json=body)
    assert answer.status_code == 422
    assert "needs text" in answer.json()["error"]["message"]


def test_a_tree_needs_a_search(client: TestClient) -> None:
    body = {"model": "decoder", "task": "text-generation", "inputs": {"text": "the"}, "parameters": {}}
    answer = client.post("/api/beams", json=body)
    assert answer.status_code == 422
    assert "2 to 16" in answer.json()["error"]["message"]
    warm = client.post("/api/beams", json=body | {"parameters": {"beams": 4, "temperature": 0.5}})
    assert "temperature 0.5 samples" in warm.json()["error"]["message"]
    body = {"model": "classifier", "task": "text-classification", "inputs": {"text": "the"}}
    assert "does not search for texts" in client.post("/api/beams", json=body).json()["error"]["message"]
