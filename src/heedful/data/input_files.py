"""Data to learn from: a file or a table in memory, its kind, its columns, its rows, and which cannot be used.

path ── read_input_file ──▶ InputFile with all rows
folder of images ── read_image_folder ──▶ InputFile with a row for each image
path ── stream_table ─────▶ InputFile without rows, and an iterator over them: a table of any size
list, DataFrame, Dataset ── table_in_memory ──▶ InputFile with all rows
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from heedful.core.errors import InputError, nearest
from heedful.core.files import (
    IMAGE_SUFFIXES,
    expand_paths,
    open_bytes,
    read_blocks,
    read_lines,
    sha256,
    stem_path,
    visible_files,
)
from heedful.core.images import image_identity
from heedful.data.readers import (
    FIELD_KINDS,
    MAX_PROBED_LINES,
    TABLE_KINDS,
    Table,
    find_field,
    has_object_lines,
    has_tab_columns,
    json_text,
    nested_names,
    read_objects,
    sheet_notes,
)

Kind = Literal["table", "conll", "squad", "text"]
CONLL = (".conll", ".conllu", ".iob", ".iob2", ".bio")
OTHER_TABLES = (".xls", ".ods", ".feather", ".arrow", ".numbers")
OTHER_TEXTS = (".docx", ".doc", ".odt", ".rtf", ".pdf", ".epub", ".pptx", ".html", ".htm")
SLIP = 0.7  # how alike an ending and a known one are, at least, if it was mistyped
DELIMITERS = (";", "\t", "|", ",")  # what spreadsheets write, whatever the file is called
SPLITS = frozenset({"train", "training", "valid", "validation", "val", "dev", "test", "eval"})  # folders


@dataclass(frozen=True)
class Row:
    """One row of a table and its line."""

    where: str  # "line 7"
    values: dict[str, Any]

    def get(self, column: str) -> Any:
        """Return the value in a column, or inside an object by its dotted name; None: there is none."""
        return find_field(self.values, column)


@dataclass(frozen=True)
class InputFile:
    """A file with its kind, and for a table its columns and rows."""

    path: Path
    kind: Kind
    encoding: str = "utf-8"
    columns: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()  # dotted names of fields inside objects: "user.message"
    rows: list[Row] = field(default_factory=list, repr=False)
    repeated: frozenset[str] = frozenset()  # names that several columns have
    notes: tuple[str, ...] = ()  # on what of the file is not read
    in_memory: bool = False  # whether there is no file, and `path` is a name for messages

    @property
    def all_columns(self) -> tuple[str, ...]:
        """The names that a flag may have: those of columns, and of fields inside objects."""
        return (*self.columns, *self.nested)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file's bytes, or of rows in memory and of a folder as JSON Lines."""
        if not self.in_memory and not self.is_image_folder:
            return sha256([self.path])
        digest = hashlib.sha256()
        for row in self.rows:
            line = json.dumps(row.values, ensure_ascii=False, default=image_identity)
            digest.update(line.encode() + b"\n")
        if not self.in_memory:
            digest.update(sha256([self.path / row.where for row in self.rows]).encode())
        return digest.hexdigest()

    @property
    def is_image_folder(self) -> bool:
        """Whether it is a folder of images, with a row for each."""
        return not self.in_memory and self.path.is_dir()

    @property
    def folder(self) -> Path:
        """The folder that paths in the cells count from."""
        return self.path if self.is_image_folder else self.path.parent


def read_input_file(
    path: str, *, encoding: str = "utf-8", header: bool = True, kinds: Collection[str] = ()
) -> InputFile:
    """Read a file and find out its kind, columns and rows.

    `kinds` are those that the task reads, if it is known: they decide where the file's name tells nothing.
    """
    if Path(path).is_dir():
        return read_image_folder(Path(path))
    file, encoding = find_input_file(path, encoding)
    kind = file_kind(file, encoding, kinds)
    if kind != "table":
        return InputFile(file, kind, encoding)
    source, stream = stream_table(path, encoding=encoding, header=header)
    rows = list(stream)
    columns, nested = column_names(rows)
    return replace(source, columns=columns, nested=nested, rows=rows)


def read_image_folder(folder: Path) -> InputFile:
    """Return the images of a folder as a table: their paths in it, and as label the subfolder they are in.

    A folder with images and no subfolder of images has no labels.
    """
    inside = (path.relative_to(folder) for path in visible_files(folder))
    images = [path for path in inside if path.suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise InputError(
            f"{folder} is a folder without images",
            hint="give one file, or a folder with a subfolder of images for each class",
        )
    labels = {path.parts[0] for path in images if len(path.parts) > 1}
    if labels and {label.lower() for label in labels} <= SPLITS:
        parts = ", ".join(str(folder / label) for label in sorted(labels))
        raise InputError(
            f"{folder} has no subfolder for each class: its folders are {parts}",
            hint="give one of them, and another one as `valid=FOLDER`",
        )
    columns = ("image", "label") if labels else ("image",)
    cells = lambda path: (path.as_posix(), path.parts[0] if len(path.parts) > 1 else None)
    rows = [Row(path.as_posix(), dict(zip(columns, cells(path), strict=False))) for path in images]
    return InputFile(folder, "table", "utf-8", columns, (), rows)


def stream_table(
    path: str, *, encoding: str = "utf-8", header: bool = True
) -> tuple[InputFile, Iterator[Row]]:
    """Return a table without its rows, and an iterator over them: the rows are never all in memory.

    The columns of JSON are the fields of its first object.
    """
    file, encoding = find_input_file(path, encoding)
    names, rows = table_rows(file, encoding, header)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{file} has no rows")
    repeated = frozenset(name for name, count in Counter(names).items() if count > 1)
    columns = column_names([first])
    table = InputFile(file, "table", encoding, *columns, [], repeated, sheet_notes(file))
    return table, chain([first], rows)


def find_input_file(path: str, encoding: str) -> tuple[Path, str]:
    """Return the file, which exists and is not empty, and its encoding, which a byte order mark may tell."""
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder", hint="give one file")
    file = expand_paths(path)[0]
    if not file.stat().st_size:
        raise InputError(f"{file} is empty")
    with open_bytes(file) as opened:
        marked = opened.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as spreadsheets write
    if marked and encoding.lower() in ("utf-8", "utf8"):
        encoding = "utf-16"
    return file, encoding


def table_rows(file: Path, encoding: str, header: bool) -> tuple[tuple[str, ...], Iterator[Row]]:
    """Return the names of a table's columns as its header has them, and its rows one by one.

    Columns without names are counted from 0.
    """
    kind = TABLE_KINDS.get(stem_path(file).suffix.lower()) or find_delimiter(file, encoding)
    if kind in FIELD_KINDS:
        return (), (Row(where, values) for where, values in read_objects(file, encoding))
    table = Table(file, encoding=encoding, delimiter=kind)
    if kind != "xlsx":  # what a spreadsheet writes is not always what the file's name says
        tables = [replace(table, delimiter=one) for one in dict.fromkeys((kind, *DELIMITERS))]
        alone = len(table.names) == 1
        split = (other for other in tables[1:] if alone and len(other.names) > 1)
        table = next((other for other in tables if other.has_even_rows()), next(split, table))
    first = table.names
    if not first:
        raise InputError(f"{file} is empty")
    names = first if header else tuple(map(str, range(len(first))))
    rows = replace(table, header=header).rows(*range(len(first)))
    # A row keeps the cells of all columns: the second one that is called "label" is "label_2" there.
    keys = [f"{name}_{n}" if (n := names[: i + 1].count(name)) > 1 else name for i, name in enumerate(names)]
    place = lambda where: where.removeprefix(f"{table.files[0]}, ")
    return names, (Row(place(where), dict(zip(keys, values, strict=True))) for where, values in rows)


def column_names(rows: Iterable[Row]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the columns of rows, and the dotted names of fields inside objects."""
    columns, nested = dict[str, None](), dict[str, None]()
    for row in rows:
        columns |= dict.fromkeys(row.values)
        nested |= dict.fromkeys(nested_names(row.values))
    return tuple(columns), tuple(nested)


def table_in_memory(data: Any, name: str = "data") -> InputFile:
    """Return rows in memory as a table; `name` stands for it in messages.

    `data` is a list of dicts, of tuples or of texts, a dict of columns, a DataFrame of pandas or polars, or a
    Dataset of `datasets`, whose class numbers become names. No library is imported: each is known by its
    methods. Tuples have columns that are counted from 0; the column of texts is called "text".
    """
    if isinstance(data, str | bytes) or not hasattr(data, "__iter__"):
        what = "a list of dicts, of tuples or of texts, a DataFrame or a Dataset"
        raise InputError(f"{name} must be {what}, or the path of a file; got a {type(data).__name__}")
    if isinstance(data, Mapping) and any(hasattr(split, "column_names") for split in data.values()):
        raise InputError(f"{name} has the splits {', '.join(map(str, data))}", hint="give one of them")
    if hasattr(data, "iter_rows"):  # polars
        values: Iterable[Any] = data.iter_rows(named=True)
    elif hasattr(data, "notna") and hasattr(data, "to_dict"):  # pandas, of which NaN is a missing value
        values = data.astype(object).where(data.notna(), None).to_dict("records")
    elif hasattr(data, "column_names") and hasattr(data, "features"):  # datasets
        named = lambda f: getattr(f, "names", None) or getattr(getattr(f, "feature", None), "names", None)
        labels = {column: named(feature) for column, feature in data.features.items()}
        values = ({column: name_classes(v, labels[column]) for column, v in row.items()} for row in data)
    elif isinstance(data, Mapping):
        if len({len(column) for column in data.values()}) > 1:
            raise InputError(f"the columns of {name} differ in length")
        values = (dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True))
    else:
        values = data
    rows = [Row(f"row {i}", _row_values(row, name, i)) for i, row in enumerate(values)]
    if not rows:
        raise InputError(f"{name} has no rows")
    return InputFile(Path(name), "table", "utf-8", *column_names(rows), rows, in_memory=True)


def _row_values(row: Any, name: str, number: int) -> dict[str, Any]:
    """Return the cells of a row in memory by their columns; numbers and rows of NumPy become Python's.

    An array of pixels, (H, W) or (H, W, 3), stays one.
    """
    if isinstance(row, str):
        return {"text": row}
    if not isinstance(row, Mapping) and not isinstance(row, Sequence):
        raise InputError(f"{name}, row {number} must be a dict, a tuple or a text; got {row!r:.60}")
    cells = row.items() if isinstance(row, Mapping) else enumerate(row)
    plain = lambda value: hasattr(value, "tolist") and getattr(value, "ndim", 0) < 2
    return {str(column): value.tolist() if plain(value) else value for column, value in cells}


def name_classes(value: Any, names: Sequence[str] | None) -> Any:
    """Return the names of class numbers; −1 stands for no class."""
    if names is None or value is None:
        return value
    if isinstance(value, list):
        return [name_classes(one, names) for one in value]
    return names[value] if value >= 0 else None


def find_delimiter(path: Path, encoding: str) -> str:
    """Return the delimiter of a table, or "json", by its first line."""
    first = next(filter(str.strip, read_lines(path, encoding)), "")
    if first.lstrip().startswith("{"):
        return "json"
    return "\t" if has_tab_columns(path, encoding) else next((d for d in DELIMITERS if d in first), ",")


def file_kind(path: Path, encoding: str, kinds: Collection[str] = ()) -> Kind:
    """Return the kind of a file by its suffix; where that leaves a choice, by its first lines and `kinds`."""
    suffix = stem_path(path).suffix.lower()
    if suffix in CONLL:
        return "conll"
    if suffix == ".json":
        start = next(read_blocks(path, encoding), "").lstrip()
        return "squad" if start.startswith("{") and not has_object_lines(path, encoding) else "table"
    if suffix in TABLE_KINDS:
        return "table"
    if suffix in ("", ".txt", ".text", ".md"):
        if "conll" in kinds or has_tagged_words(path, encoding):
            return "conll"
        if kinds and "text" not in kinds and "table" in kinds:  # the task tells, and not the name
            return "table"
        is_table = has_tab_columns(path, encoding) and (not kinds or "table" in kinds)
        return "table" if is_table else "text"
    hint = nearest(suffix, [*TABLE_KINDS, *CONLL, ".txt"], cutoff=SLIP)
    if suffix in OTHER_TABLES:
        hint = "save it as .csv, .xlsx, .jsonl or .parquet first"
    elif suffix in OTHER_TEXTS:
        hint = "save it as plain text (.txt), or a table in it as .csv, first"
    elif kinds:
        if find_delimiter(path, encoding) == "json":
            return "table" if has_object_lines(path, encoding) else "squad"
        likely: tuple[Kind, ...] = ("conll", "text", "table")
        return next(kind for kind in likely if kind in kinds)
    raise InputError(
        f"cannot tell what {path} is by its name",
        hint=hint or "use .csv, .tsv, .jsonl, .parquet, .xlsx, .conll, .json or .txt",
    )


def has_tagged_words(path: Path, encoding: str) -> bool:
    """Return whether lines are a word and its tags: as many columns each, B-… or I-… or O."""
    lines = [line.split() for line in islice(read_lines(path, encoding), MAX_PROBED_LINES)]
    filled = [cells for cells in lines if cells]
    widths = {len(cells) for cells in filled if not cells[0].startswith("-DOCSTART-")}
    tags = {cells[-1] for cells in filled}
    entity = any(re.fullmatch(r"[BIES]-\w+", tag) for tag in tags)
    return len(widths) == 1 and widths.pop() > 1 and entity


def cell_text(value: Any) -> str:
    """Return a cell as text; "" for a missing one, which may be NaN in a column of numbers."""
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else json_text(value)
