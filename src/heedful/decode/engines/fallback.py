"""When a model must be stepped plainly, and whether it is still the model that a step was recorded from.

A stepper with its own kernels computes what it knows of parts, not their `forward`. So every part must be
of a class it knows, exactly, and do exactly what the class does: no subclass, no `forward` put in the
place of another, no hook (`find_fallback_reason`). A recorded step calls the
model's own parts, so they can be of any class. A hook, or a method put in place of another, must run at every
step and cannot be recorded (`find_recording_obstacle`). Anything else is computed by the plain stepper.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from heedful.decode.stepper import EagerStepper
from heedful.kernels.cpu.block_tensor import BlockTensor
from heedful.models.base import LM, Model, Seq2Seq
from heedful.nn.adapt import KeptHeads
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Block, ParallelBlock, Stack
from heedful.nn.context import Watch
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, GatedMLP
from heedful.nn.head import LMHead
from heedful.nn.norm import LayerNorm, RMSNorm
from heedful.nn.position import ALiBi, Learned, Rotary, Scaling, Sinusoidal
from heedful.nn.quantised import Int4Linear, Int8Embedding, Int8Linear, TiedLinear

# The classes that fast steppers know, and the tensors each has. One may still lack a kernel (Unknown).
KNOWN_PARTS: dict[type[nn.Module], tuple[str, ...]] = {
    LM: (), Stack: (), Block: (), ParallelBlock: (),
    Attention: (), KeptHeads: (), MLP: (), GatedMLP: (),
    Embedding: (), Learned: ("weight",), Sinusoidal: (), Rotary: (), ALiBi: (),
    LayerNorm: ("weight", "bias"), RMSNorm: ("weight",), LMHead: ("shift",),
    nn.Linear: ("weight", "bias"), nn.Embedding: ("weight",),
    Int8Linear: ("weight", "scale", "bias"), Int4Linear: ("weight", "scale", "bias"),
    Int8Embedding: ("weight", "scale"), TiedLinear: (),
}  # fmt: skip
# Values that change what such a part computes, and that no fast step knows: None where they do not.
UNKNOWN_VALUES: dict[type[nn.Module], tuple[str, ...]] = {
    Attention: ("clip", "softcap"), KeptHeads: ("clip", "softcap"), LMHead: ("softcap",),
}  # fmt: skip
METHODS: weakref.WeakKeyDictionary[type[nn.Module], frozenset[str]] = weakref.WeakKeyDictionary()
NO_GRAD = torch.no_grad()(lambda: None).__code__  # of any function that torch.no_grad decorates
TENSOR_TYPES = frozenset({Tensor, nn.Parameter})
PLAIN_VALUES = (int, float, str, tuple, Scaling, FunctionType, BuiltinFunctionType)


class UnsupportedPart(Exception):
    """A part or a tensor that no fast step computes: the reason. No error, the plain step does it."""


class FastStepper(EagerStepper):
    """A plain stepper that takes a faster way through a model which that way computes.

    `fallback_reason` says why the model is stepped plainly; None if it is not. The model is looked at again
    at every prefill and, for hooks, at every step: parts and weights may change between texts, hooks always.
    """

    fallback_reason: str | None = None
    hooks = -1  # how many hooks there had ever been when the model was looked at

    def check_model(self) -> None:
        """Find out whether the fast way computes the present model."""
        self.hooks = RemovableHandle.next_id
        with torch._C.DisableTorchFunctionSubclass():  # to ask a BlockTensor takes ten times as long
            self.fallback_reason = self.find_reason()

    def find_reason(self) -> str | None:
        """Return why the fast way does not compute the present model; None if it does."""
        raise NotImplementedError

    def can_step_fast(self, watch: Watch | None) -> bool:
        """Whether the next step need not be plain, as far as the model is concerned."""
        if self.fallback_reason is None and self.hooks != RemovableHandle.next_id:
            self.check_model()
        return self.fallback_reason is None and watch is None


def find_fallback_reason(model: Model) -> str | None:
    """Return why only the plain stepper computes this model; None if all of it is known and unchanged.

    Costs some microseconds for each module, so that it can be asked before every text.
    """
    device = model.device
    changed = find_change(model, lambda module: part_change(module) or tensor_change(module, device))
    kinds = set(map(type, model.modules()))
    return changed or next((reason for kind in kinds if (reason := class_change(kind)) is not None), None)


def outside_change(model: Model) -> str | None:
    """Return what acts on every module's call; None if nothing does."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "a forward hook is registered for all modules"
    if nn.Module.__call__ is not nn.Module._wrapped_call_impl:
        return "nn.Module.__call__ was replaced"
    if torch.is_autocast_enabled(model.device.type):
        return "torch.autocast is on"
    return None if model.mesh is None else "the model is split over several processes"


def find_recording_obstacle(model: Model) -> str | None:
    """Return why a step of the model's own parts cannot be recorded once and replayed; None if it can."""
    kind = type(model)
    if kind.step not in (LM.step, Seq2Seq.step) or kind.start not in (LM.start, Seq2Seq.start):  # type: ignore[attr-defined]
        return f"{kind.__name__} has its own step"
    return find_change(model, call_change)


def find_change(model: Model, change: Callable[[nn.Module], str | None]) -> str | None:
    """Return what acts on every module's call, or else the first module that was changed, and how."""
    if (outside := outside_change(model)) is not None:
        return outside
    changes = ((name, change(module)) for name, module in model.named_modules())
    return next((f"{name or 'the model'} {how}" for name, how in changes if how is not None), None)


def call_change(module: nn.Module) -> str | None:
    """Return what else happens when a module is called than what its class says; None if nothing does."""
    if module._forward_hooks or module._forward_pre_hooks:
        return "has a forward hook"
    if not method_names(type(module)).isdisjoint(module.__dict__):
        name = min(method_names(type(module)).intersection(module.__dict__))
        return f"has another {name} than other {type(module).__name__}s"
    return None


def method_names(kind: type[nn.Module]) -> frozenset[str]:
    """Return the names of a class's methods."""
    if kind not in METHODS:
        METHODS[kind] = frozenset(name for name in dir(kind) if callable(getattr(kind, name)))
    return METHODS[kind]


def part_change(module: nn.Module) -> str | None:
    """Return how a module differs from what its class says it computes; None if it does not."""
    kind = type(module)
    if kind not in KNOWN_PARTS:
        base = next((parent for parent in kind.__mro__ if parent in KNOWN_PARTS), None)
        return f"is a {kind.__name__}, " + (f"a subclass of {base.__name__}" if base else "no known part")
    if (reason := call_change(module)) is not None:
        return reason
    for value in UNKNOWN_VALUES.get(kind, ()):
        if getattr(module, value) is not None:
            return f"has a {value} of {getattr(module, value):g}"
    if isinstance(module, LayerNorm) and module.weight is None:
        return "is a LayerNorm without weights"
    if isinstance(module, Embedding) and (module.types or module.widen or module.project):
        return "has types, a norm of its tokens or a projection"
    return None


def tensor_change(module: nn.Module, device: torch.device) -> str | None:
    """Return which tensor of a module cannot be read by its address; None if all can."""
    if not TENSOR_TYPES.isdisjoint(map(type, module.__dict__.values())):
        return "has a tensor that is neither a parameter nor a buffer"
    spec = KNOWN_PARTS[type(module)]
    for tensors, kind in ((module._parameters, nn.Parameter), (module._buffers, Tensor)):
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if name not in spec:
                return f"has an additional tensor {name!r}"
            if type(tensor) not in (kind, BlockTensor) or tensor.layout is not torch.strided:
                return f"has a {name} that is a {type(tensor).__name__} with the layout {tensor.layout}"
            if tensor.device != device or not tensor.is_contiguous():
                return f"has a {name} that is on {tensor.device} or not contiguous"
    return None


def class_change(kind: type[nn.Module]) -> str | None:
    """Return which method of a known class was replaced; None if all are those it was written with."""
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, method in vars(base).items():
            called = not name.startswith("__") or name in ("__call__", "__getitem__")
            if called and isinstance(method, FunctionType) and not is_original(base, name, method):
                return f"{base.__name__}.{name} was replaced"
    return None


def is_original(kind: type, name: str, method: Any) -> bool:
    """Whether a method is the one in the source of its class: defined in its module, under its name."""
    while method.__code__ is NO_GRAD:
        method = method.__wrapped__
    home = sys.modules[kind.__module__].__dict__
    return method.__globals__ is home and bool(method.__code__.co_qualname == f"{kind.__name__}.{name}")


def model_fingerprint(model: Model) -> list[object]:
    """Return what a recorded step is written from: the parts, their numbers, and where their tensors are.

    It changes when a part is swapped, a number of one is set, a method of a class is replaced, or a tensor is
    put in the place of another. It does not change with values in place, which a recorded step reads. It does
    not hold the model itself, so that what was recorded goes when the model does.
    """
    parts: list[object] = [model.config]
    kinds = dict.fromkeys(map(type, model.modules()))
    for kind in dict.fromkeys(base for owner in kinds for base in owner.__mro__ if base is not object):
        parts += [method for method in vars(kind).values() if isinstance(method, FunctionType)]
    for module in model.modules():
        if module is not model:
            parts.append(module)
            values = [v for name, v in module.__dict__.items() if name[0] != "_" and name != "training"]
            parts += [value for value in values if isinstance(value, PLAIN_VALUES)]
        for tensors in (module._parameters, module._buffers):
            parts += [(t.data_ptr(), t.dtype, t.shape) for t in tensors.values() if t is not None]
    return parts
