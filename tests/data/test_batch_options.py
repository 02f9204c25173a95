"""The settings all builders share: checked once, with one line for what cannot be."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful import data
from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.examples.language_modeling import completion
from tests.data.toy import Words

BUILDERS = (*data.FROM_TEXT.values(), data.parallel, data.classify, data.regress, data.contrast, data.tag)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"length": 0}, "length=0 must be at least 1"),
        ({"length": 2.5}, "length=2.5 must be a whole number"),
        ({"batch": True}, "batch=True must be a whole number"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_read(
    tmp_path: Path, setting: dict[str, Any], message: str
) -> None:
    (tmp_path / "t.txt").write_text("some text\n" * 9)
    with pytest.raises(InputError) as caught:
        data.text(tmp_path / "t.txt", Words(), **setting)
    assert caught.value.message == message
    assert [path.name for path in tmp_path.iterdir()] == ["t.txt"]


@pytest.mark.parametrize("builder", [*BUILDERS, data.answer, completion], ids=lambda b: b.__name__)
def test_a_builder_calls_the_shared_settings_by_the_same_names(builder: Any) -> None:
    parameters = inspect.signature(builder).parameters
    shared = {field.name for field in fields(BatchOptions)} & set(parameters)
    assert {"length", "batch", "seed"} <= shared
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in shared)


@pytest.mark.parametrize("builder", [*BUILDERS, data.answer, completion], ids=lambda b: b.__name__)
def test_an_option_that_a_builder_does_not_take_is_refused_with_the_nearest_name(builder: Any) -> None:
    with pytest.raises(InputError) as caught:
        builder("no such file", Words(), lenght=8)
    assert caught.value.message == f"data.{builder.__name__} has no option 'lenght'"
    assert "'length'" in str(caught.value.hint)


def test_a_table_in_another_encoding_is_read_by_a_task(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("text,label\nschön,ja\n".encode("latin-1"))
    assert data.classify(tmp_path / "t.csv", Words(), encoding="latin-1").labels == ("ja",)


def test_long_rows_are_refused_with_a_way_out_or_counted() -> None:
    lengths = np.array([3, 9, 12])
    with pytest.raises(InputError) as caught:
        BatchOptions(8, 4, 0).check_lengths(lengths, "rows", "t.csv")
    assert caught.value.hint == "raise length, or pass truncate=True to cut them"
    notes = BatchOptions(8, 4, 0, truncate=True).check_lengths(lengths, "rows", "t.csv")
    assert notes == ("2 of 3 rows were cut to 8 tokens; 5 tokens are not read",)
    assert BatchOptions(12, 4, 0).check_lengths(lengths, "rows", "t.csv") == ()
