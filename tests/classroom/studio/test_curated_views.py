"""Doors: every view keeps what its caption promises of the model; heads are found by what they look at."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from heedful.classroom.arithmetic.explain import examples, sentences
from heedful.classroom.figures.figure import unpack
from heedful.classroom.studio.curated_views import CuratedView, curated_views
from heedful.classroom.studio.studio_app import PAGES, create_studio_app
from tests.classroom.studio.conftest import TEXT, get, tensor, traced

VIEWS = {view.id: view for view in curated_views()}


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The server over the models that come with heedful."""
    empty = tmp_path_factory.mktemp("empty")
    app = create_studio_app(models_folder=empty, runs_folder=empty)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as found:
        yield found


def address(view: CuratedView) -> dict[str, str]:
    found: dict[str, str] = view.to_dict()["with"]
    return found


def test_every_example_sentence_and_every_question_has_one_view() -> None:
    assert set(sentences()) <= set(VIEWS)
    assert len(VIEWS) == len(curated_views())
    assert all(f"/{view.page}" in PAGES and view.promises for view in curated_views())
    assert all(view.caption and view.notice and view.title for view in curated_views())
    assert sum(view.question for view in curated_views()) == 13


def test_a_curated_view_is_listed_where_its_model_is(bundled: TestClient) -> None:
    models = {row["id"] for row in get(bundled, "/api/models")["models"] if row["error"] is None}
    listed = get(bundled, "/api/doors")["doors"]
    assert [view["id"] for view in listed] == [d.id for d in curated_views() if models.issuperset(d.models)]
    assert all(view["with"]["m"] in models for view in listed)


def trace_of(client: TestClient, view: CuratedView, **more: Any) -> dict[str, Any]:
    here = address(view)
    return traced(client, view.model, here["x"], **({"target": here["y"]} if "y" in here else {}), **more)


def plain(name: str) -> str:
    return name.strip("·")


class Head:
    """The head that a curated view opens: its rows, its columns and its weights."""

    def __init__(self, client: TestClient, view: CuratedView, value: str = "pattern") -> None:
        here, self.trace = address(view), trace_of(client, view)
        group = next((g for g in self.trace["groups"] if g["name"] == here.get("g")), self.trace["groups"][0])
        self.path = group["layers"][int(here.get("l", 0))]
        self.queries = [plain(t["shown"]) for t in self.trace[group["queries"]]]
        self.keys = [plain(t["shown"]) for t in self.trace[group["keys"]]]
        self.row = int(here["q"]) if "q" in here else None
        where = f"/api/trace/{self.trace['id']}/tensor"
        self.weights = tensor(client, where, name=f"{self.path}.{value}", head=int(here.get("h", 0)))

    def of(self, query: str) -> np.ndarray:
        """A row's weights; of a word in pieces the first piece."""
        found: np.ndarray = self.weights[self.queries.index(query)]
        return found


def kept(promise: Any, client: TestClient, view: CuratedView) -> None:
    """Hold one promise of a curated view against the model."""
    here = address(view)
    if promise.promise == "looks":
        head = Head(client, view)
        row = head.of(promise.query)
        assert head.keys[row.argmax()] == promise.key
        assert row.max() >= promise.at_least
        if head.row is not None and len(view.promises) < 3:
            assert head.queries[head.row] == promise.query
    elif promise.promise == "sharpens":
        with_it, without = Head(client, view), Head(client, view, "unscaled")
        assert with_it.of(promise.query).max() <= promise.at_most
        assert without.of(promise.query).max() >= promise.at_least
        assert without.weights.sum(-1) == pytest.approx(1, abs=1e-5)
    elif promise.promise == "predicts":
        first = trace_of(client, view)["prediction"]["top"][0]
        assert plain(first["shown"]) == promise.word
        assert first["p"] >= promise.at_least
    elif promise.promise == "falls":
        path, _, heads = here["off"].rpartition(":")
        change = trace_of(client, view, edit={"heads": {path: [int(h) for h in heads.split(",")]}})["change"]
        p = {when: {plain(t["shown"]): t["p"] for t in change[when]} for when in ("before", "after")}
        assert p["before"][promise.word] >= promise.at_least
        assert p["after"].get(promise.word, 0.0) <= promise.at_most
    elif promise.promise == "works":
        if "ex" in here:
            assert promise.what == here["ex"] in examples()
        else:
            record = get(client, f"/api/models/{view.model}")
            assert promise.what == here["topic"] in record["topics"]
    elif promise.promise == "moves":
        assert get(client, f"/api/models/{view.model}/positions")["type"] == promise.kind
        order = get(client, f"/api/trace/{trace_of(client, view)['id']}/order", seed=0)
        assert order["kl"] >= promise.at_least
        assert abs(order["kl_without_positions"]) < 1e-4
    elif promise.promise == "echoes":
        found = trace_of(client, view)
        first = get(client, f"/api/trace/{found['id']}/lens", count=1)["top"][0]
        assert [guesses[0]["id"] for guesses in first] == [t["id"] for t in found["tokens"]]
    elif promise.promise == "mixes":
        assert promise.by in {m["by"] for m in get(client, f"/api/models/{promise.model}")["mixing"]}
    elif promise.promise == "ranks":
        words = {k: here[k] for k in "abc"}
        near = get(client, f"/api/models/{view.model}/space/analogy", **words)["near"]
        assert promise.word in [row["text"] for row in near[: promise.at_most]]
    elif promise.promise == "parallel":
        words = {k: here[k] for k in "abcd"}
        plane = get(client, f"/api/models/{view.model}/space/analogy", **words)["plane"]
        a, b, c, d, _ = map(np.array, plane["points"])
        cosine = (c - a) @ (d - b) / np.linalg.norm(c - a) / np.linalg.norm(d - b)
        assert cosine >= promise.in_picture
        assert plane["cosine"][0] >= promise.in_space
    elif promise.promise == "reads":
        body = {"model": view.model, "task": here["task"], "inputs": {"text": here["x"]}}
        found = client.post("/api/play", json=body).json()
        assert found["result"][0]["generated_text"] == promise.text == here["x"]
        data = found["figure"]["data"]
        patches = unpack(data["panels"][0]["values"])[: len(promise.text), data["first"] :].astype(float)
        columns = patches.reshape(len(patches), *data["grid"]).sum(1)  # (T, C)
        centre = columns @ np.arange(columns.shape[1]) / columns.sum(1)
        assert (np.diff(centre) > 0).all()
        assert "24 patches" not in view.caption or patches.shape[1] == 24
    else:
        assert promise.promise == "answers"
        assert answer(client, view).startswith(promise.text)


def answer(client: TestClient, view: CuratedView) -> str:
    """The first line that the page shows for the task of a curated view."""
    here = address(view)
    given = {"text": here["x"], "source": here["x"], "sentences": here.get("list", "").split("\n")}
    parameters = {"beams": int(here["beams"])} if "beams" in here else {}
    body = {"model": view.model, "task": here["task"], "inputs": given, "parameters": parameters}
    said = client.post("/api/beams" if parameters else "/api/play", json=body)
    assert said.status_code == 200, said.text
    if parameters:
        return str(said.json()["trees"][0]["texts"][0]["text"])
    result = said.json()["result"]
    if here["task"] == "sentence-similarity":
        order = np.argsort([-row["score"] if isinstance(row, dict) else -row for row in result])
        return str(given["sentences"][int(order[0])])
    first = result[0] if isinstance(result, list) else result
    found = str(next(first[k] for k in ("translation_text", "generated_text", "label") if k in first))
    return found.removeprefix(here["x"])


@pytest.mark.parametrize("id", VIEWS)
def test_the_model_keeps_what_the_caption_promises(bundled: TestClient, id: str) -> None:
    view = VIEWS[id]
    listed = {d["id"] for d in get(bundled, "/api/doors")["doors"]}
    if id not in listed:
        pytest.skip(f"one of {', '.join(view.models)} is not here")
    for promise in view.promises:
        kept(SimpleNamespace(**promise), bundled, view)


def test_the_plane_of_an_analogy_keeps_what_it_says_of_the_space() -> None:
    from heedful.interp.observe.word_vectors import analogy_plane
    from heedful.word2vec import Word2Vec

    rows = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 1]], dtype=np.float32)
    plane = analogy_plane(Word2Vec(list("abcd"), rows / np.linalg.norm(rows, axis=1, keepdims=True)), *"abcd")
    a, b, c, d, end = map(np.array, plane.points)
    unit = [row / np.linalg.norm(row) for row in rows.astype(float)]
    assert plane.share == pytest.approx(1)
    assert np.linalg.norm(c - a) == pytest.approx(np.linalg.norm(unit[2] - unit[0]))
    assert end == pytest.approx(b - a + c)
    first, second = unit[2] - unit[0], unit[3] - unit[1]
    want = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert plane.cosine[0] == pytest.approx(want, abs=1e-6)
    assert np.linalg.norm(d - b) == pytest.approx(np.linalg.norm(unit[3] - unit[1]))


@pytest.mark.parametrize("kind", ["encoder", "decoder", "rotary"])
def test_without_the_division_a_softmax_is_of_the_bare_products(client: TestClient, kind: str) -> None:
    found = traced(client, kind)
    where, name = f"/api/trace/{found['id']}/tensor", "blocks.1.attn"
    q, k = (tensor(client, where, name=f"{name}.{word}") for word in "qk")
    pattern, got = (tensor(client, where, name=f"{name}.{word}") for word in ("pattern", "unscaled"))
    products = np.einsum("htk,hsk->hts", q, np.repeat(k, len(q) // len(k), 0))
    products[pattern == 0] = -np.inf
    want = np.exp(products - products.max(-1, keepdims=True))
    assert got == pytest.approx(want / want.sum(-1, keepdims=True), abs=1e-5)


def test_a_layer_that_divides_by_nothing_says_so(client: TestClient) -> None:
    found = traced(client, "rnn")
    path = found["groups"][0]["layers"][0]
    said = client.get(f"/api/trace/{found['id']}/tensor", params={"name": f"{path}.unscaled"})
    assert said.status_code == 422
    assert said.json()["error"]["hint"]


def test_heads_are_found_by_the_two_tokens_they_join(client: TestClient) -> None:
    found = traced(client, "decoder")
    names = [plain(t["shown"]) for t in found["tokens"]]
    said = get(client, f"/api/trace/{found['id']}/find", query="sat", key="cat", count=99)
    weights = {
        (path, h): row
        for path in found["groups"][0]["layers"]
        for h, row in enumerate(
            tensor(client, f"/api/trace/{found['id']}/tensor", name=f"{path}.pattern")[
                :, names.index("sat"), names.index("cat")
            ]
        )
    }
    assert {(r["name"], r["head"]): r["weight"] for r in said["heads"]} == pytest.approx(weights, abs=1e-6)
    assert [r["weight"] for r in said["heads"]] == pytest.approx(sorted(weights.values(), reverse=True))
    assert said["heads"][0]["query"] == names.index("sat")
    assert said["heads"][0]["key"] == names.index("cat")
    assert "find_heads" in said["python"]
    assert get(client, f"/api/trace/{found['id']}/find", query="SAT", key="cat")["heads"]


def test_a_token_that_is_not_in_the_text_is_named(client: TestClient) -> None:
    found = traced(client, "decoder", TEXT)
    said = client.get(f"/api/trace/{found['id']}/find", params={"query": "elephant", "key": "cat"})
    assert said.status_code == 422
    assert "elephant" in said.json()["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "sees"), [("encoder", False), ("encoder-decoder", False), ("decoder", True), ("rotary", None)]
)
def test_without_positions_only_a_mask_tells_the_order(
    client: TestClient, kind: str, sees: bool | None
) -> None:
    order = get(client, f"/api/trace/{traced(client, kind)['id']}/order", seed=1)
    without = order["kl_without_positions"]
    assert (None if without is None else abs(without) > order["kl"] / 100) is sees


def test_whole_words_have_no_marks_and_are_no_pieces() -> None:
    from heedful.interp.observe.word_vectors import whole_words
    from heedful.word2vec import Word2Vec

    words = ["the", '"no,', "world.", "well-known", "it’s", "##ing", "[MASK]", "mr.", "42", "château"]
    table = Word2Vec(words, np.ones((len(words), 2), np.float32))
    assert [words[i] for i in whole_words(table.words)] == ["the", "well-known", "it’s", "château"]
    marked = Word2Vec(["Ġthe", "ing", "Ġ.", "<s>", "ĠParis", "Ġp"], np.ones((6, 2), np.float32))
    assert whole_words(marked.words) == [0, 4]


def test_a_word_of_prose_is_near_words_that_are_used_alike(bundled: TestClient) -> None:
    near = get(bundled, "/api/models/prose/space/neighbours", word="day", count=4)["near"]
    assert {"·morning", "·night"} <= {row["shown"] for row in near}


BANK = [
    "He sat on the bank of the river.", "She put the money in the bank.",
    "The bank raised its interest rates.", "A fish swam near the grassy bank.",
]  # fmt: skip


@pytest.mark.parametrize("model", ["masked", "all-minilm-l6-v2"])
def test_the_bank_of_the_fish_is_nearer_to_the_river_than_to_the_money(
    bundled: TestClient, model: str
) -> None:
    if model not in {row["id"] for row in get(bundled, "/api/models")["models"] if row["error"] is None}:
        pytest.skip(f"{model} is not here")
    body = {"model": model, "word": "bank", "sentences": BANK}
    found = bundled.post("/api/space/contextual", json=body).json()["cosine"]
    for layer in np.array(found)[1:]:  # the embedding knows nothing of the sentence
        river, money, rates, fish = range(4)
        assert layer[fish, river] > max(layer[fish, money], layer[fish, rates])
    assert found[-1][fish][river] - found[-1][fish][money] > 0.1
    assert found[0][fish][river] < found[0][fish][money] + 0.01


def test_the_page_begins_with_these_sentences() -> None:
    from pathlib import Path

    source = Path(__file__).parents[3] / "web" / "src" / "pages" / "space.tsx"
    if not source.is_file():
        pytest.skip("the sources of the page are not here")
    assert "\\n".join(BANK) in source.read_text(encoding="utf-8")
