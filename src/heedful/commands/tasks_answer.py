"""Answers as `heed answer` shows them: each in about a line of the text it stands in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heedful.commands.tasks_text import Row, columns, made, marked

REACH = 60  # characters shown on either side of an answer


def placed(row: Row, context: str) -> Row:
    """An answer with its text, and where in that text it stands."""
    return row | {"passage": context, "at": row["start"]}


def from_folder(
    question: str, folder: Path, model: str | None, top_k: int, device: str
) -> tuple[str, list[Row]]:
    """The model that reads, and the answers in the texts of a folder, each with its place in its passage."""
    from heedful.loading import load
    from heedful.tasks.open_domain import OpenDomain
    from heedful.tasks.search import DEFAULT_MODEL

    name, reader = made("question-answering", model, device)
    domain = OpenDomain(folder, reader=reader, model=load(DEFAULT_MODEL, device=device))
    best = domain.answer(question, top_k=top_k)
    rows = best if isinstance(best, list) else [best]
    # the same words may stand in a file twice: the passage is the one the answer lies in
    begin = lambda row: next(
        p.start
        for p in domain.passages
        if (p.file, p.text) == (row["file"], row["passage"]) and p.start <= row["start"] <= p.end
    )
    return name, [row | {"at": row["start"] - begin(row)} for row in rows]


def answered(rows: list[Row]) -> str:
    """The answers, and below them the score, the characters, the file if there is one, and what is around."""
    near = [[f"{r['score']:.4f}", f"{r['start']}–{r['end']}", *_file(r), around(r)] for r in rows]
    return "\n".join([*(" ".join(r["answer"].split()) or "(no answer)" for r in rows), "", columns(near)])


def _file(row: Row) -> list[Any]:
    return [row["file"]] if "file" in row else []


def around(row: Row) -> str:
    """An answer, marked, in what stands next to it."""
    text, start = row["passage"], row["at"]
    end = start + len(row["answer"])
    left, right = max(0, start - REACH), min(len(text), end + REACH)
    part = marked(text[left:right], [(start - left, end - left, "")] if end > start else [])
    return "…" * (left > 0) + part + "…" * (right < len(text))
