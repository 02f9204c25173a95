"""The route of the first screen: what `heedful.view.model` gives, ready before anybody asks."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from heedful.classroom.studio.routes.figures import (
    FIRST_COMPARISON,
    FIRST_HEADS,
    FIRST_TEXT,
    prepare_first_picture,
)
from heedful.classroom.studio.traces import Studio
from heedful.interp.observe.attention import attention
from tests.classroom.studio.conftest import SEQUENCES, TEXT, get, tensor, traced
from tests.classroom.studio.test_snippets import ran


def test_without_a_question_it_is_the_first_picture_which_is_drawn_once(
    client: TestClient, studio: Studio
) -> None:
    prepare_first_picture(studio)
    ready = studio.registry.get("masked").memo["picture"]
    found = get(client, "/api/picture")
    assert found["data"] == ready.to_dict()["data"]
    assert found["data"]["texts"] == [FIRST_TEXT, FIRST_COMPARISON]
    assert found["data"]["name"] == "masked"


def test_the_first_head_is_the_one_that_tells_the_two_sentences_apart(studio: Studio) -> None:
    model = studio.registry.get("masked").sequence
    seen = [attention(model, text) for text in (FIRST_TEXT, FIRST_COMPARISON)]
    it, animal, street = (seen[0].input.tokens.index(word) for word in ("it", "animal", "street"))
    moved: dict[tuple[str, int], float] = {}
    for name, pattern in seen[0].patterns.items():
        lead = [one[name].values[:, it, animal] - one[name].values[:, it, street] for one in seen]
        moved |= {
            (name.removesuffix(".pattern"), h): float(lead[0][h] - lead[1][h]) for h in range(pattern.heads)
        }
    chosen = FIRST_HEADS["masked"]
    assert max(moved, key=moved.__getitem__) == (chosen["layer"], chosen["head"])


@pytest.mark.parametrize("kind", SEQUENCES)
def test_every_kind_of_model_has_a_first_picture_and_one_of_any_text(client: TestClient, kind: str) -> None:
    assert get(client, f"/api/picture?model={kind}")["kind"] == "model"
    found = get(client, f"/api/picture?model={kind}&text={TEXT}")
    assert found["data"]["texts"] == [TEXT]
    _, names = ran(found["python"].replace("figure.save('model.html')", ""))
    assert names["figure"].to_dict()["data"] == found["data"]


def test_a_layer_a_head_and_a_row_are_those_asked_for(client: TestClient) -> None:
    found = get(client, f"/api/picture?model=decoder&text={TEXT}&layer=1&head=1&row=2")
    picture = found["data"]["pictures"][0]
    assert (picture["path"], picture["head"], picture["row"]) == ("blocks.1.attn", 1, 2)


@pytest.mark.parametrize(
    ("format", "start"), [("html", "<!doctype"), ("svg", "<?xml"), ("csv", "text,stage")]
)
def test_a_picture_is_sent_as_a_file(client: TestClient, format: str, start: str) -> None:
    answer = client.get(f"/api/picture?model=decoder&format={format}")
    assert answer.text.startswith(start)
    assert answer.headers["content-disposition"] == f'attachment; filename="model.{format}"'


@pytest.mark.parametrize("wrong", ["layer=9", "head=77", "row=nothing", "layer=blocks.0.nothing"])
def test_what_is_not_there_is_refused_with_a_hint(client: TestClient, wrong: str) -> None:
    answer = client.get(f"/api/picture?model=decoder&text={TEXT}&{wrong}")
    assert answer.status_code == 422
    assert answer.json()["error"]["hint"]


def test_attention_opens_on_a_head_in_which_each_word_looks_at_another(client: TestClient) -> None:
    found = traced(client, "masked", "The cat sat on the [MASK].")
    look, tokens = found["look"], [token["shown"] for token in found["tokens"]]
    group = next(group for group in found["groups"] if group["name"] == look["group"])
    path = f"/api/trace/{found['id']}/tensor"
    pattern = tensor(client, path, name=f"{group['layers'][look['layer']]}.pattern", head=look["head"])
    words = [i for i, token in enumerate(tokens) if token.isalpha()]
    largest = [max(pattern[i][j] for j in words if j != i) for i in words]
    assert sum(largest) / len(largest) > 0.6
