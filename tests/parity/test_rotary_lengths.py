"""Texts that grow past a length at which rotary angles change get the logits of transformers' `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.decode.stepper import EagerStepper

transformers = pytest.importorskip("transformers")

LIMIT = 12  # tokens, past which the angles change
SIZES = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "eos_token_id": None, "bos_token_id": 0,
    "pad_token_id": 1,
}  # fmt: skip
LATENT = {
    **SIZES, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.3, 1.9],
    "long_factor": [1.5, 2.0, 4.0, 9.0],
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": LIMIT,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, dynamic": ("Llama", {**SIZES, "rope_parameters": DYNAMIC, "max_position_embeddings": LIMIT}),
    "phi3, longrope": (
        "Phi3",
        {**SIZES, "rope_parameters": LONG, "original_max_position_embeddings": LIMIT,
         "max_position_embeddings": 4 * LIMIT},
    ),
    "deepseek-v3, dynamic": (
        "DeepseekV3", {**LATENT, "rope_parameters": DYNAMIC, "max_position_embeddings": LIMIT},
    ),
    "deepseek-v3, yarn": (
        "DeepseekV3", {**LATENT, "rope_parameters": YARN, "max_position_embeddings": 4 * LIMIT},
    ),
}  # fmt: skip


@pytest.mark.parametrize("prompt", [LIMIT - 4, LIMIT, LIMIT + 3])
@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_logits_and_tokens_past_the_length_are_those_of_transformers(
    kind: str, prompt: int, tmp_path: Path
) -> None:
    name, config = MODELS[kind]
    torch.manual_seed(3)
    theirs = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**config)
    ).eval()
    for parameter in theirs.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.3)
    theirs.save_pretrained(tmp_path)
    ours = heedful.load(tmp_path)
    tokens = torch.randint(5, 96, (1, prompt), generator=torch.Generator().manual_seed(1))
    out = theirs.generate(
        tokens, max_new_tokens=10, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    written = out.sequences[0, prompt:].tolist()
    assert heedful.generate(ours, tokens[0].tolist(), max_tokens=10, eos=()) == written
    stepper = EagerStepper(ours)
    logits = [stepper.prefill(tokens), *(stepper.step(torch.tensor([t])) for t in written[:-1])]
    assert (torch.cat(logits) - torch.cat(out.logits)).abs().max() < 1e-4
