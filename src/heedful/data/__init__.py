"""From files to batches.

    readers.py  tables.py                 files: documents of plain text, rows of tables
    input_files.py                        what kind of file it is; its rows, and those that cannot be used
    input_files.py                        what a file of examples is: its kind, columns and usable rows
    tokenization.py  token_cache.py       what is needed of a tokenizer; text tokenised once
    windows.py  corruption.py             documents cut into rows; masking, spans, noise
    batch.py  batches.py                  the tensors of one step, as a function of the step
    batch_options.py                      what all builders take, and how they make Batches
    language_modeling.py  masking.py      builders for plain text: decoders, encoders,
    denoising.py                          encoder-decoders
    classification.py  translation.py     builders for tables, and for pairs of texts
    chats.py                              conversations, of which a model learns the answers
    image_text.py                         images and what is to be written for each
    tagging.py  answer_spans.py           readers and builders for CoNLL and for SQuAD
    labels.py                             the classes of a task

A data set is a function of the step number: batches[step] follows from (data, seed, step) alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heedful.core.errors import InputError, nearest
from heedful.data.batch import IGNORE, Batch
from heedful.data.batches import Batches
from heedful.data.examples.answer_spans import answer, squad
from heedful.data.examples.chats import chats
from heedful.data.examples.classification import classify, contrast, regress
from heedful.data.examples.image_text import image_text
from heedful.data.examples.language_modeling import next_token
from heedful.data.examples.masking import denoise, masked, pairs, replaced, spans
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
    "image_text",
    "masked",
    "next_token",
    "pairs",
    "parallel",
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
    "masked_and_next": pairs,
    "spans": spans,
    "denoise": denoise,
    "replaced": replaced,
}


def text(source: Source, tokenizer: Tokenizer, *, objective: str = "next_token", **options: Any) -> Batches:
    """Batches of plain text for an objective: a file, a folder, several, or documents.

    `options` are length, batch, seed and those of the objective's own builder: next_token (packed=True,
    apart=True, unit="file" …), masked, masked_and_next (data.pairs), spans, denoise, replaced.
    """
    if objective not in FROM_TEXT:
        hint = nearest(objective, FROM_TEXT) or f"one of {', '.join(FROM_TEXT)}"
        raise InputError(f"objective={objective!r} cannot be learnt from plain text", hint=hint)
    return FROM_TEXT[objective](source, tokenizer, **options)
