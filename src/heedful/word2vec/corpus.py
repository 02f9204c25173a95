"""Text from disk, in pieces: a file (.txt, .gz, .bz2, .xz), a folder of them, or sentences in memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from heedful.errors import InputError, NotFound

if TYPE_CHECKING:
    from heedful.word2vec.phrases import Phrases

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BLOCK = 1 << 17  # characters held at once; a text that is one line long is cut at this
LONGEST = 10_000  # words in a sentence; longer ones are cut, as the authors' program does

Source = str | Path | Sequence[str | Path] | Iterable[Sequence[str]]


@dataclass(frozen=True)
class Corpus:
    """Where the sentences are. Each call of `sentences` starts again from the first."""

    source: Source
    lowercase: bool = False
    encoding: str = "utf-8"
    phrases: tuple[Phrases, ...] = field(default=())

    def __post_init__(self) -> None:
        if not isinstance(self.source, Path | Iterable):
            raise InputError(
                f"a corpus is a path or a list of sentences, each a list of words; got "
                f"{type(self.source).__name__}"
            )
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise InputError(f"encoding={self.encoding!r} is unknown; utf-8 and latin-1 are usual") from None
        if isinstance(self.source, Iterator):
            raise InputError(
                "a corpus is read more than once and an iterator can be read once; "
                "pass a path, or list(sentences)"
            )

    def files(self) -> list[Path]:
        """The files in reading order; none if the sentences are in memory."""
        source = self.source
        if isinstance(source, str | Path):
            return expand(Path(source))
        if isinstance(source, Sequence) and source and all(isinstance(one, str | Path) for one in source):
            return [path for one in source for path in expand(Path(str(one)))]
        return []

    def plain(self) -> bool:
        """Whether blocks of raw text may be counted as they are, without cutting sentences."""
        return bool(self.files()) and not self.phrases

    def blocks(self) -> Iterator[str]:
        """The text in pieces of about a megabyte that never cut a word."""
        for path in self.files():
            yield from read_blocks(path, self.encoding, self.lowercase)

    def sentences(self) -> Iterator[list[str]]:
        """One list of words per line, cut after LONGEST words, phrases joined."""
        for words in self._lines():
            for phrases in self.phrases:
                words = phrases.join(words)
            for start in range(0, len(words), LONGEST):
                yield words[start : start + LONGEST]

    def _lines(self) -> Iterator[list[str]]:
        if self.files():
            for block in self.blocks():
                for line in block.split("\n"):
                    if words := line.split():
                        yield words
            return
        memory = cast(Iterable[Sequence[str]], self.source)
        for sentence in memory:
            if isinstance(sentence, str):
                raise InputError(
                    f"a sentence must be a list of words, not the text {sentence[:40]!r}; "
                    "split it, or pass a path"
                )
            named = (str(word).lower() if self.lowercase else str(word) for word in sentence)
            words = [word for word in named if word]
            if words:
                yield words


def expand(path: Path) -> list[Path]:
    """A file as itself; a folder as its files in the order of their names, hidden ones left out."""
    if os.path.isdir(path):  # unlike Path's own, it takes a whole text for what it is: no path
        inside = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        if not inside:
            raise InputError(f"{path} is a folder without files; put .txt or .txt.gz files there")
        return inside
    if not os.path.exists(path):
        said = f"{str(path)[:60]} …" if len(str(path)) > 200 else str(path)
        raise NotFound(f"no file or folder {said}; give a path to text, one sentence or paragraph a line")
    return [path]


def open_text(path: Path, encoding: str = "utf-8") -> IO[str]:
    """Open text, unpacking by the end of the name. The mark that some editors put first is no word."""
    encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    opener = OPENERS.get(path.suffix)
    if opener is None:
        return path.open(encoding=encoding, newline="\n")
    return opener(path, "rt", encoding=encoding, newline="\n")


def read_blocks(path: Path, encoding: str, lowercase: bool) -> Iterator[str]:
    """Pieces that end at the end of a line; inside a line without end, at a space."""
    tail = ""
    try:
        with open_text(path, encoding) as file:
            while block := file.read(BLOCK):
                block = tail + (block.lower() if lowercase else block)
                cut = block.rfind("\n") + 1 or (block.rfind(" ") + 1 if len(block) >= 2 * BLOCK else 0)
                tail = block[cut:]
                if cut:
                    yield block[:cut]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not {encoding}: {error.reason} at byte {error.start} of a block; "
            "convert it, or say its encoding, e.g. encoding='latin-1'"
        ) from None
    except (gzip.BadGzipFile, EOFError, lzma.LZMAError, OSError) as error:
        raise InputError(
            f"{path} cannot be read: {error}; check the file, its name must say how it is packed"
        ) from None
    if tail:
        yield tail
