"""safetensors written row by row and read in place: no second copy of a table, no pickle.

The layout is the safetensors library's own (8 bytes of length, a JSON header, raw tensors), and that library
finds the tensors again; written here because it wants every tensor whole in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import CorruptFile, HeedfulError
from heedful.files import open_atomically
from heedful.weights.layout import read_layout

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
DIGEST, BLANK = "sha256", 64 * "0"


def write(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write to a neighbour and rename, so that a file under its own name is always whole.

    Its metadata hold the SHA-256 of the file itself, taken while the digest's own place was BLANK.
    """
    header: dict[str, Any] = {"__metadata__": {**metadata, DIGEST: BLANK}}
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
    head = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(head)
    try:
        with open_atomically(path) as file:
            file.write(head)
            for tensor in tensors.values():
                for start in range(0, len(tensor), ROWS):
                    rows = np.ascontiguousarray(tensor[start : start + ROWS]).tobytes()
                    digest.update(rows)
                    file.write(rows)
            file.seek(head.index(BLANK.encode()))
            file.write(digest.hexdigest().encode())
    except OSError as error:
        kept = "what was there before is whole" if path.is_file() else "nothing is left there"
        raise HeedfulError(f"could not write {path}: {error.strerror or error}", hint=kept) from None


def read(path: Path, mmap: bool = False) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and metadata; with `mmap` the pages are read when touched, and may not be written.

    What is read whole is compared with the digest the file was written with, if it has one.
    """
    spans, metadata = read_layout(path)
    tensors: dict[str, np.ndarray] = {}
    for name, span in spans.items():
        if span.kind not in KINDS:
            raise CorruptFile(
                f"{path}: tensor {name!r:.80} is {span.kind}, no kind that word vectors have",
                hint="copy or save it again",
            )
        kind = np.dtype(KINDS[span.kind])
        if mmap and span.size:
            tensors[name] = np.memmap(path, dtype=kind, mode="r", offset=span.start, shape=span.shape)
        else:
            count = math.prod(span.shape)
            tensors[name] = np.fromfile(path, kind, count, offset=span.start).reshape(span.shape)
    if not mmap and DIGEST in metadata:
        head = min((span.start for span in spans.values()), default=path.stat().st_size)
        check_digest(path, head, tensors, metadata[DIGEST])
    return tensors, metadata


def check_digest(path: Path, head: int, tensors: Mapping[str, np.ndarray], written: str) -> None:
    """Raise CorruptFile if the first `head` bytes and the tensors are not those the digest was taken of."""
    with path.open("rb") as file:
        found = hashlib.sha256(file.read(head).replace(written.encode(), BLANK.encode(), 1))
    for tensor in tensors.values():
        found.update(tensor.data)
    if found.hexdigest() != written:
        raise CorruptFile(f"{path} is damaged: its checksum is another", hint="copy or save it again")


def need(path: Path, tensors: Mapping[str, np.ndarray], *names: str) -> None:
    """One clear error for a file without a tensor that is asked of it."""
    for name in names:
        if name not in tensors:
            raise CorruptFile(f"{path} has no tensor {name!r}; copy or save it again")


def check_shapes(path: Path, tensors: Mapping[str, np.ndarray], words: int) -> None:
    """Raise CorruptFile for tables and counts that do not fit each other and the number of words."""
    dim = tensors["input"].shape[-1] if tensors["input"].ndim == 2 else 0
    rows = {"input": words, "counts": words}
    for name in ("input", "output", "counts"):
        if name not in tensors:
            continue
        kind, shape = tensors[name].dtype.kind, tensors[name].shape
        table = kind == "f" and len(shape) == 2 and shape[1] == dim > 0
        listed = kind in "iu" and len(shape) == 1
        if not (listed if name == "counts" else table) or shape[0] != rows.get(name, shape[0]):
            raise CorruptFile(
                f"{path}: {name!r}, {tensors[name].dtype} of shape {shape}, does not fit {words:,} words",
                hint="copy or save it again",
            )


def words_to_bytes(words: list[str]) -> np.ndarray:
    return np.frombuffer(json.dumps(words, ensure_ascii=False).encode(), dtype=np.uint8)


def bytes_to_words(data: np.ndarray) -> list[str]:
    """The words of a file; one that was damaged is an error."""
    try:
        return [str(word) for word in json.loads(bytes(data))]
    except (TypeError, ValueError):
        raise CorruptFile("the words of this file cannot be read; copy or save it again") from None
