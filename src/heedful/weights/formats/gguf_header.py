"""The header of a GGUF file: metadata, and where each tensor lies. As strict as the program the format is of.

    magic  version  number of tensors  number of keys
    key  kind  value                                       as often as there are keys
    name  number of sizes  sizes  type  offset             as often as there are tensors
    padding up to the alignment, then the tensors, each padded too, without a gap

The `gguf` library's own reader takes two seconds over the vocabulary of a small model, reads on past the end
of a damaged file, and lets tensors overlap; hence this one.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.core.errors import WeightsError

MAGIC, VERSIONS, ALIGNMENT = b"GGUF", (2, 3), 32
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MAX_ITEMS = 1 << 22  # in all lists together; the largest vocabularies have a third of that
MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: its shape with the fastest size last, its type's number, and its bytes."""

    shape: tuple[int, ...]
    type: int
    start: int
    size: int


@dataclass(frozen=True)
class Header:
    """Everything of a GGUF file but the tensors' values."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(path: Path, block_sizes: dict[int, tuple[int, int]]) -> Header:
    """Read a header; what is damaged is a ValueError. `block_sizes`: type → numbers and bytes of a block."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data)
        if reader.take(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version, tensors, keys = reader.numbers("IQQ")
        if version not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise WeightsError(
                f"{path} has version {version:#x} of GGUF, and those read are {known}, low byte first",
                hint="convert the model again with a newer llama.cpp",
            )
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = reader.text("a key")
            if key in metadata:
                raise ValueError(f"it has the key {key!r:.80} twice")
            metadata[key] = reader.value(reader.numbers("I")[0], key)
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment={alignment!r:.80} is no power of two")
        infos = reader.tensor_infos(tensors)
        start = _padded(reader.at, alignment)
        return Header(metadata, _data_offset(infos, block_sizes, start, alignment, len(data)))


class _Reader:
    """Reads values one after the other; past the end of the file is an error."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.items = data, 0, 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError(f"{size:,} bytes are announced at byte {self.at:,} of {len(self.data):,}")
        self.at += size
        return self.data[self.at - size : self.at]

    def numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))

    def text(self, label: str) -> str:
        raw = self.take(self.numbers("Q")[0])
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{label} is no UTF-8: byte {error.start} of {raw[:40]!r}") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.text(f"the value of {key!r:.80}")
        if kind == ARRAY:
            return self.array(key)
        if kind not in SCALARS:
            raise ValueError(f"{key!r:.80} has a value of kind {kind}, which is unknown")
        return self.numbers(SCALARS[kind])[0]

    def array(self, key: str) -> list[Any]:
        kind, count = self.numbers("IQ")
        self.items += count
        if self.items > MAX_ITEMS:
            raise ValueError(f"{key!r:.80} announces {count:,} values; no more than {MAX_ITEMS:,} are read")
        if kind in SCALARS:
            return list(self.numbers(f"{count}{SCALARS[kind]}"))
        if kind != STRING:
            raise ValueError(f"{key!r:.80} is a list of kind {kind}, which is unknown")
        return [self.text(f"a value of {key!r:.80}") for _ in range(count)]

    def tensor_infos(self, count: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
        """Shape, type and offset by name, in the order of the file."""
        infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name, sizes = self.text("a tensor's name"), self.numbers("I")[0]
            if name in infos or sizes > MAX_DIMENSIONS:
                what = "stands there twice" if name in infos else f"has {sizes} dimensions"
                raise ValueError(f"the tensor {name!r:.80} {what}")
            *shape, kind, offset = self.numbers(f"{sizes}QIQ")
            infos[name] = tuple(reversed(shape)), kind, offset
        return infos


def _padded(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


def _data_offset(
    infos: dict[str, tuple[tuple[int, ...], int, int]],
    block_sizes: dict[int, tuple[int, int]],
    start: int,
    alignment: int,
    end: int,
) -> dict[str, TensorInfo]:
    """Each tensor's bytes; every one has to begin where the one before it ends."""
    placed, expected = {}, 0
    for name, (shape, kind, offset) in infos.items():
        if kind not in block_sizes:
            raise WeightsError(
                f"the tensor {name!r:.80} is of type {kind}, which the `gguf` library does not know",
                hint="pip install -U gguf, or fetch another quantisation",
            )
        numbers, size = block_sizes[kind]
        if shape and shape[-1] % numbers:
            raise ValueError(f"rows of {name!r:.80} have {shape[-1]} numbers, no multiple of {numbers}")
        total = math.prod(shape) // numbers * size
        if offset != expected:
            raise ValueError(f"the tensor {name!r:.80} begins at {offset:,} and {expected:,} is its turn")
        placed[name] = TensorInfo(shape, kind, start + offset, total)
        expected = _padded(offset + total, alignment)
    last = max((tensor.start + tensor.size for tensor in placed.values()), default=start)
    if placed and end not in (last, start + expected):
        raise ValueError(f"its tensors end at byte {last:,} and the file at {end:,}")
    return placed
