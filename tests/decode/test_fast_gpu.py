"""The kernels of a step on a GPU say what the plain stepper says. Without a GPU, Triton's interpreter can run
them:

TRITON_INTERPRET=1 pytest tests/decode/test_fast_gpu.py

It knows no machine instructions (dp4a, two 8-bit floats at once: their twins in plain arithmetic are tested
instead) and multiplies matrices of bfloat16 as if they were whole numbers, so models here are float32.
"""

from __future__ import annotations

import os
from typing import Any, cast

import pytest
import torch

from heedful.adapters import lora, merge
from heedful.decode.quantize import quantize
from heedful.decode.stepper import EagerStepper
from heedful.errors import InputError
from heedful.inspect.change import prune
from heedful.models.base import LM, Model
from tests.decode.toy import FAST
from tests.properties.tiny import ids, tiny

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET=1 is not set", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def worst_step(
    model: Model, rows: int = 1, pad: int = 0, cublas: bool = False, splits: int = 0, length: int = 6
) -> float:
    from heedful.decode.engines.merged_matrices import AttentionPlan
    from heedful.decode.engines.recorded_stepper import RecordedStepper

    model = model.to(DEVICE)
    prompt = ids(model, rows, length).to(DEVICE)
    begin = torch.tensor([[pad if r == 0 else 0] for r in range(rows)])
    valid = torch.arange(length).expand(rows, length) >= begin
    known = valid.to(DEVICE) if pad else None
    quick, plain = RecordedStepper(model, attending=AttentionPlan(16, splits=splits)), EagerStepper(model)
    assert quick.fallback_reason is None
    if cublas:
        quick.choice = {}
    quick.prefill(prompt, known, length + 14)
    logits, worst = plain.prefill(prompt, known, length + 14), 0.0
    for n in range(6):
        tokens = logits.argmax(-1)
        got, logits = quick.step(tokens), plain.step(tokens)
        worst = max(worst, float((got - logits).abs().max()))
        if n == 3 and rows > 1:
            for stepper in (quick, plain):
                stepper.reorder(torch.arange(rows - 1, -1, -1, device=DEVICE))
                stepper.extend(tokens[:, None])
                stepper.crop(stepper.past - 1)
    return worst


def even(family: str) -> Model:
    """A tiny model whose heads have an even size."""
    return tiny(family, **({"dim": 36} if family == "bloom" else {}))


def merged(family: str) -> bool:
    """Whether a step of the family can be written with merged matrices: norms of q and k stand between."""
    from heedful.decode.engines.recorded_stepper import try_merging

    return try_merging(cast(LM, even(family)))[1] is None


MERGED = [family for family in FAST if merged(family)]


@pytest.mark.parametrize("cublas", [False, True])
@pytest.mark.parametrize("family", MERGED)
def test_a_recorded_step_equals_the_plain_step(family: str, cublas: bool) -> None:
    assert worst_step(even(family), cublas=cublas) < 1e-4


@pytest.mark.parametrize("cublas", [False, True])
def test_a_norm_for_each_part_of_a_parallel_block_equals_the_plain_step(cublas: bool) -> None:
    assert worst_step(tiny("falcon", kv_heads=2, norms=2, bias=True), cublas=cublas) < 1e-4


@pytest.mark.parametrize("family", ["gpt-neox", "gptj", "phi"])
def test_heads_turned_in_part_are_left_to_the_steps_of_their_parts(family: str) -> None:
    from heedful.decode.engines.recorded_stepper import RecordedStepper

    assert "heads turned in part" in str(RecordedStepper(cast(LM, tiny(family).to(DEVICE))).fallback_reason)


@pytest.mark.parametrize("family", ["gpt2", "llama", "bloom"])
def test_padded_rows_in_pieces_equal_the_plain_step(family: str) -> None:
    assert worst_step(even(family), rows=3, pad=2, splits=3) < 1e-4


@pytest.mark.parametrize("rows", [1, 2])
def test_int8_products_equal_the_plain_ones(rows: int) -> None:
    """One row is rounded to 16 bits before it is multiplied, several are not."""
    assert worst_step(quantize(tiny("llama"), "int8"), rows=rows) < (1e-3 if rows == 1 else 1e-4)
    assert worst_step(quantize(tiny("gpt2"), "int8"), rows=rows) < (1e-3 if rows == 1 else 1e-4)


def test_tokens_fed_back_on_the_device_are_those_of_a_loop() -> None:
    from heedful.decode.engines.recorded_stepper import RecordedStepper

    model = tiny("llama").to(DEVICE)
    prompt = ids(model, 2, 5).to(DEVICE)
    plain, written = EagerStepper(model), []
    logits = plain.prefill(prompt, None, 16)
    for _ in range(9):
        written.append(logits.argmax(-1))
        logits = plain.step(written[-1])
    quick = RecordedStepper(model)
    assert torch.equal(quick.greedy(prompt, 9), torch.stack(written, 1))
    assert quick.past == 5 + 8
    assert torch.equal(quick.greedy(prompt, 9), torch.stack(written, 1))


@pytest.mark.parametrize(
    ("columns", "count", "rows", "block"), [(48, 5, 2, 4), (160, 6, 4, 16), (64, 3, 1, 32)]
)
def test_a_product_in_whole_numbers_is_that_of_its_bytes(
    columns: int, count: int, rows: int, block: int
) -> None:
    from heedful.kernels import gpu_int8 as I

    torch.manual_seed(0)
    w = torch.randint(-127, 128, (count, columns), dtype=torch.int8, device=DEVICE)
    v, scale = torch.randn(columns, device=DEVICE) * 3, torch.rand(count, device=DEVICE)
    digits = torch.zeros(2 * columns, dtype=torch.int8, device=DEVICE)
    gains, y = torch.zeros(columns // 16, device=DEVICE), torch.zeros(count, device=DEVICE)
    I.round_digits_kernel[(-(-columns // 32),)](v, digits, gains, columns, BLOCK=32, num_warps=1)
    hi, lo = digits.view(2, columns).double()
    kept = (256 * hi + lo) * gains.double().repeat_interleave(16)
    assert (kept - v).abs().max() < 2e-4
    I.int8_product_kernel[(-(-count // rows),)](
        digits.view(torch.int32), gains, w.view(torch.int32), y, scale, y, 1.0, WORDS=columns // 4,
        COUNT=count, MODE=0, ACT=0, BIAS=False, ROWS=rows, BLOCK=block, DP4A=DEVICE == "cuda", num_warps=1,
    )  # fmt: skip
    want = (w.double() @ kept) * scale.double()
    assert (y - want).abs().max() < 1e-5 * want.abs().max()


@pytest.mark.parametrize("family", ["bloom", "gpt3", "llama", "mistral"])
def test_attention_over_several_blocks_equals_the_plain_step(family: str) -> None:
    assert worst_step(even(family), rows=2, pad=3, length=21, splits=1) < 1e-4


def test_keys_kept_in_eight_bits_are_the_plain_ones_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from heedful.decode.engines import recorded_stepper
    from heedful.decode.engines.merged_matrices import AttentionPlan
    from heedful.decode.engines.recorded_stepper import RecordedStepper, full_length_state
    from heedful.models.base import LM

    monkeypatch.setattr(recorded_stepper, "MIN_PROMPT_TOKENS", 2048)  # the plain pass reads, bit for bit
    model = tiny("llama").to(DEVICE)
    assert isinstance(model, LM)
    prompt = ids(model, 2, 21).to(DEVICE)
    quick = RecordedStepper(model, attending=AttentionPlan(16, splits=1), cache_dtype=torch.float8_e4m3fn)
    plain, state = EagerStepper(model), model.new_state(2, 32)
    state.parts = full_length_state(state.parts, torch.float8_e4m3fn)
    plain.state = model.start(prompt, length=32, state=state)
    logits, exact = quick.prefill(prompt, None, 32), EagerStepper(model).prefill(prompt, None, 32)
    assert quick.kernels is not None
    assert quick.kernels.caches[0][0].dtype == torch.float8_e4m3fn
    assert torch.equal(logits, plain.state.logits)
    assert 1e-4 < (logits - exact).abs().max() < 0.3
    # Triton 3.6's interpreter loses a carry when it rounds to 8 bits: 0.49 becomes 0.25.
    near = 0.02 if DEVICE == "cuda" else 0.2
    for n in range(4):
        tokens = logits.argmax(-1)
        logits, want = quick.step(tokens), plain.step(tokens)
        assert (logits - want).abs().max() < near
        if n == 1:
            for stepper in (quick, plain):
                stepper.reorder(torch.tensor([1, 0], device=DEVICE))


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_prompts_read_with_merged_matrices_are_read_as_the_plain_pass_reads_them(family: str) -> None:
    from heedful.decode.engines.merged_matrices import AttentionPlan
    from heedful.decode.engines.recorded_prefill import can_prefill, prefill_prompt
    from heedful.decode.engines.recorded_stepper import RecordedStepper
    from heedful.models.base import LM
    from heedful.nn.attention import Attention

    model = tiny(family).to(DEVICE)
    assert isinstance(model, LM)
    for part in model.modules():
        if isinstance(part, Attention):
            part.window = None
    assert can_prefill(model) == (family != "gpt2")  # learned positions are for the plain pass
    if family == "gpt2":
        return
    prompt = ids(model, 2, 7).to(DEVICE)
    quick = RecordedStepper(model, attending=AttentionPlan(16, splits=1))
    want = quick.prefill(prompt, None, 12)
    assert quick.kernels is not None
    held = [(k.clone(), v.clone()) for k, v in quick.kernels.caches]
    for cache in quick.kernels.caches:
        for tensor in cache:
            tensor.zero_()
    with torch.no_grad():
        assert (prefill_prompt(quick.kernels, prompt) - want).abs().max() < 1e-4
    for old, new in zip(held, quick.kernels.caches, strict=True):
        for a, b in zip(old, new, strict=True):
            assert (a - b)[:, :, :7].abs().max() < 1e-5


def test_a_type_that_keys_are_not_kept_in_is_named() -> None:
    from heedful.decode.engines.recorded_stepper import RecordedStepper

    with pytest.raises(InputError, match="float8_e4m3fn"):
        RecordedStepper(tiny("llama"), cache_dtype=torch.int8)


def far_from_plain(quick: Any, model: Model, steps: int = 2) -> float:
    """The largest difference of any logit, the prompt's included, from the plain stepper."""
    prompt, plain = ids(model, 1, 5).to(DEVICE), EagerStepper(model)
    logits = plain.prefill(prompt, None, 12)
    worst = float((quick.prefill(prompt, None, 12) - logits).abs().max())
    for _ in range(steps):
        tokens = logits.argmax(-1)
        logits = plain.step(tokens)
        worst = max(worst, float((quick.step(tokens) - logits).abs().max()))
    return worst


def quick_on(model: Model) -> Any:
    from heedful.decode.engines.merged_matrices import AttentionPlan
    from heedful.decode.engines.recorded_stepper import RecordedStepper

    return RecordedStepper(model, attending=AttentionPlan(16, splits=1))


def test_a_pruned_model_with_slopes_has_a_recorded_step() -> None:
    model = prune(even("bloom"), {"blocks.0.attn": [0, 2], "blocks.1.attn": [1]}).to(DEVICE)
    quick = quick_on(model)
    assert far_from_plain(quick, model) < 1e-4
    assert quick.fallback_reason is None


def test_a_model_changed_after_its_step_was_recorded_is_computed_as_it_is() -> None:
    model = tiny("gpt2").to(DEVICE)
    quick = quick_on(model)
    assert far_from_plain(quick, model) < 1e-4
    block, calls = model.get_submodule("blocks.0"), list[int]()
    handle = block.register_forward_hook(lambda *args: (calls.append(1), args[2] * 1.5)[1])
    assert far_from_plain(quick, model) < 1e-5
    assert quick.fallback_reason == "blocks.0 has a forward hook"
    assert len(calls) == 6  # of both steppers
    handle.remove()
    block.forward = lambda *args: type(block).forward(block, *args) * 1.5  # type: ignore[assignment]
    assert far_from_plain(quick, model) < 1e-5
    del block.forward
    lora(model, rank=2)
    assert far_from_plain(quick, model) < 1e-5
    assert quick.fallback_reason is not None
    merge(model)
    assert far_from_plain(quick, model) < 1e-4
    assert quick.fallback_reason is None


def test_a_hook_between_two_recorded_steps_is_called() -> None:
    model = tiny("llama").to(DEVICE)
    quick, plain, prompt = quick_on(model), EagerStepper(model), ids(model, 1, 5).to(DEVICE)
    for stepper in (quick, plain):
        stepper.prefill(prompt, None, 12)
        stepper.step(prompt[:, 0])
    model.get_submodule("blocks.0").register_forward_hook(lambda *args: args[2] * 1.5)
    assert (quick.step(prompt[:, 1]) - plain.step(prompt[:, 1])).abs().max() < 1e-4
    assert quick.fallback_reason == "blocks.0 has a forward hook"


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_weights_that_change_in_place_need_no_second_recording(kind: str) -> None:
    model = tiny("gpt2").to(DEVICE)
    model = quantize(model, "int8") if kind == "int8" else model
    quick = quick_on(model)
    near = 1e-3 if kind == "int8" else 1e-4
    assert far_from_plain(quick, model) < near
    kernels = quick.kernels
    for parameter in model.parameters():  # biases and scales too
        if parameter.is_floating_point():
            parameter.data.mul_(1.2)
    assert far_from_plain(quick, model) < near
    assert quick.kernels is kernels


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_weights_put_in_the_place_of_others_are_recorded_anew(family: str) -> None:
    model = tiny(family).to(DEVICE)
    quick = quick_on(model)
    assert far_from_plain(quick, model, 1) < 1e-4
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.2
    assert far_from_plain(quick, model, 1) < 1e-4
    attention: Any = model.get_submodule("blocks.0.attn")
    attention.scale *= 2
    assert far_from_plain(quick, model, 1) < 1e-4
    assert quick.fallback_reason is None


def test_two_steppers_of_one_model_share_its_merged_matrices() -> None:
    model = tiny("llama").to(DEVICE)
    first, second = quick_on(model), quick_on(model)
    assert far_from_plain(first, model, 1) < 1e-4
    kernels = first.kernels
    for parameter in model.parameters():
        parameter.data.mul_(1.2)
    assert far_from_plain(second, model, 1) < 1e-4
    assert far_from_plain(first, model, 1) < 1e-4
    assert first.kernels is kernels


def test_matrices_that_cannot_be_one_are_stepped_plainly() -> None:
    shared: Any = tiny("llama").to(DEVICE)
    shared.blocks[1].attn.q.weight = shared.blocks[0].attn.q.weight
    half: Any = tiny("gpt2").to(DEVICE)
    half.blocks[0].attn.k.bias = None
    for model, word in ((shared, "share"), (half, "bias")):
        quick = quick_on(model)
        assert word in quick.fallback_reason
        assert far_from_plain(quick, model, 1) < 1e-5


def test_a_prompt_read_with_merged_matrices_is_not_when_a_hook_would_miss_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from heedful.decode.engines import recorded_stepper as graph

    monkeypatch.setattr(graph, "MIN_PROMPT_TOKENS", 1)
    model = tiny("llama").to(DEVICE)
    quick = quick_on(model)
    assert far_from_plain(quick, model, 0) < 1e-4
    model.get_submodule("blocks.0").register_forward_hook(lambda *args: args[2] * 1.5)
    assert far_from_plain(quick, model, 0) < 1e-5


def test_the_likeliest_tokens_of_a_hooked_model_are_those_of_a_loop() -> None:
    model = tiny("llama").to(DEVICE)
    quick, prompt = quick_on(model), ids(model, 2, 5).to(DEVICE)
    model.get_submodule("blocks.0").register_forward_hook(lambda *args: args[2] * 1.5)
    plain, written = EagerStepper(model), list[torch.Tensor]()
    logits = plain.prefill(prompt, None, 16)
    for _ in range(5):
        written.append(logits.argmax(-1))
        logits = plain.step(written[-1])
    assert torch.equal(quick.greedy(prompt, 5), torch.stack(written, 1))
