"""BatchOptions: the settings that every builder of batches takes, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.checks import check_integer
from heedful.data.batch import Row
from heedful.data.batches import Batches, BucketedOrder, CollatedRows, ShuffledOrder
from heedful.data.tokenization import TokenizerProtocol, pad_id
from heedful.errors import InputError
from heedful.padding import round_up


@dataclass(frozen=True)
class BatchOptions:
    """The keywords that builders share, under the same names; checked when made."""

    length: int  # the most tokens of a row
    batch: int  # rows in a batch
    seed: int
    truncate: bool = False  # cut longer rows and say so, instead of refusing them
    packed: bool = False  # rows run over the ends of documents
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
            raise InputError(f"{name} holds nothing to train on", hint=hint)

    def check_room(self, special: int) -> int:
        """Return how many tokens of a row are left beside its special ones; an error if none are."""
        if self.length <= special:
            raise InputError(f"length={self.length} leaves no room beside {special} special tokens")
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
        count = f"{len(longer):,} of {len(lengths):,} {unit}"
        if not self.truncate:
            longest = f"are longer than {limit} tokens (the longest has {int(lengths.max()):,})"
            raise InputError(f"{name}: {count} {longest}", hint=f"{hint}, or pass truncate=True to cut them")
        lost = int((longer - limit).sum())
        return (f"{count} were cut to {limit} tokens; {lost:,} tokens are not read",)

    def shuffle(self, count: int) -> ShuffledOrder:
        """Return the order of rows of any length, drawn anew every epoch."""
        return ShuffledOrder(count, self.batch, self.seed)

    def bucket(self, lengths: NDArray[Any]) -> BucketedOrder:
        """Return the order that puts rows of like length together."""
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
        rows = CollatedRows(order.count, make, pad)
        return Batches(rows, order, data, self.settings(kind, **settings), labels, notes, pad)
