"""Rows with answers: classes, scores, pairs, tags, spans."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful import data
from heedful.core.errors import InputError
from heedful.data import IGNORE
from heedful.data.examples.answer_spans import Question, locate_answer
from heedful.data.examples.tagging import encode_words, to_bio
from tests.data.toy import Letters, Words
from tests.refusal import refused


@pytest.fixture
def words() -> Words:
    return Words(["good", "bad", "film", "the", "was", "a", "play", "paris", "city", "where", "what", "is"])


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def by_row(batches: data.Batches) -> list[data.Batch]:
    return [b.rows(i).trim() for b in batches.once() for i in range(len(b))]


def test_classes_are_named_in_order_and_kept_for_evaluation(tmp_path: Path, words: Words) -> None:
    train = write(
        tmp_path / "train.tsv", "label\ttext\npos\tgood film\nneg\tbad film\npos\tthe film was good\n"
    )
    batches = data.classify(train, words, batch=2)
    assert batches.labels == ("neg", "pos")
    rows = by_row(batches)
    assert [r.extra["label"].item() for r in rows] == [1, 0, 1]
    assert rows[0].tokens.tolist() == [words.encode("good film")]
    assert rows[0].labels is None
    test = write(tmp_path / "test.tsv", "label\ttext\npos\ta play\n")
    assert [r.extra["label"].item() for r in by_row(data.classify(test, words, labels=batches.labels))] == [1]


def test_numbers_as_labels_are_ordered_as_numbers(tmp_path: Path, words: Words) -> None:
    file = write(tmp_path / "t.csv", "text,label\na,10\na,9\na,2\n")
    assert data.classify(file, words).labels == ("2", "9", "10")


def test_a_label_unseen_in_training_is_named_with_its_line(tmp_path: Path, words: Words) -> None:
    file = write(tmp_path / "t.csv", "text,label\ngood,pos\nbad,negativ\n")
    with refused(InputError, "t.csv, line 3", "'negativ'", hint="'negative'"):
        data.classify(file, words, labels=("negative", "pos"))


def test_two_texts_get_types_and_are_cut_from_the_longer_one(tmp_path: Path, words: Words) -> None:
    file = write(tmp_path / "t.csv", "one,two,label\nthe film was good,a play,1\n")
    options = dict(text="one", pair="two", label="label")
    row = by_row(data.classify(file, words, **options))[0]
    ids, types = words.encode_pair("the film was good", "a play")
    assert row.tokens[0].tolist() == ids
    assert row.types[0].tolist() == types
    with refused(InputError, "1 of 1 pair", "8 tokens"):
        data.classify(file, words, **options, length=8)
    cut = data.classify(file, words, **options, length=8, truncate=True)
    assert by_row(cut)[0].tokens[0].tolist() == words.encode_pair("the film was", "a play")[0]
    assert cut.notes


def test_scores_are_numbers_and_anything_else_is_named(tmp_path: Path, words: Words) -> None:
    file = write(tmp_path / "t.tsv", 'score\ta\tb\n2.5\tgood "film\tbad\n5\ta\ta\n')
    batch = data.regress(file, words, text="a", pair="b", batch=4)[0]
    assert sorted(batch.extra["score"].tolist()) == [2.5, 5.0]
    assert batch.extra["score"].dtype == torch.float32
    with refused(InputError, "line 2", "'much'"):
        data.regress(write(tmp_path / "u.tsv", "score\ttext\nmuch\ta\n"), words)


def test_pairs_for_contrast_are_two_sequences_and_may_be_chosen(tmp_path: Path, words: Words) -> None:
    file = write(
        tmp_path / "t.tsv", "label\tsentence1\tsentence2\n1\tgood film\ta\n0\tbad\tbad\n1\ta\tthe play\n"
    )
    batch = next(data.contrast(file, words, where=("label", "1")).once())
    assert len(batch) == 2
    assert batch.extra["other_tokens"].shape == (2, 4)
    assert batch.extra["other_valid"].tolist() == [[True] * 3 + [False], [True] * 4]
    assert batch.tokens[0].tolist() == words.encode("good film")
    assert len(next(data.contrast(file, words).once())) == 3


CONLL = """-DOCSTART- -X- O O

paris NNP I-NP I-LOC
zoo   NN I-NP I-LOC
bad JJ I-NP B-LOC
film NN I-NP O
 \t
the DT I-NP O
"""


def test_the_first_piece_of_a_word_is_labelled_and_the_rest_ignored(tmp_path: Path, words: Words) -> None:
    batches = data.tag(write(tmp_path / "t.conll", CONLL), words)
    assert batches.labels == ("B-LOC", "I-LOC", "O")
    first, second = by_row(batches)
    assert words.tokens(first.tokens[0].tolist()) == [
        "[CLS]",
        "paris",
        "z",
        "##o",
        "##o",
        "bad",
        "film",
        "[SEP]",
    ]
    names = [batches.labels[i] if i != IGNORE else "-" for i in first.labels[0].tolist()]
    assert names == ["-", "B-LOC", "I-LOC", "-", "-", "B-LOC", "O", "-"]
    assert second.labels[0].tolist() == [IGNORE, 2, IGNORE]
    assert batches[0].label_count % 5 == 0


def test_words_encoded_one_by_one_where_offsets_are_unknown() -> None:
    ids, first = encode_words(["ab", "c"], Letters())
    assert ids == [0, 1, 2]
    assert first.tolist() == [0, -1, 1]


def test_other_columns_and_conllu_files_can_be_read(tmp_path: Path, words: Words) -> None:
    file = write(tmp_path / "t.conll", CONLL)
    assert data.tag(file, words, column=1).labels == ("DT", "JJ", "NN", "NNP")
    lines = "# text = the film\n1-2\tthefilm\t_\t_\n1\tthe\tthe\tDET\n2\tfilm\tfilm\tNOUN\n2.1\tx\tx\tX\n"
    assert data.tag(write(tmp_path / "u.conllu", lines), words).labels == ("DET", "NOUN")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("I-A I-A O I-A", "B-A I-A O B-A"),
        ("I-A B-A I-A", "B-A B-A I-A"),
        ("I-A I-B", "B-A B-B"),
        ("B-A I-A O", "B-A I-A O"),
        ("DT IN O", "DT IN O"),
        ("B-A I-A L-A U-A U-A O", "B-A I-A I-A B-A B-A O"),
        ("B-A M-A E-A S-A", "B-A I-A E-A S-A"),
    ],
)
def test_iob1_and_bilou_become_bio_and_bio_stays(old: str, new: str) -> None:
    assert to_bio(old.split()) == new.split()


def test_ragged_lines_and_unknown_tags_are_named_by_line(tmp_path: Path, words: Words) -> None:
    with refused(InputError, "line 2", "1 column instead of 2"):
        data.tag(write(tmp_path / "t.conll", "a O\nb\n"), words)
    with pytest.raises(InputError, match="there is no 7"):
        data.tag(write(tmp_path / "t.conll", "a O\n"), words, column=7)
    with refused(InputError, "line 3", "label 'B-X'"):
        data.tag(write(tmp_path / "t.conll", "a O\n\nb I-X\n"), words, labels=("O",))
    with pytest.raises(InputError, match="no sentence"):
        data.tag(write(tmp_path / "t.conll", "\n\n"), words)


CONTEXT = "the film was bad . paris is a good city . the play was bad ."


def squad_file(path: Path, answers: list[dict[str, object]], **more: object) -> Path:
    asked = {"id": "q1", "question": "where is a city ?", "answers": answers, **more}
    return write(path, json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [asked]}]}]}))


def test_an_answer_is_found_by_its_characters(tmp_path: Path, words: Words) -> None:
    start = CONTEXT.index("paris")
    file = squad_file(tmp_path / "s.json", [{"text": "paris is", "answer_start": start}])
    row = by_row(data.answer(file, words))[0]
    a, b = row.extra["start"].item(), row.extra["end"].item()
    assert words.tokens(row.tokens[0, a : b + 1].tolist()) == ["paris", "is"]
    assert row.extra["offsets"][0, a].tolist() == [start, start + 5]
    assert row.extra["offsets"][0, 0].tolist() == [-1, -1]
    assert row.types[0, a] == 1
    assert data.squad(file)[row.extra["example"].item()].answers == (("paris is", start),)


@pytest.mark.parametrize("context", ["was paris.", "(paris)", "?paris!", "paris"])
def test_an_answer_leaves_out_the_tokens_that_touch_it(context: str, words: Words) -> None:
    asked = [Question("1", "where ?", context, (("paris", context.index("paris")),))]
    row = by_row(data.answer(asked, words))[0]
    first, last = row.extra["start"].item(), row.extra["end"].item()
    assert words.tokens(row.tokens[0, first : last + 1].tolist()) == ["paris"]


def test_a_row_holds_an_answer_only_if_it_holds_its_first_and_last_token(words: Words) -> None:
    text = "the film was bad the play was good"

    def pointed_at(answer: str) -> list[list[str]]:
        asked = [Question("1", "?", text, ((answer, text.index(answer)),))]
        rows = by_row(data.answer(asked, words, length=8, stride=1, question=1))
        spans = [slice(row.extra["start"].item(), row.extra["end"].item() + 1) for row in rows]
        return [words.tokens(row.tokens[0, span].tolist()) for row, span in zip(rows, spans, strict=True)]

    rows = by_row(data.answer([Question("1", "?", text, ())], words, length=8, stride=1, question=1))
    assert [words.decode(row.tokens[0, 3:-1].tolist()) for row in rows] == [
        "the film was bad", "bad the play was", "was good",
    ]  # fmt: skip
    assert pointed_at("was bad") == [["was", "bad"], ["[CLS]"], ["[CLS]"]]
    assert pointed_at("bad") == [["bad"], ["bad"], ["[CLS]"]]
    assert pointed_at("bad the") == [["[CLS]"], ["bad", "the"], ["[CLS]"]]
    assert pointed_at("the film was bad the") == [["[CLS]"]] * 3


def test_long_contexts_make_overlapping_rows_and_only_some_hold_the_answer(
    tmp_path: Path, words: Words
) -> None:
    file = squad_file(tmp_path / "s.json", [{"text": "good", "answer_start": CONTEXT.index("good")}])
    rows = by_row(data.answer(file, words, length=16, stride=3, question=6))
    assert len(rows) > 2
    seen = [row.extra["offsets"][0] for row in rows]
    spans = [{tuple(s) for s in o.tolist() if s[0] >= 0} for o in seen]
    assert len(set.union(*spans)) == len(words.encode(CONTEXT, special=False))
    assert all(len(a & b) == 3 for a, b in pairwise(spans))
    for row, held in zip(rows, spans, strict=True):
        a = row.extra["start"].item()
        inside = any(CONTEXT[s:e] == "good" for s, e in held)
        assert (words.names[row.tokens[0, a].item()] == "good") == inside
        assert (a == 0) != inside


def test_a_question_without_an_answer_points_at_the_first_token(tmp_path: Path, words: Words) -> None:
    file = squad_file(tmp_path / "s.json", [], is_impossible=True)
    row = by_row(data.answer(file, words))[0]
    assert (row.extra["start"].item(), row.extra["end"].item()) == (0, 0)


def test_answers_off_by_a_little_are_found_and_others_left_out_openly(tmp_path: Path, words: Words) -> None:
    question = lambda text, at: Question("", "", "ab cd ab", ((text, at),))
    assert locate_answer(question("ab", 5)) == (6, 8)
    assert locate_answer(question(" cd ", 2)) == (3, 5)
    assert locate_answer(question("xy", 0)) is None
    asked = [
        Question("1", "what ?", CONTEXT, (("rome", 3),)),
        Question("2", "what ?", CONTEXT, (("film", 4),)),
    ]
    batches = data.answer(asked, words)
    assert batches.notes == ("1 of 2 questions is left out because the answer is not in the text",)
    assert batches.row_count == 1


@pytest.mark.parametrize(
    ("context", "answer", "start", "found"),
    [
        ("ab ab xxx ab", "ab", 6, 3),  # the nearest before
        ("xx xx ab ab", "ab", 4, 6),  # the nearest after
        ("ab xxxxx", "ab", 5, 0),
        ("xx abcd", "abcd", 4, 3),  # a start inside the answer
        ("xx abab", "abab", 6, 3),
        ("ab ab x", "ab", -3, 0),
        ("cd cd", " cd", 2, 3),
    ],
)
def test_an_answer_off_by_a_little_is_the_nearest_place(
    context: str, answer: str, start: int, found: int
) -> None:
    place = locate_answer(Question("", "", context, ((answer, start),)))
    assert place == (found, found + len(answer.strip()))


def test_every_question_points_into_its_own_context(words: Words) -> None:
    asked = [
        Question("1", "what ?", "the film", (("the", 0),)),
        Question("2", "where ?", "paris is a city", (("city", 11),)),
        Question("3", "what ?", "the film", (("film", 4),)),
    ]
    rows = sorted(by_row(data.answer(asked, words)), key=lambda row: row.extra["example"].item())
    assert [words.decode(row.tokens[0].tolist()) for row in rows] == [
        "[CLS] what ? [SEP] the film [SEP]",
        "[CLS] where ? [SEP] paris is a city [SEP]",
        "[CLS] what ? [SEP] the film [SEP]",
    ]
    assert [(row.extra["start"].item(), row.extra["end"].item()) for row in rows] == [(4, 4), (7, 7), (5, 5)]


def test_rows_of_like_length_are_learnt_in_one_batch(words: Words) -> None:
    asked = [Question("", "what ?", "the film " * (1 + 20 * (i % 2)), ()) for i in range(16)]
    batches = data.answer(asked, words, batch=4)
    assert sorted(batches[step].tokens.shape[1] for step in range(4)) == [7, 7, 47, 47]


def test_a_question_has_64_tokens_unless_more_are_asked_for(words: Words) -> None:
    asked = lambda count: [Question("1", "the " * count, CONTEXT, (("film", 4),))]
    assert data.answer(asked(64), words).row_count == 1
    with refused(InputError, "1 of 1 question", "64 tokens"):
        data.answer(asked(65), words)


def test_what_cannot_be_answered_about_is_refused(tmp_path: Path, words: Words) -> None:
    with pytest.raises(InputError, match="not a SQuAD file: 'data'"):
        data.answer(write(tmp_path / "s.json", "{}"), words)
    with pytest.raises(InputError, match=r"s\.json, line 1: this is not JSON"):
        data.answer(write(tmp_path / "s.json", "{"), words)
    file = squad_file(tmp_path / "s.json", [], is_impossible=True)
    with refused(InputError, "does not report the offsets"):
        data.answer(file, Letters())
    with pytest.raises(InputError, match="must be more than `?stride=128"):
        data.answer(file, words, length=100)
    with refused(InputError, "1 of 1 question", "2 tokens", "s.json"):
        data.answer(file, words, question=2)
    empty = [write(tmp_path / f"{name}.json", '{"data": []}') for name in ("one", "two")]
    with refused(InputError, "one.json has no questions"):
        data.squad(empty)


def test_every_builder_gives_int64_ids_and_is_the_same_twice(tmp_path: Path, words: Words) -> None:
    file = write(
        tmp_path / "t.tsv",
        "label\ttext\n" + "\n".join(f"{i % 3}\tgood {'film ' * (i % 7)}" for i in range(20)),
    )
    first, again = (data.classify(file, words, batch=4) for _ in range(2))
    assert first.fingerprint == again.fingerprint
    for step in (0, 4, 11):
        assert torch.equal(first[step].tokens, again[step].tokens)
        assert first[step].tokens.dtype == first[step].extra["label"].dtype == torch.int64
    assert np.unique([b.tokens.shape[1] for b in first.once()]).size > 1
