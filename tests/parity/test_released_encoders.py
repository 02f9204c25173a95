"""Newer encoders and hybrids as they were released: older words in configs, other names, a pooler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.core.errors import ConfigError
from tests.parity.cases import find_case, modern
from tests.parity.harness import publish, random_inputs, run_ours, run_theirs
from tests.parity.test_released_files import check_given_back, rewrite
from tests.refusal import refused

SAID_OTHERWISE = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon", "hidden_dropout_prob": "resid_pdrop",
}  # fmt: skip
BESIDE = {
    "activation_function": "swiglu", "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "use_rms_norm": False,
    "rotary_emb_interleaved": False, "rotary_scaling_factor": None,
}  # fmt: skip


def write_config(folder: Path, left_out: tuple[str, ...], **more: Any) -> None:
    """Change config.json: without some keys, with others."""
    config = json.loads((folder / "config.json").read_text())
    kept = {name: value for name, value in config.items() if name not in left_out}
    (folder / "config.json").write_text(json.dumps(kept | more))


def older_nomic(folder: Path, **more: Any) -> Any:
    """A NomicBERT whose config speaks GPT-2's words, as the first released ones do."""
    reference = publish(find_case("nomic-bert-none"), folder).reference
    said = json.loads((folder / "config.json").read_text())
    older = {name: said[key] for key, name in SAID_OTHERWISE.items()}
    gone = (*SAID_OTHERWISE, "hidden_act", "head_dim", "rope_parameters", "attention_probs_dropout_prob")
    write_config(folder, gone, **older, **BESIDE | more)
    return reference


def test_a_nomic_bert_configured_in_older_words_is_the_same(tmp_path: Path) -> None:
    reference, model = older_nomic(tmp_path), heedful.load(tmp_path)
    inputs = random_inputs(model, find_case("nomic-bert-none"))
    expected = run_theirs(reference, *inputs)["last_hidden_state"]
    assert (run_ours(model, *inputs) - expected).abs().max() <= 1e-5
    again = heedful.load(heedful.save(model, tmp_path / "saved"))
    assert again.config == model.config


@pytest.mark.parametrize(
    ("key", "value"), [("prenorm", True), ("activation_function", "gelu"), ("rotary_emb_fraction", 0.5)]
)
def test_a_nomic_bert_that_is_another_model_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    older_nomic(tmp_path, **{key: value})
    with refused(ConfigError, f'"{key}": {value!r}'):
        heedful.load(tmp_path)


def test_a_modernbert_that_says_how_far_its_global_layers_are_apart_is_the_same(tmp_path: Path) -> None:
    turns = {kind: {"rope_theta": base, "rope_type": "default"} for kind, base in
             (("full_attention", 5000.0), ("sliding_attention", 100.0))}  # fmt: skip
    kinds = ["full_attention", "sliding_attention"] * 2
    case = modern("older", "Model", {"rope_parameters": turns, "layer_types": kinds})
    reference = publish(case, tmp_path).reference
    older = {"global_rope_theta": 5000.0, "local_rope_theta": 100.0, "global_attn_every_n_layers": 2}
    write_config(tmp_path, ("rope_parameters", "layer_types"), **older)
    model = heedful.load(tmp_path)
    inputs = random_inputs(model, case)
    expected = run_theirs(reference, *inputs)["last_hidden_state"]
    assert (run_ours(model, *inputs) - expected).abs().max() <= 1e-5
    again = heedful.load(heedful.save(model, tmp_path / "saved"))
    assert again.config == model.config


def test_a_masked_lm_file_of_an_mpnet_may_keep_a_pooler_and_positions(tmp_path: Path) -> None:
    publish(find_case("mpnet-mlm"), tmp_path)
    pooler = {f"mpnet.pooler.dense.{name}": torch.randn(*shape) for name, shape in
              (("weight", (24, 24)), ("bias", (24,)))}  # fmt: skip
    buffer = {"mpnet.embeddings.position_ids": torch.arange(32)[None]}
    tensors = rewrite(tmp_path, {}, "MPNetForMaskedLM", **pooler, **buffer)
    check_given_back(tmp_path, tensors, set(buffer))


def test_norms_of_a_hybrid_are_read_under_either_name(tmp_path: Path) -> None:
    """transformers saves the norm after attention under the name of one of the other layers."""
    case = find_case("olmo-hybrid")
    reference = publish(case, tmp_path).reference
    saved = heedful.load(tmp_path)
    inputs = random_inputs(saved, case)
    name = "model.layers.1.post_attention_layernorm.weight"
    tensors = rewrite(tmp_path, {"model.layers.1.feedforward_layer_norm.weight": name}, case.architecture)
    assert name in tensors
    released = heedful.load(tmp_path)
    assert torch.equal(run_ours(released, *inputs), run_ours(saved, *inputs))
    assert (run_ours(released, *inputs) - run_theirs(reference, *inputs)["logits"]).abs().max() <= 1e-4
    check_given_back(tmp_path, tensors, set())
