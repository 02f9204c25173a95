"""Vectors and checkpoints as safetensors files: tensors, the words as JSON, a state as JSON, a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heedful.core.errors import CorruptFile, HeedfulError
from heedful.core.files import open_atomically
from heedful.core.locks import FileLock
from heedful.weights.formats.tensor_layout import read_layout
from heedful.word2vec.word_counts import HuffmanTree

FILE_FORMAT = "heedful-word2vec"
DTYPES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
DIGEST, BLANK_DIGEST = "sha256", 64 * "0"
HINT = "copy or save it again"

Tensors = dict[str, np.ndarray]


def file_lock(path: Path) -> FileLock:
    """Return the lock of a file that a run writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(
        path.with_name(path.name + ".lock"), str(path), "wait for it to end, or name another file"
    )


def write_tensor_file(path: Path, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
    """Write tensors and a state that JSON can hold: the same values always give the same bytes.

    (safetensors' own save_file orders its metadata differently in each process and leaves a file behind if it
    is killed.) The metadata hold the SHA-256 of the file, taken while the digest's own place was
    BLANK_DIGEST.
    """
    header: dict[str, Any] = {"__metadata__": {"format": FILE_FORMAT, "state": json.dumps(state)}}
    header["__metadata__"][DIGEST] = BLANK_DIGEST
    offset = 0
    for name, tensor in tensors.items():
        ends = [offset, offset := offset + tensor.nbytes]
        header[name] = {"dtype": KINDS[tensor.dtype.str], "shape": tensor.shape, "data_offsets": ends}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 64)
    start = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(start)
    try:
        with open_atomically(path) as file:
            file.write(start)
            for tensor in tensors.values():
                data = np.ascontiguousarray(tensor).data
                digest.update(data)
                file.write(data)
            file.seek(start.index(BLANK_DIGEST.encode()))
            file.write(digest.hexdigest().encode())
    except OSError as error:
        left = "what was there before is whole" if path.is_file() else "nothing is left there"
        raise HeedfulError(f"could not write {path}: {error.strerror or error}", hint=left) from None


def read_tensor_file(path: Path, mmap: bool = False) -> tuple[Tensors, dict[str, Any]]:
    """Return the tensors and the state of a file; with `mmap` pages are read when touched, never written.

    A file that is read whole is compared with the checksum it was written with, if it has one.
    """
    spans, metadata = read_layout(path)
    tensors: Tensors = {}
    for name, span in spans.items():
        if span.kind not in DTYPES:
            raise CorruptFile(
                f"{path}: tensor {name!r:.80} is {span.kind}, a type that word vectors do not have", hint=HINT
            )
        dtype = np.dtype(DTYPES[span.kind])
        if mmap and span.size:
            tensors[name] = np.memmap(path, dtype, mode="r", offset=span.start, shape=span.shape)
        else:
            values = np.fromfile(path, dtype, span.size // dtype.itemsize, offset=span.start)
            tensors[name] = values.reshape(span.shape)
    if metadata.get("format") != FILE_FORMAT:
        raise CorruptFile(
            f"{path} was not written by heed word2vec",
            hint="Word2Vec.from_table takes tables of other models",
        )
    if not mmap and DIGEST in metadata:
        header_bytes = min((span.start for span in spans.values()), default=path.stat().st_size)
        _check_digest(path, header_bytes, tensors, metadata[DIGEST])
    return tensors, _parse_state(path, metadata.get("state", ""))


def _check_digest(path: Path, header_bytes: int, tensors: Tensors, recorded_digest: str) -> None:
    with path.open("rb") as file:
        header = file.read(header_bytes).replace(recorded_digest.encode(), BLANK_DIGEST.encode(), 1)
    digest = hashlib.sha256(header)
    for tensor in tensors.values():
        digest.update(tensor.data)
    if digest.hexdigest() != recorded_digest:
        raise CorruptFile(f"{path} is damaged: its checksum is another", hint=HINT)


def _parse_state(path: Path, text: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(text)
        settings, history = state["settings"], state.get("history", [])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        settings, history = False, []
    sound = isinstance(settings, dict | None) and isinstance(history, list)
    if not sound or not all(isinstance(loss, int | float) for loss in history):
        raise CorruptFile(f"{path} has lost its settings", hint=HINT)
    return state


def pack_tables(
    words: list[str], input: np.ndarray, output: np.ndarray | None, counts: np.ndarray | None,
    tree: HuffmanTree | None,
) -> Tensors:  # fmt: skip
    """Return the tensors of a file: the words as bytes of JSON, and the tables that exist."""
    text = json.dumps(words, ensure_ascii=False).encode()
    tensors = {"input": input, "words": np.frombuffer(text, dtype=np.uint8)}
    if output is not None:
        tensors["output"] = output
    if counts is not None:
        tensors["counts"] = counts
    if tree is not None:
        tensors |= {f"paths.{name}": value for name, value in tree._asdict().items()}
    return tensors


def unpack_words(path: Path, tensors: Tensors) -> list[str]:
    """Return the words of a file, after checking that its tables fit them and each other."""
    require_tensors(path, tensors, "input", "words")
    try:
        words = [str(word) for word in json.loads(bytes(tensors["words"]))]
    except (RecursionError, TypeError, ValueError):
        raise CorruptFile(f"the words of {path} cannot be read", hint=HINT) from None
    dim = tensors["input"].shape[-1] if tensors["input"].ndim == 2 else 0
    for name in ("input", "output", "counts"):
        if name not in tensors:
            continue
        dtype, shape = tensors[name].dtype, tensors[name].shape
        is_table = dtype.kind == "f" and len(shape) == 2 and shape[1] == dim > 0
        fits = dtype.kind in "iu" and len(shape) == 1 if name == "counts" else is_table
        if not fits or (name != "output" and shape[0] != len(words)):
            raise CorruptFile(
                f"{path}: {name!r}, {dtype} of shape {shape}, does not fit {len(words):,} words", hint=HINT
            )
    return words


def unpack_tree(path: Path, tensors: Tensors) -> HuffmanTree | None:
    """Return the tree of hierarchical softmax, if the file has one."""
    names = [f"paths.{name}" for name in HuffmanTree._fields]
    if not any(name in tensors for name in names):
        return None
    require_tensors(path, tensors, *names)
    return HuffmanTree(*(np.array(tensors[name]) for name in names))


def require_tensors(path: Path, tensors: Tensors, *names: str) -> None:
    """Raise CorruptFile for a file that lacks one of the tensors."""
    for name in names:
        if name not in tensors:
            raise CorruptFile(f"{path} has no tensor {name!r}", hint=HINT)
