"""GGUF files: weights, often quantised, with their config and vocabulary in one file or in several parts.

    magic  version  number of tensors  number of keys
    key  kind  value                                       as often as there are keys
    name  number of sizes  sizes  type  offset             as often as there are tensors
    padding up to the alignment, then the tensors, each padded too, without a gap

The `gguf` library's reader takes two seconds over the vocabulary of a small model, reads on past the end
of a damaged file, and lets tensors overlap. `read_header` is as strict as the program the format is of.

With `keep_blocks` matrices stay as they are stored (kernels/cpu/block_tensor.py). All else comes out in
float32, as the library dequantises it. The library reads Q4_K but does not write it, so `pack_q4_k` does. In
Q4_K, 256 weights share two half floats d and e. Each 32 of them share a scale s and an offset m of 6 bits,
and each weight is a number q of 4 bits:

    w ≈ d s q − e m
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.core.errors import CorruptFile, NotFound, WeightsError, count_of
from heedful.core.lazy import import_optional
from heedful.core.padding import round_up
from heedful.core.progress import report_progress
from heedful.kernels.cpu.block_tensor import BlockTensor, can_keep
from heedful.weights.formats.tensor_files import TensorEntry, TensorSource, numbered_parts
from heedful.weights.formats.tensor_layout import check_fetched

BLOCKS_IN_A_ROW = 2048  # of quantised values, handed over at once
PIECE_BYTES = 1 << 25  # that a thread reads at once
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


class GGUFFile(TensorSource):
    """A .gguf file and its parts: `architecture`, `metadata`, and the tensors as every other source has them.

    Any part of a file that was split stands for all of them; the first has the metadata.
    """

    def __init__(self, path: Path) -> None:
        self.path, (metadata, tensors) = path, read_header(path)
        self._files: dict[Path, np.ndarray] = {}  # their bytes
        self.keep_blocks = False  # whether matrices that kernels read stay as they are stored
        parts = {path: (metadata, tensors)}
        if "split.count" in metadata:
            paths = find_parts(path, metadata)
            parts = {part: parts[path] if part == path else read_header(part) for part in paths}
        self.metadata = next(iter(parts.values()))[0]
        self._tensors: dict[str, tuple[Path, TensorInfo]] = {}
        for part, (_, tensors) in parts.items():
            for name, tensor in tensors.items():
                if name in self._tensors:
                    other = self._tensors[name][0].name
                    raise CorruptFile(f"{part} and {other} both hold {name!r:.80}", hint="fetch them again")
                self._tensors[name] = part, tensor
        total = self.metadata.get("split.tensors.count")
        if len(parts) > 1 and total not in (None, len(self._tensors)):
            raise CorruptFile(
                f"the {len(parts)} parts of {path} hold {count_of(len(self._tensors), 'tensors')} and should "
                f"hold {total}",
                hint="fetch them again",
            )
        self.entries = {
            name: TensorEntry(torch.float32, tensor.shape) for name, (_, tensor) in self._tensors.items()
        }

    @property
    def architecture(self) -> str:
        """The name of the model in the file's metadata."""
        return str(self.metadata.get("general.architecture", ""))

    def read(self, name: str) -> Tensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

        path, tensor = self._tensors[name]
        kind = GGMLQuantizationType(tensor.type)
        if self.keep_blocks:
            if path not in self._files:
                self._files[path] = read_whole(path)
            raw = self._files[path][tensor.start : tensor.start + tensor.size]
        else:
            raw = np.fromfile(path, np.uint8, tensor.size, offset=tensor.start)
        if self.keep_blocks and can_keep(kind.name, tensor.shape):
            return BlockTensor.from_rows(raw.reshape(tensor.shape[0], -1), kind.name)
        rows = raw.reshape(*tensor.shape[:-1], -1) if tensor.size else raw.reshape(tensor.shape)
        long = GGML_QUANT_SIZES[kind][1] * math.gcd(raw.size // GGML_QUANT_SIZES[kind][1], BLOCKS_IN_A_ROW)
        if tensor.size and long > rows.shape[-1]:  # the library takes 16 rows at a time: long ones are faster
            rows = raw.reshape(-1, long)
        try:
            values = quants.dequantize(rows, kind)
        except NotImplementedError as error:
            raise WeightsError(
                f"{name!r} of {path} is stored as {kind.name}, which cannot be read: {error}",
                hint="pip install -U gguf, or fetch another quantisation",
            ) from None
        shaped = values.reshape(tensor.shape)
        return torch.from_numpy(np.require(shaped, np.float32, ["C", "W"]))

    def config(self, keys: Mapping[str, str]) -> dict[str, Any]:
        """Our config fields from the file's own; vocabulary and tying follow from the tensors."""
        values = {ours: self.metadata[theirs] for theirs, ours in keys.items() if theirs in self.metadata}
        if "vocab" not in values and "token_embd.weight" in self.entries:
            values["vocab"] = self.entries["token_embd.weight"].shape[0]
        values["tied"] = "output.weight" not in self.entries
        return values

    def rope(self) -> tuple[dict[str, Any], list[float]]:
        """How rotary positions are rescaled: what the metadata say, by their last word, and what each pair's
        frequency is divided by, if the file lists it.
        """
        start = f"{self.architecture}.rope.scaling."
        scaling = {n.removeprefix(start): v for n, v in self.metadata.items() if n.startswith(start)}
        older = self.metadata.get(f"{self.architecture}.rope.scale_linear")
        scaling = scaling if older is None else {"factor": older} | scaling
        listed = "rope_freqs.weight" in self.entries
        return scaling, self.read("rope_freqs.weight").tolist() if listed else []


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """Return the metadata of one file and where its tensors lie; raise CorruptFile if it is damaged."""
    check_fetched(path)
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise CorruptFile(f"{path} is not a GGUF file: it does not begin with GGUF")
        sizes = import_optional("gguf", "reading GGUF").GGML_QUANT_SIZES
        blocks = {int(kind): block for kind, block in sizes.items()}
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read_header(path, _Reader(data), blocks)
        except ValueError as error:
            raise CorruptFile(f"{path} is damaged or truncated: {error}", hint="fetch it again") from None


def _read_header(
    path: Path, reader: _Reader, blocks: dict[int, tuple[int, int]]
) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """Read a header; what is damaged is a ValueError. `blocks`: type → numbers and bytes of a block."""
    reader.take(len(MAGIC))
    version, tensor_count, key_count = reader.numbers("IQQ")
    if version not in VERSIONS:
        versions = " and ".join(map(str, VERSIONS))
        raise WeightsError(
            f"{path} has version {version:#x} of GGUF; heedful reads {versions}, low byte first",
            hint="convert the model again with a newer llama.cpp",
        )
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = reader.text("a key")
        if key in metadata:
            raise ValueError(f"it has the key {key!r:.80} twice")
        metadata[key] = reader.value(reader.numbers("I")[0], key)
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment={alignment!r:.80} is not a power of two")
    infos, end = _read_infos(reader, tensor_count, blocks, alignment)
    start = round_up(reader.at, alignment)
    placed = {name: replace(info, start=start + info.start) for name, info in infos.items()}
    last = max((info.start + info.size for info in placed.values()), default=start)
    if placed and reader.size not in (last, start + end):
        raise ValueError(f"its tensors end at byte {last:,} and the file at {reader.size:,}")
    return metadata, placed


def _read_infos(
    reader: _Reader, count: int, blocks: dict[int, tuple[int, int]], alignment: int
) -> tuple[dict[str, TensorInfo], int]:
    """Return each tensor as if the first began at 0, and where the last one ends with its padding.

    Every one has to begin where the one before it ends.
    """
    infos: dict[str, TensorInfo] = {}
    end = 0
    for _ in range(count):
        name, dimensions = reader.text("a tensor's name"), reader.numbers("I")[0]
        if name in infos or dimensions > MAX_DIMENSIONS:
            what = "stands there twice" if name in infos else f"has {dimensions} dimensions"
            raise ValueError(f"the tensor {name!r:.80} {what}")
        *sizes, kind, offset = reader.numbers(f"{dimensions}QIQ")
        if kind not in blocks:
            raise WeightsError(
                f"the tensor {name!r:.80} is of type {kind}, which the `gguf` library does not know",
                hint="pip install -U gguf, or fetch another quantisation",
            )
        numbers, size = blocks[kind]
        if sizes and sizes[0] % numbers:
            raise ValueError(f"rows of {name!r:.80} have {sizes[0]} numbers, no multiple of {numbers}")
        if offset != end:
            raise ValueError(f"the tensor {name!r:.80} begins at {offset:,} and should begin at {end:,}")
        infos[name] = TensorInfo(tuple(reversed(sizes)), kind, offset, math.prod(sizes) // numbers * size)
        end = round_up(offset + infos[name].size, alignment)
    return infos, end


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


def read_whole(path: Path) -> np.ndarray:
    """Return the bytes of a file in one piece of memory, which begins on a cache line.

    NumPy asks for large pages. A decoder reads all weights for every token, and it reads a mapped file, whose
    pages are small, up to a third slower.
    """
    size = path.stat().st_size
    room: np.ndarray = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    whole = room[start : start + size]

    def read_piece(low: int) -> int:
        view, done = memoryview(whole)[low : low + PIECE_BYTES], 0  # type: ignore[arg-type]
        with path.open("rb", buffering=0) as file:
            file.seek(low)
            while done < len(view) and (count := file.readinto(view[done:])):
                done += count
        return done

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        done = sum(pool.map(read_piece, range(0, size, PIECE_BYTES)))
    if done < size:
        raise CorruptFile(f"{path} became shorter while it was read", hint="fetch it again")
    return whole


def find_parts(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """The parts of a file that was split, in order, by the name and the metadata of one of them."""
    number, count = metadata.get("split.no", 0), metadata["split.count"]
    if not (isinstance(number, int) and isinstance(count, int) and 0 <= number < max(count, 1)):
        raise CorruptFile(
            f"{path} says that it is part {number!r:.40} of {count!r:.40}", hint="fetch it again"
        )
    if count <= 1:
        return [path]
    ending = f"-{number + 1:05d}-of-{count:05d}.gguf"  # as llama.cpp names them
    if not path.name.endswith(ending):
        hint = f"call it NAME{ending}, next to the others"
        raise NotFound(f"{path} is part {number + 1} of {count}, and its name does not say so", hint=hint)
    return numbered_parts(path)


FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "q4_0": 2, "q4_k": 14}  # how the format numbers the schemes
GROUPS, GROUP = 8, 32  # of a block of Q4_K
STEPS = torch.linspace(-1.0, 1.0, 11)  # widths of a step that are tried: 15 of them, one more or one less
BLOCKS_AT_ONCE = 8192
HALF_MAX = 65504.0
# Small tables that are looked into and never multiplied, and routers: other programs expect 32 bits.
WIDE = ("position_embd", "token_types", "rope_freqs", "ffn_gate_inp", "ssm_conv1d", "attn_rel_b")
READ_LAST = ("output.weight", "token_embd.weight")


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


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], scheme: str) -> None:
    """Write a file whole; `metadata` has general.architecture and what belongs to it."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter, quants

    writer = GGUFWriter(path, str(metadata["general.architecture"]))
    writer.add_uint32("general.file_type", FILE_TYPES[scheme])
    writer.add_uint32("general.quantization_version", 2)
    simple = {str: "STRING", bool: "BOOL", int: "UINT32", float: "FLOAT32", bytes: "ARRAY", list: "ARRAY"}
    inner = {str: "STRING", int: "INT32", float: "FLOAT32", bool: "BOOL"}
    for key, value in metadata.items():
        if key == "general.architecture" or value in ([], b""):  # a list without an item cannot be written
            continue
        sub = GGUFValueType[inner[type(value[0])]] if isinstance(value, list) else None
        writer.add_key_value(key, value, GGUFValueType[simple[type(value)]], sub)
    kinds = {name: GGMLQuantizationType[choose_kind(name, t, scheme)] for name, t in tensors.items()}
    for name, tensor in tensors.items():
        numbers, size = GGML_QUANT_SIZES[kinds[name]]
        total = tensor.numel() // numbers * size
        writer.add_tensor_info(name, tuple(tensor.shape), np.dtype(np.float32), total, raw_dtype=kinds[name])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for number, (name, tensor) in enumerate(tensors.items(), 1):
            values, is_q4_k = tensor.detach().cpu().float().contiguous(), kinds[name].name == "Q4_K"
            packed = pack_q4_k(values) if is_q4_k else quants.quantize(values.numpy(), kinds[name])
            writer.write_tensor_data(packed)
            report_progress("tensors", number, len(tensors))
    finally:
        writer.close()
