"""An argument that names a file: its text is read, and a file that is not there is an error, never a text."""

from __future__ import annotations

from pathlib import Path

from heedful.errors import InputError, NotFound
from heedful.files import missing_file, read_blocks

# How files of text are called; a word that ends otherwise is a path only if it has a slash.
SUFFIXES = (
    ".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".conll", ".html", ".htm", ".xml", ".yaml",
    ".yml", ".log", ".tex", ".srt", ".vtt", ".eml", ".rtf", ".pdf", ".doc", ".docx", ".gz", ".bz2", ".xz",
)  # fmt: skip


def file_text(argument: str) -> str | None:
    """Return the text of the file that an argument names; None if the argument is a text itself."""
    if not looks_like_path(argument):
        return None
    path = Path(argument).expanduser()
    if path.is_dir():
        raise InputError(f"{argument} is a folder", hint="name a file in it")
    if not path.is_file():
        instead = missing_file(path).hint
        raise NotFound(
            f"there is no file {argument}",
            hint=f"{instead} (a text that looks like a path goes in by a pipe)",
        )
    return read_file(path)


def looks_like_path(argument: str) -> bool:
    """Whether a word is written like a path: without spaces, with a suffix of text files or a slash."""
    if any(c.isspace() or c in "<>" for c in argument) or "://" in argument:
        return False
    return "/" in argument or Path(argument).suffix.lower() in SUFFIXES


def read_file(path: Path) -> str:
    """Return a whole file as text."""
    if not path.is_file():
        raise missing_file(path)
    return "".join(read_blocks(path))
