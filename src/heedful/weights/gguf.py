"""GGUF files: weights, often quantised, with their config and vocabulary in one file.

The header is read in gguf_header.py. Every tensor comes out in float32, as the `gguf` library dequantises it,
in memory of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.errors import CorruptFile, MissingPackage, WeightsError
from heedful.weights.gguf_header import MAGIC, read_header
from heedful.weights.tensor_files import TensorEntry

BLOCKS_IN_A_ROW = 2048  # of quantised values, handed over at once


class GGUFFile:
    """One .gguf file: `architecture`, `metadata`, and the tensors as every other source gives them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise CorruptFile(f"{path} is no GGUF file: it does not begin with GGUF")
        try:
            from gguf import GGML_QUANT_SIZES
        except ImportError:
            raise MissingPackage(
                "reading GGUF needs a package that is missing", hint="pip install gguf"
            ) from None
        try:
            header = read_header(path, {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()})
        except ValueError as error:
            raise CorruptFile(f"{path} is damaged or truncated: {error}", hint="fetch it again") from None
        self.metadata, self._tensors = header.metadata, header.tensors
        self.entries: Mapping[str, TensorEntry] = {
            name: TensorEntry(torch.float32, tensor.shape) for name, tensor in self._tensors.items()
        }

    @property
    def architecture(self) -> str:
        """What the file says it holds."""
        return str(self.metadata.get("general.architecture", ""))

    def read(self, name: str) -> Tensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

        tensor = self._tensors[name]
        kind = GGMLQuantizationType(tensor.type)
        raw = np.fromfile(self.path, np.uint8, tensor.size, offset=tensor.start)
        rows = raw.reshape(*tensor.shape[:-1], -1) if tensor.size else raw.reshape(tensor.shape)
        long = GGML_QUANT_SIZES[kind][1] * math.gcd(raw.size // GGML_QUANT_SIZES[kind][1], BLOCKS_IN_A_ROW)
        if tensor.size and long > rows.shape[-1]:  # the library takes 16 rows at a time: long ones are faster
            rows = raw.reshape(-1, long)
        try:
            values = quants.dequantize(rows, kind)
        except NotImplementedError as error:
            raise WeightsError(f"{name!r} is stored as {kind.name}, which cannot be read: {error}") from None
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
        said = {n.removeprefix(start): v for n, v in self.metadata.items() if n.startswith(start)}
        listed = "rope_freqs.weight" in self.entries
        return said, self.read("rope_freqs.weight").tolist() if listed else []
