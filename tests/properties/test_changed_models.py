"""A fast stepper computes the model as it is now, whatever was done to it; the plain one defines that.

Each change is made in place to a tiny model of every family that writes, so that a stepper made before can be
asked again afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.decode import fast as choosing
from heedful.decode.engines.graph_stepper import GraphStepper
from heedful.decode.fast import fast
from heedful.decode.stepper import EagerStepper, Stepper
from heedful.interp.intervene.ablation import prune
from heedful.models import FAMILIES
from heedful.models.base import Model
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Stack
from heedful.nn.context import Part
from heedful.nn.norm import norm_size
from heedful.nn.quantised import PARTS
from heedful.weights.adapters import lora, merge
from heedful.weights.loading import assemble
from tests.properties.tiny import GENERATORS, ids, shape_of, source_ids, tiny

pytest.importorskip("numba")

STEPS = 3


def stack_name(model: Model) -> str:
    return "decoder" if shape_of(model.family.name) == "seq2seq" else "blocks"


def first_block(model: Model) -> Part:
    return cast(Stack, model.get_submodule(stack_name(model)))[0]


def parts_of(block: nn.Module) -> list[nn.Module]:
    """What a block is made of, norms apart; the block itself where it has no parts."""
    return [block.get_submodule(name) for name in getattr(block, "names", ())] or [block]


def louder(module: nn.Module) -> None:
    """Make it an instance of a subclass whose output is half as large again."""
    kind = type(module)
    forward = lambda self, *args: kind.forward(self, *args) * 1.5
    module.__class__ = type(f"Louder{kind.__name__}", (kind,), {"forward": forward})


def attention_path(model: Model) -> str | None:
    name = stack_name(model)
    block = cast(Stack, model.get_submodule(name))[0]
    parts = {n: block.get_submodule(n) for n in getattr(block, "names", ())}
    found = [n for n, part in parts.items() if type(part) is Attention and has_heads_apart(part)]
    return f"{name}.0.{found[0]}" if found else None


def has_heads_apart(part: Attention) -> bool:
    """Whether no head depends on another: a norm over all queries would see to that."""
    return part.q_norm is None or norm_size(part.q_norm) == part.head_dim


def prune_heads(model: Model) -> None:
    """Take heads out of the first layer, the same number of each group, and put the new stack in place."""
    path = attention_path(model)
    assert path is not None
    attention = cast(Attention, model.get_submodule(path))
    size = attention.heads // attention.kv_heads
    leaving = [h for h in range(attention.heads) if h % size < size // 2] if size > 1 else [0]
    pruned = prune(model, {path: leaving})
    setattr(model, stack_name(model), pruned.get_submodule(stack_name(model)))


def subclass_block(model: Model) -> None:
    louder(first_block(model))


def subclass_first_part(model: Model) -> None:
    louder(parts_of(first_block(model))[0])


def subclass_last_part(model: Model) -> None:
    louder(parts_of(first_block(model))[-1])


def replace_forward(model: Model) -> None:
    block = first_block(model)
    old = block.forward
    block.forward = lambda *args: old(*args) * 1.5  # type: ignore[method-assign]


def hook(model: Model) -> None:
    first_block(model).register_forward_hook(lambda module, args, output: output * 1.5)


def pre_hook(model: Model) -> None:
    first_block(model).register_forward_pre_hook(lambda module, args: (args[0] * 1.5, *args[1:]))


def adapt(model: Model) -> None:
    lora(model, rank=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and name.endswith(".up"):
                parameter.normal_(std=0.3)


def adapt_and_merge(model: Model) -> None:
    adapt(model)
    merge(model)


def quantise(model: Model) -> None:
    heedful.quantize(model, "int8")


def scale_weights(model: Model) -> None:
    """The first block's matrices, half in place and half by others in their place."""
    matrices = [p for p in first_block(model).parameters() if p.dim() > 1]
    for number, matrix in enumerate(matrices):
        matrix.data = matrix.data * 1.5
        if number % 2:
            matrix.data.mul_(1.1)


def load_others(model: Model) -> None:
    model.load_state_dict({name: t * 1.2 for name, t in model.state_dict().items()})


CHANGES: list[Callable[[Model], None]] = [
    prune_heads, subclass_block, subclass_first_part, subclass_last_part, replace_forward, hook, pre_hook,
    adapt, adapt_and_merge, quantise, scale_weights, load_others,
]  # fmt: skip


@functools.cache
def kinds(family: str) -> tuple[type[nn.Module], ...]:
    with torch.device("meta"):
        return tuple(map(type, assemble(FAMILIES[family], FAMILIES[family].tiny).modules()))


def can_be(change: Callable[[Model], None], family: str) -> bool:
    """Whether a family has what is changed."""
    if change is prune_heads:
        with torch.device("meta"):
            return attention_path(assemble(FAMILIES[family], FAMILIES[family].tiny)) is not None
    if change is quantise:
        return any(issubclass(kind, PARTS) for kind in kinds(family))
    return nn.Linear in kinds(family) if change in (adapt, adapt_and_merge) else True


CASES = [
    pytest.param(family, change, id=f"{family}-{change.__name__}")
    for family in GENERATORS
    for change in CHANGES
    if can_be(change, family)
]


def prompt_of(model: Model) -> Tensor:
    return source_ids(model, 1, 6) if shape_of(model.family.name) == "seq2seq" else ids(model, 1, 6)


def logits_of(stepper: Stepper, prompt: Tensor, tokens: Tensor) -> Tensor:
    """The logits after the prompt and after each token."""
    rows = [stepper.prefill(prompt, None, 16).clone()]
    rows += [stepper.step(token[None]).clone() for token in tokens]
    return torch.cat(rows)


@pytest.mark.parametrize(("family", "change"), CASES)
def test_a_changed_model_steps_and_writes_as_it_does_plainly(
    family: str, change: Callable[[Model], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stepper made before the change, by one made after it, and by the one that `generate` chooses."""
    monkeypatch.setattr(choosing, "MIN_WORK_CACHED", 0)
    monkeypatch.setattr(choosing, "MIN_WORK_COMPILED", 0)
    model = tiny(family)
    prompt, tokens = prompt_of(model), ids(model, 1, STEPS, seed=7)[0]
    steppers = fast(model), GraphStepper(model)
    before = [logits_of(quick, prompt, tokens) for quick in steppers]
    change(model)
    wanted = logits_of(EagerStepper(model), prompt, tokens)
    limit = 1e-3 if change is quantise else 1e-5  # digits of a row are rounded before whole numbers multiply
    for quick in steppers:
        assert (logits_of(quick, prompt, tokens) - wanted).abs().max() < limit * max(1.0, wanted.abs().max())
    assert not any(torch.equal(logits, wanted) for logits in before)  # the change was one
    written = [
        heedful.generate(writer, prompt[0].tolist(), max_tokens=STEPS, eos=[])
        for writer in (EagerStepper(model), fast(model), GraphStepper(model), model)
    ]
    assert all(text == written[0] for text in written)


@pytest.mark.parametrize("family", GENERATORS)
def test_every_hook_is_called_at_every_step(family: str) -> None:
    model, calls = tiny(family), list[str]()
    prompt, tokens = prompt_of(model), ids(model, 1, STEPS, seed=7)[0]
    steppers = fast(model), GraphStepper(model)
    for quick in steppers:
        logits_of(quick, prompt, tokens)
    module = first_block(model)
    module.register_forward_pre_hook(lambda *_: calls.append("before"))
    module.register_forward_hook(lambda *_: calls.append("after"))
    for quick in steppers:
        logits_of(quick, prompt, tokens)
    assert calls == ["before", "after"] * (1 + STEPS) * 2
