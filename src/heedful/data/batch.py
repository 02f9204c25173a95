"""Batch: the tensors of one step, rows first, and how rows of different lengths become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.errors import InputError
from heedful.core.padding import pad_rows, round_up, valid_mask

IGNORE = -100  # a label without a loss

Array = NDArray[np.generic]
# One row before padding; a number becomes an entry of a (B,) tensor.
Row = Mapping[str, Array | int | float | bool]


@dataclass(frozen=True)
class Batch:
    """The tensors that a model reads in one step, and the answers it should give.

    labels[b, t] is what position t should say: already shifted for next tokens, so no objective shifts again.
    Encoder-decoders read `tokens` and write `labels`, given `target`: labels moved right by a start token.
    `extra` holds what only some tasks have: label, score, start, end, follows (B,); other_tokens (B, U) …
    """

    tokens: Tensor  # (B, T); of images their pixels, (B, C, H, W)
    labels: Tensor | None = None  # (B, T), or as long as `target`; IGNORE where there is no loss
    valid: Tensor | None = None  # (B, T) False on padding; None if nothing is
    types: Tensor | None = None  # (B, T) which sentence a token belongs to
    documents: Tensor | None = None  # (B, T) which packed document
    target: Tensor | None = None  # (B, U) what the decoder reads
    target_valid: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.tokens)

    @property
    def label_count(self) -> int:
        """The number of labels that a loss is divided by: those not ignored; of rows if there are none."""
        return len(self) if self.labels is None else int((self.labels != IGNORE).sum())

    @property
    def tokens_read(self) -> int:
        """The number of tokens that the model reads, padding left out; an image is one."""
        shown = self.tokens.numel() if self.tokens.dim() == 2 else len(self)
        read = shown if self.valid is None else int(self.valid.sum())
        if self.target is None:
            return read
        return read + (self.target.numel() if self.target_valid is None else int(self.target_valid.sum()))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the batch by its name, those of `extra` too."""
        own = {name: getattr(self, name) for name in FIELDS}
        return {name: t for name, t in (own | dict(self.extra)).items() if t is not None}

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with the same change made to every tensor."""
        return _as_batch({name: change(t) for name, t in self.tensors.items()})

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on another device; a copy to a GPU overlaps the computation."""
        device = torch.device(device)
        if device.type == "cuda":
            pinned = lambda t: t.pin_memory() if t.device.type == "cpu" else t
            return self._map(lambda t: pinned(t).to(device, non_blocking=True))
        return self._map(lambda t: t.to(device))

    def clone(self) -> Batch:
        """Return a copy that shares no memory."""
        return self._map(lambda t: t.clone())

    def rows(self, which: slice | int | Sequence[int] | Tensor) -> Batch:
        """Return some of the rows; one row stays a batch."""
        if isinstance(which, int):
            if not -len(self) <= which < len(self):
                raise InputError(f"row {which} of a batch of {len(self)}")
            which = [which]
        index = which if isinstance(which, slice | Tensor) else torch.tensor(which)
        return self._map(lambda t: t[index])

    def split(self, parts: int) -> list[Batch]:
        """Return at most `parts` micro-batches for accumulation, none empty, differing by at most a row."""
        if parts < 1:
            raise InputError(f"a batch cannot be split into {parts} parts")
        if parts == 1:
            return [self]
        bounds = np.linspace(0, len(self), min(parts, max(len(self), 1)) + 1).round().astype(int)
        return [self.rows(slice(int(a), int(b))) for a, b in pairwise(bounds)]

    def trim(self) -> Batch:
        """Return the batch without the columns that are padding in every row: of use after `split`."""
        out = self
        if self.valid is not None:
            out = _trim(out, ("tokens", "valid", "types", "documents"), self.valid)
            if self.target is None and self.labels is not None:
                out = replace(out, labels=self.labels[:, : out.tokens.shape[1]])
        if self.target_valid is not None:
            out = _trim(out, ("target", "target_valid", "labels"), self.target_valid)
        return out


def _trim(batch: Batch, names: Sequence[str], valid: Tensor) -> Batch:
    width = max(int(valid.any(0).nonzero().max()) + 1 if valid.any() else 1, 1)
    values = {name: getattr(batch, name) for name in names}
    return replace(batch, **{name: t[:, :width] for name, t in values.items() if t is not None})


# What stands where a row is shorter than the batch. Ids use the tokenizer's padding.
FILL = {"labels": IGNORE, "types": 0, "documents": -1, "offsets": -1, "replaced": IGNORE}
VALID = {"tokens": "valid", "target": "target_valid", "other_tokens": "other_valid"}
FIELDS = tuple(f.name for f in fields(Batch) if f.name != "extra")


def collate(rows: Sequence[Row], pad: int) -> Batch:
    """Return rows as one batch: padded to the longest, `valid` made from lengths and never from ids.

    So a padding token that is also the end-of-text token stays a label where it was one.
    """
    tensors: dict[str, Tensor] = {}
    for name in rows[0]:
        values = [np.asarray(row[name]) for row in rows]
        if values[0].ndim == 0:
            tensors[name] = torch.from_numpy(np.stack(values))
            continue
        lengths = np.array([len(v) for v in values])
        width = max(int(lengths.max()), 1)
        tensors[name] = torch.from_numpy(pad_rows(values, FILL.get(name, pad), width=width))
        if name in VALID and (lengths < width).any():
            tensors[VALID[name]] = torch.from_numpy(valid_mask(lengths, width))
    return _as_batch(tensors)


def pad_batch(batch: Batch, rows: int, multiple: int, pad: int) -> Batch:
    """Return the batch with at least `rows` rows and rounded lengths: few shapes, the same loss.

    What is added is padding without labels; `valid` is there even if nothing was padded.
    """
    tensors = batch.tensors
    masks = {
        VALID[name]: torch.ones_like(t, dtype=torch.bool) for name, t in tensors.items() if name in VALID
    }
    grown = {}
    for name, t in (masks | tensors).items():
        columns = [round_up(t.shape[1], multiple)] if t.dim() > 1 else []
        # A number of a row is −1 where there is no row.
        value = False if t.dtype == torch.bool else FILL.get(name, pad) if columns else -1
        out = t.new_full((max(rows, len(t)), *columns, *t.shape[2:]), value)
        out[: len(t), *([slice(t.shape[1])] if columns else [])] = t
        grown[name] = out
    return _as_batch(grown)


def as_batch(value: object) -> Batch:
    """Return a Batch, or a table of its fields, as a Batch; other names go into `extra`.

    Only our own names are taken: `labels` elsewhere are often not shifted yet, which nobody would notice.
    """
    if isinstance(value, Batch):
        return value
    if not isinstance(value, Mapping):
        raise InputError(
            f"a {type(value).__name__} is not a batch",
            hint="give a heedful.data.Batch, or a dict of its fields: tokens, labels, valid …",
        )
    if "tokens" not in value:
        raise InputError(
            f"a batch has no 'tokens', only {', '.join(map(str, value)) or 'nothing'}",
            hint="name tensors as heedful.data.Batch does: tokens, valid (False on padding), labels (what "
            f"each position should say: the next token, or {IGNORE} for no loss)",
        )
    tensors: dict[str, Tensor] = {}
    for name, numbers in value.items():
        if numbers is None:
            continue
        try:
            tensors[name] = torch.as_tensor(numbers)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"{name!r} of a batch is not a tensor: {numbers!r:.80}", hint="give numbers, rows first"
            ) from None
    masks = {name: tensors[name].bool() for name in ("valid", "target_valid") if name in tensors}
    return _as_batch(tensors | masks)


def _as_batch(tensors: Mapping[str, Tensor]) -> Batch:
    extra = {name: t for name, t in tensors.items() if name not in FIELDS}
    return Batch(**{name: t for name, t in tensors.items() if name in FIELDS}, extra=extra)
