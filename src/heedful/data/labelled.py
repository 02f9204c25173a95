"""Batches for tasks on whole texts: classes, scores, and pairs that belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.batch import Row
from heedful.data.batches import (
    Batches,
    BucketedOrder,
    ShuffledOrder,
    check_counts,
    fingerprint_arrays,
    join_fingerprints,
)
from heedful.data.tables import Column, Table, open_table
from heedful.data.token_cache import RaggedArray, ragged_array
from heedful.data.tokenization import Ids, Template, TokenizerProtocol, encode_many, find_template, pad_id
from heedful.data.windows import CollatedRows, fitted
from heedful.errors import InputError, nearest
from heedful.files import Paths, name_files

CHUNK = 1000  # texts encoded at once


class Names:
    """Labels as numbers: those given, or those found, in order (as numbers if all are numbers)."""

    def __init__(self, given: Sequence[str] | None) -> None:
        self.given = given is not None
        self.numbers = {str(name): i for i, name in enumerate(given or ())}

    def number(self, name: str, where: str) -> int:
        """The number of a label; one that training did not have is an error."""
        if name not in self.numbers:
            if self.given:
                hint = (
                    nearest(name, self.numbers) or f"known: {', '.join(map(repr, list(self.numbers)[:12]))}"
                )
                raise InputError(f"{where}: label {name!r} was not seen in training; {hint}")
            self.numbers[name] = len(self.numbers)
        return self.numbers[name]

    def settled(self, codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """The labels with their final numbers, and the names in that order."""
        if self.given:
            return codes, tuple(self.numbers)
        found = list(self.numbers)
        key: Callable[[str], Any] = (lambda n: float(n)) if all(map(_numeric, found)) else str
        names = sorted(found, key=key)
        place = np.array([names.index(name) for name in found], np.int64)
        keep = codes >= 0
        return np.where(keep, place[np.where(keep, codes, 0)], codes), tuple(names)


def _numeric(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def read_texts(
    rows: Table, texts: Sequence[Column], others: Sequence[Column], tokenizer: TokenizerProtocol,
    take: Callable[[str, tuple[str, ...]], bool],
) -> RaggedArray:  # fmt: skip
    """The ids of the text columns, row by row. `take` sees the other columns and may refuse the row."""

    def encoded() -> Iterator[list[int]]:
        held: list[str] = []
        for where, values in rows.rows(*texts, *others):
            if take(where, values[len(texts) :]):
                held += values[: len(texts)]
            if len(held) >= CHUNK:
                yield from encode_many(tokenizer, held)
                held = []
        yield from encode_many(tokenizer, held)

    return ragged_array(encoded(), name=name_files(rows.files))


def shortened(a: Ids, b: Ids, room: int) -> tuple[Ids, Ids]:
    """Two texts cut from the end until both fit, the longer one first."""
    over = max(len(a) + len(b) - room, 0)
    longer = min(max(len(a), len(b)) - min(len(a), len(b)), over)
    rest = over - longer
    cuts = (longer, 0) if len(a) >= len(b) else (0, longer)
    return a[: len(a) - cuts[0] - (rest + 1) // 2], b[: len(b) - cuts[1] - rest // 2]


def _texts(
    found: RaggedArray, count: int, around: Template, length: int, truncate: bool
) -> tuple[Callable[[int], dict[str, Ids]], NDArray[np.int64], tuple[str, ...]]:
    """How one or two texts become the tokens of a row; the lengths of the rows; what was cut."""
    lengths = found.lengths.reshape(-1, count).sum(1) + (
        around.single_count if count == 1 else around.pair_count
    )
    notes = fitted(lengths, length, truncate, "texts" if count == 1 else "pairs", "raise length", found.name)

    def one(row: int) -> dict[str, Ids]:
        return {"tokens": around.wrap(found[row][: length - around.single_count])}

    def two(row: int) -> dict[str, Ids]:
        tokens, types = around.wrap_pair(
            *shortened(found[2 * row], found[2 * row + 1], length - around.pair_count)
        )
        return {"tokens": tokens, "types": types} if around.has_types else {"tokens": tokens}

    return (one if count == 1 else two), np.minimum(lengths, length), notes


def _task(
    kind: str, source: Paths | Table, tokenizer: TokenizerProtocol, text: Column, pair: Column | None, answer: Column,
    take: Callable[[str, str], None], answers: Callable[[], tuple[str, NDArray[Any]]],
    length: int, batch: int, seed: int, truncate: bool,
) -> Batches:  # fmt: skip
    """Rows of one or two texts with one answer each, read by `take`, given back by `answers`."""
    columns = [text] if pair is None else [text, pair]

    def note(where: str, values: tuple[str, ...]) -> bool:
        take(where, values[0].strip())
        return True

    found = read_texts(open_table(source), columns, [answer], tokenizer, note)
    around = find_template(tokenizer)
    read, lengths, notes = _texts(found, len(columns), around, length, truncate)
    check_counts(len(lengths), batch, seed, found.name)
    name, values = answers()
    rows = CollatedRows(len(lengths), lambda row, epoch: {**read(row), name: values[row]}, pad_id(tokenizer))
    settings = dict(kind=kind, length=length, batch=batch, seed=seed, frame=around.signature)
    data = join_fingerprints(found.fingerprint, fingerprint_arrays((values,)))
    return Batches(rows, BucketedOrder(lengths, batch, seed), data, settings, notes=notes, pad=rows.pad)


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
    names, codes = Names(labels), list[int]()
    take = lambda where, value: codes.append(names.number(value, where))
    settled: list[tuple[str, ...]] = []

    def answers() -> tuple[str, NDArray[Any]]:
        numbers, found = names.settled(np.array(codes, np.int64))
        settled.append(found)
        return "label", numbers

    made = _task(
        "classify", source, tokenizer, text, pair, label, take, answers, length, batch, seed, truncate
    )
    return named(made, settled[0])


def named(batches: Batches, labels: tuple[str, ...]) -> Batches:
    """The batches with the names of their classes, which the fingerprint then covers."""
    return replace(batches, labels=labels, settings={**batches.settings, "labels": list(labels)})


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
        if not _numeric(value):
            raise InputError(f"{where}: {value!r} is no number")
        scores.append(float(value))

    answers = lambda: ("score", np.array(scores, np.float32))
    return _task(
        "regress", source, tokenizer, text, pair, score, take, answers, length, batch, seed, truncate
    )


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
    wanted = () if where is None else (where[0],)
    take = lambda place, values: where is None or values[0].strip() == str(where[1])
    found = read_texts(open_table(source), columns, wanted, tokenizer, take)
    around = find_template(tokenizer)
    lengths = found.lengths.reshape(-1, 2).max(1) + around.single_count
    check_counts(len(lengths), batch, seed, found.name)
    notes = fitted(lengths, length, truncate, "pairs", "raise length", found.name)
    room = length - around.single_count

    def make(row: int, epoch: int) -> Row:
        a, b = (around.wrap(found[2 * row + i][:room]) for i in (0, 1))
        return {"tokens": a, "other_tokens": b}

    rows = CollatedRows(len(lengths), make, pad_id(tokenizer))
    settings = dict(kind="contrast", length=length, batch=batch, seed=seed, frame=around.signature)
    order = ShuffledOrder(len(lengths), batch, seed)  # not by length: that would give the wrong answers away
    return Batches(rows, order, found.fingerprint, settings, notes=notes, pad=rows.pad)
