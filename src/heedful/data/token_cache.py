"""Text as ids: short texts in memory, documents tokenised once into memory-mapped files.

A cache folder holds tokens.bin (ids, uint16 or uint32, one document after another), offsets.bin (int64, where
each document starts, and the end) and header.json. It is written next to its final place and renamed, so it
is whole, or not there.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError
from heedful.core.files import make_folder_atomically
from heedful.data.batches import fingerprint_arrays, join_fingerprints
from heedful.data.readers import Documents
from heedful.data.tokenization import TokenizerProtocol, encode_many, special_token_ids, vocabulary_names

VERSION = 1
PIECE_CHARACTERS = 1 << 16  # encoded as one text
ROUND_CHARACTERS = 1 << 21  # encoded at once, on all cores
CHUNK_TEXTS = 1000  # short texts encoded at once
# Between a word and a line end every tokenizer has a boundary, so a long document may be cut there.
SAFE = re.compile(r"(?<=\w)\n(?=\S)")


@dataclass(frozen=True)
class RaggedArray:
    """Rows of different lengths in one flat array: row i is flat[offsets[i] : offsets[i + 1]]."""

    flat: NDArray[Any]
    offsets: NDArray[np.int64]
    fingerprint: str
    name: str = "the text"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        return self.flat[self.offsets[row] : self.offsets[row + 1]].astype(np.int64)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


def ragged_array(rows: Iterable[Sequence[int] | NDArray[Any]], name: str = "the data") -> RaggedArray:
    """Return rows of numbers in memory, without a Python object for each."""
    numbers, ends = array("I"), [0]
    for row in rows:
        numbers.extend(np.asarray(row).tolist())
        ends.append(len(numbers))
    flat, offsets = np.array(numbers, np.uint32), np.array(ends, np.int64)
    return RaggedArray(flat, offsets, fingerprint_arrays((flat, offsets)), name)


def encode_texts(texts: Iterable[str], tokenizer: TokenizerProtocol, name: str) -> RaggedArray:
    """Return the ids of many short texts, without special tokens, in memory."""
    left = iter(texts)
    chunks = iter(lambda: list(islice(left, CHUNK_TEXTS)), [])
    return ragged_array((ids for chunk in chunks for ids in encode_many(tokenizer, chunk)), name=name)


def tokenize_documents(
    source: Documents,
    tokenizer: TokenizerProtocol,
    *,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    empty: bool = False,
    cache: str | Path | None = None,
) -> RaggedArray:
    """Return the ids of every document between `before` and `after`, from the cache if they are there.

    Documents without a token are left out unless `empty` keeps their places. `cache` names a folder; None is
    .heed-cache next to the first file, or a temporary folder where nothing can be written there.
    """
    facts = ("ids", VERSION, len(tokenizer), list(before), list(after), empty)
    sample = next((text[:4096] for document in source for text in document), "")
    cut = [vocabulary_names(tokenizer), special_token_ids(tokenizer), tokenizer.encode(sample)]
    prints = source.fingerprint(), hashlib.sha256(json.dumps(cut).encode()).hexdigest()
    with ExitStack() as stack:
        root = _cache_root(source, cache)
        if root is None:  # files that are mapped live on without their names
            temporary = TemporaryDirectory(prefix="heed-cache-", ignore_cleanup_errors=True)
            root = Path(stack.enter_context(temporary))
        folder = root / join_fingerprints(*prints, json.dumps(facts))[:20]
        if not (folder / "header.json").is_file():
            rounds = _encode_rounds(source, tokenizer, before, after, empty)
            _write(folder, source.name, rounds, len(tokenizer))
        header = json.loads((folder / "header.json").read_text(encoding="utf-8"))
        flat = np.memmap(folder / "tokens.bin", header["dtype"], mode="r", shape=(header["tokens"],))
        offsets = np.memmap(folder / "offsets.bin", np.int64, mode="r", shape=(header["documents"] + 1,))
    # Plain views of the maps: every small slice of a memmap object would pay for its class.
    return RaggedArray(np.asarray(flat), np.asarray(offsets), header["data"], source.name)


def _cache_root(source: Documents, cache: str | Path | None) -> Path | None:
    """Return the folder of all caches; None if it would be next to the text and cannot be written."""
    beside = None
    if source.files and source.files[0].parent.stat().st_mode & 0o222:  # read-only for root as well
        beside = source.files[0].parent / ".heed-cache"
    folder = Path(cache) if cache is not None else beside
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
            return folder
        except OSError as error:
            if cache is not None:
                message = f"cache folder {folder} cannot be written ({error.strerror})"
                raise InputError(message, hint="choose another") from None
    return None


def _write(folder: Path, name: str, rounds: Iterable[tuple[list[int], list[int]]], vocab: int) -> None:
    """Write a cache folder whole. Several processes may do so at once: the first to finish wins."""
    # Some vocabularies have holes, so ids may go a little beyond their number.
    dtype = np.dtype(np.uint16 if vocab <= 60_000 else np.uint32)
    digest = hashlib.sha256(dtype.str.encode())
    total = count = 0
    with make_folder_atomically(folder, replace=False) as partial:
        with (partial / "tokens.bin").open("wb") as tokens, (partial / "offsets.bin").open("wb") as offsets:
            for ids, starts in rounds:
                data, begins = np.array(ids, dtype).tobytes(), np.array(starts, np.int64)
                tokens.write(data)
                offsets.write((begins + total).tobytes())
                digest.update(data + begins.tobytes())
                total, count = total + len(ids), count + len(starts)
            offsets.write(np.array([total], np.int64).tobytes())
        if total == 0:
            raise InputError(f"{name} holds no text", hint="is it the right file?")
        header = {"version": VERSION, "dtype": dtype.name, "tokens": total, "documents": count}
        (partial / "header.json").write_text(json.dumps(header | {"data": digest.hexdigest()}))


def _encode_rounds(
    source: Documents, tokenizer: TokenizerProtocol, before: Sequence[int], after: Sequence[int], empty: bool
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield ids in rounds of bounded size, and where in each of them documents start."""
    pending: list[tuple[str, bool]] = []  # a piece of text, and whether it begins a document
    size, inside = 0, False  # whether a document was begun and not ended

    def encode_pending() -> tuple[list[int], list[int]]:
        nonlocal inside
        ids: list[int] = []
        starts: list[int] = []
        for (_, first), piece in zip(pending, encode_many(tokenizer, [t for t, _ in pending]), strict=True):
            if first and inside:
                ids.extend(after)
                inside = False
            if not inside and (piece or (first and empty)):
                starts.append(len(ids))
                ids.extend(before)
                inside = True
            ids.extend(piece)
        return ids, starts

    for document in source:
        first = True
        for piece in _split_document(document):
            pending.append((piece, first))
            first = False
            size += len(piece) + 8
            if size >= ROUND_CHARACTERS:
                yield encode_pending()
                pending, size = [], 0
    ids, starts = encode_pending()
    yield ids + (list(after) if inside else []), starts


def _split_document(document: Iterable[str]) -> Iterator[str]:
    """Yield pieces that may be encoded apart: a document cut between lines, else words, else anywhere."""
    buffer = ""
    for text in document:
        buffer, at = buffer + text, 0
        while len(buffer) - at > 2 * PIECE_CHARACTERS:
            start, end = at + PIECE_CHARACTERS, at + 2 * PIECE_CHARACTERS
            boundary, space = SAFE.search(buffer, start, end), buffer.rfind(" ", at + 1, end)
            cut = boundary.start() if boundary else space if space > 0 else start
            yield buffer[at:cut]
            at = cut
        buffer = buffer[at:]
    yield buffer
