"""Descendants of LLaMA as released: their config.json is our preset, and cached steps equal theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import heedful
from heedful.core.errors import ConfigError, NotFound
from heedful.models import FAMILIES, MEDIA_FAMILIES, REFUSED, by_model_type, find_config
from heedful.models.hf_config import config_from
from tests.parity.cases import find_case
from tests.parity.harness import publish, read_tensors
from tests.refusal import refused

TURNS = ["sliding_attention", "full_attention"]
# Keys that change nothing here (token ids, dtypes, caches) are left out.
RELEASED: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
        "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
        "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
        "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
        "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "gemma-2b": {
        "model_type": "gemma", "architectures": ["GemmaForCausalLM"], "attention_bias": False,
        "head_dim": 256, "hidden_act": "gelu", "hidden_activation": None, "hidden_size": 2048,
        "intermediate_size": 16384, "max_position_embeddings": 8192, "num_attention_heads": 8,
        "num_hidden_layers": 18, "num_key_value_heads": 1, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 10000.0, "vocab_size": 256000,
    },
    "gemma-2-2b": {
        "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "attention_bias": False,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
        "intermediate_size": 9216, "max_position_embeddings": 8192, "num_attention_heads": 8,
        "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000,
    },
    "gemma-3-1b": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
        "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
        "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 26,
        "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "vocab_size": 262144,
    },
    "gemma-3-4b": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_size": 2560,
        "intermediate_size": 10240, "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
    "gemma-3-27b": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 128,
        "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32, "num_hidden_layers": 62,
        "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
    "olmo-1b": {
        "model_type": "olmo", "architectures": ["OlmoForCausalLM"], "attention_bias": False, "clip_qkv": None,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 2048,
        "num_attention_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 16, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "vocab_size": 50304,
    },
    "olmo-2-7b": {
        "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "attention_bias": False,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "rope_theta": 500000, "vocab_size": 100352,
        "tie_word_embeddings": False,
    },
    "smollm3-3b": {
        "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008,
        "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536, "mlp_bias": False,
        "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 5000000.0, "sliding_window": None, "use_sliding_window": False, "vocab_size": 128256,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "qwen1.5-moe-a2.7b": {
        "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 8192,
        "max_window_layers": 21, "moe_intermediate_size": 1408, "norm_topk_prob": False,
        "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 16, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False,
        "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
        "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
        "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "attention_bias": True,
        "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
        "initial_context_length": 4096, "intermediate_size": 2880, "layer_types": TURNS * 12,
        "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "rms_norm_eps": 1e-05,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
                         "original_max_position_embeddings": 4096, "truncate": False},
        "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
        "vocab_size": 201088,
    },
}  # fmt: skip


@pytest.mark.parametrize("preset", RELEASED)
def test_a_released_config_is_the_preset_of_that_name(preset: str) -> None:
    family, expected = find_config(preset)
    assert by_model_type(RELEASED[preset]["model_type"]) is family
    assert config_from(family, RELEASED[preset]) == expected


# `max_position_embeddings` of released base models; those that follow instructions often state another.
CONTEXTS = {
    "qwen2.5-0.5b": 32768, "qwen2.5-1.5b": 131072, "qwen2.5-3b": 32768, "qwen2.5-7b": 131072,
    "qwen2.5-72b": 131072, "qwen1.5-moe-a2.7b": 8192, "qwen2-57b-a14b": 131072, "qwen3-32b": 40960,
    "gemma-7b": 8192, "gemma-2-27b": 8192, "gemma-3-270m": 32768, "gemma-3-1b": 32768, "olmo-7b": 2048,
    "olmo-2-13b": 4096, "smollm3-3b": 65536, "mixtral-8x7b": 32768, "mixtral-8x22b": 65536,
    "gpt-oss-120b": 131072, "pythia-14m": 2048, "pythia-12b": 2048, "phi-2": 2048, "phi-4": 16384,
    "stablelm-3b": 4096, "starcoder2-15b": 16384, "falcon2-11b": 8192, "opt-350m": 2048,
}  # fmt: skip


@pytest.mark.parametrize("preset", CONTEXTS)
def test_a_preset_sees_as_far_as_the_released_base_model(preset: str) -> None:
    assert find_config(preset)[1].context == CONTEXTS[preset]  # type: ignore[attr-defined]


STEPPED = [
    "qwen2-window", "qwen3", "gemma", "gemma2", "gemma3-two-ropes", "olmo-clipped", "olmo2", "smollm3",
    "mixtral-window", "qwen2-moe", "qwen3-moe-normalised", "gpt-oss",
]  # fmt: skip


@pytest.mark.parametrize("id", STEPPED)
@torch.no_grad()
def test_cached_steps_past_every_window_equal_the_published_ones(id: str, tmp_path: Path) -> None:
    reference = publish(find_case(id), tmp_path).reference
    model = heedful.load(tmp_path)
    tokens = torch.randint(5, 99, (2, 24), generator=torch.Generator().manual_seed(3))
    said = reference(input_ids=tokens[:, :9], use_cache=True)
    state = model.start(tokens[:, :9], length=24)  # type: ignore[operator]
    assert (state.logits - said.logits[:, -1]).abs().max() <= 1e-4
    for at in range(9, 24):
        newest = tokens[:, at : at + 1]
        said = reference(input_ids=newest, past_key_values=said.past_key_values, use_cache=True)
        got = model.step(newest, state)  # type: ignore[operator]
        assert (got - said.logits).abs().max() <= 1e-4, at


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
@torch.no_grad()
def test_of_a_gemma_3_that_reads_images_the_text_model_is_read(prefix: str, tmp_path: Path) -> None:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = dict(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=7, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, sliding_window=4, max_position_embeddings=64,
        rope_scaling={"factor": 8.0, "rope_type": "linear"},
    )  # fmt: skip
    config = Gemma3Config(
        text_config=text, vision_config=small | {"image_size": 28, "patch_size": 14}, eos_token_id=[1, 106],
        mm_tokens_per_image=4, image_token_index=100,
    )  # fmt: skip
    reference = Gemma3ForConditionalGeneration(config).eval()
    reference.save_pretrained(tmp_path)
    tensors = read_tensors(tmp_path)
    names = {name: name.replace("language_model.model.", prefix, 1) for name in tensors}
    save_file({names[name]: tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    model = heedful.load(tmp_path)
    tokens = torch.randint(5, 99, (2, 12), generator=torch.Generator().manual_seed(3))
    assert (model(tokens) - reference(input_ids=tokens).logits).abs().max() <= 1e-4
    heedful.save(model, tmp_path / "text")
    told = json.loads((tmp_path / "text" / "config.json").read_text())
    assert (told["model_type"], told["eos_token_id"]) == ("gemma3_text", [1, 106])
    alone = Gemma3ForCausalLM.from_pretrained(tmp_path / "text")
    assert torch.equal(alone.get_input_embeddings().weight, reference.get_input_embeddings().weight)


def test_experts_in_four_bits_are_refused_with_a_way_out() -> None:
    names = ["model.layers.0.mlp.experts.gate_up_proj_blocks", "model.layers.0.mlp.experts.down_proj_blocks"]
    with refused(ConfigError, hint="bfloat16"):
        config_from(FAMILIES["gpt-oss"], RELEASED["gpt-oss-20b"], names)


@pytest.mark.parametrize(
    ("ends", "kind"),
    [
        (("weight", "weight_scale_inv"), "FP8"),
        (("weight", "weight_scale", "input_scale"), "FP8"),
        (("weight_packed", "weight_scale", "weight_shape"), "4-bit"),
        (("qweight", "qzeros", "scales"), "AWQ"),
        (("qweight", "qzeros", "scales", "g_idx"), "GPTQ"),
        (("weight", "weight.absmax", "weight.quant_map"), "bitsandbytes"),
        (("weight", "SCB", "weight_format"), "bitsandbytes"),
    ],
)
def test_matrices_that_another_program_quantised_are_refused_by_their_names(
    ends: tuple[str, ...], kind: str
) -> None:
    names = [f"model.layers.0.self_attn.q_proj.{end}" for end in ends]
    with refused(ConfigError, kind, "not supported", hint="bfloat16"):
        config_from(FAMILIES["qwen3"], RELEASED["qwen3-0.6b"], names)


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"layer_types": ["linear_attention"] * 26}, "sliding_attention"),
        ({"attn_logit_softcapping": 50.0}, "None only"),
    ],
)
def test_a_gemma_3_that_is_not_built_here_is_refused(change: dict[str, Any], hint: str) -> None:
    with refused(ConfigError, hint=hint):
        config_from(FAMILIES["gemma3"], RELEASED["gemma-3-1b"] | change)


def test_an_unknown_type_is_refused_with_what_to_fetch_or_where_all_are_listed() -> None:
    every = (*FAMILIES.values(), *MEDIA_FAMILIES.values())
    for unknown in set(CONFIG_MAPPING) - {t for f in every for t in f.model_types} - REFUSED.keys():
        with pytest.raises(NotFound) as told:
            by_model_type(unknown)
        assert told.value.hint.endswith("heed ls lists the families that can be read")
        assert "did you mean" not in told.value.hint  # llava is no slip of the pen for llama
    for kind in REFUSED:
        with refused(NotFound, repr(kind), hint=REFUSED[kind]):
            by_model_type(kind)
    with refused(NotFound, hint="gemma3_text"):
        by_model_type("gemma3_txt")
    with refused(NotFound, hint="heedful-palm"):
        by_model_type("heedful-plam")
