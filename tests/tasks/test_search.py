"""Sentences found by meaning."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from heedful.core.errors import CorruptFile, InputError, NotFound
from heedful.tasks import Truncated
from heedful.tasks.search import Search
from tests.tasks.real import minilm

SENTENCES = ["A recipe for rye bread", "Seattle hotel", "The stock market fell", "How to train a puppy"]


@functools.cache
def hotels() -> Search:
    return Search(SENTENCES, minilm())


def test_a_motel_finds_a_hotel() -> None:
    found = hotels().find("Seattle motel", top_k=2)
    assert (found[0]["text"], found[0]["index"]) == ("Seattle hotel", 1)
    assert found[0]["score"] > 0.7 > found[1]["score"]


def test_a_sentence_is_its_own_nearest() -> None:
    for i, row in enumerate(hotels().find(SENTENCES, top_k=1)):
        assert row[0]["index"] == i
        assert row[0]["score"] == pytest.approx(1, abs=1e-4)


def test_more_is_asked_for_than_there_is() -> None:
    found = hotels().find("dog", top_k=99)
    assert len(found) == len(SENTENCES)
    assert [row["score"] for row in found] == sorted((row["score"] for row in found), reverse=True)


def test_what_was_saved_finds_the_same(tmp_path: Path) -> None:
    hotels().save(tmp_path / "index")
    again = Search.load(tmp_path / "index", minilm())
    assert again.find("motel") == hotels().find("motel")


def test_a_search_knows_the_name_of_its_model(tmp_path: Path) -> None:
    Search(SENTENCES, "all-minilm-l6-v2", vectors=hotels().vectors).save(tmp_path)
    assert Search.load(tmp_path).model_source == "all-minilm-l6-v2"


def test_lines_of_a_file_are_sentences_and_more_can_be_added(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("\ufeffa cat\n\n  ein Haus \n", encoding="utf-8")
    found = Search(path, minilm())
    found.add(["Seattle hotel"])
    assert found.texts == ["a cat", "ein Haus", "Seattle hotel"]
    assert found.find("Seattle motel", 1)[0]["index"] == 2


def test_what_the_encoder_does_not_read_of_a_sentence_is_reported() -> None:
    with pytest.warns(Truncated, match="cut off: 146 of 400 tokens of input 1$"):
        Search(["a cat", "bread " * 400], minilm())


@pytest.mark.parametrize(
    ("ask", "kind", "says"),
    [
        (lambda: Search([], minilm()), InputError, "no sentences"),
        (lambda: Search(["a", 3], minilm()), InputError, "sentence 1 is a int"),  # type: ignore[list-item]
        (lambda: Search("not/there.txt", minilm()), NotFound, "no file"),
        (lambda: hotels().find("  "), InputError, "not empty"),
        (lambda: hotels().find("a", top_k=0), InputError, "top_k=0"),
        (lambda: Search.load("not/there"), NotFound, "search.json"),
        (lambda: Search(None, minilm()), InputError, "list of texts or a file"),  # type: ignore[arg-type]
        (lambda: Search(["a"], minilm(), batch_size=0), InputError, "batch_size=0"),
        (lambda: hotels().find(3), InputError, "got 3"),  # type: ignore[arg-type]
        (lambda: hotels().find("a", top_k=None), InputError, "top_k=None"),  # type: ignore[arg-type]
        (lambda: hotels().save(__file__), InputError, "is a file; name a folder"),
    ],
)
def test_what_cannot_be_searched_is_said_in_a_line(ask: object, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        ask()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    hotels().save(tmp_path)
    with pytest.raises(InputError, match="pass model="):
        Search.load(tmp_path)
    (tmp_path / "vectors.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CorruptFile, match="save again"):
        Search.load(tmp_path, minilm())
