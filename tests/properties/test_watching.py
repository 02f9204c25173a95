"""Looking inside: patterns are real, watching changes nothing, editing does."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful import Watch
from heedful.core.errors import InputError
from heedful.models.base import Model
from heedful.nn.attention.disentangled import ConvBlock
from heedful.nn.attention.multi_head import SinkAttention
from heedful.nn.block import Block, ParallelBlock
from heedful.nn.context import Part
from tests.counting import operations
from tests.properties.tiny import (
    ALL,
    GENERATORS,
    ids,
    module_at,
    patterns_of,
    run,
    shape_of,
    source_ids,
    tiny,
)
from tests.refusal import refused


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
            sunk = isinstance(module_at(model, name.removesuffix(".pattern")), SinkAttention)
            assert (pattern.sum(-1) < 0.99 if sunk else (pattern.sum(-1) - 1).abs() <= 1e-5).all(), name
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


def stepped(model: Model, watch: Watch, prompt: int = 4) -> torch.Tensor:
    """Two tokens at once after a prompt, as speculation reads them."""
    state = model.start(source_ids(model, 2, prompt))  # type: ignore[operator]
    return model.step(ids(model, 2, 2), state, watch=watch)  # type: ignore[operator]


@pytest.mark.parametrize("family", GENERATORS)
@torch.no_grad()
def test_a_cached_step_shows_a_pattern_over_all_it_remembers_or_says_that_it_has_none(family: str) -> None:
    model = tiny(family)
    watch = Watch("*.pattern", "*.v", "*.heads")
    plain = stepped(model, watch)
    for name in patterns_of(model):
        if name.startswith("encoder."):
            continue
        if name in watch:
            pattern, v, heads = (watch[name.replace("pattern", word)] for word in ("pattern", "v", "heads"))
            v = v.repeat_interleave(pattern.shape[1] // v.shape[1], 1)
            assert pattern.shape[-2:] == (2, v.shape[-2]), name
            assert (pattern @ v - heads).abs().max() <= 1e-4, name
            continue
        for asked in (Watch(name), Watch(edit={name: lambda p: p}), Watch(edit={"*.pattern": lambda p: p})):
            with refused(InputError, hint="the whole text"):
                stepped(model, asked)
    assert (plain - stepped(model, Watch())).abs().max() <= 1e-4


@pytest.mark.parametrize("family", ["mamba", "mamba2", "s4", "linear", "gla", "based", "olmo-hybrid"])
@torch.no_grad()
def test_a_prompt_read_into_an_empty_state_has_the_pattern_of_a_plain_pass(family: str) -> None:
    model, watch, plain = tiny(family), Watch("*.pattern"), Watch("*.pattern")
    tokens = ids(model, 2, 5)
    model.step(tokens, model.new_state(2), watch=watch)  # type: ignore[operator]
    model(tokens, watch=plain)
    assert list(watch) == list(plain)
    assert all((watch[n] - plain[n]).abs().max() <= 1e-5 for n in plain)


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_what_a_pattern_leaves_out_is_declared_by_its_part(family: str) -> None:
    """A part whose output is more than o(heads) says what else there is; softmax attention has nothing."""
    model = tiny(family)
    for name in patterns_of(model):
        part = module_at(model, name.removesuffix(".pattern"))
        assert isinstance(part, Part)
        words = {"D": "skip", "gate": "gate", "head_norm": "norm"}
        beside = [word for word in words if hasattr(part, word)]
        assert bool(part.pattern_leaves_out) == bool(beside), name
        assert all(words[word] in part.pattern_leaves_out for word in beside), name


@torch.no_grad()
def test_a_name_that_was_not_watched_is_an_error_with_the_nearest() -> None:
    model = tiny(ALL[0])
    watch = Watch("blocks.*.attn.pattern")
    with refused(InputError, "blocks.0.attn.pattern", hint="pass this watch"):
        watch["blocks.0.attn.pattern"]
    run(model, ids(model, 1, 4), watch=watch)
    with pytest.raises(InputError, match="was recorded"):
        watch["blocks.0.attn.patern"]


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_the_names_of_a_model_are_those_that_a_pass_shows_with_their_shapes(family: str) -> None:
    model, watch = tiny(family), Watch("*")
    names = model.names()
    run(model, ids(model, 2, 7), watch=watch)
    assert list(names) == list(watch)
    sizes = {"B": 2, "T": 7, "S": 6}
    for name, shape in names.items():
        assert tuple(sizes.get(n, n) for n in shape) == watch[name].shape, name  # type: ignore[call-overload]
    if family == "gpt2":
        assert model.names(batch=3, length=5)["head.logits"][:2] == (3, 5)


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_block_shows_what_each_of_its_parts_adds_and_the_sums_between(family: str) -> None:
    model, watch = tiny(family), Watch("*")
    run(model, ids(model, 2, 7), watch=watch)
    for path in {name.rpartition(".")[0] for name in watch}:
        block = module_at(model, path) if path[-1].isdigit() else None
        if not isinstance(block, Block | ParallelBlock) or isinstance(block, ConvBlock):
            continue
        x = watch[f"{path}.input"]
        for name in block.names:
            x = x + watch[f"{path}.{name}.output"]
            if isinstance(block, Block) and block.order == "post":
                assert (x - watch[f"{path}.{name}_norm.input"]).abs().max() <= 1e-6, path
                x = watch[f"{path}.{name}_norm.output"]
            if isinstance(block, Block) and name != block.names[-1]:
                assert torch.equal(x, watch[f"{path}.after_{name}"]), path
        assert (x - watch[f"{path}.output"]).abs().max() <= 1e-6, path


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_edits_of_everything_that_change_nothing_leave_the_logits_alone(family: str) -> None:
    model, watch = tiny(family), Watch("*")
    tokens = ids(model, 2, 5)
    plain = run(model, tokens, watch=watch)
    edited = run(model, tokens, watch=Watch(edit={name: lambda x: x for name in watch}))
    assert (edited - plain).abs().max() <= 2e-5


@pytest.mark.parametrize("family", ["llama", "deepseek-v3", "mamba", "mamba2", "gla", "olmo-hybrid"])
@torch.no_grad()
def test_each_value_alone_can_be_recorded_and_edited_without_a_change(family: str) -> None:
    model = tiny(family)
    tokens = ids(model, 2, 5)
    plain = run(model, tokens)
    for name in (n for n in model.names() if not n.startswith("blocks.0")):
        recorded = run(model, tokens, watch=Watch(name))
        edited = run(model, tokens, watch=Watch(edit={name: lambda x: x}))
        assert (recorded - plain).abs().max() <= 1e-5, name
        assert (edited - plain).abs().max() <= 1e-5, name


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_unwatched_nothing_is_shown_and_no_path_is_made(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, shown = tiny(family), list[str]()
    monkeypatch.setattr(Watch, "show", lambda self, name, value, axes: shown.append(name) or value)
    monkeypatch.setattr("heedful.nn.context.replace", lambda *a, **k: pytest.fail("a context was copied"))
    run(model, ids(model, 2, 5))
    assert not shown


@pytest.mark.parametrize("family", ["gpt2", "llama", "deepseek-v3", "mamba", "t5"])
@torch.no_grad()
def test_unwatched_a_pass_computes_nothing_for_a_watch(family: str) -> None:
    """What only a watch asks for, such as the scale of a norm or an expert's output, is not computed."""
    model = tiny(family)
    tokens = ids(model, 2, 5)
    plain, one, every = (
        operations(lambda watch=watch: run(model, tokens, watch=watch))
        for watch in (None, Watch("head.logits"), Watch("*"))
    )
    assert plain <= one < every


@pytest.mark.parametrize("family", GENERATORS)
@torch.no_grad()
def test_a_watched_generation_writes_the_same_text_and_shows_every_position(family: str) -> None:
    model, watch = tiny(family), Watch("*.output", "head.logits")
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12]]
    plain = heedful.generate(model, prompts, max_tokens=6, eos=())
    assert heedful.generate(model, prompts, max_tokens=6, eos=(), watch=watch) == plain
    read = (
        6 if shape_of(family) == "seq2seq" else 5 + 5
    )  # the prompt, or the start token; the last is not read
    assert watch["head.logits"].shape[:2] == (2, read)
    last = watch["head.logits"][:, -6:].argmax(-1)
    assert last.tolist() == plain
