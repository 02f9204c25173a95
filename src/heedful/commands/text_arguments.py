"""Texts that a command reads: its arguments, files that they name, and stdin.

A file that does not exist is an error; its name is never taken for a text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from heedful.errors import InputError, NotFound
from heedful.files import missing_file, read_blocks
from heedful.progress import show_progress

Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT", help="Texts, or files with one text per line; - or a pipe reads stdin."),
]

# Suffixes of text files; a word with another suffix is a path only if it has a slash.
SUFFIXES = (
    ".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".conll", ".html", ".htm", ".xml", ".yaml",
    ".yml", ".log", ".tex", ".srt", ".vtt", ".eml", ".rtf", ".pdf", ".doc", ".docx", ".gz", ".bz2", ".xz",
)  # fmt: skip


def read_texts(arguments: Sequence[str] | None) -> list[str]:
    """Return the texts of the command line; a file and stdin have one text in each line that is not empty."""
    if arguments and list(arguments) != ["-"]:
        files = [(argument, file_text(argument)) for argument in arguments]
        return check_texts(
            [t for argument, text in files for t in ([argument] if text is None else nonempty_lines(text))]
        )
    return check_texts(nonempty_lines(read_stdin(wait=bool(arguments))))


def read_documents(arguments: Sequence[str] | None, per_line: bool) -> list[str]:
    """Return the texts of the command line; a file or stdin is one text, or one `per_line`."""
    if per_line:
        return read_texts(arguments)
    if arguments and list(arguments) != ["-"]:
        return check_texts([text_or_file(argument) for argument in arguments])
    return check_texts([read_stdin(wait=bool(arguments)).strip()])


def nonempty_lines(text: str) -> list[str]:
    """Return the lines of a text that are not empty."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def text_or_file(argument: str) -> str:
    """Return an argument as it is, or the text of the file that it names."""
    text = file_text(argument)
    return argument if text is None else text.strip()


def read_stdin(wait: bool, hint: str = "write it after the command, or pipe it in") -> str:
    """Return the text that is piped in; a terminal is waited for only if `wait`, which "-" asks for."""
    if sys.stdin.isatty() and not wait:
        raise InputError("there is no text", hint=hint)
    try:
        return sys.stdin.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(
            f"stdin is no {error.encoding} text (byte {error.start})", hint="convert it to UTF-8 first"
        ) from None


def check_texts(texts: list[str]) -> list[str]:
    """Return the texts; raise InputError if there are none or one is empty."""
    if not texts or not all(text.strip() for text in texts):
        raise InputError("a text is empty", hint="give one that has words, as an argument or through a pipe")
    return texts


def file_text(argument: str) -> str | None:
    """Return the text of the file that an argument names; None if the argument is a text itself."""
    if not looks_like_path(argument):
        return None
    path = Path(argument).expanduser()
    if path.is_dir():
        raise InputError(f"{argument} is a folder", hint="name a file in it")
    if not path.is_file():
        hint = f"{missing_file(path).hint} (a text that looks like a path goes in by a pipe)"
        raise NotFound(f"there is no file {argument}", hint=hint)
    return read_file(path)


def looks_like_path(argument: str) -> bool:
    """Return whether a word is written like a path: no spaces, and a slash or the suffix of a text file."""
    if any(c.isspace() or c in "<>" for c in argument) or "://" in argument:
        return False
    return "/" in argument or Path(argument).suffix.lower() in SUFFIXES


def read_file(path: Path) -> str:
    """Return a whole file as text."""
    if not path.is_file():
        raise missing_file(path)
    with show_progress(f"reading {path}"):
        return "".join(read_blocks(path))
