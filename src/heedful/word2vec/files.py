"""safetensors written row by row and read in place: no second copy of a table, no pickle.

The layout is the safetensors library's own (8 bytes of length, a JSON header, raw tensors), so that library
reads it; written here because it wants every tensor whole in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import CorruptFile

KINDS = {
    "F32": np.float32,
    "F64": np.float64,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
}
NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}
ROWS = 4096


def write(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write to a neighbour and rename, so that a file under its own name is always whole."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.size * tensor.itemsize
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 64)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            for start in range(0, len(tensor), ROWS):
                file.write(np.ascontiguousarray(tensor[start : start + ROWS]).tobytes())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read(path: Path, mmap: bool = False) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and metadata; with `mmap` the pages are read when touched, and may not be written."""
    header, base = read_header(path)
    metadata = header.pop("__metadata__", {})
    tensors: dict[str, np.ndarray] = {}
    for name, entry in header.items():
        try:
            kind, shape = np.dtype(KINDS[entry["dtype"]]), tuple(int(n) for n in entry["shape"])
            start, stop = (int(n) for n in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise CorruptFile(
                f"{path}: its header says of tensor {name!r} what cannot be read; copy or save it again"
            ) from None
        if (
            min(start, *shape) < 0
            or stop - start != kind.itemsize * int(np.prod(shape))
            or base + stop > path.stat().st_size
        ):
            raise CorruptFile(
                f"{path} is cut short: tensor {name!r} ends at byte {base + stop:,} of "
                f"{path.stat().st_size:,}; copy or save it again"
            )
        if mmap and stop > start:
            tensors[name] = np.memmap(path, dtype=kind, mode="r", offset=base + start, shape=shape)
        else:
            tensors[name] = np.fromfile(
                path, dtype=kind, count=int(np.prod(shape)), offset=base + start
            ).reshape(shape)
    return tensors, metadata


def need(path: Path, tensors: Mapping[str, np.ndarray], *names: str) -> None:
    """One clear error for a file without a tensor that is asked of it."""
    for name in names:
        if name not in tensors:
            raise CorruptFile(f"{path} has no tensor {name!r}; copy or save it again")


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The JSON header, and where the tensors begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise CorruptFile(
                f"{path} is not a safetensors file: its header would be {length:,} bytes; check the name"
            )
        try:
            header = json.loads(file.read(length))
        except ValueError:
            header = None
        if not isinstance(header, dict):
            raise CorruptFile(f"{path} is not a safetensors file: its header is not JSON; check the name")
        return header, 8 + length


def words_to_bytes(words: list[str]) -> np.ndarray:
    return np.frombuffer(json.dumps(words, ensure_ascii=False).encode(), dtype=np.uint8)


def bytes_to_words(data: np.ndarray) -> list[str]:
    """The words of a file; one that was damaged is an error."""
    try:
        return [str(word) for word in json.loads(bytes(data))]
    except (TypeError, ValueError):
        raise CorruptFile("the words of this file cannot be read; copy or save it again") from None
