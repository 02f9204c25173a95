"""Tables from disk, row by row: CSV, TSV, JSON Lines, and two files whose lines belong together."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.readers import Documents
from heedful.errors import InputError, nearest
from heedful.files import Paths, expand_paths, name_files, read_blocks, read_lines, stem_path

Column = str | int
TABLE_KINDS = {".csv": ",", ".tsv": "\t", ".jsonl": "json", ".ndjson": "json", ".json": "json"}


@dataclass(frozen=True)
class Table:
    """Rows with columns. Rows are read when asked for and never held.

    A column is a name from the first line, or a number if there is no such line. Quotes mean something in
    CSV; in TSV they are text, as GLUE has it, unless `quoted` says otherwise.
    """

    paths: Paths
    header: bool | None = None  # None: there is one if columns are asked for by name
    delimiter: str | None = None
    quoted: bool | None = None
    encoding: str = "utf-8"

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(expand_paths(self.paths))

    @property
    def names(self) -> tuple[str, ...]:
        """What stands in the first line of the first file, or the fields of its first object."""
        path = self.files[0]
        kind = self.delimiter or table_delimiter(path)
        if kind == "json":
            first = next(read_objects(path, self.encoding), None)
            row = None if first is None else parse_object(path, *first)
            return tuple(row or ())
        reader = self._reader(path, kind)
        return tuple(name.strip() for name in next((r for r in reader if any(map(str.strip, r))), ()))

    def rows(self, *columns: Column) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Where each row stands ("file, line 7"), and its values in these columns."""
        empty = True
        for path in self.files:
            kind = self.delimiter or table_delimiter(path)
            made = self._objects(path, columns) if kind == "json" else self._records(path, kind, columns)
            for row in made:
                empty = False
                yield row
        if empty:
            some = any(path.stat().st_size for path in self.files)
            raise InputError(f"{name_files(self.files)} {'has no rows' if some else 'is empty'}")

    def column(self, name: Column) -> Documents:
        """One column as documents."""
        settings = ("table", name, self.header, self.delimiter, self.quoted, self.encoding)
        return Documents(
            lambda: ([values[0]] for _, values in self.rows(name)),
            self.files,
            settings,
            name_files(self.files),
        )

    def _quoted(self, delimiter: str) -> bool:
        return delimiter != "\t" if self.quoted is None else self.quoted

    def _reader(self, path: Path, delimiter: str) -> Any:
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        style: dict[str, Any] = {
            "delimiter": delimiter,
            "quoting": csv.QUOTE_MINIMAL if self._quoted(delimiter) else csv.QUOTE_NONE,
        }
        lines = (line + "\n" for line in read_lines(path, self.encoding))
        return csv.reader(lines, **style)

    def _records(self, path: Path, delimiter: str, columns: Sequence[Column]) -> Iterator[Any]:
        quoted, reader = self._quoted(delimiter), self._reader(path, delimiter)
        names: list[str] | None = None
        wanted, width, last = [], 0, 0
        try:
            for record in reader:
                line, last = last + 1, reader.line_num
                if not any(value.strip() for value in record):
                    continue
                if not width:
                    width = len(record)
                    if self.header if self.header is not None else any(isinstance(c, str) for c in columns):
                        names = [name.strip() for name in record]
                    wanted = [column_index(path, c, names, width) for c in columns]
                    if names:
                        continue
                if len(record) != width:
                    hint = "; is a quote left open?" if quoted and last > line else ""
                    raise InputError(f"{path}, line {line}: {len(record)} columns instead of {width}{hint}")
                yield f"{path}, line {line}", tuple(record[i] for i in wanted)
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}: {error}") from None

    def _objects(self, path: Path, columns: Sequence[Column]) -> Iterator[Any]:
        for line, text in read_objects(path, self.encoding):
            where = f"{path}, line {line}"
            row = parse_object(path, line, text)
            for c in columns:
                if c not in row:
                    raise InputError(f"{where}: no field {c!r}", hint=column_hint(str(c), list(row)))
                if row[c] is None:
                    raise InputError(f"{where}: field {c!r} is null")
            yield where, tuple(json_text(row[c]) for c in columns)


def json_text(value: Any) -> str:
    """A JSON value as text; lists of strings (tokens) are joined by spaces."""
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return " ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse_object(path: Path, line: int, text: Any) -> dict[Any, Any]:
    """One row of a JSON file."""
    try:
        row = json.loads(text) if isinstance(text, str) else text
    except ValueError as error:
        raise InputError(f"{path}, line {line}: no JSON ({error})") from None
    if not isinstance(row, dict):
        raise InputError(f"{path}, line {line}: a row is an object {{…}}, not {str(row)[:40]!r}")
    return row


def read_objects(path: Path, encoding: str) -> Iterator[tuple[int, Any]]:
    """The rows of a JSON file: one a line, or one list of all."""
    if stem_path(path).suffix.lower() == ".json":
        whole = read_json_data(path, encoding)
        if isinstance(whole, list):
            for i, row in enumerate(whole, 1):
                if isinstance(row, str):  # which `parsed` would take for a line of the file
                    raise InputError(f"{path}, row {i}: a row is an object {{…}}, not {row[:40]!r}")
                yield i, row
            return
        raise InputError(
            f"{path} holds one JSON object and not a list of rows", hint="name it .jsonl if it has one a line"
        )
    yield from ((i, line) for i, line in enumerate(read_lines(path, encoding), 1) if line.strip())


def read_json_data(path: Path, encoding: str = "utf-8") -> Any:
    """A whole JSON file."""
    text = "".join(read_blocks(path, encoding))
    if not text.strip():
        raise InputError(f"{path} is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: no JSON ({error.msg})") from None


def table_delimiter(path: Path) -> str:
    """The delimiter of a table, or "json", by the end of its name."""
    suffix = stem_path(path).suffix.lower()
    if suffix not in TABLE_KINDS:
        raise InputError(
            f"cannot tell what {path} is",
            hint="name it .csv, .tsv or .jsonl, or pass delimiter=",
            shell="name it .csv, .tsv or .jsonl",
        )
    return TABLE_KINDS[suffix]


def column_index(path: Path, column: Column, names: Sequence[str] | None, width: int) -> int:
    """The place of a column, or an error that names the nearest."""
    if isinstance(column, int):
        if not -width <= column < width:
            raise InputError(f"{path} has no column {column}", hint=f"it has {width}, counted from 0")
        return column
    if names is None or column not in names:
        raise InputError(f"{path} has no column {column!r}", hint=column_hint(column, names or []))
    return names.index(column)


def column_hint(name: str, names: Sequence[str]) -> str:
    """The end of an error about a name: the nearest one, or all."""
    return nearest(name, names) or f"it has {', '.join(map(repr, names[:12])) or 'none'}"


def open_table(source: Paths | Table, **options: Any) -> Table:
    """What was passed as a table, opened."""
    return source if isinstance(source, Table) else Table(source, **options)


def column(paths: Paths, name: Column, **options: Any) -> Documents:
    """One column of a CSV, TSV or JSON Lines file as documents, for data.text and its kin."""
    return Table(paths, **options).column(name)


def parallel_documents(
    paths: Paths | Table, columns: tuple[Column, Column] | None, encoding: str = "utf-8"
) -> tuple[Documents, Documents]:
    """Source and target of a parallel corpus: two files of as many lines, or two columns of a table."""
    if isinstance(paths, Table | str | Path) or len(paths) == 1:
        whole = open_table(paths, **({} if isinstance(paths, Table) else {"encoding": encoding}))
        first, second = columns or (0, 1)
        return whole.column(first), whole.column(second)
    if len(paths) != 2:
        raise InputError("a parallel corpus is two files or one table", hint=f"got {len(paths)} paths")
    files = [expand_paths(p)[0] for p in paths]
    counts = [sum(1 for _ in read_lines(f, encoding)) for f in files]
    for file, count in zip(files, counts, strict=True):
        if not count:
            raise InputError(f"{file} is empty")
    if counts[0] != counts[1]:
        raise InputError(
            f"{files[0]} has {counts[0]:,} lines and {files[1]} has {counts[1]:,}", hint="they must pair up"
        )
    side = lambda f: Documents(
        lambda: ([line] for line in read_lines(f, encoding)), (f,), ("lines", encoding), str(f)
    )
    return side(files[0]), side(files[1])
