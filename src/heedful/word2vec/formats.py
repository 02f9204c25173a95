"""Word vectors as others write them: word2vec text and binary, GloVe text; and safetensors, which keeps
everything.

word2vec text      "V D\\n", then a line "word x_1 … x_D" per word
word2vec binary    "V D\\n", then "word " and D little-endian float32, a line end or not, per word
GloVe text         as word2vec text, without the first line
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from heedful.errors import ConfigError, CorruptFile, InputError, NotFound

FORMATS = ("safetensors", "binary", "text", "glove")
ENDINGS = {".safetensors": "safetensors", ".bin": "binary", ".txt": "text", ".vec": "text", ".glove": "glove"}
LARGEST = 1e18  # of a number in a vector: the sum of squares stays finite in float32


def guess(path: Path) -> str:
    """The format to write, by the end of the name (before .gz)."""
    name = path.with_suffix("") if path.suffix == ".gz" else path
    if name.suffix not in ENDINGS:
        raise ConfigError(
            f"cannot tell the format of {path.name!r} by its ending; use one of {', '.join(ENDINGS)} "
            f"or give format= one of {', '.join(FORMATS)}"
        )
    return ENDINGS[name.suffix]


def open_bytes(path: Path, mode: str) -> IO[bytes]:
    return gzip.open(path, mode) if path.suffix == ".gz" else path.open(mode)  # type: ignore[return-value]


def write_vectors(path: Path, words: list[str], table: np.ndarray, form: str) -> None:
    """Write one table in a word2vec or GloVe format."""
    bad = next((word for word in words if not word or word.split() != [word]), None)
    if bad is not None:
        raise InputError(
            f"the word {bad!r} is empty or has white space, which {form} files cannot hold; "
            "save as .safetensors, or rename it"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with gzip.open(partial, "wb") if path.suffix == ".gz" else partial.open("wb") as file:
        if form != "glove":
            file.write(f"{len(words)} {table.shape[1]}\n".encode())
        for word, row in zip(words, table):
            if form == "binary":
                file.write(word.encode() + b" " + row.astype("<f4").tobytes() + b"\n")
            else:
                file.write(f"{word} {' '.join(map(repr, row.astype(np.float32).tolist()))}\n".encode())
    partial.replace(path)


def read_vectors(
    path: Path, form: str | None = None, limit: int | None = None
) -> tuple[list[str], np.ndarray]:
    """(words, table) of a word2vec or GloVe file; the first `limit` words if given."""
    if not path.exists():
        raise NotFound(f"no file {path}; give the path of word vectors")
    try:
        with open_bytes(path, "rb") as file:
            words, table = read_stream(file, path, form, limit)
    except (gzip.BadGzipFile, EOFError) as error:
        raise CorruptFile(f"{path} is damaged: {error}; copy or download it again") from None
    check(path, words, table)
    return words, table


def read_stream(
    file: IO[bytes], path: Path, form: str | None, limit: int | None
) -> tuple[list[str], np.ndarray]:
    first = file.readline(1 << 20)
    size = header(first)
    if form is None and path.name.removesuffix(".gz").endswith(".bin"):
        form = "binary"
    if form == "glove" or (form is None and size is None and not re.fullmatch(rb"-?\d+ -?\d+\s*", first)):
        return read_text(with_first(first, file), path, None, count_columns(first, path), limit)
    if size is None:
        raise CorruptFile(
            f"{path}: the first line must be two whole numbers above 0, words and dimensions, not "
            f"{first[:40]!r}; a file without that line is format='glove'"
        )
    count, dim = size
    start = file.read(1 << 16)
    if form == "binary" or (form is None and looks_binary(start, dim)):
        return read_binary(file, start, path, count, dim, limit)
    return read_text(lines_after(start, file), path, count, dim, limit)


def header(line: bytes) -> tuple[int, int] | None:
    """(V, D) if the line is a word2vec header with sizes that can be."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    count, dim = int(parts[0]), int(parts[1])
    return (count, dim) if count > 0 and dim > 0 else None


def looks_binary(start: bytes, dim: int) -> bool:
    """A text file's next line is a word and D numbers; anything else is taken for float32."""
    parts = start.split(b"\n", 1)[0].split()
    try:
        [float(part) for part in parts[1:]]
    except ValueError:
        return True
    return len(parts) != dim + 1 and len(start) < 1 << 16


def count_columns(first: bytes, path: Path) -> int:
    parts = first.split()
    try:
        [float(part) for part in parts[1:]]
    except ValueError:
        parts = []
    if len(parts) < 2:
        raise CorruptFile(
            f"{path}: the first line {first[:40]!r} is neither 'words dimensions' nor a word and numbers; "
            "it is no word2vec or GloVe file"
        )
    return len(parts) - 1


def with_first(first: bytes, file: IO[bytes]) -> Iterator[bytes]:
    yield first
    yield from file


def lines_after(start: bytes, file: IO[bytes]) -> Iterator[bytes]:
    """Lines of a file of which `start` has been read."""
    *whole, tail = start.split(b"\n")
    yield from whole
    yield tail + file.readline()
    yield from file


def read_text(
    lines: Iterator[bytes], path: Path, count: int | None, dim: int, limit: int | None
) -> tuple[list[str], np.ndarray]:
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
                f"{path} line {number}: expected a word and {dim} numbers, got {text[:60]!r}; "
                "the file is damaged or not of this format"
            )
        words.append(parts[0])
        rows.append(row)
    if count is not None and limit is None and len(words) != count:
        raise CorruptFile(
            f"{path}: its first line promises {count:,} words and it has {len(words):,}; save it again"
        )
    return words, np.stack(rows) if rows else np.zeros((0, dim), np.float32)


def read_binary(
    file: IO[bytes], start: bytes, path: Path, count: int, dim: int, limit: int | None
) -> tuple[list[str], np.ndarray]:
    wanted = count if limit is None else min(count, limit)
    check_room(path, count, dim)
    words: list[str] = []
    table = np.empty((wanted, dim), dtype=np.float32)
    data, at, size = start, 0, 4 * dim
    for i in range(wanted):
        space = data.find(b" ", at)
        while space < 0 or space + 1 + size > len(data):
            more = file.read(max(1 << 20, 2 * size))
            if not more:
                raise CorruptFile(
                    f"{path} ends inside word {i + 1:,} of {count:,}: it is truncated, or its first line "
                    f"({count} {dim}) is wrong; copy or save it again"
                )
            data, at = data[at:] + more, 0
            space = data.find(b" ", at)
        words.append(data[at:space].lstrip(b"\n").decode("utf-8", errors="replace"))
        table[i] = np.frombuffer(data, dtype="<f4", count=dim, offset=space + 1)
        at = space + 1 + size
    if limit is None and (data[at:].strip(b"\n") or file.read(2).strip(b"\n")):
        raise CorruptFile(
            f"{path} goes on after word {count:,}, the last its first line promises; that line is wrong"
        )
    return words, table


def check_room(path: Path, count: int, dim: int) -> None:
    """Before memory is taken: could the file hold what its header says?"""
    need, have = count * (4 * dim + 1), path.stat().st_size
    if path.suffix != ".gz" and need > have:
        raise CorruptFile(
            f"{path} is truncated or its first line is wrong: {count:,} words of {dim} dimensions need "
            f"{need:,} bytes and it has {have:,}; copy or save it again"
        )


def check(path: Path, words: list[str], table: np.ndarray) -> None:
    """What no use of the vectors could survive: no words, the same word twice, numbers that are none or
    whose squares would be infinite.
    """
    if not words:
        raise CorruptFile(f"{path} has no words; it is empty or not a file of vectors")
    if len(set(words)) != len(words):
        seen: set[str] = set()
        twice = next(word for word in words if word in seen or seen.add(word))  # type: ignore[func-returns-value]
        raise CorruptFile(
            f"{path} has the word {twice!r} more than once; which vector is meant cannot be told: remove one"
        )
    for start in range(0, len(table), 65536):
        sizes = np.abs(table[start : start + 65536]).max(axis=1)
        bad = ~(sizes < LARGEST)
        if bad.any():
            row = int(bad.argmax())
            what = f"a number as large as {sizes[row]:.3g}" if np.isfinite(sizes[row]) else "NaN or infinity"
            raise CorruptFile(
                f"{path}: the vector of {words[start + row]!r:.80} has {what}; "
                "it was damaged or training diverged"
            )
