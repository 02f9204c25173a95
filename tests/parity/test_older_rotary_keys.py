"""Older keys of rotary positions mean what `transformers` makes of them, in every family that turns."""

from __future__ import annotations

import itertools
import json
from copy import deepcopy
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from heedful.models import FAMILIES, by_model_type
from heedful.models.hf_config import config_from

TURNED = sorted(
    kind
    for family in FAMILIES.values()
    if {"rope_base", "rope_scaling"} <= set(family.config.field_names())
    and family.name not in ("phi3", "phimoe")
    for kind in family.model_types
    if kind in CONFIG_MAPPING  # not kimi_k2, whose files bring their code
)
TRAINED = {"original_max_position_embeddings": 512}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **TRAINED}
SCALINGS: list[dict[str, Any]] = [
    {},
    {"rope_scaling": None},
    {"rope_scaling": {"rope_type": "default"}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, **TRAINED}},
    {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
]
# GPT-NeoX calls its base otherwise; Phi-3, and Phi with experts, have long rope only
# (test_configs_in_the_wild.py). Theirs does not stretch Gemma 3, OLMo 3 and both ModernBERTs where only
# `type` says so.
BASES = {"gpt_neox": "rotary_emb_base"}
ONLY_ROPE_TYPE = {"gemma3_text", "modernbert", "modernbert-decoder", "olmo3"}


@pytest.mark.parametrize("kind", TURNED)
def test_older_keys_of_rotary_positions_mean_the_same(kind: str) -> None:
    family, published = by_model_type(kind), CONFIG_MAPPING[kind]
    head = {"architectures": [family.heads[family.tiny.head]]}
    whole: dict[str, Any] = json.loads(published().to_json_string(use_diff=False)) | head
    del whole["rope_parameters"]
    for base, scaling in itertools.product(({}, {BASES.get(kind, "rope_theta"): 12345.0}), SCALINGS):
        if kind in ONLY_ROPE_TYPE and "type" in (scaling.get("rope_scaling") or {}):
            continue
        older = whole | base | scaling
        newer = json.loads(published.from_dict(deepcopy(older)).to_json_string(use_diff=False)) | head
        if kind == "olmo3" and base:
            # transformers 5 reads the stated base once, for the layers without a window; before, all had it.
            newer["rope_parameters"]["sliding_attention"]["rope_theta"] = base["rope_theta"]
        for key in (*base, *scaling):
            newer.pop(key, None)
        assert config_from(family, older) == config_from(family, newer), (base, scaling)
