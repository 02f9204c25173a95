"""GPT, GPT-2, LLaMA and Mistral against `transformers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity import harness
from tests.parity.harness import ATTENTIONS, Case

GPT2 = {"vocab_size": 99, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32}
GPT = {"vocab_size": 99, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32}
LLAMA = {
    "vocab_size": 99, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def rope(**values: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_theta": 5000.0, **values}}


CASES = [
    Case("gpt2", "GPT2LMHeadModel", "GPT2Config", GPT2, patterns=ATTENTIONS),
    Case(
        "gpt2-untied", "GPT2LMHeadModel", "GPT2Config",
        {**GPT2, "tie_word_embeddings": False, "n_inner": 40},
    ),
    Case("gpt2-relu", "GPT2LMHeadModel", "GPT2Config", {**GPT2, "activation_function": "relu", "n_head": 1}),
    Case("gpt2-none", "GPT2Model", "GPT2Config", GPT2, output="last_hidden_state"),
    Case("gpt2-tag", "GPT2ForTokenClassification", "GPT2Config", {**GPT2, "num_labels": 5}),
    Case(
        "gpt2-classify", "GPT2ForSequenceClassification", "GPT2Config",
        {**GPT2, "num_labels": 3, "pad_token_id": 0},
    ),
    Case("gpt", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT, patterns=ATTENTIONS),
    Case("gpt-none", "OpenAIGPTModel", "OpenAIGPTConfig", {**GPT, "n_head": 4}, output="last_hidden_state"),
    Case("llama", "LlamaForCausalLM", "LlamaConfig", LLAMA, patterns=ATTENTIONS),
    Case("llama-all-heads", "LlamaForCausalLM", "LlamaConfig", {**LLAMA, "num_key_value_heads": 6}),
    Case("llama-one-kv", "LlamaForCausalLM", "LlamaConfig", {**LLAMA, "num_key_value_heads": 1}),
    Case(
        "llama-odd-heads", "LlamaForCausalLM", "LlamaConfig",
        {**LLAMA, "num_attention_heads": 3, "num_key_value_heads": 3},
    ),
    Case("llama-tied", "LlamaForCausalLM", "LlamaConfig", {**LLAMA, "tie_word_embeddings": True}),
    Case(
        "llama-biases", "LlamaForCausalLM", "LlamaConfig",
        {**LLAMA, "attention_bias": True, "mlp_bias": True},
    ),
    Case("llama-wide-heads", "LlamaForCausalLM", "LlamaConfig", {**LLAMA, "head_dim": 16}),
    Case(
        "llama-linear", "LlamaForCausalLM", "LlamaConfig",
        {**LLAMA, **rope(rope_type="linear", factor=4.0)},
    ),
    Case(
        "llama-dynamic-short", "LlamaForCausalLM", "LlamaConfig",
        {**LLAMA, **rope(rope_type="dynamic", factor=2.0)},
    ),
    Case(
        "llama-dynamic-long", "LlamaForCausalLM", "LlamaConfig",
        {**LLAMA, **rope(rope_type="dynamic", factor=2.0), "max_position_embeddings": 8},
    ),
    Case(
        "llama-yarn", "LlamaForCausalLM", "LlamaConfig",
        {**LLAMA, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)},
    ),
    Case(
        "llama-yarn-mscale", "LlamaForCausalLM", "LlamaConfig",
        {**LLAMA, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=16.0,
                         beta_slow=2.0, mscale=0.7, mscale_all_dim=0.5)},
    ),
    Case(
        "llama3", "LlamaForCausalLM", "LlamaConfig",
        {**LLAMA, **rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                         original_max_position_embeddings=16)},
    ),
    Case("llama-classify", "LlamaForSequenceClassification", "LlamaConfig", {**LLAMA, "num_labels": 3}),
    Case("llama-tag", "LlamaForTokenClassification", "LlamaConfig", {**LLAMA, "num_labels": 4}),
    Case("llama-none", "LlamaModel", "LlamaConfig", LLAMA, output="last_hidden_state"),
    Case(
        "mistral", "MistralForCausalLM", "MistralConfig",
        {**LLAMA, "sliding_window": 4}, patterns=ATTENTIONS,
    ),
    Case("mistral-full", "MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": None}),
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
