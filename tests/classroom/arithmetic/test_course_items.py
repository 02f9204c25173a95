"""Worked items of the course, each recomputed here in another way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import heedful
from heedful.classroom.arithmetic.explain import examples, read_exercise
from heedful.classroom.arithmetic.worked import Derivation
from heedful.core.errors import InputError


def attend(X: np.ndarray, W: dict[str, np.ndarray], at: int, scale: float | None = None) -> np.ndarray:
    """One head by torch's own attention."""
    q, k, v = (torch.tensor(X @ W[f"W_{letter}"]) for letter in "QKV")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale).numpy()[at]


def sections(worked: Derivation) -> list[Derivation]:
    return [part for part in worked.lines if isinstance(part, Derivation)]


def test_two_heads_read_the_whole_text_and_w_o_joins_them() -> None:
    given, worked = read_exercise("two-heads"), heedful.explain("two-heads")
    X = np.array(given["X"], dtype=float)
    heads = [{k: np.array(v, dtype=float) for k, v in head.items()} for head in given["heads"]]
    at = given["tokens"].index(given["query"])
    outputs = np.concatenate([attend(X, head, at) for head in heads])
    np.testing.assert_allclose(worked["heads side by side"], outputs, atol=1e-12)
    np.testing.assert_allclose(worked["new vector of They"], outputs @ np.array(given["W_O"]), atol=1e-12)
    first, second = (part["weights of They"] for part in sections(worked))
    words = given["title"].replace(".", "").split()
    assert given["tokens"] == words, "every word of the sentence"
    number = {6: "six", 7: "seven"}[len(words)]
    assert f"all {number} words" in given["about"]
    assert first.shape == second.shape == (len(words),)
    assert min(first.min(), second.min()) > 0, "no head leaves a word out"
    best = {given["tokens"][i] for i in np.argsort(first)[-2:]}
    assert best == {"Dragons", "creatures"}, "what the note says of the first head"


def test_apple_moves_towards_its_neighbour_then_by_q_k_v_then_by_w_o() -> None:
    orange, watch, projected = sections(heedful.explain("apple"))
    for part, n in ((orange, 0), (watch, 1)):
        X = np.array(read_exercise("apple")["parts"][n]["Q"], dtype=float)
        weights = np.exp(X @ X[1]) / np.exp(X @ X[1]).sum()
        np.testing.assert_allclose(part["output of apple"], weights @ X, atol=1e-12)
    assert orange["output of apple"][0] > orange["output of apple"][1], "fruit"
    assert watch["output of apple"][1] > watch["output of apple"][0], "device"
    given = read_exercise("apple")["parts"][2]
    W = {key: np.array(value, dtype=float) for key, value in given["heads"][0].items()}
    out = attend(np.array(given["X"], dtype=float), W, 1) @ np.array(given["W_O"])
    np.testing.assert_allclose(projected["new vector of apple"], out, atol=1e-12)


def test_an_embedding_is_torchs_embedding() -> None:
    given, worked = read_exercise("embedding"), heedful.explain("embedding")
    table = torch.nn.Embedding.from_pretrained(torch.tensor(given["E"], dtype=torch.float64))
    for word in given["text"]:
        row = table(torch.tensor(given["words"].index(word))).numpy()
        np.testing.assert_allclose(worked[f"product of {word}"], row, atol=1e-12)
        np.testing.assert_allclose(worked[f"row {given['words'].index(word)} of E, for {word}"], row)


def test_one_hot_motel_and_hotel_have_nothing_in_common_and_dense_ones_have() -> None:
    one_hot, dense = sections(heedful.explain("motel"))
    assert one_hot["motel · hotel"] == one_hot["cosine of motel, hotel"] == 0
    given = read_exercise("motel")["parts"][1]["vectors"]
    a, b, c = (torch.tensor(given[word], dtype=torch.float64) for word in ("motel", "hotel", "banking"))
    cosine = torch.nn.functional.cosine_similarity
    assert dense["cosine of motel, hotel"] == pytest.approx(float(cosine(a, b, dim=0)), abs=1e-12)
    assert dense["cosine of motel, banking"] == pytest.approx(float(cosine(a, c, dim=0)), abs=1e-12)
    assert dense["cosine of motel, hotel"] > 0.9 > dense["cosine of motel, banking"]


def test_the_likelihood_of_word2vec_is_a_cross_entropy_over_the_vocabulary() -> None:
    given = read_exercise("likelihood")["parts"][0]
    full, sampled = sections(heedful.explain("likelihood"))
    words = list(given["outside"])
    V, U = (
        torch.tensor([given[key][w] for w in words], dtype=torch.float64) for key in ("centre", "outside")
    )
    pairs = [(t, j) for t in range(4) for j in (t - 1, t + 1) if 0 <= j < 4]
    loss = torch.nn.functional.cross_entropy(
        (V @ U.t())[[t for t, _ in pairs]], torch.tensor([j for _, j in pairs]), reduction="sum"
    )
    assert words == given["text"]
    assert full["J(θ)"] == pytest.approx(float(loss) / 4, abs=1e-12)
    assert [line.unit for line in full.walk() if line.label == "J(θ)"] == ["nats"]
    chances = full["weights of problems, turning, into, banking around into"]
    np.testing.assert_allclose(chances, (U @ V[2]).softmax(0).numpy(), atol=1e-12)
    x = torch.tensor([0.1 * -0.3 + 0.7 * 0.6], dtype=torch.float64)
    assert sampled["loss of banking"] == pytest.approx(float(-x.sigmoid().log()), abs=1e-12)


def test_four_properties_of_sinusoidal_positions() -> None:
    ranged, unique, any_length, linear = sections(heedful.explain("encoding-properties"))
    table = heedful.nn.position.Sinusoidal(4)(torch.arange(60)[None])[0].double().numpy()
    assert -1 <= ranged["smallest entry"] < ranged["largest entry"] <= 1
    assert ranged["length of PE(1)"] == pytest.approx(math.sqrt(4 / 2))
    gaps = [np.linalg.norm(table[a] - table[b]) for a in range(50) for b in range(a)]
    assert unique["the closest pair is apart by"] == pytest.approx(min(gaps), abs=1e-6)
    assert min(gaps) > 0
    far = heedful.nn.position.Sinusoidal(4)(torch.tensor([[10000]]))[0, 0].double().numpy()
    np.testing.assert_allclose(any_length["PE(10000)"], far, atol=1e-6)
    R, *_ = np.linalg.lstsq(table[:50], table[2:52], rcond=None)  # the linear map, found by least squares
    np.testing.assert_allclose(linear["R_2"], R.T, atol=1e-4)
    for t in (0, 1, 49):
        np.testing.assert_allclose(linear[f"R_2 PE({t})"], table[t + 2], atol=1e-6)
        assert np.abs(linear[f"difference at {t}"]).max() < 1e-12


def test_additive_and_scaled_scores_and_what_scaling_does() -> None:
    given, worked = read_exercise("additive-dot"), heedful.explain("additive-dot")
    q, K, W, U, v = (np.array(given[key], dtype=float) for key in ("q", "K", "W", "U", "v"))
    additive = np.tanh(q @ W.T + K @ U.T) @ v
    for name, score, dot in zip(given["tokens"], additive, K @ q / np.sqrt(2), strict=True):
        assert worked[f"additive, {name}"] == pytest.approx(score)
        assert worked[f"scaled dot, {name}"] == pytest.approx(dot)
    measured = sections(sections(worked)[-1])
    assert len(sections(worked)) == 6, "the five rows, and the measurement"
    for part, d in zip(measured, given["sizes"], strict=True):
        assert part["variance of q·k"] == pytest.approx(d, rel=0.15)
    plain = [float(part["largest weight, without scaling"]) for part in measured]
    scaled = [float(part["largest weight, with 1/√d_k"]) for part in measured]
    assert plain == sorted(plain)
    assert plain[-1] > 0.9
    assert max(scaled) - min(scaled) < 0.05
    slopes = [float(part["slope of the softmax, without scaling"]) for part in measured]
    assert slopes[-1] < 0.2 * slopes[0]


def test_counselor_is_four_steps_from_situation_by_recurrence_and_one_by_attention() -> None:
    worked = heedful.explain("counselor")
    assert worked["steps of a recurrent network"] == 4
    assert worked["steps of self-attention"] == 1


@pytest.mark.parametrize("kernel", [3, 5])
def test_the_layers_of_a_convolution_are_those_after_which_a_real_one_reaches_the_word(kernel: int) -> None:
    given = read_exercise("counselor")
    worked = heedful.explain(given | {"kernel": kernel})
    first, second = (given["tokens"].index(given[name]) for name in ("first", "second"))
    for label, left in (("one-sided", kernel - 1), ("centred", kernel // 2)):
        x = torch.zeros(1, 1, len(given["tokens"]), requires_grad=True)
        h, layers = x, 0
        while True:
            padded = torch.nn.functional.pad(h, (left, kernel - 1 - left))
            h, layers = torch.nn.functional.conv1d(padded, torch.ones(1, 1, kernel)), layers + 1
            if torch.autograd.grad(h[0, 0, second], x, retain_graph=True)[0][0, 0, first] > 0:
                break
        assert worked[f"layers of a {label} convolution"] == layers


def test_order_changes_nothing_until_positions_or_a_causal_mask_come_in() -> None:
    alone, placed, causal = sections(heedful.explain("order"))
    assert np.abs(alone["difference"]).max() < 1e-12
    assert np.abs(placed["difference"]).max() > 0.01
    assert np.abs(causal["difference"]).max() > 0.01
    for part, word in ((alone, "no difference"), (placed, "a difference"), (causal, "a difference")):
        assert word in part.note


def test_sizes_costs_and_distillation() -> None:
    worked = heedful.explain("gpt3-weights")
    assert (worked["all weights"], worked["matrices"]) == (175_181_291_520, 27_938)
    cost = heedful.explain("block-cost")
    assert cost["share that is quadratic in n"] == pytest.approx(2048 / (2048 + 6 * 12288))
    assert round(100 * float(cost["share that is quadratic in n"]), 1) == 2.7
    assert cost["equal at"] == 6 * 12288
    kept = heedful.explain("distilbert")
    figures = [round(float(kept[label]), 1) for label in ("score kept", "weights saved", "less time")]
    assert figures == [96.9, 39.4, 38.6]
    assert round(float(kept["times as fast"]), 2) == 1.63


def test_what_is_said_of_faster_and_of_less_time_is_what_was_computed() -> None:
    for times in ([668, 410], [100, 62.5]):
        kept = heedful.explain(read_exercise("distilbert") | {"times": times})
        faster, less = float(kept["faster by"]), float(kept["less time"])
        assert less == pytest.approx(100 * faster / (100 + faster))
        assert f"{faster:.1f} % faster” and “{less:.1f} % less time" in kept.note


@pytest.mark.parametrize("name", list(examples()))
@pytest.mark.parametrize("columns", [60, 100])
def test_no_number_is_broken_in_a_narrow_terminal(name: str, columns: int) -> None:
    from heedful.classroom.arithmetic.render import render_text

    worked = heedful.explain(name)
    whole = render_text(worked, 4, 16)
    narrow = render_text(worked, 4, 16, columns=columns)
    words = lambda text: text.replace("─", "").split()
    assert words(narrow) == words(whole), "the same words and numbers, none of them cut"
    assert [line for line in narrow.splitlines() if len(line) > columns] == []


def test_words_and_tokens_without_a_vector_are_named() -> None:
    for bad, said in (
        ({"topic": "similarity", "vectors": {"a": [1]}, "pairs": [["a", "b"]]}, "'b' has no vector"),
        ({"topic": "embedding", "E": [[1]], "words": ["a"], "text": ["b"]}, "'b' has no row"),
        (
            {"topic": "likelihood", "text": ["a"], "centre": {"b": [1]}, "outside": {"b": [1]}},
            "'a' has no vector",
        ),
        (
            {"topic": "heads", "X": [[1]], "tokens": ["a", "b"], "heads": [], "query": "a"},
            "2 names for 1 rows",
        ),
        (
            {"topic": "order", "X": [[1], [2]], "tokens": ["a", "b"], "order": ["a", "a"], "query": "a"},
            "every token",
        ),
    ):
        with pytest.raises(InputError, match=said):
            heedful.explain(bad)
