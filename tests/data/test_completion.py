"""Prompts and what follows them: only what follows is learnt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heedful.core.errors import InputError
from heedful.data.batch import IGNORE
from heedful.data.examples.language_modeling import completion
from tests.data.toy import Letters


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.csv"
    path.write_text("prompt,completion\nab,cd\nabcdefgh,xy\n")
    return path


def test_only_the_answer_and_its_end_have_a_loss(file: Path) -> None:
    tokenizer = Letters()
    row = next(completion(file, tokenizer, length=16, batch=1).once())
    assert tokenizer.decode(row.tokens[0].tolist()) == "ab cd"
    assert row.labels is not None
    said = [i for i in row.labels[0].tolist() if i != IGNORE]
    assert tokenizer.decode(said) == " cd$"
    assert row.labels[0].tolist()[:1] == [IGNORE]


def test_a_long_prompt_loses_its_beginning_and_says_so(file: Path) -> None:
    tokenizer = Letters()
    with pytest.raises(InputError, match="longer than 6 tokens"):
        completion(file, tokenizer, length=6, batch=1)
    made = completion(file, tokenizer, length=6, batch=2, truncate=True)
    rows = [tokenizer.decode(r).rstrip("$") for batch in made.once() for r in batch.tokens.tolist()]
    assert rows == ["ab cd", "fgh xy"]
    assert "1 of 2 rows was cut to 6 tokens" in made.notes[0]


def test_a_space_parts_prompt_and_answer_only_where_there_is_none(tmp_path: Path) -> None:
    pairs = [("a.", "b"), ("a. ", "b"), ("a.", "\nb"), ("", "b")]
    rows = [json.dumps({"prompt": prompt, "completion": answer}) for prompt, answer in pairs]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    tokenizer, made = Letters(), completion(tmp_path / "t.jsonl", Letters(), batch=1)
    read = [tokenizer.decode(batch.tokens[0].tolist()) for batch in made.once()]
    assert read == ["a. b", "a. b", "a.\nb", "b"]
