"""Values as bytes between two processes that do not trust each other: JSON and safetensors, never pickle.

A message is two lengths of eight bytes, a JSON document and a safetensors block with its tensors:

    1.5, "a", None      as JSON has them
    [1], (1,), {1: 2}   {"list": [1]}, {"tuple": [1]}, {"dict": [[1, 2]]}
    a tensor, an array  {"tensor": "0"}, {"array": "1"}: its name in the block
    a function          {"function": name}: whoever gets it may call the sender back
    anything else       {"other": "a module"}: what it is, in words

This file imports nothing of heedful: the student's process reads it by its path.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection
from typing import IO, Any

import numpy as np
import torch
from safetensors.torch import load, save

MAX_BYTES = 64 << 20
MAX_DEPTH = 12
LENGTHS = struct.Struct("<QQ")
TENSOR_TYPES = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool,
}  # fmt: skip


class MessageError(Exception):
    """Bytes that are no message, or a value too large for one."""


class Other:
    """A value that cannot travel: `kind` says what it was."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def pack_value(value: Any, tensors: dict[str, torch.Tensor], depth: int = 0) -> Any:
    """Return a value as JSON; its tensors are put into the block."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        small = isinstance(value, float) or abs(value) < 1 << 63
        return value if small else {"other": "a whole number of more than 64 bits"}
    if depth > MAX_DEPTH:
        return {"other": f"a {type(value).__name__} nested more than {MAX_DEPTH} deep"}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [pack_value(item, tensors, depth + 1) for item in value]}
    if isinstance(value, dict):
        pairs = [[pack_value(part, tensors, depth + 1) for part in pair] for pair in value.items()]
        return {"dict": pairs}
    if isinstance(value, np.generic):
        return pack_value(value.item(), tensors, depth + 1)
    array = isinstance(value, np.ndarray)
    if array:
        try:
            value = torch.tensor(value)
        except TypeError:
            return {"other": f"a NumPy array of {value.dtype}"}
    if not isinstance(value, torch.Tensor):
        return {"other": f"a {type(value).__name__}"}
    if value.dtype not in TENSOR_TYPES or value.layout != torch.strided:
        return {"other": f"a tensor of {value.dtype}, {value.layout}".replace("torch.", "")}
    name = str(len(tensors))
    tensors[name] = value.detach().cpu().contiguous().clone()
    return {"array" if array else "tensor": name}


def unpack_value(
    value: Any, tensors: dict[str, torch.Tensor], function: Callable[[str], Callable[..., Any]] | None
) -> Any:
    """Return the value that `pack_value` packed; `function` gives what stands for a sender's function."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    unpack = lambda item: unpack_value(item, tensors, function)
    if kind in ("list", "tuple"):
        items = [unpack(item) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {unpack(key): unpack(item) for key, item in content}
    if kind in ("tensor", "array"):
        return tensors[content] if kind == "tensor" else tensors[content].numpy()
    if kind == "function" and function is not None:
        return function(content)
    if kind == "other":
        return Other(str(content)[:200])
    raise MessageError(f"a message holds a {kind!r:.40}")


def send(file: IO[bytes], message: dict[str, Any], functions: Collection[str] = ()) -> None:
    """Write one message: a dictionary of strings to values, some of which are functions to be called back."""
    tensors: dict[str, torch.Tensor] = {}
    body = {
        name: {"function": name} if name in functions else pack_value(value, tensors)
        for name, value in message.items()
    }
    text, block = json.dumps(body).encode(), save(tensors) if tensors else b""
    if len(text) + len(block) > MAX_BYTES:
        raise MessageError(f"a value of {len(text) + len(block):,} bytes is larger than {MAX_BYTES:,}")
    file.write(LENGTHS.pack(len(text), len(block)) + text + block)
    file.flush()


def receive(
    file: IO[bytes], function: Callable[[str], Callable[..., Any]] | None = None
) -> dict[str, Any] | None:
    """Read one message; None where the other side is gone."""
    header = file.read(LENGTHS.size)
    if len(header) < LENGTHS.size:
        return None
    lengths = LENGTHS.unpack(header)
    if sum(lengths) > MAX_BYTES:
        raise MessageError("a message is longer than any")
    text, block = (file.read(length) for length in lengths)
    if len(text) + len(block) < sum(lengths):
        return None
    try:
        tensors = load(block) if block else {}
        return {name: unpack_value(value, tensors, function) for name, value in json.loads(text).items()}
    except MessageError:
        raise
    except Exception as error:  # whatever those bytes were, they are no message
        raise MessageError(f"a message cannot be read: {type(error).__name__}") from None
