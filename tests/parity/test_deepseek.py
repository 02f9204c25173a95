"""DeepSeek-V2 and V3 against `transformers`, and what published files hold beyond it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import heedful
from heedful.errors import ConfigError, UnexpectedTensor
from heedful.nn.moe import MoE
from tests.parity import harness
from tests.parity.harness import ATTENTIONS, Case

SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 24, "intermediate_size": 20, "moe_intermediate_size": 12,
    "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3, "first_k_dense_replace": 1,
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "kv_lora_rank": 10,
    "q_lora_rank": 14, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
V2 = {**SIZES, "routed_scaling_factor": 1.5}
LIMITED = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
V3 = {**SIZES, "n_group": 4, "topk_group": 2}
PLAIN: dict[str, Any] = {"q_lora_rank": None, "v_head_dim": 9, "n_shared_experts": 1, "num_hidden_layers": 2}


def yarn(**values: float) -> dict[str, Any]:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 5000.0}
    return {"rope_parameters": {**rope, **values}}


def steer(model: Any) -> None:
    """A choice that follows the bias as well as the scores."""
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.add_(torch.randn_like(buffer) * 0.1)


def v2(name: str, values: dict[str, Any] | None = None, kind: str = "ForCausalLM", **more: Any) -> Case:
    return Case(f"v2-{name}", f"DeepseekV2{kind}", "DeepseekV2Config", {**V2, **(values or {})}, **more)


def v3(name: str, values: dict[str, Any] | None = None, kind: str = "ForCausalLM", **more: Any) -> Case:
    values = {**V3, **(values or {})}
    return Case(f"v3-{name}", f"DeepseekV3{kind}", "DeepseekV3Config", values, prepare=steer, **more)


CASES = [
    v2("greedy", patterns=ATTENTIONS),
    v2("groups", {**LIMITED, **PLAIN}),
    v2("yarn", {**LIMITED, **yarn(mscale=0.707, mscale_all_dim=0.707)}, patterns=ATTENTIONS),
    v2("biases", {"attention_bias": True, "mlp_bias": True, "first_k_dense_replace": 0}),
    v2("classify", {"num_labels": 3, "num_hidden_layers": 2}, "ForSequenceClassification"),
    v2("none", {"num_hidden_layers": 2}, "Model", output="last_hidden_state"),
    v3("grouped", patterns=ATTENTIONS),
    v3("plain", {**PLAIN, "norm_topk_prob": False, "n_group": 1, "topk_group": 1}),
    v3("tied", {"tie_word_embeddings": True, "num_hidden_layers": 2}),
    v3("yarn", yarn(mscale=1.0, mscale_all_dim=0.8, beta_fast=16.0), patterns=ATTENTIONS),
    v3("halves", {"rope_interleave": False, "attention_bias": True, "routed_scaling_factor": 0.7}),
    v3("dense", {"first_k_dense_replace": 2, "num_hidden_layers": 2}),
    v3("long", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5000.0},
                "max_position_embeddings": 8, "num_hidden_layers": 2}),
    v3("tag", {"num_labels": 4, "num_hidden_layers": 2}, "ForTokenClassification"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_and_patterns_equal_the_published_implementation(case: Case, tmp_path: Path) -> None:
    harness.check_logits_and_patterns(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_padding_on_either_side_gives_the_unpadded_answer(case: Case, tmp_path: Path) -> None:
    harness.check_padding(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_load_then_save_gives_back_every_tensor_and_opens_there(case: Case, tmp_path: Path) -> None:
    harness.check_there_and_back(case, tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_built_here_opens_there(case: Case, tmp_path: Path) -> None:
    harness.check_fresh_opens_there(case, tmp_path)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A folder with the tiny V3, as saved here."""
    from heedful.loading import assemble
    from heedful.models.deepseek import DEEPSEEK_V3
    from heedful.nn.init import initialise

    model = assemble(DEEPSEEK_V3, DEEPSEEK_V3.tiny)
    initialise(model)
    return heedful.save(model, tmp_path / "tiny")


def change(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> None:
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def test_in_half_precision_the_choosing_bias_keeps_its_own_dtype(tiny: Path, tmp_path: Path) -> None:
    stored = load_file(tiny / "model.safetensors")
    stored = {n: t if n.endswith("correction_bias") else t.bfloat16() for n, t in stored.items()}
    change(tiny, stored, dtype="bfloat16")
    heedful.save(heedful.load(tiny), tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert {n: t.dtype for n, t in again.items()} == {n: t.dtype for n, t in stored.items()}
    assert all(torch.equal(again[n], t) for n, t in stored.items())


def test_layers_that_predict_later_tokens_are_dropped_if_the_config_names_them(tiny: Path) -> None:
    stored = load_file(tiny / "model.safetensors")
    extra = {f"model.layers.2.{name}.weight": torch.zeros(2, 2) for name in ("eh_proj", "mlp.gate")}
    change(tiny, stored | extra, num_nextn_predict_layers=1)
    model = heedful.load(tiny)
    assert model.origin.dropped == sorted(extra)
    heedful.save(model, tiny)
    assert json.loads((tiny / "config.json").read_text())["num_nextn_predict_layers"] == 0
    change(tiny, stored | extra)
    with pytest.raises(UnexpectedTensor, match="eh_proj"):
        heedful.load(tiny)


def test_fp8_weights_are_an_error_that_names_the_way_out(tiny: Path) -> None:
    scale = {"model.layers.0.self_attn.o_proj.weight_scale_inv": torch.ones(1, 1)}
    change(tiny, load_file(tiny / "model.safetensors") | scale)
    with pytest.raises(ConfigError, match="fp8_cast_bf16"):
        heedful.load(tiny)


@pytest.mark.parametrize(
    ("key", "value"), [("scoring_func", "softmax"), ("topk_method", "greedy"), ("num_key_value_heads", 2)]
)
def test_what_cannot_be_built_is_an_error_that_names_the_key(tiny: Path, key: str, value: Any) -> None:
    change(tiny, load_file(tiny / "model.safetensors"), **{key: value})
    with pytest.raises(ConfigError, match=key):
        heedful.load(tiny)


@pytest.mark.parametrize(
    ("preset", "total", "active"),
    [
        ("deepseek-v2-lite", 15_706_484_224, 2_661_150_208),
        ("deepseek-v2", 235_741_434_880, 21_375_800_320),
        ("deepseek-v3", 671_026_419_200, 37_552_297_472),
    ],
)
def test_presets_have_as_many_parameters_as_published(preset: str, total: int, active: int) -> None:
    model = heedful.build(preset, device="meta")
    experts = [part for part in model.modules() if isinstance(part, MoE)]
    idle = sum(part.total_parameters() - part.active_parameters() for part in experts)
    biases = sum(b.numel() for part in experts for b in part.buffers())
    assert sum(p.numel() for p in model.parameters()) + biases == total
    assert total - idle == active
