"""Plain text from disk: a file, a folder, .gz, .xz or .bz2, several of them; never all in memory at once."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, cast

from heedful.errors import InputError, MissingPackage, NotFound, nearest

OPENERS: dict[str, Callable[..., IO[bytes]]] = {
    ".gz": cast("Callable[..., IO[bytes]]", gzip.open),
    ".bz2": cast("Callable[..., IO[bytes]]", bz2.open),
    ".xz": cast("Callable[..., IO[bytes]]", lzma.open),
}
BLOCK = 1 << 20  # bytes read at once
EDGE = 1 << 16  # bytes at either end of a file that its fingerprint looks at
Paths = str | Path | Sequence[str | Path]
Unit = Literal["file", "paragraph", "line"]
DAMAGED = (gzip.BadGzipFile, EOFError, lzma.LZMAError, zlib.error)


def expand(paths: Paths) -> list[Path]:
    """All files meant: a folder stands for its files in the order of their names, hidden ones left out."""
    found: list[Path] = []
    for one in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(one)
        if path.is_dir():
            hidden = lambda p, root=path: any(part[0] == "." for part in p.relative_to(root).parts)
            inside = sorted(p for p in path.rglob("*") if p.is_file() and not hidden(p))
            if not inside:
                raise InputError(f"{path} is a folder without files", hint="put .txt or .txt.gz files there")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            around = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = nearest(path.name, around) or "check the path"
            raise NotFound(f"no file or folder {path}", hint=hint)
    if not found:
        raise InputError("no files were given", hint="pass a path, or a list of paths")
    return found


def read_blocks(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The text of a file in blocks of about a megabyte, line ends as \\n. A bad byte is named by line."""
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        encoding = "utf-8-sig"  # the same, less a byte order mark
    inner = codecs.getincrementaldecoder(encoding)()
    decoder = io.IncrementalNewlineDecoder(inner, translate=True)
    lines = 1
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            while True:
                block = file.read(BLOCK)
                text = decoder.decode(block, final=not block)
                lines += text.count("\n")
                if text:
                    yield text
                if not block:
                    return
    except UnicodeDecodeError as error:
        raise InputError(_wrong_encoding(path, encoding, error, lines)) from None
    except DAMAGED as error:
        raise InputError(
            f"{path} is damaged or not what its name says ({error})", hint="fetch it again"
        ) from None


def _wrong_encoding(path: Path, encoding: str, error: UnicodeDecodeError, lines: int) -> str:
    bad = bytes(error.object[error.start : error.end])
    if error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return f"{path} is UTF-16, not {encoding.removesuffix('-sig')}; pass encoding='utf-16'"
    good = error.object[: error.start].decode(encoding.removesuffix("-sig"), "replace")
    line = lines + good.replace("\r\n", "\n").replace("\r", "\n").count("\n")
    name = encoding.removesuffix("-sig")
    what = f"{path}, line {line}: byte 0x{bad.hex()} is no {name}"
    return f"{what}; pass encoding= ('latin-1', 'cp1252' …) or convert it"


def lines_of(blocks: Iterable[str]) -> Iterator[str]:
    """Blocks of text as lines without their ends."""
    tail = ""
    for block in blocks:
        lines = (tail + block).split("\n")
        tail = lines.pop()
        yield from lines
    if tail:
        yield tail


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a file without their ends."""
    return lines_of(read_blocks(path, encoding))


@dataclass(frozen=True)
class Documents:
    """Texts to be read, each a sequence of pieces that are joined: a document may be larger than memory.

    `files` and `settings` say where they come from: the same ones give the same texts.
    """

    open: Callable[[], Iterator[Iterable[str]]]
    files: tuple[Path, ...] = ()
    settings: tuple[Any, ...] = field(default=())
    name: str = "the text"

    def __iter__(self) -> Iterator[Iterable[str]]:
        return self.open()

    def fingerprint(self) -> str:
        """sha256 of the settings and of each file's name, size, time and ends: to know a cache by."""
        digest = hashlib.sha256(repr(self.settings).encode())
        for path in self.files:
            stat = path.stat()
            digest.update(f"\0{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
            with path.open("rb") as file:
                digest.update(file.read(EDGE))
                file.seek(max(0, stat.st_size - EDGE))
                digest.update(file.read(EDGE))
        if not self.files:
            for document in self:
                digest.update("".join(document).encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def documents(paths: Paths, unit: Unit = "file", encoding: str = "utf-8") -> Documents:
    """The documents of text files: one per file, per paragraph (blank lines between them), or per line."""
    if unit not in ("file", "paragraph", "line"):
        raise InputError(f"documents={unit!r}: a document is a 'file', a 'paragraph' or a 'line'")
    files = tuple(expand(paths))
    for path in files:
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty")

    def read() -> Iterator[Iterable[str]]:
        for path in files:
            if unit == "file":
                yield read_blocks(path, encoding)
            elif unit == "line":
                yield from ([line] for line in read_lines(path, encoding) if line.strip())
            else:
                yield from (["\n".join(lines)] for lines in paragraphs(read_lines(path, encoding)))

    return Documents(read, files, ("text", unit, encoding), file_name(files))


def paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines that stand together, between blank ones."""
    held: list[str] = []
    for line in lines:
        if line.strip():
            held.append(line)
        elif held:
            yield held
            held = []
    if held:
        yield held


def file_name(files: Sequence[Path]) -> str:
    """How errors call several files."""
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def texts(values: Iterable[str], name: str = "the texts") -> Documents:
    """Documents that are in memory already."""
    held = list(values)
    return Documents(lambda: ([text] for text in held), name=name)


def from_hub(name: str, split: str = "train", column: str = "text", **options: Any) -> Documents:
    """A column of a data set of the Hugging Face hub, through its `datasets` package."""
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise MissingPackage("data sets of the hub need the package datasets: pip install datasets") from None
    table = datasets.load_dataset(name, split=split, **options)
    if column not in table.column_names:
        known = ", ".join(table.column_names)
        raise InputError(
            f"{name} has no column {column!r}", hint=nearest(column, table.column_names) or "it has " + known
        )
    print_of = getattr(table, "_fingerprint", None)
    read = lambda: ([str(row[column])] for row in table)
    return Documents(read, (), ("hub", name, split, column, print_of), name)
