"""Published architectures at tiny sizes: a row (case_rows.py) for each family, config and class."""

from __future__ import annotations

from typing import Any

import torch

from tests.parity import further_rows, llama_descendants, parallel_decoders
from tests.parity.case_rows import (
    ATTENTIONS,
    CAUSAL,
    CLASSIFY,
    SEQ2SEQ,
    SPAN,
    TAG,
    TIED,
    TWO_LAYERS,
    UNTIED,
    Case,
    Rows,
    rope,
)


def find_case(id: str) -> Case:
    """Return the row of this id."""
    return next(case for case in CASES if case.id == id)


# Changes of a published model before it is saved: what starts at zero, or tied, would show no mistake.


def steer(model: Any) -> None:
    """Let the choice of experts follow the bias as well as the scores."""
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.add_(torch.randn_like(buffer) * 0.1)


def untie(model: Any) -> None:
    """Give it an output matrix of its own, as published files of T5 1.1 have."""
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))


def shift(model: Any) -> None:
    """Give the logits a bias that is not all zero."""
    model.final_logits_bias.normal_()


def sines(model: Any) -> None:
    """Put the paper's sines back: positions are no parameters to be moved."""
    shift(model)
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data = stack.embed_positions.create_weight()


def roformer_sines(model: Any) -> None:
    """Put the angles back, which are no parameters to be moved either."""
    table = model.base_model.encoder.embed_positions
    table.weight.data = table.create_weight()


# Decoders.

gpt2 = Rows(
    "gpt2", "GPT2", "GPT2Config",
    {"vocab_size": 99, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32},
)  # fmt: skip
GPT_NEO = {
    "vocab_size": 99, "hidden_size": 24, "num_layers": 2, "num_heads": 3, "max_position_embeddings": 32,
    "window_size": 4, "attention_types": [[["global", "local"], 1]],
}  # fmt: skip
gpt_neo = Rows("gpt-neo", "GPTNeo", "GPTNeoConfig", GPT_NEO)
bigcode = Rows("gpt-bigcode", "GPTBigCode", "GPTBigCodeConfig", gpt2.values)
codegen = Rows("codegen", "CodeGen", "CodeGenConfig", {**gpt2.values, "n_head": 4, "rotary_dim": 4})
mpt = Rows(
    "mpt", "Mpt", "MptConfig",
    {"vocab_size": 99, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 32}
)  # fmt: skip
gpt = Rows("gpt", "OpenAIGPT", "OpenAIGPTConfig", gpt2.values)
LLAMA = {
    "vocab_size": 99, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
llama = Rows("llama", "Llama", "LlamaConfig", LLAMA)
mistral = Rows("mistral", "Mistral", "MistralConfig", LLAMA)
bloom = Rows(
    "bloom", "Bloom", "BloomConfig", {"vocab_size": 99, "hidden_size": 48, "n_layer": 2, "n_head": 6}
)
mamba = Rows(
    "mamba", "Mamba", "MambaConfig",
    {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0},
)  # fmt: skip
rwkv = Rows("rwkv", "Rwkv", "RwkvConfig", {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2})
falcon_mamba = Rows("falcon-mamba", "FalconMamba", "FalconMambaConfig", mamba.values)
mamba2 = Rows(
    "mamba2", "Mamba2", "Mamba2Config",
    {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 12,
     "state_size": 8, "n_groups": 2, "chunk_size": 4, "pad_token_id": 0},
)  # fmt: skip
hybrid = Rows(
    "olmo-hybrid", "OlmoHybrid", "OlmoHybridConfig",
    {**LLAMA, "num_hidden_layers": 3, "linear_key_head_dim": 4, "linear_value_head_dim": 4,
     "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
)  # fmt: skip
NEXT: dict[str, Any] = {
    **LLAMA, "num_hidden_layers": 3, "head_dim": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 4, "linear_value_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
qwen3_5 = Rows("qwen35", "Qwen3_5", "Qwen3_5TextConfig", NEXT)
MOE = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 12,
       "shared_expert_intermediate_size": 20}  # fmt: skip
qwen3_next = Rows("qwen3next", "Qwen3Next", "Qwen3NextConfig", {**NEXT, **MOE})
DEEPSEEK: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 24, "intermediate_size": 20, "moe_intermediate_size": 12,
    "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3, "first_k_dense_replace": 1,
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "kv_lora_rank": 10,
    "q_lora_rank": 14, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
deepseek2 = Rows("deepseek-v2", "DeepseekV2", "DeepseekV2Config", {**DEEPSEEK, "routed_scaling_factor": 1.5})
deepseek3 = Rows(
    "deepseek-v3", "DeepseekV3", "DeepseekV3Config", {**DEEPSEEK, "n_group": 4, "topk_group": 2},
    prepare=steer,
)  # fmt: skip
LIMITED = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
PLAIN: dict[str, Any] = {"q_lora_rank": None, "v_head_dim": 9, "n_shared_experts": 1, "num_hidden_layers": 2}


DECODERS = [
    gpt2("", "LMHeadModel", patterns=ATTENTIONS),
    gpt2("untied", "LMHeadModel", UNTIED, {"n_inner": 40}),
    gpt2("relu", "LMHeadModel", {"activation_function": "relu", "n_head": 1}),
    gpt2("unscaled", "LMHeadModel", {"scale_attn_weights": False}),
    gpt2("scaled-by-layer", "LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}),
    gpt2("none", "Model"),
    gpt2("tag", TAG, {"num_labels": 5}),
    gpt2("span", SPAN),
    gpt2("classify", CLASSIFY, {"num_labels": 3, "pad_token_id": 0}),
    gpt("", "LMHeadModel", patterns=ATTENTIONS),
    gpt("none", "Model", {"n_head": 4}),
    gpt_neo("", CAUSAL, patterns=ATTENTIONS),
    gpt_neo("untied", CAUSAL, UNTIED, {"attention_types": [[["local"], 1], [["global"], 1]]}),
    gpt_neo("relu", CAUSAL, {"activation_function": "relu", "intermediate_size": 40, "num_heads": 1}),
    gpt_neo("classify", CLASSIFY, {"num_labels": 3, "pad_token_id": 0}),
    gpt_neo("tag", TAG, {"num_labels": 4}),
    gpt_neo("span", SPAN),
    gpt_neo("none", "Model"),
    bigcode("", CAUSAL, patterns=ATTENTIONS),
    bigcode("all-heads", CAUSAL, {"multi_query": False, "n_inner": 40}),
    bigcode("untied", CAUSAL, UNTIED, {"activation_function": "relu", "scale_attn_weights": False}),
    bigcode("classify", CLASSIFY, {"num_labels": 3, "pad_token_id": 0}),
    bigcode("tag", TAG, {"num_labels": 4}),
    bigcode("none", "Model"),
    codegen("", CAUSAL, patterns=ATTENTIONS),
    codegen("8-heads", CAUSAL, {"n_head": 8, "n_embd": 48, "rotary_dim": 6, "n_inner": 40}),
    codegen("tied", CAUSAL, TIED, {"activation_function": "relu"}),
    codegen("none", "Model"),
    mpt("", CAUSAL, patterns=ATTENTIONS),
    mpt("8-heads", CAUSAL, {"n_heads": 8, "attn_config": {"clip_qkv": 0.05, "softmax_scale": 0.5}}),
    mpt("3-heads-untied", CAUSAL, UNTIED, {"n_heads": 3}),
    mpt("classify", CLASSIFY, {"num_labels": 3, "pad_token_id": 0}),
    mpt("tag", TAG, {"num_labels": 4}),
    mpt("span", SPAN),
    mpt("none", "Model"),
    llama("", CAUSAL, patterns=ATTENTIONS),
    llama("all-heads", CAUSAL, {"num_key_value_heads": 6}),
    llama("one-kv", CAUSAL, {"num_key_value_heads": 1}),
    llama("odd-heads", CAUSAL, {"num_attention_heads": 3, "num_key_value_heads": 3}),
    llama("tied", CAUSAL, TIED),
    llama("biases", CAUSAL, {"attention_bias": True, "mlp_bias": True}),
    llama("wide-heads", CAUSAL, {"head_dim": 16}),
    llama("linear", CAUSAL, rope("linear", factor=4.0)),
    llama("dynamic-short", CAUSAL, rope("dynamic", factor=2.0)),
    llama("dynamic-long", CAUSAL, rope("dynamic", factor=2.0), {"max_position_embeddings": 8}),
    llama("yarn", CAUSAL, rope("yarn", factor=4.0)),
    llama(
        "yarn-mscale", CAUSAL,
        rope("yarn", factor=4.0, beta_fast=16.0, beta_slow=2.0, mscale=0.7, mscale_all_dim=0.5),
    ),
    llama("3", CAUSAL, rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)),
    llama("classify", CLASSIFY, {"num_labels": 3}),
    llama("tag", TAG, {"num_labels": 4}),
    llama("none", "Model"),
    mistral("", CAUSAL, {"sliding_window": 4}, patterns=ATTENTIONS),
    mistral("full", CAUSAL, {"sliding_window": None}),
    bloom("6-heads", CAUSAL, patterns=ATTENTIONS),
    bloom("8-heads", CAUSAL, {"n_head": 8}, patterns=ATTENTIONS),
    bloom("3-heads", CAUSAL, {"n_head": 3}),
    bloom("1-head", CAUSAL, {"n_head": 1}),
    bloom("untied", CAUSAL, UNTIED),
    bloom("normed-residual", CAUSAL, {"apply_residual_connection_post_layernorm": True}, patterns=ATTENTIONS),
    bloom("none", "Model"),
    bloom("tag", TAG, {"num_labels": 5}),
    bloom("span", "ForQuestionAnswering"),
    bloom("classify", CLASSIFY, {"pad_token_id": 0}),
    deepseek2("greedy", CAUSAL, patterns=ATTENTIONS),
    deepseek2("groups", CAUSAL, LIMITED, PLAIN),
    deepseek2("yarn", CAUSAL, LIMITED, rope("yarn", factor=4.0, mscale=0.707, mscale_all_dim=0.707),
              patterns=ATTENTIONS),
    deepseek2("biases", CAUSAL, {"attention_bias": True, "mlp_bias": True, "first_k_dense_replace": 0}),
    deepseek2("classify", CLASSIFY, {"num_labels": 3}, TWO_LAYERS),
    deepseek2("none", "Model", TWO_LAYERS),
    deepseek3("grouped", CAUSAL, patterns=ATTENTIONS),
    deepseek3("plain", CAUSAL, PLAIN, {"norm_topk_prob": False, "n_group": 1, "topk_group": 1}),
    deepseek3("tied", CAUSAL, TIED, TWO_LAYERS),
    deepseek3("yarn", CAUSAL, rope("yarn", factor=4.0, mscale=1.0, mscale_all_dim=0.8, beta_fast=16.0),
              patterns=ATTENTIONS),
    deepseek3("halves", CAUSAL,
              {"rope_interleave": False, "attention_bias": True, "routed_scaling_factor": 0.7}),
    deepseek3("dense", CAUSAL, {"first_k_dense_replace": 2}, TWO_LAYERS),
    deepseek3("long", CAUSAL, rope("dynamic", factor=2.0), {"max_position_embeddings": 8}, TWO_LAYERS),
    deepseek3("tag", TAG, {"num_labels": 4}, TWO_LAYERS),
    mamba("", CAUSAL),
    mamba("untied", CAUSAL, UNTIED, {"expand": 3}),
    mamba("biases", CAUSAL, {"use_bias": True, "use_conv_bias": False}),
    mamba("odd", CAUSAL, {"hidden_size": 20, "time_step_rank": 5, "state_size": 3, "conv_kernel": 3,
                          "layer_norm_epsilon": 1e-3}),
    mamba("narrow", CAUSAL, {"residual_in_fp32": False, "conv_kernel": 2}),
    mamba("none", "Model"),
    falcon_mamba("", CAUSAL),
    falcon_mamba("untied", CAUSAL, UNTIED, {"mixer_rms_eps": 1e-3, "use_bias": True}),
    falcon_mamba("odd", CAUSAL, {"hidden_size": 20, "time_step_rank": 5, "state_size": 3, "conv_kernel": 3}),
    falcon_mamba("none", "Model"),
    mamba2("", CAUSAL),
    mamba2("tied", CAUSAL, TIED, {"n_groups": 1, "expand": 3, "num_heads": 6}),
    mamba2("biases", CAUSAL, {"use_bias": True, "use_conv_bias": False, "n_groups": 4}),
    mamba2("odd", CAUSAL, {"hidden_size": 20, "num_heads": 5, "head_dim": 8, "n_groups": 1, "state_size": 3,
                           "conv_kernel": 3, "layer_norm_epsilon": 1e-3}),
    mamba2("limits", CAUSAL, {"time_step_limit": (0.01, 0.5), "residual_in_fp32": False}),
    mamba2("none", "Model"),
    rwkv("", CAUSAL),
    rwkv("sizes", CAUSAL, {"attention_hidden_size": 32, "intermediate_size": 40, "layer_norm_epsilon": 1e-3}),
    rwkv("tied", CAUSAL, TIED, {"num_hidden_layers": 3}),
    rwkv("none", "Model"),
    hybrid("", CAUSAL),
    hybrid("shared-keys", CAUSAL, {"linear_num_key_heads": 4, "linear_key_head_dim": 6,
                                   "linear_num_value_heads": 8, "linear_value_head_dim": 3}),
    hybrid("positive", CAUSAL, TIED, {"linear_allow_neg_eigval": False, "linear_conv_kernel_dim": 3}),
    hybrid("no-positions", CAUSAL, {"rope_parameters": {"rope_theta": None, "rope_type": "default"}}),
    hybrid("biases", CAUSAL, {"attention_bias": True, "num_key_value_heads": 6, "linear_num_key_heads": 4,
                              "linear_num_value_heads": 4, "rms_norm_eps": 1e-3}, rope("linear", factor=2.0)),
    hybrid("none", "Model"),
    qwen3_5("", CAUSAL),
    qwen3_5("tied-biases", CAUSAL, TIED, {"attention_bias": True, "linear_num_value_heads": 6}),
    qwen3_5("every-other", CAUSAL, {"layer_types": None, "full_attention_interval": 2}),
    qwen3_5("none", "TextModel", output="last_hidden_state"),
    qwen3_next("", CAUSAL),
    qwen3_next("dense-first", CAUSAL, {"mlp_only_layers": [0], "norm_topk_prob": False}),
    qwen3_next("tied", CAUSAL, TIED, {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 3}),
    qwen3_next("whole-heads", CAUSAL, {"rope_parameters": {"rope_theta": 300.0, "rope_type": "default",
                                                           "partial_rotary_factor": 1.0}}),
    qwen3_next("classify", CLASSIFY, {"num_labels": 3}),
    qwen3_next("none", "Model"),
]  # fmt: skip

# Encoders.

BERT = {
    "vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 40, "max_position_embeddings": 32, "layer_norm_eps": 1e-6,
}  # fmt: skip
NARROW = {**BERT, "embedding_size": 12}
DISTIL = {
    "vocab_size": 99, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "max_position_embeddings": 32,
}  # fmt: skip
DEBERTA = {
    "vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 40, "max_position_embeddings": 32, "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"], "position_biased_input": False,
}  # fmt: skip
V3 = {"position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
bert = Rows("bert", "Bert", "BertConfig", BERT, ATTENTIONS, types=True)
roberta = Rows("roberta", "Roberta", "RobertaConfig", BERT, ATTENTIONS)
xlm = Rows("xlm-roberta", "XLMRoberta", "XLMRobertaConfig", BERT)
ernie = Rows("ernie", "Ernie", "ErnieConfig", BERT, ATTENTIONS, types=True)
camembert = Rows("camembert", "Camembert", "CamembertConfig", BERT, ATTENTIONS)
distil = Rows("distilbert", "DistilBert", "DistilBertConfig", DISTIL, ATTENTIONS)
albert = Rows("albert", "Albert", "AlbertConfig", NARROW, ATTENTIONS, types=True)
electra = Rows("electra", "Electra", "ElectraConfig", NARROW, ATTENTIONS, types=True)
deberta = Rows("deberta", "Deberta", "DebertaConfig", DEBERTA, ATTENTIONS)
deberta2 = Rows("deberta-v2", "DebertaV2", "DebertaV2Config", DEBERTA, ATTENTIONS)
mpnet = Rows("mpnet", "MPNet", "MPNetConfig", BERT, ATTENTIONS)
roformer = Rows(
    "roformer", "RoFormer", "RoFormerConfig", {**BERT, "num_attention_heads": 2}, ATTENTIONS, types=True,
    prepare=roformer_sines,
    dropped=("roformer.encoder.embed_positions.weight", "encoder.embed_positions.weight"),
)  # fmt: skip
euro = Rows("eurobert", "EuroBert", "EuroBertConfig", LLAMA, ATTENTIONS)
nomic = Rows("nomic-bert", "NomicBert", "NomicBertConfig", BERT, ATTENTIONS, types=True)
modern = Rows(
    "modernbert", "ModernBert", "ModernBertConfig",
    {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 3,
     "intermediate_size": 20, "max_position_embeddings": 32, "local_attention": 6, "pad_token_id": 0},
    ATTENTIONS,
)  # fmt: skip
longformer = Rows("longformer", "Longformer", "LongformerConfig", {**BERT, "attention_window": 4})
big_bird = Rows("big-bird", "BigBird", "BigBirdConfig", {**BERT, "block_size": 1, "num_random_blocks": 1},
                types=True)  # fmt: skip
MLM, PRETRAIN = "ForMaskedLM", "ForPreTraining"
RELU = {"hidden_act": "relu"}
TYPED = {"position_biased_input": True, "type_vocab_size": 2}

ENCODERS = [
    bert("pretrain", PRETRAIN, output="prediction_logits"),
    bert("pretrain-untied", PRETRAIN, UNTIED, output="prediction_logits"),
    bert("mlm", MLM, {"hidden_act": "gelu_new", "num_attention_heads": 1}),
    bert("mlm-untied", MLM, RELU, UNTIED, {"type_vocab_size": 3}),
    bert("next", "ForNextSentencePrediction"),
    bert("classify", CLASSIFY, {"num_labels": 3, "hidden_act": "silu"}),
    bert("tag", TAG, {"num_labels": 5}),
    bert("span", SPAN),
    bert("none", "Model"),
    roberta("mlm", MLM),
    roberta("mlm-untied", MLM, RELU, UNTIED, {"pad_token_id": 0, "type_vocab_size": 1}),
    roberta("classify", CLASSIFY, {"num_labels": 3, "pad_token_id": 4}),
    roberta("tag", TAG, {"num_labels": 5}),
    roberta("span", SPAN),
    roberta("none", "Model"),
    xlm("mlm", MLM, patterns=ATTENTIONS),
    xlm("tag", TAG, {"num_labels": 5}),
    ernie("pretrain", PRETRAIN, output="prediction_logits"),
    ernie("mlm-quick", MLM, UNTIED, {"hidden_act": "quick_gelu", "num_attention_heads": 1}),
    ernie("classify", CLASSIFY, {"num_labels": 3, "hidden_act": "mish"}),
    ernie("tag", TAG, {"hidden_act": "sigmoid"}),
    ernie("span", SPAN, {"hidden_act": "laplace"}),
    ernie("none", "Model"),
    camembert("mlm", MLM),
    camembert("classify", CLASSIFY, {"num_labels": 3}),
    camembert("tag", TAG, {"num_labels": 5}),
    camembert("none", "Model"),
    distil("mlm", MLM),
    distil("mlm-untied", MLM, UNTIED, {"activation": "relu", "n_heads": 1}),
    distil("classify", CLASSIFY, {"num_labels": 3}),
    distil("tag", TAG, {"num_labels": 5, "sinusoidal_pos_embds": True}),
    distil("span", SPAN),
    distil("none", "Model"),
    albert("pretrain", PRETRAIN, {"num_hidden_layers": 3}, output="prediction_logits"),
    albert("mlm-groups", MLM, {"num_hidden_layers": 4, "num_hidden_groups": 2}),
    albert("mlm-untied", MLM, RELU, UNTIED, {"embedding_size": 24}),
    albert("classify", CLASSIFY, {"num_labels": 3}),
    albert("tag", TAG, {"num_labels": 5, "inner_group_num": 2}),
    albert("span", SPAN, {"num_attention_heads": 1}),
    albert("none", "Model", {"num_hidden_layers": 5, "num_hidden_groups": 3, "inner_group_num": 2}),
    electra("detect", PRETRAIN),
    electra("detect-wide", PRETRAIN, RELU, {"embedding_size": 24}),
    electra("mlm", MLM),
    electra("mlm-untied", MLM, RELU, UNTIED, {"embedding_size": 24}),
    electra("classify", CLASSIFY, {"num_labels": 3}),
    electra("tag", TAG, {"num_labels": 5}),
    electra("span", SPAN),
    electra("none", "Model"),
    deberta("mlm", MLM, {"legacy": False}),
    deberta("mlm-legacy", MLM, {"hidden_act": "gelu_new", "num_attention_heads": 1}),
    deberta("mlm-legacy-untied", MLM, UNTIED, {"embedding_size": 16}),
    deberta("near", "Model", {"max_relative_positions": 4}),
    deberta("c2p", "Model", {"pos_att_type": "c2p"}),
    deberta("p2c", "Model", {"pos_att_type": ["p2c"]}),
    deberta("both-and-types", "Model", TYPED, types=True),
    deberta("content-only", "Model", {"relative_attention": False, "position_biased_input": True}),
    deberta("classify", CLASSIFY, {"num_labels": 3, "pooler_hidden_act": "tanh"}),
    deberta("tag", TAG, {"num_labels": 5}),
    deberta("span", SPAN),
    deberta2("mlm-v3", MLM, V3, {"legacy": False}),
    deberta2("mlm-legacy", MLM),
    deberta2("mlm-legacy-untied", MLM, V3, UNTIED, {"embedding_size": 16}),
    deberta2("own-projections", "Model", {"position_buckets": 6, "norm_rel_ebd": "layer_norm"}),
    deberta2("no-buckets", "Model", {"share_att_key": True, "max_relative_positions": 5}),
    deberta2("conv", "Model", V3, {"conv_kernel_size": 3, "conv_act": "gelu"}),
    deberta2("conv-wide", "Model", {"conv_kernel_size": 5, "conv_groups": 2}),
    deberta2("c2p", "Model", {"pos_att_type": "c2p", "position_buckets": 4}),
    deberta2("p2c-shared", "Model", {"pos_att_type": "p2c", "share_att_key": True}),
    deberta2("both-and-types", "Model", TYPED, types=True),
    deberta2("content-only", "Model", {"relative_attention": False, "pos_att_type": None}),
    deberta2("classify", CLASSIFY, V3, {"num_labels": 3}),
    deberta2("tag", TAG, V3, {"num_labels": 5}),
    deberta2("span", SPAN, V3, RELU),
    mpnet("mlm", MLM),
    mpnet("mlm-untied", MLM, RELU, UNTIED, {"num_attention_heads": 2, "layer_norm_eps": 1e-3}),
    mpnet("classify", CLASSIFY, {"num_labels": 3}),
    mpnet("tag", TAG, {"num_labels": 5}),
    mpnet("span", SPAN),
    mpnet("none", "Model"),
    roformer("mlm", MLM),
    roformer("mlm-untied", MLM, RELU, UNTIED, {"num_attention_heads": 2, "type_vocab_size": 3}),
    roformer("classify", CLASSIFY, {"num_labels": 3}),
    roformer("tag", TAG, {"num_labels": 5}),
    roformer("span", SPAN),
    roformer("none", "Model"),
    euro("mlm", MLM),
    euro("mlm-tied-biases", MLM, TIED, {"attention_bias": True, "mlp_bias": True}),
    euro("groups", MLM, {"num_key_value_heads": 1, "num_attention_heads": 3}, rope("yarn", factor=4.0)),
    euro("tag", TAG, {"num_labels": 5}),
    euro("none", "Model", {"head_dim": 12}),
    nomic("mlm", MLM),
    nomic("mlm-gelu", MLM, {"hidden_act": "gelu", "num_attention_heads": 2, "type_vocab_size": 3}),
    nomic("wide-heads", "Model", {"head_dim": 16}, rope("default")),
    nomic("longer", "Model", rope("dynamic", factor=2.0), {"max_position_embeddings": 8}),
    nomic("classify", CLASSIFY, {"num_labels": 3}),
    nomic("tag", TAG, {"num_labels": 5}),
    nomic("none", "Model"),
    modern("mlm", MLM),
    modern("mlm-untied", MLM, UNTIED, {"decoder_bias": False, "hidden_activation": "silu"}),
    modern("biases", MLM, {"attention_bias": True, "mlp_bias": True, "norm_bias": True,
                           "classifier_bias": True, "classifier_activation": "relu"}),
    modern("all-global", "Model", {"layer_types": ["full_attention"] * 4}),
    modern("all-local", "Model", {"layer_types": ["sliding_attention"] * 4, "local_attention": 5}),
    modern("stretched", "Model", {"rope_parameters": {
        "full_attention": {"rope_theta": 5000.0, "rope_type": "linear", "factor": 2.0},
        "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"}}}),
    modern("classify", CLASSIFY, {"num_labels": 3}),
    modern("classify-mean", CLASSIFY, {"classifier_pooling": "mean"}),
    modern("tag", TAG, {"num_labels": 5}),
    modern("span", SPAN),
    modern("none", "Model", {"num_hidden_layers": 2, "num_attention_heads": 2}),
    longformer("mlm", MLM),
    longformer("mlm-wider", MLM, RELU, {"attention_window": [4, 6], "num_attention_heads": 2}),
    longformer("mlm-all", MLM, {"attention_window": 32, "type_vocab_size": 1, "pad_token_id": 0}),
    longformer("classify", CLASSIFY, {"num_labels": 3}),
    longformer("classify-wider", CLASSIFY, {"attention_window": 6}),
    longformer("tag", TAG, {"num_labels": 5}),
    longformer("none", "Model"),
    big_bird("mlm", MLM),
    big_bird("mlm-untied", MLM, UNTIED, RELU, {"num_random_blocks": 2, "use_bias": False}),
    big_bird("mlm-full", MLM, {"attention_type": "original_full", "rescale_embeddings": True}),
    big_bird("short", MLM, {"block_size": 4}, patterns=ATTENTIONS),
    big_bird("pretrain", PRETRAIN, output="prediction_logits"),
    big_bird("classify", CLASSIFY, {"num_labels": 3}),
    big_bird("tag", TAG, {"num_labels": 5}),
    big_bird("none", "Model"),
]  # fmt: skip

# Encoder-decoders.

T5 = {
    "vocab_size": 99, "d_model": 24, "d_kv": 5, "d_ff": 40, "num_layers": 2, "num_heads": 3,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
}  # fmt: skip
BART = {
    "vocab_size": 99, "d_model": 24, "max_position_embeddings": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40,
}  # fmt: skip
UNEVEN = {
    "encoder_layers": 1, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 6,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 56, "scale_embedding": True,
}  # fmt: skip
START = {"pad_token_id": 98, "decoder_start_token_id": 98}
MARIAN = {**BART, **START, "activation_function": "swish", "scale_embedding": True}
UNSHARED = {"vocab_size": 120, "decoder_vocab_size": 99, "share_encoder_decoder_embeddings": False}
t5 = Rows("t5", "T5", "T5Config", T5)
mt5 = Rows("mt5", "MT5", "MT5Config", T5, prepare=untie)
bart = Rows("bart", "Bart", "BartConfig", BART)
marian = Rows("marian", "Marian", "MarianConfig", MARIAN, prepare=sines)
SEQ = "ForConditionalGeneration"
SINES = tuple(f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder"))
umt5 = Rows("umt5", "UMT5", "UMT5Config", T5)
led = Rows(
    "led", "LED", "LEDConfig",
    {**{k: v for k, v in BART.items() if k != "max_position_embeddings"}, "attention_window": 4,
     "max_encoder_position_embeddings": 40, "max_decoder_position_embeddings": 32},
)  # fmt: skip
UNEVEN_LED = {k: v for k, v in UNEVEN.items() if k != "scale_embedding"}
DECODES = {ours: theirs for ours, theirs in SEQ2SEQ.items() if not ours.startswith("encoder.")}
mbart = Rows("mbart", "MBart", "MBartConfig", BART)
pegasus = Rows("pegasus", "Pegasus", "PegasusConfig", BART, prepare=sines, dropped=SINES)
m2m = Rows("m2m100", "M2M100", "M2M100Config", BART)
plbart = Rows("plbart", "PLBart", "PLBartConfig", BART)
mvp = Rows("mvp", "Mvp", "MvpConfig", BART)
blender = Rows("blenderbot", "Blenderbot", "BlenderbotConfig", BART)
blender_small = Rows("blenderbot-small", "BlenderbotSmall", "BlenderbotSmallConfig", BART)
BLOCKS = {"block_size": 1, "num_random_blocks": 1}
big_pegasus = Rows("bigbird-pegasus", "BigBirdPegasus", "BigBirdPegasusConfig", {**BART, **BLOCKS})


def sines_alone(model: Any) -> None:
    """Put the paper's sines back into a decoder without an encoder."""
    table = model.model.decoder.embed_positions
    table.weight.data = table.create_weight()


def alone(rows: Rows, **more: Any) -> Rows:
    """The decoder of an encoder-decoder."""
    own = {**rows.values, **more.pop("values", {})}
    return Rows(f"{rows.family}-decoder", rows.stem, rows.config, own, ATTENTIONS, **more)


trocr = Rows("trocr", "TrOCR", "TrOCRConfig", BART)

switch = Rows(
    "switch-transformers", "SwitchTransformers", "SwitchTransformersConfig",
    {**T5, "num_layers": 4, "num_decoder_layers": 3, "num_sparse_encoder_layers": 2,
     "num_sparse_decoder_layers": 1, "num_experts": 4},
)  # fmt: skip

ENCODER_DECODERS = [
    t5("", SEQ, patterns=SEQ2SEQ),
    t5("deep-encoder", SEQ, {"num_layers": 3, "num_decoder_layers": 1}),
    t5("32-buckets", SEQ, {"relative_attention_num_buckets": 32}),
    t5("v1.1", SEQ, UNTIED, {"feed_forward_proj": "gated-gelu"}, prepare=untie, patterns=SEQ2SEQ),
    t5("gated-tied", SEQ, {"feed_forward_proj": "gated-silu"}),
    t5("unscaled-tied", SEQ, UNTIED, {"feed_forward_proj": "gelu"}),
    t5("stated-act", SEQ, {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu"}),
    t5("encoder", "EncoderModel", output="last_hidden_state", patterns=ATTENTIONS),
    mt5("", SEQ, {"num_heads": 2}),
    mt5("stated-act", SEQ, {"num_heads": 2, "dense_act_fn": "silu", "is_gated_act": True}),
    bart("", SEQ, patterns=SEQ2SEQ, prepare=shift),
    bart("uneven", SEQ, UNEVEN, prepare=shift),
    bart("untied", SEQ, UNTIED, prepare=shift),
    bart("none", "Model", output="encoder_last_hidden_state"),
    led("", SEQ, patterns=DECODES, prepare=shift),
    led("uneven", SEQ, UNEVEN_LED, prepare=shift),
    led("wider", SEQ, {"attention_window": [4, 8], "activation_function": "relu"}, prepare=shift),
    led("none", "Model", output="encoder_last_hidden_state"),
    mbart("", SEQ, patterns=SEQ2SEQ, prepare=shift),
    mbart("uneven", SEQ, UNEVEN, prepare=shift),
    mbart("untied", SEQ, UNTIED, {"activation_function": "relu"}, prepare=shift),
    mbart("none", "Model", output="encoder_last_hidden_state"),
    pegasus("", SEQ, patterns=SEQ2SEQ),
    pegasus("uneven", SEQ, UNEVEN),
    pegasus("relu", SEQ, {"activation_function": "relu", "encoder_attention_heads": 1}),
    m2m("", SEQ, patterns=SEQ2SEQ),
    m2m("uneven", SEQ, UNEVEN, {"scale_embedding": False}),
    m2m("gelu", SEQ, {"activation_function": "gelu", "decoder_attention_heads": 1}),
    umt5("", SEQ, patterns=SEQ2SEQ),
    umt5("relu", SEQ, {"feed_forward_proj": "relu", "num_heads": 2}),
    umt5("deep-encoder", SEQ, {"num_layers": 3, "num_decoder_layers": 1, "d_kv": 8}),
    umt5("encoder", "EncoderModel", output="last_hidden_state", patterns=ATTENTIONS),
    switch("", SEQ, patterns=SEQ2SEQ),
    switch("biases", SEQ, {"router_bias": True, "dense_act_fn": "gelu"}),
    switch("all-sparse", SEQ, {"num_sparse_encoder_layers": 4, "num_sparse_decoder_layers": 3}),
    switch("none-sparse", SEQ, {"num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 0}),
    switch("full", "EncoderModel", {"expert_capacity": 2}, output="last_hidden_state"),
    marian("", "MTModel", patterns=SEQ2SEQ),
    marian("unshared", "MTModel", UNSHARED),
    marian("uneven", "MTModel", UNEVEN),
    plbart("", SEQ, patterns=SEQ2SEQ, prepare=shift),
    plbart("uneven", SEQ, UNEVEN, {"activation_function": "relu"}, prepare=shift),
    plbart("none", "Model", output="encoder_last_hidden_state"),
    mvp("", SEQ, patterns=SEQ2SEQ, prepare=shift),
    mvp("uneven", SEQ, UNEVEN, prepare=shift),
    mvp("none", "Model", output="encoder_last_hidden_state"),
    blender("", SEQ, patterns=SEQ2SEQ, prepare=shift),
    blender("uneven", SEQ, UNEVEN, {"activation_function": "relu"}, prepare=shift),
    blender_small("", SEQ, patterns=SEQ2SEQ, prepare=shift),
    blender_small("uneven", SEQ, UNEVEN, prepare=shift),
    big_pegasus("", SEQ, patterns=DECODES, prepare=shift),
    big_pegasus("uneven", SEQ, UNEVEN, {"num_random_blocks": 2, "use_bias": True}, prepare=shift),
    big_pegasus("full", SEQ, {"attention_type": "original_full"}, patterns=SEQ2SEQ, prepare=shift),
    big_pegasus("short", SEQ, {"block_size": 4, "scale_embedding": False}, prepare=shift),
    big_pegasus("none", "Model", output="encoder_last_hidden_state"),
]

# No row of CASES: transformers saves such a model, but cannot open it again, as its sines are no tensors.
TROCR_SINES = trocr("sines", CAUSAL, {"use_learned_position_embeddings": False, "scale_embedding": True})
DECODERS_ALONE = [
    row
    for rows in (
        alone(bart), alone(mbart), alone(plbart), alone(mvp), alone(blender), alone(blender_small),
        alone(big_pegasus), alone(marian, prepare=sines_alone, dropped=SINES[1:]),
        alone(pegasus, prepare=sines_alone, dropped=SINES[1:]),
    )
    for row in (
        rows("", CAUSAL),
        rows("scaled", CAUSAL, UNEVEN, {"activation_function": "relu"}),
    )
] + [
    alone(big_pegasus)("biases", CAUSAL, {"use_bias": True, "scale_embedding": False}),
    alone(bart)("untied", CAUSAL, UNTIED),
    trocr("", CAUSAL),
    trocr("no-norm", CAUSAL, UNTIED, {"layernorm_embedding": False, "activation_function": "relu"}),
]  # fmt: skip

CASES = [*DECODERS, *parallel_decoders.ROWS, *llama_descendants.ROWS, *further_rows.ROWS, *ENCODERS,
         *ENCODER_DECODERS, *DECODERS_ALONE]  # fmt: skip
