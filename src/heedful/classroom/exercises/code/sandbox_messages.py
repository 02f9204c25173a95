"""Values as bytes from a process that is not trusted: JSON and safetensors, never pickle.

A record is two lengths of eight bytes, a JSON document and a safetensors block with its tensors:

    1.5, "a", None      as JSON has them
    [1], (1,), {1: 2}   {"list": [1]}, {"tuple": [1]}, {"dict": [[1, 2]]}
    a tensor, an array  {"tensor": "0"}, {"array": "1"}: its name in the block
    anything else       {"other": "a module"}: what it is, in words
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
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
    """Bytes that are not a record, or a value too large for one."""


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
    if isinstance(value, Other):
        return {"other": value.kind}
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


def unpack_value(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value that `pack_value` packed."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in ("list", "tuple"):
        items = [unpack_value(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {unpack_value(key, tensors): unpack_value(item, tensors) for key, item in content}
    if kind in ("tensor", "array"):
        return tensors[content] if kind == "tensor" else tensors[content].numpy()
    if kind == "other":
        return Other(str(content)[:200])
    raise MessageError(f"a record holds a {kind!r:.40}")


def copy_value(value: Any) -> Any:
    """Return a copy that shares nothing with a value, as if it had travelled."""
    tensors: dict[str, torch.Tensor] = {}
    return unpack_value(pack_value(value, tensors), tensors)


def pack_record(record: dict[str, Any]) -> bytes:
    """Return a dictionary of strings to values as bytes."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps({name: pack_value(value, tensors) for name, value in record.items()}).encode()
    block = save(tensors) if tensors else b""
    if len(text) + len(block) > MAX_BYTES:
        raise MessageError(f"a value of {len(text) + len(block):,} bytes is larger than {MAX_BYTES:,}")
    return LENGTHS.pack(len(text), len(block)) + text + block


def read_records(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, up to one that its writer did not finish."""
    while len(header := file.read(LENGTHS.size)) == LENGTHS.size:
        lengths = LENGTHS.unpack(header)
        if sum(lengths) > MAX_BYTES:
            raise MessageError("a record is longer than any")
        text, block = (file.read(length) for length in lengths)
        if len(text) + len(block) < sum(lengths):
            return
        try:
            tensors = load(block) if block else {}
            yield {name: unpack_value(value, tensors) for name, value in json.loads(text).items()}
        except MessageError:
            raise
        except Exception as error:  # whatever those bytes were, they are not a record
            raise MessageError(f"a record cannot be read: {type(error).__name__}") from None
