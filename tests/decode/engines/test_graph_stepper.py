"""The stepper over static state writes what the plain one writes, for every family, whatever is done to it.

Without a GPU the step is not recorded but run: the same code in all else.
"""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.core.errors import InputError
from heedful.decode.engines.graph_stepper import RECORDINGS, GraphStepper, rounded_capacity
from heedful.decode.engines.static_state import all_tensors
from heedful.decode.fast import choose_stepper, fast
from heedful.decode.loop import decode_tokens
from heedful.decode.quantize import quantize
from heedful.decode.request import encode_prompts, make_request
from heedful.decode.settings import GenerationSettings
from heedful.decode.stepper import EagerStepper
from heedful.models.base import Model, Seq2Seq
from heedful.nn.context import Watch
from tests.properties.tiny import DECODERS, GENERATORS, ids, source_ids, tiny

# Libraries of the device warn of what they like; only results count here.
pytestmark = [pytest.mark.filterwarnings("ignore")]
DEVICE = os.environ.get("HEED_TEST_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
GREEDY = GenerationSettings()
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"beams": 3, "n": 2},
    "samples": {"temperature": 1.0, "n": 3, "seed": 5},
    "lookup": {"lookup": 1, "propose": 3},
}


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """cuDNN's recurrent layers round factors to TF32 unless told not to."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def on_device(family: str) -> Model:
    return tiny(family).to(DEVICE)


def given(model: Model) -> list[list[int]]:
    """Prompts of different lengths, so that rows are padded."""
    rows: list[list[int]] = ((source_ids if isinstance(model, Seq2Seq) else ids)(model, 3, 9)).tolist()
    return [rows[0], rows[1][:5], rows[2][:7]]


def prompt(model: Model, rows: int = 2, length: int = 6) -> Tensor:
    return (source_ids if isinstance(model, Seq2Seq) else ids)(model, rows, length).to(DEVICE)


def tokens_of(model: Model, rows: int = 2, length: int = 1) -> Tensor:
    return ids(model, rows, length).to(DEVICE)


def near(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", GENERATORS)
def test_texts_are_those_of_the_plain_stepper(family: str, way: str) -> None:
    model = on_device(family)
    settings = {"max_tokens": 8, "eos": [7], "details": True, **WAYS[way]}
    stepper = GraphStepper(model)
    got, want = (heedful.generate(s, given(model), **settings) for s in (stepper, EagerStepper(model)))
    assert stepper.fallback_reason is None
    assert stepper.recording is not None
    assert stepper.recording.operator_error is None
    flat = lambda found: [g for row in found for g in (row if isinstance(row, list) else [row])]
    assert [g.ids for g in flat(got)] == [g.ids for g in flat(want)]
    assert [g.score for g in flat(got)] == pytest.approx([g.score for g in flat(want)], abs=1e-3)


@pytest.mark.parametrize("family", GENERATORS)
def test_tokens_fed_back_on_the_device_are_those_of_a_loop(family: str) -> None:
    model = on_device(family)
    steppers = GraphStepper(model), EagerStepper(model)
    got, want = (s.prefill(prompt(model)) for s in steppers)
    assert near(got, want)
    first = want.argmax(-1)
    found = [torch.cat([s.step_ahead(first, 3, GREEDY), s.step_ahead(first, 4, GREEDY)], 1) for s in steppers]
    assert torch.equal(*found)
    assert steppers[0].past == steppers[1].past


@pytest.mark.parametrize("family", ["gpt2", "mistral", "deepseek-v2", "t5", "mamba", "lstm", "rnnsearch"])
def test_a_watched_step_is_plain_and_the_next_one_goes_on_from_it(family: str) -> None:
    model = on_device(family)
    steppers = GraphStepper(model), EagerStepper(model)
    valid = torch.arange(6) >= torch.tensor([[2], [0]])
    for s in steppers:
        s.prefill(prompt(model), valid.to(DEVICE))
    token = tokens_of(model)[:, 0]
    for watch in (None, Watch("*"), None, None):
        got, want = (s.step(token, watch) for s in steppers)
        assert near(got, want)
    assert steppers[0].fallback_reason is None
    assert steppers[0].is_static


@pytest.mark.parametrize("family", GENERATORS)
def test_rows_leave_and_are_copied(family: str) -> None:
    model = on_device(family)
    steppers = GraphStepper(model), EagerStepper(model)
    for s in steppers:
        s.prefill(prompt(model, 3))
    token = tokens_of(model, 4)[:, 0]
    for index in ([2, 0, 1], [1, 2], [0], [0, 0, 0, 0]):
        for s in steppers:
            s.reorder(torch.tensor(index, device=DEVICE))
        for _ in range(2):
            got, want = (s.step(token[: len(index)]) for s in steppers)
            assert near(got, want)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "deepseek-v3", "t5"])
def test_guesses_are_taken_back(family: str) -> None:
    model = on_device(family)
    steppers = GraphStepper(model), EagerStepper(model)
    for s in steppers:
        s.prefill(prompt(model))
        s.step(tokens_of(model)[:, 0])
    for _ in range(5):
        got, want = (s.extend(tokens_of(model, 2, 3)) for s in steppers)
        assert near(got, want)
        for s in steppers:
            s.crop(s.past - 2)
    got, want = (s.step(tokens_of(model)[:, 0]) for s in steppers)
    assert near(got, want)


@pytest.mark.parametrize(("family", "recorded"), [("gpt2", True), ("llama", True), ("mamba", False)])
def test_short_prompts_are_recorded_where_layers_remember_keys_alone(family: str, recorded: bool) -> None:
    model = on_device(family)
    valid = torch.arange(6, device=DEVICE) >= torch.tensor([[2], [0]], device=DEVICE)
    for _ in range(2):  # the second call finds what the first one recorded
        steppers = GraphStepper(model), EagerStepper(model)
        got, want = (s.prefill(prompt(model), valid, 40) for s in steppers)
        assert near(got, want)
        assert (steppers[0].recording is not None and bool(steppers[0].recording.prompt_logits)) == recorded
        assert steppers[0].past == 6
        got, want = (s.step(tokens_of(model)[:, 0]) for s in steppers)
        assert near(got, want)


def test_a_prompt_that_is_not_recorded_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, starts = on_device("mamba"), list[int]()
    stepper, plain = GraphStepper(model), EagerStepper(model)
    want = plain.prefill(prompt(model), None, 41)
    read = EagerStepper.prefill
    monkeypatch.setattr(EagerStepper, "prefill", lambda *a: starts.append(1) or read(*a))
    assert near(stepper.prefill(prompt(model), None, 41), want)
    assert len(starts) == 1
    assert near(stepper.step(tokens_of(model)[:, 0]), plain.step(tokens_of(model)[:, 0]))


def test_a_text_longer_than_its_room_gets_more() -> None:
    model = on_device("llama")
    steppers = GraphStepper(model), EagerStepper(model)
    first = steppers[1].prefill(prompt(model)).argmax(-1)
    steppers[0].prefill(prompt(model))
    assert torch.equal(*(torch.cat([s.step_ahead(first, 50, GREEDY) for _ in range(2)], 1) for s in steppers))
    assert steppers[0].recording is not None
    assert steppers[0].recording.static.capacity == 128


def test_learned_positions_end_where_the_plain_stepper_ends() -> None:
    model = on_device("gpt2")
    context = model.config.context  # type: ignore[attr-defined]
    for stepper in (GraphStepper(model), EagerStepper(model)):
        stepper.prefill(prompt(model, 1, context - 1))
        stepper.step(tokens_of(model, 1)[:, 0])
        with pytest.raises(InputError, match="learned positions"):
            stepper.step(tokens_of(model, 1)[:, 0])


def test_the_next_call_takes_over_what_the_last_recorded_and_two_at_once_do_not_share() -> None:
    model = on_device("t5")
    first = GraphStepper(model)
    first.step(first.prefill(prompt(model)).argmax(-1))
    second = GraphStepper(model)
    second.step(second.prefill(prompt(model)).argmax(-1))
    assert first.recording is not second.recording
    known = first.recording
    del first
    third = GraphStepper(model)
    third.step(third.prefill(prompt(model)).argmax(-1))
    assert third.recording is known


def test_what_is_recorded_goes_with_the_model() -> None:
    model = on_device("gpt2")
    heedful.generate(GraphStepper(model), [5, 6, 7], max_tokens=4, eos=[])
    before = len(RECORDINGS)
    assert len(RECORDINGS[model].idle) == 1
    copy.deepcopy(model)
    collecting = gc.isenabled()
    gc.disable()
    try:
        del model
        assert len(RECORDINGS) == before - 1  # at once, not when garbage is collected
    finally:
        if collecting:
            gc.enable()


@pytest.mark.parametrize("family", ["gpt2", "mamba", "t5"])
def test_a_hook_is_called_at_every_step(family: str) -> None:
    model = on_device(family)
    stepper = GraphStepper(model)
    token = stepper.prefill(prompt(model)).argmax(-1)
    stepper.step(token)
    seen: list[int] = []
    handle = model.head.register_forward_hook(lambda *_: seen.append(1))  # type: ignore[union-attr]
    for _ in range(3):
        stepper.step(token)
    assert len(seen) == 3
    assert stepper.fallback_reason == "head has a forward hook"
    handle.remove()
    stepper.prefill(prompt(model))
    assert stepper.fallback_reason is None


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("family", GENERATORS)
def test_logits_are_the_plain_ones_with_and_without_kernels(family: str, kernels: bool) -> None:
    model = on_device(family)
    steppers = GraphStepper(model, kernels=kernels), EagerStepper(model)
    token = [s.prefill(prompt(model, 1)) for s in steppers][1].argmax(-1)
    for _ in range(4):
        got, want = (s.step(token) for s in steppers)
        assert near(got, want)
        token = want.argmax(-1)


@pytest.mark.parametrize("family", DECODERS)
def test_weights_that_are_replaced_are_used(family: str) -> None:
    model = on_device(family)
    stepper = GraphStepper(model)
    stepper.step(stepper.prefill(prompt(model)).argmax(-1))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            if number % 2:
                parameter.mul_(1.1)
            else:
                parameter.data = parameter.data * 1.1
    token = stepper.prefill(prompt(model)).argmax(-1)
    plain = EagerStepper(model)
    plain.prefill(prompt(model))
    assert near(stepper.step(token), plain.step(token))


@pytest.mark.parametrize("drawn", [{}, {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 3}])
@pytest.mark.parametrize("family", ["gpt2", "t5", "lstm"])
def test_bursts_write_what_steps_write_when_rows_end_at_different_times(
    family: str, drawn: dict[str, Any]
) -> None:
    model = on_device(family)
    settings: dict[str, Any] = {"max_tokens": 23, "eos": [7, 11, 30], **drawn}
    request = make_request(model, GenerationSettings(**settings), scored=False)
    stepper, prompts = GraphStepper(model), encode_prompts(model, given(model))
    pieces = list(decode_tokens(stepper, prompts, request))
    found = [[p.token for p in pieces if p.row == number] for number in range(3)]
    want = heedful.generate(EagerStepper(model), given(model), details=True, **settings)
    assert [ids[: len(w.ids)] for ids, w in zip(found, want, strict=True)] == [w.ids for w in want]
    ends = {p.row: p.finish for p in pieces if p.finish is not None}
    assert [ends[number] for number in range(3)] == [w.finish for w in want]


def test_a_burst_ends_where_a_row_reaches_its_context() -> None:
    model = on_device("gpt2")
    context = model.config.context  # type: ignore[attr-defined]
    texts = [ids(model, 1, context - 3)[0].tolist(), ids(model, 1, 4)[0].tolist()]
    request = make_request(model, GenerationSettings(max_tokens=12, eos=[]), scored=False)
    stepper, prompts = GraphStepper(model), encode_prompts(model, texts)
    pieces = list(decode_tokens(stepper, prompts, request))
    found = [[p.token for p in pieces if p.row == number] for number in range(2)]
    assert found == heedful.generate(EagerStepper(model), texts, max_tokens=12, eos=[])


@pytest.mark.skipif(DEVICE != "cuda", reason="the policy for a GPU")
def test_a_gpu_records_what_pays() -> None:
    chosen = lambda model, rows=1, tokens=64: type(choose_stepper(model, rows, tokens)).__name__
    model = on_device("llama")
    assert chosen(model, tokens=4) == "EagerStepper"
    for rows, tokens in ((1, 64), (4, 64), (1, 4000), (1, 64)):  # whatever was written before
        assert chosen(model, rows, tokens) == "GraphStepper"
    assert chosen(model, tokens=4) == "EagerStepper"


@pytest.mark.skipif(DEVICE != "cuda", reason="the policy for a GPU")
def test_writing_while_training_leaves_the_weights_where_they_are() -> None:
    model = on_device("llama").train()
    before = [p.data_ptr() for p in model.parameters()]
    heedful.generate(model, [5, 6, 7], max_tokens=40, n=2, eos=[])
    assert [p.data_ptr() for p in model.parameters()] == before


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("bits", ["int8", "int4"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "mamba"])
def test_whole_numbers_are_multiplied_as_the_plain_stepper_multiplies_them(
    family: str, bits: str, rows: int
) -> None:
    model = quantize(tiny(family), bits).to(DEVICE)
    steppers = GraphStepper(model), EagerStepper(model)
    token = [s.prefill(prompt(model, rows)) for s in steppers][1].argmax(-1)
    for _ in range(4):
        got, want = (s.step(token) for s in steppers)
        assert near(got, want)
        token = want.argmax(-1)
    assert steppers[0].recording is not None
    assert steppers[0].recording.operator_error is None


@pytest.mark.parametrize("family", ["llama", "mistral", "deepseek-v2"])
def test_keys_kept_in_eight_bits_are_the_plain_ones_rounded(family: str) -> None:
    """Rounding errors are small and not zero; rows are reordered and watched as with wider keys."""
    model = on_device(family)
    stepper, plain = GraphStepper(model, cache_dtype=torch.float8_e4m3fn), EagerStepper(model)
    token = [s.prefill(prompt(model)) for s in (stepper, plain)][1].argmax(-1)
    worst = 0.0
    for n in range(5):
        got, want = (s.step(token, Watch("*") if n == 3 else None) for s in (stepper, plain))
        worst, token = max(worst, float((got - want).abs().max())), want.argmax(-1)
        for s in (stepper, plain):
            s.reorder(torch.tensor([1, 0], device=DEVICE))
    assert 1e-4 < worst < 0.3
    assert stepper.recording is not None
    assert {t.dtype for t in all_tensors(stepper.recording.static.parts)} == {torch.float8_e4m3fn}


def test_a_type_that_keys_are_not_kept_in_is_named() -> None:
    with pytest.raises(InputError, match="float8_e4m3fn"):
        GraphStepper(on_device("llama"), cache_dtype=torch.int8)


def test_a_compiler_is_given_the_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in it that a compiler would have to leave to Python; what it makes of it is not asked here."""
    compiler = torch.compile
    traced = lambda step, mode: compiler(step, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", traced)
    model = on_device("llama")
    steppers = fast(model, compiled=True), EagerStepper(model)
    token = [s.prefill(prompt(model)) for s in steppers][1].argmax(-1)
    for _ in range(2):
        assert near(steppers[0].step(token), steppers[1].step(token))


def test_capacities_are_few() -> None:
    assert [rounded_capacity(n) for n in (1, 64, 65, 600, 1024, 1025, 3000)] == [
        64, 64, 128, 1024, 1024, 2048, 3072,
    ]  # fmt: skip
