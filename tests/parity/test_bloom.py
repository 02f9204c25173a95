"""BLOOM against `transformers`, with head counts that are a power of two and others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import heedful
from tests.parity import harness
from tests.parity.harness import ATTENTIONS, Case

BLOOM = {"vocab_size": 99, "hidden_size": 48, "n_layer": 2, "n_head": 6}

CASES = [
    Case("bloom-6-heads", "BloomForCausalLM", "BloomConfig", BLOOM, patterns=ATTENTIONS),
    Case("bloom-8-heads", "BloomForCausalLM", "BloomConfig", {**BLOOM, "n_head": 8}, patterns=ATTENTIONS),
    Case("bloom-3-heads", "BloomForCausalLM", "BloomConfig", {**BLOOM, "n_head": 3}),
    Case("bloom-1-head", "BloomForCausalLM", "BloomConfig", {**BLOOM, "n_head": 1}),
    Case("bloom-untied", "BloomForCausalLM", "BloomConfig", {**BLOOM, "tie_word_embeddings": False}),
    Case("bloom-none", "BloomModel", "BloomConfig", BLOOM, output="last_hidden_state"),
    Case("bloom-tag", "BloomForTokenClassification", "BloomConfig", {**BLOOM, "num_labels": 5}),
    Case("bloom-span", "BloomForQuestionAnswering", "BloomConfig", BLOOM, output="span"),
    Case("bloom-classify", "BloomForSequenceClassification", "BloomConfig", {**BLOOM, "pad_token_id": 0}),
]


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


@torch.no_grad()
def test_a_model_in_bfloat16_can_be_watched() -> None:
    """Its distances are float32, its values are not."""
    model = heedful.build("bloom", vocab=50, dim=24, layers=1, heads=6, dtype=torch.bfloat16, seed=0).eval()
    tokens, watch = torch.randint(50, (2, 7)), heedful.Watch("*.pattern")
    assert (model(tokens, watch=watch) - model(tokens)).abs().max() <= 0.02
    assert watch["blocks.0.attn.pattern"].dtype == torch.bfloat16
