"""Keys of config.json files as people have them: each is read with its meaning, or refused in one line.

The rows hold what was seen in public copies of such files: the keys that make them unlike a preset's, on top
of a preset's own.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from heedful.core.errors import ConfigError, NotFound
from heedful.models import by_model_type, find_config
from heedful.models.base import Config
from heedful.models.hf_config import config_from, config_to
from heedful.nn.position import LinearScaling, LongScaling, YarnScaling
from tests.refusal import refused

Keys = dict[str, Any]
SHORT, LONG = [1.0 + i / 100 for i in range(48)], [1.0 + i for i in range(48)]
LOCAL_OF_12 = tuple(i for i in range(12) if i % 6 < 5)
# A preset, the keys that a file has otherwise, and what they mean.
READ: dict[str, tuple[str, Keys, Keys]] = {
    "Qwen2.5 stretched by YaRN, as its card says": (
        "qwen2.5-7b",
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
         "rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": False,
         "max_window_layers": 28, "max_position_embeddings": 32768},
        {"rope_scaling": YarnScaling(4.0, 32768), "rope_base": 1e6, "window": None, "context": 32768},
    ),
    "Qwen3 stretched, in the words of transformers 5": (
        "qwen3-8b",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000, "factor": 4.0,
                             "original_max_position_embeddings": 32768},
         "max_position_embeddings": 131072, "dtype": "bfloat16"},
        {"rope_scaling": YarnScaling(4.0, 32768), "rope_base": 1e6, "context": 131072},
    ),
    "Qwen3-Coder: keys of other families that say what is so anyway": (
        "qwen3-30b-a3b",
        {"rope_theta": 10000000, "max_position_embeddings": 262144, "qkv_bias": False, "use_qk_norm": True,
         "shared_expert_intermediate_size": 0, "head_dim": 128, "mlp_only_layers": []},
        {"rope_base": 1e7, "context": 262144, "dense": ()},
    ),
    "Phi-3.5-mini: long rope": (
        "phi-3-mini",
        {"rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
         "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
         "sliding_window": 262144, "rope_theta": 10000.0},
        {"rope_scaling": LongScaling(32.0, 4096, tuple(SHORT), tuple(LONG)), "window": 262144},
    ),
    "Phi-3-mini-128k as first released: long rope by the name su": (
        "phi-3-mini",
        {"rope_scaling": {"type": "su", "short_factor": SHORT, "long_factor": LONG},
         "max_position_embeddings": 131072, "original_max_position_embeddings": 4096},
        {"rope_scaling": LongScaling(32.0, 4096, tuple(SHORT), tuple(LONG))},
    ),
    "Phi-3 with long rope by the name yarn": (
        "phi-3-mini",
        {"rope_scaling": {"type": "yarn", "short_factor": SHORT, "long_factor": LONG},
         "max_position_embeddings": 131072, "original_max_position_embeddings": 4096},
        {"rope_scaling": LongScaling(32.0, 4096, tuple(SHORT), tuple(LONG))},
    ),
    "Phi-4-mini: three quarters of a head, a tied output": (
        "phi-3-mini",
        {"partial_rotary_factor": 0.75, "num_attention_heads": 24, "num_key_value_heads": 8,
         "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}, "head_dim": None,
         "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
         "tie_word_embeddings": True, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False,
         "mlp_bias": False, "attention_bias": False, "vocab_size": 200064},
        {"rope_dim": 96, "head_dim": 128, "tied": True, "vocab": 200064},
    ),
    "Gemma-2-2b-jpn: scores divided by the root of 224": (
        "gemma-2-2b",
        {"query_pre_attn_scalar": 224, "cache_implementation": "hybrid", "dtype": "bfloat16"},
        {"score_dim": 224, "head_dim": 256},
    ),
    "the text model of Gemma 3 4B, which leaves out what is so by default": (
        "gemma-3-1b",
        {"num_attention_heads": ..., "num_key_value_heads": ..., "head_dim": ..., "vocab_size": ...,
         "query_pre_attn_scalar": ..., "max_position_embeddings": ...,
         "layer_types": ..., "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 12,
         "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        {"heads": 8, "kv_heads": 4, "head_dim": 256, "vocab": 262208, "context": 131072, "score_dim": 256,
         "rope_base": 1e6, "rope_scaling": LinearScaling(8.0), "local_rope_base": 1e4, "local": LOCAL_OF_12},
    ),
    "the text model of TranslateGemma: rotations by kind of layer, their bases beside": (
        "gemma-3-1b",
        {"rope_parameters": {"full_attention": {"factor": 8.0, "rope_type": "linear"},
                             "sliding_attention": {"rope_type": "default"}},
         "rope_scaling": None, "rope_theta": 1000000, "rope_local_base_freq": 10000,
         "_sliding_window_pattern": 6},
        {"rope_base": 1e6, "rope_scaling": LinearScaling(8.0), "local_rope_base": 1e4},
    ),
    "RedPajama 3B: a GPT-NeoX whose parts follow each other and whose whole heads turn": (
        "pythia-2.8b",
        {"rotary_pct": 1.0, "rotary_emb_base": 10000, "use_parallel_residual": False,
         "vocab_size": 50432},
        {"rope_dim": 80, "parallel": False, "rope_base": 1e4},
    ),
    "StableLM 2 Zephyr: no word of parallel parts or normalised queries": (
        "stablelm-2-1.6b",
        {"qk_layernorm": ..., "use_parallel_residual": ..., "use_qkv_bias": True,
         "partial_rotary_factor": 0.25, "rope_theta": 10000},
        {"bias": True, "qk_norm": False, "parallel": False, "rope_dim": 16},
    ),
    "StarCoder2 7B: GPT-BigCode's keys beside its own": (
        "starcoder2-7b",
        {"activation_function": "gelu", "attention_softmax_in_fp32": True, "embedding_dropout": 0.1,
         "layer_norm_epsilon": 1e-05, "scale_attn_weights": True, "mlp_type": "default",
         "norm_type": "layer_norm", "rope_theta": 1000000},
        {"act": "gelu_pytorch_tanh", "rope_base": 1e6},
    ),
    "OLMo 1.7: queries, keys and values clipped": (
        "olmo-7b", {"clip_qkv": 8.0, "max_position_embeddings": 4096}, {"clip": 8.0, "context": 4096},
    ),
    "Granite's ModernBERT: slower global rotations, the norm's ε by BERT's name": (
        "modernbert-base",
        {"layer_types": ..., "norm_eps": ..., "global_rope_theta": 80000.0,
         "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3, "layer_norm_eps": 1e-05,
         "classifier_pooling": "mean", "position_embedding_type": "absolute"},
        {"rope_base": 80000.0, "local_rope_base": 1e4, "norm_eps": 1e-5, "pooling": "mean"},
    ),
    "nomic-embed-text-v1.5: GPT-2's keys and BERT's": (
        "nomic-embed-text-v1.5",
        {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": 3072, "n_positions": 8192,
         "max_position_embeddings": 2048, "max_trained_positions": 2048, "rotary_emb_base": 1000,
         "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_scaling_factor": None,
         "activation_function": "swiglu", "qkv_proj_bias": False, "layer_norm_epsilon": 1e-12},
        {"context": 8192, "rope_base": 1000.0, "dim": 768},
    ),
    "ModernBERT stretched: both kinds of layers": (
        "modernbert-base", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": LinearScaling(2.0), "local_rope_scaling": LinearScaling(2.0)},
    ),
    "a NomicBERT with GPT-2's keys, stretched": (
        "nomic-bert-2048",
        {"n_embd": 768, "rotary_emb_base": 1000, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": LinearScaling(2.0), "rope_base": 1000.0},
    ),
    "Mamba-2: no highest step, as Python writes infinity": (
        "mamba2-130m", {"time_step_limit": [0.0, math.inf], "rms_norm": True, "chunk_size": 256},
        {"lowest_step": 0.0, "highest_step": 0.0},
    ),
    "OLMo Hybrid as OLMo-core converts it: no rotations, by a base that is null": (
        "olmo-hybrid-7b", {"rope_theta": None}, {"rotary": False},
    ),
    "OLMo Hybrid as transformers saves it": (
        "olmo-hybrid-7b", {"rope_parameters": {"rope_theta": None, "rope_type": "default"}},
        {"rotary": False},
    ),
    "OLMo Hybrid with rotations": ("olmo-hybrid-7b", {"rope_theta": 5e5}, {"rotary": True, "rope_base": 5e5}),
    "Falcon RW 1B: ALiBi, and heads of their own": (
        "falcon-rw-1b",
        {"alibi": True, "multi_query": False, "parallel_attn": False, "new_decoder_architecture": False,
         "num_kv_heads": ..., "apply_residual_connection_post_layernorm": False},
        {"kv_heads": 32, "alibi": True, "parallel": False, "norms": 1},
    ),
    "Falcon 40B: two norms where no number of them is stated": (
        "falcon-40b", {"num_ln_in_parallel_attn": ...}, {"norms": 2, "kv_heads": 8},
    ),
}  # fmt: skip


def published(preset: str, keys: Keys) -> Keys:
    """A preset's config.json with some keys otherwise; those that are ... are left out.

    Its `rope_parameters` are, too, if there are none among the keys: older files have others instead.
    """
    family, config = find_config(preset)
    written = config_to(family, config, {}) | {"rope_parameters": ...} | keys
    return {key: value for key, value in written.items() if value is not ...}


@pytest.mark.parametrize("row", READ)
def test_a_released_file_is_read_with_its_meaning(row: str) -> None:
    preset, keys, expected = READ[row]
    hf_config = published(preset, keys)
    found: Config = config_from(by_model_type(hf_config["model_type"]), hf_config)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("preset", "keys", "told"),
    [
        ("nomic-bert-2048", {"activation_function": "gelu", "num_experts": 8}, "activation_function"),
        ("nomic-bert-2048", {"rotary_scaling_factor": 2.0}, '"rotary_scaling_factor": 2.0'),
        (
            "qwen3-8b",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
             "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            "rope_scaling of type 'yarn' and rope_parameters of 'default'",
        ),
        ("phi-2", {"qk_layernorm": True}, '"qk_layernorm": True'),
        ("smollm3-3b", {"use_sliding_window": True}, '"use_sliding_window": True'),
        ("mpnet-base", {"relative_attention_num_buckets": 64}, '"relative_attention_num_buckets": 64'),
        ("mamba-130m", {"architectures": ["Mamba2ForCausalLM"]}, "Mamba2ForCausalLM"),
        ("llama-7b", {"rope_scaling": {"rope_type": "mrope"}}, "rope_type='mrope'"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_built_here_is_refused_by_its_key(preset: str, keys: Keys, told: str) -> None:
    hf_config = published(preset, keys)
    with refused(ConfigError, told):
        config_from(by_model_type(hf_config["model_type"]), hf_config)


def test_a_config_in_a_format_of_its_own_says_so() -> None:
    """The first Mamba files have d_model and ssm_cfg, and no model_type."""
    with refused(NotFound, "no model_type", hint="transformers"):
        by_model_type("None")


@pytest.mark.parametrize(
    ("model_type", "published_class", "family"),
    [
        ("bart", "BartForCausalLM", "bart-decoder"), ("bart", "BartForConditionalGeneration", "bart"),
        ("bart", "SomebodysBart", "bart"), ("marian", "MarianForCausalLM", "marian-decoder"),
        ("marian", "MarianMTModel", "marian"), ("blenderbot", "BlenderbotModel", "blenderbot"),
    ],
)  # fmt: skip
def test_the_published_class_tells_a_decoder_alone_from_the_whole_model(
    model_type: str, published_class: str, family: str
) -> None:
    assert by_model_type(model_type, [published_class]).name == family
