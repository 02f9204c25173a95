"""The fast steppers say what the plain one says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import heedful
from heedful.core.errors import InputError
from heedful.decode import fast as choosing
from heedful.decode.fast import MAX_ROWS, NumbaStepper, choose_stepper, fast
from heedful.decode.quantize import quantize
from heedful.decode.stepper import EagerStepper
from heedful.models.base import Model
from heedful.nn.context import Watch
from tests.decode.toy import FAST
from tests.properties.tiny import DECODERS, ids, tiny

pytest.importorskip("numba")


def worst_step(model: Model, rows: int = 1, pad: int = 0, steps: int = 8, length: int = 20) -> float:
    """The largest difference of any logit over some steps, fast against plain."""
    prompt = ids(model, rows, 6)
    valid = torch.arange(6).expand(rows, 6) >= torch.tensor([[pad if r == 0 else 0] for r in range(rows)])
    quick, plain = NumbaStepper(model), EagerStepper(model)
    got, logits = (s.prefill(prompt, valid if pad else None, length) for s in (quick, plain))
    worst = float((got - logits).abs().max())
    for _ in range(steps):
        tokens = logits.argmax(-1)
        got, logits = quick.step(tokens), plain.step(tokens)
        worst = max(worst, float((got - logits).abs().max()))
    assert quick.past == plain.past == 6 + steps
    assert quick.fallback_reason is None
    return worst


@pytest.mark.parametrize("family", FAST)
def test_a_step_over_rows_equals_the_plain_step(family: str) -> None:
    assert worst_step(tiny(family)) < 1e-5


@pytest.mark.parametrize("family", ["gpt2", "llama", "bloom"])
def test_padded_rows_step_as_the_plain_stepper_does(family: str) -> None:
    assert worst_step(tiny(family), rows=3, pad=2) < 1e-5


@pytest.mark.parametrize("pad", [0, 2])
@pytest.mark.parametrize("family", ["gpt3", "mistral", "qwen2"])
def test_a_window_rolls_over_rows_as_it_does_plainly(family: str, pad: int) -> None:
    assert worst_step(tiny(family), rows=2, pad=pad, steps=50, length=64 if family == "gpt3" else 0) < 1e-5


def test_what_rows_wrote_into_a_window_is_taken_back_and_continued_plainly() -> None:
    model = tiny("mistral")
    quick, plain, prompt = NumbaStepper(model), EagerStepper(model), ids(model, 2, 17)
    logits = quick.prefill(prompt)
    plain.prefill(prompt)
    for n in range(40):
        tokens = logits.argmax(-1)
        logits = plain.step(tokens)
        assert torch.allclose(quick.step(tokens), logits, atol=1e-5)
        if n % 5 == 4:
            for stepper in (quick, plain):
                stepper.crop(stepper.past - 3)
                stepper.extend(tokens[:, None].expand(2, 2 + n % 4))
    assert quick.fallback_reason is None
    with pytest.raises(InputError, match="at most 6"):
        quick.crop(quick.past - 7)


@pytest.mark.parametrize("act", ["relu", "gelu", "silu", "tanh", "relu2"])
def test_every_activation_is_the_models_own(act: str) -> None:
    assert worst_step(tiny("gpt2", act=act), steps=2) < 1e-5


def test_several_threads_give_what_one_gives() -> None:
    model = tiny("llama")
    torch.set_num_threads(3)
    try:
        assert worst_step(model, rows=2, steps=40 - 26) < 1e-5
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_pieces_of_matrices_that_threads_share_give_the_same_to_the_bit(kind: str) -> None:
    model = heedful.build("llama", vocab=700, dim=256, layers=2, heads=8, hidden=800, context=64).eval()
    model = quantize(model, "int8") if kind == "int8" else model
    from heedful.kernels.cpu.rows import CHUNKS

    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            quick = NumbaStepper(model)
            logits = [quick.prefill(ids(model, 1, 40), None, 64).clone()]
            assert quick.rows is not None
            assert int(quick.rows.code[:, CHUNKS].max()) > 5
            logits += [quick.step(torch.tensor([token])).clone() for token in range(6)]
            results.append(torch.cat([*logits, *quick.extend(torch.arange(20)[None]).clone()]))
    finally:
        torch.set_num_threads(1)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert (results[0][0] - model(ids(model, 1, 40))[0, -1]).abs().max() < 1e-4


@pytest.mark.parametrize("family", sorted(set(DECODERS) - set(FAST)))
def test_a_model_with_other_parts_is_stepped_plainly(family: str) -> None:
    model = tiny(family)
    quick, plain, prompt = NumbaStepper(model), EagerStepper(model), ids(tiny(family), 1, 5)
    tokens = quick.prefill(prompt, None, 8).argmax(-1)
    plain.prefill(prompt, None, 8)
    assert torch.equal(quick.step(tokens), plain.step(tokens))
    assert quick.fallback_reason is not None


def test_the_cache_grows_and_rows_are_reordered_and_cropped_in_between() -> None:
    model = tiny("llama")
    quick, plain, prompt = NumbaStepper(model), EagerStepper(model), ids(model, 2, 4)
    logits = quick.prefill(prompt)  # no length said: no room is left after the prompt
    assert torch.allclose(plain.prefill(prompt), logits, atol=1e-5)
    for n in range(9):
        tokens = logits.argmax(-1)
        logits = plain.step(tokens)
        assert torch.allclose(quick.step(tokens), logits, atol=1e-5)
        for stepper in (quick, plain):
            if n == 3:
                stepper.reorder(torch.tensor([1, 0]))
            if n == 5:
                stepper.crop(7)
                stepper.extend(torch.tensor([[5, 6], [7, 8]]))


def test_weights_that_moved_are_found_again() -> None:
    model, prompt = tiny("gpt2"), ids(tiny("gpt2"), 1, 4)
    quick = NumbaStepper(model)
    quick.prefill(prompt, None, 9)
    before = quick.step(prompt[:, 0]).clone()
    model.embed.token.weight.data = model.embed.token.weight.data * 2  # type: ignore[union-attr, operator]
    model.tie()
    quick.prefill(prompt, None, 9)
    after = quick.step(prompt[:, 0])
    plain = EagerStepper(model)
    plain.prefill(prompt, None, 9)
    assert torch.allclose(after, plain.step(prompt[:, 0]), atol=1e-5)
    assert not torch.allclose(after, before, atol=1e-2)


def test_a_token_outside_the_vocabulary_or_beyond_the_positions_is_an_error() -> None:
    model = tiny("gpt2")
    quick = NumbaStepper(model)
    quick.prefill(ids(model, 1, 62), None, 70)
    with pytest.raises(InputError, match="vocabulary"):
        quick.step(torch.tensor([128]))
    quick.step(torch.tensor([1]))
    quick.step(torch.tensor([1]))
    with pytest.raises(InputError, match="64"):
        quick.step(torch.tensor([1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_two_bytes_are_read_as_they_are(dtype: torch.dtype) -> None:
    model = heedful.build("llama", vocab=96, dim=64, layers=2, heads=4, hidden=96, context=64, seed=0).to(
        dtype
    )
    quick, wide = NumbaStepper(model.eval()), EagerStepper(copy.deepcopy(model).float())
    got, logits = (stepper.prefill(ids(model, 2, 9), None, 12) for stepper in (quick, wide))
    for n in range(8):  # past the room that was asked for
        assert got.dtype == torch.float32
        assert torch.allclose(got, logits, atol=1e-5)
        tokens = logits.argmax(-1)
        got, logits = quick.step(tokens), wide.step(tokens)
        if n == 3:
            got, logits = (s.extend(torch.stack((tokens, tokens), 1))[:, -1] for s in (quick, wide))
    assert quick.fallback_reason is None
    quick.step(tokens, Watch())  # the model's own step continues on the same keys
    assert all(p.dtype == dtype for p in model.parameters())


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_quantised_steps_differ_from_plain_ones_far_less_than_rounding_does(family: str, kind: str) -> None:
    model = quantize(tiny(family), kind, group=16)
    assert worst_step(model, rows=2) < 1e-3


def test_the_fast_stepper_of_a_model_on_a_cpu_is_the_one_over_rows() -> None:
    assert isinstance(fast(tiny("gpt2")), NumbaStepper)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"beams": 2}, {"temperature": 0.9, "seed": 3}])
def test_generate_writes_the_same_with_either_stepper(settings: dict[str, Any]) -> None:
    model, prompts = tiny("llama"), [[5, 6, 7, 8], [9, 10]]
    plain = heedful.generate(model, prompts, max_tokens=6, **settings)
    assert heedful.generate(fast(model), prompts, max_tokens=6, **settings) == plain


def test_a_long_text_of_a_decoder_is_stepped_fast_and_nothing_else() -> None:
    model, long = tiny("llama"), 10**7
    chosen = lambda model, rows=1, tokens=long: type(choose_stepper(model, rows, tokens))
    assert chosen(model) is NumbaStepper
    assert chosen(model, tokens=128) is EagerStepper
    assert chosen(model, rows=MAX_ROWS + 1) is EagerStepper
    assert chosen(tiny("llama").to(torch.bfloat16)) is NumbaStepper
    assert chosen(quantize(tiny("llama"), "int8")) is NumbaStepper
    assert chosen(tiny("lstm")) is EagerStepper
    assert chosen(tiny("t5")) is EagerStepper
    model.register_forward_hook(lambda *_: None)
    assert chosen(model) is EagerStepper


def test_code_that_must_be_compiled_first_needs_more_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    tokens = int(choosing.MIN_WORK_CACHED * 2) // sum(p.numel() for p in model.parameters())
    for before, kind in ((True, NumbaStepper), (False, EagerStepper)):
        monkeypatch.setattr(choosing, "is_compiled", lambda before=before: before)
        assert type(choose_stepper(model, 1, tokens)) is kind


@pytest.mark.parametrize("settings", [{}, {"beams": 2}, {"top_p": 0.9, "seed": 3, "n": 2}, {"lookup": 1}])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_model_writes_the_same_whichever_stepper_is_chosen(
    family: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, steps = tiny(family), []
    monkeypatch.setattr(choosing, "MIN_WORK_CACHED", 0)
    monkeypatch.setattr(choosing, "MIN_WORK_COMPILED", 0)
    prepare = NumbaStepper.prepare
    monkeypatch.setattr(NumbaStepper, "prepare", lambda *a: steps.append(done := prepare(*a)) or done)
    expected = heedful.generate(EagerStepper(model), [5, 6, 7, 8], max_tokens=30, **settings)
    assert not steps
    assert heedful.generate(model, [5, 6, 7, 8], max_tokens=30, **settings) == expected
    assert any(steps) or "lookup" in settings
    if "beams" not in settings:
        written = [
            p.token for p in heedful.stream(model, [5, 6, 7, 8], max_tokens=30, **settings) if not p.sample
        ]
        assert written[:28] == (expected[0] if "n" in settings else expected)[:28]
