"""Answers found in a folder of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heedful.core.errors import InputError, NotFound
from heedful.tasks import pipeline
from heedful.tasks.search import OpenDomain, read_passages, split_passages
from tests.tasks.pipelines.test_question_answering import word_by_word
from tests.tasks.real import minilm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "houses.txt").write_text("The house is red.\n\nThe house is blue.\n", encoding="utf-8")
    (tmp_path / "deep" / "dogs.md").write_text(
        "\ufeffA cat sat on a house.\n\nA dog lives in Berlin.\n", "utf-8"
    )
    (tmp_path / "broken.txt").write_bytes(b"the cat \xff sat on the house")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    return tmp_path


def reader() -> Any:
    return pipeline("question-answering", word_by_word(CLS=(2.0, 2.0), dog=(12.0, -8.0), berlin=(-8.0, 12.0)))


def test_an_answer_comes_with_its_file_place_and_passage(folder: Path) -> None:
    found = OpenDomain(folder, reader=reader(), model=minilm()).answer("where is the dog?")
    assert found["known"]
    assert (found["answer"], found["file"]) == ("dog lives in Berlin", "deep/dogs.md")
    text = (folder / found["file"]).read_text(encoding="utf-8-sig")
    assert text[found["start"] : found["end"]] == found["answer"]
    assert found["answer"] in found["passage"]
    assert found["score"] == pytest.approx(found["similarity"], rel=0.01)


def test_what_no_text_answers_is_said_to_be_unknown(folder: Path) -> None:
    (folder / "deep" / "dogs.md").unlink()
    found = OpenDomain(folder, reader=reader(), model=minilm()).answer("where is the dog?")
    assert (found["answer"], found["known"]) == ("", False)
    assert 0.9 < found["score"] <= 1
    assert found["passage"]


def test_several_answers_come_best_first(folder: Path) -> None:
    (folder / "more.txt").write_text("Who lives? The dog lives on the red house in Berlin.", "utf-8")
    rows = OpenDomain(folder, reader=reader(), model=minilm()).answer("where is the dog?", top_k=3)
    assert {row["file"] for row in rows} == {"deep/dogs.md", "more.txt"}
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)


def test_passages_cover_a_text_and_keep_to_their_size() -> None:
    text = "Short one.\n\nAnother.\n\n" + "word " * 400 + "\n\n\n" + "x" * 700 + "\n\nThe end."
    places = list(split_passages(text, 300, 60))
    covered = set()
    for start, end in places:
        assert 0 < end - start <= 300
        covered |= set(range(start, end))
    assert all(text[i].isspace() for i in set(range(len(text))) - covered)
    assert text[places[0][0] : places[0][1]] == "Short one.\n\nAnother."
    inner = [text[a:b] for a, b in places[1:5]]
    assert all(part.split()[0] == part.split()[-1] == "word" for part in inner)


@pytest.mark.parametrize(("size", "overlap"), [(1, 0), (2, 1), (3, 1), (10, 5), (10, 0)])
def test_parts_of_any_size_come_to_an_end(size: int, overlap: int) -> None:
    text = "a b " + "x" * 5 + " " + "y" * 40 + " c d"
    places = list(split_passages(text, size, overlap))
    assert all(0 < end - start <= size for start, end in places)
    assert {i for start, end in places for i in range(start, end)} >= {
        i for i, letter in enumerate(text) if letter != " "
    }


def test_a_folder_named_like_a_text_is_gone_through(folder: Path) -> None:
    (folder / "old.txt").mkdir()
    (folder / "old.txt" / "cats.txt").write_text("A cat.")
    assert "old.txt/cats.txt" in {p.file for p in read_passages(folder, 800, 150)}


def test_one_passage_is_read_like_several(folder: Path) -> None:
    domain = OpenDomain(folder, reader=reader(), model=minilm())
    assert domain.answer("where is the dog?", passages=1) == domain.answer("where is the dog?")


def test_only_texts_of_a_folder_are_read(folder: Path) -> None:
    assert {p.file for p in read_passages(folder, 800, 150)} == {"houses.txt", "deep/dogs.md", "broken.txt"}
    assert {p.file for p in read_passages(folder / "houses.txt", 800, 150)} == {"houses.txt"}


def test_a_folder_that_cannot_be_asked_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not a folder"):
        OpenDomain(tmp_path / "not", reader=reader(), model=minilm())
    with pytest.raises(InputError, match="holds no text"):
        OpenDomain(tmp_path, reader=reader(), model=minilm())
    with pytest.raises(InputError, match="size=0 must be at least 1"):
        OpenDomain(tmp_path, reader=reader(), size=0, overlap=0)
    with pytest.raises(InputError, match="overlap=500"):
        OpenDomain(tmp_path, reader=reader(), overlap=500)
