"""A tokenizer that we saved, opened by transformers, gives the model what it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import heedful
from heedful.models import FAMILIES
from heedful.nn.init import initialise
from heedful.text import load_tokenizer
from heedful.weights.loading import assemble

transformers = pytest.importorskip("transformers")

TEXT = "the cat sat on the mat . who sat there ? a cat and a dog ."
PAIR = ("who sat there ?", "the cat sat on the mat .")


def saved(family: str, folder: Path) -> Path:
    (folder / "text.txt").write_text(f"{TEXT}\n" * 4)
    tokenizer = heedful.train_tokenizer("wordpiece", folder / "text.txt", 120)
    model = assemble(FAMILIES[family], FAMILIES[family].tiny.change(vocab=len(tokenizer), head="none"))
    initialise(model, std=0.1)
    model.tokenizer = tokenizer
    return heedful.save(model, folder / "model")


def test_a_pair_for_a_bert_has_types_and_gives_our_vectors(tmp_path: Path) -> None:
    folder = saved("bert", tmp_path)
    asked = transformers.AutoTokenizer.from_pretrained(folder)(*PAIR, return_tensors="pt")
    ours = heedful.load(folder)
    ids, types = ours.tokenizer.encode_pair(*PAIR)
    assert asked["input_ids"].tolist() == [ids]
    assert asked["token_type_ids"].tolist() == [types]
    assert set(types) == {0, 1}
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        wanted = theirs(**asked).last_hidden_state
        got = ours.eval().encode(torch.tensor([ids]), types=torch.tensor([types]))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_model_without_types_gets_none(tmp_path: Path) -> None:
    folder = saved("distilbert", tmp_path)
    asked = transformers.AutoTokenizer.from_pretrained(folder)(*PAIR, return_tensors="pt")
    assert "token_type_ids" not in asked
    with torch.no_grad():
        assert transformers.AutoModel.from_pretrained(folder)(**asked).last_hidden_state.isfinite().all()


def test_what_a_tokenizer_says_of_itself_stays(tmp_path: Path) -> None:
    folder = saved("bert", tmp_path)
    model = heedful.load(folder)
    model.tokenizer.settings["model_input_names"] = ["input_ids"]
    heedful.save(model, tmp_path / "again")
    told = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert told["model_input_names"] == ["input_ids"]


def test_the_vocabulary_of_an_mpnet_is_read_as_there(tmp_path: Path) -> None:
    """WordPiece between RoBERTa's tokens, though BERT's stand in the list too; <mask> takes a space."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", ".", "[", "]", "mask"]
    vocab = ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n")
    config = {"model_type": "mpnet", "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    theirs = transformers.MPNetTokenizer(vocab={word: i for i, word in enumerate(vocab)})
    ours = load_tokenizer(tmp_path, config)
    assert ours is not None
    for text in ("The cats sat.", "the <mask> sat . [MASK]", "dogs </s>", ""):
        assert ours.encode(text) == theirs(text)["input_ids"], text
    assert ours.encode_pair("the cat", "sat.")[0] == theirs("the cat", "sat.")["input_ids"]
    for role in ("bos", "eos", "cls", "sep", "pad", "mask", "unk"):
        assert getattr(ours, role) == getattr(theirs, f"{role}_token_id"), role
