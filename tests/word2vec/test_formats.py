"""Files: every format there and back, gensim both ways, one clear error for each way a file can be broken."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from heedful.core.errors import ConfigError, CorruptFile, InputError, NotFound
from heedful.word2vec import Word2Vec

WORDS = ["the", "naïve", "犬", "end"]
TABLE = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)
ENDINGS = ["v.bin", "v.txt", "v.vec", "v.glove", "v.safetensors", "v.bin.gz", "v.txt.gz"]


@pytest.fixture
def vectors() -> Word2Vec:
    return Word2Vec(WORDS, TABLE)


@pytest.mark.parametrize("name", ENDINGS)
def test_what_is_written_is_read_back_exactly(tmp_path: Path, vectors, name):
    vectors.save(tmp_path / name)
    loaded = Word2Vec.load(tmp_path / name)
    assert loaded.words == WORDS
    assert np.array_equal(loaded.input, TABLE)
    assert not list(tmp_path.glob("*.part"))


def test_the_first_words_only(tmp_path, vectors):
    for name in ENDINGS:
        vectors.save(tmp_path / name)
        assert Word2Vec.load(tmp_path / name, limit=2).words == WORDS[:2]


@pytest.mark.parametrize("loss", ["negative", "hierarchical"])
def test_safetensors_keeps_both_tables_and_all_else(tmp_path, corpus, loss):
    trained = Word2Vec.train(corpus[:200], dim=9, min_count=1, epochs=1, loss=loss)
    trained.save(tmp_path / "v.safetensors")
    loaded = Word2Vec.load(tmp_path / "v.safetensors")
    assert np.array_equal(loaded.output, trained.output)
    assert np.array_equal(loaded.counts, trained.counts)
    assert (loaded.settings, loaded.history) == (trained.settings, trained.history)
    again = [v.update(corpus[200:300], epochs=1, threads=1).input for v in (trained, loaded)]
    assert np.array_equal(*again)


def test_the_safetensors_library_reads_it(tmp_path, vectors):
    from safetensors.numpy import load_file

    vectors.save(tmp_path / "v.safetensors")
    assert np.array_equal(load_file(tmp_path / "v.safetensors")["input"], TABLE)


def test_a_mapped_table_stays_on_disk(tmp_path, vectors):
    vectors.save(tmp_path / "v.safetensors")
    mapped = Word2Vec.load(tmp_path / "v.safetensors", mmap=True)
    assert isinstance(mapped.input, np.memmap)
    assert mapped.neighbours("the", 3) == vectors.neighbours("the", 3)
    vectors.save(tmp_path / "v.bin")
    with pytest.raises(ConfigError, match="convert"):
        Word2Vec.load(tmp_path / "v.bin", mmap=True)


def test_binary_with_and_without_line_ends(tmp_path):
    rows = [w.encode() + b" " + row.tobytes() for w, row in zip(WORDS, TABLE)]
    (tmp_path / "v.bin").write_bytes(b"4 7\n" + b"".join(rows))
    assert np.array_equal(Word2Vec.load(tmp_path / "v.bin").input, TABLE)


def test_a_glove_word_may_have_spaces(tmp_path):
    (tmp_path / "v.txt").write_text("the 1 2\nat name 3 4\n")
    assert Word2Vec.load(tmp_path / "v.txt").words == ["the", "at name"]


@pytest.mark.parametrize("binary", [True, False])
def test_gensim_reads_ours_and_we_read_gensims(tmp_path, vectors, binary):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keyed = pytest.importorskip("gensim.models.keyedvectors").KeyedVectors
    ours, theirs = (str(tmp_path / name) + (".bin" if binary else ".txt") for name in ("ours", "theirs"))
    vectors.save(ours)
    loaded = keyed.load_word2vec_format(ours, binary=binary)
    assert loaded.index_to_key == WORDS
    assert np.array_equal(loaded.vectors, TABLE)
    loaded.save_word2vec_format(theirs, binary=binary)
    back = Word2Vec.load(theirs)
    assert back.words == WORDS
    assert np.allclose(back.input, TABLE, atol=1e-6)


def broken(tmp_path: Path, name: str, data: bytes) -> str:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorruptFile) as caught:
        Word2Vec.load(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
    return str(caught.value)


def test_a_truncated_binary_is_one_clear_error(tmp_path, vectors):
    vectors.save(tmp_path / "whole.bin")
    data = (tmp_path / "whole.bin").read_bytes()
    for cut in (len(data) // 2, len(data) - 20, 6):
        assert "truncated" in broken(tmp_path, "v.bin", data[:cut])


def test_a_wrong_header_is_one_clear_error(tmp_path, vectors):
    vectors.save(tmp_path / "whole.bin")
    body = (tmp_path / "whole.bin").read_bytes().split(b"\n", 1)[1]
    assert "first line is wrong" in broken(tmp_path, "v.bin", b"999999999 7\n" + body)
    assert "goes on" in broken(tmp_path, "v.bin", b"3 7\n" + body)
    assert "first line" in broken(tmp_path, "v.bin", b"four 7\n" + body)
    assert "promises 5" in broken(tmp_path, "v.txt", b"5 2\na 1 2\nb 3 4\n")
    assert "line 3" in broken(tmp_path, "v.txt", b"2 2\na 1 2\nb 3 x\n")


def test_duplicate_words_and_nan_are_one_clear_error_each(tmp_path):
    assert "'a' more than once" in broken(tmp_path, "v.txt", b"2 2\na 1 2\na 3 4\n")
    assert "'b' has NaN" in broken(tmp_path, "v.txt", b"2 2\na 1 2\nb nan 4\n")
    bad = TABLE.copy()
    bad[2, 3] = np.inf
    Word2Vec(WORDS, bad).save(tmp_path / "v.bin")
    assert "'犬' has NaN or infinity" in broken(tmp_path, "v.bin", (tmp_path / "v.bin").read_bytes())
    Word2Vec(WORDS, bad).save(tmp_path / "v.safetensors")
    assert "'犬'" in broken(tmp_path, "v.safetensors", (tmp_path / "v.safetensors").read_bytes())


def test_a_damaged_safetensors_is_one_clear_error(tmp_path, vectors):
    vectors.save(tmp_path / "whole.safetensors")
    data = (tmp_path / "whole.safetensors").read_bytes()
    assert "is truncated" in broken(tmp_path, "v.safetensors", data[:-8])
    assert "no safetensors file" in broken(tmp_path, "v.safetensors", b"plain text")


def test_a_flipped_bit_in_a_table_is_noticed(tmp_path, vectors):
    vectors.save(tmp_path / "whole.safetensors")
    data = bytearray((tmp_path / "whole.safetensors").read_bytes())
    data[-1] ^= 1
    assert "its checksum is another" in broken(tmp_path, "v.safetensors", bytes(data))


def test_a_number_whose_square_would_be_infinite_is_one_clear_error(tmp_path):
    assert "'b' has a number as large as 1e+30" in broken(tmp_path, "v.txt", b"2 2\na 1 2\nb 1e30 4\n")


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz"])
def test_vectors_with_the_name_of_a_compressed_file_are_one_clear_error(tmp_path, ending):
    assert "is damaged" in broken(tmp_path, f"v.txt.{ending}", b"2 2\na 1 2\nb 3 4\n")


def test_a_word_that_a_format_cannot_hold_is_named(tmp_path):
    with pytest.raises(InputError, match="'new york'"):
        Word2Vec(["a", "new york"], TABLE[:2]).save(tmp_path / "v.bin")
    Word2Vec(["a", "new york"], TABLE[:2]).save(tmp_path / "v.safetensors")
    assert Word2Vec.load(tmp_path / "v.safetensors").words == ["a", "new york"]


def test_endings_and_paths_are_checked(tmp_path, vectors):
    with pytest.raises(ConfigError, match="cannot tell the format"):
        vectors.save(tmp_path / "v.xyz")
    with pytest.raises(NotFound, match="no file"):
        Word2Vec.load(tmp_path / "none.bin")
    with pytest.raises(InputError, match="cannot continue"):
        vectors.update([["a", "b"]])
