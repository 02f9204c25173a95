"""CoNLL files: a word a line, its tags in columns, blank lines between sentences (Tjong Kim Sang 2003)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heedful.data.readers import split_paragraphs
from heedful.errors import InputError
from heedful.files import Paths, expand_paths, name_files, read_lines

START = "-DOCSTART-"


@dataclass(frozen=True)
class Sentence:
    """Words, a tag for each, and where they stand."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str


def to_bio(tags: Sequence[str]) -> list[str]:
    """IOB1 as BIO: an entity always begins with B-. What is BIO already, or no entity tag, stays as it is."""
    out: list[str] = []
    before = "O"
    for tag in tags:
        inside = tag.startswith("I-") and before[:2] in ("I-", "B-") and before[2:] == tag[2:]
        out.append(f"B-{tag[2:]}" if tag.startswith("I-") and not inside else tag)
        before = tag
    return out


def conll(
    paths: Paths, word: int | None = None, tag: int | None = None, encoding: str = "utf-8"
) -> Iterator[Sentence]:
    """The sentences of CoNLL files. `word` and `tag` are columns, counted from 0 or from the end.

    By default the first and the last; in .conllu files the form and its universal part of speech. Tabs or any
    white space part columns. Lines of -DOCSTART- are dropped, IOB1 becomes BIO.
    """
    empty = True
    files = expand_paths(paths)
    for path in files:
        for sentence in _sentences(path, word, tag, encoding):
            empty = False
            yield sentence
    if empty:
        raise InputError(f"{name_files(files)} is empty: it has no sentence")


def _sentences(path: Path, word: int | None, tag: int | None, encoding: str) -> Iterator[Sentence]:
    universal = ".conllu" in path.suffixes
    word = (1 if universal else 0) if word is None else word
    tag = (3 if universal else -1) if tag is None else tag
    width = 0
    numbered = (
        f"{i}\t{line}" if line.strip() else "" for i, line in enumerate(read_lines(path, encoding), 1)
    )
    for lines in split_paragraphs(numbered):
        words, tags = [], []
        where = f"{path}, line {lines[0].partition(chr(9))[0]}"
        for numbered_line in lines:
            number, _, line = numbered_line.partition("\t")
            if (universal and line.startswith("#")) or line.startswith(START):
                continue
            cells = line.rstrip().split("\t") if "\t" in line.strip() else line.split()
            if universal and not cells[0].isdigit():
                continue  # 3-4 is a contraction of words that follow, 5.1 an empty node
            width = width or len(cells)
            if len(cells) != width:
                raise InputError(f"{path}, line {number}: {len(cells)} columns instead of {width}")
            if not (-width <= word < width and -width <= tag < width):
                raise InputError(
                    f"{path} has {width} columns, counted from 0",
                    hint=f"there is no {max(word, tag, key=abs)}",
                )
            words.append(cells[word])
            tags.append(cells[tag])
        if words:
            yield Sentence(tuple(words), tuple(to_bio(tags)), where)
