"""Batches for tasks on whole texts: classes, scores, and pairs that belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.batch import Row
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches, fingerprint_arrays, join_fingerprints
from heedful.data.labels import LabelNames, is_numeral
from heedful.data.tables import Column, Table
from heedful.data.token_cache import RaggedArray, encode_texts
from heedful.data.tokenization import Ids, Template, TokenizerProtocol, find_template
from heedful.errors import InputError
from heedful.files import Paths, name_files


def encode_columns(
    source: Paths | Table, texts: Sequence[Column], extra: Sequence[Column], tokenizer: TokenizerProtocol,
    take: Callable[[str, tuple[str, ...]], bool],
) -> RaggedArray:  # fmt: skip
    """Return the ids of text columns, row by row. `take` sees the extra columns and may refuse the row."""
    table = Table.of(source)

    def read_texts() -> Iterator[str]:
        for where, values in table.rows(*texts, *extra):
            if take(where, values[len(texts) :]):
                yield from values[: len(texts)]

    return encode_texts(read_texts(), tokenizer, name_files(table.files))


def truncate_pair(a: Ids, b: Ids, max_tokens: int) -> tuple[Ids, Ids]:
    """Return two texts cut from the end until both fit, the longer one first."""
    excess = max(len(a) + len(b) - max_tokens, 0)
    longer = min(max(len(a), len(b)) - min(len(a), len(b)), excess)
    both = excess - longer
    cuts = (longer, 0) if len(a) >= len(b) else (0, longer)
    return a[: len(a) - cuts[0] - (both + 1) // 2], b[: len(b) - cuts[1] - both // 2]


@dataclass(frozen=True)
class EncodedTexts:
    """Rows of one text, or of two, as ids."""

    tokens: RaggedArray
    columns: int  # texts in a row
    tokenizer: TokenizerProtocol
    template: Template
    options: BatchOptions

    def row(self, row: int) -> dict[str, Ids]:
        """Return the tokens of a row between their special ones, cut to `length`."""
        length, template = self.options.length, self.template
        if self.columns == 1:
            return {"tokens": template.wrap(self.tokens[row][: length - template.single_count])}
        pair = truncate_pair(self.tokens[2 * row], self.tokens[2 * row + 1], length - template.pair_count)
        tokens, types = template.wrap_pair(*pair)
        return {"tokens": tokens, "types": types} if template.has_types else {"tokens": tokens}

    def build(self, kind: str, name: str, values: NDArray[Any], labels: tuple[str, ...] = ()) -> Batches:
        """Return the batches of the rows, each with one of `values` as extra[name]."""
        special = self.template.single_count if self.columns == 1 else self.template.pair_count
        lengths = self.tokens.lengths.reshape(-1, self.columns).sum(1) + special
        unit = "texts" if self.columns == 1 else "pairs"
        notes = self.options.check_lengths(lengths, unit, self.tokens.name)
        self.options.check_rows(len(lengths), self.tokens.name)
        make = lambda row, epoch: {**self.row(row), name: values[row]}
        data = join_fingerprints(self.tokens.fingerprint, fingerprint_arrays((values,)))
        return self.options.build(
            kind, self.tokenizer, self.options.bucket(lengths), make, data,
            notes=notes, labels=labels, frame=self.template.signature,
        )  # fmt: skip


def _encode_rows(
    source: Paths | Table, tokenizer: TokenizerProtocol, columns: Sequence[Column | None], target: Column,
    take: Callable[[str, str], None], options: BatchOptions,
) -> EncodedTexts:  # fmt: skip
    """Return the texts of a table; `take` is called with where a row stands and its value of `target`."""
    texts = [column for column in columns if column is not None]

    def take_row(where: str, values: tuple[str, ...]) -> bool:
        take(where, values[0].strip())
        return True

    tokens = encode_columns(source, texts, [target], tokenizer, take_row)
    return EncodedTexts(tokens, len(texts), tokenizer, find_template(tokenizer), options)


def classify(
    source: Paths | Table,
    tokenizer: TokenizerProtocol,
    *,
    text: Column = "text",
    label: Column = "label",
    pair: Column | None = None,
    labels: Sequence[str] | None = None,
    length: int = 128,
    batch: int = 32,
    seed: int = 0,
    truncate: bool = False,
) -> Batches:
    """One class per text, or per two texts: extra["label"]; batches.labels are its names.

    For evaluation pass `labels=train.labels`: numbers stay, and a label training did not have is an error.
    """
    names, codes = LabelNames(labels), list[int]()
    take = lambda where, value: codes.append(names.number(value, where))
    options = BatchOptions(length, batch, seed, truncate)
    texts = _encode_rows(source, tokenizer, (text, pair), label, take, options)
    return texts.build("classify", "label", *names.sort(np.array(codes, np.int64)))


def regress(
    source: Paths | Table,
    tokenizer: TokenizerProtocol,
    *,
    text: Column = "text",
    score: Column = "score",
    pair: Column | None = None,
    length: int = 128,
    batch: int = 32,
    seed: int = 0,
    truncate: bool = False,
) -> Batches:
    """One number per text, or per two texts: extra["score"]."""
    scores: list[float] = []

    def take(where: str, value: str) -> None:
        if not is_numeral(value):
            raise InputError(f"{where}: {value!r} is no number")
        scores.append(float(value))

    options = BatchOptions(length, batch, seed, truncate)
    texts = _encode_rows(source, tokenizer, (text, pair), score, take, options)
    return texts.build("regress", "score", np.array(scores, np.float32))


def contrast(
    source: Paths | Table,
    tokenizer: TokenizerProtocol,
    *,
    columns: tuple[Column, Column] = ("sentence1", "sentence2"),
    where: tuple[Column, str] | None = None,
    length: int = 128,
    batch: int = 32,
    seed: int = 0,
    truncate: bool = False,
) -> Batches:
    """Two texts that belong together, each by itself: tokens and extra["other_tokens"], extra["other_valid"].

    `where=("label", "1")` takes only those rows. The other pairs of a batch are the wrong answers.
    """
    options, template = BatchOptions(length, batch, seed, truncate), find_template(tokenizer)
    conditions = () if where is None else (where[0],)
    take = lambda place, values: where is None or values[0].strip() == str(where[1])
    tokens = encode_columns(source, columns, conditions, tokenizer, take)
    lengths = tokens.lengths.reshape(-1, 2).max(1) + template.single_count
    options.check_rows(len(lengths), tokens.name)
    notes = options.check_lengths(lengths, "pairs", tokens.name)
    width = length - template.single_count

    def make(row: int, epoch: int) -> Row:
        a, b = (template.wrap(tokens[2 * row + i][:width]) for i in (0, 1))
        return {"tokens": a, "other_tokens": b}

    order = options.shuffle(len(lengths))  # not by length: that would give the wrong answers away
    return options.build(
        "contrast", tokenizer, order, make, tokens.fingerprint, notes=notes, frame=template.signature
    )
