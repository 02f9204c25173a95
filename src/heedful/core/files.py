"""Files: which ones are meant, how compressed text is read, and how a file or folder is written whole."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import json
import lzma
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from heedful.core.errors import ConfigError, CorruptFile, InputError, NotFound, nearest

Paths = str | Path | Sequence[str | Path]

MAX_JSON_BYTES = 50 * 10**6  # a hostile table takes twenty times that in memory
BLOCK_BYTES = 1 << 20  # how much of a text is read at once
COMPRESSED: dict[str, Callable[..., IO[bytes]]] = {
    ".gz": cast("Callable[..., IO[bytes]]", gzip.open),
    ".bz2": cast("Callable[..., IO[bytes]]", bz2.open),
    ".xz": cast("Callable[..., IO[bytes]]", lzma.open),
}
IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
)
DECOMPRESSION_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)  # gzip and bz2 raise the first


def expand_paths(paths: Paths) -> list[Path]:
    """Return all files meant: a folder stands for its files by name, without hidden ones."""
    files: list[Path] = []
    for one in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(one)
        if os.path.isdir(path):  # unlike Path's own, it takes a whole text for what it is: no path
            if not (inside := visible_files(path)):
                raise InputError(f"{path} is a folder without files", hint="put .txt or .txt.gz files there")
            files += inside
        elif os.path.isfile(path):
            files.append(path)
        else:
            raise missing_file(path)
    if not files:
        raise InputError("no files were given", hint="pass a path, or a list of paths")
    return files


def visible_files(folder: Path) -> list[Path]:
    """Return the files in a folder and below it by name, without hidden ones."""
    is_hidden = lambda path: any(part.startswith(".") for part in path.relative_to(folder).parts)
    return sorted(path for path in folder.rglob("*") if path.is_file() and not is_hidden(path))


def sha256(paths: Iterable[str | Path]) -> str:
    """Return the SHA-256 of the bytes of files, one after another."""
    digest = hashlib.sha256()
    for path in paths:
        with Path(path).open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def missing_file(path: Path) -> NotFound:
    """Return the error for a path that is not a file; its hint names the nearest file in the folder."""
    if os.path.isdir(path):
        return NotFound(f"{path} is a folder", hint="name a file in it")
    beside = path.parent.iterdir() if os.path.isdir(path.parent) else ()
    around = [p.name for p in beside if p.suffix != ".lock"]  # a lock is gone when the command is
    shown = f"{str(path)[:60]} …" if len(str(path)) > 200 else str(path)
    return NotFound(f"no file or folder {shown}", hint=nearest(path.name, around) or "check the path")


def name_files(files: Sequence[Path]) -> str:
    """Return how an error calls several files."""
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


@contextmanager
def open_bytes(path: Path, error: type[InputError] | type[CorruptFile] = InputError) -> Iterator[IO[bytes]]:
    """Open a file for reading; .gz, .bz2 and .xz are decompressed. A damaged one raises `error`."""
    try:
        with COMPRESSED.get(path.suffix, open)(path, "rb") as file:
            yield file
    except DECOMPRESSION_ERRORS as damage:
        if isinstance(damage, OSError) and damage.errno is not None:  # an error of the system has a number
            raise
        raise error(
            f"{path} is damaged, or not the kind of file that its name says ({damage})", hint="fetch it again"
        ) from None


def stem_path(path: Path) -> Path:
    """Return the path without the ending that says how it is compressed."""
    return path.with_suffix("") if path.suffix in COMPRESSED else path


def read_blocks(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the text of a file in blocks of a megabyte, line ends as \\n; a bad byte is named by line."""
    try:
        codec = codecs.lookup(encoding)
    except LookupError:
        hint = "choose utf-8, cp1252, latin-1, utf-16 …"
        raise InputError("is unknown", hint, argument="encoding", value=encoding) from None
    if codec.name == "utf-8":
        codec = codecs.lookup("utf-8-sig")  # the same, less a byte order mark
    decoder = io.IncrementalNewlineDecoder(codec.incrementaldecoder(), translate=True)
    line = 1
    try:
        with open_bytes(path) as file:
            while True:
                block = file.read(BLOCK_BYTES)
                text = decoder.decode(block, final=not block)
                line += text.count("\n")
                if text:
                    yield text
                if not block:
                    return
    except UnicodeDecodeError as error:
        raise _wrong_encoding(path, codec.name.removesuffix("-sig"), error, line) from None


def _wrong_encoding(path: Path, encoding: str, error: UnicodeDecodeError, line: int) -> InputError:
    if error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return InputError(f"{path} is UTF-16, not {encoding}", hint="pass `encoding='utf-16'`")
    good = error.object[: error.start].decode(encoding, "replace")
    line += good.replace("\r\n", "\n").replace("\r", "\n").count("\n")
    bad = bytes(error.object[error.start : error.end]).hex()
    return InputError(
        f"{path}, line {line}: byte 0x{bad} is not valid {encoding}",
        hint="name its encoding with `encoding=`, such as cp1252 or latin-1, or convert it to UTF-8",
    )


def split_lines(blocks: Iterable[str], keep_ends: bool = False) -> Iterator[str]:
    """Yield the lines of a text that comes in blocks, with or without the \\n at their ends."""
    tail, end = "", "\n" if keep_ends else ""
    for block in blocks:
        lines = (tail + block).split("\n")
        tail = lines.pop()
        yield from (line + end for line in lines) if end else lines
    if tail:
        yield tail


def read_lines(path: Path, encoding: str = "utf-8", keep_ends: bool = False) -> Iterator[str]:
    """Yield the lines of a file, with or without the \\n at their ends."""
    return split_lines(read_blocks(path, encoding), keep_ends)


def read_json(path: Path, kind: type = dict) -> Any:
    """Return the value a JSON file holds, a `kind`; a damaged file or another kind of value is CorruptFile.

    A name that stands twice in one table is accepted only with one value: else the last would win unseen.
    """
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise CorruptFile(
            f"{path} has {size:,} bytes", hint=f"no file of its kind has over {MAX_JSON_BYTES:,}"
        )
    try:
        value = json.loads(path.read_bytes().decode("utf-8"), object_pairs_hook=_unambiguous)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} is damaged: it is not JSON ({error})", hint="fetch it again") from None
    if not isinstance(value, kind):
        what = f"a {type(value).__name__}, not a {kind.__name__}"
        raise CorruptFile(f"{path} is damaged: it holds {what}", hint="fetch it again")
    return value


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        for name, value in pairs:
            if value != table[name]:
                raise ValueError(f"{name!r:.80} stands there twice, as {value!r:.40} and {table[name]!r:.40}")
    return table


def sync(path: Path) -> None:
    """Ask the disk to keep a file or folder now."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some file systems do not sync folders
        pass
    finally:
        os.close(handle)


@contextmanager
def make_file_atomically(path: Path) -> Iterator[Path]:
    """Give a neighbour of `path` to be written and rename it at the end; what goes wrong leaves no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    try:
        yield partial
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def open_atomically(path: Path, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
    """Open a file for writing; under its own name it is always whole."""
    with make_file_atomically(path) as partial, partial.open(mode, **options) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Replace a small file by a new one, never by half of one."""
    with open_atomically(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def write_json(path: Path, value: Any) -> None:
    """Replace a small JSON file by a new one, its keys sorted."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def make_folder(path: Path) -> None:
    """Make the folder of a run, unless it is there; an error says why it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be created ({error.strerror})", hint="name another place with `folder=`"
        ) from None


@contextmanager
def make_folder_atomically(path: Path, replace: bool = True) -> Iterator[Path]:
    """Give a new neighbour of `path` to be filled and rename it at the end, in the place of an older folder.

    What goes wrong before the end leaves `path` as it was. Without `replace` several processes may make the
    same folder at once: the first to finish wins, and the work of the others is dropped.
    """
    partial, old = path.with_name(path.name + ".part"), path.with_name(path.name + ".old")
    if replace:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".making-{secrets.token_hex(8)}")  # tempfile's folders are private
        partial.mkdir()
    try:
        yield partial
        for inside in [*partial.rglob("*"), partial]:
            sync(inside)
        shutil.rmtree(old, ignore_errors=True)
        if replace and path.exists():
            path.replace(old)
        try:  # a folder that holds files is never replaced by renaming another
            partial.replace(path)
        except OSError:
            if replace or not path.exists():
                raise
        sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
