"""A watch does what it was asked for, or says that it cannot; what it records is its own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import heedful
from heedful import Watch
from heedful.errors import InputError
from heedful.inspect.attention import attention
from heedful.models.base import Model
from tests.properties.tiny import ids, run, source_ids, tiny
from tests.refusal import refused


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("blocks.0.atn.pattern", "'blocks.0.attn.pattern'"),
        ("blocks.7.output", "'blocks.1.output'"),
        ("block.0.output", "'blocks.0.output'"),
        ("head.logit", "'head.logits'"),
    ],
)
@torch.no_grad()
def test_a_name_that_nothing_has_is_refused_with_the_nearest(name: str, near: str) -> None:
    model = tiny("gpt2")
    for watch in (Watch(name), Watch(edit={name: lambda x: x * 0}), Watch("*", edit={name: lambda x: x})):
        with pytest.raises(InputError, match="nothing here is called") as caught:
            model(ids(model, 1, 4), watch=watch)
        assert name in str(caught.value)
        assert near in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["gpt2", "lstm", "mamba", "transformer"])
@torch.no_grad()
def test_every_way_to_call_a_model_refuses_such_a_name(family: str) -> None:
    model = tiny(family)
    bad, tokens, source = Watch("nowhere.0.output"), ids(model, 1, 3), source_ids(model, 1, 4)
    both = (source, tokens) if family == "transformer" else (tokens,)
    state = model.start(source)  # type: ignore[operator]
    calls = [lambda: model(*both, watch=bad), lambda: model.encode(source, watch=bad)]  # type: ignore[operator]
    calls += [lambda: model.step(tokens, state, watch=bad)]  # type: ignore[operator]
    calls += [lambda: model.hidden(*both, watch=bad)] if family == "transformer" else []  # type: ignore[operator]
    for call in calls:
        with pytest.raises(InputError, match="nothing here is called"):
            call()


@torch.no_grad()
def test_an_edit_by_wildcard_that_meets_nothing_is_refused_a_record_is_only_empty() -> None:
    model = tiny("gpt2")
    tokens, watch = ids(model, 1, 4), Watch("*.cross.pattern")
    model(tokens, watch=watch)
    assert len(watch) == 0
    with pytest.raises(InputError, match="nothing here is called"):
        model(tokens, watch=Watch(edit={"blocks.*.atn.*": lambda x: x * 0}))


@torch.no_grad()
def test_a_watch_that_has_met_its_names_may_be_used_where_some_do_not_come() -> None:
    """A step of an encoder-decoder runs the decoder alone: what the whole pass met is not missed there."""
    model = tiny("transformer")
    source, tokens = source_ids(model, 1, 4), ids(model, 1, 3)
    watch = Watch("encoder.0.output", "decoder.0.output")
    model(source, tokens, watch=watch)
    model.step(tokens[:, :1], model.start(source), watch=watch)  # type: ignore[operator]
    assert watch["decoder.0.output"].shape[1] == 1
    fresh, state = Watch("encoder.0.output", "decoder.0.output"), model.start(source)  # type: ignore[operator]
    with refused(InputError, "decoder, head, target_embed", hint="'decoder.0.output'"):
        model.step(tokens[:, :1], state, watch=fresh)  # type: ignore[operator]


@torch.no_grad()
def test_a_name_that_this_call_does_not_compute_is_refused_too() -> None:
    model = tiny("gpt2")
    with refused(InputError, "'head.logits'", "blocks, embed"):
        model.encode(ids(model, 1, 3), watch=Watch("head.logits"))  # type: ignore[operator]


def shifted(x: Tensor) -> Tensor:
    return x.mul_(0.5).add_(1.0) if x.is_floating_point() else x


@pytest.mark.parametrize("family", ["gpt2", "mistral", "lstm", "mamba", "gla", "deepseek-v3", "transformer"])
@torch.no_grad()
def test_an_edit_in_place_is_the_same_as_one_that_makes_a_new_value(family: str) -> None:
    """Neither what else is recorded, nor the cache, nor the weights may change under its hands."""
    model = tiny(family)
    tokens, before = ids(model, 1, 5), copy.deepcopy(model.state_dict())
    every = Watch("*")
    run(model, tokens, watch=every)
    for name in every:
        one = Watch("*", edit={name: shifted})
        other = Watch("*", edit={name: lambda x: shifted(x.clone())})
        a, b = run(model, tokens, watch=one), run(model, tokens, watch=other)
        assert torch.equal(a, b), name
        assert all(torch.equal(one[n], other[n]) for n in other), name
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def decode(model: Model, tokens: Tensor, watch: Watch | None) -> Tensor:
    """The logits after a step of one token that somebody changed, then two plain ones."""
    state = model.start(source_ids(model, 1, 4))  # type: ignore[operator]
    model.step(tokens[:, 4:5], state, watch=watch)  # type: ignore[operator]
    return torch.cat([model.step(tokens[:, t : t + 1], state) for t in (5, 6)], 1)  # type: ignore[operator]


@pytest.mark.parametrize("family", ["gpt2", "mistral", "transformer", "luong"])
@pytest.mark.parametrize("word", ["k", "v"])
@torch.no_grad()
def test_an_edit_in_place_of_keys_leaves_the_cache_alone(family: str, word: str) -> None:
    model = tiny(family)
    watch = lambda change: Watch(edit={f"*.{word}": change})
    tokens = ids(model, 1, 7)
    a, b = (decode(model, tokens, watch(f)) for f in (shifted, lambda x: shifted(x.clone())))
    assert torch.equal(a, b)


@pytest.mark.parametrize("family", ["gpt2", "mistral"])
@torch.no_grad()
def test_what_a_step_recorded_does_not_change_with_the_cache(family: str) -> None:
    model = tiny(family, **({"window": 4} if family == "mistral" else {}))
    state = model.start(ids(model, 1, 6), length=30)  # type: ignore[operator]
    watch = Watch("blocks.0.attn.k", "blocks.0.attn.v")
    model.step(ids(model, 1, 1), state, watch=watch)  # type: ignore[operator]
    kept = {name: watch[name].clone() for name in watch}
    for t in range(14):
        model.step(ids(model, 1, 1, seed=t), state)  # type: ignore[operator]
    state.crop(state.past - 2)
    model.step(ids(model, 1, 1, seed=99), state)  # type: ignore[operator]
    assert all(torch.equal(watch[name], kept[name]) for name in kept)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[:, :1], r"\(1, 1, 32\)"),
        (lambda x: x[0], r"\(4, 32\)"),
        (lambda x: x.double(), "float64"),
        (lambda x: x.mean(), r"\(\)"),
        (lambda x: None, "NoneType"),
        (lambda x: 0.0, "float"),
    ],
)
@torch.no_grad()
def test_an_edit_that_gives_something_of_another_shape_or_type_is_refused(change: object, said: str) -> None:
    model = tiny("gpt2")
    with pytest.raises(InputError, match=said) as caught:
        model(ids(model, 1, 4), watch=Watch(edit={"blocks.0.output": change}))  # type: ignore[dict-item]
    assert "blocks.0.output" in str(caught.value)
    assert "(1, 4, 32)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recorded_value_is_part_of_the_graph_and_an_edited_one_too() -> None:
    model = tiny("gpt2")
    tokens = ids(model, 1, 4)
    watch = Watch("embed.token", "blocks.0.attn.q")
    total = model(tokens, watch=watch).sum()
    grads = torch.autograd.grad(total, [watch["embed.token"], watch["blocks.0.attn.q"]])
    assert all(g.abs().max() > 0 for g in grads)
    factor = torch.ones((), requires_grad=True)
    edited = model(tokens, watch=Watch(edit={"blocks.0.output": lambda x: x * factor}))
    (slope,) = torch.autograd.grad(edited.square().sum(), factor)
    assert slope.abs() > 0


@torch.no_grad()
def test_a_pattern_that_was_misspelt_is_refused_by_attention_too() -> None:
    model = tiny("gpt2")
    with pytest.raises(InputError, match=r"blocks\.0\.attn"):
        attention(model, [1, 2, 3], only=["blocks.0.atn"])


@torch.no_grad()
def test_a_bloom_in_bfloat16_can_be_watched() -> None:
    """Its distances are float32, its values are not."""
    model = heedful.build("bloom", vocab=50, dim=24, layers=1, heads=6, dtype=torch.bfloat16, seed=0).eval()
    tokens, watch = torch.randint(50, (2, 7)), Watch("*.pattern")
    assert (model(tokens, watch=watch) - model(tokens)).abs().max() <= 0.02
    assert watch["blocks.0.attn.pattern"].dtype == torch.bfloat16
