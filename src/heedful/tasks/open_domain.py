"""Answers from a folder of texts: find the passages that may hold one, then read them   (Chen et al. 2017)

    found = OpenDomain("notes/").answer("Who invented the telephone?")
    found["answer"], found["file"], found["start"], found["known"]

A passage is a few paragraphs or a part of a long one. A score is p(span | passage) × cos(question, passage).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from heedful.core.checks import check_integer
from heedful.core.errors import InputError, NotFound
from heedful.models.base import Model
from heedful.tasks.pipeline import pipeline
from heedful.tasks.search import DEFAULT_MODEL, Search
from heedful.tasks.task import Task

TEXT_SUFFIXES = (".txt", ".md", ".rst")


@dataclass(frozen=True)
class Passage:
    """A part of a file: characters start … end of its text."""

    file: str
    start: int
    end: int
    text: str


def split_passages(text: str, size: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield where passages begin and end: paragraphs joined up to `size` characters, long ones split."""
    begin: int | None = None
    last = 0
    for start, end in paragraphs(text):
        if begin is not None and end - begin > size:
            yield begin, last
            begin = None
        if end - start > size:
            yield from split_paragraph(text, start, end, size, overlap)
            continue
        begin, last = start if begin is None else begin, end
    if begin is not None:
        yield begin, last


def paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """Yield where paragraphs begin and end; empty lines stand between them."""
    at = 0
    for gap in [*re.finditer(r"\n\s*\n", text), None]:
        end = len(text) if gap is None else gap.start()
        inner = text[at:end]
        if inner.strip():
            yield at + len(inner) - len(inner.lstrip()), at + len(inner.rstrip())
        at = len(text) if gap is None else gap.end()


def split_paragraph(text: str, start: int, end: int, size: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield parts of a long paragraph that share about `overlap` characters, cut between words."""
    while end - start > size:
        stop = start + size
        early = start + max(size // 2, overlap) + 1  # a part must be longer than what the next one repeats
        space = max(text.rfind(" ", early, stop), text.rfind("\n", early, stop))
        stop = space if space > 0 else stop
        yield start, stop
        back = text.find(" ", stop - overlap, stop)
        start = back + 1 if back >= 0 else stop - overlap
    yield start, end


def read_passages(
    folder: str | Path, size: int, overlap: int, kinds: Sequence[str] = TEXT_SUFFIXES
) -> list[Passage]:
    """Return the passages of all texts in a folder and below, or of one file."""
    root = Path(folder)
    if not root.exists():
        raise NotFound(f"{folder} is no folder of texts", hint="check the path")
    check_integer("size", size)
    if not 0 <= overlap <= size // 2:
        raise InputError(f"overlap={overlap} must be from 0 to half of size={size}")
    below = sorted(p for p in root.rglob("*") if p.suffix.lower() in kinds and p.is_file())
    files = [root] if root.is_file() else below
    found = []
    for path in files:
        name = path.name if root.is_file() else path.relative_to(root).as_posix()
        # Some files of a folder are not what they say: a stray byte must not hide all others.
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
        found += [Passage(name, a, b, text[a:b]) for a, b in split_passages(text, size, overlap)]
    if not found:
        raise InputError(
            f"{folder} holds no text ({', '.join(kinds)})", hint="put some in, or name another folder"
        )
    return found


class OpenDomain:
    """A folder of texts that answers questions. `reader` is a question-answering pipeline or its model.

    An answer whose score is below `min_score` is no answer: "known" is False, and "answer" is empty.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        reader: Task | Model | str | Path | None = None,
        model: str | Path | Model = DEFAULT_MODEL,
        size: int = 800,
        overlap: int = 150,
        min_score: float = 0.05,
    ) -> None:
        self.passages = read_passages(folder, size, overlap)
        self.search = Search([p.text for p in self.passages], model)
        self.reader = reader if isinstance(reader, Task) else pipeline("question-answering", reader)
        self.min_score = min_score

    def answer(self, question: str, *, passages: int = 5, top_k: int = 1, **options: Any) -> Any:
        """Return the best answer with its file, place and passage; with top_k above 1 a list, the best first.

        So many `passages` are read; the options are those of question-answering. Where no passage answers,
        one row says so: its score is how sure that is, its passage the nearest one.
        """
        check_integer("top_k", top_k)
        if not isinstance(question, str):
            raise InputError(f"the question must be a text; got {question!r:.60}")
        near = self.search.find(question, check_integer("passages", passages))
        questions = [{"question": question, "context": row["text"]} for row in near]
        options = {"handle_impossible_answer": True} | options
        read = self.reader(iter(questions), **options, top_k=max(top_k, 2))
        rows = [
            self._row(self.passages[row["index"]], row["score"], found)
            for row, answers in zip(near, read, strict=True)
            for found in takewhile(lambda row: row["answer"], answers)  # likelier than that there is none
        ]
        kept = sorted((r for r in rows if r["score"] >= self.min_score), key=lambda r: -r["score"])
        best = kept[:top_k] or [self._no_answer_row(near[0], rows)]
        return best[0] if top_k == 1 else best

    def _row(self, passage: Passage, similarity: float, answer: dict[str, Any]) -> dict[str, Any]:
        place = {"start": passage.start + answer["start"], "end": passage.start + answer["end"]}
        row = {"answer": answer["answer"], "score": answer["score"] * max(similarity, 0.0), "known": True}
        return row | {"file": passage.file, **place, "passage": passage.text, "similarity": similarity}

    def _no_answer_row(self, nearest: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        passage = self.passages[nearest["index"]]
        sure = 1.0 - max((row["score"] for row in rows), default=0.0)
        row = {"answer": "", "score": sure, "known": False, "file": passage.file}
        place = {"start": passage.start, "end": passage.end}
        return row | place | {"passage": passage.text, "similarity": nearest["score"]}
