"""What a researcher gives by mistake is refused in one line that names it, never taken for something else."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful import Watch
from heedful.core.errors import InputError
from heedful.interp import (
    PromptPair,
    ablate,
    ablate_features,
    activation_patching,
    attribution,
    attribution_graph,
    attribution_patching,
    average_over_pairs,
    carry,
    catalogue_heads,
    circuit_curve,
    collect_activations,
    describe_features,
    edge_attribution,
    feature_examples,
    find_circuit,
    find_heads,
    function_vector,
    gradient_by_distance,
    head_scores,
    linear_probes,
    mean_loss,
    neighbours,
    noise_trace,
    patch,
    path_patching,
    save_activations,
    sentence_probes,
    steer,
    steering_vector,
    train_dictionary,
    train_tuned_lens,
)
from heedful.interp.inputs import position_of
from tests.properties.tiny import tiny

IDS, NAME = [5, 9, 2, 7], "blocks.0.output"
PAIR = PromptPair(IDS, [5, 6, 2, 7], 3, 8)
MODEL = tiny("gpt2")


@pytest.fixture(scope="module")
def dictionary() -> Any:
    return train_dictionary(MODEL, [IDS] * 8, NAME, width=16, k=2, steps=2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: average_over_pairs(activation_patching, MODEL, PAIR), "one pair of prompts"),
        (lambda: find_circuit(MODEL, []), "no pairs of prompts"),
        (lambda: find_circuit(MODEL, [PAIR], "0.1"), "threshold='0.1' must be a number"),
        (lambda: circuit_curve(MODEL, [PAIR], edge_attribution(MODEL, *PAIR), [-3]), "counts=-3"),
        (lambda: function_vector(MODEL, [IDS], [IDS], [3], heads=0), "heads=0"),
        (lambda: steering_vector(MODEL, [IDS], [IDS], NAME, tokens="first"), "tokens='first' is unknown"),
        (lambda: linear_probes(MODEL, [(["a"], ["X"])] * 6, folds=1), "folds=1"),
        (lambda: sentence_probes(MODEL, [IDS] * 6, ["a", "b"] * 3, [NAME], folds=1), "folds=1"),
        (lambda: find_heads(MODEL, IDS, 99, 0), "position 99"),
        (lambda: find_heads(MODEL, IDS, 1.5, 0), "not 1.5"),  # type: ignore[arg-type]
        (lambda: collect_activations(MODEL, [IDS], NAME), "must be a list"),
        (lambda: carry(MODEL, IDS, NAME), "must be a list"),
        (lambda: ablate(MODEL, IDS, layers="blocks.0"), "give ['blocks.0']"),
        (lambda: ablate(MODEL, IDS, layers=[1]), "got 1"),  # type: ignore[list-item]
        (lambda: steering_vector(MODEL, [IDS], [IDS], 1), "got 1"),  # type: ignore[arg-type]
        (lambda: steer(MODEL, 1, torch.ones(32)), "got 1"),  # type: ignore[arg-type]
        (lambda: noise_trace(MODEL, IDS, "tower"), "subject='tower' is not a list of tokens"),
        (
            lambda: MODEL(torch.tensor([IDS]), watch=Watch("blocks.1.hook_resid_post")),
            "a name of TransformerLens",
        ),
        (lambda: head_scores(MODEL, IDS, induction=-3), "induction=-3"),
        (lambda: neighbours(MODEL, IDS, count=0), "count=0"),
        (lambda: gradient_by_distance(MODEL, samples=0), "samples=0"),
        (lambda: mean_loss(MODEL, [IDS], max_length=-1), "max_length=-1"),
        (lambda: collect_activations(MODEL, [IDS], [NAME], max_length=0), "max_length=0"),
        (lambda: catalogue_heads(MODEL, [IDS], repeats=-1), "repeats=-1"),
        (lambda: catalogue_heads(MODEL, [IDS], repeat_length=0), "repeat_length=0"),
        (lambda: find_heads(MODEL, IDS, 3, 1, count=-1), "count=-1"),
        (lambda: path_patching(MODEL, *PAIR, senders=[]), "no node was named"),
        (lambda: attribution_graph(MODEL, *PAIR, senders=[]), "no node was named"),
        (lambda: train_tuned_lens(MODEL, [IDS], steps=-1), "steps=-1"),
        (lambda: train_tuned_lens(MODEL, [IDS], learning_rate=-1.0), "learning_rate=-1.0"),
        (lambda: train_dictionary(MODEL, [IDS], NAME, k=2, learning_rate=math.nan), "learning_rate=nan"),
        (lambda: sentence_probes(MODEL, [IDS] * 6, ["a", "b"] * 3, [NAME], penalty=-1.0), "penalty=-1"),
    ],
)
def test_a_wrong_argument_is_named(call: Callable[[], Any], said: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("heedful.interp.learn.probes._encode", lambda *_: ([5, 6], [0], ["a"], ["X"]))
    with pytest.raises(InputError) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize("features", [[16], [-1], []])
def test_a_feature_that_is_not_there_is_refused(dictionary: Any, features: list[int]) -> None:
    for call in (partial(ablate_features, dictionary), partial(feature_examples, MODEL, dictionary, [IDS])):
        with pytest.raises(InputError, match="feature"):
            call(features)


@pytest.mark.parametrize("wrong", [{"count": -1}, {"context": -1}])
def test_a_wrong_number_of_examples_is_named(dictionary: Any, wrong: dict[str, int]) -> None:
    for show in (feature_examples, partial(describe_features, features=[1])):
        with pytest.raises(InputError, match="=-1"):
            show(MODEL, dictionary, [IDS], **wrong)  # type: ignore[operator]


def test_a_patch_of_no_position_changes_nothing() -> None:
    plain = MODEL(torch.tensor([PAIR.corrupt]))
    assert torch.equal(patch(MODEL, PAIR.clean, PAIR.corrupt, [NAME], positions=[]), plain)


def test_one_text_or_one_name_is_no_list_of_letters(tmp_path: Path) -> None:
    for texts, names in (("one text", [NAME]), ([IDS], NAME), ([IDS], [])):
        with pytest.raises(InputError, match="must be a list"):
            save_activations(MODEL, texts, names, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_no_more_neighbours_are_listed_than_there_are_tokens() -> None:
    assert len(neighbours(MODEL, IDS, count=10**6).near[0]) == MODEL.config.vocab


def test_pairs_may_be_plain_lists() -> None:
    wanted = average_over_pairs(activation_patching, MODEL, [PAIR], what="heads")
    found = average_over_pairs(activation_patching, MODEL, [[*PAIR]], what="heads")
    assert found.values.equal(wanted.values)


def test_a_word_of_several_tokens_is_named_with_its_pieces() -> None:
    with pytest.raises(InputError, match="'tower' is 3 tokens here, Ġto w er.*1 … 3"):
        position_of(["The", "Ġto", "w", "er", "Ġfell"], "tower")


@torch.no_grad()
def test_what_is_learnt_is_learnt_also_where_gradients_are_switched_off() -> None:
    texts = [[5, 9, 2, 7, 4, 8]] * 8
    made = train_dictionary(MODEL, texts, NAME, width=16, k=2, steps=2)
    assert made.encoder.weight.isfinite().all()
    assert train_tuned_lens(MODEL, texts, steps=2).weight.any()
    kinds = ["a", "b"] * 4
    assert sentence_probes(MODEL, texts, kinds, [NAME], folds=2).accuracy.shape == (1, 2)
    assert attribution_patching(MODEL, *PAIR).values.isfinite().all()
    assert attribution(MODEL, IDS).scores.isfinite().all()
