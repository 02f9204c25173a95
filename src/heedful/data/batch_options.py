"""BatchOptions: the keywords that builders of batches share, and what follows from them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from heedful.core.checks import add_parameters, check_integer
from heedful.core.errors import InputError, count_of, nearest
from heedful.core.padding import round_up
from heedful.data.batch import Batch, Row, collate
from heedful.data.batches import Batches, BucketedOrder, Indices, ShuffledOrder
from heedful.data.readers import Unit
from heedful.data.tokenization import TokenizerProtocol, pad_id

Builder = TypeVar("Builder", bound=Callable[..., Batches])


class BatchKeywords(TypedDict, total=False):
    """The keywords that every builder takes."""

    length: int
    batch: int
    seed: int
    encoding: str


class TaskKeywords(BatchKeywords, total=False):
    """The keywords of a builder whose rows are whole texts."""

    truncate: bool


class TextKeywords(BatchKeywords, total=False):
    """The keywords of a builder that cuts running text into rows."""

    packed: bool
    unit: Unit
    cache: str | Path | None


@dataclass(frozen=True)
class BatchOptions:
    """The keywords that builders share, with their defaults; checked when made."""

    length: int = 256  # the most tokens of a row
    batch: int = 32  # rows in a batch
    seed: int = 0
    encoding: str = "utf-8"  # of the files
    truncate: bool = False  # cut longer rows and say so, instead of refusing them
    packed: bool = True  # rows run over the ends of documents
    unit: Unit = "file"  # what a document is
    multiple: int = 1  # round lengths up to a multiple of it
    max_tokens: int | None = None  # the most rows × longest row of a batch
    cache: str | Path | None = None  # the folder of tokenised texts

    def __post_init__(self) -> None:
        for name in ("length", "batch", "multiple"):
            check_integer(name, getattr(self, name))
        check_integer("seed", self.seed, minimum=0)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens)

    def check_rows(self, count: int, name: str) -> None:
        """Raise an error if a file gave no rows."""
        if count < 1:
            hint = "a row takes two tokens at least; is it the right file?"
            raise InputError(f"{name} contains nothing to train on", hint=hint)

    def check_room(self, special: int, minimum: int = 1) -> int:
        """Return how many tokens of a row are left for text; raise an error below `minimum`."""
        if self.length - special < minimum:
            tokens = count_of(special, "special tokens")
            raise InputError(f"`length={self.length}` leaves no room for text next to {tokens}")
        return self.length - special

    def check_lengths(
        self, lengths: NDArray[Any], unit: str, name: str, hint: str = "raise length",
        limit: int | None = None,
    ) -> tuple[str, ...]:  # fmt: skip
        """Refuse rows longer than `length` (or `limit`), or return a note that says how much is cut."""
        limit = self.length if limit is None else limit
        longer = lengths[lengths > limit]
        if not len(longer):
            return ()
        count = lambda verb: count_of(len(longer), unit, verb, len(lengths))
        most = count_of(limit, "tokens")
        if not self.truncate:
            raise InputError(
                f"{name}: {count('are')} longer than {most} (the longest has {int(lengths.max()):,})",
                hint=f"{hint}, or pass `truncate=True` to cut them",
            )
        lost = count_of(int((longer - limit).sum()), "tokens", "are")
        return (f"{count('were')} cut to {most}; {lost} not read",)

    def shuffle(self, count: int, name: str) -> ShuffledOrder:
        """Return the order of the rows of a file, of any length, drawn again every epoch."""
        self.check_rows(count, name)
        return ShuffledOrder(count, self.batch, self.seed)

    def bucket(self, lengths: NDArray[Any], name: str) -> BucketedOrder:
        """Return the order that puts rows of like length together; `name` is the file they come from."""
        self.check_rows(len(lengths), name)
        rounded = round_up(np.minimum(lengths, self.length), self.multiple)
        return BucketedOrder(rounded, self.batch, self.seed, self.max_tokens)

    def settings(self, kind: str, **more: Any) -> dict[str, Any]:
        """Return the settings that the fingerprint of batches covers."""
        return dict(kind=kind, length=self.length, batch=self.batch, seed=self.seed) | more

    def build(
        self, kind: str, tokenizer: TokenizerProtocol, order: ShuffledOrder | BucketedOrder,
        make: Callable[[int, int], Row], data: str, /, *, notes: tuple[str, ...] = (),
        labels: tuple[str, ...] = (), **settings: Any,
    ) -> Batches:  # fmt: skip
        """Return the batches of the rows make(row, epoch); `data` and `settings` make their fingerprint."""
        pad = pad_id(tokenizer)
        if labels:
            settings["labels"] = list(labels)

        def make_batch(rows: Indices, epochs: Indices) -> Batch:
            pairs = zip(rows.tolist(), epochs.tolist(), strict=True)
            return collate([make(row, epoch) for row, epoch in pairs], pad)

        return Batches(make_batch, order, data, self.settings(kind, **settings), labels, notes, pad)


def takes_options(keywords: Any, **defaults: Any) -> Callable[[Builder], Builder]:
    """Give a builder the options that a TypedDict names, filled in and listed in its signature.

    Their defaults are those of BatchOptions where `defaults` has no other; an unknown keyword is an error.
    """
    shared = {f.name: f for f in fields(BatchOptions) if f.name in keywords.__annotations__}
    values = {name: f.default for name, f in shared.items()} | defaults

    def decorate(builder: Builder) -> Builder:
        @functools.wraps(builder)
        def build_with_defaults(*arguments: Any, **options: Any) -> Batches:
            for name in options:
                if name not in names:
                    hint = nearest(name, names) or f"it takes {', '.join(names)}"
                    raise InputError(f"data.{builder.__name__} has no option {name!r}", hint=hint)
            return builder(*arguments, **(values | options))

        names = add_parameters(build_with_defaults, {n: (shared[n].type, v) for n, v in values.items()})
        return build_with_defaults  # type: ignore[return-value]

    return decorate
