"""Tagged words (token classification): CoNLL files as sentences, and batches with a tag for every word.

A CoNLL file has a word a line, its tags in columns, blank lines between sentences (Tjong Kim Sang 2003).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Unpack, cast

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError, count_of
from heedful.core.files import Paths, expand_paths, name_files, read_lines
from heedful.data.batch import IGNORE, Row
from heedful.data.batch_options import BatchOptions, TaskKeywords, takes_options
from heedful.data.batches import Batches, fingerprint_arrays, join_fingerprints
from heedful.data.examples.classification import LabelNames
from heedful.data.readers import are_examples
from heedful.data.token_cache import RaggedArray, ragged_array
from heedful.data.tokenization import FullTokenizer, Template, TokenizerProtocol, encode_many, find_template

DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence, a tag for each, and where they stand."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str


def to_bio(tags: Sequence[str]) -> list[str]:
    """Return IOB1, BILOU and BMES tags as BIO, where an entity begins with B-; others stay as they are.

    L- and M- are words inside an entity, the last and one in the middle; U- is an entity of one word.
    """
    letters = {"L-": "I-", "M-": "I-", "U-": "B-"}
    out: list[str] = []
    before = "O"
    for tag in (letters.get(tag[:2], tag[:2]) + tag[2:] for tag in tags):
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
                columns = count_of(len(cells), "columns")
                raise InputError(f"{path}, line {number}: {columns} instead of {width}")
            if not (-width <= word < width and -width <= tag < width):
                missing = f"there is no {max(word, tag, key=abs)}"
                raise InputError(f"{path} has {count_of(width, 'columns')}, counted from 0", hint=missing)
            words.append(cells[word])
            tags.append(cells[tag])
        if words:
            yield Sentence(tuple(words), tuple(to_bio(tags)), f"{path}, line {first}")


def encode_words(words: Sequence[str], tokenizer: TokenizerProtocol) -> tuple[list[int], NDArray[np.int64]]:
    """Return the ids of words joined by spaces, and for each the word it begins, or −1 if it begins none.

    A token belongs to the word of its last character: some tokenizers count the space before as part of it.
    """
    if not isinstance(tokenizer, FullTokenizer):
        parts = encode_many(tokenizer, words)
        first = [w if k == 0 else -1 for w, part in enumerate(parts) for k in range(len(part))]
        return [i for part in parts for i in part], np.array(first, np.int64)
    text = " ".join(words)
    word_of = np.repeat(np.arange(len(words)), [len(w) + 1 for w in words])
    ids = tokenizer.encode(text, special=False)
    spans = tokenizer.offsets(text, special=False)
    words_of = np.array([word_of[end - 1] if end > start else -1 for start, end in spans], np.int64)
    fresh = np.concatenate(([True], words_of[1:] != words_of[:-1])) if len(ids) else np.zeros(0, bool)
    return ids, np.where(fresh, words_of, -1)


def _encode_sentences(
    sentences: Iterable[Sentence], tokenizer: TokenizerProtocol, names: LabelNames, name: str
) -> tuple[RaggedArray, NDArray[np.int64], int]:
    """Return the ids of all sentences, a label or IGNORE for each, and how many words got no label."""
    codes: list[NDArray[np.int64]] = []
    lost = 0

    def encode() -> Iterator[list[int]]:
        nonlocal lost
        for sentence in sentences:
            ids, first = encode_words(sentence.words, tokenizer)
            numbers = np.array([names.number(t, sentence.where) for t in sentence.tags], np.int64)
            lost += len(numbers) - int((first >= 0).sum())
            codes.append(np.where(first >= 0, numbers[first], IGNORE))
            yield ids

    tokens = ragged_array(encode(), name=name)
    return tokens, np.concatenate(codes), lost


@takes_options(TaskKeywords, length=128)
def tag(
    source: Paths | Sequence[Sentence],
    tokenizer: TokenizerProtocol,
    *,
    word: int | None = None,
    column: int | None = None,
    labels: Sequence[str] | None = None,
    **keywords: Unpack[TaskKeywords],
) -> Batches:
    """A tag for every word: the first token of a word is labelled, the others are ignored.

    `word` and `column` choose the columns of a CoNLL file. For evaluation pass `labels=train.labels`.
    """
    options, template = BatchOptions(**keywords), find_template(tokenizer)
    names, loaded = LabelNames(labels), are_examples(source, Sentence)
    name = "the sentences" if loaded else str(source)
    read = lambda: conll(cast(Paths, source), word, column, options.encoding)
    sentences = cast(Sequence[Sentence], source) if loaded else read()
    tokens, codes, lost = _encode_sentences(sentences, tokenizer, names, name)
    flat, settled = names.sort(codes)
    lengths = tokens.lengths + template.single_count
    order, notes = options.bucket(lengths, name), options.check_lengths(lengths, "sentences", name)
    if lost:
        dropped = f"{count_of(lost, 'words', 'have')} no separate token, so no label"
        notes += (f"{dropped}: the tokenizer drops or joins such words",)
    tags = RaggedArray(flat, tokens.offsets, "")
    ignored = Template((IGNORE,) * len(template.before), (IGNORE,) * len(template.after))

    def make(row: int, epoch: int) -> Row:
        wrap = lambda template, rows: template.wrap(rows[row], options.length)
        return {"tokens": wrap(template, tokens), "labels": wrap(ignored, tags)}

    data = join_fingerprints(tokens.fingerprint, fingerprint_arrays((flat,)))
    return options.build(
        "tag", tokenizer, order, make, data, notes=notes, labels=settled, frame=template.signature
    )
