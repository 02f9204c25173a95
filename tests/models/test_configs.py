"""Configs: every field of every family is checked before anything is built from it."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.core.errors import ConfigError, HeedfulError, NotFound
from heedful.models import FAMILIES
from heedful.models.base import Config
from heedful.models.hf_config import config_from, config_to, read_rope
from heedful.nn.init import initialise
from heedful.nn.position import YarnScaling
from heedful.weights.loading import assemble
from heedful.weights.names import connect, model_tensors
from tests.refusal import refused


def given(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dict__["given"]}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("value", ["x", 1.5, -1, float("nan"), [[]]])
def test_a_field_of_the_wrong_kind_or_size_is_named(family: str, value: Any) -> None:
    tiny = FAMILIES[family].tiny
    for field in fields(tiny):
        fraction = "float" in str(field.type) and value == 1.5
        text = field.type == "str" and value == "x"  # names are looked up when the model is built
        if not (fraction or text):
            with pytest.raises(ConfigError, match=field.name):
                type(tiny)(**given(tiny) | {field.name: value})


@pytest.mark.parametrize(
    ("family", "head"), [("longformer", "span"), ("retnet", "classify"), ("mamba", "tag"), ("opt", "tag")]
)
def test_a_model_with_a_head_of_no_published_class_is_saved_and_loaded(
    family: str, head: str, tmp_path: Path
) -> None:
    model = assemble(FAMILIES[family], FAMILIES[family].tiny.change(head=head))
    initialise(model)
    heedful.save(model, tmp_path / "made")
    again = heedful.load(tmp_path / "made")
    assert again.config == model.config
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_model_can_be_kept_with_torch_save(family: str) -> None:
    config = FAMILIES[family].tiny
    kept = pickle.loads(pickle.dumps(assemble(FAMILIES[family], config)))
    assert (kept.family.name, kept.config) == (family, config)


@pytest.mark.parametrize(
    ("name", "changes", "kind", "values", "hint"),
    [
        ("gtp2", {}, NotFound, ["gtp2"], "did you mean 'gpt2'"),
        (FAMILIES["gpt2"].tiny, {}, NotFound, ["name"], "build"),
        ("gpt2", {"layer": 2}, ConfigError, ["'layer'"], "'layers'"),
        ("gpt2", {"layers": 0}, ConfigError, ["layers=0", "at least 1"], ""),
        ("gpt2", {"dropout": 1.0}, ConfigError, ["dropout=1.0"], ""),
        ("gpt2", {"head": "mlm"}, ConfigError, ["head='mlm'"], "did you mean 'lm'"),
        ("gpt2", {"act": "gelo"}, ConfigError, ["gelo"], "did you mean 'gelu'"),
        ("llama", {"dim": 64, "heads": 5}, ConfigError, ["heads=5", "dim=64"], "4"),
        ("llama", {"dim": 64, "heads": 4, "kv_heads": 3}, ConfigError, ["kv_heads=3", "heads=4"], ""),
        ("llama", {"dim": 28, "heads": 4}, ConfigError, ["7 entries", "rotary"], ""),
        (
            "llama",
            {"rope_scaling": {"type": "linear"}},
            ConfigError,
            ["rope_scaling=", "Scaling or None"],
            "",
        ),
        ("t5", {"buckets": 3, "far": 128}, ConfigError, ["buckets=3", "far=128"], ""),
        ("t5", {"buckets": 32, "far": 16}, ConfigError, ["buckets=32", "far=16"], ""),
        ("t5", {"vocab": 32, "start_token": 40}, ConfigError, ["start_token=40"], ""),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_way_out(
    name: Any, changes: dict[str, Any], kind: type[HeedfulError], values: list[str], hint: str
) -> None:
    with refused(kind, *values, hint=hint):
        heedful.build(name, device="meta", **changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_that_count_begin_at_one(family: str) -> None:
    tiny = FAMILIES[family].tiny
    for field in fields(tiny):
        if field.type == "int" and field.metadata.get("least", 1):
            with pytest.raises(ConfigError, match=field.name):
                type(tiny)(**given(tiny) | {field.name: 0})


def test_a_window_wider_than_the_text_sees_all_of_it() -> None:
    sizes: dict[str, Any] = dict(vocab=16, dim=8, layers=2, heads=2, hidden=8, seed=0)
    tokens = torch.arange(6)[None]
    wide = heedful.build("mistral", window=100, **sizes).eval()
    assert torch.allclose(wide(tokens), heedful.build("llama", **sizes).eval()(tokens), atol=1e-6)


@pytest.mark.parametrize(
    ("rope", "told"),
    [
        ({"rope_type": "llama3", "factor": 8.0}, "config.json has no 'low_freq_factor', which a llama needs"),
        ({"rope_type": "linear", "factor": "big"}, "rope_scaling factor='big' .* a number"),
        ({"rope_type": "linear", "factor": 0}, '"factor": 0 of rope_scaling must be above 0'),
        ("linear", "rope_scaling='linear' .* a table"),
        ([1], r"rope_scaling=\[1\] .* a table"),
    ],
)
def test_rotary_settings_that_cannot_be_read_are_said(rope: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config_from(FAMILIES["llama"], {"rope_scaling": rope})


def test_yarn_without_a_factor_stretches_to_the_context() -> None:
    rope = {"rope_type": "yarn", "original_max_position_embeddings": 1024}
    _, scaling = read_rope({"rope_scaling": rope}, 4096)
    assert isinstance(scaling, YarnScaling)
    assert scaling.factor == 4.0


def test_a_changed_config_keeps_what_was_set_to_none() -> None:
    config = FAMILIES["gpt-oss"].tiny.change(rope_scaling=None)
    assert config.change(context=32).rope_scaling is None  # type: ignore[attr-defined]


def test_the_tiny_config_of_every_family_is_written_and_read_back() -> None:
    for family in FAMILIES.values():
        with torch.device("meta"):
            tensors = model_tensors(assemble(family, family.tiny))
        names = {name for link in connect(family.rows(family.tiny), tensors) for name in link.theirs}
        written = json.loads(json.dumps(config_to(family, family.tiny, {})))
        assert config_from(family, written, names) == family.tiny, family.name
