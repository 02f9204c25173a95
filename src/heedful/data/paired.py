"""Pairs of texts as the rows of an encoder-decoder, a whole batch at once.

A step of a small translator takes as long as making its batch a row at a time would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from heedful.data.batch import IGNORE, Batch
from heedful.data.batches import Indices
from heedful.data.token_cache import RaggedArray
from heedful.data.tokenization import Template

Matrix = NDArray[np.int64]  # (B, T)


def framed(
    texts: RaggedArray, rows: Indices, around: Template, most: int, pad: int
) -> tuple[Matrix, Indices]:
    """Texts between their special tokens, cut to `most` tokens in all; and how long each is."""
    before, after = len(around.before), len(around.after)
    starts = texts.offsets[rows]
    lengths = np.minimum(texts.offsets[rows + 1] - starts, most - around.single_count)
    within = np.arange(int(lengths.max()))
    inside = within < lengths[:, None]
    out = np.full((len(rows), before + len(within) + after), pad, np.int64)
    out[:, :before] = around.before
    out[:, before : before + len(within)][inside] = texts.flat[(starts[:, None] + within)[inside]]
    for i, token in enumerate(around.after):
        out[np.arange(len(rows)), before + lengths + i] = token
    return out, lengths + around.single_count


def shifted(labels: Matrix, lengths: Indices, start: int, pad: int) -> tuple[Matrix, Matrix, Indices]:
    """What the decoder reads and writes, and how long. A text that begins with the start token has it."""
    twice = (labels[:, 0] == start) & (lengths > 1)
    lengths = lengths - twice
    columns = np.arange(int(lengths.max()))
    labels = np.take_along_axis(labels, np.minimum(columns + twice[:, None], labels.shape[1] - 1), 1)
    inside = columns < lengths[:, None]
    target = np.where(inside, np.roll(labels, 1, 1), pad)
    target[:, 0] = start
    return target, np.where(inside, labels, IGNORE), lengths


def known(lengths: Indices, width: int) -> torch.Tensor | None:
    """`valid` of rows of these lengths; None if nothing is padding."""
    return torch.from_numpy(np.arange(width) < lengths[:, None]) if (lengths < width).any() else None


@dataclass(frozen=True)
class Pairs:
    """The source to read, the target to write, for each pair that has both."""

    sources: RaggedArray
    targets: RaggedArray
    kept: Indices
    around: Template
    beyond: Template  # of the target
    length: int
    start: int
    pad: int

    def __len__(self) -> int:
        return len(self.kept)

    def batch(self, rows: Indices, epochs: Indices) -> Batch:
        chosen = self.kept[rows]
        tokens, lengths = framed(self.sources, chosen, self.around, self.length, self.pad)
        answers = framed(self.targets, chosen, self.beyond, self.length, self.pad)
        target, labels, written = shifted(*answers, self.start, self.pad)
        return Batch(
            torch.from_numpy(tokens), torch.from_numpy(labels), known(lengths, tokens.shape[1]),
            target=torch.from_numpy(target), target_valid=known(written, target.shape[1]),
            extra={"row": torch.from_numpy(chosen)},
        )  # fmt: skip
