"""What a fast stepper must not compute by itself is found, and said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from heedful.decode.engines.fallback import (
    KNOWN_PARTS,
    find_fallback_reason,
    model_fingerprint,
    part_change,
)
from heedful.decode.fast import NumbaStepper
from heedful.decode.quantize import quantize
from heedful.decode.stepper import EagerStepper
from heedful.interp.intervene.ablation import prune as prune_heads
from heedful.kernels.cpu import find_obstacle
from heedful.kernels.cpu.block_tensor import can_keep
from heedful.models.base import LM
from heedful.nn.adapt import recompute
from heedful.nn.ffn import MLP, GatedMLP
from heedful.nn.position import Sinusoidal
from heedful.weights.adapters import lora
from tests.decode.toy import FAST
from tests.properties.tiny import DECODERS, ids, tiny


def gpt2() -> LM:
    return cast(LM, tiny("gpt2"))


def replace(module: nn.Module, name: str) -> None:
    old = getattr(module, name)
    module.__dict__[name] = lambda *args, **more: old(*args, **more)


def test_the_fast_steppers_know_the_parts_of_most_decoders() -> None:
    assert {"bloom", "gpt", "gpt2", "gpt3", "llama", "mistral", "palm", "qwen2", "qwen3", "smollm3"} <= set(
        FAST
    )


@pytest.mark.parametrize("family", DECODERS)
def test_a_model_without_a_reason_is_stepped_fast_and_one_with_a_reason_plainly(family: str) -> None:
    model = tiny(family)
    quick, known = NumbaStepper(model), find_fallback_reason(model) is None
    quick.prefill(ids(model, 1, 5), None, 8)
    quick.step(torch.tensor([7]))
    assert (quick.rows is not None) == (quick.fallback_reason is None) == known


@pytest.mark.parametrize("family", FAST)
def test_a_subclass_of_any_part_is_found(family: str) -> None:
    model = tiny(family)
    for name, module in model.named_modules():
        kind = type(module)
        module.__class__ = type(f"My{kind.__name__}", (kind,), {})
        where, mine = name or "the model", f"My{kind.__name__}"
        assert find_fallback_reason(model) == f"{where} is a {mine}, a subclass of {kind.__name__}"
        module.__class__ = kind
    assert find_fallback_reason(model) is None


@pytest.mark.parametrize("family", FAST)
def test_a_hook_and_a_replaced_method_of_any_part_are_found(family: str) -> None:
    model = tiny(family)
    for module in model.modules():
        for register in (module.register_forward_hook, module.register_forward_pre_hook):
            handle = register(lambda *_: None)
            assert "has a forward hook" in str(find_fallback_reason(model))
            handle.remove()
        replace(module, "forward")
        assert "has another forward" in str(find_fallback_reason(model))
        del module.forward
    assert find_fallback_reason(model) is None


# What a family has that no fast step computes → a word of the reason.
UNKNOWN = {
    "gemma": "OffsetRMSNorm", "gemma2": "SandwichBlock", "gemma3": "SandwichBlock", "olmo": "without weights",
    "olmo2": "SandwichBlock", "mixtral": "MoE", "qwen2-moe": "MoE", "qwen3-moe": "MoE",
    "gpt-oss": "SinkAttention",
}  # fmt: skip


@pytest.mark.parametrize(("family", "reason"), UNKNOWN.items())
def test_a_part_that_no_fast_step_knows_is_named(family: str, reason: str) -> None:
    model = tiny(family)
    reasons = {part_change(module) for module in model.modules()}
    assert find_fallback_reason(model) is not None
    assert any(reason in str(found) for found in reasons), reasons


@pytest.mark.parametrize("value", ["clip", "softcap"])
def test_a_value_of_attention_that_no_fast_step_knows_is_a_reason(value: str) -> None:
    model = cast(LM, tiny("llama"))
    setattr(model.blocks[1].attn, value, 0.5)
    assert find_fallback_reason(model) == f"blocks.1.attn has a {value} of 0.5"


def test_capped_logits_are_a_reason() -> None:
    model = gpt2()
    model.head.softcap = 3.0  # type: ignore[assignment]
    assert find_fallback_reason(model) == "head has a softcap of 3"


# A way to change a model that none of the names above says → a word of the reason.
OTHERS: dict[str, tuple[Callable[[LM], Any], str]] = {
    "the projections of attention": (lambda m: replace(m.blocks[0].attn, "project"), "project"),
    "the features of the head": (lambda m: replace(m.head, "features"), "features"),
    "the model's own step": (lambda m: replace(m, "step"), "step"),
    "an adapter": (lambda m: lora(m, rank=2), "LoRA"),
    "layers that recompute": (recompute, "a subclass of Block"),
    "a parametrisation": (lambda m: parametrizations.weight_norm(m.blocks[0].ffn.up), "ParametrizedLinear"),
    "a mask over weights": (lambda m: prune.random_unstructured(m.blocks[0].ffn.up, "weight", 0.5), "hook"),
    "a number that became a tensor": (
        lambda m: setattr(m.blocks[0].attn, "scale", torch.tensor(0.5)), "neither a parameter",
    ),
    "a number that is learned": (
        lambda m: setattr(m.blocks[0].attn, "scale", nn.Parameter(torch.tensor(0.5))), "scale",
    ),
    "a transposed matrix": (
        lambda m: setattr(m.blocks[0].ffn.up.weight, "data", torch.randn(32, 128).t()), "contiguous",
    ),
    "a part that is not in its place": (lambda m: m.blocks[0].add_module("attn", nn.Identity()), "Identity"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_changes_a_model_is_found(name: str) -> None:
    model, (change, word) = gpt2(), OTHERS[name]
    change(model)
    assert word in str(find_fallback_reason(model))


@contextmanager
def patched(kind: type, name: str) -> Iterator[None]:
    old = vars(kind)[name]
    setattr(kind, name, lambda self, *args, **more: old(self, *args, **more))
    try:
        yield
    finally:
        setattr(kind, name, old)


# The known classes and their bases, as far as they have a forward of their own.
CLASSES = {base for kind in KNOWN_PARTS for base in kind.__mro__ if "forward" in vars(base)} - {nn.Module}


@pytest.mark.parametrize("kind", sorted(CLASSES, key=str))
def test_a_class_whose_forward_was_replaced_is_found(kind: type[nn.Module]) -> None:
    models = [tiny(f) for f in ("gpt2", "bloom", "palm")] + [quantize(tiny("gpt2"), "int8", tables=True)]
    models += [quantize(tiny("llama"), "int4", group=16), prune_heads(tiny("gpt2"), {"blocks.0.attn": [0]})]
    cast(LM, models[0]).embed.position = Sinusoidal(32)
    having = [model for model in models if any(isinstance(m, kind) for m in model.modules())]
    assert having
    for model in having:
        with patched(kind, "forward"):
            assert find_fallback_reason(model) == f"{kind.__name__}.forward was replaced"
        assert find_fallback_reason(model) is None


def test_one_known_forward_in_the_place_of_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MLP, "forward", GatedMLP.forward)
    assert find_fallback_reason(gpt2()) == "MLP.forward was replaced"


def test_a_step_or_call_replaced_for_all_models_is_found() -> None:
    for kind, name in ((LM, "step"), (LM, "_advance"), (nn.Module, "__call__")):
        with patched(kind, name):
            assert f"{kind.__name__}.{name} was replaced" in str(find_fallback_reason(gpt2()))


def test_hooks_for_all_modules_and_autocast_are_found() -> None:
    model = gpt2()
    for register in (
        nn.modules.module.register_module_forward_hook, nn.modules.module.register_module_forward_pre_hook,
    ):  # fmt: skip
        handle = register(lambda *_: None)
        assert find_fallback_reason(model) == "a forward hook is registered for all modules"
        handle.remove()
    with torch.autocast("cpu", torch.bfloat16):
        assert find_fallback_reason(model) == "torch.autocast is on"
    assert find_fallback_reason(model) is None


def test_hooks_for_gradients_change_no_step() -> None:
    model = gpt2()
    model.blocks[0].register_full_backward_hook(lambda *_: None)
    assert find_fallback_reason(model) is None


def test_a_hook_that_comes_and_goes_between_steps_is_called_and_then_forgotten() -> None:
    pytest.importorskip("numba")
    model, calls = gpt2(), list[int]()
    quick, plain = NumbaStepper(model), EagerStepper(model)
    prompt, token = ids(model, 1, 5), torch.tensor([9])
    for stepper in (quick, plain):
        stepper.prefill(prompt, None, 12)
        stepper.step(token)
    handle = model.blocks[1].register_forward_hook(lambda *args: (calls.append(1), args[2] * 2)[1])
    assert torch.allclose(quick.step(token), plain.step(token), atol=1e-5)
    assert quick.fallback_reason == "blocks.1 has a forward hook"
    assert len(calls) == 2
    handle.remove()
    for stepper in (quick, plain):
        stepper.prefill(prompt, None, 12)
    assert torch.allclose(quick.step(token), plain.step(token), atol=1e-5)
    assert quick.fallback_reason is None
    assert len(calls) == 2


def test_a_pruned_model_with_slopes_steps_fast_and_as_it_computes() -> None:
    pytest.importorskip("numba")
    model = prune_heads(tiny("bloom"), {"blocks.0.attn": [0, 2], "blocks.1.attn": [1]})
    quick, plain, prompt = NumbaStepper(model), EagerStepper(model), ids(model, 2, 5)
    logits = plain.prefill(prompt, None, 12)
    quick.prefill(prompt, None, 12)
    for _ in range(4):
        tokens = logits.argmax(-1)
        logits = plain.step(tokens)
        assert torch.allclose(quick.step(tokens), logits, atol=1e-5)
    assert quick.fallback_reason is None
    assert quick.rows is not None


CHANGED: dict[str, Callable[[LM], Any]] = {
    "a tensor in another's place": lambda m: setattr(m.blocks[0].ffn.up.bias, "data", torch.randn(128)),
    "a table that is no longer the head's": lambda m: setattr(
        m.head.out, "weight", nn.Parameter(m.embed.token.weight.clone())
    ),
    "another type": lambda m: m.to(torch.bfloat16),
    "a number": lambda m: setattr(m.blocks[1].attn, "scale", 0.1),
    "an activation": lambda m: setattr(m.blocks[1].ffn, "act", torch.tanh),
    "a part": lambda m: setattr(m.blocks[0], "ffn", m.blocks[1].ffn),
    "an order": lambda m: setattr(m.blocks[0], "order", "post"),
    "whole numbers": lambda m: quantize(m, "int8"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_model_has_another_fingerprint(change: str) -> None:
    model = gpt2()
    before = model_fingerprint(model)
    assert model_fingerprint(model) == before
    CHANGED[change](model)
    assert model_fingerprint(model) != before


def test_values_that_change_in_place_and_modes_leave_the_fingerprint() -> None:
    model = gpt2()
    before = model_fingerprint(model)
    model.load_state_dict({name: tensor * 2 for name, tensor in model.state_dict().items()})
    model.train()
    model.hf_config["a"] = 1
    assert model_fingerprint(model) == before


def test_a_processor_without_16_bit_floats_steps_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding

    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: {"avx": True, "f16c": False})
    find_obstacle.cache_clear()
    try:
        stepper = NumbaStepper(tiny("llama"))
        assert "F16C" in str(stepper.fallback_reason)
        assert not can_keep("Q8_0", (512, 512))  # a file is widened
        stepper.prefill(ids(stepper.model, 1, 5), None, 8)
        assert stepper.rows is None
    finally:
        find_obstacle.cache_clear()
