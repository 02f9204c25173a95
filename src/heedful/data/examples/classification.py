"""Batches for tasks on whole texts: classes, scores, and pairs that belong together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError, nearest
from heedful.core.files import Paths, name_files
from heedful.data.batch import Row
from heedful.data.batch_options import BatchOptions, TaskKeywords, takes_options
from heedful.data.batches import Batches, fingerprint_arrays, join_fingerprints
from heedful.data.readers import Column, Table
from heedful.data.token_cache import RaggedArray, encode_texts
from heedful.data.tokenization import TokenizerProtocol, find_template


def encode_columns(
    source: Paths | Table, columns: Sequence[Column], value: Column | None, tokenizer: TokenizerProtocol,
    take: Callable[[str, str], bool | None], options: BatchOptions,
) -> RaggedArray:  # fmt: skip
    """Return the ids of text columns, row by row.

    `take` is called with where a row stands and what its column `value` says; False leaves the row out.
    """
    table = Table.of(source, options.encoding)
    extra = [] if value is None else [value]

    def read_texts() -> Iterator[str]:
        for where, values in table.rows(*columns, *extra):
            if not extra or take(where, values[-1].strip()) is not False:
                yield from values[: len(columns)]

    return encode_texts(read_texts(), tokenizer, name_files(table.files))


def text_batches(
    kind: str, tokens: RaggedArray, columns: int, tokenizer: TokenizerProtocol, options: BatchOptions,
    target: str, values: NDArray[Any], labels: tuple[str, ...] = (),
) -> Batches:  # fmt: skip
    """Return the batches of rows of one text, or of two, each with one of `values` as extra[target].

    `tokens` has the ids of the first row's texts, then those of the second's, and so on.
    """
    template = find_template(tokenizer)
    special, unit = (template.single_count, "texts") if columns == 1 else (template.pair_count, "pairs")
    lengths = tokens.lengths.reshape(-1, columns).sum(1) + special
    notes = options.check_lengths(lengths, unit, tokens.name)

    def make(row: int, epoch: int) -> Row:
        if columns == 1:
            return {"tokens": template.wrap(tokens[row], options.length), target: values[row]}
        ids, types = template.wrap_pair(tokens[2 * row], tokens[2 * row + 1], options.length)
        return {"tokens": ids, **({"types": types} if template.has_types else {}), target: values[row]}

    data = join_fingerprints(tokens.fingerprint, fingerprint_arrays((values,)))
    order = options.bucket(lengths, tokens.name)
    return options.build(
        kind, tokenizer, order, make, data, notes=notes, labels=labels, frame=template.signature
    )


@takes_options(TaskKeywords, length=128)
def classify(
    source: Paths | Table,
    tokenizer: TokenizerProtocol,
    *,
    text: Column = "text",
    label: Column = "label",
    pair: Column | None = None,
    labels: Sequence[str] | None = None,
    **keywords: Unpack[TaskKeywords],
) -> Batches:
    """One class per text, or per two texts: extra["label"]; batches.labels are its names.

    For evaluation pass `labels=train.labels`: numbers stay, and a label training did not have is an error.
    """
    options, names, codes = BatchOptions(**keywords), LabelNames(labels), list[int]()
    take = lambda where, value: codes.append(names.number(value, where))
    columns = [text] if pair is None else [text, pair]
    tokens = encode_columns(source, columns, label, tokenizer, take, options)
    numbers, settled = names.sort(np.array(codes, np.int64))
    return text_batches("classify", tokens, len(columns), tokenizer, options, "label", numbers, settled)


@takes_options(TaskKeywords, length=128)
def regress(
    source: Paths | Table,
    tokenizer: TokenizerProtocol,
    *,
    text: Column = "text",
    score: Column = "score",
    pair: Column | None = None,
    **keywords: Unpack[TaskKeywords],
) -> Batches:
    """One number per text, or per two texts: extra["score"]."""
    options, scores = BatchOptions(**keywords), list[float]()

    def take(where: str, value: str) -> None:
        if not is_numeric(value):
            raise InputError(f"{where}: {value!r} is not a number")
        scores.append(float(value))

    columns = [text] if pair is None else [text, pair]
    tokens = encode_columns(source, columns, score, tokenizer, take, options)
    values = np.array(scores, np.float32)
    return text_batches("regress", tokens, len(columns), tokenizer, options, "score", values)


@takes_options(TaskKeywords, length=128)
def contrast(
    source: Paths | Table,
    tokenizer: TokenizerProtocol,
    *,
    columns: tuple[Column, Column] = ("sentence1", "sentence2"),
    where: tuple[Column, str] | None = None,
    **keywords: Unpack[TaskKeywords],
) -> Batches:
    """Two texts that belong together, each by itself: tokens and extra["other_tokens"], extra["other_valid"].

    `where=("label", "1")` takes only those rows. The other pairs of a batch are the wrong answers.
    """
    options = BatchOptions(**keywords)
    condition, wanted = where or (None, "")
    take = lambda place, value: value == str(wanted)
    return pair_batches(
        encode_columns(source, columns, condition, tokenizer, take, options), tokenizer, options
    )


def pair_batches(
    tokens: RaggedArray, tokenizer: TokenizerProtocol, options: BatchOptions,
    scores: NDArray[np.float32] | None = None,
) -> Batches:  # fmt: skip
    """Return the batches of two texts each by itself, perhaps with a score as extra["score"]."""
    template = find_template(tokenizer)
    lengths = tokens.lengths.reshape(-1, 2).max(1) + template.single_count
    order = options.shuffle(len(lengths), tokens.name)  # not by length: that would give answers away
    notes = options.check_lengths(lengths, "pairs", tokens.name)

    def make(row: int, epoch: int) -> Row:
        a, b = (template.wrap(tokens[2 * row + i], options.length) for i in (0, 1))
        return {"tokens": a, "other_tokens": b, **({} if scores is None else {"score": scores[row]})}

    return options.build(
        "contrast", tokenizer, order, make, tokens.fingerprint, notes=notes, frame=template.signature
    )


class LabelNames:
    """The names of classes: those that were passed, or those that rows have, sorted in the end."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self.fixed = names is not None
        self.numbers = {str(name): i for i, name in enumerate(names or ())}

    def number(self, name: str, where: str) -> int:
        """Return the number of a label; one that training did not have is an error."""
        if name not in self.numbers:
            if self.fixed:
                names = ", ".join(map(repr, list(self.numbers)[:12]))
                hint = nearest(name, self.numbers) or f"known: {names}"
                raise InputError(f"{where}: label {name!r} was not seen in training", hint=hint)
            self.numbers[name] = len(self.numbers)
        return self.numbers[name]

    def sort(self, codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the labels with their final numbers, and the names in that order: as numbers if all are.

        Codes below 0 stay.
        """
        names = list(self.numbers)
        if self.fixed:
            return codes, tuple(names)
        ordered = sorted(names, key=float if all(map(is_numeric, names)) else str)
        places = np.array([ordered.index(name) for name in names], np.int64)
        labelled = codes >= 0
        return np.where(labelled, places[np.where(labelled, codes, 0)], codes), tuple(ordered)


def is_numeric(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
