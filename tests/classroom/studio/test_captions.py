"""What the pages say of a model follows from its parts: how tokens reach each other, states, order, units."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

import heedful
from heedful.classroom import figures as view
from heedful.core.errors import InputError
from heedful.interp.observe.attention import head_scores
from heedful.interp.observe.mixing import mixers_of
from tests.classroom.studio.conftest import get, tensor, traced
from tests.properties.tiny import ALL, tiny

# A model of the fixture → how its tokens reach each other, stack by stack.
MIXING = {
    "decoder": [("blocks", "attention")],
    "encoder": [("blocks", "attention")],
    "encoder-decoder": [("encoder", "attention"), ("decoder", "attention"), ("decoder", "cross-attention")],
    "rnn": [("encoder", "recurrence"), ("decoder", "alignment"), ("decoder", "recurrence")],
    "lstm": [("blocks", "recurrence")],
    "mamba": [("blocks", "state space")],
}


@pytest.mark.parametrize("kind", MIXING)
def test_the_record_says_how_tokens_reach_each_other(client: TestClient, kind: str) -> None:
    rows = get(client, f"/api/models/{kind}")["mixing"]
    assert [(row["stack"], row["by"]) for row in rows] == MIXING[kind]


def test_only_softmax_attention_over_oneself_is_called_attention() -> None:
    attentive = {f for f in ALL if any(row["by"] == "attention" for row in mixers_of(tiny(f)))}
    assert not attentive & {"mamba", "s4", "gla", "linear", "lstm", "gru", "rnn", "rnnsearch", "luong", "cnn"}
    assert {"gpt2", "bert", "t5", "llama", "deberta", "deepseek-v3", "based"} <= attentive
    assert all(mixers_of(tiny(f)) for f in ALL)


def test_a_window_is_told() -> None:
    (row,) = mixers_of(tiny("mistral"))
    assert row["window"] == tiny("mistral").config.window
    plain, banded = mixers_of(tiny("gpt3"))
    assert (plain["window"], banded["window"]) == (None, 4)


def test_mamba_shows_the_state_it_carries(client: TestClient, models: Path) -> None:
    found = traced(client, "mamba")
    states = get(client, f"/api/trace/{found['id']}/states")
    assert [part["cell"] for part in states["parts"]] == ["Mamba", "Mamba"]
    assert states["note"] == ""
    part = states["parts"][0]
    model: Any = heedful.load(models / "mamba")
    watch = heedful.Watch("blocks.0.ssm.h")
    with torch.no_grad():
        model(torch.tensor([[t["id"] for t in found["tokens"]]]), watch=watch)
    h = watch["blocks.0.ssm.h"][0]  # (T, F, N)
    assert part["norm"]["h"] == pytest.approx(h.flatten(1).norm(dim=-1).tolist(), rel=1e-4)
    sizes = tensor(client, f"/api/trace/{found['id']}/tensor", name=part["names"]["h"], reduction="norm")
    np.testing.assert_allclose(sizes, h.norm(dim=-1).numpy(), rtol=1e-4, atol=1e-6)
    assert get(client, "/api/models/mamba")["recurrent"][0]["cell"] == "Mamba"


@pytest.mark.parametrize(
    ("kind", "said"),
    [("decoder", "no state"), ("encoder-decoder", "no state"), ("encoder", "no state")],
)
def test_a_model_of_attention_alone_carries_no_state(client: TestClient, kind: str, said: str) -> None:
    found = traced(client, kind)
    assert said in get(client, f"/api/trace/{found['id']}/states")["note"]


@pytest.mark.parametrize(
    ("kind", "type_", "said"),
    [
        ("mamba", "state space", "convolution over the last 4 tokens"), ("lstm", "recurrence", "recurrence"),
        ("rnn", "recurrence", "recurrence"), ("decoder", "learned", ""),
    ],
)  # fmt: skip
def test_positions_say_where_order_comes_from(client: TestClient, kind: str, type_: str, said: str) -> None:
    found = get(client, f"/api/models/{kind}/positions")
    assert found["type"] == type_ == get(client, f"/api/models/{kind}")["position"]["type"]
    assert said in found["note"]


@pytest.mark.parametrize(("family", "said"), [("mamba", "state"), ("gla", "forget"), ("lstm", "recurrence")])
def test_a_figure_of_positions_that_cannot_be_says_where_order_comes_from(family: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        view.positions(tiny(family))


def test_gradients_by_distance_are_relative_to_distance_0(client: TestClient, models: Path) -> None:
    found = traced(client, "decoder")
    reach = get(client, f"/api/trace/{found['id']}/reach")
    assert reach["relative"] == pytest.approx([n / reach["norms"][0] for n in reach["norms"]])
    assert reach["relative"][0] == 1


def test_a_transformer_reaches_farther_back_than_an_rnn() -> None:
    from heedful.interp.gradients import gradient_by_distance

    text = "The old man who lived at the end of the long road reads a book in the garden of his house."
    far = lambda name: gradient_by_distance(heedful.load(name), text)
    attentive, recurrent = far("translate-en-de"), far("rnnsearch-en-de")
    assert attentive.norms[16] < recurrent.norms[0]
    assert min(attentive.relative[12:20]) > max(recurrent.relative[12:20])


def test_the_entropy_of_an_even_row_is_its_bits(client: TestClient) -> None:
    even = torch.full((1, 8, 8), 1 / 8)
    scores = view.heads(tokens=list("abcdefgh"), pattern=even).data["scores"]
    assert scores[0]["entropy"] == pytest.approx(3)
    assert "entropy_bits" in view.heads(tokens=list("abcdefgh"), pattern=even).to_csv().splitlines()[0]
    model: Any = tiny("bert")
    with torch.no_grad():
        for block in model.blocks.layers if hasattr(model.blocks, "layers") else model.blocks:
            block.attn.q.weight.zero_()
            block.attn.q.bias.zero_()
    assert head_scores(model, list(range(8)))[0].entropy == pytest.approx(3)
    found = traced(client, "decoder")
    lens = get(client, f"/api/trace/{found['id']}/lens")
    logits = tensor(client, f"/api/trace/{found['id']}/logits", position=-1)
    p = torch.from_numpy(logits).softmax(-1)
    bits = float(-(p * p.log2()).sum())
    assert lens["entropy"][-1][-1] == pytest.approx(bits, rel=1e-4)
    body = {"trace": found["id"], "temperature": 1.0}
    predicted = client.post("/api/predict", json=body).json()["entropy"]
    assert predicted["plain"] == pytest.approx(bits, rel=1e-4)


def test_the_worked_entropy_is_in_bits() -> None:
    worked = heedful.explain({"topic": "softmax", "logits": [0.0, 0.0, 0.0, 0.0]})
    line = next(line for line in worked.walk() if line.label == "entropy")
    assert line.value == pytest.approx(math.log2(4))
    assert line.unit == "bits"


def test_add_norm_adds_what_attention_gave_to_what_it_was_given() -> None:
    for part in heedful.explain("add-norm").lines:
        found = {line.label: line for line in part.walk()}  # type: ignore[union-attr]
        assert found["x"].value == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert found["sub-layer"].value == pytest.approx([0.5, 0.6, 0.4, 0.3])
