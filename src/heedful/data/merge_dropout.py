"""Subword regularisation: every epoch reads a text in other pieces   (BPE-dropout, Provilkov et al. 2020)

A piece that a merge of BPE made is taken apart with probability p, its two parts again with probability p,
and so on. A word is mostly read whole and sometimes in parts, so that rare words are learnt by parts too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError
from heedful.data.batches import Indices, seeded_generator
from heedful.data.token_cache import RaggedArray


def merge_parts(tokenizer: Any) -> NDArray[np.int64]:
    """Return (V, 2): the two pieces each token was merged of; −1 for tokens that no merge made."""
    backend = getattr(tokenizer, "backend", None)
    model = {} if backend is None else json.loads(backend.to_str())["model"]
    if model.get("type") != "BPE":
        kind = model.get("type") or type(tokenizer).__name__
        raise InputError(
            f"merges are dropped of BPE alone, and this tokenizer is {kind}", hint="pass dropout=0"
        )
    ids: dict[str, int] = model["vocab"]
    parts = np.full((len(tokenizer), 2), -1, np.int64)
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        whole = ids[left + right]
        if parts[whole, 0] < 0:  # the first merge that makes a token is the one that is used
            parts[whole] = ids[left], ids[right]
    return parts


@dataclass(frozen=True)
class MergeDropout:
    """Take merged pieces apart at random; the same (seed, epoch, row) always gives the same pieces."""

    parts: NDArray[np.int64]  # (V, 2)
    rate: float
    seed: int

    def draw(self, texts: RaggedArray, rows: Indices, epochs: Indices) -> RaggedArray:
        """Return these rows of the texts in pieces drawn anew."""
        rng = seeded_generator(self.seed, int(epochs[0]), int(rows[0]))
        lengths = texts.offsets[rows + 1] - texts.offsets[rows]
        owners = np.repeat(np.arange(len(rows)), lengths)
        before = np.cumsum(lengths) - lengths  # pieces of the rows above
        ids = texts.flat[(texts.offsets[rows] - before)[owners] + np.arange(len(owners))]
        fresh = np.ones(len(ids), bool)  # pieces that were not asked yet
        while True:
            apart = fresh & (self.parts[ids, 0] >= 0) & (rng.random(len(ids)) < self.rate)
            if not apart.any():
                break
            counts = 1 + apart
            first = (np.cumsum(counts) - counts)[apart]  # where the left parts will stand
            left, right = self.parts[ids[apart]].T
            ids, owners = np.repeat(ids, counts), np.repeat(owners, counts)
            ids[first], ids[first + 1] = left, right
            fresh = np.zeros(len(ids), bool)
            fresh[first] = fresh[first + 1] = True
        ends = np.cumsum(np.bincount(owners, minlength=len(rows)))
        return RaggedArray(ids, np.concatenate(([0], ends)), texts.fingerprint, texts.name)
