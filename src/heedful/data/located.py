"""Batches for tasks on parts of a text: a tag for every word, an answer as a span."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.batch import IGNORE, Row
from heedful.data.batches import Batches, BucketedOrder, check_counts, fingerprint_arrays, join_fingerprints
from heedful.data.conll import Sentence, conll
from heedful.data.labelled import Names, named
from heedful.data.squad import Question, locate_answer, squad
from heedful.data.token_cache import RaggedArray, ragged_array
from heedful.data.tokenization import (
    LocatesTokens,
    Template,
    TokenizerProtocol,
    encode_many,
    find_template,
    pad_id,
)
from heedful.data.windows import CollatedRows, fitted
from heedful.errors import InputError
from heedful.files import Paths


def encode_words(words: Sequence[str], tokenizer: TokenizerProtocol) -> tuple[list[int], NDArray[np.int64]]:
    """The ids of words joined by spaces, and for each the word it begins, or −1 if it begins none.

    A piece belongs to the word of its last character: some tokenizers count the space before as part of it.
    """
    if not isinstance(tokenizer, LocatesTokens):
        parts = encode_many(tokenizer, words)
        first = [w if k == 0 else -1 for w, part in enumerate(parts) for k in range(len(part))]
        return [i for part in parts for i in part], np.array(first, np.int64)
    text = " ".join(words)
    word_of = np.repeat(np.arange(len(words)), [len(w) + 1 for w in words])
    ids = tokenizer.encode(text, special=False)
    spans = tokenizer.offsets(text, special=False)
    words_of = np.array([word_of[end - 1] if end > start else -1 for start, end in spans], np.int64)
    fresh = np.concatenate(([True], words_of[1:] != words_of[:-1])) if len(ids) else np.zeros(0, bool)
    return ids, np.where(fresh, words_of, -1)


def _tagged(
    sentences: Iterable[Sentence], tokenizer: TokenizerProtocol, names: Names, name: str
) -> tuple[RaggedArray, NDArray[np.int64], int]:
    """The pieces of all sentences, a label or IGNORE for each, and how many words got none."""
    codes: list[NDArray[np.int64]] = []
    lost = 0

    def encoded() -> Iterator[list[int]]:
        nonlocal lost
        for sentence in sentences:
            ids, first = encode_words(sentence.words, tokenizer)
            numbers = np.array([names.number(t, sentence.where) for t in sentence.tags], np.int64)
            lost += len(numbers) - int((first >= 0).sum())
            codes.append(np.where(first >= 0, numbers[first], IGNORE))
            yield ids

    found = ragged_array(encoded(), name=name)
    return found, np.concatenate(codes), lost


def tag(
    source: Paths | Sequence[Sentence],
    tokenizer: TokenizerProtocol,
    *,
    word: int | None = None,
    column: int | None = None,
    labels: Sequence[str] | None = None,
    length: int = 128,
    batch: int = 32,
    seed: int = 0,
    truncate: bool = False,
    encoding: str = "utf-8",
) -> Batches:
    """A tag for every word: the first piece of a word is labelled, the others are ignored.

    `word` and `column` choose the columns of a CoNLL file. For evaluation pass `labels=train.labels`.
    """
    held = _held(source, Sentence)
    sentences = held or conll(source, word, column, encoding)  # type: ignore[arg-type]
    names, around = Names(labels), find_template(tokenizer)
    found, codes, lost = _tagged(sentences, tokenizer, names, "the sentences" if held else str(source))
    flat, settled = names.settled(codes)
    lengths, room = found.lengths + around.single_count, length - around.single_count
    check_counts(len(found), batch, seed, found.name)
    notes = fitted(lengths, length, truncate, "sentences", "raise length", found.name)
    if lost:
        notes += (
            f"{lost:,} words have no token of their own, so no label: the tokenizer drops or joins them",
        )
    tags = RaggedArray(flat, found.offsets, "")
    edge = Template((IGNORE,) * len(around.before), (IGNORE,) * len(around.after))
    make = lambda row, epoch: {
        "tokens": around.wrap(found[row][:room]),
        "labels": edge.wrap(tags[row][:room]),
    }
    rows = CollatedRows(len(found), make, pad_id(tokenizer))
    settings = dict(kind="tag", length=length, batch=batch, seed=seed, frame=around.signature)
    data = join_fingerprints(found.fingerprint, fingerprint_arrays((flat,)))
    order = BucketedOrder(np.minimum(lengths, length), batch, seed)
    return named(Batches(rows, order, data, settings, notes=notes, pad=rows.pad), settled)


def _held(source: Any, kind: type) -> Any:
    """The examples themselves, if they were passed and not paths to them."""
    given = isinstance(source, Sequence) and not isinstance(source, str) and len(source) > 0
    return source if given and isinstance(source[0], kind) else None


@dataclass(frozen=True)
class Texts:
    """Questions and contexts as ids, and the characters of every piece of the contexts."""

    questions: RaggedArray
    contexts: RaggedArray
    spans: NDArray[np.int64]  # (pieces, 2), as flat as the contexts
    context_of: NDArray[np.int64]  # the context of each question


def _read(questions: Sequence[Question], tokenizer: TokenizerProtocol) -> Texts:
    if not isinstance(tokenizer, LocatesTokens):
        raise InputError(
            "answers are found by their characters and this tokenizer does not tell where its pieces stand"
        )
    places: dict[str, int] = {}
    context_of = [places.setdefault(q.context, len(places)) for q in questions]
    spans: list[NDArray[np.int64]] = [np.zeros((0, 2), np.int64)]

    def contexts() -> Iterator[list[int]]:
        for context in places:
            spans.append(np.array(tokenizer.offsets(context, special=False), np.int64).reshape(-1, 2))
            yield tokenizer.encode(context, special=False)

    asked = ragged_array(tokenizer.encode(q.question.strip(), special=False) for q in questions)
    held = ragged_array(contexts())
    return Texts(asked, held, np.concatenate(spans), np.array(context_of, np.int64))


def answer(
    source: Paths | Sequence[Question],
    tokenizer: TokenizerProtocol,
    *,
    length: int = 384,
    stride: int = 128,
    question: int = 64,
    batch: int = 32,
    seed: int = 0,
    truncate: bool = False,
    encoding: str = "utf-8",
) -> Batches:
    """[CLS] question [SEP] context [SEP] and where the answer starts and ends: extra["start"], extra["end"].

    A long context makes several rows that share `stride` tokens. Without an answer in it a row points at its
    first token. extra["example"] is the number of the question in `squad(source)`, extra["offsets"] (B, T, 2)
    the characters of each token of the context, −1 elsewhere. `question` bounds the tokens of a question.
    """
    asked: Sequence[Question] = _held(source, Question) or squad(source, encoding)  # type: ignore[arg-type]
    name = "the questions" if asked is source else str(source)
    texts, around = _read(asked, tokenizer), find_template(tokenizer)
    notes = fitted(texts.questions.lengths, question, truncate, "questions", "raise question", name)
    if length - around.pair_count - question <= stride:
        taken = f"{around.pair_count} special tokens and question={question}"
        raise InputError(f"length={length} less {taken} must exceed stride={stride}")
    plan, missing = _windows(asked, texts, around, length, stride, question)
    check_counts(len(plan), batch, seed, name)
    if missing:
        notes += (f"{missing:,} of {len(asked):,} questions are left out: their answer is not in the text",)
    make = lambda row, epoch: _row(plan[row], texts, around, question)
    rows = CollatedRows(len(plan), make, pad_id(tokenizer))
    settings = dict(kind="answer", length=length, stride=stride, question=question, batch=batch, seed=seed)
    data = join_fingerprints(
        texts.questions.fingerprint, texts.contexts.fingerprint, fingerprint_arrays((plan,)), around.signature
    )
    lengths = np.minimum(texts.questions.lengths, question)[plan[:, 0]] + plan[:, 2] - plan[:, 1]
    return Batches(rows, BucketedOrder(lengths, batch, seed), data, settings, notes=notes, pad=rows.pad)


def _row(window: NDArray[np.int64], texts: Texts, around: Template, question: int) -> Row:
    example, first, last, start, end = window.tolist()
    ids = texts.questions[example][:question]
    begin = int(texts.contexts.offsets[texts.context_of[example]])
    tokens, types = around.wrap_pair(ids, texts.contexts.flat[begin + first : begin + last].astype(np.int64))
    lead = len(around.before) + len(ids) + len(around.between)
    offsets = np.full((len(tokens), 2), -1, np.int64)
    offsets[lead : lead + last - first] = texts.spans[begin + first : begin + last]
    place = lambda piece: piece - first + lead if piece >= 0 else 0
    made: dict[str, Any] = {"tokens": tokens, "start": place(start), "end": place(end), "example": example}
    return {**made, "offsets": offsets, **({"types": types} if around.has_types else {})}


def _windows(
    asked: Sequence[Question], texts: Texts, around: Template, length: int, stride: int, question: int
) -> tuple[NDArray[np.int64], int]:
    """(rows, 5): question, first and last piece of the window, first and last piece of the answer or −1."""
    plan: list[tuple[int, int, int, int, int]] = []
    missing = 0
    for i, one in enumerate(asked):
        begin, stop = (
            texts.contexts.offsets[texts.context_of[i]],
            texts.contexts.offsets[texts.context_of[i] + 1],
        )
        spans, size = texts.spans[begin:stop], int(stop - begin)
        start = end = -1
        if one.answers:
            place = locate_answer(one)
            inside = np.zeros(0) if place is None else (spans[:, 1] > place[0]) & (spans[:, 0] < place[1])
            if not inside.any():
                missing += 1
                continue
            start, end = (int(np.flatnonzero(inside)[k]) for k in (0, -1))
        room = length - around.pair_count - min(int(texts.questions.lengths[i]), question)
        first = 0
        while True:
            last = min(first + room, size)
            held = first <= start and end < last
            plan.append((i, first, last, *((start, end) if held else (-1, -1))))
            if last == size:
                break
            first += room - stride
    return np.array(plan, np.int64).reshape(-1, 5), missing
