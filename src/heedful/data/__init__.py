"""From files to batches.

    readers.py    text files as documents          shards.py    tokenised once, memory-mapped
    windows.py    documents as rows                batch.py     Batch: the tensors of one step
    batches.py    Batches: a function of the step  language.py  next tokens

A data set is a function of the step number: batches[step] follows from (data, seed, step) alone.
"""

from __future__ import annotations

from heedful.data.batch import IGNORE, Batch
from heedful.data.batches import Batches
from heedful.data.language import next_token as text

__all__ = ["IGNORE", "Batch", "Batches", "text"]
