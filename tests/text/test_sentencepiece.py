"""SentencePiece models, trained here on a few lines, cut text as the SentencePiece library does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heedful.core.errors import CorruptFile
from heedful.text import load_tokenizer
from tests.text.samples import WRITTEN, lines

spm = pytest.importorskip("sentencepiece", reason="sentencepiece trains the models compared here")


def trained(folder: Path, **settings: Any) -> Any:
    text = [line for line in (*WRITTEN, *Path(__file__).read_text().splitlines()) if line.strip()] * 3
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=str(folder / "tokenizer"), vocab_size=500, minloglevel=2,
        hard_vocab_limit=False, num_threads=1, **settings,
    )  # fmt: skip
    return spm.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


KINDS = {
    "bpe": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False},
    "unigram": {"model_type": "unigram"},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_cut_and_joined_as_the_library_does(kind: str, tmp_path: Path) -> None:
    theirs = trained(tmp_path, **KINDS[kind])
    ours = load_tokenizer(tmp_path)
    assert ours is not None
    assert len(ours) == theirs.get_piece_size()
    for line in lines():
        assert ours.encode(line, special=False) == theirs.encode(line), line
        if theirs.unk_id() not in theirs.encode(line):  # what is unknown is spelt differently
            assert ours.decode(ours.encode(line)) == theirs.decode(theirs.encode(line)), line


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_symbols_that_users_defined_are_found_as_the_library_finds_them(
    kind: str, prefix: bool, tmp_path: Path
) -> None:
    symbols = ["<x>", "(", "-"] + (["▁▁", "▁▁▁", "\n"] if kind == "bpe" else [])  # as Gemma's, as ALBERT's
    theirs = trained(tmp_path, **KINDS[kind], user_defined_symbols=symbols, add_dummy_prefix=prefix)
    ours = load_tokenizer(tmp_path)
    assert ours is not None
    for line in [
        *lines(100),
        "a  b",
        "a   b    c\n\n d",
        "<x>a <x> b<x>",
        "  a",
        "f(x) - (y)-z",
        "def f():\n    1",
    ]:
        assert ours.encode(line, special=False) == theirs.encode(line), line
        if theirs.unk_id() not in theirs.encode(line):
            assert ours.decode(ours.encode(line)) == theirs.decode(theirs.encode(line)), line


def test_bpe_begins_with_bos_and_unigram_ends_with_eos(tmp_path: Path) -> None:
    trained(tmp_path, **KINDS["bpe"])
    bpe = load_tokenizer(tmp_path)
    assert bpe is not None
    assert bpe.encode("a")[0] == bpe.bos == 1
    (tmp_path / "tokenizer_config.json").write_text('{"add_eos_token": true, "add_bos_token": false}')
    asked = load_tokenizer(tmp_path)
    assert asked is not None
    assert asked.encode("a") == [*bpe.encode("a", special=False), bpe.eos]


def test_sentinels_count_down_from_the_end(tmp_path: Path) -> None:
    theirs = trained(tmp_path, model_type="unigram", bos_id=-1, eos_id=1, pad_id=0, unk_id=2)
    tokenizer = load_tokenizer(tmp_path, {"model_type": "t5"})
    assert tokenizer is not None
    size = theirs.get_piece_size()
    assert tokenizer.id("<extra_id_0>") == size + 99
    assert tokenizer.id("<extra_id_99>") == size
    assert tokenizer.encode("<extra_id_0>")[0] == size + 99


def test_a_table_for_two_languages_renumbers_the_pieces(tmp_path: Path) -> None:
    theirs = trained(tmp_path, model_type="unigram")
    (tmp_path / "tokenizer.model").rename(tmp_path / "source.spm")
    names = [theirs.id_to_piece(i) for i in range(3, theirs.get_piece_size())]
    order = ["</s>", "<unk>", ">>de<<", *reversed(names), "▁Brot", "<pad>"]
    vocab = {name: i for i, name in enumerate(order)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    ours = load_tokenizer(tmp_path)
    assert ours is not None
    assert (ours.eos, ours.unk, ours.pad, ours.bos) == (0, 1, len(order) - 1, None)
    for line in lines():
        if theirs.unk_id() not in theirs.encode(line):
            assert ours.encode(line) == [vocab[p] for p in theirs.encode(line, out_type=str)] + [0], line
    assert ours.encode(">>de<< a")[0] == vocab[">>de<<"]
    assert ours.decode([vocab["▁Brot"], vocab["▁Brot"], 0]) == "Brot Brot"


def test_ids_shifted_by_one_leave_room_for_padding(tmp_path: Path) -> None:
    theirs = trained(tmp_path, model_type="unigram")
    (tmp_path / "tokenizer.model").rename(tmp_path / "sentencepiece.bpe.model")
    ours = load_tokenizer(tmp_path, {"model_type": "xlm-roberta"})
    assert ours is not None
    assert (ours.cls, ours.pad, ours.sep, ours.unk) == (0, 1, 2, 3)
    assert ours.mask == len(ours) - 1 == theirs.get_piece_size() + 1
    for line in lines():
        shifted = [3 if i == theirs.unk_id() else i + 1 for i in theirs.encode(line)]
        assert ours.encode(line) == [0, *shifted, 2], line
    assert ours.encode("a <mask>")[-2] == ours.mask


def test_a_damaged_model_is_one_clear_error(tmp_path: Path) -> None:
    trained(tmp_path, **KINDS["bpe"])
    path = tmp_path / "tokenizer.model"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CorruptFile, match=r"tokenizer\.model"):
        load_tokenizer(tmp_path)
