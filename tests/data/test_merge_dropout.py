"""Dropped merges: the same text in other pieces, drawn by seed, epoch and row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful import data, train_tokenizer
from heedful.core.errors import InputError
from heedful.data.examples.translation import MergeDropout, merge_parts
from heedful.data.token_cache import ragged_array

TEXT = "the cat sat on the mat and the hat sat on the cat\n"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 20)
    return path


@pytest.fixture
def tokenizer(corpus: Path) -> Any:
    return train_tokenizer("bpe", [str(corpus)], vocab=290, special=("bos", "eos", "pad"))


def test_parts_of_a_token_spell_the_token(tokenizer: Any) -> None:
    parts = merge_parts(tokenizer)
    names = tokenizer.tokens(list(range(len(tokenizer))))
    merged = np.flatnonzero(parts[:, 0] >= 0)
    assert len(merged) > 5
    assert all(names[i] == names[parts[i, 0]] + names[parts[i, 1]] for i in merged)


def test_whatever_is_dropped_the_text_stays(tokenizer: Any) -> None:
    ids = [tokenizer.encode(text, special=False) for text in ("the cat sat", "the hat on the mat")]
    texts, rows = ragged_array(ids), np.array([1, 0])
    for rate in (0.0, 0.3, 1.0):
        drawn = MergeDropout(merge_parts(tokenizer), rate, seed=0).draw(texts, rows, np.array([0, 0]))
        assert [tokenizer.decode(drawn[k].tolist()) for k in (0, 1)] == ["the hat on the mat", "the cat sat"]
        if rate == 0:
            assert [drawn[k].tolist() for k in (0, 1)] == [ids[1], ids[0]]
    assert (merge_parts(tokenizer)[drawn.flat, 0] < 0).all()  # at a rate of one nothing merged is left


def test_a_third_of_the_merges_is_undone_at_a_third(tokenizer: Any) -> None:
    texts = ragged_array([tokenizer.encode("the", special=False)] * 3000)
    (whole,) = texts[0].tolist()
    drawn = MergeDropout(merge_parts(tokenizer), 1 / 3, seed=0).draw(
        texts, np.arange(3000), np.zeros(3000, np.int64)
    )
    kept = np.mean([drawn[k].tolist() == [whole] for k in range(3000)])
    assert 0.63 < kept < 0.70


def test_an_epoch_reads_other_pieces_and_the_same_epoch_the_same(
    corpus: Path, tokenizer: Any, tmp_path: Path
) -> None:
    table = tmp_path / "pairs.tsv"
    table.write_text("en\tde\n" + "the cat sat on the mat\tthe hat sat on the cat\n" * 4)
    build = lambda rate: data.parallel(
        data.Table(table), tokenizer, columns=("en", "de"), length=64, batch=4, truncate=True, dropout=rate
    )
    first, again, plain = build(0.5), build(0.5), build(0.0)
    assert first[0].tokens.tolist() == again[0].tokens.tolist()
    assert first[0].tokens.tolist() != first[1].tokens.tolist()
    assert first[0].tokens.shape[1] > plain[0].tokens.shape[1]
    assert first.fingerprint != plain.fingerprint
    row = first[0].tokens[0].tolist()
    assert tokenizer.decode([i for i in row if i != tokenizer.pad]).startswith("the cat sat on the mat")


def test_other_tokenizers_are_refused(corpus: Path) -> None:
    with pytest.raises(InputError, match="BPE"):
        merge_parts(train_tokenizer("wordpiece", [str(corpus)], vocab=60))
