"""The header of a GGUF file: metadata, and where each tensor lies. As strict as the program the format is of.

    magic  version  number of tensors  number of keys
    key  kind  value                                       as often as there are keys
    name  number of sizes  sizes  type  offset             as often as there are tensors
    padding up to the alignment, then the tensors, each padded too, without a gap

The `gguf` library's reader takes two seconds over the vocabulary of a small model, reads on past the end
of a damaged file, and lets tensors overlap; hence this one. It reads Q4_K but does not write it, so
`pack_q4_k` does. In Q4_K, 256 weights share two half floats d and e. Each 32 of them share a scale s and an
offset m of 6 bits, and each weight is a number q of 4 bits:

    w ≈ d s q − e m
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError, WeightsError
from heedful.core.lazy import import_optional

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
            versions = " and ".join(map(str, VERSIONS))
            raise WeightsError(
                f"{path} has version {version:#x} of GGUF, and those read are {versions}, low byte first",
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
            raise ValueError(f"general.alignment={alignment!r:.80} is not a power of two")
        infos = reader.tensor_infos(tensors)
        start = _padded(reader.at, alignment)
        return Header(metadata, _data_offset(infos, block_sizes, start, alignment, len(data)))


class _Reader:
    """Reads values one after the other; past the end of the file is an error."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.items, self.size = data, 0, 0, len(data)

    def take(self, size: int) -> bytes:
        if size > self.size - self.at:
            raise ValueError(f"{size:,} bytes are announced at byte {self.at:,} of {self.size:,}")
        self.at += size
        return self.data[self.at - size : self.at]

    def numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))

    def text(self, label: str, key: str = "") -> str:
        raw = self.take(int.from_bytes(self.take(8), "little"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            label = f"{label} {key!r:.80}" if key else label
            raise ValueError(f"{label} is not UTF-8: byte {error.start} of {raw[:40]!r}") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.text("the value of", key)
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
        texts, at, data, read_size = [], self.at, self.data, struct.Struct("<Q").unpack_from
        try:  # a vocabulary is long: whether all of it lies within the file is looked at once, at its end
            for _ in range(count):
                start = at + 8
                at = start + read_size(data, at)[0]
                texts.append(str(data[start:at], "utf-8"))
        except (struct.error, OverflowError, UnicodeDecodeError):
            at = self.size + 1
        if at > self.size:  # the reader of one text says what is wrong with which
            return [self.text("a value of", key) for _ in range(count)]
        self.at = at
        return texts

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


SCHEMES = ("f32", "f16", "q8_0", "q4_0", "q4_k")
GROUPS, GROUP = 8, 32  # of a block of Q4_K
STEPS = torch.linspace(-1.0, 1.0, 11)  # widths of a step that are tried: 15 of them, one more or one less
BLOCKS_AT_ONCE = 8192
HALF_MAX = 65504.0
# Small tables that are looked into and never multiplied, and routers: other programs expect 32 bits.
WIDE = ("position_embd", "token_types", "rope_freqs", "ffn_gate_inp", "ssm_conv1d", "attn_rel_b")
READ_LAST = ("output.weight", "token_embd.weight")


def check_scheme(scheme: str) -> None:
    """Raise ConfigError for a scheme that is unknown, MissingPackage without the library."""
    check_choice("quantize", scheme, SCHEMES, ConfigError)
    import_optional("gguf", "writing GGUF")


def choose_kind(name: str, tensor: Tensor, scheme: str) -> str:
    """The kind of block that a tensor takes: the scheme's, or a wider one where its rows do not divide.

    Vectors stay in 32 bits. With 4 bits, what the logits are read from takes 8: they feel its rounding most.
    """
    wide = any(word in name for word in WIDE) or not name.endswith(".weight")
    if tensor.ndim < 2 or wide or scheme == "f32":
        return "F32"
    half = "F16" if float(tensor.abs().amax()) <= HALF_MAX else "F32"
    if scheme == "f16" or tensor.shape[-1] % GROUP:
        return half
    if scheme == "q8_0" or name in READ_LAST:
        return "Q8_0"
    if scheme == "q4_0":
        return "Q4_0"
    return "Q5_0" if tensor.shape[-1] % (GROUPS * GROUP) else "Q4_K"


def pack_tensor(tensor: Tensor, kind: str) -> np.ndarray[Any, Any]:
    """A tensor as the bytes of its blocks, row by row; floats as they are."""
    from gguf import GGMLQuantizationType, quants

    values = tensor.detach().cpu().float().contiguous()
    if kind == "Q4_K":
        return pack_q4_k(values)
    return quants.quantize(values.numpy(), GGMLQuantizationType[kind])


def fit_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """s, m ≥ 0 for each group of x (…, 32) that make Σ (s q − m − x)² small, q in 0 … 15.

    The numbers q are chosen for several widths of a step; for given q, s and m follow by least squares.
    """
    low = x.amin(-1, keepdim=True).clamp(max=0)
    reach = (x.amax(-1, keepdim=True) - low).clamp(min=1e-30)
    best_scale, best_low = (reach / 15).squeeze(-1), -low.squeeze(-1)
    least = torch.full_like(best_scale, torch.inf)
    size = x.shape[-1]
    sum_x = x.sum(-1)
    for step in STEPS.tolist():
        q = ((x - low) * ((15 + step) / reach)).round_().clamp_(0, 15)
        sum_q, square_q, product = q.sum(-1), (q * q).sum(-1), (q * x).sum(-1)
        spread = size * square_q - sum_q * sum_q
        scale = (size * product - sum_q * sum_x) / spread.clamp(min=1e-30)
        offset = (scale * sum_q - sum_x) / size
        through_zero = product / square_q.clamp(min=1e-30)  # the best scale without an offset
        scale = torch.where(offset > 0, scale, through_zero).clamp_(min=0)
        offset = offset.clamp_(min=0)
        error = (scale[..., None] * q - offset[..., None] - x).square_().sum(-1)
        better = (error < least) & (spread > 0)
        best_scale, best_low = torch.where(better, scale, best_scale), torch.where(better, offset, best_low)
        least = torch.where(better, error, least)
    return best_scale, best_low


def pack_q4_k(values: Tensor) -> np.ndarray[Any, Any]:
    """Blocks of Q4_K, 144 bytes for every 256 numbers of a row (…, 256 n)."""
    blocks = values.reshape(-1, GROUPS, GROUP)
    packed = torch.cat([_pack_blocks(part) for part in blocks.split(BLOCKS_AT_ONCE)])
    return packed.view(*values.shape[:-1], -1).numpy()


def _pack_blocks(x: Tensor) -> Tensor:
    scale, offset = fit_groups(x)  # (N, 8) each
    shared = torch.stack((scale, offset), 1)  # (N, 2, 8)
    halves = (shared.amax(-1) / 63).half()  # d and e
    units = halves.float()[..., None]
    six = torch.where(units > 0, shared / units.clamp(min=1e-30), 0.0).round().clamp(0, 63)
    width, shift = (units * six)[..., None].unbind(1)
    q = torch.where(width > 0, (x + shift) / width.clamp(min=1e-30), 0.0).round().clamp(0, 15).to(torch.uint8)
    s, m = six.to(torch.uint8).unbind(1)
    # Groups 0–3 have their six bits in one byte; of 4–7 the upper two stand above those.
    table = (s[:, :4] | (s[:, 4:] >> 4 << 6), m[:, :4] | (m[:, 4:] >> 4 << 6), s[:, 4:] & 15 | m[:, 4:] << 4)
    pairs = q.unflatten(1, (4, 2))
    numbers = (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)
    return torch.cat((halves.view(torch.uint8).flatten(1), *table, numbers), 1)
