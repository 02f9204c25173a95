"""`heed answer`: a question answered from a text or a folder of texts, each answer shown in its context."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.model_arguments import few_threads
from heedful.cli.output import Json, Row, align_columns, mark_spans, print_warnings, write_results
from heedful.cli.pipelines import Device, Model, TopK, make_pipeline
from heedful.cli.text_arguments import (
    check_texts,
    looks_like_path,
    nonempty_lines,
    read_file,
    read_stdin,
    text_or_file,
)
from heedful.core.errors import InputError
from heedful.core.progress import show_progress

CONTEXT_CHARACTERS = 60  # shown on either side of an answer


def answer_command(
    first: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text or its file; or the question, if it comes alone.")
    ],
    second: Annotated[str | None, typer.Argument(metavar="QUESTION", help="The question.")] = None,
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
    """Answer a question with words of a text.

    The text, or its file, stands before the question; or it is given by --context, --file or --folder, or
    piped in. A file alone is asked the questions that are piped in, one per line.

    Examples:

      heed answer report.txt "Who wrote the report?" --top-k 3

      heed answer "Where is the Eiffel Tower?" --context "The Eiffel Tower stands in Paris."

      heed answer "When was the bridge built?" --folder ./notes
    """
    if sum(x is not None for x in (second, context, file, folder)) > 1:
        sources = "the text comes from an argument, --context, --file or --folder"
        raise InputError(sources, hint="give one of them; a question of several words stands in quotes")
    if folder is not None:
        question = text_or_file(first)
        with print_warnings(), show_progress("looking for the answer"):
            name, shown = answer_from_folder(question, folder, model, top_k, device)
        return print_answers(name, {question: shown}, json)
    if file is not None or context is not None:
        text = read_file(file) if file is not None else text_or_file(context or "")
        questions = [text_or_file(first)]
    else:
        text, questions = read_text_and_questions(first, second)
    check_texts([text])
    check_texts(questions)
    with print_warnings(), show_progress("looking for the answer"), few_threads([text]):
        name, pipe = make_pipeline("question-answering", model, device)
        found = {}
        for question in questions:
            best = pipe(question=question, context=text, top_k=top_k, handle_impossible_answer=or_nothing)
            rows = best if isinstance(best, list) else [best]
            found[question] = [row | {"passage": text, "at": row["start"]} for row in rows]
    return print_answers(name, found, json)


def read_text_and_questions(first: str, second: str | None) -> tuple[str, list[str]]:
    """Return the text and the questions of two arguments; stdin has what a single one is not."""
    if second is not None:
        swapped = looks_like_path(second) and not looks_like_path(first)
        text, question = map(text_or_file, (second, first) if swapped else (first, second))
        return text, [question]
    if looks_like_path(first):
        text = text_or_file(first)
        asked = read_stdin(wait=False, hint=f'ask a question: heed answer {first} "…"')
        return text, nonempty_lines(asked)
    hint = f'name its file: heed answer FILE "{first}", or pipe it in'
    return read_stdin(wait=False, hint=hint).strip(), [first]


def print_answers(model: str, found: dict[str, list[Row]], json: bool) -> None:
    """Print the answers of each question in their context; JSON has no context that was given whole."""
    left_out = lambda row: ("at",) if "file" in row else ("at", "passage")
    plain = lambda row: {name: value for name, value in row.items() if name not in left_out(row)}
    rows = {question: [plain(row) if json else row for row in answers] for question, answers in found.items()}
    about = {"task": "question-answering", "model": model}
    write_results(about, rows.items(), json, lambda _, answers: format_answers(answers))


def answer_from_folder(
    question: str, folder: Path, model: str | None, top_k: int, device: str
) -> tuple[str, list[Row]]:
    """Return the model's name and the answers in a folder's texts, each with its place in its passage."""
    from heedful.tasks.search import DEFAULT_MODEL, OpenDomain
    from heedful.weights.loading import load

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
