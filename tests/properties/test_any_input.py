"""Configs, tables of names and requests: whatever they hold, they are read or refused by one typed error."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st

from heedful.core.errors import ConfigError, HeedfulError
from heedful.models import FAMILIES
from heedful.models.hf_config import config_from, config_to
from heedful.serve.openai_errors import OpenAIError, as_openai_error
from heedful.serve.openai_requests import (
    RequestFields,
    parse_body,
    read_inputs,
    read_messages,
    read_sampling,
)
from heedful.weights.loading import assemble
from heedful.weights.names import braces, connect, model_tensors
from tests.refusal import refused

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
jsons = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
families = st.sampled_from(sorted(FAMILIES))

# ── Configs ───────────────────────────────────────────────────────────────────────────────────────────────


@quick
@given(families, st.data())
def test_any_value_in_a_published_config_is_read_or_refused(name: str, data: st.DataObject) -> None:
    family = FAMILIES[name]
    published = config_to(family, family.tiny, {})
    keys = st.sampled_from(sorted(published.keys() | family.keys.keys() | family.reads.keys()))
    changed = published | data.draw(st.dictionaries(keys, jsons, min_size=1, max_size=3))
    with contextlib.suppress(HeedfulError):
        assert isinstance(config_from(family, changed), family.config)


@quick
@given(families, st.integers(1, 5), st.integers(128, 400), st.integers(1, 99), st.booleans())
def test_a_config_that_is_written_is_read_back(
    name: str, layers: int, vocab: int, labels: int, classify: bool
) -> None:
    family = FAMILIES[name]
    changes: dict[str, Any] = {"vocab": vocab, "layers": layers}
    if classify and "classify" in family.heads:
        changes |= {"head": "classify", "labels": labels}
    try:
        config = family.tiny.change(**changes)
    except ConfigError:  # ALBERT has layers in groups
        reject()
    with torch.device("meta"):
        tensors = model_tensors(assemble(family, config))
    names = {name for link in connect(family.rows(config), tensors) for name in link.theirs}
    written = json.loads(json.dumps(config_to(family, config, {})))
    assert config_from(family, written, names) == config


# ── Tables of names ───────────────────────────────────────────────────────────────────────────────────────

words = st.text("abcdefgh_", min_size=1, max_size=4)


@quick
@given(st.lists(st.lists(words, min_size=1, max_size=3), min_size=1, max_size=3), words)
def test_braces_stand_for_every_combination_once(groups: list[list[str]], between: str) -> None:
    text = between.join("{" + ",".join(group) + "}" for group in groups)
    expected = [""]
    for number, group in enumerate(groups):
        expected = [head + (between if number else "") + word for head in expected for word in group]
    assert braces(text) == expected
    assert len(braces(text)) == math.prod(map(len, groups))


@quick
@given(
    st.dictionaries(words, words, min_size=1, max_size=5),
    st.integers(1, 4),
    st.sets(st.sampled_from(["weight", "bias"]), min_size=1),
)
def test_a_table_of_names_leads_there_and_back(names: dict[str, str], layers: int, leaves: set[str]) -> None:
    pairs = {
        ours: f"{theirs}{i}" for i, (ours, theirs) in enumerate(names.items())
    }  # theirs are all different
    rows = [(f"layers.*.{theirs}", f"blocks.*.{ours}") for ours, theirs in pairs.items()]
    tensors = {
        f"blocks.{i}.{ours}.{leaf}": torch.zeros(1)
        for ours in pairs
        for i in range(layers)
        for leaf in leaves
    }
    links = connect(rows, tensors)
    assert sorted(link.ours[0] for link in links) == sorted(tensors)
    published = {link.theirs[0]: torch.zeros(1) for link in links}
    assert len(published) == len(tensors)
    back = connect([(ours, theirs) for theirs, ours in rows], published)
    assert {(b.ours, b.theirs) for b in back} == {(link.theirs, link.ours) for link in links}


@quick
@given(st.dictionaries(words, words, min_size=2, max_size=5), st.data())
def test_a_tensor_that_no_row_names_is_refused(names: dict[str, str], data: st.DataObject) -> None:
    left_out = data.draw(st.sampled_from(sorted(names)))
    rows = [(theirs, ours) for ours, theirs in names.items() if ours != left_out]
    with refused(HeedfulError, repr(left_out)):
        connect(rows, {name: torch.zeros(1) for name in names})


# ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────

FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "stop", "seed", "n", "stream", "stream_options", "response_format", "guided_json",
    "guided_choice", "guided_regex", "structured_outputs", "tools", "prompt", "messages", "user", "other",
)  # fmt: skip
bodies = st.dictionaries(st.sampled_from(FIELDS), jsons, max_size=4)


@quick
@given(st.binary(max_size=40) | jsons.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"n": NaN}')
@example(b"\xff\xfe{}")
def test_any_body_is_an_object_or_refused(body: bytes) -> None:
    found = read_or_refuse(lambda: parse_body(body))
    assert isinstance(found, dict) or found.status == 400


@quick
@given(bodies)
def test_any_fields_are_read_or_refused_by_their_names(body: dict[str, Any]) -> None:
    for read in (
        lambda fields: read_sampling(fields, 8, max_tokens=None, logprobs=None),
        lambda fields: read_inputs(fields, "prompt", 8),
        read_messages,
    ):
        found = read_or_refuse(lambda read=read: read(RequestFields(body)))
        if isinstance(found, OpenAIError):
            assert found.status == 400
            assert re.split(r"[.\[]", found.param or "")[0] in ("", "include_usage", *FIELDS)


def read_or_refuse(read: Callable[[], Any]) -> Any:
    """Return what was read, or the error by which it was refused."""
    try:
        return read()
    except HeedfulError as error:
        return as_openai_error(error)
