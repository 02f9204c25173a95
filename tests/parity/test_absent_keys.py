"""A key that a config.json leaves out means what the published class makes of its absence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from heedful.models import FAMILIES, by_model_type
from heedful.models.hf_config import config_from

KINDS = {kind for family in FAMILIES.values() for kind in family.model_types}
PUBLISHED = sorted(KINDS & set(CONFIG_MAPPING))  # transformers has no kimi_k2: its files bring their code
REQUIRED = {"marian": {"vocab_size"}}  # what a file must state


def published_defaults(kind: str) -> dict[str, Any]:
    """Every key that the published class writes, with the values it begins with."""
    family = by_model_type(kind)
    stated: dict[str, Any] = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    return stated | {"architectures": [family.heads[family.tiny.head]]}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_config_that_says_nothing_is_the_published_default(kind: str) -> None:
    family, stated = by_model_type(kind), published_defaults(kind)
    said = {"model_type", "architectures", *REQUIRED.get(kind, ())}
    silent = {key: value for key, value in stated.items() if key in said}
    assert config_from(family, silent) == config_from(family, stated)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_each_key_alone_may_be_left_out(kind: str) -> None:
    family, stated = by_model_type(kind), published_defaults(kind)
    expected = config_from(family, stated)
    for key in stated.keys() - {"model_type", "architectures", *REQUIRED.get(kind, ())}:
        assert config_from(family, {k: v for k, v in stated.items() if k != key}) == expected, key
