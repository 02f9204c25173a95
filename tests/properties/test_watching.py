"""Looking inside: patterns are real, watching changes nothing, editing does."""

from __future__ import annotations

import pytest
import torch

from heedful import Watch
from tests.properties.tiny import ALL, ids, patterns_of, run, tiny


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_watching_everything_changes_nothing_beyond_rounding(family: str) -> None:
    model = tiny(family)
    tokens, watch = ids(model, 2, 7), Watch("*")
    assert (run(model, tokens, watch=watch) - run(model, tokens)).abs().max() <= 1e-5
    assert len(watch) > 3
    assert all(torch.isfinite(watch[name][watch[name] > -1e30]).all() for name in watch)


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_softmax_patterns_sum_to_one_and_weigh_the_values_into_the_heads(family: str) -> None:
    model = tiny(family)
    tokens = ids(model, 2, 7)
    kinds = patterns_of(model)
    open_, fused = Watch("*.pattern", "*.v", "*.heads"), Watch("*.heads")
    run(model, tokens, watch=open_)
    run(model, tokens, watch=fused)
    for name, kind in kinds.items():
        pattern, stem = open_[name], name.removesuffix("pattern")
        assert kind in ("softmax", "effective"), name
        if kind == "softmax":
            assert (pattern.sum(-1) - 1).abs().max() <= 1e-5, name
            assert pattern.min() >= 0
        values = open_[stem + "v"]
        if values.shape[1] != pattern.shape[1]:  # groups of heads share their values
            values = values.repeat_interleave(pattern.shape[1] // values.shape[1], 1)
        assert (pattern @ values - open_[stem + "heads"]).abs().max() <= 1e-4, name
        assert (open_[stem + "heads"] - fused[stem + "heads"]).abs().max() <= 1e-4, name


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_pattern_has_one_row_per_query_and_one_column_per_key(family: str) -> None:
    model = tiny(family)
    watch = Watch("*.pattern")
    run(model, ids(model, 2, 7), watch=watch)
    for name in watch:
        keys = (
            6
            if ".cross." in name or (name.startswith(("encoder", "decoder")) and watch[name].shape[1] == 1)
            else 7
        )
        assert watch[name].shape[0] == 2
        assert watch[name].shape[-1] in (keys, 6, 7), name


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_row_whose_keys_are_all_masked_has_a_zero_pattern(family: str) -> None:
    model = tiny(family)
    tokens, valid = ids(model, 2, 7), torch.ones(2, 7, dtype=torch.bool)
    valid[0] = False
    watch = Watch("*.pattern")
    run(model, tokens, valid=valid, watch=watch)
    kinds = patterns_of(model)
    for name in watch:
        if (
            ".cross." in name
            or name.startswith("encoder")
            or watch[name].shape[-1] != 7
            or kinds[name] != "softmax"
        ):
            continue
        assert watch[name][0].abs().max() == 0, name


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_editing_a_pattern_changes_the_output(family: str) -> None:
    model = tiny(family)
    tokens = ids(model, 2, 7)
    plain = run(model, tokens)
    for name in patterns_of(model):
        edited = run(model, tokens, watch=Watch(edit={name: lambda p: p.flip(-1).tril() * 0.5}))
        assert (edited - plain).abs().max() > 1e-6, name


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_putting_back_what_was_seen_changes_nothing(family: str) -> None:
    model = tiny(family)
    tokens = ids(model, 2, 7)
    watch = Watch("*.pattern")
    run(model, tokens, watch=watch)
    seen = dict(watch.values)
    again = run(model, tokens, watch=Watch(edit={name: lambda p, v=value: v for name, value in seen.items()}))
    assert (again - run(model, tokens)).abs().max() <= 1e-5


@torch.no_grad()
def test_a_name_that_was_not_watched_is_an_error_with_the_nearest() -> None:
    from heedful.errors import InputError

    model = tiny(ALL[0])
    watch = Watch("blocks.*.attn.pattern")
    with pytest.raises(InputError, match="pass this watch to a model first"):
        watch["blocks.0.attn.pattern"]
    run(model, ids(model, 1, 4), watch=watch)
    with pytest.raises(InputError, match="was recorded"):
        watch["blocks.0.attn.patern"]
