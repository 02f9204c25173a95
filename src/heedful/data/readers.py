"""Plain text from disk: a file, a folder, .gz, .xz or .bz2, several of them; never all in memory at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from heedful.core.errors import InputError, MissingPackage, nearest
from heedful.core.files import Paths, expand_paths, name_files, read_blocks, read_lines

EDGE_BYTES = 1 << 16  # of either end of a file, which its fingerprint looks at
Unit = Literal["file", "paragraph", "line"]


@dataclass(frozen=True)
class Documents:
    """Texts to be read, each a sequence of pieces that are joined: a document may be larger than memory.

    `files` and `settings` say where they come from: the same ones give the same texts.
    """

    open: Callable[[], Iterator[Iterable[str]]]
    files: tuple[Path, ...] = ()
    settings: tuple[Any, ...] = ()
    name: str = "the text"

    def __iter__(self) -> Iterator[Iterable[str]]:
        return self.open()

    def fingerprint(self) -> str:
        """Return the sha256 of the settings and of each file's name, size, time and ends, a cache's key."""
        digest = hashlib.sha256(repr(self.settings).encode())
        for path in self.files:
            stat = path.stat()
            digest.update(f"\0{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
            with path.open("rb") as file:
                digest.update(file.read(EDGE_BYTES))
                file.seek(max(0, stat.st_size - EDGE_BYTES))
                digest.update(file.read(EDGE_BYTES))
        if not self.files:
            for document in self:
                digest.update("".join(document).encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def documents(paths: Paths, unit: Unit = "file", encoding: str = "utf-8") -> Documents:
    """Return the documents of text files: one per file, per paragraph (between blank lines), or per line."""
    if unit not in ("file", "paragraph", "line"):
        raise InputError(
            f"unit={unit!r} is unknown", hint="a document is a 'file', a 'paragraph' or a 'line'"
        )
    files = tuple(expand_paths(paths))
    for path in files:
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty")

    def read_documents() -> Iterator[Iterable[str]]:
        for path in files:
            if unit == "file":
                yield read_blocks(path, encoding)
            elif unit == "line":
                yield from ([line] for line in read_lines(path, encoding) if line.strip())
            else:
                yield from (["\n".join(lines)] for lines in split_paragraphs(read_lines(path, encoding)))

    return Documents(read_documents, files, ("text", unit, encoding), name_files(files))


def split_paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines of each paragraph; blank lines part them."""
    for has_text, paragraph in groupby(lines, key=lambda line: bool(line.strip())):
        if has_text:
            yield list(paragraph)


def are_examples(source: Any, kind: type) -> bool:
    """Return whether examples themselves were passed, a sequence of `kind`, and not paths to them."""
    return isinstance(source, Sequence) and len(source) > 0 and isinstance(source[0], kind)


def texts(values: Iterable[str], name: str = "the texts") -> Documents:
    """Return texts in memory as documents."""
    held = list(values)
    return Documents(lambda: ([text] for text in held), name=name)


def from_hub(name: str, split: str = "train", column: str = "text", **options: Any) -> Documents:
    """Return a column of a data set of the Hugging Face hub, through its `datasets` package."""
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise MissingPackage(
            "data sets of the hub need the package datasets", hint="pip install datasets"
        ) from None
    table = datasets.load_dataset(name, split=split, **options)
    if column not in table.column_names:
        known = ", ".join(table.column_names)
        raise InputError(
            f"{name} has no column {column!r}", hint=nearest(column, table.column_names) or "it has " + known
        )
    settings = ("hub", name, split, column, getattr(table, "_fingerprint", None))
    return Documents(lambda: ([str(row[column])] for row in table), (), settings, name)


def split_documents(documents: Documents, part: float) -> tuple[Documents, Documents]:
    """Split a text into all but the last `part` of its characters, and that part; a document may be cut."""
    total = sum(len(text) for document in documents for text in document)
    cut = int(total * (1 - part))

    def read_range(low: int, high: int) -> Iterator[Iterator[str]]:
        at = 0

        def inside(document: Iterable[str]) -> Iterator[str]:
            nonlocal at
            for text in document:
                piece = text[max(low - at, 0) : max(high - at, 0)]
                at += len(text)
                if piece:
                    yield piece
                if at >= high:
                    return

        for document in documents:
            rest = inside(document)
            yield rest
            for _ in rest:  # a reader may leave early; the count may not
                pass
            if at >= high:
                return

    settings = lambda which: (*documents.settings, "part", which, cut)
    first = Documents(lambda: read_range(0, cut), documents.files, settings("first"), documents.name)
    return first, Documents(
        lambda: read_range(cut, total), documents.files, settings("last"), f"the end of {documents.name}"
    )
