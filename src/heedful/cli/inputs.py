"""Texts that a command reads: its arguments, files that they name, and stdin.

A file that does not exist is an error. Its name is never taken for a text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from heedful.core.checks import Argument, Option
from heedful.core.errors import InputError, NotFound
from heedful.core.files import missing_file, read_blocks, stem_path
from heedful.core.progress import print_above, show_progress

Texts = Annotated[
    list[str] | None,
    Argument(
        "Texts, files with one text per line, or tables (.csv, .tsv, .jsonl); - or a pipe reads stdin.",
        metavar="TEXT",
    ),
]
TextColumn = Annotated[
    str | None,
    Option(
        "Read the text from this column of a table, given by name or number.", ("--text",), metavar="COLUMN"
    ),
]

# Suffixes of text files; a word with another suffix is a path only if it has a slash.
TABLES, SENTENCES = (
    (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".xlsx"),
    (".conll", ".conllu", ".iob", ".iob2", ".bio"),
)
NO_TEXT = (
    ".xls", ".ods", ".feather", ".arrow", ".numbers", ".pdf", ".doc", ".docx", ".odt",
    ".rtf", ".pptx", ".epub",
)  # fmt: skip
SUFFIXES = (
    *TABLES, *SENTENCES, *NO_TEXT, ".txt", ".md", ".rst", ".html", ".htm", ".xml", ".yaml", ".yml", ".log",
    ".tex", ".srt", ".vtt", ".eml", ".gz", ".bz2", ".xz",
)  # fmt: skip

Input = str | dict[str, str]  # a text, or a pair {"text": …, "text_pair": …}


@dataclass(frozen=True)
class TableColumns:
    """Which columns of a table a command reads: named ones, else those learnt from, else usual ones."""

    command: str
    text: str | None = None
    pair: str | None = None
    model: str | None = None  # a name or folder

    def read(self, path: Path) -> list[tuple[int, Input]]:
        """Return the texts of a table, each with its line."""
        from heedful.data.input_files import read_input_file
        from heedful.tasks.examples import RANKED_TEXTS, infer_input_columns, input_roles, parse_table
        from heedful.tasks.pipelines.text_generation import TextGeneration
        from heedful.tasks.task import TrainableTask
        from heedful.tasks.task_specification import TaskSpecification
        from heedful.train.checkpoint import of_run

        flags = {"--text": self.text, "--pair": self.pair}
        named = [name for name in flags.values() if name is not None]
        source = read_input_file(str(path), header=not named or not all(name.isdigit() for name in named))
        if source.kind != "table":
            wrong = "one JSON object" if source.kind == "squad" else "text without columns"
            raise InputError(f"{path} is {wrong} and no table", hint="name a .jsonl, .csv or .tsv file")
        learnt = None if self.model is None else TaskSpecification.of_folder(of_run(self.model))
        if learnt is not None and learnt.command != self.command:
            learnt = None
        roles = RANKED_TEXTS if self.command == "rerank" else input_roles(self.command)
        columns = infer_input_columns(source, self.command, roles, flags, learnt)
        print_above(f"{path}: {', '.join(f'{role} = {name!r}' for role, name in columns.items())}")
        # the text that an instruction is about is part of its prompt
        parse = (TextGeneration if "input" in columns else TrainableTask).parse_cells
        rows = parse_table(source, columns, parse)
        for note in rows.notes:
            print_above(f"note: {note}")
        lines = [int(where.rpartition(" ")[2]) for where in rows.locations]
        texts = [
            dict(zip(("text", "text_pair"), row, strict=True)) if "pair" in columns else row[0]
            for row in rows.items
        ]
        return list(zip(lines, texts, strict=True))

    def check_unused(self) -> None:
        """Raise InputError if a column was named without a table that could have it."""
        for flag, name in (("--text", self.text), ("--pair", self.pair)):
            if name is not None:
                what = f"{flag} {name} names a column of a table, and no table was given"
                raise InputError(what, hint="give a .csv, .tsv or .jsonl file")


def read_numbered(argument: str, columns: TableColumns) -> list[tuple[int, Input]] | None:
    """Return the texts of the file that an argument names, with their lines; None if it is a text itself."""
    if not looks_like_path(argument):
        return None
    path = find_file(argument)
    suffix = stem_path(path).suffix.lower()
    if looks_like_table(argument, columns):
        return columns.read(path)
    if suffix in SENTENCES:
        from heedful.data.examples.tagging import conll

        return list(enumerate((" ".join(sentence.words) for sentence in conll(path)), 1))
    return [*nonempty_lines(read_file(path))]


def read_inputs(arguments: Sequence[str] | None, columns: TableColumns) -> list[Input]:
    """Return the inputs of the command line: texts, lines of files and of stdin, rows of tables."""
    if not any(looks_like_table(argument, columns) for argument in arguments or ()):
        columns.check_unused()
    if not arguments or list(arguments) == ["-"]:
        return [*check_texts([line for _, line in nonempty_lines(read_stdin(wait=bool(arguments)))])]
    inputs: list[Input] = []
    for argument in arguments:
        numbered = read_numbered(argument, columns)
        inputs += [argument] if numbered is None else [one for _, one in numbered]
    check_texts([one for one in inputs if isinstance(one, str)] or [str(one) for one in inputs])
    return inputs


def read_texts(arguments: Sequence[str] | None, columns: TableColumns) -> list[str]:
    """Return the texts of the command line; a file and stdin have one text in each line that is not empty."""
    return [one for one in read_inputs(arguments, columns) if isinstance(one, str)]


def read_documents(arguments: Sequence[str] | None, per_line: bool, columns: TableColumns) -> list[str]:
    """Return the texts of the command line; a file or stdin is one, or one `per_line`; a table has many."""
    if per_line or any(looks_like_table(argument, columns) for argument in arguments or ()):
        return read_texts(arguments, columns)
    columns.check_unused()
    if arguments and list(arguments) != ["-"]:
        return check_texts([text_or_file(argument) for argument in arguments])
    return check_texts([read_stdin(wait=bool(arguments)).strip()])


def nonempty_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines of a text that are not empty, each with its number."""
    return [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def text_or_file(argument: str) -> str:
    """Return an argument as it is, or the text of the file that it names."""
    return read_file(find_file(argument)).strip() if looks_like_path(argument) else argument


def read_stdin(wait: bool, hint: str = "write it after the command, or pipe it in") -> str:
    """Return the text that is piped in; a terminal is waited for only if `wait`, which "-" asks for."""
    if sys.stdin.isatty() and not wait:
        raise InputError("no text was given", hint=hint)
    try:
        return sys.stdin.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(
            f"stdin is not {error.encoding} text (byte {error.start})", hint="convert it to UTF-8 first"
        ) from None


def check_texts(texts: list[str]) -> list[str]:
    """Return the texts; raise InputError if there are none or one is empty."""
    if not texts or not all(text.strip() for text in texts):
        raise InputError("a text is empty", hint="give a text with words, as an argument or through a pipe")
    return texts


def find_file(argument: str) -> Path:
    """Return the file that an argument names; raise an error if it does not exist, or holds no text."""
    path = Path(argument).expanduser()
    if path.is_dir():
        raise InputError(f"{argument} is a folder", hint="name a file in it")
    if not path.is_file():
        hint = f"{missing_file(path).hint} (a text that looks like a path goes in by a pipe)"
        raise NotFound(f"file not found: {argument}", hint=hint)
    if stem_path(path).suffix.lower() in NO_TEXT:
        hint = "save it as plain text (.txt), or a table as .csv or .jsonl"
        raise InputError(f"{argument} is not a text file", hint=hint)
    return path


def looks_like_table(argument: str, columns: TableColumns) -> bool:
    """Return whether an argument is written like the path of a table; a .txt is one if a column is named."""
    suffix, named = stem_path(Path(argument)).suffix.lower(), columns.text or columns.pair
    return looks_like_path(argument) and (suffix in TABLES or (suffix == ".txt" and bool(named)))


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
