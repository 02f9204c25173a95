"""What a student's function returned beside what it should have: the first difference, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from heedful.classroom.exercises.sandbox_messages import Other

# A float32 sum in another order differs by far less, a mistake by far more: a test holds both apart.
RELATIVE, ABSOLUTE = 1e-3, 1e-4
LOOSE = 30.0  # a mistake is compared this much more loosely: it may make rounding worse
COARSE = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Difference:
    """The first difference between two values: of which kind, and in words."""

    kind: Literal["type", "shape", "dtype", "value"]
    message: str


def find_difference(
    reference: Any, value: Any, outputs: Sequence[str] = (), name: str = "", slack: float = 1.0
) -> Difference | None:
    """Return the first difference of `value` from `reference`, or None where they are alike up to rounding.

    Arrays, numbers and nested lists stand for tensors, lists for tuples; float64 is as good as float32.
    `slack` multiplies the tolerance.
    """
    subject = name or "the result"
    if isinstance(reference, tuple) and outputs:
        if not isinstance(value, tuple | list) or len(value) != len(reference):
            names = f"{len(reference)} values, {' and '.join(outputs)}"
            return Difference("type", f"it returns {describe_type(value)} and should return {names}")
        parts = zip(reference, value, outputs, strict=True)
        return next((d for r, v, label in parts if (d := find_difference(r, v, (), label, slack))), None)
    if isinstance(reference, Tensor):
        return _tensor_difference(reference, value, subject, slack)
    if isinstance(reference, float):
        tensor = to_tensor(value)
        if tensor is None or tensor.numel() != 1:
            return Difference("type", f"{subject} is {describe_type(value)} and should be a number")
        number = float(tensor)
        close = math.isclose(number, reference, rel_tol=slack * RELATIVE, abs_tol=slack * ABSOLUTE)
        return (
            None if close else Difference("value", f"{subject} is {number:.4f} and should be {reference:.4f}")
        )
    return _plain_difference(reference, value, subject)


def _tensor_difference(reference: Tensor, value: Any, subject: str, slack: float) -> Difference | None:
    tensor = to_tensor(value)
    if tensor is None:
        return Difference("type", f"{subject} is {describe_type(value)} and should be a tensor")
    if tensor.dtype in COARSE or not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        return Difference("dtype", f"{subject} has the type {kind} and should have float32 or float64")
    if tensor.shape != reference.shape:
        shapes = f"{tuple(tensor.shape)} and should have {tuple(reference.shape)}"
        return Difference("shape", f"{subject} has the shape {shapes}")
    actual, target = tensor.double(), reference.double()
    finite = target[target.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    bound = slack * (ABSOLUTE * max(scale, 1e-3) + RELATIVE * target.abs())
    close = (actual - target).abs() <= bound
    close |= (actual == target) | (actual.isnan() & target.isnan())
    if bool(close.all()):
        return None
    index = tuple(int(i) for i in (~close).nonzero()[0])
    element = f"{'' if subject == 'the result' else subject}[{', '.join(map(str, index))}]"
    values = f"{float(actual[index]):.4f} and should be {float(target[index]):.4f}"
    return Difference("value", f"{element if index else subject} is {values}")


def _plain_difference(reference: Any, value: Any, subject: str) -> Difference | None:
    """The first difference of pieces of text, tokens or counts."""
    content = value.tolist() if isinstance(value, Tensor | np.ndarray) else value
    if isinstance(reference, tuple | list) and isinstance(content, tuple | list):
        content = type(reference)(int(x) if isinstance(x, Tensor) and x.numel() == 1 else x for x in content)
    if type(content) is not type(reference):
        kinds = f"{describe_type(value)} and should be a {type(reference).__name__}"
        return Difference("type", f"{subject} is {kinds}")
    if content == reference:
        return None
    if isinstance(reference, dict) and isinstance(content, dict):
        lost, extra = (
            [k for k in a if b.get(k) != a[k]] for a, b in ((reference, content), (content, reference))
        )
        show = lambda keys, words: f"{keys[0]!r:.60}: {words[keys[0]]!r:.20}" if keys else "nothing else"
        change = f"{show(extra, content)} and should have {show(lost, reference)}"
        return Difference("value", f"{subject} has {change}")
    return Difference("value", f"{subject} is {content!r:.80} and should be {reference!r:.80}")


def to_tensor(value: Any) -> Tensor | None:
    """Return a tensor, an array, a number or nested lists of numbers as a tensor; None for anything else."""
    if isinstance(value, Tensor):
        return value
    if value is None or isinstance(value, str | dict | Other):
        return None
    try:
        if isinstance(value, list | tuple) and any(isinstance(v, Tensor | np.ndarray) for v in value):
            rows = [to_tensor(v) for v in value]
            return torch.stack([row for row in rows if row is not None])
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def describe_type(value: Any) -> str:
    """Return what a value is, in words."""
    if value is None:
        return "None (is a return missing?)"
    if isinstance(value, Other):
        return value.kind
    if isinstance(value, tuple | list):
        return f"{'a tuple' if isinstance(value, tuple) else 'a list'} of {len(value)} values"
    type_names = {
        str: "a text",
        dict: "a dict",
        Tensor: "a tensor",
        np.ndarray: "an array",
        float: "a number",
    }
    return type_names.get(type(value), f"a {type(value).__name__}")


def is_finite(value: Any) -> bool:
    """Return whether a value has no infinite number and no NaN in it."""
    if isinstance(value, tuple | list):
        return all(map(is_finite, value))
    if isinstance(value, Tensor | np.ndarray | float):
        return bool(torch.as_tensor(value).double().isfinite().all())
    return True
