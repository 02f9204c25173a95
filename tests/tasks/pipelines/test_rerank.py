"""rerank: a cross-encoder as pipeline, command, fine-tuning and HTTP address."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fastapi.testclient import TestClient

import heedful
from heedful.core.errors import InputError
from heedful.models.base import Model
from heedful.serve.openai_app import create_openai_app
from heedful.serve.openai_server import make_served_model
from heedful.tasks.metrics.scores import ndcg, ranking_scores, reciprocal_rank
from heedful.tasks.model_inputs import Truncated
from tests.refusal import refused
from tests.tasks.conftest import Tiny
from tests.tasks.finetune import finetuning as toy
from tests.tasks.finetune.conftest import Heed, heed

__all__ = ["heed"]

QUERY = "who lived in London?"
TEXTS = ["Dragons breathe fire.", "Ada Lovelace lived in London.", "he didn't"]


@pytest.fixture
def cross(tiny: Tiny) -> Model:
    return tiny("classify", ["LABEL_0"])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.models(tmp_path_factory.mktemp("bases"))["encoder"]


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_the_scores_are_those_of_transformers(tiny: Tiny, tmp_path: Path, family: str) -> None:
    model = tiny("classify", ["LABEL_0"], family)
    heedful.save(model, tmp_path)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    read = tokenizer([QUERY] * 3, TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = theirs.eval()(**read).logits.squeeze(-1)
    pipe = heedful.pipeline("rerank", model=tmp_path)
    ranked = pipe(QUERY, TEXTS, function_to_apply="none")
    assert [row["index"] for row in ranked] == logits.argsort(descending=True).tolist()
    assert [row["score"] for row in ranked] == pytest.approx(
        logits.sort(descending=True)[0].tolist(), abs=1e-5
    )
    assert [row["score"] for row in pipe(QUERY, TEXTS)] == pytest.approx(
        logits.sigmoid().sort(descending=True)[0].tolist(), abs=1e-5
    )


def test_a_query_may_come_in_any_of_the_known_forms(cross: Model) -> None:
    pipe = heedful.pipeline("rerank", cross)
    ranked = pipe(QUERY, TEXTS)
    assert [row["text"] for row in ranked] == [TEXTS[row["index"]] for row in ranked]
    assert pipe({"query": QUERY, "documents": TEXTS}) == ranked == pipe({"query": QUERY, "texts": TEXTS})
    assert pipe(QUERY, TEXTS, top_n=2) == ranked[:2]
    assert pipe([{"query": QUERY, "documents": TEXTS}] * 2) == [ranked, ranked]
    assert sorted(pipe([QUERY] * 3, TEXTS), reverse=True) == pytest.approx([r["score"] for r in ranked])
    assert pipe(QUERY, []) == []


def test_a_long_text_loses_its_end_and_never_the_query(cross: Model) -> None:
    pipe = heedful.pipeline("rerank", cross)
    with pytest.warns(Truncated):
        (row,) = pipe(QUERY, ["London " * 900])
    assert 0 < row["score"] < 1


def test_a_query_that_leaves_no_room_for_a_text_is_refused_as_such(cross: Model) -> None:
    with refused(InputError, "the query takes"):
        heedful.pipeline("rerank", cross)("London " * 900, TEXTS)


@pytest.mark.parametrize(
    ("arguments", "options", "part"),
    [
        (("q", "one text"), {}, "must be a list"),
        (("q", ["a", 3]), {}, "text 1"),
        (("q", ["a", " "]), {}, "text 1"),
        (("", ["a"]), {}, "takes a query"),
        (("q",), {}, "takes a query"),
        ((["q"], ["a", "b"]), {}, "the same number"),
        (("q", ["a"]), {"top_n": 0}, "top_n"),
        (("q", ["a"]), {"function_to_apply": "softmax"}, "function_to_apply"),
    ],
)
def test_what_cannot_be_ranked_is_one_clear_error(
    cross: Model, arguments: tuple[Any, ...], options: dict[str, Any], part: str
) -> None:
    with pytest.raises(InputError) as caught:
        heedful.pipeline("rerank", cross)(*arguments, **options)
    assert part in f"{caught.value.message} {caught.value.hint}"


def test_a_model_with_several_labels_or_none_given_is_refused(tiny: Tiny) -> None:
    with pytest.raises(InputError, match="cross-encoder"):
        heedful.pipeline("rerank", tiny("classify", ["a", "b"]))
    with pytest.raises(InputError) as caught:
        heedful.pipeline("rerank")
    assert "cross-encoder" in (caught.value.hint or "")


def test_rankings_are_scored_as_defined() -> None:
    assert ndcg([3, 0, 1]) == pytest.approx((7 + 1 / math.log2(4)) / (7 + 1 / math.log2(3)))
    assert (ndcg([0, 0]), reciprocal_rank([0, 0, 2]), reciprocal_rank([0] * 10 + [1])) == (0.0, 1 / 3, 0.0)
    found = ranking_scores(["a", "a", "b", "b", "c"], [1, 0, 0, 1, 1], [0.9, 0.1, 0.8, 0.2, 0.5])
    assert (found["queries"], found["mrr"]) == (2, 0.75)
    same = ranking_scores(["a"] * 4, [1, 0, 0, 0], [0.5] * 4)
    assert same["mrr"] == 0.25  # the worst of equal scores counts
    with pytest.raises(InputError, match="nothing to rank"):
        ranking_scores(["a", "b"], [1, 0], [0.1, 0.2])


def rankings(path: Path) -> Path:
    """What does a thing get? The texts in which somebody likes it are relevant."""
    thing = lambda sentence: sentence.split()[2]
    rows = [
        (f"what does {one} {letter} ?", s, int(s.split()[1] == "likes"))
        for letter in "abcdef"
        for one in sorted(set(map(thing, toy.SENTENCES)))
        for s in toy.SENTENCES
        if thing(s) == one
    ]
    return toy.table(path, ("query", "document", "relevance"), rows)


def test_a_ranking_is_learnt_from_a_table_evaluated_and_used(heed: Heed, base: Path, tmp_path: Path) -> None:
    file = rankings(tmp_path / "ranks.csv")
    code, out, err = heed(
        "finetune", base, file, "--lr", 1e-3, "--epochs", 6, "--out", "made", "--json", "-q"
    )
    assert code == 0, err
    told = json.loads(out)
    assert told["task"] == "rerank"
    low, high = told["scores"]["ndcg_95"]
    assert low <= told["scores"]["ndcg"] <= high
    assert told["scores"]["ndcg"] > 0.9
    model = heedful.load("made")
    assert (model.config.labels, model.config.head) == (1, "classify")
    assert model.hf_config["architectures"] == ["BertForSequenceClassification"]
    code, out, _ = heed("eval", "made", file, "--json")
    assert code == 0
    assert json.loads(out)["ndcg"] > 0.9
    Path("texts.txt").write_text("ann sees cats\nann likes cats\nann paints cats\n")
    code, out, _ = heed("rerank", "who likes cats ?", "texts.txt", "--model", "made", "--top-k", 1)
    assert (code, out.split()[1:]) == (0, ["2", "ann", "likes", "cats"])


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([("q1", "a", 1), ("q2", "b", 1), ("q3", "c", 0)] * 3, "no query of 3"),
        ([("q1", "a", "yes"), ("q1", "b", "no")] * 3, "not a number"),
        ([("q1", "a", 1), ("q1", "b", 0)] * 3, ""),
    ],
)
def test_a_table_that_ranks_nothing_is_refused(
    heed: Heed, base: Path, tmp_path: Path, rows: list[tuple[str, str, object]], part: str
) -> None:
    file = toy.table(tmp_path / "bad.csv", ("query", "document", "relevance"), rows)
    code, _, err = heed("finetune", base, file, "--out", "made")
    assert code == 3
    assert part in err
    assert not Path("made").exists()


@pytest.fixture
def client(cross: Model, tiny: Tiny) -> Iterator[TestClient]:
    served = [make_served_model("cross", cross), make_served_model("classes", tiny("classify", ["a", "b"]))]
    app, server = create_openai_app(served)
    with TestClient(app, base_url="http://127.0.0.1") as made:
        yield made
    server.engine.close()


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_the_server_ranks_as_the_pipeline_does(client: TestClient, cross: Model, path: str) -> None:
    ranked = heedful.pipeline("rerank", cross)(QUERY, TEXTS)
    body = {"model": "cross", "query": QUERY, "documents": TEXTS, "top_n": 2, "return_documents": True}
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()["results"]
    assert [row["index"] for row in found] == [row["index"] for row in ranked[:2]]
    assert [row["document"]["text"] for row in found] == [row["text"] for row in ranked[:2]]
    assert [r["relevance_score"] for r in found] == pytest.approx([r["score"] for r in ranked[:2]], abs=1e-6)
    assert answer.json()["usage"]["total_tokens"] > 0


def test_the_server_takes_the_other_names_of_fields(client: TestClient, cross: Model) -> None:
    logits = heedful.pipeline("rerank", cross)(QUERY, TEXTS, function_to_apply="none")
    body = {"model": "cross", "query": QUERY, "texts": TEXTS, "raw_scores": True}
    found = client.post("/rerank", json=body).json()["results"]
    assert [row["relevance_score"] for row in found] == pytest.approx([r["score"] for r in logits], abs=1e-6)
    assert all("document" not in row for row in found)
    objects = body | {"texts": None, "documents": [{"text": text} for text in TEXTS]}
    assert client.post("/rerank", json=objects).json()["results"] == found


def test_a_document_is_cut_after_as_many_tokens_as_asked(client: TestClient, cross: Model) -> None:
    body = {"model": "cross", "query": QUERY, "documents": ["London " * 900, "London"]}
    whole = client.post("/v2/rerank", json=body).json()
    short = client.post("/v2/rerank", json=body | {"max_tokens_per_doc": 2}).json()
    pair = cross.tokenizer.encode_pair(QUERY, "London")[0]
    assert whole["usage"]["total_tokens"] == 64 + len(pair)
    one = len(cross.tokenizer.encode("London", special=False))
    assert short["usage"]["total_tokens"] <= 2 * len(pair) + 2 - one
    assert "document" not in short["results"][0]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"query": ""}, 400, "query"),
        ({"query": None}, 400, "query"),
        ({"query": " "}, 400, "query"),
        ({"query": "London " * 900}, 400, "query"),
        ({"max_tokens_per_doc": 0}, 400, "max_tokens_per_doc"),
        ({"documents": None}, 400, "documents"),
        ({"documents": []}, 400, "documents"),
        ({"documents": ["a", ""]}, 400, "documents"),
        ({"documents": ["a"] * 3000}, 400, "documents"),
        ({"documents": [{"title": "a"}]}, 400, "documents"),
        ({"top_n": 0}, 400, "top_n"),
        ({"return_documents": "yes"}, 400, "return_documents"),
        ({"model": "classes"}, 400, "model"),
        ({"truncate": False, "documents": ["London " * 900]}, 400, "messages"),
    ],
)
def test_a_wrong_request_is_refused_by_its_field(
    client: TestClient, change: dict[str, Any], status: int, param: str
) -> None:
    body = {"model": "cross", "query": QUERY, "documents": TEXTS} | change
    answer = client.post("/rerank", json=body)
    assert answer.status_code == status, answer.text
    if "truncate" not in change:
        assert answer.json()["error"]["param"] == param


def test_the_list_of_models_says_which_one_ranks(client: TestClient) -> None:
    listed = {m["id"]: m["heedful"]["endpoints"] for m in client.get("/v1/models").json()["data"]}
    assert "/rerank" in listed["cross"]
    assert "/rerank" not in listed["classes"]
