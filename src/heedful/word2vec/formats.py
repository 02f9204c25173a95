"""Word vectors as other programs write them: word2vec text and binary, GloVe text.

word2vec text      "V D\\n", then a line "word x_1 … x_D" per word
word2vec binary    "V D\\n", then "word " and D little-endian float32, a line end or not, per word
GloVe text         as word2vec text, without the first line
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np

from heedful.core.errors import ConfigError, CorruptFile, InputError
from heedful.core.files import open_atomically, open_bytes, stem_path

ENDINGS = {".safetensors": "safetensors", ".bin": "binary", ".txt": "text", ".vec": "text", ".glove": "glove"}
FORMATS = tuple(dict.fromkeys(ENDINGS.values()))
MAX_NUMBER = 1e18  # in a vector: the sum of squares stays finite in float32
SAMPLE_BYTES = 1 << 16  # by which text and binary are told apart
READ_BYTES = 1 << 20
HINT = "copy or save it again"

WordsAndTable = tuple[list[str], np.ndarray]


def format_of(path: Path) -> str:
    """Return the format to write, by the end of the name (before .gz)."""
    name = path.with_suffix("") if path.suffix == ".gz" else path
    if name.suffix not in ENDINGS:
        raise ConfigError(
            f"cannot tell the format of {path.name!r} by its ending",
            hint=f"use one of {', '.join(ENDINGS)} or give format= one of {', '.join(FORMATS)}",
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
        size = _parse_header(first)
        if format is None and stem_path(path).suffix == ".bin":
            format = "binary"
        if format == "glove" or (
            format is None and size is None and not re.fullmatch(rb"-?\d+ -?\d+\s*", first)
        ):
            return _read_text(chain([first], file), path, None, _count_columns(first, path), limit)
        if size is None:
            raise CorruptFile(
                f"{path}: the first line must be two whole numbers above 0, words and dimensions, not "
                f"{first[:40]!r}",
                hint="a file without that line is format='glove'",
            )
        count, dim = size
        sample = file.read(SAMPLE_BYTES)
        if format == "binary" or (format is None and _looks_binary(sample, dim)):
            return _read_binary(file, sample, path, count, dim, limit)
        *lines, tail = sample.split(b"\n")
        return _read_text(chain(lines, [tail + file.readline()], file), path, count, dim, limit)


def _parse_header(line: bytes) -> tuple[int, int] | None:
    """Return (V, D) if the line is a word2vec header with sizes above 0."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    count, dim = int(parts[0]), int(parts[1])
    return (count, dim) if count > 0 and dim > 0 else None


def _is_number_row(parts: list[bytes]) -> bool:
    """Return whether all columns but the first are numbers."""
    try:
        [float(part) for part in parts[1:]]
    except ValueError:
        return False
    return True


def _looks_binary(sample: bytes, dim: int) -> bool:
    """Return whether the first row is not a word and D numbers, as it would be in a text file."""
    parts = sample.split(b"\n", 1)[0].split()
    return not _is_number_row(parts) or (len(parts) != dim + 1 and len(sample) < SAMPLE_BYTES)


def _count_columns(first: bytes, path: Path) -> int:
    """Return the number of dimensions of a GloVe file by its first line."""
    parts = first.split()
    if len(parts) < 2 or not _is_number_row(parts):
        raise CorruptFile(
            f"{path}: the first line {first[:40]!r} is neither 'words dimensions' nor a word and numbers",
            hint="it is not a word2vec or GloVe file",
        )
    return len(parts) - 1


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
    _check_file_size(path, count, dim)
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


def _check_file_size(path: Path, count: int, dim: int) -> None:
    """Raise CorruptFile, before memory is taken, if the file cannot hold what its header says."""
    expected, actual = count * (4 * dim + 1), path.stat().st_size
    if stem_path(path) == path and expected > actual:
        raise CorruptFile(
            f"{path} is truncated or its first line is wrong: {count:,} words of {dim} dimensions need "
            f"{expected:,} bytes and it has {actual:,}",
            hint=HINT,
        )


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
