"""GGUF files: weights, often quantised, with their config and vocabulary in one file.

Read through the `gguf` library. Every tensor comes out in float32, as that library dequantises it, in memory
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.errors import CorruptFile, MissingPackage, WeightsError
from heedful.weights.files import Entry


class GGUFFile:
    """One .gguf file: `architecture`, `metadata`, and the tensors as every other source gives them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise CorruptFile(f"{path} is no GGUF file: it does not begin with GGUF")
        try:
            from gguf import GGUFReader
        except ImportError:
            raise MissingPackage("reading GGUF needs a package that is missing: pip install gguf") from None
        try:
            self._reader = GGUFReader(path)
        except Exception as error:  # the library raises what numpy raises at the end of the file
            raise CorruptFile(f"{path} is damaged or truncated ({error}); fetch it again") from None
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        # Their shapes run the other way round.
        self.entries: Mapping[str, Entry] = {
            name: Entry(torch.float32, tuple(int(n) for n in reversed(tensor.shape)))
            for name, tensor in self._tensors.items()
        }

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Everything but the tensors: numbers, strings and lists of them."""
        return {name: found.contents() for name, found in self._reader.fields.items()}

    @property
    def architecture(self) -> str:
        """What the file says it holds."""
        found = self._reader.fields.get("general.architecture")
        return "" if found is None else str(found.contents())

    def read(self, name: str) -> Tensor:
        from gguf import quants

        tensor = self._tensors[name]
        try:
            values = quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise WeightsError(f"{name!r} is stored as {kind}, which cannot be read: {error}") from None
        shaped = values.reshape(self.entries[name].shape)
        return torch.from_numpy(
            np.require(shaped, np.float32, ["C", "W"])
        )  # copies what is still the mapped file

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
