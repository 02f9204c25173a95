"""Read plain text and tables from disk, never all of a file in memory at once.

`documents` reads text: a file, a folder, .gz, .xz or .bz2, or several of them. `Table` reads rows: CSV, TSV,
JSON Lines, Parquet and Excel. `parallel_documents` reads two files whose lines belong together.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, cast

from heedful.core.checks import check_choice
from heedful.core.errors import InputError, count_of, nearest
from heedful.core.files import Paths, expand_paths, name_files, open_bytes, read_blocks, read_lines, stem_path
from heedful.core.lazy import import_optional

EDGE_BYTES = 1 << 16  # of either end of a file, which its fingerprint looks at
Unit = Literal["file", "paragraph", "line"]


@dataclass(frozen=True)
class Documents:
    """Texts to be read, each a sequence of pieces that are joined: a document may be larger than memory.

    `files` and `settings` say where they come from: the same ones give the same texts.
    """

    open: Callable[[], Iterator[Iterable[str]]]
    files: tuple[Path, ...] = ()
    settings: tuple[Any, ...] = ()
    name: str = "the text"

    def __iter__(self) -> Iterator[Iterable[str]]:
        return self.open()

    def fingerprint(self) -> str:
        """Return the sha256 of the settings and of each file's name, size, time and ends, a cache's key."""
        digest = hashlib.sha256(repr(self.settings).encode())
        for path in self.files:
            stat = path.stat()
            digest.update(f"\0{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
            with path.open("rb") as file:
                digest.update(file.read(EDGE_BYTES))
                file.seek(max(0, stat.st_size - EDGE_BYTES))
                digest.update(file.read(EDGE_BYTES))
        if not self.files:
            for document in self:
                digest.update("".join(document).encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def documents(paths: Paths, unit: Unit = "file", encoding: str = "utf-8") -> Documents:
    """Return the documents of text files: one per file, per paragraph (between blank lines), or per line."""
    check_choice("unit", unit, ("file", "paragraph", "line"))
    files = tuple(expand_paths(paths))
    for path in files:
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty")

    def read_documents() -> Iterator[Iterable[str]]:
        for path in files:
            if unit == "file":
                yield read_blocks(path, encoding)
            elif unit == "line":
                yield from ([line] for line in read_lines(path, encoding) if line.strip())
            else:
                yield from (["\n".join(lines)] for lines in split_paragraphs(read_lines(path, encoding)))

    return Documents(read_documents, files, ("text", unit, encoding), name_files(files))


def split_paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines of each paragraph; blank lines part them."""
    for has_text, paragraph in groupby(lines, key=lambda line: bool(line.strip())):
        if has_text:
            yield list(paragraph)


def are_examples(source: Any, kind: type) -> bool:
    """Return whether examples themselves were passed, a sequence of `kind`, and not paths to them."""
    return isinstance(source, Sequence) and len(source) > 0 and isinstance(source[0], kind)


def texts(values: Iterable[str], name: str = "the texts") -> Documents:
    """Return texts in memory as documents."""
    documents = list(values)
    return Documents(lambda: ([text] for text in documents), name=name)


def from_hub(name: str, split: str = "train", column: str = "text", **options: Any) -> Documents:
    """Return a column of a data set of the Hugging Face hub, through its `datasets` package."""
    datasets = import_optional("datasets", "a data set of the hub")
    table = datasets.load_dataset(name, split=split, **options)
    if column not in table.column_names:
        raise InputError(f"{name} has no column {column!r}", hint=column_hint(column, table.column_names))
    settings = ("hub", name, split, column, getattr(table, "_fingerprint", None))
    return Documents(lambda: ([str(row[column])] for row in table), (), settings, name)


def split_documents(documents: Documents, part: float) -> tuple[Documents, Documents]:
    """Split a text into all but the last `part` of its characters, and that part; a document may be cut."""
    total = sum(len(text) for document in documents for text in document)
    cut = int(total * (1 - part))

    def read_range(low: int, high: int) -> Iterator[Iterator[str]]:
        at = 0

        def inside(document: Iterable[str]) -> Iterator[str]:
            nonlocal at
            for text in document:
                piece = text[max(low - at, 0) : max(high - at, 0)]
                at += len(text)
                if piece:
                    yield piece
                if at >= high:
                    return

        for document in documents:
            rest = inside(document)
            yield rest
            for _ in rest:  # a reader may leave early; the count may not
                pass
            if at >= high:
                return

    settings = lambda which: (*documents.settings, "part", which, cut)
    first = Documents(lambda: read_range(0, cut), documents.files, settings("first"), documents.name)
    return first, Documents(
        lambda: read_range(cut, total), documents.files, settings("last"), f"the end of {documents.name}"
    )


Column = str | int
Source = Paths | Documents  # of plain text
# The ending of a table's name → its delimiter, or its kind: xlsx has rows of cells, the others of fields.
TABLE_KINDS = {
    ".csv": ",", ".tsv": "\t", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet",
    ".xlsx": "xlsx",
}  # fmt: skip
FIELD_KINDS = ("json", "parquet")
MAX_PROBED_LINES = 200  # lines that tell a table, or words with their tags, from prose
TableRow = tuple[str, tuple[str, ...]]  # where it stands ("file, line 7"), and its values


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

    @classmethod
    def of(cls, source: Paths | Table, encoding: str = "utf-8") -> Table:
        """Return a table as it is, or the table in these files."""
        return source if isinstance(source, Table) else cls(source, encoding=encoding)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(expand_paths(self.paths))

    @property
    def names(self) -> tuple[str, ...]:
        """The cells of the first line of the first file, or the fields of its first object."""
        path = self.files[0]
        kind = self.delimiter or table_delimiter(path)
        if kind in FIELD_KINDS:
            first = next(read_objects(path, self.encoding), None)
            return () if first is None else tuple(first[1])
        for _, record in self._records(path, kind):
            return tuple(name.strip() for name in record)
        return ()

    def rows(self, *columns: Column) -> Iterator[TableRow]:
        """Yield where each row stands ("file, line 7"), and its values in these columns."""
        empty = True
        for path in self.files:
            kind = self.delimiter or table_delimiter(path)
            fields = kind in FIELD_KINDS
            for row in self._object_rows(path, columns) if fields else self._rows(path, kind, columns):
                empty = False
                yield row
        if empty:
            bytes_read = any(path.stat().st_size for path in self.files)
            raise InputError(f"{name_files(self.files)} {'has no rows' if bytes_read else 'is empty'}")

    def has_even_rows(self) -> bool:
        """Return whether the first rows have equally many cells, and more than one: the delimiter fits."""
        path, delimiter = self.files[0], self.delimiter or table_delimiter(self.files[0])
        try:
            records = islice(self._records(path, delimiter), MAX_PROBED_LINES)
            widths = {len(cells) for _, cells in records}
        except InputError:
            return False
        return len(widths) == 1 and widths.pop() > 1

    def column(self, name: Column) -> Documents:
        """Return one column as documents."""
        settings = ("table", name, self.header, self.delimiter, self.quoted, self.encoding)
        read = lambda: ([values[0]] for _, values in self.rows(name))
        return Documents(read, self.files, settings, name_files(self.files))

    def _uses_quotes(self, delimiter: str) -> bool:
        return delimiter != "\t" if self.quoted is None else self.quoted

    def _records(self, path: Path, delimiter: str) -> Iterator[tuple[range, list[str]]]:
        """Yield the lines each record takes, and its cells; blank records are left out."""
        if delimiter == "xlsx":
            yield from ((range(line, line + 1), cells) for line, cells in read_sheet(path))
            return
        if len(delimiter) != 1 or delimiter in '\r\n"':
            raise InputError(f"`delimiter={delimiter!r}` must be one character", hint="no quote, no line end")
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        record_lines: list[str] = []

        def lines() -> Iterator[str]:
            for number, line in enumerate(read_lines(path, self.encoding)):
                # "sep=;" in the first line tells a spreadsheet the delimiter
                record_lines.append("\n" if number == 0 and re.fullmatch("sep=.", line) else line + "\n")
                yield record_lines[-1]

        dialect: dict[str, Any] = {} if self._uses_quotes(delimiter) else {"quoting": csv.QUOTE_NONE}
        reader = csv.reader(lines(), delimiter=delimiter, **dialect)
        last = 0
        try:
            for record in reader:
                first, last = last + 1, reader.line_num
                if last > first:
                    check_closed_quote(path, first, last, record_lines, delimiter)
                record_lines.clear()
                if any(value.strip() for value in record):
                    yield range(first, last + 1), record
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}: {error}") from None

    def _rows(self, path: Path, delimiter: str, columns: Sequence[Column]) -> Iterator[TableRow]:
        names: list[str] | None = None
        indices: list[int] | None = None
        width = 0
        for lines, record in self._records(path, delimiter):
            if indices is None:
                width = len(record)
                if self.header if self.header is not None else any(isinstance(c, str) for c in columns):
                    names = [name.strip() for name in record]
                indices = [column_index(path, c, names, width) for c in columns]
                if names:
                    continue
            if len(record) != width:
                hint = "is a quote left open?" if self._uses_quotes(delimiter) and len(lines) > 1 else None
                where = f"{path}, line {lines[0]}"
                raise InputError(f"{where}: {count_of(len(record), 'columns')} instead of {width}", hint=hint)
            yield f"{path}, line {lines[0]}", tuple(record[i] for i in indices)

    def _object_rows(self, path: Path, columns: Sequence[Column]) -> Iterator[TableRow]:
        for place, row in read_objects(path, self.encoding):
            where, names = f"{path}, {place}", list(row)
            values = []
            for c in columns:
                name = names[c] if isinstance(c, int) and -len(names) <= c < len(names) else str(c)
                if name not in row and name not in nested_names(row):
                    raise InputError(f"{where}: no field {c!r}", hint=column_hint(name, names))
                values.append(find_field(row, name))
                if values[-1] is None:
                    raise InputError(f"{where}: field {c!r} is null")
            yield where, tuple(map(json_text, values))


def check_closed_quote(path: Path, first: int, last: int, lines: Sequence[str], delimiter: str) -> None:
    """Raise InputError unless a record of several lines ends every quoted cell with a quote.

    Python's reader accepts a quote that closes inside a cell, or never. A stray quote would then swallow all
    rows up to the next one, and the result may still have as many columns as the others.
    """
    try:
        next(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:
        what = f"{path}, line {first}: a cell begins with a quote, and no quote ends it up to line {last}"
        hint = 'remove the quote, or write "" for a quote inside a quoted cell'
        raise InputError(what, hint=hint) from None


def find_field(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field, or of one inside objects by its dotted name; None if there is none."""
    if name in row or "." not in name:
        return row.get(name)
    first, _, rest = name.partition(".")
    inner = row.get(first)
    return find_field(inner, rest) if isinstance(inner, Mapping) else None


def nested_names(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted names of the fields inside a row's objects: "user.message"."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            for inner in (*value, *nested_names(value)):
                yield f"{name}.{inner}"


def json_text(value: Any) -> str:
    """Return a value of JSON or Parquet as text; lists of strings (tokens) are joined by spaces."""
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return " ".join(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of whole numbers with gaps has floats: its labels are 1, and not 1.0
    if isinstance(value, bytes):  # what some programs write into Parquet for texts
        return value.decode("utf-8", "replace")
    if isinstance(value, dict | list | bool | int | float):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)  # a date or a decimal number stands there without quotes


def parse_json(text: str, path: Path, line: int | None = None) -> Any:
    """Return the value of a JSON text: one line of a file, or with `line` None all of it."""
    try:
        return json.loads(text)
    except RecursionError:
        reason = "lists or objects stand too deep in each other"
    except ValueError as error:  # also of a number with thousands of digits, which has no line
        reason, line = getattr(error, "msg", str(error)), line or getattr(error, "lineno", None)
    where = path if line is None else f"{path}, line {line}"
    raise InputError(f"{where}: this is not JSON ({reason})")


def read_objects(path: Path, encoding: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a JSON or Parquet file as objects, each with its place: "line 7" or "row 7".

    A .json file has one object a line, or one list of all.
    """
    suffix = stem_path(path).suffix.lower()
    unit, rows = "row", cast(Iterable[tuple[int, Any]], ())
    if suffix == ".parquet":
        rows = enumerate(read_parquet(path), 1)
    elif suffix == ".json" and not has_object_lines(path, encoding):
        value = read_json_data(path, encoding)
        if not isinstance(value, list):
            what = f"{path} holds one JSON object and not a list of rows"
            raise InputError(what, hint="name it .jsonl if it has one a line")
        rows = enumerate(value, 1)
    else:
        unit, lines = "line", enumerate(read_lines(path, encoding), 1)
        rows = ((i, parse_json(line, path, i)) for i, line in lines if line.strip())
    for number, row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{path}, {unit} {number}: a row is an object {{…}}, not {row!r:.40}")
        yield f"{unit} {number}", row


def has_object_lines(path: Path, encoding: str) -> bool:
    """Return whether the first line of a file is a JSON object by itself, and a second one follows."""
    lines = list(islice(filter(str.strip, read_lines(path, encoding)), 2))
    if len(lines) < 2 or not lines[1].lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(lines[0]), dict)
    except ValueError:
        return False


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, of which a batch at a time is in memory."""
    ParquetFile = import_optional("pyarrow.parquet", f"{path}: a Parquet file").ParquetFile
    from pyarrow import ArrowException

    with open_bytes(path) as file:
        try:
            for batch in ParquetFile(file).iter_batches(1000):
                yield from batch.to_pylist()
        except ArrowException as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{path} is damaged or no Parquet file ({reason})", hint="fetch it again"
            ) from None


@contextmanager
def open_workbook(path: Path) -> Iterator[Any]:
    """Open an Excel file for reading, as openpyxl gives it."""
    load_workbook = import_optional("openpyxl", f"{path}: an Excel file", "save it as .csv").load_workbook
    with open_bytes(path) as file:
        try:
            book = load_workbook(file, read_only=True, data_only=True)
        except (KeyError, ValueError, OSError, IndexError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is damaged or no .xlsx file ({error})", hint="save it again") from None
        yield book


def sheet_notes(path: Path) -> tuple[str, ...]:
    """Return a note on the sheets of an Excel file that are not read; none for other files."""
    if stem_path(path).suffix.lower() != ".xlsx":
        return ()
    with open_workbook(path) as book:
        names = book.sheetnames
    others = ", ".join(map(repr, names[1:]))
    return (f"{path}: only the sheet {names[0]!r} is read, and not {others}",) if others else ()


def read_sheet(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of the first sheet of an Excel file that are not empty, each with its number.

    Cells are text; each row is as wide as the first, whose last cells may be empty.
    """
    with open_workbook(path) as book:
        sheet = book.worksheets[0]
        width = 0
        for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
            whole = lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
            cells = ["" if value is None else str(whole(value)) for value in row]
            if not any(cell.strip() for cell in cells):
                continue
            while not cells[-1].strip():
                cells.pop()  # formatted cells without a value
            width = width or len(cells)
            yield number, cells + [""] * (width - len(cells))


def read_json_data(path: Path, encoding: str = "utf-8") -> Any:
    """Return the value of a whole JSON file of data, compressed or not."""
    text = "".join(read_blocks(path, encoding))
    if not text.strip():
        raise InputError(f"{path} is empty")
    return parse_json(text, path)


def table_delimiter(path: Path) -> str:
    """Return the delimiter of a table, or "json", by the end of its name."""
    suffix = stem_path(path).suffix.lower()
    if suffix == ".txt" and has_tab_columns(path):
        return "\t"
    if suffix not in TABLE_KINDS:
        raise InputError(
            f"cannot tell what {path} is", hint="name it .csv, .tsv or .jsonl, or pass `delimiter=`"
        )
    return TABLE_KINDS[suffix]


def has_tab_columns(path: Path, encoding: str = "utf-8") -> bool:
    """Return whether the first lines of a text are rows of a table: as many tabs in each, at least one."""
    lines = list(islice(filter(str.strip, read_lines(path, encoding)), MAX_PROBED_LINES))
    counts = {line.count("\t") for line in lines}
    return len(lines) > 1 and len(counts) == 1 and counts.pop() > 0


def column_index(path: Path, column: Column, names: Sequence[str] | None, width: int) -> int:
    """Return the index of a column, or raise an error that names the nearest."""
    if isinstance(column, int):
        if not -width <= column < width:
            raise InputError(f"{path} has no column {column}", hint=f"it has {width}, counted from 0")
        return column
    if names is None or column not in names:
        raise InputError(f"{path} has no column {column!r}", hint=column_hint(column, names or []))
    return names.index(column)


def column_hint(name: str, names: Sequence[str]) -> str:
    """Return the hint of an error about an unknown column: the nearest name, or all."""
    return nearest(name, names) or f"it has {', '.join(map(repr, names[:12])) or 'none'}"


def open_documents(source: Source, unit: Unit = "file", encoding: str = "utf-8") -> Documents:
    """Return the documents of text files, or of the field "text" of JSON Lines and Parquet files."""
    if isinstance(source, Documents):
        return source
    if all(stem_path(path).suffix.lower() in (".jsonl", ".parquet") for path in expand_paths(source)):
        return Table(source, encoding=encoding).column("text")
    return documents(source, unit, encoding)


def column(paths: Paths, name: Column, **options: Any) -> Documents:
    """Return one column of a table (CSV, TSV, JSON Lines, Parquet, Excel) as documents, for data.text."""
    return Table(paths, **options).column(name)


def parallel_documents(
    paths: Paths | Table | Sequence[tuple[str, str]], columns: tuple[Column, Column] | None,
    encoding: str = "utf-8",
) -> tuple[Documents, Documents]:  # fmt: skip
    """Return the two sides of a parallel corpus.

    These are two files of as many lines, two columns of a table, or pairs of texts in memory.
    """
    if are_examples(paths, tuple):
        first_side, second_side = zip(*cast(Sequence[tuple[str, str]], paths), strict=True)
        return texts(first_side), texts(second_side)
    paths = cast(Paths | Table, paths)
    if isinstance(paths, Table | str | Path) or len(paths) == 1:
        table = Table.of(paths, encoding)
        first, second = columns or (0, 1)
        return table.column(first), table.column(second)
    if len(paths) != 2:
        raise InputError(f"a parallel corpus is two files or one table; got {count_of(len(paths), 'paths')}")
    files = [expand_paths(p)[0] for p in paths]
    counts = [sum(1 for _ in read_lines(f, encoding)) for f in files]
    for file, count in zip(files, counts, strict=True):
        if not count:
            raise InputError(f"{file} is empty")
    if counts[0] != counts[1]:
        lines_of_first = count_of(counts[0], "lines")
        raise InputError(
            f"{files[0]} has {lines_of_first} and {files[1]} has {counts[1]:,}", hint="they must pair up"
        )
    lines = lambda file: lambda: ([line] for line in read_lines(file, encoding))
    source, target = (Documents(lines(file), (file,), ("lines", encoding), str(file)) for file in files)
    return source, target
