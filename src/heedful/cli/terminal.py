"""Texts that a command reads: its arguments, files that they name, and stdin.

A file that does not exist is an error. Its name is never taken for a text.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from heedful.core.checks import Argument, Option
from heedful.core.errors import InputError, NotFound
from heedful.core.files import IMAGE_SUFFIXES, missing_file, read_blocks, stem_path
from heedful.core.progress import print_above, show_progress

if TYPE_CHECKING:
    from rich.console import Console

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
Words = Sequence[str | Path] | None  # arguments of the command line: texts, or the files of texts


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


def read_file_inputs(path: str | Path, columns: TableColumns) -> list[tuple[int, Input]]:
    """Return the inputs of a file, each with its line: rows of a table, tagged sentences, or lines."""
    path = find_file(path)
    if is_table(path, columns):
        return columns.read(path)
    if stem_path(path).suffix.lower() in SENTENCES:
        from heedful.data.examples.tagging import conll

        return list(enumerate((" ".join(sentence.words) for sentence in conll(path)), 1))
    return [*nonempty_lines(read_file(path))]


def read_numbered(arguments: Words, columns: TableColumns) -> list[tuple[int, Input]]:
    """Return the inputs of the command line: texts, lines of files and of stdin, rows of tables.

    Those of a single file and of stdin have their lines, others their places.
    """
    if not names_table(arguments, columns):
        columns.check_unused()
    if not arguments or list(map(str, arguments)) == ["-"]:
        numbered: list[tuple[int, Input]] = [*nonempty_lines(read_stdin(wait=bool(arguments)))]
    else:
        parts: list[list[tuple[int, Input]]] = []
        for one in arguments:
            parts.append(read_file_inputs(one, columns) if looks_like_path(one) else [(1, str(one))])
            if not parts[-1]:
                raise InputError(f"{one} has no text", hint="put one on each line")
        every = [text for part in parts for _, text in part]
        numbered = parts[0] if len(parts) == 1 else list(enumerate(every, 1))
    check_texts([one for _, one in numbered if isinstance(one, str)] or [str(one) for _, one in numbered])
    return numbered


def read_texts(arguments: Words, columns: TableColumns) -> list[str]:
    """Return the texts of the command line; a file and stdin have one text in each line that is not empty."""
    return [one for _, one in read_numbered(arguments, columns) if isinstance(one, str)]


def read_documents(arguments: Words, per_line: bool, columns: TableColumns) -> list[str]:
    """Return the texts of the command line; a file or stdin is one, or one `per_line`; a table has many."""
    if per_line or names_table(arguments, columns):
        return read_texts(arguments, columns)
    columns.check_unused()
    if arguments and list(map(str, arguments)) != ["-"]:
        return check_texts([text_or_file(argument) for argument in arguments])
    return check_texts([read_stdin(wait=bool(arguments)).strip()])


def nonempty_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines of a text that are not empty, each with its number."""
    return [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def text_or_file(argument: str | Path) -> str:
    """Return an argument as it is, or the text of the file that it names."""
    return read_file(find_file(argument)).strip() if looks_like_path(argument) else str(argument)


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


def find_file(argument: str | Path) -> Path:
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


def is_table(path: str | Path, columns: TableColumns) -> bool:
    """Return whether a path is written like that of a table; a .txt is one if a column is named."""
    suffix, named = stem_path(Path(path)).suffix.lower(), columns.text or columns.pair
    return suffix in TABLES or (suffix == ".txt" and bool(named))


def names_table(arguments: Words, columns: TableColumns) -> bool:
    """Return whether one of the arguments is written like the path of a table."""
    return any(looks_like_path(argument) and is_table(argument, columns) for argument in arguments or ())


def names_image(argument: str) -> bool:
    """Return whether a word is written like the path of an image."""
    path = Path(argument)
    return path.suffix.lower() in IMAGE_SUFFIXES and (path.is_file() or not any(map(str.isspace, argument)))


def looks_like_path(argument: str | Path) -> bool:
    """Return whether a word is written like a path: no spaces, and a slash or the suffix of a text file.

    The value of an option that takes only files is a `Path`, and may be written in any way.
    """
    if isinstance(argument, Path):
        return True
    if any(c.isspace() or c in "<>" for c in argument) or "://" in argument:
        return False
    return "/" in argument or Path(argument).suffix.lower() in SUFFIXES


def read_file(path: Path) -> str:
    """Return a whole file as text."""
    if not path.is_file():
        raise missing_file(path)
    with show_progress(f"reading {path}"):
        return "".join(read_blocks(path))


# What commands print.


Quiet = Annotated[bool, Option("Show no progress.", ("--quiet", "-q"))]
Json = Annotated[bool, Option("Print one JSON object on stdout.")]
Row = dict[str, Any]

PIPED_WIDTH = 160  # columns where there is no terminal
COLUMN_GAP = 3  # spaces between columns of a table


def console() -> Console:
    """Return a console on stdout; in a pipe nothing is cut at a terminal's width."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *,
    right: Container[str] = (), unbroken: Container[str] = (), out: Console | None = None,
) -> None:  # fmt: skip
    """Print a table without boxes, in which no cell is cut and `unbroken` columns are not wrapped."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="bold")
    for column in columns:
        justify: Any = "right" if column in right else "left"
        no_wrap = column in right or column in unbroken
        table.add_column(Text(column), justify=justify, no_wrap=no_wrap, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as Text: a cell may have brackets, which rich takes for its markup
    (out or console()).print(table)


def print_pairs(first: str, second: str, rows: Mapping[str, str], *, right: bool = False) -> None:
    """Print rows of a name and a value below the names of both columns."""
    print_table((first, second), list(rows.items()), right=(second,) if right else ())


def print_listing(
    out: Console,
    rows: Sequence[Mapping[str, str]],
    *,
    optional: Sequence[str],
    min_widths: Mapping[str, int],
    right: Container[str] = (),
) -> None:
    """Print rows as a table in which no cell is cut, however narrow the terminal is.

    Columns in `min_widths` may be wrapped, down to that many characters. Where the others do not fit next to
    each other, those in `optional` are left out, the first ones first.
    """
    from rich.cells import cell_len

    names = list(rows[0]) if rows else []
    longest = {n: max(cell_len(n), *(cell_len(row[n]) for row in rows)) for n in names}
    least = {n: min(longest[n], min_widths.get(n, longest[n])) for n in names}
    needed = lambda: sum(least[n] + COLUMN_GAP for n in names) - COLUMN_GAP
    for name in optional:
        if needed() > out.width:
            names.remove(name)
    out.width = max(out.width, needed())  # then the terminal breaks the lines
    cells = [[row[n] for n in names] for row in rows]
    print_table(names, cells, right=right, unbroken=set(names) - set(min_widths), out=out)


def as_json(value: dict[str, Any]) -> None:
    """Print one object with the schema that it follows."""
    print(json.dumps({"schema": "heed/1"} | value, ensure_ascii=False))


def format_size(number: float, unit: str = "") -> str:
    """124439808 → "124 M"; 999885952 → "1 B"; 0 → "0"."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G" if unit else "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * size:  # what rounds to 1,000 of a unit is 1 of the next
            return f"{number / size:.3g} {letter}{unit}"
    return f"{number:,.0f}{' ' + unit if unit else ''}"


def format_metric(value: Any) -> str:
    """Return a score for a table: four digits, thousands with commas, an interval with a dash."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list) and all(isinstance(v, float) for v in value):
        return "–".join(f"{v:.4f}" for v in value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print warnings as one line each on stderr, without their place in the code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)


def print_marked(text: str, style: str = "") -> None:
    """Print a text as it is; on a terminal the spans of `mark_spans` are bold."""
    if not sys.stdout.isatty():
        return print(text)
    from rich.text import Text

    styled = Text(text, style)
    styled.highlight_regex(r"⟦[^⟧]*⟧", "bold green")
    return console().print(styled, soft_wrap=True)


def mark_spans(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """Return the text on one line with its spans in brackets, each followed by its label: ⟦Ada⟧PER wrote."""
    out, at = [], 0
    for start, end, label in sorted(spans):
        if start < at:
            continue
        out += [text[at:start], "⟦", text[start:end], "⟧", label]
        at = end
    return " ".join("".join([*out, text[at:]]).split())


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines in which every column but the last is as wide as its widest cell."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    pad = lambda cell, width: cell + " " * (width - cell_len(cell))
    return "\n".join(
        "  ".join([*(pad(c, w) for c, w in zip(row[:-1], widths, strict=False)), row[-1]]) for row in rows
    )
