"""Rows of decoders that descend from LLaMA: Qwen, Gemma, OLMo, SmolLM3, Mixtral, Qwen-MoE, gpt-oss."""

from __future__ import annotations

from typing import Any

from tests.parity.case_rows import ATTENTIONS, CAUSAL, CLASSIFY, SPAN, TAG, TIED, UNTIED, Rows, rope

SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WIDE = {**SIZES, "head_dim": 12}
MOE = {"moe_intermediate_size": 12, "num_experts": 5, "num_experts_per_tok": 3}
WINDOW = {"use_sliding_window": True, "sliding_window": 4}
TURNS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
qwen2 = Rows("qwen2", "Qwen2", "Qwen2Config", SIZES)
qwen3 = Rows("qwen3", "Qwen3", "Qwen3Config", WIDE)
gemma = Rows("gemma", "Gemma", "GemmaConfig", WIDE)
gemma2 = Rows("gemma2", "Gemma2", "Gemma2Config", {**WIDE, **TURNS, "query_pre_attn_scalar": 20})
gemma3 = Rows("gemma3", "Gemma3", "Gemma3TextConfig", {**WIDE, **TURNS, "query_pre_attn_scalar": 20})
gemma3_text = Rows("gemma3", "Gemma3Text", "Gemma3TextConfig", gemma3.values)
olmo = Rows("olmo", "Olmo", "OlmoConfig", SIZES)
olmo2 = Rows("olmo2", "Olmo2", "Olmo2Config", SIZES)
smollm3 = Rows("smollm3", "SmolLM3", "SmolLM3Config", {**SIZES, "num_hidden_layers": 4})
mixtral = Rows("mixtral", "Mixtral", "MixtralConfig", {**SIZES, "num_local_experts": 5})
qwen2_moe = Rows(
    "qwen2-moe", "Qwen2Moe", "Qwen2MoeConfig", {**SIZES, **MOE, "shared_expert_intermediate_size": 20}
)
qwen3_moe = Rows("qwen3-moe", "Qwen3Moe", "Qwen3MoeConfig", {**WIDE, **MOE})
gpt_oss = Rows(
    "gpt-oss", "GptOss", "GptOssConfig",
    {**WIDE, **TURNS, "num_local_experts": 5, "num_experts_per_tok": 2, "swiglu_limit": 0.1,
     "rope_parameters": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "truncate": False,
                         "original_max_position_embeddings": 16}},
)  # fmt: skip
BY_KIND = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    }
}

ROWS = [
    qwen2("", CAUSAL, patterns=ATTENTIONS),
    qwen2("tied", CAUSAL, TIED, {"num_key_value_heads": 6}),
    qwen2("window", CAUSAL, WINDOW, {"max_window_layers": 1}, patterns=ATTENTIONS),
    qwen2("yarn", CAUSAL, rope("yarn", factor=4.0), {"num_attention_heads": 3, "num_key_value_heads": 1}),
    qwen2("classify", CLASSIFY, {"num_labels": 3}),
    qwen2("span", SPAN),
    qwen2("none", "Model"),
    qwen3("", CAUSAL, patterns=ATTENTIONS),
    qwen3("biases", CAUSAL, TIED, {"attention_bias": True}),
    qwen3("one-kv", CAUSAL, {"num_key_value_heads": 1, "head_dim": 6}),
    qwen3("window", CAUSAL, WINDOW, {"layer_types": ["sliding_attention", "full_attention"]}),
    qwen3("tag", TAG, {"num_labels": 4}),
    qwen3("none", "Model"),
    gemma("", CAUSAL, patterns=ATTENTIONS),
    gemma("one-kv", CAUSAL, {"num_key_value_heads": 1}),
    gemma("untied-biases", CAUSAL, UNTIED, {"attention_bias": True, "hidden_act": "relu"}),
    gemma("legacy-gelu", CAUSAL, {"hidden_act": "gelu"}),
    gemma("classify", CLASSIFY, {"num_labels": 3}),
    gemma("none", "Model"),
    gemma2("", CAUSAL, {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0}, patterns=ATTENTIONS),
    gemma2("uncapped", CAUSAL, {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    gemma2("published-caps", CAUSAL, {"layer_types": None, "num_hidden_layers": 3}),
    gemma2("biases", CAUSAL, UNTIED, {"attention_bias": True, "num_key_value_heads": 6}),
    gemma2("tag", TAG, {"num_labels": 4}),
    gemma2("none", "Model"),
    gemma3("", CAUSAL, patterns=ATTENTIONS),
    gemma3("two-ropes", CAUSAL, BY_KIND, patterns=ATTENTIONS),
    gemma3("capped", CAUSAL, {"final_logit_softcapping": 2.0, "num_key_value_heads": 1}),
    gemma3("six-layers", CAUSAL, UNTIED, {"layer_types": None, "num_hidden_layers": 6, "hidden_size": 24}),
    gemma3_text("classify", CLASSIFY, {"num_labels": 3}),
    gemma3_text("none", "Model"),
    olmo("", CAUSAL, patterns=ATTENTIONS),
    olmo("clipped", CAUSAL, {"clip_qkv": 0.05}),
    olmo("tied-biases", CAUSAL, TIED, {"attention_bias": True, "num_key_value_heads": 6}),
    olmo("none", "Model", rope("linear", factor=4.0)),
    olmo2("", CAUSAL, patterns=ATTENTIONS),
    olmo2("all-heads", CAUSAL, {"num_key_value_heads": 6}),
    olmo2("tied-biases", CAUSAL, TIED, {"attention_bias": True}),
    olmo2("classify", CLASSIFY, {"num_labels": 3}),
    olmo2("none", "Model"),
    smollm3("", CAUSAL, patterns=ATTENTIONS),
    smollm3("every-other", CAUSAL, UNTIED, {"no_rope_layers": [1, 0, 1, 0]}),
    smollm3("biases", CAUSAL, {"attention_bias": True, "mlp_bias": True, "no_rope_layer_interval": 3}),
    smollm3("tag", TAG, {"num_labels": 4}),
    smollm3("none", "Model"),
    mixtral("", CAUSAL, patterns=ATTENTIONS),
    mixtral("window", CAUSAL, {"sliding_window": 4, "num_experts_per_tok": 1}),
    mixtral("tied", CAUSAL, TIED, {"num_local_experts": 2, "head_dim": 12}),
    mixtral("classify", CLASSIFY, {"num_labels": 3}),
    mixtral("none", "Model"),
    qwen2_moe("", CAUSAL, patterns=ATTENTIONS),
    qwen2_moe("dense-first", CAUSAL, {"mlp_only_layers": [0], "norm_topk_prob": True}),
    qwen2_moe("every-other", CAUSAL, {"decoder_sparse_step": 2, "qkv_bias": False}),
    qwen2_moe("window", CAUSAL, WINDOW),
    qwen2_moe("none", "Model"),
    qwen3_moe("", CAUSAL, patterns=ATTENTIONS),
    qwen3_moe("normalised", CAUSAL, TIED, {"norm_topk_prob": True, "attention_bias": True}),
    qwen3_moe("dense-last", CAUSAL, {"mlp_only_layers": [1]}),
    qwen3_moe("window", CAUSAL, WINDOW),
    qwen3_moe("tag", TAG, {"num_labels": 4}),
    gpt_oss("", CAUSAL, patterns=ATTENTIONS),
    gpt_oss("no-biases", CAUSAL, TIED, {"attention_bias": False, "num_experts_per_tok": 1}),
    gpt_oss("wide-clip", CAUSAL, rope("default"), {"swiglu_limit": 7.0, "layer_types": None}),
    gpt_oss("tag", TAG, {"num_labels": 4}),
    gpt_oss("none", "Model"),
]
