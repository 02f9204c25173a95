"""GGUF files: weights, often quantised, with their config and vocabulary in one file or in several parts.

The header is read in gguf_header.py. With `keep_blocks` matrices stay as they are stored
(kernels/cpu/block_tensor.py). All else comes out in float32, as the `gguf` library dequantises it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.core.errors import CorruptFile, NotFound, WeightsError, count_of
from heedful.core.lazy import import_optional
from heedful.core.progress import report_progress
from heedful.kernels.cpu.block_tensor import BlockTensor, can_keep
from heedful.weights.formats.gguf_header import (
    MAGIC,
    Header,
    TensorInfo,
    choose_kind,
    pack_tensor,
    read_header,
)
from heedful.weights.formats.tensor_files import TensorEntry, TensorSource
from heedful.weights.formats.tensor_layout import check_fetched

BLOCKS_IN_A_ROW = 2048  # of quantised values, handed over at once
PIECE_BYTES = 1 << 25  # that a thread reads at once


PART = "{}-{:05d}-of-{:05d}.gguf"  # how llama.cpp names the parts of a file that was split


class GGUFFile(TensorSource):
    """A .gguf file and its parts: `architecture`, `metadata`, and the tensors as every other source has them.

    Any part of a file that was split stands for all of them; the first has the metadata.
    """

    def __init__(self, path: Path) -> None:
        self.path, header = path, read_gguf_header(path)
        self._files: dict[Path, np.ndarray] = {}  # their bytes
        self.keep_blocks = False  # whether matrices that kernels read stay as they are stored
        parts = {path: header}
        if "split.count" in header.metadata:
            paths = find_parts(path, header.metadata)
            parts = {part: header if part == path else read_gguf_header(part) for part in paths}
        self.metadata = next(iter(parts.values())).metadata
        self._tensors: dict[str, tuple[Path, TensorInfo]] = {}
        for part, header in parts.items():
            for name, tensor in header.tensors.items():
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


def read_gguf_header(path: Path) -> Header:
    """Read the header of one file; raise CorruptFile if it is damaged or not a GGUF file."""
    check_fetched(path)
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise CorruptFile(f"{path} is not a GGUF file: it does not begin with GGUF")
    kinds = import_optional("gguf", "reading GGUF").GGML_QUANT_SIZES
    try:
        return read_header(path, {int(kind): sizes for kind, sizes in kinds.items()})
    except ValueError as error:
        raise CorruptFile(f"{path} is damaged or truncated: {error}", hint="fetch it again") from None


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
    which = f"{path} is part {number + 1} of {count}"
    named = re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if named is None or (int(named[2]), int(named[3])) != (number + 1, count):
        name = PART.format("NAME", number + 1, count)
        raise NotFound(f"{which}, and its name does not say so", hint=f"call it {name}, next to the others")
    parts = []
    for i in range(1, count + 1):
        parts.append(path.with_name(PART.format(named[1], i, count)))
        if not parts[-1].is_file():
            raise NotFound(f"{which}, and {parts[-1].name} is not there", hint="fetch it, too")
    return parts


FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "q4_0": 2, "q4_k": 14}  # how the format numbers the schemes


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], scheme: str) -> None:
    """Write a file whole; `metadata` has general.architecture and what belongs to it."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter

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
    kinds = {name: choose_kind(name, tensor, scheme) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType[kinds[name]]]
        kind, total = GGMLQuantizationType[kinds[name]], tensor.numel() // numbers * size
        writer.add_tensor_info(name, tuple(tensor.shape), np.dtype(np.float32), total, raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for number, (name, tensor) in enumerate(tensors.items(), 1):
            writer.write_tensor_data(pack_tensor(tensor, kinds[name]))
            report_progress("tensors", number, len(tensors))
    finally:
        writer.close()
