"""Reading and writing files of weights: safetensors (one file or shards) and old `.bin` files.

Tensors are read straight into new memory: no second copy, and no mapped file left open that somebody
could overwrite. Tensors that several processes wrote with `torch.distributed.checkpoint` are put together
from their parts, so that one process opens the files of any number:

    shards/shard-00001-….safetensors    one file per process; its header says where each part begins
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heedful.core.errors import CorruptFile, NotFound
from heedful.core.files import make_file_atomically, read_json, write_json
from heedful.weights.formats.tensor_layout import check_fetched, read_layout

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

SHARD_BYTES = 50 * 10**9


@dataclass(frozen=True)
class TensorEntry:
    """One tensor in a file: what it is, and where its bytes are."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int = 0


class TensorSource:
    """Named tensors that can be read one by one."""

    entries: Mapping[str, TensorEntry]

    def read(self, name: str) -> Tensor:
        """The tensor in new memory."""
        raise NotImplementedError

    def map(self, name: str) -> Tensor:
        """The tensor as it lies in its file, if that can be: only what is copied out of it is read."""
        return self.read(name)


class SafeFile(TensorSource):
    """One safetensors file; its tensors are read one by one, each into new memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        spans, self.metadata = read_layout(path)
        self.entries = {
            n: TensorEntry(DTYPES[span.kind], span.shape, span.start) for n, span in spans.items()
        }

    def read(self, name: str) -> Tensor:
        entry = self.entries[name]
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        if tensor.numel():
            with self.path.open("rb", buffering=0) as file:
                file.seek(entry.start)
                into = memoryview(tensor.view(-1).view(torch.uint8).numpy().data)
                while len(into):
                    got = file.readinto(into)
                    if not got:
                        raise CorruptFile(f"{self.path} ended inside {name!r}", hint="fetch it again")
                    into = into[got:]
        return tensor

    def map(self, name: str) -> Tensor:
        entry = self.entries[name]
        numbers = torch.Size(entry.shape).numel()
        if not numbers or entry.start % entry.dtype.itemsize:
            return self.read(name)
        size, end = self.path.stat().st_size, entry.start + numbers * entry.dtype.itemsize
        whole = torch.from_file(str(self.path), shared=False, size=size, dtype=torch.uint8)
        return whole[entry.start : end].view(entry.dtype).view(entry.shape)


class PickleFile(TensorSource):
    """An old `pytorch_model.bin`, read with `weights_only=True`: data, never code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_fetched(path)
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise CorruptFile(
                f"{path} is damaged or holds more than tensors ({type(error).__name__}), and code is not run",
                hint="use a safetensors file",
            ) from None
        if not isinstance(loaded, Mapping):
            raise CorruptFile(f"{path} holds a {type(loaded).__name__}, not a table of tensors")
        self.tensors = {name: tensor for name, tensor in loaded.items() if isinstance(tensor, Tensor)}
        if not self.tensors:
            keys = ", ".join(map(str, loaded))
            raise CorruptFile(
                f"{path} holds no tensors by name, but {keys or 'nothing':.80}",
                hint="it is a training program's checkpoint: save the state_dict in it alone",
            )
        self.entries = {name: TensorEntry(t.dtype, tuple(t.shape)) for name, t in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


class RenamedTensors(TensorSource):
    """Tensors of other sources; `places` has the source of each, and its name there."""

    def __init__(self, places: Mapping[str, tuple[TensorSource, str]]) -> None:
        self.places = places
        self.entries = {name: source.entries[inner] for name, (source, inner) in places.items()}

    def read(self, name: str) -> Tensor:
        source, inner = self.places[name]
        return source.read(inner)

    def map(self, name: str) -> Tensor:
        source, inner = self.places[name]
        return source.map(inner)


def join_shards(paths: list[Path], kind: type[SafeFile] | type[PickleFile]) -> TensorSource:
    """Several files as one."""
    places: dict[str, tuple[SafeFile | PickleFile, str]] = {}
    for part in (kind(path) for path in paths):
        for name in part.entries:
            other, _ = places.setdefault(name, (part, name))
            if other is not part:
                raise CorruptFile(
                    f"{part.path} and {other.path.name} both hold {name!r:.80}; one of them is wrong",
                    hint="fetch the folder again",
                )
    return RenamedTensors(places)


def without_prefix(source: TensorSource, prefix: str) -> TensorSource:
    """The tensors whose names begin with a prefix, without it; others are left out."""
    names = (name for name in source.entries if name.startswith(prefix))
    return RenamedTensors({name.removeprefix(prefix): (source, name) for name in names})


SAFE_INDEX = "model.safetensors.index.json"
WRAPPERS = ("module.", "_orig_mod.")  # of torch's DataParallel and DDP, and of torch.compile
TEXT_MODELS = ("language_model.", "model.language_model.")  # within models that also read images


def open_folder(folder: Path) -> TensorSource:
    """The weights in a folder of the Hugging Face layout: safetensors before old files, however sharded."""
    source = _open_files(folder)
    while source.entries:
        shared = [word for word in WRAPPERS if all(name.startswith(word) for name in source.entries)]
        if not shared:
            break
        source = without_prefix(source, shared[0])
    inner = [word for word in TEXT_MODELS if any(name.startswith(word) for name in source.entries)]
    return without_prefix(source, inner[0]) if inner else source


def _open_files(folder: Path) -> TensorSource:
    kinds: dict[str, type[SafeFile] | type[PickleFile]]
    kinds = {"model.safetensors": SafeFile, "pytorch_model.bin": PickleFile}
    for name, kind in kinds.items():
        stem, ending = name.split(".")
        if (folder / f"{name}.index.json").is_file():
            return join_shards(shards_of(folder / f"{name}.index.json"), kind)
        if (folder / name).is_file():
            return kind(folder / name)
        if parts := sorted(folder.glob(f"{stem}-*-of-*.{ending}")):  # shards whose index is not there
            if numbered_parts(parts[0]) != parts:
                raise NotFound(
                    f"{folder} has shards of several models, {parts[0].name} and {parts[-1].name}",
                    hint="fetch their index, or keep one model in a folder",
                )
            return join_shards(parts, kind)
    raise NotFound(
        f"{folder} has no model.safetensors or pytorch_model.bin", hint="is it the folder of a model?"
    )


def numbered_parts(path: Path) -> list[Path]:
    """Return the parts of a file, NAME-00001-of-00003.ENDING and so on, by the path of one; all are there."""
    named = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})", path.stem)
    stem, count = (named[1], int(named[2])) if named is not None else ("", 0)
    parts = [path.with_name(f"{stem}-{i:05d}-of-{count:05d}{path.suffix}") for i in range(1, count + 1)]
    for part in parts:
        if not part.is_file():
            raise NotFound(f"{part.parent} lacks {part.name}, one of {count} parts", hint="fetch it as well")
    return parts


def shards_of(index: Path) -> list[Path]:
    """The files an index names, all there."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
        raise CorruptFile(
            f'{index} is damaged: its "weight_map" is {where!r:.80} and names no files', hint="fetch it again"
        )
    there = {path.name: path for path in index.parent.iterdir()}
    names = sorted({Path(file).name for file in where.values()})
    for name in names:
        if name not in there:
            raise NotFound(f"{index} names {name!r:.80}, which is not there", hint="fetch it again")
    return [there[name] for name in names]


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file with the permissions that any new file gets from the umask.

    The library writes a private temporary file (mode 0600) and renames it: a model that was saved for others
    could be read by its owner only.
    """
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode & 0o777  # asking for the umask itself would change it for other threads
    save_file(dict(tensors), path, None if metadata is None else dict(metadata))
    path.chmod(mode)


def write_safetensors(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int = SHARD_BYTES) -> None:
    """Write tensors as one safetensors file, or as shards with an index if larger than `shard_bytes`."""
    from safetensors import SafetensorError

    shards: list[dict[str, Tensor]] = [{}]
    pending = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if pending and pending + size > shard_bytes:
            shards.append({})
            pending = 0
        shards[-1][name] = tensor.detach().cpu().contiguous()
        pending += size
    files = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    files = ["model.safetensors"] if len(shards) == 1 else files
    try:
        with ExitStack() as renaming:  # what was there stays until all is written
            for file, shard in zip(files, shards, strict=True):
                partial = renaming.enter_context(make_file_atomically(folder / file))
                save_tensors(shard, partial, {"format": "pt"})
    except SafetensorError as error:
        if "os error" not in str(error):
            raise
        number = int(str(error).rpartition("os error ")[2].partition(")")[0])
        raise OSError(number, os.strerror(number), str(folder)) from None
    if len(shards) == 1:
        return remove_others(folder, {*files})
    total = sum(t.numel() * t.element_size() for s in shards for t in s.values())
    weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(folder / SAFE_INDEX, index)
    return remove_others(folder, {SAFE_INDEX, *files})


def remove_others(folder: Path, kept_names: set[str]) -> None:
    """Take away what an earlier save left, so that the next load cannot mix old weights with new."""
    for path in [*folder.glob("model*.safetensors"), folder / SAFE_INDEX]:
        if path.name not in kept_names:
            path.unlink(missing_ok=True)


SHARDS, CHECKSUMS = "shards", "checksums.json"  # within the folder of a checkpoint


class ShardedFolder(TensorSource):
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
                sharding = json.loads(file.metadata["DCP_SHARDING_INFO"])
                starts = {name: tuple(sharding[name]["saved_offsets"]) for name in file.entries}
            except (KeyError, TypeError, ValueError) as error:
                message = f"{path} does not say where its parts begin ({error!r:.80})"
                raise CorruptFile(message, hint="remove that checkpoint, and use another") from None
            for name in (name for name in file.entries if name.startswith(group)):
                self.parts.setdefault(name.removeprefix(group), []).append((file, starts[name]))
        self.entries = {name: self._entry(name) for name in self.parts}

    def _entry(self, name: str) -> TensorEntry:
        """Return the entry of a whole tensor; its parts must have one type, and together its size."""
        parts = [(file.entries[self.group + name], start) for file, start in self.parts[name]]
        ends = [[a + b for a, b in zip(start, e.shape, strict=True)] for e, start in parts]
        shape = tuple(max(end) for end in zip(*ends, strict=True))
        numbers = sum(torch.Size(entry.shape).numel() for entry, _ in parts)
        if len({entry.dtype for entry, _ in parts}) > 1 or numbers != torch.Size(shape).numel():
            raise CorruptFile(
                f"{self.folder}: the parts of {name!r} hold {numbers:,} numbers and it has shape {shape}",
                hint="a shard is missing or from another step: use another checkpoint",
            )
        return TensorEntry(parts[0][0].dtype, shape)

    def read(self, name: str) -> Tensor:
        entry = self.entries[name]
        whole = torch.empty(entry.shape, dtype=entry.dtype)
        for file, start in self.parts[name]:
            part = file.read(self.group + name)
            whole[tuple(slice(at, at + size) for at, size in zip(start, part.shape, strict=True))] = part
        return whole


def is_sharded(folder: Path) -> bool:
    """Return whether a checkpoint's tensors lie in shards."""
    return (folder / SHARDS).is_dir()
