"""Tables in memory, known by their methods alone, and tables that are read row by row."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from heedful.core.errors import InputError, MissingPackage
from heedful.data.input_files import cell_text, read_input_file, stream_table, table_in_memory
from heedful.data.readers import Table
from heedful.tasks.examples import Role, infer_columns

ROWS = [{"text": "good", "label": "pos"}, {"text": "bad", "label": "neg"}]


class PolarsLike:
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a DataFrame of polars iterates over columns")

    def iter_rows(self, *, named: bool) -> Iterator[dict[str, Any]]:
        assert named
        yield from ROWS


class DatasetLike:
    column_names = ("text", "label", "tags")
    features: ClassVar[dict[str, Any]] = {
        "text": SimpleNamespace(dtype="string"),
        "label": SimpleNamespace(names=["neg", "pos"]),
        "tags": SimpleNamespace(feature=SimpleNamespace(names=["O", "B-PER"])),
    }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield {"text": "good", "label": 1, "tags": [0, 1]}
        yield {"text": "?", "label": -1, "tags": []}


@pytest.mark.parametrize(
    "data",
    [ROWS, PolarsLike(), {"text": ["good", "bad"], "label": ["pos", "neg"]}],
    ids=["dicts", "polars", "columns"],
)
def test_rows_in_memory_are_a_table(data: Any) -> None:
    table = table_in_memory(data)
    assert (table.kind, table.columns) == ("table", ("text", "label"))
    assert [row.values for row in table.rows] == ROWS
    assert table.rows[1].where == "row 1"


def test_tuples_have_counted_columns_and_texts_are_one_column() -> None:
    assert table_in_memory([("good", "pos")]).columns == ("0", "1")
    assert [row.values for row in table_in_memory(["good", "bad"]).rows] == [
        {"text": "good"},
        {"text": "bad"},
    ]


def test_class_numbers_of_a_dataset_become_names() -> None:
    first, second = table_in_memory(DatasetLike()).rows
    assert first.values == {"text": "good", "label": "pos", "tags": ["O", "B-PER"]}
    assert second.values["label"] is None


def test_a_data_frame_of_pandas_has_its_missing_values_as_none() -> None:
    pandas = pytest.importorskip("pandas")
    table = table_in_memory(pandas.DataFrame({"text": ["good", None], "stars": [5, 1]}))
    assert [row.values for row in table.rows] == [{"text": "good", "stars": 5}, {"text": None, "stars": 1}]


def test_the_same_rows_have_the_same_hash_and_others_another() -> None:
    assert table_in_memory(ROWS).sha256 == table_in_memory(PolarsLike()).sha256
    assert table_in_memory(ROWS).sha256 != table_in_memory(ROWS[:1]).sha256


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "must be a list of dicts"),
        ("text", "must be a list of dicts"),
        ([], "has no rows"),
        ([4], "row 0 must be"),
        ({"a": [1], "b": []}, "differ in length"),
        ({"train": DatasetLike(), "test": DatasetLike()}, "splits train, test"),
    ],
)
def test_what_is_no_table_is_one_clear_line(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        table_in_memory(data)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "text,label\ngood,pos\nbad,neg\n"),
        ("t.jsonl", '{"text": "good", "label": "pos"}\n{"text": "bad"}\n'),
    ],
)
def test_a_streamed_table_has_the_rows_of_a_whole_one(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    whole = read_input_file(str(tmp_path / name))
    table, rows = stream_table(str(tmp_path / name))
    assert (table.columns, table.rows) == (whole.columns, [])
    assert list(rows) == whole.rows


def test_a_parquet_file_is_a_table_with_its_types(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"text": "good", "label": 1, "user": {"name": "Ada"}},
        {"text": "bad", "label": None, "user": None},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    table = read_input_file(str(tmp_path / "t.parquet"))
    assert (table.columns, table.nested) == (("text", "label", "user"), ("user.name",))
    assert [row.where for row in table.rows] == ["row 1", "row 2"]
    assert [row.get("user.name") for row in table.rows] == ["Ada", None]
    assert [values for _, values in Table(tmp_path / "t.parquet").rows("text")] == [("good",), ("bad",)]
    (tmp_path / "damaged.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:60])
    with pytest.raises(InputError, match="damaged or no Parquet file"):
        read_input_file(str(tmp_path / "damaged.parquet"))


def test_the_first_sheet_of_an_excel_file_is_a_table(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["text", "label", None], ["good", 1], [None, None], ["bad", 2.0], ["so so", None]):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    table = read_input_file(str(tmp_path / "t.xlsx"))
    assert [(row.where, row.values) for row in table.rows] == [
        ("line 2", {"text": "good", "label": "1"}), ("line 4", {"text": "bad", "label": "2"}),
        ("line 5", {"text": "so so", "label": ""}),
    ]  # fmt: skip
    (tmp_path / "damaged.xlsx").write_bytes(b"PK no workbook")
    with pytest.raises(InputError, match="damaged or no .xlsx file"):
        read_input_file(str(tmp_path / "damaged.xlsx"))


def test_sheets_that_are_not_read_are_named(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "January"
    book.active.append(["text", "label"])
    book.active.append(["good", 1])
    book.create_sheet("February").append(["text", "label"])
    book.save(tmp_path / "t.xlsx")
    table = read_input_file(str(tmp_path / "t.xlsx"))
    assert len(table.rows) == 1
    assert table.notes == (f"{tmp_path / 't.xlsx'}: only the sheet 'January' is read, and not 'February'",)
    assert stream_table(str(tmp_path / "t.xlsx"))[0].notes == table.notes


def test_a_parquet_file_may_have_dates_decimals_and_bytes(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {"text": "Grüße".encode(), "price": Decimal("4.50"), "day": date(2024, 2, 29)}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "t.parquet")
    [row] = read_input_file(str(tmp_path / "t.parquet")).rows
    assert [cell_text(value) for value in row.values.values()] == ["Grüße", "4.50", "2024-02-29"]


@pytest.mark.parametrize(
    "content",
    [
        "text;note (a, b);label\nfine, really;1;pos\nbad;2;neg\n",
        "sep=;\ntext;note (a, b);label\nfine, really;1;pos\nbad;2;neg\n",
    ],
)
def test_the_delimiter_is_the_one_that_every_row_has_as_often(content: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(content)
    table = read_input_file(str(tmp_path / "t.csv"))
    assert table.columns == ("text", "note (a, b)", "label")
    assert [row.get("text") for row in table.rows] == ["fine, really", "bad"]


def test_no_cell_of_columns_with_one_name_is_lost(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,score,score\na,1,2\n")
    table = read_input_file(str(tmp_path / "t.csv"))
    assert table.rows[0].values == {"text": "a", "score": "1", "score_2": "2"}
    assert table.repeated == {"score"}


@pytest.mark.parametrize(
    ("name", "package", "hint"),
    [("t.parquet", "pyarrow", r"heedful\[parquet\]"), ("t.xlsx", "openpyxl", r"heedful\[excel\]")],
)
def test_a_missing_library_is_named_with_what_to_install(
    name: str, package: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / name).write_bytes(b"PAR1")
    with pytest.raises(MissingPackage, match=f"needs the package {package}, .*{hint}"):
        read_input_file(str(tmp_path / name))


def test_a_dotted_name_finds_a_field_inside_an_object(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(
        '{"user": {"message": "hi", "by": {"id": 5}}, "a.b": "own"}\n{"user": null, "a.b": "two"}\n'
    )
    table = read_input_file(str(file))
    assert table.columns == ("user", "a.b")
    assert table.all_columns == ("user", "a.b", "user.message", "user.by", "user.by.id")
    names = ("user.message", "user.by.id", "a.b", "user.nothing")
    assert [table.rows[0].get(name) for name in names] == ["hi", 5, "own", None]
    assert [row.get("user.message") for row in table.rows] == ["hi", None]
    with pytest.raises(InputError, match="line 2: no field 'user.message'"):
        list(Table(file).rows("user.message"))
    roles = {"text": Role("--text", ("text",))}
    assert infer_columns(table, "classify", roles, {"--text": "user.message"}) == {"text": "user.message"}
    with pytest.raises(InputError, match="no column 'user.mesage' for .*; did you mean 'user.message'"):
        infer_columns(table, "classify", roles, {"--text": "user.mesage"})


def test_a_txt_file_of_tab_separated_rows_is_a_table_and_prose_is_none(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("text\tlabel\ngood; really\tpos\nbad, too\tneg\n")
    table = read_input_file(str(tmp_path / "t.txt"))
    assert table.rows[0].values == {"text": "good; really", "label": "pos"}
    assert next(Table(tmp_path / "t.txt").rows("text"))[1] == ("good; really",)
    for prose in ("One line.\tAnother.\nThe next has none.\n", "a\tb\n"):
        (tmp_path / "prose.txt").write_text(prose)
        assert read_input_file(str(tmp_path / "prose.txt")).kind == "text"
