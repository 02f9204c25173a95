"""Tensors that several processes wrote, each its own part, by `torch.distributed.checkpoint`.

    shards/shard-00001-….safetensors    one file for each process; its header says where each part begins

A tensor is put together from its parts when it is read, so that one process opens what any number wrote.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from heedful.core.errors import CorruptFile, NotFound
from heedful.core.files import read_json
from heedful.weights.formats.tensor_files import SafeFile, TensorEntry

SHARDS, CHECKSUMS = "shards", "checksums.json"  # within the folder of a checkpoint


class ShardedFolder:
    """The tensors of a checkpoint's shards whose names begin with `group`, under the rest of their names."""

    def __init__(self, folder: Path, group: str) -> None:
        self.folder, self.group = folder / SHARDS, group
        files = sorted(self.folder.glob("*.safetensors"))
        listed = read_json(folder / CHECKSUMS) if (folder / CHECKSUMS).is_file() else {}
        for name in sorted(name for name in listed if name.startswith(f"{SHARDS}/")):
            if folder / name not in files:
                raise NotFound(f"{folder} lacks {name}, a shard", hint="use another checkpoint of the run")
        if not files:
            raise NotFound(f"{self.folder} holds no shards", hint="is it the checkpoint of a run?")
        self.parts: dict[str, list[tuple[SafeFile, tuple[int, ...]]]] = {}
        for path in files:
            file = SafeFile(path)
            try:
                told = json.loads(file.metadata["DCP_SHARDING_INFO"])
                starts = {name: tuple(told[name]["saved_offsets"]) for name in file.entries}
            except (KeyError, TypeError, ValueError) as error:
                message = f"{path} does not say where its parts begin ({error!r:.80})"
                raise CorruptFile(message, hint="remove that checkpoint, and use another") from None
            for name in (name for name in file.entries if name.startswith(group)):
                self.parts.setdefault(name.removeprefix(group), []).append((file, starts[name]))
        self.entries = {name: self._entry(name) for name in self.parts}

    def _entry(self, name: str) -> TensorEntry:
        """What a tensor is as a whole; its parts must have one kind, and as many numbers as it has."""
        held = [(file.entries[self.group + name], start) for file, start in self.parts[name]]
        ends = [[a + b for a, b in zip(start, e.shape, strict=True)] for e, start in held]
        shape = tuple(max(end) for end in zip(*ends, strict=True))
        numbers = sum(torch.Size(entry.shape).numel() for entry, _ in held)
        if len({entry.dtype for entry, _ in held}) > 1 or numbers != torch.Size(shape).numel():
            raise CorruptFile(
                f"{self.folder}: the parts of {name!r} hold {numbers:,} numbers and it has shape {shape}",
                hint="a shard is missing or from another step: use another checkpoint",
            )
        return TensorEntry(held[0][0].dtype, shape)

    def read(self, name: str) -> Tensor:
        """The whole tensor."""
        entry = self.entries[name]
        whole = torch.empty(entry.shape, dtype=entry.dtype)
        for file, start in self.parts[name]:
            part = file.read(self.group + name)
            whole[tuple(slice(at, at + size) for at, size in zip(start, part.shape, strict=True))] = part
        return whole


def is_sharded(folder: Path) -> bool:
    """Return whether a checkpoint's tensors lie in shards."""
    return (folder / SHARDS).is_dir()
