"""Answers as spans of a text: SQuAD files as questions, and batches of where answers start and end.

SQuAD: Rajpurkar et al. 2016; version 2, with questions that have no answer: 2018.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError, count_of
from heedful.core.files import Paths, expand_paths
from heedful.data.batch import Row
from heedful.data.batch_options import BatchOptions, TaskKeywords, takes_options
from heedful.data.batches import Batches, fingerprint_arrays, join_fingerprints
from heedful.data.readers import are_examples, read_json_data
from heedful.data.token_cache import RaggedArray, encode_texts, ragged_array
from heedful.data.tokenization import FullTokenizer, TokenizerProtocol, find_template


@dataclass(frozen=True)
class Question:
    """A question, the text that answers it, and the answers: (text, first character); () if it has none."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    article: str = field(default="", compare=False, repr=False)  # which of its file the text is from


def squad(paths: Paths, encoding: str = "utf-8") -> list[Question]:
    """Return the questions of SQuAD files, version 1 or 2, in their order."""
    files = expand_paths(paths)
    questions = [question for path in files for question in _read_questions(path, encoding)]
    if not questions:
        raise InputError(f"{files[0]} has no questions")
    return questions


def _read_questions(path: Path, encoding: str) -> Iterator[Question]:
    value = read_json_data(path, encoding)
    try:
        for number, article in enumerate(value["data"]):
            name = f"{number}:{article.get('title', '')}"
            for paragraph in article["paragraphs"]:
                context = _text(paragraph, "context")
                for entry in paragraph["qas"]:
                    answers = [] if entry.get("is_impossible", False) else entry["answers"]
                    spans = tuple((_text(answer, "text"), int(answer["answer_start"])) for answer in answers)
                    yield Question(str(entry["id"]), _text(entry, "question"), context, spans, name)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a SQuAD file: {error} is missing or not what it should be") from None


def _text(entry: Any, field: str) -> str:
    value = entry[field]
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{field}={value!r:.40}")
    return value or ""


def locate_answer(question: Question) -> tuple[int, int] | None:
    """Return the characters of the first answer, white space left out; None if the text is not there.

    Some files are off by a few characters: then the nearest place with the same text counts.
    """
    text, start = question.answers[0]
    answer = text.strip()
    start = max(start + len(text) - len(text.lstrip()), 0)
    if not answer:
        return None
    if not question.context.startswith(answer, start):
        # An answer that begins before `start` may end behind it.
        before = question.context.rfind(answer, 0, start + len(answer))
        places = [place for place in (question.context.find(answer, start), before) if place >= 0]
        if not places:
            return None
        start = min(places, key=lambda place: abs(place - start))
    return start, start + len(answer)


def _encode_contexts(
    contexts: Iterable[str], tokenizer: TokenizerProtocol
) -> tuple[RaggedArray, RaggedArray]:
    """Return the ids of contexts, and the characters of every token: rows of (tokens, 2)."""
    if not isinstance(tokenizer, FullTokenizer):
        raise InputError(
            "answers are located by characters, and this tokenizer does not report the offsets of its tokens "
            "(it needs encode_all, encode_pair, offsets and tokens)"
        )
    spans: list[NDArray[np.int64]] = [np.zeros((0, 2), np.int64)]

    def encode() -> Iterator[list[int]]:
        for context in contexts:
            spans.append(np.array(tokenizer.offsets(context, special=False), np.int64).reshape(-1, 2))
            yield tokenizer.encode(context, special=False)

    ids = ragged_array(encode())
    return ids, RaggedArray(np.concatenate(spans), ids.offsets, "")


@takes_options(TaskKeywords, length=384)
def answer(
    source: Paths | Sequence[Question],
    tokenizer: TokenizerProtocol,
    *,
    stride: int = 128,
    question: int = 64,
    **keywords: Unpack[TaskKeywords],
) -> Batches:
    """[CLS] question [SEP] context [SEP] and where the answer starts and ends: extra["start"], extra["end"].

    A long context makes several rows that share `stride` tokens. Without an answer in it a row points at its
    first token. extra["example"] is the number of the question in `squad(source)`, extra["offsets"] (B, T, 2)
    the characters of each token of the context, −1 elsewhere. `question` bounds the tokens of a question.
    """
    options, template = BatchOptions(**keywords), find_template(tokenizer)
    loaded = are_examples(source, Question)
    questions = cast(Sequence[Question], source) if loaded else squad(cast(Paths, source), options.encoding)
    name = "the questions" if loaded else str(source)
    numbers: dict[str, int] = {}
    context_of = [numbers.setdefault(one.context, len(numbers)) for one in questions]
    contexts, spans = _encode_contexts(numbers, tokenizer)
    asked = encode_texts((one.question.strip() for one in questions), tokenizer, "the questions")
    notes = options.check_lengths(asked.lengths, "questions", name, "raise question", limit=question)
    width = options.length - template.pair_count
    if width - question <= stride:
        text = count_of(max(width - question, 0), "tokens")
        room = f"{text} of text in a row of `length={options.length}`"
        raise InputError(
            f"`question={question}` leaves {room}, which must be more than `stride={stride}`",
            hint="raise the length, or lower the stride",
        )
    lengths = np.minimum(asked.lengths, question)
    windows, missing = _cut_windows(questions, spans, context_of, width - lengths, stride)
    order = options.bucket(lengths[windows[:, 0]] + windows[:, 2] - windows[:, 1], name)
    if missing:
        left_out = count_of(missing, "questions", "are", len(questions))
        notes += (f"{left_out} left out because the answer is not in the text",)

    def make(row: int, epoch: int) -> Row:
        example, first, last, start, end = windows[row].tolist()
        ids, context = asked[example][:question], context_of[example]
        tokens, types = template.wrap_pair(ids, contexts[context][first:last])
        lead = len(template.before) + len(ids) + len(template.between)
        offsets = np.full((len(tokens), 2), -1, np.int64)
        offsets[lead : lead + last - first] = spans[context][first:last]
        in_row = lambda token: token - first + lead if token >= 0 else 0
        made: dict[str, Any] = {"tokens": tokens, "start": in_row(start), "end": in_row(end)}
        made |= {"example": example, "offsets": offsets}
        return made | ({"types": types} if template.has_types else {})

    fingerprints = (asked.fingerprint, contexts.fingerprint, fingerprint_arrays((windows,)))
    data = join_fingerprints(*fingerprints, template.signature)
    return options.build(
        "answer", tokenizer, order, make, data, notes=notes, stride=stride, question=question
    )


def _cut_windows(
    questions: Sequence[Question], spans: RaggedArray, context_of: Sequence[int],
    widths: NDArray[np.int64], stride: int,
) -> tuple[NDArray[np.int64], int]:  # fmt: skip
    """Return (rows, 5): question, first and last token of the window and of the answer, or −1; and how many
    questions were left out because their answer is not in the text."""
    windows: list[tuple[int, int, int, int, int]] = []
    missing = 0
    for number, question in enumerate(questions):
        tokens, width = spans[context_of[number]], int(widths[number])
        size = len(tokens)
        start = end = -1
        if question.answers:
            place = locate_answer(question)
            inside = np.zeros(0) if place is None else (tokens[:, 1] > place[0]) & (tokens[:, 0] < place[1])
            if not inside.any():
                missing += 1
                continue
            start, end = (int(np.flatnonzero(inside)[k]) for k in (0, -1))
        for first in range(0, max(size - stride, 1), width - stride):
            last = min(first + width, size)
            answered = first <= start and end < last
            windows.append((number, first, last, *((start, end) if answered else (-1, -1))))
    return np.array(windows, np.int64).reshape(-1, 5), missing
