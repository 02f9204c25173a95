"""Rows of decoders that came after GPT-3 beside LLaMA: GPT-J, GPT-NeoX, OPT, Falcon, Phi, StarCoder2."""

from __future__ import annotations

from typing import Any

from tests.parity.case_rows import ATTENTIONS, CAUSAL, CLASSIFY, SPAN, TAG, TIED, UNTIED, Rows, rope

neox = Rows(
    "gpt-neox", "GPTNeoX", "GPTNeoXConfig",
    {"vocab_size": 99, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
     "intermediate_size": 40, "max_position_embeddings": 64, "pad_token_id": 0, "rotary_pct": 0.5},
)  # fmt: skip
gptj = Rows(
    "gptj",
    "GPTJ",
    "GPTJConfig",
    {
        "vocab_size": 99,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 3,
        "n_positions": 32,
        "rotary_dim": 4,
        "pad_token_id": 0,
    },
)
opt = Rows(
    "opt", "OPT", "OPTConfig",
    {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "ffn_dim": 40,
     "max_position_embeddings": 32, "pad_token_id": 0},
)  # fmt: skip
falcon = Rows(
    "falcon", "Falcon", "FalconConfig",
    {"vocab_size": 99, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
     "pad_token_id": 0},
)  # fmt: skip
SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
PARTLY = {**SIZES, "partial_rotary_factor": 0.5}
phi = Rows("phi", "Phi", "PhiConfig", PARTLY)
phi3 = Rows("phi3", "Phi3", "Phi3Config", SIZES)
stablelm = Rows("stablelm", "StableLm", "StableLmConfig", PARTLY)
starcoder2 = Rows("starcoder2", "Starcoder2", "Starcoder2Config", SIZES)
ALIBI = {"alibi": True, "parallel_attn": False}  # "eager" would add the biases twice
GROUPS = {"new_decoder_architecture": True, "num_kv_heads": 2}
LONG_ROPE = {
    "rope_type": "longrope", "rope_theta": 5000.0, "short_factor": [1.0, 1.1, 1.3, 1.9],
    "long_factor": [1.5, 2.0, 4.0, 9.0],
}  # fmt: skip

ROWS = [
    neox("", CAUSAL, patterns=ATTENTIONS),
    neox("one-after-the-other", CAUSAL, {"use_parallel_residual": False}),
    neox("odd-heads", CAUSAL, {"num_attention_heads": 3, "rotary_pct": 0.25}),
    neox("no-biases", CAUSAL, {"attention_bias": False, "rotary_pct": 1.0}),
    neox("tied", CAUSAL, TIED, {"hidden_act": "gelu_fast", "rotary_emb_base": 500}),
    neox("linear", CAUSAL, {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    neox("classify", CLASSIFY, {"num_labels": 3}),
    neox("tag", TAG, {"num_labels": 5}),
    neox("span", SPAN),
    neox("none", "Model"),
    gptj("", CAUSAL, patterns=ATTENTIONS),
    gptj("whole-heads", CAUSAL, {"n_head": 2, "rotary_dim": 12, "n_inner": 40}),
    gptj("one-head", CAUSAL, {"n_head": 1, "rotary_dim": 10, "activation_function": "relu"}),
    gptj("tied", CAUSAL, TIED),
    gptj("classify", CLASSIFY, {"num_labels": 3}),
    gptj("span", SPAN),
    gptj("none", "Model"),
    opt("", CAUSAL, patterns=ATTENTIONS),
    opt("350m", CAUSAL, {"do_layer_norm_before": False, "word_embed_proj_dim": 12}, patterns=ATTENTIONS),
    opt("no-last-norm", CAUSAL, {"_remove_final_layer_norm": True}),
    opt("narrow", CAUSAL, {"word_embed_proj_dim": 12}, UNTIED),
    opt("no-biases", CAUSAL, {"enable_bias": False, "activation_function": "gelu"}),
    opt("untied", CAUSAL, UNTIED, {"num_attention_heads": 1}),
    opt("classify", CLASSIFY, {"num_labels": 3, "word_embed_proj_dim": 12}),
    opt("span", SPAN),
    opt("none", "Model", {"do_layer_norm_before": False, "word_embed_proj_dim": 12}),
    falcon("7b", CAUSAL, patterns=ATTENTIONS),
    falcon("7b-odd-heads", CAUSAL, {"num_attention_heads": 3, "ffn_hidden_size": 40}, UNTIED),
    falcon("40b", CAUSAL, GROUPS, patterns=ATTENTIONS),
    falcon("2-11b", CAUSAL, GROUPS, {"num_ln_in_parallel_attn": 1, "bias": True}),
    falcon("rw-1b", CAUSAL, {**ALIBI, "multi_query": False, "bias": True}, attention="sdpa"),
    falcon("rw-8-heads", CAUSAL, {**ALIBI, "num_attention_heads": 8}, UNTIED, attention="sdpa"),
    falcon("all-heads", CAUSAL, {"multi_query": False}),
    falcon("dynamic-long", CAUSAL, rope("dynamic", factor=2.0), {"max_position_embeddings": 8}),
    falcon("classify", CLASSIFY, {"num_labels": 3}),
    falcon("tag", TAG, GROUPS, {"num_labels": 5}),
    falcon("span", SPAN),
    falcon("none", "Model"),
    phi("", CAUSAL, patterns=ATTENTIONS),
    phi("all-heads", CAUSAL, {"num_key_value_heads": 6}, TIED),
    phi("odd-heads", CAUSAL, {"num_attention_heads": 3, "num_key_value_heads": 3},
        {"partial_rotary_factor": 0.4}),
    phi("whole-heads", CAUSAL, {"partial_rotary_factor": 1.0, "hidden_act": "gelu"}),
    phi("classify", CLASSIFY, {"num_labels": 3}),
    phi("tag", TAG, {"num_labels": 4}),
    phi("none", "Model"),
    phi3("", CAUSAL, patterns=ATTENTIONS),
    phi3("window", CAUSAL, {"sliding_window": 4}, TIED, patterns=ATTENTIONS),
    phi3("long-rope-short", CAUSAL, {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 16}),
    phi3("long-rope-long", CAUSAL, {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 8}),
    phi3("long-rope-part", CAUSAL, {"rope_parameters": {**LONG_ROPE, "partial_rotary_factor": 0.5},
                                    "original_max_position_embeddings": 8, "num_attention_heads": 3,
                                    "num_key_value_heads": 1}),
    phi3("odd-heads", CAUSAL, {"num_attention_heads": 3, "num_key_value_heads": 3}),
    phi3("classify", CLASSIFY, {"num_labels": 3}),
    phi3("tag", TAG, {"num_labels": 4}),
    phi3("none", "Model"),
    stablelm("3b", CAUSAL, patterns=ATTENTIONS),
    stablelm("2-1.6b", CAUSAL, {"use_qkv_bias": True, "num_key_value_heads": 6}, TIED),
    stablelm("2-12b", CAUSAL, {"qk_layernorm": True, "use_parallel_residual": True}, patterns=ATTENTIONS),
    stablelm("odd-heads", CAUSAL, {"num_attention_heads": 3, "num_key_value_heads": 3, "qk_layernorm": True}),
    stablelm("parallel", CAUSAL, {"use_parallel_residual": True, "use_qkv_bias": True}),
    stablelm("classify", CLASSIFY, {"num_labels": 3}),
    stablelm("tag", TAG, {"num_labels": 4}),
    stablelm("none", "Model", {"qk_layernorm": True}),
    starcoder2("wide-heads", CAUSAL, {"head_dim": 12}),
    phi("wide-heads", CAUSAL, {"head_dim": 16}),
    phi3("wide-heads", CAUSAL, {"head_dim": 16}),
    starcoder2("", CAUSAL, {"sliding_window": 4}, patterns=ATTENTIONS),
    starcoder2("full", CAUSAL, UNTIED, {"num_attention_heads": 3, "num_key_value_heads": 1}),
    starcoder2("no-biases", CAUSAL, {"use_bias": False}),
    starcoder2("linear", CAUSAL, rope("linear", factor=4.0)),
    starcoder2("classify", CLASSIFY, {"num_labels": 3}),
    starcoder2("tag", TAG, {"num_labels": 4}),
    starcoder2("none", "Model", {"sliding_window": 4}),
]  # fmt: skip
