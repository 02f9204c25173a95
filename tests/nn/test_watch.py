"""A watch does what it was asked for, or says that it cannot; what it records is its own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import heedful
from heedful import Watch
from heedful.core.errors import InputError
from heedful.interp.observe.attention import attention
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


@pytest.mark.parametrize(
    ("pattern", "name", "meant"),
    [
        ("blocks.*.output", "blocks.1.output", True),
        ("blocks.*.output", "blocks.1.attn.output", False),
        ("blocks.**.output", "blocks.1.attn.output", True),
        ("*.output", "blocks.1.attn.output", True),
        ("*", "head.logits", True),
        ("blocks.0.*", "blocks.0.attn.q", True),
        ("blocks.*.attn.?", "blocks.0.attn.q", True),
        ("blocks.*.attn.?", "blocks.0.attn.heads", False),
        ("blocks.[01].input", "blocks.1.input", True),
        ("blocks.[!0].input", "blocks.0.input", False),
        ("blocks.*_norm.*", "blocks.0.attn_norm.scale", False),
        ("blocks.*.*_norm.*", "blocks.0.attn_norm.scale", True),
        ("blocks.0.attn", "blocks.0.attn.q", False),
    ],
)
def test_a_star_between_dots_is_one_word_and_at_either_end_any_number(
    pattern: str, name: str, meant: bool
) -> None:
    assert Watch(pattern).wants(name) is meant


@torch.no_grad()
def test_a_wildcard_that_meets_nothing_for_its_depth_alone_is_refused() -> None:
    model = tiny("gpt2")
    with refused(InputError, "blocks.*.pattern", "one word", hint="'blocks.**.pattern'"):
        model(ids(model, 1, 4), watch=Watch("blocks.*.pattern"))


@pytest.mark.parametrize("family", ["gpt2", "mistral", "t5", "luong", "deepseek-v3", "gla"])
@torch.no_grad()
def test_a_watch_of_a_prompt_and_its_steps_has_all_positions_as_one_pass_shows_them(family: str) -> None:
    model, whole, steps = tiny(family), Watch("*"), Watch("*")
    source, tokens = source_ids(model, 2, 6), ids(model, 2, 7)
    if hasattr(model, "start_token"):
        tokens[:, 0] = model.start_token  # type: ignore[assignment]
        state, rest = model.start(source, watch=steps), tokens[:, 1:]  # type: ignore[operator]
    else:
        state, rest = model.start(tokens[:, :4], watch=steps), tokens[:, 4:]  # type: ignore[operator]
    run(model, tokens, watch=whole)
    for t in range(rest.shape[1]):
        model.step(rest[:, t : t + 1], state, watch=steps)  # type: ignore[operator]
    names = [n for n in whole if not (family == "gla" and n.endswith("pattern"))]
    assert set(names) <= set(steps)
    for name in names:
        a, b = whole[name], steps[name]
        seen = torch.isfinite(b)
        seen &= whole[name.replace("scores", "pattern")] > 0 if "scores" in name else True
        seen &= b != 0 if name.endswith(".bias") else True
        assert a.shape == b.shape, name
        assert (a - b).abs().where(seen, 0.0).max() <= 1e-5, name
    assert len(steps.passes("head.logits")) == 1 + rest.shape[1]


@torch.no_grad()
def test_another_text_or_another_state_begins_anew() -> None:
    model, watch = tiny("gpt2"), Watch("blocks.0.output")
    state = model.start(ids(model, 1, 4), watch=watch)  # type: ignore[operator]
    model.step(ids(model, 1, 1), state, watch=watch)  # type: ignore[operator]
    assert watch["blocks.0.output"].shape[1] == 5
    model(ids(model, 1, 3), watch=watch)
    assert watch["blocks.0.output"].shape[1] == 3
    model.step(ids(model, 1, 1), state, watch=watch)  # type: ignore[operator]
    assert watch["blocks.0.output"].shape[1] == 1
    state.crop(2)
    model.step(ids(model, 1, 1), state, watch=watch)  # type: ignore[operator]
    assert watch["blocks.0.output"].shape[1] == 1


@torch.no_grad()
def test_watches_add_up_to_one_that_edits_in_order_and_records_for_each() -> None:
    model, name = tiny("gpt2"), "blocks.0.output"
    tokens, plain = ids(model, 2, 5), Watch(name)
    model(tokens, watch=plain)
    double = Watch(name, edit={name: lambda x: 2 * x})
    add = Watch("blocks.1.output", edit={"blocks.*.output": lambda x: x + 1})
    both = double + add
    logits = model(tokens, watch=both)
    last = Watch(edit={name: lambda x: 2 * x + 1, "blocks.1.output": lambda x: x + 1})
    assert torch.equal(logits, model(tokens, watch=last))
    assert torch.equal(both[name], 2 * plain[name] + 1)
    assert torch.equal(double[name], both[name])
    assert set(both) == {name, "blocks.1.output"}
    assert (set(double), set(add)) == ({name}, {"blocks.1.output"})
    with pytest.raises(InputError, match="nothing here is called"):
        model(tokens, watch=Watch("blocks.0.nothing") + add)
    three = Watch("embed.token") + both
    assert torch.equal(double[name], 2 * plain[name] + 1)
    model(tokens, watch=three)
    assert len(three) == 3
    both.clear()
    assert len(both) == len(double) == len(add) == 0


def test_what_is_recorded_may_be_detached_and_kept_elsewhere() -> None:
    model, name = tiny("gpt2"), "blocks.0.output"
    plain, apart, away = Watch(name), Watch(name, detach=True), Watch(name, device="meta")
    logits = model(ids(model, 2, 5), watch=plain + apart + away)
    assert plain[name].requires_grad
    assert not apart[name].requires_grad
    assert torch.equal(plain[name], apart[name])
    assert away[name].is_meta
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("left", [True, False])
@torch.no_grad()
def test_only_the_last_token_of_each_row_is_kept_where_that_is_enough(left: bool) -> None:
    model, whole, last = tiny("llama"), Watch("*"), Watch("*", last=True)
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[0, :2] = not left
    valid[0, 4:] = left
    model(ids(model, 2, 6), valid=valid, watch=whole + last)
    at = [5 if left else 3, 5]
    for name in last:
        axis = whole.positions[name]
        assert axis is not None
        value = torch.stack([whole[name][b].select(axis, at[b]) for b in range(2)]).unsqueeze(axis)
        assert torch.equal(last[name], value), name
        assert not last[name]._is_view(), name


@torch.no_grad()
def test_a_watch_that_is_cleared_misses_its_names_again() -> None:
    model, watch = tiny("gpt2"), Watch("head.logits")
    model(ids(model, 1, 3), watch=watch)
    watch.clear()
    assert len(watch) == 0
    with pytest.raises(InputError, match="nothing here is called"):
        model.encode(ids(model, 1, 3), watch=watch)  # type: ignore[operator]


@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba"])
def test_a_norm_can_be_frozen_by_an_edit_of_its_scale(family: str) -> None:
    """With the scale of another pass in its place a norm is linear in what it is given, but for β."""
    model, watch = tiny(family), Watch("blocks.norm.scale", "blocks.output")
    tokens = ids(model, 1, 4)
    model(tokens, watch=watch)
    scale, bias = watch["blocks.norm.scale"].detach(), getattr(model.blocks.norm, "bias", None)  # type: ignore[union-attr]
    frozen = Watch(
        "blocks.output",
        edit={"blocks.1.output": lambda x: 2 * x, "blocks.norm.scale": lambda _: scale},
    )
    model(tokens, watch=frozen)
    shift = 0.0 if bias is None else bias
    wanted = 2 * (watch["blocks.output"] - shift) + shift
    assert (frozen["blocks.output"] - wanted).abs().max() <= 1e-5


@torch.no_grad()
def test_an_expert_can_be_silenced_for_one_of_its_tokens() -> None:
    model = tiny("deepseek-v3")
    tokens, name = ids(model, 1, 5), "blocks.1.ffn.experts.output"
    watch = Watch("blocks.1.ffn.*")
    model(tokens, watch=watch)
    weighted = watch[name] * watch["blocks.1.ffn.weights"][..., None]
    total = weighted.sum(2) + watch["blocks.1.ffn.shared.output"]
    assert (total - watch["blocks.1.ffn.output"]).abs().max() <= 1e-5

    def silence(x: Tensor) -> Tensor:
        x[0, 2, 0] = 0
        return x

    edited = Watch("blocks.1.ffn.output", edit={name: silence})
    model(tokens, watch=edited)
    lost = (watch["blocks.1.ffn.output"] - edited["blocks.1.ffn.output"])[0]
    assert (lost[2] - weighted[0, 2, 0]).abs().max() <= 1e-5
    assert lost[[0, 1, 3, 4]].abs().max() <= 1e-6


@torch.no_grad()
def test_the_last_token_of_each_pass_adds_up_over_steps() -> None:
    model, whole, last = tiny("llama"), Watch("*"), Watch("*", last=True)
    tokens, both = ids(model, 2, 6), whole + last
    state = model.start(tokens[:, :4], watch=both)  # type: ignore[operator]
    for t in (4, 5):
        model.step(tokens[:, t : t + 1], state, watch=both)  # type: ignore[operator]
    for name in whole:
        axis = whole.positions[name]
        assert axis is not None
        length = whole[name].shape[axis]
        assert torch.equal(last[name], whole[name].narrow(axis, length - 3, 3)), name


@torch.no_grad()
def test_steps_over_a_window_of_ones_own_join_all_but_what_stands_in_its_slots() -> None:
    model, watch = tiny("mistral", window=4), Watch("blocks.0.attn.*")
    tokens = ids(model, 1, 30)
    state = model.start(tokens[:, :24])  # type: ignore[operator]
    for t in range(24, 30):
        model.step(tokens[:, t : t + 1], state, watch=watch)  # type: ignore[operator]
    assert watch["blocks.0.attn.q"].shape[2] == watch["blocks.0.attn.heads"].shape[2] == 6
    assert watch["blocks.0.attn.pattern"].shape[2] == 1
    pattern, v = watch["blocks.0.attn.pattern"], watch["blocks.0.attn.v"].repeat_interleave(2, 1)
    assert (pattern @ v - watch["blocks.0.attn.heads"][:, :, -1:]).abs().max() <= 1e-5
