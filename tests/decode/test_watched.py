"""Text that is written while somebody watches: the same text, every pass seen, edits at every step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import heedful
from heedful import Watch
from heedful.core.errors import InputError
from heedful.decode.stepper import EagerStepper
from tests.properties.tiny import tiny
from tests.refusal import refused

PROMPTS = [[5, 6, 7, 8, 9], [10, 11]]


def test_a_stream_fills_the_watch_step_by_step() -> None:
    model, watch = tiny("gpt2"), Watch("blocks.0.output")
    lengths = [
        watch["blocks.0.output"].shape[1]
        for _ in heedful.stream(model, PROMPTS[0], max_tokens=4, eos=(), watch=watch)
    ]
    assert lengths == [5, 6, 7, 8]
    assert [v.shape[1] for v in watch.passes("blocks.0.output")] == [5, 1, 1, 1]


def test_what_a_watch_saw_of_a_text_is_what_one_pass_over_it_shows() -> None:
    model, watch, whole = tiny("mistral"), Watch("*"), Watch("*")
    written = heedful.generate(model, PROMPTS[0], max_tokens=9, eos=(), watch=watch)
    with torch.no_grad():
        model(torch.tensor([PROMPTS[0] + written[:-1]]), watch=whole)
    for name in whole:
        seen = torch.isfinite(watch[name])
        seen &= whole[name.replace("scores", "pattern")] > 0
        assert (watch[name] - whole[name]).abs().where(seen, 0.0).max() <= 1e-5, name


@pytest.mark.parametrize("family", ["gpt2", "mamba", "t5"])
def test_an_edit_is_made_at_every_step_and_steers_what_is_written(family: str) -> None:
    model, calls = tiny(family), list[int]()
    layer = "decoder.0.output" if family == "t5" else "blocks.0.output"

    def steer(x: Tensor, strength: float) -> Tensor:
        calls.append(x.shape[1])
        return x + strength * torch.linspace(-1, 1, x.shape[-1])

    plain = heedful.generate(model, PROMPTS, max_tokens=8, eos=())
    write = lambda strength: heedful.generate(
        model, PROMPTS, max_tokens=8, eos=(), watch=Watch(edit={layer: lambda x: steer(x, strength)})
    )
    assert write(0.0) == plain
    assert calls == [1 if family == "t5" else 5, *[1] * 7]
    assert write(8.0) != plain


def test_a_row_that_ends_early_stays_and_so_does_one_whose_context_is_full() -> None:
    model, watch = tiny("gpt2", context=8), Watch("embed.output", "head.logits")
    for eos in ((), list(range(0, 128, 3))):
        plain = heedful.generate(model, PROMPTS, max_tokens=20, eos=eos, details=True)
        seen = heedful.generate(model, PROMPTS, max_tokens=20, eos=eos, details=True, watch=watch)
        assert [g.ids for g in seen] == [g.ids for g in plain]
        assert [g.finish for g in seen] == [g.finish for g in plain]
        assert len(watch["embed.output"]) == 2
    assert heedful.generate(model, PROMPTS, max_tokens=20, eos=(), watch=watch) == heedful.generate(
        model, PROMPTS, max_tokens=20, eos=()
    )


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_the_rows_of_beams_are_the_beams_as_they_stand_with_their_own_past(family: str) -> None:
    model, watch = tiny(family), Watch("*.token", "head.logits")
    embed = "target_embed.token" if family == "t5" else "embed.token"
    options = {"beams": 3, "max_tokens": 6, "eos": ()}
    plain = heedful.generate(model, PROMPTS, n=3, **options)
    assert heedful.generate(model, PROMPTS, n=3, watch=watch, **options) == plain
    table = model.tables["target" if family == "t5" else "tokens"].table
    ids = (watch[embed][..., None, :] == table).all(-1).int().argmax(-1)
    shown = {tuple(row[-5:]) for row in ids.tolist()}
    best = {tuple(text[:5]) for row in plain for text in row}
    assert len(ids) == 6
    assert best <= shown


def test_samples_of_a_prompt_are_rows_beside_each_other() -> None:
    model, watch = tiny("gpt2"), Watch("head.logits", last=True)
    options = {"n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 5, "eos": ()}
    plain = heedful.generate(model, PROMPTS, **options)
    assert heedful.generate(model, PROMPTS, watch=watch, **options) == plain
    assert watch["head.logits"].shape[:2] == (4, 5)
    assert torch.equal(watch["head.logits"][0, 0], watch["head.logits"][1, 0])


def test_coverage_and_a_watch_look_at_the_same_steps() -> None:
    model, watch = tiny("t5"), Watch("decoder.0.cross.pattern")
    options = {"beams": 2, "coverage": 0.3, "max_tokens": 5, "eos": ()}
    plain = heedful.generate(model, PROMPTS, fast=False, **options)
    assert heedful.generate(model, PROMPTS, watch=watch, **options) == plain
    assert watch["decoder.0.cross.pattern"].shape == (4, 4, 5, 5)


def test_a_name_that_nothing_has_is_refused_before_the_first_token() -> None:
    model = tiny("gpt2")
    for watch in (Watch("blocks.9.output"), Watch(edit={"blocks.*.atn.q": lambda x: x})):
        with pytest.raises(InputError, match="nothing here is called"):
            next(heedful.stream(model, PROMPTS[0], watch=watch))


def test_what_cannot_be_watched_is_said() -> None:
    model, watch = tiny("gpt2"), Watch("head.logits")
    with refused(InputError, "guesses", hint="leave one out"):
        heedful.generate(model, PROMPTS[0], lookup=2, watch=watch)
    with refused(InputError, "contrastive does not go with watch"):
        heedful.generate(model, PROMPTS[0], contrastive=0.5, watch=watch)
    with refused(InputError, "is not a Watch"):
        heedful.generate(model, PROMPTS[0], watch="head.logits")  # type: ignore[arg-type]


def test_a_watch_forces_the_plain_path_whatever_stepper_is_given() -> None:
    model, watch = tiny("llama"), Watch("blocks.1.attn.pattern")
    fast = heedful.fast(model)
    plain = heedful.generate(EagerStepper(model), PROMPTS, max_tokens=6, eos=())
    assert heedful.generate(fast, PROMPTS, max_tokens=6, eos=(), watch=watch) == plain
    assert watch["blocks.1.attn.pattern"].shape == (2, 4, 10, 10)
