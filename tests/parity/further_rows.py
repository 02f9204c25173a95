"""Rows of families that need no new part: mixtures, relatives of BERT, of GPT-2 and of LLaMA."""

from __future__ import annotations

from typing import Any

from tests.parity.case_rows import ATTENTIONS, CAUSAL, CLASSIFY, SPAN, TAG, TIED, UNTIED, Rows, rope
from tests.parity.llama_descendants import SIZES, TURNS, WIDE

BERT: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 40, "max_position_embeddings": 32, "layer_norm_eps": 1e-6,
}  # fmt: skip
EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
}  # fmt: skip
DECODER = {"is_decoder": True}
MLM, PRETRAIN = "ForMaskedLM", "ForPreTraining"

helium = Rows("helium", "Helium", "HeliumConfig", {**SIZES, "head_dim": 8})
cwm = Rows("cwm", "Cwm", "CwmConfig", {**SIZES, **TURNS, "head_dim": 8})
persimmon = Rows(
    "persimmon",
    "Persimmon",
    "PersimmonConfig",
    {k: v for k, v in SIZES.items() if k != "num_key_value_heads"},
)
vault = Rows("vaultgemma", "VaultGemma", "VaultGemmaConfig", {**WIDE, **TURNS, "query_pre_attn_scalar": 20})
dots = Rows("dots1", "Dots1", "Dots1Config", {**SIZES, **EXPERTS})
glm = Rows("glm4-moe", "Glm4Moe", "Glm4MoeConfig", {**WIDE, **EXPERTS, "num_nextn_predict_layers": 0})
bert = Rows("bert", "Bert", "BertConfig", {**BERT, **DECODER}, ATTENTIONS)
roberta = Rows("roberta", "Roberta", "RobertaConfig", {**BERT, **DECODER}, ATTENTIONS)
megatron = Rows("megatron-bert", "MegatronBert", "MegatronBertConfig", BERT, ATTENTIONS, types=True)
pre = Rows("roberta-prelayernorm", "RobertaPreLayerNorm", "RobertaPreLayerNormConfig", BERT, ATTENTIONS)
rembert = Rows(
    "rembert", "RemBert", "RemBertConfig", {**BERT, "input_embedding_size": 8, "output_embedding_size": 20},
    ATTENTIONS, types=True,
)  # fmt: skip
biogpt = Rows("biogpt", "BioGpt", "BioGptConfig", BERT)
xglm = Rows(
    "xglm", "XGLM", "XGLMConfig",
    {"vocab_size": 99, "d_model": 24, "num_layers": 2, "attention_heads": 3, "ffn_dim": 40,
     "max_position_embeddings": 32},
)  # fmt: skip
ctrl = Rows(
    "ctrl", "CTRL", "CTRLConfig",
    {"vocab_size": 99, "n_embd": 24, "n_layer": 2, "n_head": 3, "dff": 40, "n_positions": 32},
)  # fmt: skip

xlnet = Rows(
    "xlnet", "XLNet", "XLNetConfig",
    {"vocab_size": 99, "d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 40}, types=True,
)  # fmt: skip

ernie = Rows("ernie4-5", "Ernie4_5", "Ernie4_5Config", {**SIZES, "head_dim": 8})
jais = Rows("jais2", "Jais2", "Jais2Config", SIZES)
clova = Rows(
    "hyperclovax", "HyperCLOVAX", "HyperCLOVAXConfig",
    {**SIZES, "embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.22,
     "logits_scaling": 0.25},
)  # fmt: skip
youtu = Rows(
    "youtu", "Youtu", "YoutuConfig",
    {"vocab_size": 99, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
     "num_attention_heads": 3, "num_key_value_heads": 3, "kv_lora_rank": 10, "q_lora_rank": 14,
     "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "max_position_embeddings": 64},
)  # fmt: skip
modern = Rows(
    "modernbert-decoder", "ModernBertDecoder", "ModernBertDecoderConfig",
    {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 3,
     "intermediate_size": 20, "max_position_embeddings": 32, "local_attention": 6, "pad_token_id": 0},
    ATTENTIONS,
)  # fmt: skip
data2vec = Rows("data2vec-text", "Data2VecText", "Data2VecTextConfig", BERT, ATTENTIONS)
xl = Rows("xlm-roberta-xl", "XLMRobertaXL", "XLMRobertaXLConfig", BERT, ATTENTIONS)
generation = Rows("bert-generation", "BertGeneration", "BertGenerationConfig", BERT, ATTENTIONS)
STRETCHED = [rope("linear", factor=4.0), rope("dynamic", factor=2.0), rope("yarn", factor=4.0),
             rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)]  # fmt: skip

DECODERS = [
    ernie("", CAUSAL, patterns=ATTENTIONS),
    ernie("biases", CAUSAL, UNTIED, {"use_bias": True, "num_key_value_heads": 6, "hidden_act": "relu"}),
    ernie("one-kv", CAUSAL, {"num_key_value_heads": 1, "head_dim": 12}),
    *(ernie(kind["rope_parameters"]["rope_type"], CAUSAL, kind) for kind in STRETCHED),
    ernie("none", "Model"),
    jais("", CAUSAL, patterns=ATTENTIONS),
    jais("no-biases", CAUSAL, TIED, {"attention_bias": False, "mlp_bias": False, "layer_norm_eps": 1e-3}),
    *(jais(kind["rope_parameters"]["rope_type"], CAUSAL, kind) for kind in STRETCHED),
    jais("none", "Model"),
    clova("", CAUSAL, patterns=ATTENTIONS),
    clova("no-post-norms", CAUSAL, TIED, {"use_post_norm": False, "head_dim": 12, "attention_bias": True}),
    clova("unscaled", CAUSAL, {"attention_multiplier": None, "embedding_multiplier": 1.0,
                               "residual_multiplier": 1.0, "logits_scaling": 1.0, "mlp_bias": True}),
    *(clova(kind["rope_parameters"]["rope_type"], CAUSAL, kind) for kind in STRETCHED),
    clova("none", "Model", {"rms_norm_eps": 1e-3}),
    youtu("", CAUSAL, patterns=ATTENTIONS),
    youtu("plain", CAUSAL, UNTIED, {"q_lora_rank": None, "attention_bias": True, "rope_interleave": False}),
    *(youtu(kind["rope_parameters"]["rope_type"], CAUSAL, kind) for kind in STRETCHED),
    youtu("none", "Model"),
    modern("", CAUSAL),
    modern("untied-biases", CAUSAL, UNTIED, {"attention_bias": True, "mlp_bias": True, "norm_bias": True,
                                             "classifier_bias": True, "decoder_bias": False}),
    modern("stretched", CAUSAL, {"rope_parameters": {
        "full_attention": {"rope_theta": 5000.0, "rope_type": "linear", "factor": 2.0},
        "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"}}}),
    modern("all-local", CAUSAL, {"layer_types": ["sliding_attention"] * 4, "hidden_activation": "silu"}),
    modern("none", "Model", {"num_hidden_layers": 2}),
    generation("", "Decoder", DECODER),
    generation("relu", "Decoder", DECODER, {"hidden_act": "relu", "num_attention_heads": 2}),
    generation("none", "Encoder", output="last_hidden_state"),
    data2vec("decoder", CAUSAL, DECODER),
    xl("decoder", CAUSAL, DECODER),
    helium("", CAUSAL, patterns=ATTENTIONS),
    helium("biases", CAUSAL, TIED, {"attention_bias": True, "mlp_bias": True}),
    helium("one-kv", CAUSAL, rope("linear", factor=4.0), {"num_key_value_heads": 1}),
    helium("none", "Model"),
    cwm("", CAUSAL, patterns=ATTENTIONS),
    cwm("stretched", CAUSAL, TIED, {"layer_types": None, "num_hidden_layers": 3, "num_key_value_heads": 6}),
    cwm("plain", CAUSAL, rope("default"), {"head_dim": 12}),
    cwm("none", "Model"),
    persimmon("", CAUSAL, patterns=ATTENTIONS),
    persimmon("no-norms", CAUSAL, TIED, {"qk_layernorm": False, "hidden_act": "gelu"}),
    persimmon("quarter", CAUSAL, {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0,
                                                      "partial_rotary_factor": 0.25}}),
    persimmon("classify", CLASSIFY, {"num_labels": 3}),
    persimmon("none", "Model"),
    vault("", CAUSAL, {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0}, patterns=ATTENTIONS),
    vault("uncapped", CAUSAL, UNTIED, {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    vault("none", "Model"),
    dots("", CAUSAL, patterns=ATTENTIONS),
    dots("groups", CAUSAL, TIED, {"n_group": 4, "topk_group": 2, "norm_topk_prob": True,
                                  "attention_bias": True, "routed_scaling_factor": 2.5}),
    dots("no-shared", CAUSAL, {"n_shared_experts": 1, "first_k_dense_replace": 0, "head_dim": 12}),
    dots("none", "Model"),
    glm("", CAUSAL, patterns=ATTENTIONS),
    glm("normed-biases", CAUSAL, {"use_qk_norm": True, "attention_bias": True, "norm_topk_prob": False}),
    glm("groups", CAUSAL, TIED, {"n_group": 2, "topk_group": 1, "n_shared_experts": 1, "head_dim": 8}),
    glm("none", "Model"),
    biogpt("", CAUSAL, patterns=ATTENTIONS),
    biogpt("unscaled", CAUSAL, UNTIED, {"scale_embedding": False, "hidden_act": "relu"}),
    biogpt("tag", TAG, {"num_labels": 5}),
    biogpt("classify", CLASSIFY, {"num_labels": 3, "pad_token_id": 1}),
    biogpt("none", "Model"),
    xglm("", CAUSAL, patterns=ATTENTIONS),
    xglm("unscaled", CAUSAL, UNTIED, {"scale_embedding": False, "activation_function": "relu"}),
    xglm("none", "Model"),
    ctrl("", "LMHeadModel", patterns=ATTENTIONS),
    ctrl("untied", "LMHeadModel", UNTIED, {"n_head": 2, "dff": 56}),
    ctrl("classify", CLASSIFY, {"num_labels": 3, "pad_token_id": 0}),
    ctrl("none", "Model"),
    bert("decoder", "LMHeadModel"),
    bert("decoder-untied", "LMHeadModel", UNTIED, {"hidden_act": "relu", "num_attention_heads": 2}),
    bert("decoder-none", "Model"),
    roberta("decoder", CAUSAL),
]  # fmt: skip

ENCODERS = [
    *(row
      for rows in (data2vec, xl)
      for row in (
          rows("mlm", MLM), rows("mlm-untied", MLM, UNTIED, {"hidden_act": "relu", "pad_token_id": 0}),
          rows("classify", CLASSIFY, {"num_labels": 3}), rows("tag", TAG, {"num_labels": 5}),
          rows("span", SPAN), rows("none", "Model"))),
    megatron("pretrain", PRETRAIN, output="prediction_logits"),
    megatron("mlm", MLM, {"hidden_act": "relu"}),
    megatron("next", "ForNextSentencePrediction"),
    megatron("classify", CLASSIFY, {"num_labels": 3}),
    megatron("tag", TAG, {"num_labels": 5}),
    megatron("span", SPAN),
    megatron("none", "Model"),
    megatron("decoder", CAUSAL, DECODER, types=False),
    pre("mlm", MLM),
    pre("mlm-untied", MLM, UNTIED, {"hidden_act": "relu", "pad_token_id": 0, "type_vocab_size": 1}),
    pre("classify", CLASSIFY, {"num_labels": 3}),
    pre("tag", TAG, {"num_labels": 5}),
    pre("span", SPAN),
    pre("none", "Model"),
    xlnet("", "LMHeadModel"),
    xlnet("untied", "LMHeadModel", UNTIED, {"ff_activation": "relu", "n_head": 2}),
    xlnet("one-sentence", "LMHeadModel", {"layer_norm_eps": 1e-3}, types=False),
    xlnet("classify", CLASSIFY, {"num_labels": 3}, types=False),
    xlnet("tag", TAG, {"num_labels": 5}),
    xlnet("span", "ForQuestionAnsweringSimple", output="span"),
    xlnet("none", "Model", output="last_hidden_state"),
    rembert("mlm", MLM),
    rembert("mlm-relu", MLM, {"hidden_act": "relu", "output_embedding_size": 8, "num_attention_heads": 2}),
    rembert("classify", CLASSIFY, {"num_labels": 3}),
    rembert("tag", TAG, {"num_labels": 5}),
    rembert("span", SPAN),
    rembert("none", "Model"),
]  # fmt: skip

ROWS = [*DECODERS, *ENCODERS]
