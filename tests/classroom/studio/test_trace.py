"""One run, many looks: every number the page gets is the library's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

import heedful
from heedful.classroom.studio.trace_builder import check_token_ids
from heedful.classroom.studio.traces import Studio
from heedful.core.errors import InputError
from heedful.interp.gradients import attribution, gradient_by_distance
from heedful.interp.inputs import reading
from heedful.interp.intervene.ablation import ablate, head_effects
from heedful.interp.observe.attention import attention, head_scores, rollout
from heedful.interp.observe.lens import logit_lens, neighbours, surprisal
from heedful.models.base import Model
from tests.classroom.studio.conftest import SEQUENCES, TEXT, events, get, tensor, traced


def same_input(models: Path, found: dict[str, Any]) -> tuple[Model, Any]:
    """The model from its folder, and what the trace read, put together anew."""
    model = heedful.load(models / found["model"])
    target = None if found["target"] is None else [t["id"] for t in found["target"]]
    return model, reading(model, [t["id"] for t in found["tokens"]], target)


@pytest.mark.parametrize("kind", SEQUENCES)
def test_patterns_are_those_of_the_library(client: TestClient, models: Path, kind: str) -> None:
    found = traced(client, kind)
    model, given = same_input(models, found)
    seen = attention(model, given)
    assert sum(len(g["layers"]) for g in found["groups"]) == len(seen.patterns)
    for group in found["groups"]:
        for layer in group["layers"]:
            path = f"/api/trace/{found['id']}/tensor"
            got = tensor(client, path, name=f"{layer}.pattern")
            want = seen[layer].values.numpy()
            np.testing.assert_array_equal(got.astype(np.float32), want)
            half = tensor(client, path, name=f"{layer}.pattern", head=0, dtype="f16")
            np.testing.assert_allclose(half, want[0], atol=5e-4)
            small = tensor(client, path, name=f"{layer}.pattern", head=0, dtype="u8")
            np.testing.assert_allclose(small, want[0], atol=0.5 / 255 + 1e-7)


@pytest.mark.parametrize("kind", SEQUENCES)
def test_thumbnails_hold_the_largest_of_each_tile(client: TestClient, models: Path, kind: str) -> None:
    found = traced(client, kind)
    model, given = same_input(models, found)
    seen = attention(model, given)
    for group in found["groups"]:
        got = tensor(client, f"/api/trace/{found['id']}/thumbs", group=group["name"], size=4)
        assert got.shape[:2] == (len(group["layers"]), max(group["heads"]))
        assert max(got.shape[2:]) <= 4
        for layer, small in zip(group["layers"], got, strict=True):
            want = seen[layer].values.amax((-2, -1)).numpy()
            np.testing.assert_allclose(small[: len(want)].max((-2, -1)), want, atol=0.5 / 255 + 1e-7)


def test_rows_and_columns_can_be_asked_for_alone(client: TestClient) -> None:
    found = traced(client, "decoder")
    path, name = f"/api/trace/{found['id']}/tensor", "blocks.0.attn.pattern"
    whole = tensor(client, path, name=name, head=1)
    np.testing.assert_array_equal(
        tensor(client, path, name=name, head=1, rows="2:4", cols="0:3"), whole[2:4, :3]
    )
    np.testing.assert_allclose(
        tensor(client, path, name=name, reduction="max"), tensor(client, path, name=name).max(0), atol=1e-7
    )
    for wrong in ({"rows": "4:2"}, {"rows": "a"}, {"head": 9}, {"dtype": "f64"}, {"name": "blocks.9.x"}):
        answer = client.get(path, params={"name": name, **wrong})
        assert answer.status_code in (400, 422), wrong
        assert answer.json()["error"]["message"]


def test_a_tensor_may_be_kept_for_ever(client: TestClient) -> None:
    found = traced(client, "decoder")
    answer = client.get(f"/api/trace/{found['id']}/tensor", params={"name": "blocks.0.output"})
    assert "immutable" in answer.headers["cache-control"]
    other = client.get(f"/api/trace/{found['id']}/tensor", params={"name": "blocks.1.output"})
    assert answer.headers["etag"] != other.headers["etag"]


def effects_of(client: TestClient, found: dict[str, Any], group: str, **more: Any) -> dict[str, list[float]]:
    answer = client.get(f"/api/trace/{found['id']}/effects", params={"group": group, **more})
    name, done = events(answer)[-1]
    assert name == "done"
    effects: dict[str, list[float]] = done["effects"]
    return effects


@pytest.mark.parametrize("kind", SEQUENCES)
def test_scores_of_heads_effects_and_rollout_are_the_librarys(
    client: TestClient, models: Path, kind: str
) -> None:
    found = traced(client, kind)
    model, given = same_input(models, found)
    got = get(client, f"/api/trace/{found['id']}/scores")["scores"]
    want = [s.to_dict() for s in head_scores(model, given)]
    assert [{k: g[k] for k in w} for g, w in zip(got, want, strict=True)] == want
    effects = {}
    for group in found["groups"]:
        effects |= effects_of(client, found, group["name"])
    wanted = head_effects(model, given)
    assert effects.keys() == wanted.keys()
    for path, row in wanted.items():
        assert effects[path] == pytest.approx(row, rel=1e-3, abs=1e-9)
    if any(not g["cross"] for g in found["groups"]):
        got_rollout = tensor(client, f"/api/trace/{found['id']}/rollout")
        np.testing.assert_allclose(got_rollout, rollout(model, given).numpy(), atol=1e-6)
    else:
        assert client.get(f"/api/trace/{found['id']}/rollout").status_code == 422


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder", "rotary"])
def test_effect_is_what_a_key_adds_through_a_head(client: TestClient, models: Path, kind: str) -> None:
    found = traced(client, kind)
    model, given = same_input(models, found)
    layer = found["groups"][0]["layers"][0]
    watch = heedful.Watch(f"{layer}.*")
    with torch.no_grad():
        given.run(model, watch)
    pattern, v = watch[f"{layer}.pattern"][0], watch[f"{layer}.v"][0]
    H, G, K = len(pattern), len(v), v.shape[-1]
    o = model.get_submodule(layer).o.weight  # type: ignore[union-attr]
    h, i, j = 1, len(pattern[0]) - 1, 0
    want = (o[:, h * K : (h + 1) * K] @ (pattern[h, i, j] * v[h * G // H, j])).norm()  # type: ignore[index]
    got = tensor(client, f"/api/trace/{found['id']}/tensor", name=f"{layer}.effect", head=h)[i, j]
    assert got == pytest.approx(float(want.detach()), rel=1e-5)


def test_scores_before_the_softmax_are_computed_when_asked_for(client: TestClient, studio: Studio) -> None:
    found = traced(client, "encoder")
    trace = studio.traces.get(found["id"])
    assert "blocks.0.attn.scores" not in trace.values
    scores = tensor(client, f"/api/trace/{found['id']}/tensor", name="blocks.0.attn.scores")
    pattern = tensor(client, f"/api/trace/{found['id']}/tensor", name="blocks.0.attn.pattern")
    exp = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(exp / exp.sum(-1, keepdims=True), pattern, atol=1e-6)
    assert "blocks.0.attn.scores" in trace.values


@pytest.mark.parametrize("kind", SEQUENCES)
def test_logits_and_predictions_are_the_models(client: TestClient, models: Path, kind: str) -> None:
    found = traced(client, kind)
    model, given = same_input(models, found)
    with torch.no_grad():
        logits = given.run(model)[0]
    at = found["prediction"]["position"]
    # A watched layer takes the reference path, an unwatched one the fused kernel: the last digits differ.
    got = tensor(client, f"/api/trace/{found['id']}/logits", position=at)
    np.testing.assert_allclose(got, logits[at].numpy(), atol=1e-6)
    best = logits[at].softmax(-1).topk(10)
    assert [row["id"] for row in found["prediction"]["top"]] == best.indices.tolist()
    assert [row["p"] for row in found["prediction"]["top"]] == pytest.approx(best.values.tolist(), rel=1e-5)


@pytest.mark.parametrize("kind", SEQUENCES)
def test_lens_surprisal_and_gradients_are_the_librarys(client: TestClient, models: Path, kind: str) -> None:
    found = traced(client, kind)
    model, given = same_input(models, found)
    base = f"/api/trace/{found['id']}"
    lens, seen = get(client, f"{base}/lens", count=3), logit_lens(model, given)
    assert lens["layers"] == list(seen.layers)
    assert [[[r["text"] for r in cell] for cell in row] for row in lens["top"]] == [
        [[name for name, _ in cell] for cell in row] for row in seen.top(3)
    ]
    assert lens["rank"][-1] == [0] * len(lens["tokens"])
    assert len(lens["norms"]) == len(lens["cosine"]) == len(lens["layers"])
    bits = get(client, f"{base}/surprisal")["bits"]
    assert bits == pytest.approx(list(surprisal(model, given).bits))
    assert get(client, f"{base}/reach")["norms"] == pytest.approx(
        list(gradient_by_distance(model, given).norms)
    )
    got = get(client, f"{base}/attribution", method="gradient")
    assert got["scores"] == pytest.approx(attribution(model, given, method="gradient").scores.tolist())
    near = client.get(f"{base}/neighbours")
    if near.status_code == 200:
        assert near.json()["near"] == neighbours(model, given).to_dict()["near"]
    else:  # the last layer of RNNsearch is narrower than its word vectors
        assert (kind, near.status_code) == ("rnn", 422)


@pytest.mark.parametrize("kind", ["lstm", "rnn"])
def test_gates_over_time_are_the_models(client: TestClient, models: Path, kind: str) -> None:
    found = traced(client, kind)
    model, given = same_input(models, found)
    states = get(client, f"/api/trace/{found['id']}/states")
    watch = heedful.Watch("*")
    with torch.no_grad():
        given.run(model, watch)
    assert states["parts"]
    for part in states["parts"]:
        for word, name in part["names"].items():
            got = tensor(client, f"/api/trace/{found['id']}/tensor", name=name)
            np.testing.assert_array_equal(got.astype(np.float32), watch[name][0].numpy())
            assert part["mean"][word] == pytest.approx(watch[name][0].mean(-1).tolist())
        assert part["norm"]["h"] == pytest.approx(watch[part["names"]["h"]][0].norm(dim=-1).tolist())
        assert all(0 <= s["low"] + s["high"] <= 1 for s in part["saturation"].values())


@pytest.mark.parametrize(("kind", "stacks"), [("decoder", 1), ("encoder-decoder", 2)])
def test_the_cache_is_what_is_kept_while_writing(client: TestClient, kind: str, stacks: int) -> None:
    found = traced(client, kind)
    cache = get(client, f"/api/trace/{found['id']}/states")["cache"]
    layers = found["groups"][-1]["layers"]
    width = get(client, f"/api/models/{kind}")["dim"]
    assert cache["bytes_per_token"] == 2 * 4 * width * len(layers)
    read = len(found["tokens"]) + (len(found["target"]) if stacks == 2 else 0)
    assert cache["bytes"] == cache["bytes_per_token"] * read


@pytest.mark.parametrize("kind", ["encoder", "rnn"])
def test_what_grows_with_no_token_has_no_cache(client: TestClient, kind: str) -> None:
    found = traced(client, kind)
    assert get(client, f"/api/trace/{found['id']}/states")["cache"] is None


def test_the_end_of_a_stack_is_told_only_where_it_differs_from_its_last_layer(client: TestClient) -> None:
    names = {}
    for kind in ("encoder", "decoder"):
        states = get(client, f"/api/trace/{traced(client, kind)['id']}/states")
        names[kind] = [row["name"] for row in states["norms"]]
    assert "blocks.output" in names["decoder"]  # GPT-2 has a norm behind its last block
    assert "blocks.output" not in names["encoder"]


def test_a_model_without_attention_says_so_and_shows_states(client: TestClient) -> None:
    found = traced(client, "lstm")
    assert found["groups"] == []
    assert "has no attention" in found["note"]
    assert client.get(f"/api/trace/{found['id']}/thumbs", params={"group": "blocks.attn"}).status_code == 422


def test_neurons_name_the_tokens_they_fire_for(client: TestClient) -> None:
    found = traced(client, "decoder")
    got = get(client, f"/api/trace/{found['id']}/neurons", name="blocks.0.ffn.hidden", count=3)["neurons"]
    hidden = tensor(client, f"/api/trace/{found['id']}/tensor", name="blocks.0.ffn.hidden")
    assert [n["index"] for n in got] == np.argsort(-hidden.max(0), kind="stable")[:3].tolist()
    assert got[0]["tokens"][0] == [int(hidden[:, got[0]["index"]].argmax()), pytest.approx(got[0]["max"])]


def test_generated_tokens_are_traced_behind_the_prompt(client: TestClient, models: Path) -> None:
    found = traced(client, "decoder", "the cat", generate=5)
    model = heedful.load(models / "decoder")
    ids = model.tokenizer.encode("the cat")
    written = heedful.generate(model, ids, max_tokens=5)
    assert [t["id"] for t in found["tokens"]] == [*ids, *written]
    assert found["prompt"] == len(ids)
    assert found["groups"][0]["shape"][1] == len(ids) + len(written)
    drawn = traced(client, "decoder", "the cat", generate=5, sampling={"temperature": 1.5, "seed": 7})
    want = heedful.generate(model, ids, max_tokens=5, temperature=1.5, seed=7)
    assert [t["id"] for t in drawn["tokens"]][len(ids) :] == want


@pytest.mark.parametrize("kind", ["encoder-decoder", "rnn"])
def test_a_target_is_read_or_written(client: TestClient, models: Path, kind: str) -> None:
    model = heedful.load(models / kind)
    given = traced(client, kind, target="the dog")
    assert [t["id"] for t in given["target"]] == [model.start_token, *model.tokenizer.encode("the dog")]  # type: ignore[attr-defined]
    source = [t["id"] for t in given["tokens"]]
    assert source == [*model.tokenizer.encode(TEXT), model.tokenizer.eos]  # with the end it was trained with
    own = traced(client, kind, generate=4)
    assert [t["id"] for t in own["target"]][1:] == heedful.generate(model, source, max_tokens=4)
    assert own["prompt"] == 1


@pytest.mark.parametrize("kind", SEQUENCES)
def test_a_head_switched_off_changes_the_prediction_as_ablation_does(
    client: TestClient, models: Path, kind: str
) -> None:
    plain = traced(client, kind)
    target = None if plain["target"] is None else [t["id"] for t in plain["target"]]
    layer = plain["groups"][-1]["layers"][0]
    found = traced(client, kind, target=target, edit={"heads": {layer: [0]}})
    model, given = same_input(models, found)
    want = ablate(model, given, heads={layer: [0]})
    assert found["edited"] is True
    assert found["change"]["kl"] == pytest.approx(want.change.tolist(), abs=1e-7)
    at = found["change"]["position"]
    assert [r["id"] for r in found["change"]["after"]][:10] == want.logits[0, at].topk(10).indices.tolist()
    assert [r["id"] for r in found["change"]["before"]][:10] == want.plain[0, at].topk(10).indices.tolist()
    before, after = ({r["id"]: r["p"] for r in found["change"][when]} for when in ("before", "after"))
    assert before.keys() == after.keys()
    chances = want.logits[0, at].softmax(-1)
    assert after == pytest.approx({i: float(chances[i]) for i in after}, abs=1e-6)


@pytest.mark.parametrize("kind", SEQUENCES)
@pytest.mark.parametrize("reference", [None, "a dog and a king"])
def test_a_head_at_its_mean_is_that_of_the_library(
    client: TestClient, models: Path, kind: str, reference: str | None
) -> None:
    plain = traced(client, kind)
    target = None if plain["target"] is None else [t["id"] for t in plain["target"]]
    layer = plain["groups"][-1]["layers"][0]
    edit = {"heads": {layer: [0]}, "mean": True, "reference": reference}
    found = traced(client, kind, target=target, edit=edit)
    model, given = same_input(models, found)
    want = ablate(model, given, heads={layer: [0]}, mean=reference or given)
    assert found["change"]["kl"] == pytest.approx(want.change.tolist(), abs=1e-7)
    names: dict[str, Any] = {}
    exec(compile(found["python"], "snippet", "exec"), names)
    assert names["seen"].change.tolist() == pytest.approx(want.change.tolist(), abs=1e-6)
    group = plain["groups"][-1]["name"]
    effects = effects_of(client, plain, group, mean=True)
    assert effects[layer][0] == pytest.approx(
        float(ablate(model, given, heads={layer: [0]}, mean=given).change.mean()), abs=1e-7
    )


def test_a_replaced_token_is_read_in_place_of_the_other(client: TestClient, models: Path) -> None:
    found = traced(client, "decoder", "the cat sat", edit={"tokens": {"1": "Ġdog"}})
    model = heedful.load(models / "decoder")
    ids = model.tokenizer.encode("the cat sat")
    ids[1] = model.tokenizer.id("Ġdog")
    assert [t["id"] for t in found["tokens"]] == ids
    assert found["change"]["kl"][0] == pytest.approx(0, abs=1e-12)
    assert found["change"]["kl"][1] > 0
    wrong = client.post(
        "/api/trace", json={"model": "decoder", "text": "a", "edit": {"tokens": {"9": "Ġdog"}}}
    )
    assert wrong.status_code == 422


def test_order_is_noticed_by_those_that_know_positions(client: TestClient) -> None:
    assert get(client, f"/api/trace/{traced(client, 'rnn')['id']}/order")["kl"] > 0
    answer = client.get(f"/api/trace/{traced(client, 'vectors')['id']}/order")
    assert answer.status_code == 422
    assert "reads no sequence" in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["classifier", "tagger", "spans"])
def test_other_heads_give_labels_tags_and_spans(client: TestClient, models: Path, kind: str) -> None:
    found = traced(client, kind)
    model, given = same_input(models, found)
    with torch.no_grad():
        logits = given.run(model)[0]
    told = found["prediction"]
    if kind == "classifier":
        assert [r["p"] for r in told["top"]] == pytest.approx(
            sorted(logits.softmax(-1).tolist(), reverse=True)
        )
    elif kind == "tagger":
        assert [t["p"] for t in told["tags"]] == pytest.approx(logits.softmax(-1).amax(-1).tolist())
    else:
        assert told["start"] == pytest.approx(logits.softmax(0)[:, 0].tolist())
    assert client.get(f"/api/trace/{found['id']}/logits").status_code == 422


def test_word_vectors_have_a_trace_of_vectors(client: TestClient, studio: Studio) -> None:
    found = traced(client, "vectors", "the cat sat on xyzzy")
    assert [t["text"] for t in found["tokens"]] == ["the", "cat", "sat", "on"]
    assert "xyzzy" in found["warnings"][0]
    got = tensor(client, f"/api/trace/{found['id']}/tensor", name="vectors")
    vectors = studio.registry.get("vectors").vectors
    np.testing.assert_array_equal(
        got.astype(np.float32), np.stack([vectors[w] for w in ("the", "cat", "sat", "on")])
    )


@pytest.mark.parametrize("kind", ["rotary", "encoder", "encoder-decoder", "rnn", "vectors"])
def test_positions_are_described_and_sent(client: TestClient, models: Path, kind: str) -> None:
    found = get(client, f"/api/models/{kind}/positions", length=16)
    for name, shape in found["tensors"].items():
        got = tensor(client, f"/api/models/{kind}/positions/tensor", name=name, length=16)
        assert list(got.shape) == shape
    if kind == "encoder":
        table = heedful.load(models / kind).embed.position.weight.detach().numpy()  # type: ignore[union-attr]
        got = tensor(client, f"/api/models/{kind}/positions/tensor", name="table", length=16)
        np.testing.assert_array_equal(got.astype(np.float32), table[:16])
    if kind in ("rnn", "vectors"):
        assert found["tensors"] == {}
        assert "order" in found["note"]


def test_two_texts_are_read_as_a_pair(client: TestClient, models: Path) -> None:
    found = traced(client, "encoder", "the cat sat", pair="on the mat")
    model = heedful.load(models / "encoder")
    ids, types = model.tokenizer.encode_pair("the cat sat", "on the mat")
    assert [t["id"] for t in found["tokens"]] == ids
    assert found["second"] == types.index(1)
    got = tensor(client, f"/api/trace/{found['id']}/tensor", name="blocks.1.attn.pattern", head=1)
    seen = attention(model, ("the cat sat", "on the mat"))["blocks.1.attn"].values[1]
    np.testing.assert_allclose(got, seen.numpy(), atol=1e-6)
    refused = client.post("/api/trace", json={"model": "decoder", "text": "a", "pair": "b"})
    assert "only an encoder reads" in refused.json()["error"]["message"]


@pytest.mark.parametrize("edit", [None, {"tokens": {"1": 5}}, {"heads": {"blocks.0.attn": [0]}}])
def test_the_python_of_a_pair_gives_its_numbers(client: TestClient, edit: dict[str, Any] | None) -> None:
    found = traced(client, "encoder", "the cat sat", pair="on the mat", edit=edit)
    names: dict[str, Any] = {}
    exec(
        compile(get(client, f"/api/trace/{found['id']}/python", view="output")["python"], "s", "exec"), names
    )
    path = f"/api/trace/{found['id']}/tensor"
    if edit is None or "tokens" in edit:
        python = get(client, f"/api/trace/{found['id']}/python", view="attention", name="blocks.1.attn")
        exec(compile(python["python"], "s", "exec"), names)
        got = tensor(client, path, name="blocks.1.attn.pattern", head=0)
        np.testing.assert_allclose(names["seen"]["blocks.1.attn"].values[0].numpy(), got, atol=1e-6)


def test_tokens_say_which_word_they_are_a_piece_of(client: TestClient) -> None:
    found = traced(client, "encoder", "the catalogues sat")
    pieces = [t["text"] for t in found["tokens"]]
    words = [t["word"] for t in found["tokens"]]
    assert words[0] == 0
    for i, piece in enumerate(pieces[1:], 1):
        assert words[i] == words[i - 1] + (not piece.startswith("##"))
    assert any(piece.startswith("##") for piece in pieces)


def test_every_look_at_a_pair_knows_its_two_texts(client: TestClient, models: Path) -> None:
    found = traced(client, "encoder", "the cat sat", pair="on the mat")
    base = f"/api/trace/{found['id']}"
    model, given = heedful.load(models / "encoder"), ("the cat sat", "on the mat")
    bits = get(client, f"{base}/surprisal")["bits"]
    assert bits[1:3] == pytest.approx(list(surprisal(model, given).bits[1:3]), abs=1e-5)
    scores = get(client, f"{base}/attribution", method="gradient")["scores"]
    assert scores == pytest.approx(attribution(model, given, method="gradient").scores.tolist(), abs=1e-5)
    norms = get(client, f"{base}/reach")["norms"]
    assert norms == pytest.approx(list(gradient_by_distance(model, given).norms), abs=1e-5)
    lens = get(client, f"{base}/lens")
    best = logit_lens(model, given).logits[-1].argmax(-1).tolist()
    assert [top[0]["id"] for top in lens["top"][-1]] == best
    assert get(client, f"{base}/explain", topic="attention", part="blocks.1.attn", token=-2)["checked"]["ok"]
    assert get(client, f"{base}/order")["kl"] > 0
    assert get(client, f"{base}/neighbours", count=2)["near"]


def test_tokens_of_a_target_are_those_of_its_own_vocabulary() -> None:
    model = heedful.build("luong", vocab=128, source_vocab=96, dim=8, layers=1, seed=0)
    assert check_token_ids(model, [100], "target") == [100]
    with pytest.raises(InputError):
        check_token_ids(model, [100])
