"""Words in place of pieces, and one text of a pair on the other."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.classroom import figures as view
from heedful.classroom.figures.patterns import (
    by_words,
    group_words,
    marks,
    select_pattern,
    side,
    word_names,
)
from heedful.core.errors import InputError
from heedful.interp.inputs import reading
from heedful.models.base import Model
from tests.properties.tiny import tiny

PIECES = [
    (["[CLS]", "un", "##believ", "##able", ".", "[SEP]"], ["[CLS]", "unbelievable", ".", "[SEP]"]),
    (["Token", "ization", " is", " hard", "."], ["Tokenization", " is", " hard", "."]),
    (["▁Un", "believ", "able", "▁", "word"], ["▁Unbelievable", "▁", "word"]),
    (["<s>", "Ġa", "b", "c"], ["<s>", "Ġabc"]),
    (["low", "er</w>", "end</w>"], ["lower", "end"]),
    ([" x", "<E4 BD>", "<A0>"], [" x", "你"]),
    ([" 你", "好"], [" 你", "好"]),
    (["le", "chat"], ["le", "chat"]),
    (["###", "##", "·"], ["###", "##", "·"]),
]


@pytest.mark.parametrize(("pieces", "whole"), PIECES, ids=lambda x: "|".join(x))
def test_pieces_are_put_together_as_their_vocabulary_marks_them(pieces: list[str], whole: list[str]) -> None:
    assert word_names(pieces, group_words(pieces, marks(pieces))) == whole
    assert word_names(["un", "##able"], [0] * len(["un", "##able"])) == ["unable"]


def test_a_word_is_given_the_sum_of_its_pieces_and_gives_their_mean() -> None:
    values = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).softmax(-1).numpy()
    rows, columns = [0, 1, 1, 2, 2], [0, 0, 1, 2, 2, 2]
    found = by_words(values, rows, columns)
    assert found.shape == (3, 3)
    for i in range(3):
        for j in range(3):
            block = values[
                np.ix_([t for t in range(5) if rows[t] == i], [s for s in range(6) if columns[s] == j])
            ]
            assert found[i, j] == pytest.approx(block.sum(1).mean(), abs=1e-6)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A small encoder whose vocabulary has few words, so that most are in pieces."""
    file = tmp_path_factory.mktemp("text") / "lines.txt"
    file.write_text("the cat sat on the mat .\nthe dog sat on the log .\n" * 3, encoding="utf-8")
    tokenizer = heedful.train_tokenizer("wordpiece", [file], 60)
    model = heedful.build("bert", vocab=len(tokenizer), dim=16, layers=2, heads=2, context=40, seed=1).eval()
    model.tokenizer = tokenizer
    return model


PAIR = ("the cattag sat", "on the dogtag .")


def test_a_pair_is_read_as_the_encoder_was_trained_to(bert: Model) -> None:
    assert bert.tokenizer is not None
    ids, types = bert.tokenizer.encode_pair(*PAIR)
    given = reading(bert, PAIR)
    assert given.ids.tolist() == [ids]
    assert given.second == types.index(1)
    with torch.no_grad():
        expected = bert(torch.tensor([ids]), types=torch.tensor([types]))
        torch.testing.assert_close(given.run(bert), expected)
        assert not torch.allclose(given.run(bert), bert(torch.tensor([ids])))  # the types matter


def test_one_text_on_the_other_is_a_part_of_the_whole(bert: Model) -> None:
    whole = view.attention(bert, PAIR, layer=1, head=1)
    second = whole.data["patterns"][1]["second"]
    values = whole.data["patterns"][1]["values"][1]
    cuts = {"a": slice(0, second), "b": slice(second, None)}
    for between in ("A→A", "A→B", "b -> a", "bb"):
        figure = view.attention(bert, PAIR, layer=1, head=1, between=between)
        rows = list(csv.DictReader(io.StringIO(figure.to_csv())))
        asks, seen = (cuts[c] for c in side(between))
        expected = values[asks, seen]
        got = np.array([np.float32(r["weight"]) for r in rows]).reshape(expected.shape)
        np.testing.assert_array_equal(got, expected)
        assert int(rows[0]["query_at"]) == asks.start
        assert " → " in figure.title
        figure.to_svg()


def test_a_figure_by_words_has_a_row_for_each_word(bert: Model, tmp_path: Path) -> None:
    figure = view.attention(bert, PAIR, words=True, between="ab", hide_first=True)
    rows = list(csv.DictReader(io.StringIO(figure.to_csv())))
    assert [r["key"] for r in rows if r["query_at"] == "0"] == ["on", "the", "dogtag", ".", "[SEP]"]
    assert list(dict.fromkeys(r["query"] for r in rows)) == ["[CLS]", "the", "cattag", "sat", "[SEP]"]
    assert "by words" in figure.title
    assert repr(PAIR) in figure.python
    figure.save(tmp_path / "x.html")


def test_a_causal_figure_by_words_hatches_the_words_to_come() -> None:
    pattern = torch.tril(torch.ones(4, 4)) / torch.arange(1, 5)[:, None]
    figure = view.attention(tokens=["a", "b", " c", "d"], pattern=pattern, words=True)
    rows = list(csv.DictReader(io.StringIO(figure.to_csv())))
    assert [r["query"] for r in rows] == ["ab", "ab", " cd", " cd"]
    assert [float(r["weight"]) for r in rows] == pytest.approx([1, 0, 7 / 12, 5 / 12], abs=1e-6)
    assert figure.to_svg().count('stroke="#d5d9de"') == 2  # the frame, and one slanted line


def test_weights_of_two_texts_take_the_place_where_the_second_begins() -> None:
    figure = view.attention(tokens=list("abcd"), pattern=torch.eye(4), second=1, between="B→B")
    assert len(figure.to_csv().splitlines()) == 1 + 9


BAD = [
    (lambda m: view.attention(m, PAIR, between="C→D"), "choose A→A, A→B, B→A or B→B"),
    (lambda m: view.attention(m, PAIR[0], between="ab"), "needs two texts"),
    (lambda m: view.attention(tokens=["a", "b"], pattern=torch.eye(2), second=2), "cannot begin at second=2"),
    (lambda m: view.attention(m, ("a", "")), "one of the two texts is empty"),
    (lambda m: view.attention(tiny("gpt2"), PAIR), "for an encoder"),
]


@pytest.mark.parametrize(("call", "line"), BAD, ids=[line for _, line in BAD])
def test_a_pair_that_cannot_be_drawn_is_named(bert: Model, call: object, line: str) -> None:
    with pytest.raises(InputError, match=line):
        call(bert)  # type: ignore[operator]


def test_keys_outside_a_window_are_hatched_too() -> None:
    model = tiny("mistral")
    figure = view.attention(model, [5, 9, 2, 7, 11, 3, 8, 4])
    window = model.config.window
    masked = select_pattern(figure.data).masked
    for t in range(8):
        for s in range(8):
            assert masked[t, s] == (s > t or t - s >= window), (t, s)
    assert not figure.data["patterns"][0]["values"][:, masked].any()
