"""Padding: rows of different lengths as one matrix, and which of its entries are real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def round_up(length: Any, multiple: int) -> Any:
    """Return the next multiple of a length, or of each of several in an array."""
    return -(-length // multiple) * multiple


def pad_rows(
    rows: Sequence[Sequence[int] | NDArray[Any]], fill: int = 0, *, width: int | None = None,
    left: bool = False,
) -> NDArray[Any]:  # fmt: skip
    """Return (B, width, …): the rows filled up on the right, or on the left; int64, or float32 for fractions.

    `width` is by default that of the longest row.
    """
    arrays = [np.asarray(row) for row in rows]
    fractions = any(array.dtype.kind == "f" and array.size for array in arrays)
    width = max(map(len, arrays)) if width is None else width
    out = np.full(
        (len(arrays), width, *arrays[0].shape[1:]), fill, dtype=np.float32 if fractions else np.int64
    )
    for padded, array in zip(out, arrays, strict=True):
        padded[width - len(array) if left else 0 :][: len(array)] = array
    return out


def valid_mask(lengths: Any, width: int, *, left: bool = False) -> NDArray[np.bool_]:
    """(B, width): True where a row of one of these lengths has a token, False on its padding."""
    columns = np.arange(width)[None]
    sizes = np.asarray(lengths)[:, None]
    return columns >= width - sizes if left else columns < sizes
