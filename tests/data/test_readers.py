"""Files as they come: packed, in folders, with byte order marks, quotes, odd line ends, and broken."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest

from heedful import data
from heedful.core import files
from heedful.core.errors import InputError, MissingPackage, NotFound
from heedful.core.files import read_blocks, read_lines
from heedful.data import readers, token_cache
from heedful.data.readers import Table, documents
from heedful.data.token_cache import tokenize_documents
from tests.data.toy import Letters, Words
from tests.refusal import refused


def joined(docs: data.Documents) -> list[str]:
    return ["".join(d) for d in docs]


def test_packed_files_read_like_plain_ones(tmp_path: Path) -> None:
    for name, opener in (
        ("a.txt", open),
        ("b.txt.gz", gzip.open),
        ("c.txt.xz", lzma.open),
        ("d.bz2", bz2.open),
    ):
        with opener(tmp_path / name, "wb") as file:
            file.write(b"one\n\ntwo\n")
        assert joined(documents(tmp_path / name, "paragraph")) == ["one", "two"]


def test_a_folder_is_its_files_in_order_without_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".heed-cache").mkdir()
    for name in ("z.txt", "b/a.txt", ".heed-cache/x.txt", ".hidden"):
        (tmp_path / name).write_text(name)
    assert joined(documents(tmp_path)) == ["b/a.txt", "z.txt"]
    assert joined(documents([tmp_path / "z.txt", tmp_path / "b"])) == ["z.txt", "b/a.txt"]


@pytest.mark.parametrize(("unit", "count"), [("file", 1), ("paragraph", 2), ("line", 3)])
def test_a_document_is_a_file_a_paragraph_or_a_line(tmp_path: Path, unit: readers.Unit, count: int) -> None:
    (tmp_path / "t.txt").write_bytes("\ufeffone\r\ntwo\r\n \r\n\r\nthree".encode())
    found = joined(documents(tmp_path / "t.txt", unit))
    assert len(found) == count
    assert " ".join(found).split() == ["one", "two", "three"]
    assert not any(c in "".join(found) for c in "\r\ufeff")


def test_line_ends_and_characters_may_fall_between_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 3)
    (tmp_path / "t.txt").write_bytes("aé\r\n€uro\r\nlast".encode())
    assert "".join(read_blocks(tmp_path / "t.txt")) == "aé\n€uro\nlast"
    assert list(read_lines(tmp_path / "t.txt")) == ["aé", "€uro", "last"]


def test_other_encodings_can_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("naïve\nπ".encode("utf-16"))
    assert list(read_lines(tmp_path / "t.txt", "utf-16")) == ["naïve", "π"]
    with pytest.raises(InputError, match="is UTF-16"):
        list(read_lines(tmp_path / "t.txt"))


@pytest.mark.parametrize("block", [4, 1 << 20])
def test_a_wrong_encoding_is_named_by_line(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", block)
    (tmp_path / "t.txt").write_bytes(b"fine\r\nfine too\r\nna\xefve\n")
    with refused(InputError, "t.txt, line 3", "0xef", hint="encoding="):
        data.text(tmp_path / "t.txt", Words())
    assert len(data.text(tmp_path / "t.txt", Words(), encoding="latin-1")) > 0


def test_empty_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("")
    with pytest.raises(InputError, match=r"corpus\.txt is empty"):
        data.text(tmp_path / "corpus.txt", Letters())
    (tmp_path / "corpus.txt").write_text(" \n\n")
    with pytest.raises(InputError, match="holds no text"):
        data.text(tmp_path / "corpus.txt", Words(), unit="line")
    with refused(NotFound, "corpsu.txt", hint="'corpus.txt'"):
        data.text(tmp_path / "corpsu.txt", Letters())
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x" * 1000)[:-12])
    with pytest.raises(InputError, match=r"a\.gz is damaged"):
        data.text(tmp_path / "a.gz", Letters())
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="folder without files"):
        data.text(tmp_path / "none", Letters())
    with pytest.raises(InputError, match="no files"):
        data.text([], Letters())
    with refused(InputError, "unit='word'", hint="paragraph"):
        data.text(tmp_path / "corpus.txt", Letters(), unit="word")
    with pytest.raises(InputError, match="contains nothing to train on"):
        data.text(data.texts(["x"]), without_end(), length=4)


def without_end() -> Letters:
    letters = Letters()
    letters.eos = letters.pad = None
    return letters


def test_json_lines_have_a_field_of_text(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": "one", "n": 1}\n\n{"text": "two", "n": 2}\n')
    assert joined(data.column(tmp_path / "t.jsonl", "text")) == ["one", "two"]
    assert joined(data.column(tmp_path / "t.jsonl", "n")) == ["1", "2"]
    assert data.text(tmp_path / "t.jsonl", Letters(), length=4, batch=1)[0].documents is not None
    with refused(InputError, "line 1", "'txt'", hint="'text'"):
        joined(data.column(tmp_path / "t.jsonl", "txt"))
    (tmp_path / "l.json").write_text('[{"text": "one"}]')
    assert joined(data.column(tmp_path / "l.json", "text")) == ["one"]


@pytest.mark.parametrize(
    ("line", "what"), [("{", "not JSON"), ("[1]", "a row is an object"), ('{"text": null}', "'text' is null")]
)
def test_broken_json_is_named_by_line(tmp_path: Path, line: str, what: str) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": "one"}\n' + line)
    with pytest.raises(InputError, match=f"line 2: .*{what}"):
        joined(data.column(tmp_path / "t.jsonl", "text"))


def test_csv_as_it_comes(tmp_path: Path) -> None:
    text = (
        '\ufeffid,text\r\n1,"a ""quoted"", word"\r\n\r\n2,"two\nlines"\r\n , \r\n3,' + "x" * 200_000 + "\r\n"
    )
    (tmp_path / "t.csv").write_bytes(text.encode())
    rows = list(Table(tmp_path / "t.csv").rows("text", "id"))
    assert [values[1] for _, values in rows] == ["1", "2", "3"]
    assert [values[0][:20] for _, values in rows] == ['a "quoted", word', "two\nlines", "x" * 20]
    assert [where.rpartition(" ")[2] for where, _ in rows] == ["2", "4", "7"]


def test_quotes_are_text_in_tsv_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text('"so it" began\tx\n"open\ty\n')
    assert [v for _, v in Table(tmp_path / "t.tsv").rows(0)] == [('"so it" began',), ('"open',)]
    (tmp_path / "q.tsv").write_text('"two\nlines"\tx\n')
    assert [v for _, v in Table(tmp_path / "q.tsv", quoted=True).rows(0)] == [("two\nlines",)]


@pytest.mark.parametrize(
    "text",
    ['label,text\npos,"fine\nneg,bad\npos,good\n', 'text,label\n"fine,pos\nbad,neg\n"poor,neg\nso so,pos\n'],
)
def test_a_stray_quote_does_not_swallow_the_rows_below_it(tmp_path: Path, text: str) -> None:
    # Python's reader makes one row of them, with as many cells as every other.
    (tmp_path / "t.csv").write_text(text)
    with refused(InputError, "line 2", "no quote ends it", hint="remove the quote"):
        list(Table(tmp_path / "t.csv").rows("text"))


def test_broken_tables_are_named(tmp_path: Path) -> None:
    write = lambda name, text: (tmp_path / name).write_text(text) and tmp_path / name
    with refused(InputError, "'txt'", hint="'text'"):
        list(Table(write("t.csv", "text,label\na,b\n")).rows("txt"))
    with refused(InputError, "line 3", "1 column instead of 2"):
        list(Table(write("t.csv", "text,label\na,b\nc\n")).rows("text"))
    with refused(InputError, "line 2", "no quote ends it", hint="quote"):
        list(Table(write("t.csv", 'text,label\n"a,b\nc,d\n')).rows("text"))
    with pytest.raises(InputError, match="no column 5; it has 2"):
        list(Table(write("t.csv", "a,b\n")).rows(5))
    with refused(InputError, "t.dat", hint=".csv, .tsv or .jsonl"):
        list(Table(write("t.dat", "a,b\n")).rows(0))
    (tmp_path / "e.csv").write_text("")
    with pytest.raises(InputError, match=r"e\.csv is empty"):
        list(Table(tmp_path / "e.csv").rows("text"))
    with pytest.raises(InputError, match=r"e\.csv is empty"):
        data.classify(tmp_path / "e.csv", Words())


def test_the_hub_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackage, match=r"heedful\[data\]"):
        data.from_hub("some/thing")


def test_a_cache_is_used_again_and_made_anew_when_text_or_tokenizer_change(tmp_path: Path) -> None:
    file, cache = tmp_path / "t.txt", tmp_path / "cache"
    file.write_text("abc abd")

    class Counting(Letters):
        calls = 0

        def encode(self, text: str, special: bool = True) -> list[int]:
            Counting.calls += len(text) > 5
            return super().encode(text, special)

    first = tokenize_documents(documents(file), Counting(), cache=cache)
    calls = Counting.calls
    again = tokenize_documents(documents(file), Counting(), cache=cache)
    assert Counting.calls - calls < calls  # only the sample that tells tokenizers apart
    assert first.fingerprint == again.fingerprint
    assert isinstance(again.flat.base, np.memmap)
    assert len(list(cache.iterdir())) == 1
    header = json.loads(next(cache.glob("*/header.json")).read_text())
    assert (header["tokens"], header["documents"], header["dtype"]) == (7, 1, "uint16")
    tokenize_documents(documents(file), Letters("dcba "), cache=cache)
    file.write_text("abc abe")
    assert tokenize_documents(documents(file), Letters(), cache=cache).fingerprint != first.fingerprint
    assert len(list(cache.iterdir())) == 3


def test_a_cache_lies_beside_the_file_or_where_it_can(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("abc")
    tokenize_documents(documents(tmp_path / "t.txt"), Letters())
    assert list((tmp_path / ".heed-cache").glob("*/tokens.bin"))
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "t.txt").write_text("abc")
    (tmp_path / "closed").chmod(0o555)
    tokenize_documents(documents(tmp_path / "closed"), Letters())
    assert [p.name for p in (tmp_path / "closed").iterdir()] == ["t.txt"]
    (tmp_path / "closed").chmod(0o755)
    (tmp_path / "file").write_text("x")
    with refused(InputError, "cache folder", "inside"):
        tokenize_documents(documents(tmp_path / "t.txt"), Letters(), cache=tmp_path / "file" / "inside")


def test_a_temporary_cache_is_read_after_its_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tokens = tokenize_documents(data.texts(["abc", "", "de"]), Letters())
    assert list(tmp_path.iterdir()) == []
    assert tokens[1].tolist() == [3, 4]


def test_nothing_is_left_of_a_cache_that_could_not_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 8)
    (tmp_path / "t.txt").write_bytes(b"abc\n" * 10 + b"\xff")
    with pytest.raises(InputError, match="line 11"):
        tokenize_documents(documents(tmp_path / "t.txt", "line"), Letters(), cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_long_documents_are_encoded_in_pieces_and_come_out_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_cache, "PIECE_CHARACTERS", 16)
    monkeypatch.setattr(token_cache, "ROUND_CHARACTERS", 50)
    monkeypatch.setattr(files, "BLOCK_BYTES", 37)
    rng = np.random.default_rng(0)
    text = lambda: "".join(rng.choice(list("abcdef \n."), rng.integers(1, 300)))
    docs = [text() for _ in range(20)]
    letters = Letters()
    held = tokenize_documents(data.texts(docs), letters, before=[5], after=[7])
    assert [row.tolist() for row in map(held.__getitem__, range(len(held)))] == [
        [5, *letters.encode(d), 7] for d in docs
    ]


def test_words_are_not_cut_when_a_document_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "PIECE_CHARACTERS", 16)
    words = Words()
    text = "one two\nthree four five\nsix seven eight nine ten\n" * 20
    held = tokenize_documents(data.texts([text]), words)
    assert held[0].tolist() == words.encode(text, special=False)


def test_empty_documents_keep_their_places_only_when_asked() -> None:
    docs = data.texts(["", "ab", "", "c", ""])
    assert [r.tolist() for r in rows(tokenize_documents(docs, Letters()))] == [[0, 1], [2]]
    assert [r.tolist() for r in rows(tokenize_documents(docs, Letters(), empty=True))] == [
        [],
        [0, 1],
        [],
        [2],
        [],
    ]


def rows(held: token_cache.RaggedArray) -> list[np.ndarray]:
    return [held[i] for i in range(len(held))]
