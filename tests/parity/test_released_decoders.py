"""Decoders as they were released: older keys of rotary positions, masks and tables of angles in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import heedful
from heedful.models import by_model_type, find_config
from heedful.models.hf_config import config_from
from tests.parity.cases import find_case
from tests.parity.harness import publish, random_inputs, read_tensors, run_ours, run_theirs

FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.9], "long_factor": [1.5, 2.0, 4.0, 9.0]}
MASK, LOW = torch.ones(1, 1, 4, 4), torch.tensor(-1e9)
# A row of the tables → the keys that stand for `rope_parameters`, and tensors that no equation reads.
OLDER: dict[str, tuple[dict[str, Any], dict[str, Tensor]]] = {
    "gpt-neox": (
        {"rotary_pct": 0.5, "rotary_emb_base": 10000},
        {"gpt_neox.layers.0.attention.bias": MASK, "gpt_neox.layers.1.attention.masked_bias": LOW,
         "gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.ones(2)},
    ),
    "gptj": ({}, {"transformer.h.0.attn.bias": MASK, "transformer.h.1.attn.masked_bias": LOW}),
    "phi": ({"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_scaling": None}, {}),
    "phi3-long-rope-long": (
        {"rope_theta": 5000.0, "rope_scaling": {"type": "su", **FACTORS}}, {},
    ),
    "stablelm-3b": (
        {"partial_rotary_factor": 0.5, "rope_theta": 10000},
        {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)},
    ),
    "starcoder2": ({"rope_theta": 10000.0, "norm_type": "layer_norm", "mlp_type": "default"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("id", OLDER)
def test_an_older_config_and_what_old_files_hold_give_the_same_logits(id: str, tmp_path: Path) -> None:
    case, (keys, extra) = find_case(id), OLDER[id]
    reference = publish(case, tmp_path).reference
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("rope_parameters", None)
    (tmp_path / "config.json").write_text(json.dumps(config | keys))
    tensors = read_tensors(tmp_path)
    save_file({**tensors, **extra}, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    assert set(model.origin.dropped) == set(extra)
    inputs = random_inputs(model, case)
    assert (run_ours(model, *inputs) - run_theirs(reference, *inputs)["logits"]).abs().max() <= 1e-4
    again = read_tensors(heedful.save(model, tmp_path / "saved"))
    assert again.keys() == tensors.keys()


def test_the_output_matrix_of_pythia_is_read_under_both_its_names(tmp_path: Path) -> None:
    publish(find_case("gpt-neox"), tmp_path)
    tensors = read_tensors(tmp_path)
    logits = heedful.load(tmp_path)(torch.arange(5, 12)[None])
    (name,) = {"embed_out.weight", "lm_head.weight"} & tensors.keys()
    other = {"embed_out.weight": "lm_head.weight", "lm_head.weight": "embed_out.weight"}[name]
    save_file({other if n == name else n: t for n, t in tensors.items()}, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    assert torch.equal(model(torch.arange(5, 12)[None]), logits)
    assert other in read_tensors(heedful.save(model, tmp_path / "saved"))


# Sizes of presets under the keys that released files use, older ones among them; not copies of such files.
RELEASED: dict[str, dict[str, Any]] = {
    "pythia-70m": {
        "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu",
        "hidden_size": 512, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "num_attention_heads": 8, "num_hidden_layers": 6,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
        "use_parallel_residual": True, "vocab_size": 50304,
    },
    "gpt-j-6b": {
        "model_type": "gptj", "architectures": ["GPTJForCausalLM"], "activation_function": "gelu_new",
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "layer_norm_epsilon": 1e-05, "n_embd": 4096, "n_head": 16,
        "n_inner": None, "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.0, "rotary": True,
        "rotary_dim": 64, "scale_attn_weights": True, "tie_word_embeddings": False, "vocab_size": 50400,
    },
    "opt-350m": {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "activation_function": "relu",
        "attention_dropout": 0.0, "do_layer_norm_before": False, "dropout": 0.1, "ffn_dim": 4096,
        "hidden_size": 1024, "layerdrop": 0.0, "max_position_embeddings": 2048, "num_attention_heads": 16,
        "num_hidden_layers": 24, "vocab_size": 50272, "word_embed_proj_dim": 512,
    },
    "falcon-7b": {
        "model_type": "falcon", "architectures": ["FalconForCausalLM"], "alibi": False,
        "attention_dropout": 0.0, "bias": False, "hidden_dropout": 0.0, "hidden_size": 4544,
        "layer_norm_epsilon": 1e-05, "multi_query": True, "new_decoder_architecture": False,
        "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": True, "vocab_size": 65024,
    },
    "falcon-40b": {
        "model_type": "falcon", "architectures": ["FalconForCausalLM"], "alibi": False, "bias": False,
        "hidden_size": 8192, "layer_norm_epsilon": 1e-05, "new_decoder_architecture": True,
        "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8, "parallel_attn": True,
        "vocab_size": 65024,
    },
    "phi-2": {
        "model_type": "phi", "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0,
        "embd_pdrop": 0.0, "hidden_act": "gelu_new", "hidden_size": 2560, "intermediate_size": 10240,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4,
        "qk_layernorm": False, "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "vocab_size": 51200,
    },
    "phi-3-mini": {
        "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "hidden_act": "silu",
        "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": False, "vocab_size": 32064,
    },
    "stablelm-2-12b": {
        "model_type": "stablelm", "architectures": ["StableLmForCausalLM"], "hidden_act": "silu",
        "hidden_size": 5120, "intermediate_size": 13824, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 8, "partial_rotary_factor": 0.25, "qk_layernorm": True, "rope_theta": 10000,
        "tie_word_embeddings": False, "use_parallel_residual": True, "use_qkv_bias": False,
        "vocab_size": 100352,
    },
    "starcoder2-3b": {
        "model_type": "starcoder2", "architectures": ["Starcoder2ForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "intermediate_size": 12288,
        "max_position_embeddings": 16384, "mlp_type": "default", "norm_epsilon": 1e-05,
        "norm_type": "layer_norm", "num_attention_heads": 24, "num_hidden_layers": 30,
        "num_key_value_heads": 2, "rope_theta": 999999.4420358813, "sliding_window": 4096,
        "use_bias": True, "vocab_size": 49152,
    },
}  # fmt: skip


@pytest.mark.parametrize("preset", RELEASED)
def test_a_config_under_released_keys_is_the_preset_of_that_name(preset: str) -> None:
    family, expected = find_config(preset)
    assert by_model_type(RELEASED[preset]["model_type"]) is family
    assert config_from(family, RELEASED[preset]) == expected
