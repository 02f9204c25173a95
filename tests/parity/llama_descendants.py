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
arcee = Rows("arcee", "Arcee", "ArceeConfig", SIZES)
ministral = Rows("ministral", "Ministral", "MinistralConfig", {**SIZES, **TURNS, "head_dim": 8})
seed_oss = Rows("seedoss", "SeedOss", "SeedOssConfig", {**SIZES, "head_dim": 12})
SCALES = {"embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.22,
          "logits_scaling": 4.0}  # fmt: skip
granite = Rows("granite", "Granite", "GraniteConfig", {**SIZES, **SCALES})
nemotron = Rows("nemotron", "Nemotron", "NemotronConfig", SIZES)
olmo3 = Rows("olmo3", "Olmo3", "Olmo3Config", {**SIZES, **TURNS})
olmoe = Rows("olmoe", "Olmoe", "OlmoeConfig", {**SIZES, "num_experts": 5, "num_experts_per_tok": 3})
exaone4 = Rows("exaone4", "Exaone4", "Exaone4Config", {**SIZES, **TURNS, "head_dim": 8})
glm = Rows("glm", "Glm", "GlmConfig", {**SIZES, "head_dim": 8})
glm4 = Rows("glm4", "Glm4", "Glm4Config", {**SIZES, "head_dim": 8})
cohere = Rows("cohere", "Cohere", "CohereConfig", SIZES)
cohere2 = Rows("cohere2", "Cohere2", "Cohere2Config", {**SIZES, **TURNS})
diffllama = Rows("diffllama", "DiffLlama", "DiffLlamaConfig", SIZES)
phimoe = Rows("phimoe", "Phimoe", "PhimoeConfig", {**SIZES, "num_local_experts": 5})
LONG = rope("longrope", factor=4.0, short_mscale=1.2, long_mscale=1.2,
            original_max_position_embeddings=16, short_factor=[1.0, 1.5, 2.0, 3.0],
            long_factor=[2.0, 3.0, 4.0, 6.0])  # fmt: skip
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
FULL = ["full_attention"] * 2
ODD = {"num_attention_heads": 3, "num_key_value_heads": 1}
BOTH_WAYS = {"use_bidirectional_attention": True, "sliding_window": 6}
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
    gemma3_text(
        "bidirectional",
        "Model",
        {"use_bidirectional_attention": True, "sliding_window": 6},
        patterns=ATTENTIONS,
    ),
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
    arcee("", CAUSAL, patterns=ATTENTIONS),
    arcee("biases", CAUSAL, TIED, {"attention_bias": True, "mlp_bias": True}),
    arcee("odd-yarn", CAUSAL, ODD, rope("yarn", factor=4.0)),
    arcee("classify", CLASSIFY, {"num_labels": 3}),
    arcee("tag", TAG, {"num_labels": 4}),
    arcee("span", SPAN),
    arcee("none", "Model", LLAMA3),
    ministral("", CAUSAL, patterns=ATTENTIONS),
    ministral("all-local", CAUSAL, {"layer_types": None, "head_dim": 12}),
    ministral("full", CAUSAL, TIED, {"layer_types": FULL}),
    ministral("odd", CAUSAL, ODD, rope("linear", factor=4.0)),
    ministral("span", SPAN),
    ministral("none", "Model"),
    seed_oss("", CAUSAL, patterns=ATTENTIONS),
    seed_oss("biases", CAUSAL, TIED, {"attention_out_bias": True, "mlp_bias": True}),
    seed_oss("no-biases", CAUSAL, ODD, {"attention_bias": False}),
    seed_oss("stretched", CAUSAL, rope("dynamic", factor=2.0), {"max_position_embeddings": 8}),
    seed_oss("tag", TAG, {"num_labels": 4}),
    seed_oss("none", "Model"),
    granite("", CAUSAL, patterns=ATTENTIONS),
    granite("tied-biases", CAUSAL, TIED, {"attention_bias": True, "mlp_bias": True}),
    granite("odd-yarn", CAUSAL, ODD, rope("yarn", factor=4.0)),
    granite("ones", CAUSAL, dict.fromkeys(SCALES, 1.0), {"rms_norm_eps": 1e-3}),
    granite("none", "Model", {"rms_norm_eps": 1e-3}),
    nemotron("", CAUSAL, patterns=ATTENTIONS),
    nemotron("biases", CAUSAL, TIED, {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    nemotron(
        "whole-heads",
        CAUSAL,
        ODD,
        {
            "rope_parameters": {
                "rope_theta": 300.0,
                "rope_type": "linear",
                "factor": 2.0,
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    nemotron("gelu", CAUSAL, {"hidden_act": "gelu", "norm_eps": 1e-3}),
    nemotron("classify", CLASSIFY, {"num_labels": 3}),
    nemotron("tag", TAG, {"num_labels": 4}),
    nemotron("none", "Model"),
    olmo3("", CAUSAL, patterns=ATTENTIONS),
    olmo3("two-ropes", CAUSAL, BY_KIND, TIED, patterns=ATTENTIONS),
    olmo3("four-layers", CAUSAL, ODD, {"layer_types": None, "num_hidden_layers": 4, "attention_bias": True}),
    olmo3("none", "Model"),
    olmoe("", CAUSAL, patterns=ATTENTIONS),
    olmoe("normalised", CAUSAL, TIED, {"norm_topk_prob": True, "attention_bias": True}),
    olmoe("odd", CAUSAL, ODD, {"num_experts_per_tok": 1}, rope("linear", factor=4.0)),
    olmoe("none", "Model"),
    exaone4("", CAUSAL, patterns=ATTENTIONS),
    exaone4("all-full", CAUSAL, TIED, LLAMA3, {"sliding_window": None, "layer_types": FULL}),
    exaone4("four-layers", CAUSAL, ODD, {"layer_types": None, "num_hidden_layers": 4, "head_dim": 6}),
    exaone4("classify", CLASSIFY, {"num_labels": 3}),
    exaone4("span", SPAN),
    exaone4("none", "Model"),
    glm("", CAUSAL, patterns=ATTENTIONS),
    glm("no-biases", CAUSAL, TIED, ODD, {"attention_bias": False, "head_dim": 12}),
    glm(
        "whole-heads",
        CAUSAL,
        {"rope_parameters": {"rope_theta": 300.0, "rope_type": "default", "partial_rotary_factor": 1.0}},
    ),
    glm("classify", CLASSIFY, {"num_labels": 3}),
    glm("none", "Model"),
    glm4("", CAUSAL, patterns=ATTENTIONS),
    glm4("no-biases", CAUSAL, TIED, ODD, {"attention_bias": False, "rms_norm_eps": 1e-3}),
    glm4("tag", TAG, {"num_labels": 4}),
    glm4("none", "Model", rope("yarn", factor=4.0)),
    cohere("", CAUSAL, patterns=ATTENTIONS),
    cohere("normed", CAUSAL, {"use_qk_norm": True, "logit_scale": 0.5}, patterns=ATTENTIONS),
    cohere("untied-biases", CAUSAL, UNTIED, ODD, {"attention_bias": True}),
    cohere("linear", CAUSAL, rope("linear", factor=4.0), {"use_qk_norm": True, "num_key_value_heads": 6}),
    cohere("none", "Model"),
    cohere2("", CAUSAL, patterns=ATTENTIONS),
    cohere2("four-layers", CAUSAL, UNTIED, {"layer_types": None, "num_hidden_layers": 4}),
    cohere2("biases", CAUSAL, ODD, {"attention_bias": True}, rope("dynamic", factor=2.0)),
    cohere2("none", "Model"),
    diffllama("", CAUSAL),
    diffllama("biases", CAUSAL, TIED, {"attention_bias": True, "num_key_value_heads": 6}),
    diffllama("wide-heads", CAUSAL, LLAMA3, {"head_dim": 12, "rms_norm_eps": 1e-3}),
    diffllama("span", SPAN),
    diffllama("classify", CLASSIFY, {"num_labels": 3}),
    diffllama("none", "Model"),
    phimoe("", CAUSAL, patterns=ATTENTIONS),
    phimoe("biases", CAUSAL, TIED, {"attention_bias": True, "lm_head_bias": True, "sliding_window": 4}),
    phimoe("all-rivals", CAUSAL, {"router_jitter_noise": 10.0}),
    phimoe("no-rivals", CAUSAL, {"router_jitter_noise": 0.0, "num_local_experts": 3}),
    phimoe("long", CAUSAL, LONG),
    phimoe("classify", CLASSIFY, {"num_labels": 3}),
    phimoe("none", "Model"),
]
