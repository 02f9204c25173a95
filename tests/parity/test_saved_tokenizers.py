"""A tokenizer that we saved, opened by transformers, gives the model what it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import heedful
from heedful.loading import assemble
from heedful.models import FAMILIES
from heedful.nn.init import initialise

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
