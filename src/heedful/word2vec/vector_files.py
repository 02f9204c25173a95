"""Files of word vectors: our safetensors files, with all that training needs, and those of other programs.

safetensors        tensors, the words as JSON, a state as JSON, a checksum; of vectors and of checkpoints
word2vec text      "V D\\n", then a line "word x_1 … x_D" per word
word2vec binary    "V D\\n", then "word " and D little-endian float32, a line end or not, per word
GloVe text         as word2vec text, without the first line
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from heedful.core.errors import ConfigError, CorruptFile, HeedfulError, InputError
from heedful.core.files import open_atomically, open_bytes, stem_path
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
        dtype, count = np.dtype(DTYPES[span.kind]), math.prod(span.shape)
        if mmap and count:
            tensors[name] = np.memmap(path, dtype, mode="r", offset=span.start, shape=span.shape)
        else:
            values = np.fromfile(path, dtype, count, offset=span.start)
            tensors[name] = values.reshape(span.shape)
    if metadata.get("format") != FILE_FORMAT:
        raise CorruptFile(
            f"{path} was not written by heed word2vec",
            hint="Word2Vec.from_table takes tables of other models",
        )
    if not mmap and DIGEST in metadata:
        header_bytes = min((span.start for span in spans.values()), default=path.stat().st_size)
        with path.open("rb") as file:
            header = file.read(header_bytes).replace(metadata[DIGEST].encode(), BLANK_DIGEST.encode(), 1)
        digest = hashlib.sha256(header)
        for tensor in tensors.values():
            digest.update(tensor.data)
        if digest.hexdigest() != metadata[DIGEST]:
            raise CorruptFile(f"{path} is damaged: its checksum is another", hint=HINT)
    try:
        state: dict[str, Any] = json.loads(metadata.get("state", ""))
        settings, history = state["settings"], state.get("history", [])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        settings, history = False, []
    sound = isinstance(settings, dict | None) and isinstance(history, list)
    if not sound or not all(isinstance(loss, int | float) for loss in history):
        raise CorruptFile(f"{path} has lost its settings", hint=HINT)
    return tensors, state


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


# Word vectors as other programs write them.


ENDINGS = {".safetensors": "safetensors", ".bin": "binary", ".txt": "text", ".vec": "text", ".glove": "glove"}
FORMATS = tuple(dict.fromkeys(ENDINGS.values()))
MAX_NUMBER = 1e18  # in a vector: the sum of squares stays finite in float32
SAMPLE_BYTES = 1 << 16  # by which text and binary are told apart
READ_BYTES = 1 << 20

WordsAndTable = tuple[list[str], np.ndarray]


def format_of(path: Path) -> str:
    """Return the format to write, by the end of the name (before .gz)."""
    name = path.with_suffix("") if path.suffix == ".gz" else path
    if name.suffix not in ENDINGS:
        raise ConfigError(
            f"cannot tell the format of {path.name!r} by its ending",
            hint=f"use one of {', '.join(ENDINGS)} or give `format=` one of {', '.join(FORMATS)}",
        )
    return ENDINGS[name.suffix]


def write_vectors(path: Path, words: list[str], table: np.ndarray, format: str) -> None:
    """Write one table in a word2vec or GloVe format."""
    bad = next((word for word in words if not word or word.split() != [word]), None)
    if bad is not None:
        raise InputError(
            f"the word {bad!r} is empty or has white space, which {format} files cannot hold",
            hint="save as .safetensors, or rename it",
        )
    gzipped = path.suffix == ".gz"
    with (
        open_atomically(path) as raw,
        gzip.GzipFile(fileobj=raw, mode="wb") if gzipped else nullcontext(raw) as file,
    ):
        if format != "glove":
            file.write(f"{len(words)} {table.shape[1]}\n".encode())
        for word, row in zip(words, table):
            if format == "binary":
                file.write(word.encode() + b" " + row.astype("<f4").tobytes() + b"\n")
            else:
                file.write(f"{word} {' '.join(map(repr, row.astype(np.float32).tolist()))}\n".encode())


def read_vector_file(path: Path, format: str | None = None, limit: int | None = None) -> WordsAndTable:
    """Read the words and the table of a word2vec or GloVe file; only the first `limit` words if given."""
    with open_bytes(path, CorruptFile) as file:
        first = file.readline(READ_BYTES)
        parts = first.split()
        sizes = [int(part) for part in parts] if len(parts) == 2 and all(p.isdigit() for p in parts) else [0]
        size = sizes if min(sizes) > 0 else None  # V and D, if the line is a word2vec header
        if format is None and stem_path(path).suffix == ".bin":
            format = "binary"
        if format == "glove" or (
            format is None and size is None and not re.fullmatch(rb"-?\d+ -?\d+\s*", first)
        ):
            if len(parts) < 2 or not _is_number_row(parts):
                what = f"the first line {first[:40]!r} is neither 'words dimensions' nor a word and numbers"
                raise CorruptFile(f"{path}: {what}", hint="it is not a word2vec or GloVe file")
            return _read_text(chain([first], file), path, None, len(parts) - 1, limit)
        if size is None:
            raise CorruptFile(
                f"{path}: the first line must be two whole numbers above 0, words and dimensions, not "
                f"{first[:40]!r}",
                hint="a file without that line is `format='glove'`",
            )
        count, dim = size
        sample = file.read(SAMPLE_BYTES)
        row = sample.split(b"\n", 1)[0].split()
        # The first row is not a word and D numbers, as it would be in a text file.
        binary = not _is_number_row(row) or (len(row) != dim + 1 and len(sample) < SAMPLE_BYTES)
        if format == "binary" or (format is None and binary):
            return _read_binary(file, sample, path, count, dim, limit)
        *lines, tail = sample.split(b"\n")
        return _read_text(chain(lines, [tail + file.readline()], file), path, count, dim, limit)


def _is_number_row(parts: list[bytes]) -> bool:
    """Return whether all columns but the first are numbers."""
    try:
        [float(part) for part in parts[1:]]
    except ValueError:
        return False
    return True


def _read_text(
    lines: Iterator[bytes], path: Path, count: int | None, dim: int, limit: int | None
) -> WordsAndTable:
    words: list[str] = []
    rows: list[np.ndarray] = []
    for number, line in enumerate(lines, start=1 if count is None else 2):
        if limit is not None and len(words) == limit:
            break
        text = line.decode("utf-8", errors="replace").rstrip()
        if not text:
            continue
        parts = text.rsplit(" ", dim)  # from the right: a GloVe word may itself have spaces
        try:
            row = np.array(parts[1:], dtype=np.float32)
        except ValueError:
            row = np.zeros(0, dtype=np.float32)
        if len(row) != dim:
            raise CorruptFile(
                f"{path} line {number}: expected a word and {dim} numbers, got {text[:60]!r}",
                hint="the file is damaged or not of this format",
            )
        words.append(parts[0])
        rows.append(row)
    if count is not None and limit is None and len(words) != count:
        raise CorruptFile(
            f"{path}: its first line promises {count:,} words and it has {len(words):,}", hint="save it again"
        )
    return words, np.stack(rows) if rows else np.zeros((0, dim), np.float32)


def _read_binary(
    file: IO[bytes], sample: bytes, path: Path, count: int, dim: int, limit: int | None
) -> WordsAndTable:
    expected, actual = count * (4 * dim + 1), path.stat().st_size
    if stem_path(path) == path and expected > actual:  # before memory is taken
        raise CorruptFile(
            f"{path} is truncated or its first line is wrong: {count:,} words of {dim} dimensions need "
            f"{expected:,} bytes and it has {actual:,}",
            hint=HINT,
        )
    rows = count if limit is None else min(count, limit)
    words: list[str] = []
    table = np.empty((rows, dim), dtype=np.float32)
    data, at, size = sample, 0, 4 * dim
    for i in range(rows):
        space = data.find(b" ", at)
        while space < 0 or space + 1 + size > len(data):
            more = file.read(max(READ_BYTES, 2 * size))
            if not more:
                raise CorruptFile(
                    f"{path} ends inside word {i + 1:,} of {count:,}: it is truncated, or its first line "
                    f"({count} {dim}) is wrong",
                    hint=HINT,
                )
            data, at = data[at:] + more, 0
            space = data.find(b" ", at)
        words.append(data[at:space].lstrip(b"\n").decode("utf-8", errors="replace"))
        table[i] = np.frombuffer(data, dtype="<f4", count=dim, offset=space + 1)
        at = space + 1 + size
    if limit is None and (data[at:].strip(b"\n") or file.read(2).strip(b"\n")):
        raise CorruptFile(f"{path} goes on after word {count:,}, the last its first line promises", hint=HINT)
    return words, table


def check_vectors(path: Path, words: list[str], table: np.ndarray) -> None:
    """Raise CorruptFile for no words, a word twice, and numbers that are none or whose squares overflow."""
    if not words:
        raise CorruptFile(f"{path} has no words", hint="it is empty or not a file of vectors")
    if len(set(words)) != len(words):
        seen: set[str] = set()
        twice = next(word for word in words if word in seen or seen.add(word))  # type: ignore[func-returns-value]
        raise CorruptFile(f"{path} has the word {twice!r} more than once", hint="remove one of them")
    for start in range(0, len(table), 65536):
        sizes = np.abs(table[start : start + 65536]).max(axis=1)
        bad = ~(sizes < MAX_NUMBER)
        if bad.any():
            row = int(bad.argmax())
            what = f"a number as large as {sizes[row]:.3g}" if np.isfinite(sizes[row]) else "NaN or infinity"
            raise CorruptFile(
                f"{path}: the vector of {words[start + row]!r:.80} has {what}",
                hint="it was damaged or training diverged",
            )
