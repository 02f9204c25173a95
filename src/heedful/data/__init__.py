"""From files to batches.

    readers.py        documents of plain text, rows of tables
    input_files.py    what kind of file it is, its columns, and which of its rows can be used
    tokenization.py   what is needed of a tokenizer: special tokens, templates, which tokens begin a word
    token_cache.py    text tokenized once, in memory or in memory-mapped files
    batch.py          the tensors of one step
    batches.py        a data set as a function of the step number
    batch_options.py  the keywords that all builders take
    examples/         one builder per kind of example: language modeling, masking, classification …

A data set is a function of the step number: batches[step] follows from (data, seed, step) alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heedful.core.errors import InputError
from heedful.data.batch import IGNORE, Batch
from heedful.data.batches import Batches
from heedful.data.examples.answer_spans import answer, squad
from heedful.data.examples.chats import chats
from heedful.data.examples.classification import classify, contrast, regress
from heedful.data.examples.image_text import image_classify, image_text
from heedful.data.examples.language_modeling import next_token
from heedful.data.examples.masking import denoise, masked, pairs, permuted, replaced, spans
from heedful.data.examples.tagging import conll, tag
from heedful.data.examples.translation import parallel
from heedful.data.readers import Documents, Source, Table, column, documents, from_hub, texts
from heedful.data.tokenization import TokenizerProtocol as Tokenizer

__all__ = [
    "IGNORE",
    "Batch",
    "Batches",
    "Documents",
    "Table",
    "Tokenizer",
    "answer",
    "chats",
    "classify",
    "column",
    "conll",
    "contrast",
    "denoise",
    "documents",
    "from_hub",
    "image_classify",
    "image_text",
    "masked",
    "next_token",
    "pairs",
    "parallel",
    "permuted",
    "regress",
    "replaced",
    "spans",
    "squad",
    "tag",
    "text",
    "texts",
]

# What plain text can be learnt by, under the names of the objectives.
FROM_TEXT: dict[str, Callable[..., Batches]] = {
    "next_token": next_token,
    "masked": masked,
    "permuted": permuted,
    "masked_and_next": pairs,
    "spans": spans,
    "denoise": denoise,
    "replaced": replaced,
}


def text(source: Source, tokenizer: Tokenizer, *, objective: str = "next_token", **options: Any) -> Batches:
    """Batches of plain text for an objective: a file, a folder, several, or documents.

    `options` are length, batch, seed and those of the objective's own builder: next_token (packed=True,
    apart=True, unit="file" …), masked, permuted, masked_and_next (data.pairs), spans, denoise, replaced.
    """
    if objective not in FROM_TEXT:
        message = f"`objective={objective!r}` cannot be learned from plain text"
        raise InputError(message, value=objective, allowed=FROM_TEXT)
    return FROM_TEXT[objective](source, tokenizer, **options)
