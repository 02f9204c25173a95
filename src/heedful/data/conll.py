"""CoNLL files: a word a line, its tags in columns, blank lines between sentences (Tjong Kim Sang 2003)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from heedful.errors import InputError
from heedful.files import Paths, expand_paths, name_files, read_lines

DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence, a tag for each, and where they stand."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str


def to_bio(tags: Sequence[str]) -> list[str]:
    """Return IOB1 tags as BIO, where an entity always begins with B-; BIO and other tags stay as they are."""
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
    """Yield the sentences of CoNLL files. `word` and `tag` are columns, counted from 0 or from the end.

    By default the first and the last; in .conllu files the form and its universal part of speech. Tabs or any
    white space part columns. Lines of -DOCSTART- are dropped, IOB1 becomes BIO.
    """
    empty = True
    files = expand_paths(paths)
    for path in files:
        for sentence in _read_sentences(path, word, tag, encoding):
            empty = False
            yield sentence
    if empty:
        raise InputError(f"{name_files(files)} is empty: it has no sentence")


def _read_sentences(path: Path, word: int | None, tag: int | None, encoding: str) -> Iterator[Sentence]:
    universal = ".conllu" in path.suffixes
    word = (1 if universal else 0) if word is None else word
    tag = (3 if universal else -1) if tag is None else tag
    width = 0
    numbered = enumerate(read_lines(path, encoding), 1)
    for has_text, lines in groupby(numbered, key=lambda line: bool(line[1].strip())):
        words, tags, first = [], [], 0
        for number, line in lines if has_text else ():
            first = first or number
            cells = line.rstrip().split("\t") if "\t" in line.strip() else line.split()
            # In .conllu 3-4 is a contraction of words that follow, 5.1 an empty node.
            skipped = line.startswith("#") or not cells[0].isdigit()
            if line.startswith(DOCUMENT_START) or (universal and skipped):
                continue
            width = width or len(cells)
            if len(cells) != width:
                raise InputError(f"{path}, line {number}: {len(cells)} columns instead of {width}")
            if not (-width <= word < width and -width <= tag < width):
                missing = f"there is no {max(word, tag, key=abs)}"
                raise InputError(f"{path} has {width} columns, counted from 0", hint=missing)
            words.append(cells[word])
            tags.append(cells[tag])
        if words:
            yield Sentence(tuple(words), tuple(to_bio(tags)), f"{path}, line {first}")
