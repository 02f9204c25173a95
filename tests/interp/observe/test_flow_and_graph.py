"""Attention flow, graphs of attributions, and where integrated gradients begin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import maximum_flow  # type: ignore[import-untyped]

import heedful
from heedful.core.errors import InputError
from heedful.interp import inputs
from heedful.interp.gradients import attribution
from heedful.interp.inputs import reading
from heedful.interp.intervene.patching import attribution_graph
from heedful.interp.observe.attention import attention_flow, mixed_layers, rollout
from tests.interp.intervene.test_activation_patching import answers, two
from tests.properties.tiny import ids, tiny


def test_flow_through_two_layers_is_the_sum_of_the_narrower_pipes() -> None:
    model = tiny("gpt2")
    tokens = ids(model, 1, 5)
    first, second = mixed_layers(model, tokens)
    flow = attention_flow(model, tokens, position=None)
    want = torch.minimum(second[:, :, None], first[None]).sum(1)
    torch.testing.assert_close(flow, want, atol=1e-9, rtol=0)
    torch.testing.assert_close(attention_flow(model, tokens, position=3), flow[3])
    assert flow.triu(1).abs().max() == 0, "nothing flows from later tokens"


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_flow_is_what_scipy_finds_with_whole_numbers(family: str) -> None:
    model = tiny(family, layers=4)
    tokens = ids(model, 1, 4)
    capacity = np.zeros((20, 20), np.int32)
    for depth, layer in enumerate(mixed_layers(model, tokens), 1):
        capacity[4 * depth : 4 * depth + 4, 4 * depth - 4 : 4 * depth] = (layer * 10**8).round().int()
    want = [maximum_flow(csr_array(capacity), 19, s).flow_value / 10**8 for s in range(4)]
    assert attention_flow(model, tokens).tolist() == pytest.approx(want, abs=1e-6)


def test_flow_says_what_it_cannot_follow_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="signed"):
        attention_flow(tiny("gla"), [5, 6, 7])
    with pytest.raises(InputError, match="has no attention"):
        attention_flow(tiny("lstm"), [5, 6, 7])
    calls: list[tuple[str, int, int]] = []
    monkeypatch.setattr(inputs, "report_progress", lambda *report: calls.append(report))
    model = tiny("t5")
    source = reading(model, [5, 6, 7], [8, 9])
    flow = attention_flow(model, source, side="encoder")
    assert calls == [("flows", done, 3) for done in range(4)]
    assert flow.shape == rollout(model, source, side="encoder")[-1].shape


@pytest.mark.parametrize("family", ["gpt2", "palm", "mamba"])
def test_every_node_of_a_graph_has_a_way_to_the_logits(family: str) -> None:
    model = tiny(family)
    given = two(model)
    found = attribution_graph(model, *given, *answers(model, *given), edges=6)
    assert 0 < len(found.edges) <= 6
    assert found.nodes[-1] == "logits"
    reads = {receiver for _, receiver, _ in found.edges}
    for sender, receiver, value in found.edges:
        assert receiver == "logits" or any(s.startswith(receiver) for s, _, _ in found.edges)
        assert value != 0
        assert sender not in reads or sender != receiver
    strongest = float(found.all_edges.values[:, -1].abs().max())
    assert abs(found.edges[0][2]) == pytest.approx(strongest)


def test_a_graph_may_have_a_node_for_every_head() -> None:
    model = tiny("llama")
    given = two(model)
    found = attribution_graph(model, *given, *answers(model, *given), edges=5, senders="heads")
    assert any(" head " in node for node in found.nodes)
    with pytest.raises(InputError, match="edges=0"):
        attribution_graph(model, *given, *answers(model, *given), edges=0)


@pytest.mark.parametrize("baseline", ["mean", "zero", "mask", "pad", "a terrible film", [101, 5, 6, 7, 102]])
def test_shares_sum_to_the_rise_from_any_baseline(baseline: str | list[int]) -> None:
    model = heedful.load("sentiment")
    text = "a wonderful film"
    found = attribution(model, text, answer="POSITIVE", baseline=baseline, steps=512)
    assert found.total is not None
    assert found.gap is not None
    assert abs(found.gap) <= 1e-3 * max(1.0, abs(found.total))
    assert float(found.scores.sum()) == pytest.approx(found.total - found.gap, abs=1e-5)
    if baseline == "a terrible film":
        with torch.no_grad():
            high, low = (float(reading(model, t).run(model)[0, 1]) for t in (text, baseline))
        assert found.total == pytest.approx(high - low, abs=1e-4)
        assert found.scores.abs().argmax() == 2
        assert found.scores[[0, 1, 3, 4]].abs().max() <= 1e-6, "tokens that are the same have no share"


def test_a_baseline_that_does_not_fit_is_refused_in_one_line() -> None:
    model = tiny("gpt2")
    with pytest.raises(InputError, match="a text of as many tokens; the text has 4, the baseline 2"):
        attribution(model, ids(model, 1, 4), baseline=[5, 6])
    with pytest.raises(InputError, match="no token for 'mask'; choose mean or zero"):
        attribution(model, ids(model, 1, 4), baseline="mask")
