"""A config.json with values of the wrong kind, infinite, huge or missing: one ConfigError, at once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.core.errors import ConfigError
from tests.fuzz.bounds import bounded
from tests.properties.tiny import tiny
from tests.refusal import refused

WRONG: list[tuple[str, str, Any, str]] = [
    ("gpt2", "architectures", {"0": "GPT2LMHeadModel"}, "architectures={.* a list of names"),
    ("gpt2", "architectures", 5, "architectures=5 .* a list of names"),
    ("gpt2", "vocab_size", [128], r"vocab_size=\[128\] .* a whole number"),
    ("gpt2", "n_embd", 10**12, "n_embd=1000000000000 must be at most 268,435,456"),
    ("gpt2", "n_embd", float("inf"), "n_embd=inf .* a whole number"),
    ("gpt2", "n_layer", 2_000_000, "n_layer=2000000 must be at most 10,000"),
    ("gpt2", "n_layer", 5000, '"n_layer": 5,000, and the file has .* tensors'),
    ("gpt2", "layer_norm_epsilon", float("nan"), "layer_norm_epsilon=nan .* a number"),
    ("gpt2", "layer_norm_epsilon", 1e308, "layer_norm_epsilon=1e.308 must be at most"),
    ("gpt2", "tie_word_embeddings", "false", "tie_word_embeddings='false' .* True or False"),
    ("gpt2", "id2label", ["a"], "id2label=.* a table"),
    ("gpt2", "id2label", {"first": "a"}, "id2label has 'first', which is not the number"),
    ("gpt2", "eos_token_id", "</s>", "eos_token_id='</s>' .* a whole number or a list of whole numbers"),
    ("llama", "hidden_size", 2_147_483_647, "hidden_size=2147483647 must be at most"),
    ("llama", "hidden_size", 200_000_002, "hidden_size|heads"),
    (
        "llama",
        "intermediate_size",
        2**28,
        '"intermediate_size": 268,435,456, and the file has no tensor with',
    ),
    ("llama", "rope_theta", "x", "rope_theta='x' .* a number"),
    ("llama", "rope_parameters", [1], r"rope_parameters=\[1\] .* a table"),
    ("mamba", "expand", 1e308, "expand=1e.308 .* a whole number"),
    ("mamba", "expand", "2", "expand='2' .* a whole number"),
    ("mamba", "state_size", 2**63, "state_size=9223372036854775808 must be at most"),
    ("mamba2", "time_step_limit", 5, "mamba2"),
    ("mamba2", "num_heads", 7, "heads"),
    ("mamba2", "n_groups", 3, "groups=3 does not divide heads=4"),
    ("modernbert", "layer_types", 5, "layer_types=5 .* a list of names"),
    ("modernbert", "layer_types", ["sideways"], "layer_types has 'sideways'"),
    ("modernbert", "rope_parameters", {"full_attention": 5}, "rope_parameters=5 .* a table"),
    ("olmo-hybrid", "layer_types", ["sliding_attention"] * 2, "layer_types has 'sliding_attention'"),
    ("olmo-hybrid", "linear_num_key_heads", 3, "key_heads=3 does not divide"),
    ("olmo-hybrid", "hidden_act", "gelu", '"hidden_act": .gelu.'),
    ("t5", "dense_act_fn", 3, "dense_act_fn=3 .* a name"),
    ("nomic-bert", "prenorm", True, '"prenorm": True'),
    ("mpnet", "relative_attention_num_buckets", 8, '"relative_attention_num_buckets": 8'),
    ("deberta", "pos_att_type", 3, "pos_att_type=3 .* a list of names"),
    ("t5", "feed_forward_proj", None, ""),
    ("t5", "feed_forward_proj", ["relu"], "feed_forward_proj=.* a name"),
    ("roberta", "pad_token_id", "1", "pad_token_id='1' .* a whole number"),
    ("deepseek-v2", "n_routed_experts", 2**27, '"n_routed_experts": 134,217,728, and the file has no tensor'),
    ("bloom", "n_head", 2**26, "n_head|heads"),
    ("luong", "layers", 2**27, "layers=134217728 must be at most 10,000"),
]


@pytest.mark.parametrize(("family", "key", "value", "told"), WRONG)
def test_a_hostile_value_is_one_config_error_at_once(
    family: str, key: str, value: Any, told: str, tmp_path: Path
) -> None:
    folder = heedful.save(tiny(family), tmp_path / "m")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    began = time.process_time()
    if not told:  # null is silence, and the default is meant
        heedful.load(folder)
        return
    with pytest.raises(ConfigError, match=told) as caught, bounded():
        heedful.load(folder)
    assert time.process_time() - began < 5
    assert "\n" not in str(caught.value)


def test_a_value_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = heedful.save(tiny("marian"), tmp_path / "m")
    path = folder / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "vocab_size"}))
    with refused(ConfigError, "config.json", "'vocab_size'", "marian"):
        heedful.load(folder)


ROUNDING: list[Any] = [
    5, "int8", {}, {"kind": "int8"}, {"group": 32}, {"kind": 8, "group": 32}, {"kind": "int8", "group": 0},
    {"kind": "int8", "group": [32]}, {"kind": "int9", "group": 32}, {"kind": "int4", "group": 3},
    {"kind": "int8", "group": 32, "tables": "no"},
]  # fmt: skip


@pytest.mark.parametrize("told", ROUNDING, ids=str)
def test_how_weights_were_rounded_is_looked_at(told: Any, tmp_path: Path) -> None:
    folder = heedful.save(heedful.quantize(tiny("gpt2"), "int8"), tmp_path / "m", quantized=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization": told}))
    with pytest.raises(ConfigError, match="quantiz"):
        heedful.load(folder)


def test_the_ids_that_rule_generation_are_looked_at(tmp_path: Path) -> None:
    folder = heedful.save(tiny("gpt2"), tmp_path / "m")
    (folder / "generation_config.json").write_text('{"eos_token_id": "</s>"}')
    with refused(ConfigError, "generation_config.json", "eos_token_id='</s>'"):
        heedful.load(folder)


def test_sizes_are_looked_at_before_a_skeleton_is_made(tmp_path: Path) -> None:
    from heedful.weights.loading import skeleton

    folder = heedful.save(tiny("gpt2"), tmp_path / "m")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"n_layer": 9000}))
    with pytest.raises(ConfigError, match='"n_layer": 9,000'):
        skeleton(folder)
