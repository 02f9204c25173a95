"""Mamba against `transformers`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import heedful
from tests.parity import harness
from tests.parity.harness import Case

MAMBA = {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0}

CASES = [
    Case("mamba", "MambaForCausalLM", "MambaConfig", MAMBA),
    Case("untied", "MambaForCausalLM", "MambaConfig", {**MAMBA, "tie_word_embeddings": False, "expand": 3}),
    Case("biases", "MambaForCausalLM", "MambaConfig", {**MAMBA, "use_bias": True, "use_conv_bias": False}),
    Case(
        "odd", "MambaForCausalLM", "MambaConfig",
        {**MAMBA, "hidden_size": 20, "time_step_rank": 5, "state_size": 3, "conv_kernel": 3,
         "layer_norm_epsilon": 1e-3},
    ),
    Case("narrow", "MambaForCausalLM", "MambaConfig", {**MAMBA, "residual_in_fp32": False, "conv_kernel": 2}),
    Case("none", "MambaModel", "MambaConfig", MAMBA, output="last_hidden_state"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_and_patterns_equal_the_published_implementation(case: Case, tmp_path: Path) -> None:
    harness.check_logits_and_patterns(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_padding_on_either_side_gives_the_unpadded_answer(case: Case, tmp_path: Path) -> None:
    harness.check_padding(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_load_then_save_gives_back_every_tensor_and_opens_there(case: Case, tmp_path: Path) -> None:
    harness.check_there_and_back(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_built_here_opens_there(case: Case, tmp_path: Path) -> None:
    harness.check_fresh_opens_there(case, tmp_path)


@pytest.mark.parametrize("wide", [True, False])
def test_half_precision_stays_near_theirs_whatever_the_residual_is(wide: bool, tmp_path: Path) -> None:
    case = Case("mamba", "MambaForCausalLM", "MambaConfig", {**MAMBA, "residual_in_fp32": wide})
    reference = harness.make(case, tmp_path).to(torch.bfloat16)
    model = heedful.load(tmp_path, dtype=torch.bfloat16)
    tokens, _ = harness.inputs(model, case)
    watch = heedful.Watch("blocks.1.output")
    got = harness.run_ours(model, tokens, None, watch=watch)
    expected = harness.run_theirs(reference, tokens, None)["logits"]
    assert watch["blocks.1.output"].dtype == (torch.float32 if wide else torch.bfloat16)
    assert (got.float() - expected).abs().max() <= 0.05 * expected.abs().max()


def test_one_step_at_a_time_equals_the_published_implementation(tmp_path: Path) -> None:
    reference, model = harness.make(CASES[0], tmp_path), heedful.load(tmp_path)
    tokens, _ = harness.inputs(model, CASES[0])
    expected = harness.run_theirs(reference, tokens, None)["logits"]
    state = model.start(tokens[:, :4])
    steps = [model.step(tokens[:, t : t + 1], state) for t in range(4, tokens.shape[1])]
    assert (torch.cat((state.logits[:, None], *steps), 1) - expected[:, 3:]).abs().max() <= 1e-4
