"""Bad corpora, settings, files and questions: one clear line each, before time is spent and nothing lost."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest

from heedful.core.errors import ConfigError, CorruptFile, HeedfulError, InputError, NotFound
from heedful.word2vec import Word2Vec, evaluate, find_phrases
from heedful.word2vec.corpus import Corpus
from heedful.word2vec.definition import wampimuk
from tests.refusal import refused

QUICK = {"dim": 4, "min_count": 1, "epochs": 2, "threads": 1, "subsample": 0}
TEXT = [["the", "cat", "sat"], ["the", "dog", "lay"]] * 4


@pytest.fixture
def vectors() -> Word2Vec:
    return Word2Vec(list("abcdef"), np.eye(6, dtype=np.float32) + 0.1)


@pytest.mark.parametrize("mode", ["skipgram", "cbow"])
@pytest.mark.parametrize("loss", ["negative", "hierarchical"])
def test_a_text_of_one_word_a_line_has_nothing_to_learn_from(mode: str, loss: str) -> None:
    with refused(InputError, "two known words"):
        Word2Vec.train([["a"], ["b"], ["c"]], mode=mode, loss=loss, **QUICK)


def test_a_text_that_subsampling_emptied_is_told_so_with_the_way_out() -> None:
    with refused(InputError, "subsample=1e-09", "2 epochs", hint="subsample=0"):
        Word2Vec.train(TEXT, **QUICK | {"subsample": 1e-9})


def test_a_run_that_diverges_says_so_and_gives_no_vectors() -> None:
    with refused(ConfigError, "epoch 1", "rate=10"):
        Word2Vec.train(TEXT * 40, negatives=2000, rate=10, **QUICK)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dim", 2.5), ("window", "5"), ("epochs", 1.5), ("seed", None), ("dim", True), ("max_vocab", 2.5),
        ("subsample", float("nan")), ("noise_exponent", float("nan")), ("rate", float("inf")), ("rate", "x"),
        ("phrases", -1),
    ],
)  # fmt: skip
def test_a_setting_of_the_wrong_kind_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name}="):
        Word2Vec.train(TEXT, **QUICK | {name: value})


@pytest.mark.parametrize("source", [None, 3])
def test_what_is_no_corpus_is_named(source: object) -> None:
    with refused(InputError, "corpus", hint="a path"):
        Word2Vec.train(source, **QUICK)


def test_a_text_in_the_place_of_a_path_is_no_file() -> None:
    with refused(NotFound, "the cat sat", "…", hint=""):
        Word2Vec.train("the cat sat " * 200, **QUICK)


def test_an_unknown_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("some words")
    with refused(InputError, "encoding='utf-9'"):
        Word2Vec.train(tmp_path, encoding="utf-9", **QUICK)


def test_the_mark_that_some_editors_put_first_is_no_letter(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeffhello world".encode())
    assert list(Corpus(path).sentences()) == [["hello", "world"]]


def test_what_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="threshold=nan"):
        find_phrases(Corpus([["a", "b"]]), threshold=math.nan)
    with pytest.raises(ConfigError, match="rate=nan"):
        wampimuk(rate=math.nan)


def test_a_folder_without_questions_scores_nothing(tmp_path: Path, vectors: Word2Vec) -> None:
    (tmp_path / "notes.md").write_text("king queen 9\n")
    with pytest.raises(InputError, match="no question file"):
        evaluate(vectors, tmp_path)


def test_empty_words_are_left_out() -> None:
    assert list(Corpus([["a", "", "b"], [""]]).sentences()) == [["a", "b"]]


def test_vectors_are_saved_in_a_folder_that_is_made(tmp_path: Path, vectors: Word2Vec) -> None:
    for name in ("v.bin", "v.safetensors"):
        vectors.save(tmp_path / "new" / "one" / name)
        assert Word2Vec.load(tmp_path / "new" / "one" / name).words == vectors.words


def test_an_output_that_is_a_folder_is_known_before_training(tmp_path: Path) -> None:
    from heedful.cli.word2vec import word2vec_command as app

    folder = tmp_path / "v.bin"
    folder.mkdir()
    with refused(InputError, "is a folder", hint="a file in it"):
        app(["train", str(tmp_path / "never-read.txt"), "-o", str(folder)], standalone_mode=False)


def test_as_many_answer_as_may(vectors: Word2Vec) -> None:
    assert len(vectors.neighbours("f", 3, first=2)) == 2  # f itself is not among the first two
    assert len(vectors.analogy("a", "e", "f", 5, first=3)) == 2


@pytest.mark.parametrize("first", [0, -1])
def test_at_least_one_word_may_answer(vectors: Word2Vec, first: int) -> None:
    with pytest.raises(InputError, match=f"first={first}"):
        vectors.neighbours("a", first=first)


@pytest.mark.parametrize("word", [None, 1.5, [1.0] * 6])
def test_what_is_no_word_is_named(vectors: Word2Vec, word: object) -> None:
    with refused(InputError, "a string", "a row", type(word).__name__):
        vectors.neighbours(word)  # type: ignore[arg-type]


def test_a_vector_of_another_size_is_refused(vectors: Word2Vec) -> None:
    with refused(InputError, "6 numbers", "(3,)"):
        vectors.neighbours(np.zeros(3))


def test_a_table_is_a_list_an_array_or_a_tensor_of_numbers() -> None:
    assert len(Word2Vec.from_table([[1.0, 2.0], [3.0, 4.0]])) == 2
    with pytest.raises(InputError, match="object is not a table"):
        Word2Vec.from_table(object())
    with pytest.raises(InputError, match="NaN or infinity"):
        Word2Vec.from_table(np.full((2, 2), np.nan))


@pytest.mark.parametrize("text", [b"0 0\n", b"-1 2\na 1 1\n"])
def test_a_first_line_that_promises_nothing_is_no_word(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(text)
    with refused(CorruptFile, "first line"):
        Word2Vec.load(path)


def test_a_folder_and_a_limit_of_nothing_are_refused(tmp_path: Path, vectors: Word2Vec) -> None:
    with pytest.raises(NotFound, match="is a folder"):
        Word2Vec.load(tmp_path)
    vectors.save(tmp_path / "v.bin")
    with pytest.raises(ConfigError, match="limit=0"):
        Word2Vec.load(tmp_path / "v.bin", limit=0)


def test_every_flipped_byte_of_a_header_is_an_error_of_ours_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    Word2Vec.train(TEXT, loss="hierarchical", **QUICK).save(path)
    whole = path.read_bytes()
    for at in range(0, int.from_bytes(whole[:8], "little") + 8):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 7)]) + whole[at + 1 :])
        with contextlib.suppress(HeedfulError):
            Word2Vec.load(path)
