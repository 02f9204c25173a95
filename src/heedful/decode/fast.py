"""Which stepper writes a text: `choose_stepper` is the one policy.

    heedful.generate(model, "Once upon a time")                 the one that pays
    heedful.generate(model, "Once upon a time", fast=False)     the model's own steps, one by one

On a GPU a step is a recorded graph of the model's own parts (engines/graph_stepper.py). On a CPU it is one
call of machine code (engines/numba_stepper.py) for decoders all of whose parts it knows. What they cannot
compute, the eager stepper does, with the same logits.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

from heedful.core.errors import InputError
from heedful.decode.engines.graph_stepper import GraphStepper
from heedful.decode.engines.numba_stepper import MAX_ROWS, NumbaStepper
from heedful.decode.stepper import EagerStepper, Stepper, stepper_for
from heedful.models.base import Model

# Weights × tokens that make up for getting the machine code ready (docs/generation-speed.md): a quarter of a
# second to read what an earlier process compiled, some ten to compile it the first time.
MIN_WORK_CACHED, MIN_WORK_COMPILED = 2e9, 4e10
MIN_TOKENS_RECORDED = 12  # tokens that make up for recording a step, which costs a few
NUMBA_KERNELS = "heedful.kernels.cpu.team"


def choose_stepper(model: Model | Stepper, rows: int, tokens: int) -> Stepper:
    """Return the stepper that writes `rows` texts of `tokens` tokens soonest, or the one that is given.

    The choice depends on these alone, and on nothing that was written before. On a GPU a step is recorded
    unless there is hardly anything to write. On a CPU the fast stepper pays for at most MAX_ROWS texts, if
    weights × tokens make up for getting its machine code ready.
    """
    if not isinstance(model, Model):
        return stepper_for(model)
    if model.mesh is not None:  # its processes step together
        return EagerStepper(model)
    if model.device.type == "cuda":
        return EagerStepper(model) if tokens < MIN_TOKENS_RECORDED else GraphStepper(model)
    with torch._C.DisableTorchFunctionSubclass():  # to ask a BlockTensor takes ten times as long
        work = tokens * sum(p.numel() for p in model.parameters())
    pays = rows <= MAX_ROWS and work >= (MIN_WORK_CACHED if is_compiled() else MIN_WORK_COMPILED)
    if model.device.type != "cpu" or not pays:
        return EagerStepper(model)
    stepper = NumbaStepper(model)
    return stepper if stepper.fallback_reason is None else EagerStepper(model)


def is_compiled() -> bool:
    """Return whether the machine code is loaded, or lies where Numba keeps it next to the source."""
    if NUMBA_KERNELS in sys.modules:
        return True
    spec = importlib.util.find_spec(NUMBA_KERNELS)
    cached = f"__pycache__/{NUMBA_KERNELS.rpartition('.')[2]}.step-*.nbi"
    return spec is not None and any(Path(str(spec.origin)).parent.glob(cached))


def fast(model: Model, cache_dtype: torch.dtype | None = None, *, compiled: bool = False) -> Stepper:
    """Return the fast stepper for the model's device, or the eager one if there is none.

    `generate` and `stream` choose a stepper by themselves. Use this function to require the fast one even
    for short texts, or to set its options.

    >>> import heedful
    >>> model = heedful.load("prose")
    >>> text = heedful.generate(heedful.fast(model), "It was a dark night", max_tokens=4)
    >>> text == heedful.generate(model, "It was a dark night", max_tokens=4, fast=False)
    True

    Args:
        cache_dtype: Store keys and values in this type on a GPU, such as torch.float8_e4m3fn. None keeps the
            model's type.
        compiled: Compile the step with torch.compile. The first text then takes about a minute longer.
    """
    if compiled or model.device.type == "cuda":
        return GraphStepper(model, compiled=compiled, cache_dtype=cache_dtype)
    if cache_dtype is not None:
        raise InputError(
            f"`cache_dtype={cache_dtype}` is for a GPU, and this model is on {model.device}",
            hint="leave it out, or move the model to a GPU",
        )
    return NumbaStepper(model) if model.device.type == "cpu" else EagerStepper(model)
