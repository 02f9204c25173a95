"""Batches of conversations for a decoder that is to answer: a loss on the assistant's messages alone.

A conversation is written by the tokenizer's chat template. What the template writes up to an answer is the
prompt that the model will see; each piece is tokenised by itself, as the prompt will be when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Unpack

import numpy as np
from numpy.typing import NDArray

from heedful.data.batch import IGNORE, Row
from heedful.data.batch_options import BatchOptions, TextKeywords, takes_options
from heedful.data.batches import Batches, fingerprint_arrays, join_fingerprints
from heedful.data.token_cache import encode_texts
from heedful.data.tokenization import Ids, TokenizerProtocol, tokenizer_signature
from heedful.errors import InputError

Chat = Sequence[Mapping[str, Any]]
ENOUGH_BATCHES = 8  # of packed rows: of fewer, an epoch would have too few steps


class ChatTokenizer(TokenizerProtocol, Protocol):
    """A tokenizer that writes conversations as its model was trained on them."""

    roles: dict[str, str]

    def chat(self, messages: Chat, generation_prompt: bool = True) -> str:
        """Return a conversation as text; `generation_prompt` opens the answer."""


def split_answers(messages: Chat, tokenizer: ChatTokenizer) -> list[tuple[str, bool]]:
    """Return the text of a conversation in pieces, and which of them the assistant writes.

    An answer ends with the token that ends a text. One whose prompt is not how the whole conversation begins
    (some templates leave out parts of earlier answers) is not learnt.
    """
    whole, end = tokenizer.chat(messages, generation_prompt=False), tokenizer.roles.get("eos", "")
    pieces: list[tuple[str, bool]] = []
    at = 0
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = tokenizer.chat(messages[:i], generation_prompt=True) if i else ""
        answered = tokenizer.chat(messages[: i + 1], generation_prompt=False)
        if i == 0 or not answered.startswith(prompt) or not whole.startswith(answered):
            continue
        answer = answered[len(prompt) :]
        if end and end in answer:
            answer = answer[: answer.rfind(end) + len(end)]
        pieces += [(whole[at : len(prompt)], False), (answer, True)]
        at = len(prompt) + len(answer)
    return [*pieces, (whole[at:], False)]


@takes_options(TextKeywords)
def chats(
    conversations: Sequence[Chat],
    tokenizer: ChatTokenizer,
    *,
    truncate: bool = False,
    **keywords: Unpack[TextKeywords],
) -> Batches:
    """labels[t] = tokens[t + 1] where that is part of an answer or its end; what others say has no loss.

    Packed, short conversations share a row and do not see each other, if there are enough for several
    batches. A conversation that is too long loses its beginning.
    """
    options = BatchOptions(truncate=truncate, **keywords)
    split = [split_answers(chat, tokenizer) for chat in conversations]
    for number, pieces in enumerate(split):
        if not any(learnt for _, learnt in pieces):
            raise InputError(
                f"conversation {number + 1} has no answer to learn",
                hint="one message needs the role assistant",
            )
    name = "the conversations"
    found = encode_texts((text for pieces in split for text, _ in pieces), tokenizer, name)
    firsts = np.concatenate(([0], np.cumsum([len(pieces) for pieces in split]))).astype(np.int64)
    answered = np.array([learnt for pieces in split for _, learnt in pieces])

    def read_conversation(number: int) -> tuple[Ids, Ids]:
        """The tokens of a conversation that are read, and their labels."""
        first, last = firsts[number], firsts[number + 1] - 1
        parts = [found[k] for k in range(first, last)]
        ids = np.concatenate(parts).astype(np.int64)
        learnt = np.repeat(answered[first:last], [len(part) for part in parts])
        labels = np.where(learnt[1:], ids[1:], IGNORE)
        return ids[:-1][-options.length :], labels[-options.length :]

    # The last piece is no answer, and not read.
    counts = [found.lengths[firsts[n] : firsts[n + 1] - 1].sum() for n in range(len(split))]
    lengths = np.array(counts, dtype=np.int64) - 1
    notes = options.check_lengths(lengths, "conversations", name)
    rows = pack_rows(np.minimum(lengths, options.length), options.length)
    packed = options.packed and len(rows) >= ENOUGH_BATCHES * options.batch
    data = join_fingerprints(found.fingerprint, fingerprint_arrays((firsts, answered)))
    settings: dict[str, Any] = {"tokenizer": tokenizer_signature(tokenizer), "packed": packed}
    if not packed:
        make_one = lambda row, epoch: dict(zip(("tokens", "labels"), read_conversation(row), strict=True))
        return options.build(
            "chats", tokenizer, options.bucket(lengths, name), make_one, data, notes=notes, **settings
        )

    def make(row: int, epoch: int) -> Row:
        tokens, labels = zip(*map(read_conversation, rows[row]), strict=True)
        documents = np.repeat(np.arange(len(tokens)), [len(ids) for ids in tokens])
        return {
            "tokens": np.concatenate(tokens), "labels": np.concatenate(labels), "documents": documents,
        }  # fmt: skip

    return options.build(
        "chats", tokenizer, options.shuffle(len(rows), name), make, data, notes=notes, **settings
    )


def pack_rows(lengths: NDArray[np.int64], room: int) -> list[list[int]]:
    """Return which texts share a row of `room` tokens: the longest first, each in the fullest row it fits."""
    rows: list[list[int]] = []
    by_space: dict[int, list[int]] = {}  # tokens that are left → rows
    for text in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[text])
        space = min((left for left, those in by_space.items() if left >= size and those), default=None)
        if space is None:
            rows.append([])
            space, row = room, len(rows) - 1
        else:
            row = by_space[space].pop()
        rows[row].append(text)
        by_space.setdefault(space - size, []).append(row)
    return rows
