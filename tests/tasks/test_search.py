"""Sentences found by meaning."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from heedful.core.errors import CorruptFile, InputError, MissingPackage, NotFound
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


def places() -> Search:
    """Sentences with ids and columns, whose vectors need no model."""
    columns = [
        {"town": "Rome", "year": 2020},
        {"town": "Paris", "year": 2021},
        {"town": "Rome", "year": 2022},
    ]
    return Search(
        ["a room", "a hall", "a roof"],
        minilm(),
        ids=["r", "h", "o"],
        columns=columns,
        vectors=torch.eye(3, 384),
    )


def test_columns_are_kept_and_filtered_by(tmp_path: Path) -> None:
    Search.load(places().save(tmp_path / "index"), minilm())
    for search in (places(), Search.load(tmp_path / "index", minilm())):
        found = search.find("a room", where={"town": "Rome"})
        assert {row["id"] for row in found} == {"r", "o"}
        assert found[0].keys() == {"text", "score", "index", "id", "town", "year"}
        assert [row["id"] for row in search.find("a", where={"town": "Rome", "year": 2022})] == ["o"]
        assert {row["id"] for row in search.find("a", where={"year": [2021, "2022"]})} == {"h", "o"}
        assert search.find("a", where={"town": "Oslo"}) == []


def test_a_sentence_is_deleted_and_replaced_by_its_id(tmp_path: Path) -> None:
    search = places()
    search.delete(["h"])
    search.add(["a cellar"], ids=["r"], columns=[{"town": "Bern"}], vectors=2 * torch.eye(1, 384))
    for one in (search, Search.load(search.save(tmp_path / "index"), minilm())):
        assert [(row.id, row.text, row.columns) for row in one.rows] == [
            ("o", "a roof", {"town": "Rome", "year": 2022}), ("r", "a cellar", {"town": "Bern"}),
        ]  # fmt: skip
        assert one.vectors.sum(1).tolist() == [1, 2]
    search.delete(["o", "r"])
    assert search.find("a roof") == []
    assert Search.load(search.save(tmp_path / "index"), minilm()).find("a roof") == []


def test_a_save_that_fails_leaves_the_older_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = places().save(tmp_path / "index")
    smaller = places()
    smaller.delete(["r"])

    def fail(*given: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("heedful.weights.formats.tensor_files.save_tensors", fail)
    with pytest.raises(OSError, match="no space"):
        smaller.save(folder)
    assert len(Search.load(folder, minilm())) == 3


def test_a_graph_finds_what_comparing_all_finds(tmp_path: Path) -> None:
    pytest.importorskip("usearch")
    vectors = torch.nn.functional.normalize(torch.randn(2000, 384, generator=torch.manual_seed(0)), dim=1)
    texts = [f"sentence {i}" for i in range(2000)]
    search = Search(texts, minilm(), vectors=vectors, approximate=True)
    search.embed_texts = lambda queries: vectors[[int(q) for q in queries]]  # type: ignore[method-assign]
    queries = list(map(str, range(0, 2000, 100)))
    assert [rows[0]["index"] for rows in search.find(queries, 3)] == [int(q) for q in queries]
    exact = Search(texts, minilm(), vectors=vectors, approximate=False)
    exact.embed_texts = search.embed_texts  # type: ignore[method-assign]
    first, second = search.find("7", 1)[0], exact.find("7", 1)[0]
    assert first == second | {"score": pytest.approx(second["score"], abs=1e-5)}
    search.delete(["7"])
    assert search.find("7", 1)[0]["id"] != "7"
    again = Search.load(search.save(tmp_path / "index"), minilm())
    assert (tmp_path / "index" / "graph.usearch").is_file()
    again.embed_texts = search.embed_texts  # type: ignore[method-assign]
    assert again.find("8", 2) == search.find("8", 2)


def test_a_graph_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.tasks.search.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"needs the package usearch, .*heedful\[search\]"):
        Search(["a"], minilm(), vectors=torch.eye(1, 384), approximate=True)
    assert not Search(["a"], minilm(), vectors=torch.eye(1, 384)).uses_graph


def test_what_the_encoder_does_not_read_of_a_sentence_is_reported() -> None:
    with pytest.warns(Truncated, match="cut off: 146 of 400 tokens of input 1$"):
        Search(["a cat", "bread " * 400], minilm())


@pytest.mark.parametrize(
    ("ask", "kind", "says"),
    [
        (lambda: Search([], minilm()), InputError, "no sentences"),
        (lambda: Search(["a", 3], minilm()), InputError, "sentence 1 is a int"),  # type: ignore[list-item]
        (lambda: Search("not/there.txt", minilm()), NotFound, "not a file"),
        (lambda: hotels().find("  "), InputError, "not empty"),
        (lambda: hotels().find("a", top_k=0), InputError, "top_k=0"),
        (lambda: Search.load("not/there"), NotFound, "search.json"),
        (lambda: Search(None, minilm()), InputError, "list of texts or a file"),  # type: ignore[arg-type]
        (lambda: Search(["a"], minilm(), batch_size=0), InputError, "batch_size=0"),
        (lambda: hotels().find(3), InputError, "got 3"),  # type: ignore[arg-type]
        (lambda: hotels().find("a", top_k=None), InputError, "top_k=None"),  # type: ignore[arg-type]
        (lambda: hotels().save(__file__), InputError, "is a file; name a folder"),
        (lambda: hotels().save(Path(__file__).parent), InputError, "has other files in it"),
        (lambda: Search(["a", "b"], minilm(), ids=[1, 1]), InputError, "the id '1' stands for two"),
        (lambda: Search(["a"], minilm(), ids=[1, 2]), InputError, "2 ids .* 1 sentences"),
        (lambda: places().find("a", where={"towm": "x"}), InputError, "no sentence has a column 'towm'"),
        (lambda: places().delete(["r", "nine"]), NotFound, "no sentence has the id 'nine'"),
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
