"""Tables in memory, known by their methods alone, and tables that are read row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from heedful.core.errors import InputError
from heedful.data.input_files import read_input_file, stream_table, table_in_memory

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
