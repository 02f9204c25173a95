"""Outputs of published models beside those of the table: other heads, cached steps, half precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import heedful
from heedful.nn.context import Context, Mask
from tests.parity.cases import (
    CAUSAL,
    CLASSIFY,
    TROCR_SINES,
    Rows,
    bart,
    find_case,
    hybrid,
    mamba,
    mamba2,
)
from tests.parity.harness import open_there, publish, random_inputs, run_ours, run_theirs


@torch.no_grad()
def test_the_sentence_pair_logits_stand_beside_the_masked_words(tmp_path: Path) -> None:
    case = find_case("bert-pretrain")
    reference, model = publish(case, tmp_path).reference, heedful.load(tmp_path)
    tokens, types, _ = random_inputs(model, case)
    expected = run_theirs(reference, tokens, types)["seq_relationship_logits"]
    positions = torch.arange(tokens.shape[1])[None]
    got = model.head.next(model.encode(tokens, types=types), Context(positions, positions, Mask()))
    assert (got - expected).abs().max() <= 1e-4


@torch.no_grad()
def test_a_classifying_bart_reads_the_source_again(tmp_path: Path) -> None:
    case = bart("classify", CLASSIFY)
    reference, model = publish(case, tmp_path).reference, heedful.load(tmp_path)
    tokens = torch.randint(5, 99, (2, 10))
    tokens[:, -1] = 2  # theirs looks for the last </s>
    expected = reference(input_ids=tokens).logits
    assert (model(tokens) - expected).abs().max() <= 1e-4
    pad = torch.full((2, 3), 4)
    for row, mark in (((pad, tokens), (pad < 0, tokens > 0)), ((tokens, pad), (tokens > 0, pad < 0))):
        assert (model(torch.cat(row, 1), valid=torch.cat(mark, 1)) - expected).abs().max() <= 1e-5
    again = open_there(case.architecture, heedful.save(model, tmp_path / "saved"))
    assert (again(input_ids=tokens).logits - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("rows", [mamba, mamba2], ids=["mamba", "mamba2"])
@pytest.mark.parametrize("wide", [True, False])
def test_a_state_space_in_half_precision_is_near_theirs_whatever_the_residual_is(
    wide: bool, rows: Rows, tmp_path: Path
) -> None:
    case = rows("wide", CAUSAL, {"residual_in_fp32": wide})
    reference = publish(case, tmp_path).reference.to(torch.bfloat16)
    model = heedful.load(tmp_path, dtype=torch.bfloat16)
    tokens, *_ = random_inputs(model, case)
    watch = heedful.Watch("blocks.1.output")
    got = run_ours(model, tokens, None, watch=watch)
    expected = run_theirs(reference, tokens, None)["logits"]
    assert watch["blocks.1.output"].dtype == (torch.float32 if wide else torch.bfloat16)
    assert (got.float() - expected).abs().max() <= 0.05 * expected.abs().max()


@pytest.mark.parametrize("id", ["mamba", "mamba2", "mamba2-tied", "olmo-hybrid", "olmo-hybrid-shared-keys"])
def test_one_step_at_a_time_equals_the_published_implementation(id: str, tmp_path: Path) -> None:
    case = find_case(id)
    reference, model = publish(case, tmp_path).reference, heedful.load(tmp_path)
    tokens, *_ = random_inputs(model, case)
    expected = run_theirs(reference, tokens, None)["logits"]
    state = model.start(tokens[:, :4])
    steps = [model.step(tokens[:, t : t + 1], state) for t in range(4, tokens.shape[1])]
    assert (torch.cat((state.logits[:, None], *steps), 1) - expected[:, 3:]).abs().max() <= 1e-4


def test_values_wider_than_keys_are_read_whatever_the_file_cuts_its_convolution_into(tmp_path: Path) -> None:
    """transformers saves one convolution in three equal parts, released files in those of q, k and v."""
    case = hybrid("wide-values", CAUSAL, {"linear_value_head_dim": 8})
    reference, model = publish(case, tmp_path).reference, heedful.load(tmp_path)
    inputs = random_inputs(model, case)
    expected = run_theirs(reference, *inputs)["logits"]
    assert (run_ours(model, *inputs) - expected).abs().max() <= 1e-4
    again = open_there(case.architecture, heedful.save(model, tmp_path / "saved"))
    assert (run_theirs(again, *inputs)["logits"] - expected).abs().max() <= 1e-6
    opened = heedful.load(tmp_path / "saved")
    assert torch.equal(run_ours(opened, *inputs), run_ours(model, *inputs))


def test_trocr_with_sines_equals_the_published_implementation(tmp_path: Path) -> None:
    published = publish(TROCR_SINES, tmp_path)
    model = heedful.load(tmp_path)
    inputs = random_inputs(model, TROCR_SINES)
    expected = run_theirs(published.reference, *inputs)["logits"]
    assert (run_ours(model, *inputs) - expected).abs().max() <= 1e-4
