"""Circuits of edges, and patching over many pairs, against computations by hand."""

from __future__ import annotations

import pytest
import torch

from heedful import Watch
from heedful.core.errors import InputError
from heedful.interp.intervene.circuits import (
    PromptPair,
    _CircuitRunner,
    average_over_pairs,
    circuit_curve,
    find_circuit,
)
from heedful.interp.intervene.patching import (
    activation_patching,
    attribution_patching,
    edge_attribution,
    path_patching,
)
from heedful.interp.measurements import mean_interval
from tests.properties.tiny import tiny

PAIRS = [
    PromptPair([5, 9, 2, 7], [5, 6, 2, 7], 3, 8), PromptPair([4, 9, 1, 3], [4, 6, 1, 3], 3, 8),
    PromptPair([8, 9, 2, 2], [8, 11, 2, 2], 3, 12),
]  # fmt: skip


@pytest.mark.parametrize("family", ["gpt2", "llama", "gptj"])
def test_all_edges_give_the_clean_answer_and_none_the_corrupt_one(family: str) -> None:
    with torch.no_grad():
        runner = _CircuitRunner(tiny(family), PAIRS, None)
        assert runner.faithfulness(set()) == pytest.approx(1.0, abs=1e-4)
        assert runner.faithfulness(set(runner.edges)) == pytest.approx(0.0, abs=1e-4)


def test_one_edge_to_the_logits_is_cut_as_by_hand() -> None:
    model, pair = tiny("gpt2"), PAIRS[0]
    seen = [Watch("blocks.0.attn.output", "blocks.*.output") for _ in range(2)]
    with torch.no_grad():
        logits = [model(torch.tensor([ids]), watch=w)[0, -1] for ids, w in zip(pair[:2], seen, strict=True)]
        last = f"blocks.{len(model.blocks) - 1}.output"  # type: ignore[arg-type]
        stream = seen[0][last] - seen[0]["blocks.0.attn.output"] + seen[1]["blocks.0.attn.output"]
        cut = model.head.out(model.blocks.norm(stream))[0, -1]  # type: ignore[operator, union-attr]
        clean, corrupt, now = (float(row[3] - row[8]) for row in (*logits, cut))
        share = _CircuitRunner(model, [pair], None).faithfulness({("blocks.0.attn", "logits")})
    assert share == pytest.approx((now - corrupt) / (clean - corrupt), abs=1e-4)


def test_one_edge_within_is_cut_as_path_patching_from_corrupt_to_clean_does() -> None:
    model, (clean, corrupt, right, wrong) = tiny("llama"), PAIRS[1]
    other = path_patching(model, corrupt, clean, right, wrong, senders=["blocks.0.attn head 1"])
    with torch.no_grad():
        runner = _CircuitRunner(model, [PAIRS[1]], "heads")
        for receiver, effect in zip(other.columns, other.values[0].tolist(), strict=True):
            if effect == effect:
                share = runner.faithfulness({("blocks.0.attn head 1", receiver)})
                assert share == pytest.approx(1 - effect, abs=1e-4)


def test_acdc_keeps_what_matters_and_its_curve_ends_with_its_faithfulness() -> None:
    model = tiny("gpt2")
    circuit = find_circuit(model, PAIRS, 0.05)
    assert 0 < len(circuit.edges) < circuit.curve[0][0]
    assert circuit.curve[-1] == (len(circuit.edges), circuit.faithfulness)
    with torch.no_grad():
        runner = _CircuitRunner(model, PAIRS, None)
        left = runner.faithfulness(set(runner.edges) - set(circuit.edges))
    assert left == pytest.approx(circuit.faithfulness, abs=1e-4)
    assert find_circuit(model, PAIRS[:1], 0.0).edges == tuple(runner.edges)
    assert find_circuit(model, PAIRS, 1e9).edges == ()


@pytest.mark.parametrize("senders", ["heads", ["embed", "blocks.0.attn head 1", "blocks.1.ffn"]])
@pytest.mark.parametrize("family", ["gpt2", "gptj"])
def test_edges_into_parts_that_are_no_senders_are_tried_like_all_others(
    family: str, senders: list[str] | str
) -> None:
    model = tiny(family)
    circuit = find_circuit(model, PAIRS, 0.02, senders=senders)
    with torch.no_grad():
        runner = _CircuitRunner(model, PAIRS, senders)
        left = runner.faithfulness(set(runner.edges) - set(circuit.edges))
    assert left == pytest.approx(circuit.faithfulness, abs=1e-4)


def test_the_best_edges_come_first_in_a_curve() -> None:
    model = tiny("gpt2")
    scores = average_over_pairs(edge_attribution, model, PAIRS)
    curve = circuit_curve(model, PAIRS, scores)
    assert curve[-1][1] == pytest.approx(1.0, abs=1e-4)
    assert [count for count, _ in curve][:3] == [1, 2, 4]
    by_hand = circuit_curve(model, PAIRS, scores, [2])[0][1]
    assert by_hand == pytest.approx(curve[1][1])
    heads = path_patching(model, *PAIRS[0], senders="heads", receivers=["logits"])
    with pytest.raises(InputError, match="no receiver"):
        circuit_curve(model, PAIRS, heads)


def test_an_average_is_that_of_single_pairs_with_an_interval_around() -> None:
    model = tiny("gpt2")
    for interval in ("bootstrap", "normal"):
        mean = average_over_pairs(activation_patching, model, PAIRS, what="heads", interval=interval)
        each = [activation_patching(model, *pair, what="heads").values for pair in PAIRS]
        torch.testing.assert_close(mean.values, torch.stack(each).mean(0))
        assert bool((mean.low <= mean.values + 1e-9).all())
        assert bool((mean.high >= mean.values - 1e-9).all())
    assert mean.to_dict()["each"][1][0][0] == pytest.approx(float(each[1][0, 0]))
    other = [PAIRS[0], PromptPair([5, 9, 2], [5, 6, 2], 3)]
    with pytest.raises(InputError, match="pair 1 do not fit"):
        average_over_pairs(activation_patching, model, other)
    with pytest.raises(InputError, match="no pairs"):
        average_over_pairs(activation_patching, model, [])


def test_intervals_cover_the_mean_about_as_often_as_they_say() -> None:
    draw = torch.Generator().manual_seed(0)
    samples = torch.randn(30, 400, generator=draw)  # 400 experiments of 30 rows with the mean 0
    for method in ("bootstrap", "normal"):
        _, low, high = mean_interval(samples, method)
        covered = float(((low < 0) & (high > 0)).float().mean())
        assert 0.9 < covered < 0.98


@pytest.mark.parametrize("steps", [1, 4])
def test_attribution_takes_two_passes_or_three_and_one_back(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heedful.interp import inputs

    model, calls, run = tiny("gpt2"), [], inputs.run_batch
    monkeypatch.setattr(inputs, "run_batch", lambda *a, **k: calls.append(len(a[1])) or run(*a, **k))
    attribution_patching(model, *PAIRS[0], steps=steps)
    assert calls == ([1, 1] if steps == 1 else [1, 1, 4])
