"""Tokenizers trained from text: the same text gives the same one, and text comes back."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from heedful import data
from heedful.core.errors import InputError, NotFound
from heedful.text import bpe, load_tokenizer, save_tokenizer
from heedful.text.tokenizer_training import train_tokenizer
from tests.refusal import refused

SENTENCES = [
    f"{who} {what} {where}{mark}"
    for who in ("The old fox", "A painter", "Nobody", "My neighbour's cat")
    for what in ("sleeps", "is sleeping", "slept", "has never slept")
    for where in ("under the tree", "at sea", "in 1843", "by the river")
    for mark in (".", "!", "?")
]
KINDS = ["bpe", "wordpiece", "unigram", "word", "char"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path


def squeezed(text: str) -> str:
    return "".join(text.split()).lower()


@pytest.mark.parametrize("kind", KINDS)
def test_text_comes_back(kind: str, corpus: Path) -> None:
    tokenizer = train_tokenizer(kind, [corpus], vocab=400)
    assert len(tokenizer) <= 400
    for text in SENTENCES[::7]:
        ids = tokenizer.encode(text)
        assert max(ids) < len(tokenizer)
        assert tokenizer.unk not in ids
        back = tokenizer.decode(ids)
        assert (
            back == text if kind in ("bpe", "char", "unigram", "word") else squeezed(back) == squeezed(text)
        )


def test_bytes_know_every_text(corpus: Path) -> None:
    tokenizer = train_tokenizer("bpe", corpus, vocab=300)
    text = "日本語 😀 naïve\n\n\ttab"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "word", "char"])
def test_the_unknown_is_marked_and_not_dropped(kind: str, corpus: Path) -> None:
    tokenizer = train_tokenizer(kind, corpus, vocab=400)
    assert tokenizer.unk in tokenizer.encode("日")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_tokenizer_in_another_process(kind: str, corpus: Path) -> None:
    program = (
        "import sys; from heedful.text.tokenizer_training import train_tokenizer as t; "
        "sys.stdout.write(t(sys.argv[1], sys.argv[2], vocab=350).backend.to_str())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, kind, str(corpus)], capture_output=True, check=True
    )
    ours = train_tokenizer(kind, corpus, vocab=350).backend.to_str()
    assert hashlib.sha256(ours.encode()).digest() == hashlib.sha256(other.stdout).digest()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_saved_and_loaded(kind: str, corpus: Path, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(kind, corpus, vocab=350)
    save_tokenizer(tokenizer, tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    assert loaded.encode(SENTENCES[3]) == tokenizer.encode(SENTENCES[3])
    assert tokenizer.roles.items() <= loaded.roles.items()


def test_special_tokens_are_those_the_kind_is_used_with(corpus: Path) -> None:
    made = {kind: train_tokenizer(kind, corpus, vocab=350) for kind in KINDS}
    assert made["bpe"].roles == {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
    first, *_, last = made["wordpiece"].encode("the fox")
    assert (first, last) == (made["wordpiece"].cls, made["wordpiece"].sep)
    assert made["unigram"].encode("the fox")[-1] == made["unigram"].eos
    ids, types = made["wordpiece"].encode_pair("the fox", "at sea")
    assert (types[0], types[-1]) == (0, 1)
    assert ids.count(made["wordpiece"].sep) == 2
    assert made["word"].roles == {"unk": "<unk>", "eos": "<eos>"}


def test_other_special_tokens_can_be_asked_for(corpus: Path) -> None:
    tokenizer = train_tokenizer("bpe", corpus, vocab=400, special=("pad", "mask", "cls", "sep"))
    assert tokenizer.tokens(tokenizer.encode("the"))[0] == "<s>"
    assert tokenizer.mask is not None
    assert tokenizer.decode(tokenizer.encode("by the river")) == "by the river"
    assert train_tokenizer("char", corpus, special=("eos", "mask")).unk is not None
    sentinels = train_tokenizer("unigram", corpus, vocab=350, sentinels=5)
    assert sentinels.id("<extra_id_4>") is not None
    assert len(sentinels) <= 350


@pytest.mark.parametrize(
    ("kind", "objective"), [("bpe", "next_token"), ("wordpiece", "masked"), ("char", "next_token")]
)
def test_batches_are_made_with_it(kind: str, objective: str, corpus: Path) -> None:
    tokenizer = train_tokenizer(kind, corpus, vocab=350)
    batch = data.text(corpus, tokenizer, length=16, batch=4, seed=0, objective=objective)[0]
    assert int(batch.tokens.max()) < len(tokenizer)


def test_characters_are_numbered_in_their_order(corpus: Path) -> None:
    tokenizer = train_tokenizer("char", corpus)
    names = tokenizer.tokens(range(1, len(tokenizer)))
    assert names == sorted(set(corpus.read_text()))


def test_the_most_frequent_words_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("b a c a b a <unk>\n")
    tokenizer = train_tokenizer("word", tmp_path / "a.txt", vocab=4)
    assert tokenizer.tokens(range(4)) == ["<unk>", "<eos>", "a", "b"]
    assert tokenizer.encode("a c <unk>") == [2, 0, 0]


def test_small_letters_and_packed_files_and_folders(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    packed, plain = train_tokenizer("bpe", tmp_path, vocab=300), train_tokenizer("bpe", corpus, vocab=300)
    assert packed.backend.to_str() == plain.backend.to_str()
    small = train_tokenizer("word", corpus, lower=True)
    assert small.encode("THE old") == small.encode("the OLD")


@pytest.mark.parametrize(
    ("kind", "options", "error", "text"),
    [
        ("bp", {}, InputError, "did you mean 'bpe'"),
        ("bpe", {"vocab": 100}, InputError, "bytes alone are 256 tokens"),
        ("bpe", {"special": ["maks"]}, InputError, "did you mean 'mask'"),
    ],
)
def test_what_cannot_be_trained_is_said(
    kind: str, options: dict[str, object], error: type[Exception], text: str, corpus: Path
) -> None:
    with pytest.raises(error, match=text):
        train_tokenizer(kind, corpus, **options)  # type: ignore[arg-type]


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"missing\.txt"):
        train_tokenizer("bpe", tmp_path / "missing.txt")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(InputError, match="no text"):
        train_tokenizer("bpe", tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes("good\nschön\n".encode("latin-1"))
    with refused(InputError, "latin.txt, line 2", "byte 0x"):
        train_tokenizer("bpe", tmp_path / "latin.txt")
    assert train_tokenizer("char", tmp_path / "latin.txt", encoding="latin-1").id("ö") is not None


class TestReadableBPE:
    """The short one against the library's."""

    def test_words_are_cut_alike(self) -> None:
        from tokenizers import pre_tokenizers

        library = pre_tokenizers.ByteLevel(add_prefix_space=False)
        text = "I don't know_it:  x² costs ½ of 12,50€\n\n  Ⅻ naïve 日本 😀 _a_\t end "
        assert ["".join(bpe.word_letters(w)) for w in bpe.split_words(text)] == [
            w for w, _ in library.pre_tokenize_str(text)
        ]

    def test_pieces_are_the_librarys(self, corpus: Path) -> None:
        theirs = train_tokenizer("bpe", corpus, vocab=257 + 90)
        merges = json.loads(theirs.backend.to_str())["model"]["merges"]
        ours = bpe.BPE(tuple((left, right) for left, right in merges))
        assert len(merges) > 50
        for text in SENTENCES[::5]:
            assert ours.encode(text) == theirs.tokens(theirs.encode(text))

    def test_a_word_is_merged_step_by_step(self) -> None:
        learned = bpe.BPE((("l", "o"), ("lo", "w"), ("Ġ", "low")))
        steps = learned.replay(bpe.word_letters(" low"))
        assert [step.pieces for step in steps] == [("Ġ", "lo", "w"), ("Ġ", "low"), ("Ġlow",)]
        assert [step.rank for step in steps] == [0, 1, 2]

    def test_a_pair_that_overlaps_itself_is_merged_from_the_left(self) -> None:
        assert bpe.merge_pair(("a", "a", "a"), ("a", "a")) == ("aa", "a")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [-5, 0, 1, 5, "400", 400.5])
def test_a_vocabulary_that_cannot_be_is_named(kind: str, vocab: object, corpus: Path) -> None:
    if (kind, vocab) in {("word", 5), ("char", 5)}:
        assert len(train_tokenizer(kind, corpus, vocab=5)) == 5
        return
    with pytest.raises(InputError, match="vocab=|unigram .*2 pieces"):
        train_tokenizer(kind, corpus, vocab=vocab)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_order_mark_is_no_letter(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(("\ufeff" + "hello world\n" * 3).encode())
    tokenizer = train_tokenizer(kind, path, vocab=300)
    assert not any("\ufeff" in token or "ï»¿" in token for token in tokenizer.backend.get_vocab())


def test_an_unknown_encoding_is_named(corpus: Path) -> None:
    with refused(InputError, "encoding='utf-9'"):
        train_tokenizer("char", corpus, encoding="utf-9")


@pytest.mark.parametrize("ids", [[1.5], ["a"], None, "12"])
def test_ids_that_are_none_are_named(ids: object, corpus: Path) -> None:
    tokenizer = train_tokenizer("char", corpus)
    with refused(InputError, "ids", "whole numbers"):
        tokenizer.decode(ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_beginning_has_the_first_tokens_of_a_long_text_and_is_bounded(kind: str, corpus: Path) -> None:
    tokenizer = train_tokenizer(kind, [corpus], vocab=400)
    words = " ".join(SENTENCES)
    long_words = f"{'neighbour' * 30} " * 40  # WordPiece reads each as one unknown token
    for text in (words * 20, words.replace(" ", "") * 20, " " * 2_000 + words * 20, long_words):
        beginning = tokenizer.beginning(text, 10)
        assert tokenizer.encode(beginning, special=False)[:10] == tokenizer.encode(text, special=False)[:10]
    assert len(tokenizer.beginning(words * 20, 10)) < len(words * 20)
    assert len(tokenizer.beginning(" " * 100_000, 10)) < 20_000
    assert tokenizer.beginning(words[:500], 10) == words[:500]
