"""SQuAD files: questions and where in a text the answers stand (Rajpurkar et al. 2016; version 2: 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.tables import read_json_data
from heedful.errors import InputError
from heedful.files import Paths, expand_paths


@dataclass(frozen=True)
class Question:
    """A question, the text that answers it, and the answers: (text, first character); () if it has none."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]


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
        for article in value["data"]:
            for paragraph in article["paragraphs"]:
                context = _text(paragraph, "context")
                for entry in paragraph["qas"]:
                    answers = [] if entry.get("is_impossible", False) else entry["answers"]
                    spans = tuple((_text(answer, "text"), int(answer["answer_start"])) for answer in answers)
                    yield Question(str(entry["id"]), _text(entry, "question"), context, spans)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no SQuAD file: {error} is missing or not what it should be") from None


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
        found = question.context.find(answer, start), question.context.rfind(answer, 0, start)
        places = [place for place in found if place >= 0]
        if not places:
            return None
        start = min(places, key=lambda place: abs(place - start))
    return start, start + len(answer)
