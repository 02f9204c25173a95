"""Batches of conversations for a decoder that is to answer: a loss on the assistant's messages alone.

A conversation is written by the tokenizer's chat template. What the template writes up to an answer is the
prompt that the model will see, and its tokens are those that the prompt will have when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Unpack

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError, count_of
from heedful.data.batch import IGNORE, Row
from heedful.data.batch_options import BatchOptions, TextKeywords, takes_options
from heedful.data.batches import Batches, fingerprint_arrays, join_fingerprints
from heedful.data.token_cache import RaggedArray, encode_texts, ragged_array
from heedful.data.tokenization import Ids, TokenizerProtocol, tokenizer_signature

Chat = Sequence[Mapping[str, Any]]
Piece = tuple[str, bool]  # of a conversation's text, and whether the assistant writes it
ENOUGH_BATCHES = 8  # of packed rows: of fewer, an epoch would have too few steps


class ChatTokenizer(TokenizerProtocol, Protocol):
    """A tokenizer that writes conversations as its model was trained on them."""

    roles: dict[str, str]

    def chat(self, messages: Chat, generation_prompt: bool = True) -> str:
        """Return a conversation as text; `generation_prompt` opens the answer."""


def split_answers(messages: Chat, tokenizer: ChatTokenizer) -> list[list[Piece]]:
    """Return the rows of a conversation: its text in pieces, and which of them the assistant writes.

    A row ends with an answer, and an answer with the token that ends a text. One row teaches all answers,
    unless the template writes an earlier one otherwise once others follow (Qwen3 leaves its thoughts out):
    that answer has a separate row, which is the conversation up to there.
    """
    written: dict[int, tuple[str, str]] = {}  # each answer's prompt, and the text with the answer
    for i, message in enumerate(messages):
        if message["role"] == "assistant" and i:
            prompt = tokenizer.chat(messages[:i], generation_prompt=True)
            answered = tokenizer.chat(messages[: i + 1], generation_prompt=False)
            if answered.startswith(prompt):
                written[i] = prompt, answered
    rows, end = [], tokenizer.roles.get("eos", "")
    while written:
        whole, at = written[max(written)][1], 0
        pieces: list[Piece] = []
        for i, (prompt, answered) in list(written.items()):
            if not whole.startswith(answered):
                continue
            answer = answered[len(prompt) :]
            if end and end in answer:
                answer = answer[: answer.rfind(end) + len(end)]
            pieces += [(whole[at : len(prompt)], False), (answer, True)]
            at = len(prompt) + len(answer)
            del written[i]
        rows.append(pieces)
    return rows[::-1]


def encode_rows(
    rows: Sequence[Sequence[Piece]], tokenizer: ChatTokenizer, name: str
) -> tuple[RaggedArray, NDArray[np.bool_]]:
    """Return the tokens of rows, and of all of them one after another whether the assistant writes them.

    A piece is tokenised after the one before, because some tokenizers begin every text with a space. A piece
    whose first characters would join a token of the piece before is tokenised by itself. So a prompt is read
    as it will be when the model answers.
    """
    alone = encode_texts((text for row in rows for text, _ in row), tokenizer, name)
    pairs = (f"{row[i - 1][0]}{row[i][0]}" if i else "" for row in rows for i in range(len(row)))
    joined = encode_texts(pairs, tokenizer, name)
    tokens, learnt, number = [], [], 0
    for row in rows:
        ids, marks = [], []
        for i, (_, answer) in enumerate(row):
            piece, before = alone[number], alone[number - 1] if i else alone[number][:0]
            if i and np.array_equal(joined[number][: len(before)], before):
                piece = joined[number][len(before) :]
            ids.append(piece)
            marks.append(np.full(len(piece), answer))
            number += 1
        tokens.append(np.concatenate(ids))
        learnt.append(np.concatenate(marks))
    return ragged_array(tokens, name), np.concatenate(learnt)


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
    name, answer_count = "the conversations", 0
    split: list[list[Piece]] = []
    for number, chat in enumerate(conversations, 1):
        answers = sum(message["role"] == "assistant" for message in chat[1:])
        if not (pieces := split_answers(chat, tokenizer)):
            odd = "the chat template does not write answers behind their prompts"
            hint = odd if answers else "one message after the first needs the role assistant"
            raise InputError(f"conversation {number} has no answer to learn", hint=hint)
        split += pieces
        answer_count += answers
    encoded, answered = encode_rows(split, tokenizer, name)

    def read_conversation(number: int) -> tuple[Ids, Ids]:
        """The tokens of a conversation that are read, and their labels."""
        ids = encoded[number]
        learnt = answered[slice(*encoded.offsets[number : number + 2])]
        labels = np.where(learnt[1:], ids[1:], IGNORE)
        return ids[:-1][-options.length :], labels[-options.length :]

    lengths = encoded.lengths - 1
    notes = options.check_lengths(lengths, "conversations", name)
    if left := answer_count - sum(answer for pieces in split for _, answer in pieces):
        why = "the chat template writes what stands before in another way"
        notes += (f"{count_of(left, 'answers', 'are', answer_count)} not learnt: {why}",)
    rows = pack_rows(np.minimum(lengths, options.length), options.length)
    packed = options.packed and len(rows) >= ENOUGH_BATCHES * options.batch
    data = join_fingerprints(encoded.fingerprint, fingerprint_arrays((answered,)))
    settings: dict[str, Any] = {"tokenizer": tokenizer_signature(tokenizer), "packed": packed}

    def make(row: int, epoch: int) -> Row:
        tokens, labels = zip(*map(read_conversation, rows[row] if packed else [row]), strict=True)
        made = {"tokens": np.concatenate(tokens), "labels": np.concatenate(labels)}
        documents = np.repeat(np.arange(len(tokens)), [len(ids) for ids in tokens])
        return made | ({"documents": documents} if packed else {})

    order = options.shuffle(len(rows), name) if packed else options.bucket(lengths, name)
    return options.build("chats", tokenizer, order, make, data, notes=notes, **settings)


def pack_rows(lengths: NDArray[np.int64], length: int) -> list[list[int]]:
    """Return which texts share a row of `length` tokens: longest first, each in the fullest row it fits."""
    rows: list[list[int]] = []
    by_space: dict[int, list[int]] = {}  # tokens that are left → rows
    for text in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[text])
        space = min((left for left, those in by_space.items() if left >= size and those), default=None)
        if space is None:
            rows.append([])
            space, row = length, len(rows) - 1
        else:
            row = by_space[space].pop()
        rows[row].append(text)
        by_space.setdefault(space - size, []).append(row)
    return rows
