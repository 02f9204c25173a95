"""`heed answer`: a question answered from a text or a folder of texts, each answer shown in its context."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.commands.output import Json, Row, align_columns, mark_spans, print_warnings, write_results
from heedful.commands.pipelines import Device, Model, TopK, make_pipeline
from heedful.commands.text_arguments import read_documents, read_file, text_or_file
from heedful.errors import InputError

CONTEXT_CHARACTERS = 60  # shown on either side of an answer


def answer_command(
    question: Annotated[str, typer.Argument(help="The question.")],
    context: Annotated[str | None, typer.Option(help="The text that has the answer, or its file.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file that has the answer.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="A folder of texts: find the passage, then read it.")
    ] = None,
    model: Model = None,
    top_k: TopK = 1,
    or_nothing: Annotated[bool, typer.Option("--or-nothing", help="Allow “no answer”.")] = False,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Answer a question with words of a text: --context, --file, --folder, or stdin.

    Examples:

      heed answer "Where is the Eiffel Tower?" --context "The Eiffel Tower stands in Paris."

      heed answer "Who wrote the report?" --file report.txt --top-k 3

      heed answer "When was the bridge built?" --folder ./notes
    """
    if sum(x is not None for x in (context, file, folder)) > 1:
        raise InputError("the text comes from --context, --file or --folder", hint="give one of them")
    question = text_or_file(question)
    if folder is not None:
        with print_warnings():
            name, shown = answer_from_folder(question, folder, model, top_k, device)
        results = [{k: v for k, v in row.items() if k != "at"} for row in shown]
    else:
        if context is not None:
            context = text_or_file(context)
        else:
            context = read_file(file) if file is not None else read_documents(None, per_line=False)[0]
        with print_warnings():
            name, pipe = make_pipeline("question-answering", model, device)
            best = pipe(question=question, context=context, top_k=top_k, handle_impossible_answer=or_nothing)
        results = best if isinstance(best, list) else [best]
        shown = [row | {"passage": context, "at": row["start"]} for row in results]
    about = {"task": "question-answering", "model": name}
    write_results(about, [(question, results)], json, lambda *_: format_answers(shown))


def answer_from_folder(
    question: str, folder: Path, model: str | None, top_k: int, device: str
) -> tuple[str, list[Row]]:
    """Return the model's name and the answers in a folder's texts, each with its place in its passage."""
    from heedful.loading import load
    from heedful.tasks.open_domain import OpenDomain
    from heedful.tasks.search import DEFAULT_MODEL

    name, reader = make_pipeline("question-answering", model, device)
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


def format_answers(rows: list[Row]) -> str:
    """Return the answers, and below them each one's score, characters, file if it has one, and context."""
    file = lambda row: [row["file"]] if "file" in row else []
    details = [
        [f"{row['score']:.4f}", f"{row['start']}–{row['end']}", *file(row), _context(row)] for row in rows
    ]
    answers = [" ".join(row["answer"].split()) or "(no answer)" for row in rows]
    return "\n".join([*answers, "", align_columns(details)])


def _context(row: Row) -> str:
    """Return an answer, marked, with the text on both sides of it."""
    text, start = row["passage"], row["at"]
    end = start + len(row["answer"])
    left, right = max(0, start - CONTEXT_CHARACTERS), min(len(text), end + CONTEXT_CHARACTERS)
    part = mark_spans(text[left:right], [(start - left, end - left, "")] if end > start else [])
    return "…" * (left > 0) + part + "…" * (right < len(text))
