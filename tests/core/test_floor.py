"""The floor: errors, checks of values, files written whole, devices."""

from __future__ import annotations

import contextlib
import gzip
import math
import pickle
from pathlib import Path

import pytest

from heedful.core.checks import check_choice, check_integer, check_number
from heedful.core.devices import resolve_device
from heedful.core.errors import ConfigError, HeedfulError, InputError, NotFound
from heedful.core.files import expand_paths, make_folder_atomically, open_atomically, read_blocks, read_lines
from heedful.core.padding import pad_rows, valid_mask
from tests.refusal import refused


def test_an_error_has_a_message_and_a_hint_and_is_one_line() -> None:
    error = InputError("it is too long", hint="shorten it")
    assert (error.message, error.hint, str(error)) == (
        "it is too long",
        "shorten it",
        "it is too long; shorten it",
    )
    assert InputError("so; and so").hint is None
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.hint) == (InputError, error.message, error.hint)


@pytest.mark.parametrize("value", [True, 1.5, "3", None, math.nan])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with refused(InputError, "steps=", "whole number"):
        check_integer("steps", value)


def test_bounds_are_checked_and_the_caller_chooses_the_error() -> None:
    assert check_integer("steps", 3, 1, 3) == 3
    with refused(ConfigError, "steps=0", "at least 1"):
        check_integer("steps", 0, error=ConfigError)
    with pytest.raises(InputError, match="between 0 and 1"):
        check_number("p", 1.5, 0, 1)
    with pytest.raises(InputError, match="above 0"):
        check_number("lr", 0, above=0)
    with pytest.raises(InputError, match="finite"):
        check_number("lr", math.inf)
    with pytest.raises(InputError) as caught:
        check_choice("mode", "skipgrm", ["skipgram", "cbow"])
    assert caught.value.hint == "did you mean 'skipgram'?"


def test_a_folder_stands_for_its_files_and_a_wrong_name_for_the_nearest(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", ".hidden"):
        (tmp_path / name).write_text("x")
    assert [p.name for p in expand_paths(tmp_path)] == ["a.txt", "b.txt"]
    with pytest.raises(NotFound) as caught:
        expand_paths(tmp_path / "a.tx")
    assert "a.txt" in (caught.value.hint or "")
    with pytest.raises(NotFound):
        expand_paths("word " * 10_000)


def test_text_is_read_alike_packed_or_not_and_a_bad_byte_is_named_by_line(tmp_path: Path) -> None:
    text = "\ufeffone\r\ntwo\rthree\n"
    (tmp_path / "a.txt").write_bytes(text.encode())
    with gzip.open(tmp_path / "a.txt.gz", "wb") as file:
        file.write(text.encode())
    for name in ("a.txt", "a.txt.gz"):
        assert list(read_lines(tmp_path / name)) == ["one", "two", "three"]
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xffd\n")
    with refused(InputError, "line 2", "0xff"):
        list(read_blocks(tmp_path / "bad.txt"))


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.bin"
    with open_atomically(path) as file:
        file.write(b"whole")
    with contextlib.suppress(HeedfulError), open_atomically(path) as file:
        file.write(b"ha")
        raise HeedfulError("stopped")
    assert path.read_bytes() == b"whole"
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "model"
    for text in ("first", "second"):
        with make_folder_atomically(path) as folder:
            (folder / "a").write_text(text)
    with contextlib.suppress(HeedfulError), make_folder_atomically(path) as folder:
        (folder / "a").write_text("third")
        raise HeedfulError("stopped")
    assert (path / "a").read_text() == "second"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_lines_come_with_their_ends_if_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r\ntwo")
    assert list(read_lines(tmp_path / "a.txt", keep_ends=True)) == ["one\n", "\n", "two"]


def test_of_two_who_make_the_same_folder_the_first_to_finish_wins(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with make_folder_atomically(path, replace=False) as slow:
        (slow / "a").write_text("slow")
        with make_folder_atomically(path, replace=False) as quick:
            (quick / "a").write_text("quick")
    assert (path / "a").read_text() == "quick"
    assert [p.name for p in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize("name", ["cpu", "auto", None, -1])
def test_without_a_gpu_every_way_to_ask_for_no_particular_one_is_the_cpu(
    name: str | int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert resolve_device(name).type == "cpu"


@pytest.mark.parametrize("name", ["gpu", "cuda", "cuda:1", 0, 99])
def test_a_device_that_is_not_there_is_named_with_a_way_out(
    name: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(InputError) as caught:
        resolve_device(name, error=InputError)
    assert f"device={name!r}" in caught.value.message
    assert caught.value.hint is not None
    assert "cpu" in caught.value.hint


def test_rows_are_padded_on_either_side_and_the_mask_says_where() -> None:
    rows = [[1, 2, 3], [], [4]]
    assert pad_rows(rows, fill=9).tolist() == [[1, 2, 3], [9, 9, 9], [4, 9, 9]]
    assert pad_rows(rows, width=4, left=True).tolist() == [[0, 1, 2, 3], [0, 0, 0, 0], [0, 0, 0, 4]]
    for left in (False, True):
        filled = pad_rows(rows, fill=-1, left=left)
        assert ((filled >= 0) == valid_mask([3, 0, 1], 3, left=left)).all()


def test_padded_fractions_stay_fractions_and_ids_whole_numbers() -> None:
    assert pad_rows([[0.5], [1, 2]]).tolist() == [[0.5, 0.0], [1.0, 2.0]]
    assert pad_rows([[], [1]]).dtype.kind == "i"
    assert pad_rows([[[1, 2]], [[3, 4], [5, 6]]], fill=-1).tolist()[0] == [[1, 2], [-1, -1]]


@pytest.mark.parametrize("name", ["t.gz", "t.bz2", "t.xz"])
def test_text_with_the_name_of_a_compressed_file_is_one_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("plain text")
    with refused(InputError, "damaged"):
        list(read_blocks(tmp_path / name))
