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
    """The questions of SQuAD files, version 1 or 2, in their order."""
    found = [question for path in expand_paths(paths) for question in _questions(path, encoding)]
    if not found:
        raise InputError(f"{expand_paths(paths)[0]} has no questions")
    return found


def _questions(path: Path, encoding: str) -> Iterator[Question]:
    whole = read_json_data(path, encoding)
    try:
        for article in whole["data"]:
            for paragraph in article["paragraphs"]:
                context = paragraph["context"]
                for asked in paragraph["qas"]:
                    question = asked["question"] or ""
                    yield Question(str(asked["id"]), question, context or "", _answers(asked))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no SQuAD file: {error} is missing or not what it should be") from None


def _answers(asked: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    if asked.get("is_impossible", False):
        return ()
    return tuple((a["text"], int(a["answer_start"])) for a in asked["answers"])


def locate_answer(question: Question) -> tuple[int, int] | None:
    """The characters of the first answer, white space left out; None if the text is not there.

    Some files are off by a few characters: then the nearest place with the same text counts.
    """
    text, start = question.answers[0]
    wanted = text.strip()
    start += len(text) - len(text.lstrip())
    if not wanted:
        return None
    if question.context[start : start + len(wanted)] != wanted:
        after, before = (
            question.context.find(wanted, max(start, 0)),
            question.context.rfind(wanted, 0, max(start, 0)),
        )
        places = [p for p in (after, before) if p >= 0]
        if not places:
            return None
        start = min(places, key=lambda p: abs(p - start))
    return start, start + len(wanted)
