"""Classes, entities, answers, summaries and translations over HTTP: what the pipelines give for the same."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

import heedful
from heedful.decode.stepper import EagerStepper
from heedful.serve.openai_app import Server, create_openai_app
from heedful.serve.openai_server import make_served_model
from heedful.tasks.task_specification import TaskSpecification
from tests.classroom.studio.made import LINES, made
from tests.serve.asking import Caller, run_async, until

TEXTS = ["the cat sat on the mat .", "a dog", "the quick brown fox jumps over the lazy dog ."]
QUESTION = {"question": "who sat ?", "context": "the cat sat on the mat . the dog sat on the log ."}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("tasks") / "lines.txt"
    file.write_text("\n".join(LINES * 3), encoding="utf-8")
    pieces = heedful.train_tokenizer("wordpiece", [file], 120)
    bpe = heedful.train_tokenizer("bpe", [file], 330, special=["eos", "bos"])
    sizes: dict[str, Any] = {"heads": 2, "context": 24}
    classes = made("bert", pieces, head="classify", labels=3, **sizes)
    classes.hf_config |= {"id2label": {0: "bad", 1: "fair", 2: "good"}}
    several = made("bert", pieces, head="classify", labels=3, **sizes)
    several.hf_config |= classes.hf_config | {"problem_type": "multi_label_classification"}
    [*several.head.parameters()][-1].data = torch.tensor([3.0, -3.0, 3.0])  # two of them hold
    pairs = made("bert", pieces, head="classify", labels=2, **sizes)
    TaskSpecification(
        "text-classification", "classify", {"text": "premise", "pair": "hypothesis"}, labels=("no", "yes"),
        metric="accuracy", score=0.75,
    ).write(pairs)  # fmt: skip
    tags = made("bert", pieces, head="tag", labels=3, **sizes)
    tags.hf_config |= {"id2label": {0: "O", 1: "B-ANIMAL", 2: "I-ANIMAL"}}
    writer = made("transformer", bpe, heads=2)
    translator = made("transformer", bpe, heads=2)
    translator.hf_config |= {"languages": ["en", "de"]}
    spans = made("bert", pieces, head="span", **sizes)
    return {"classes": classes, "several": several, "pairs": pairs, "tags": tags, "spans": spans,
            "writer": writer, "translator": translator}  # fmt: skip


@pytest.fixture(scope="module")
def served(models: dict[str, Any]) -> Iterator[tuple[TestClient, Server, Any]]:
    app, server = create_openai_app([make_served_model(id, model) for id, model in models.items()])
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client, server, app
    server.engine.close()


@pytest.fixture
def client(served: tuple[TestClient, Server, Any]) -> TestClient:
    return served[0]


def ask(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert 400 <= response.status_code < 500
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def test_classify_has_the_fields_of_vllm(client: TestClient, models: dict[str, Any]) -> None:
    found = ask(client, "/classify", model="classes", input=TEXTS)
    assert found.keys() == {"id", "object", "created", "model", "data", "usage"}
    expected = heedful.pipeline(model=models["classes"])(TEXTS, return_all_scores=True)
    for i, (entry, scores) in enumerate(zip(found["data"], expected, strict=True)):
        assert entry.keys() == {"index", "label", "probs", "num_classes"}
        assert (entry["index"], entry["num_classes"]) == (i, 3)
        assert entry["probs"] == pytest.approx([row["score"] for row in scores], abs=1e-6)
        assert entry["label"] == max(scores, key=lambda row: row["score"])["label"]
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0
    one = ask(client, "/classify", model="classes", input=TEXTS[0], use_activation=False)["data"]
    assert sum(one[0]["probs"]) != pytest.approx(1, abs=1e-3)


def test_a_model_of_several_labels_answers_with_all_that_hold(
    client: TestClient, models: dict[str, Any], tmp_path: Path
) -> None:
    """As `heed predict` does, for the same texts."""
    table = tmp_path / "texts.jsonl"
    table.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    heedful.save(models["several"], tmp_path / "several")
    heedful.predict(tmp_path / "several", table, text="text", out=tmp_path / "out.jsonl")
    predicted = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for activated in (True, False):
        found = ask(client, "/classify", model="several", input=TEXTS, use_activation=activated)["data"]
        for entry, row in zip(found, predicted, strict=True):
            assert entry.keys() == {"index", "label", "labels", "probs", "num_classes"}
            assert [one["label"] for one in entry["labels"]] == row["label"]
            assert [one["score"] for one in entry["labels"]] == pytest.approx(row["score"], abs=1e-6)
    assert [len(entry["labels"]) for entry in found] == [2] * len(TEXTS)


def test_predict_has_the_fields_of_text_embeddings_inference(
    client: TestClient, models: dict[str, Any]
) -> None:
    expected = heedful.pipeline(model=models["classes"])(TEXTS, top_k=None)
    several = ask(client, "/predict", model="classes", inputs=[[text] for text in TEXTS])
    assert [[row["label"] for row in rows] for rows in several] == [
        [row["label"] for row in rows] for rows in expected
    ]
    one = ask(client, "/predict", model="classes", inputs=TEXTS[0])
    assert [row.keys() for row in one] == [{"label", "score"}] * 3
    assert one[0]["score"] == pytest.approx(expected[0][0]["score"], abs=1e-6)
    raw = ask(client, "/predict", model="classes", inputs=TEXTS[0], raw_scores=True)
    assert [row["label"] for row in raw] == [row["label"] for row in one]
    assert sum(row["score"] for row in raw) != pytest.approx(1, abs=1e-3)


def test_a_pair_is_a_pair(client: TestClient, models: dict[str, Any]) -> None:
    first, second = TEXTS[:2]
    pipe = heedful.pipeline(model=models["pairs"])
    expected = pipe([{"text": first, "text_pair": second}], return_all_scores=True)[0]
    by_vllm = ask(client, "/classify", model="pairs", input={"text": first, "text_pair": second})
    assert by_vllm["data"][0]["probs"] == pytest.approx([row["score"] for row in expected], abs=1e-6)
    by_tei = ask(client, "/predict", model="pairs", inputs=[first, second])
    assert {row["label"]: pytest.approx(row["score"], abs=1e-6) for row in by_tei} == {
        row["label"]: row["score"] for row in expected
    }
    assert "learnt from a pair" in refused(client, "/classify", model="pairs", input=first)["message"]
    assert "learnt from a pair" in refused(client, "/predict", model="pairs", inputs=[[first]])["message"]


def test_tag_gives_spans_as_the_pipeline_does(client: TestClient, models: dict[str, Any]) -> None:
    found = ask(client, "/v1/tag", model="tags", input=TEXTS)
    pipe = heedful.pipeline(model=models["tags"])
    assert found["data"][0].keys() == {"index", "entities"}
    for strategy in ("first", "none"):
        entries = ask(client, "/v1/tag", model="tags", input=TEXTS, aggregation_strategy=strategy)["data"]
        for entry, rows in zip(entries, pipe(TEXTS, aggregation_strategy=strategy), strict=True):
            same = [{**row, "score": pytest.approx(row["score"], abs=1e-6)} for row in rows]
            assert entry["entities"] == same
    # Longer than the model reads: in windows.
    assert ask(client, "/v1/tag", model="tags", input=" ".join(TEXTS * 5))["data"][0]["entities"]


def test_answers_are_those_of_the_pipeline(client: TestClient, models: dict[str, Any]) -> None:
    expected = heedful.pipeline(model=models["spans"])(**QUESTION)
    found = ask(client, "/v1/answer", model="spans", **QUESTION)["data"]
    assert found == [
        {"index": 0, "answers": [expected | {"score": pytest.approx(expected["score"], abs=1e-6)}]}
    ]
    two = ask(client, "/v1/answer", model="spans", input=[QUESTION, QUESTION], top_k=2)["data"]
    assert [len(entry["answers"]) for entry in two] == [2, 2]


def test_summaries_and_translations_are_those_of_the_pipelines(
    client: TestClient, models: dict[str, Any]
) -> None:
    summary = heedful.pipeline("summarization", models["writer"])(TEXTS[0], max_new_tokens=6)
    found = ask(client, "/v1/summarize", model="writer", input=TEXTS[0], max_tokens=6)
    assert found["data"] == [{"index": 0, "text": summary[0]["summary_text"]}]
    assert found["usage"]["total_tokens"] == (
        found["usage"]["prompt_tokens"] + found["usage"]["completion_tokens"]
    )
    translations = heedful.pipeline("translation", models["translator"])(TEXTS[:2], max_new_tokens=6)
    body = {"model": "translator", "input": TEXTS[:2], "max_tokens": 6}
    found = ask(client, "/v1/translate", **body, source_language="en", target_language="de")
    assert [entry["text"] for entry in found["data"]] == [row["translation_text"] for row in translations]
    assert "en to de" in refused(client, "/v1/translate", **body, target_language="fr")["message"]


def test_other_requests_are_answered_while_a_summary_is_written(
    served: tuple[TestClient, Server, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "writer", "input": TEXTS[0], "max_tokens": 20}
    expected = ask(served[0], "/v1/summarize", **body)["data"]
    step, ended = EagerStepper.step, []

    def step_slowly(self: Any, tokens: Any) -> Any:
        time.sleep(0.05)
        return step(self, tokens)

    monkeypatch.setattr(EagerStepper, "step", step_slowly)

    async def scene() -> list[Any]:
        async def answer(path: str, body: dict[str, Any]) -> Any:
            caller = Caller(served[2], path, body)
            await caller()
            ended.append(path)
            return json.loads(caller.text)

        summary = asyncio.create_task(answer("/v1/summarize", body))
        await until(lambda: bool(served[1].engine.writing))
        await answer("/classify", {"model": "classes", "input": TEXTS[1]})
        await answer("/v1/completions", {"model": "writer", "prompt": "the", "max_tokens": 2})
        return (await summary)["data"]  # type: ignore[no-any-return]

    assert run_async(scene()) == expected
    assert ended == ["/classify", "/v1/completions", "/v1/summarize"]


def test_the_models_say_what_they_can_do(client: TestClient) -> None:
    about = {one["id"]: one["heedful"] for one in client.get("/v1/models").json()["data"]}
    assert {"/classify", "/predict"} <= set(about["classes"]["endpoints"])
    assert about["classes"]["labels"] == ["bad", "fair", "good"]
    assert (about["classes"]["task"], about["classes"]["inputs"]) == ("text-classification", ["text"])
    assert about["pairs"]["inputs"] == ["text", "pair"]
    assert about["pairs"]["score"] == {"accuracy": 0.75}
    assert (about["spans"]["task"], about["spans"]["inputs"]) == (
        "question-answering",
        ["question", "context"],
    )
    assert "/v1/tag" in about["tags"]["endpoints"]
    assert "/v1/translate" in about["translator"]["endpoints"]
    assert "/v1/translate" not in about["classes"]["endpoints"]


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/classify", {"model": "classes"}, "input", "is missing"),
        ("/classify", {"model": "classes", "input": [""]}, "input", "none of them empty"),
        ("/classify", {"model": "classes", "input": []}, "input", "0 entries"),
        ("/classify", {"model": "classes", "input": "cat " * 40}, None, "maximum context length"),
        ("/classify", {"model": "tags", "input": "cat"}, "model", "does not answer /classify"),
        ("/classify", {"input": "cat"}, "model", "must be a string"),
        ("/predict", {"model": "classes", "inputs": ["a", "b", "c"]}, "inputs", "[text, text]"),
        ("/predict", {"model": "classes", "inputs": [["cat"]], "truncate": 1}, "truncate", "true or false"),
        ("/v1/tag", {"model": "tags", "input": "cat", "aggregation_strategy": "best"},
         "aggregation_strategy", "is unknown"),
        ("/v1/tag", {"model": "tags", "input": "x" * 100_001}, "input", "in parts"),
        ("/v1/tag", {"model": "tags", "input": "cat", "tools": [{}]}, "tools", "not supported"),
        ("/v1/answer", {"model": "spans", "question": "who ?"}, "context", "is missing"),
        ("/v1/answer", {"model": "spans", "input": [{"question": "who ?"}]}, "input", "a question is"),
        ("/v1/answer", {"model": "spans", **QUESTION, "top_k": 0}, "top_k", "between 1 and 20"),
        ("/v1/summarize", {"model": "writer", "input": "cat", "max_tokens": 0}, "max_tokens", "at least 1"),
        ("/v1/translate", {"model": "classes", "input": "cat"}, "model", "does not answer"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_by_its_field(
    client: TestClient, path: str, body: dict[str, Any], param: str | None, words: str
) -> None:
    error = refused(client, path, **body)
    assert error["param"] == param
    assert words in error["message"]


def test_a_long_text_is_cut_where_the_request_says_so(client: TestClient) -> None:
    long = " ".join(TEXTS * 4)
    whole = ask(client, "/classify", model="classes", input=long, truncate_prompt_tokens=-1)
    assert whole["usage"]["prompt_tokens"] == 24
    cut = ask(client, "/classify", model="classes", input=long, truncate_prompt_tokens=5)
    assert cut["usage"]["prompt_tokens"] == 5
    assert ask(client, "/predict", model="classes", inputs=long, truncate=True)


def test_a_model_need_not_be_named_where_only_one_answers(client: TestClient) -> None:
    assert ask(client, "/v1/tag", input="the cat")["model"] == "tags"


def test_32_clients_at_once_get_what_each_gets_alone(served: tuple[TestClient, Server, Any]) -> None:
    _, server, app = served
    words = " ".join(LINES).split()
    bodies: list[tuple[str, dict[str, Any]]] = []
    for i in range(32):
        text = " ".join(words[i : i + 2 + i % 7])
        bodies.append([
            ("/classify", {"model": "classes", "input": text}),
            ("/predict", {"model": "classes", "inputs": text}),
            ("/v1/tag", {"model": "tags", "input": text}),
            ("/v1/answer", {"model": "spans", "question": "who ?", "context": text}),
            ("/v1/summarize", {"model": "writer", "input": text, "max_tokens": 4}),
            ("/v1/embeddings", {"model": "tags", "input": text}),
        ][i % 6])  # fmt: skip

    async def answers(together: bool) -> list[Any]:
        callers = [Caller(app, path, body) for path, body in bodies]
        if together:
            await asyncio.gather(*(caller() for caller in callers))
        else:
            for caller in callers:
                await caller()
        assert [caller.status for caller in callers] == [200] * 32
        return [json.loads(caller.text) for caller in callers]

    together, alone = run_async(answers(True)), run_async(answers(False))
    assert strip_ids(together) == strip_ids(alone, approximate=True)
    assert server.engine.is_idle


def strip_ids(value: Any, approximate: bool = False) -> Any:
    """Return an answer without its name and its time; padding may move the last digits of its numbers."""
    if isinstance(value, dict):
        return {k: strip_ids(v, approximate) for k, v in value.items() if k not in ("id", "created")}
    if isinstance(value, list):
        return [strip_ids(one, approximate) for one in value]
    return pytest.approx(value, abs=1e-5) if approximate and isinstance(value, float) else value


def test_a_finetuned_folder_says_its_task_when_it_is_served(tmp_path: Path, models: dict[str, Any]) -> None:
    heedful.save(models["pairs"], tmp_path / "pairs")
    loaded = make_served_model("pairs", heedful.load(tmp_path / "pairs"))
    assert loaded.description["heedful"]["inputs"] == ["text", "pair"]
