"""Any text gives examples or one typed error, and what is written comes back."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from heedful.core.errors import HeedfulError
from heedful.data.examples.answer_spans import Question, locate_answer, squad
from heedful.data.examples.tagging import Sentence, conll, to_bio
from heedful.data.readers import Table

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
letters = st.characters(codec="utf-8")
# Text made of what the formats are made of is parsed deeper than any text.
marks = st.text(st.sampled_from(list(" \t\n\r\"',;:{}[]0aBé#-\\\0\ufeff\u2028")), max_size=60)
contents = st.one_of(marks, st.text(letters, max_size=60)).map(str.encode) | st.binary(max_size=60)
MANY_DIGITS, DEEP = b"[" + b"1" * 5000 + b"]", b"[" * 100_000  # which Python's json cannot read
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parsers")


def parse(read: Callable[[], Iterable[Any]]) -> list[Any] | None:
    """Return the examples, or None if they were refused by an error of ours."""
    try:
        return list(read())
    except HeedfulError:
        return None


@quick
@given(
    contents,
    st.sampled_from([".csv", ".tsv", ".jsonl", ".json", ".csv.gz"]),
    st.sampled_from([0, -1, "text"]),
)
@example(MANY_DIGITS, ".json", 0)
@example(DEEP, ".jsonl", 0)
def test_any_file_is_a_table_or_one_error(folder: Path, content: bytes, end: str, column: int | str) -> None:
    path = folder / f"table{end}"
    path.write_bytes(content)
    rows = parse(lambda: Table(path).rows(column))
    assert rows is None or all(isinstance(value, str) for _, (value,) in rows)
    assert parse(lambda: Table(path).names) is None or rows != []


@quick
@given(jsons, st.booleans())
def test_any_json_is_a_table_or_one_error(folder: Path, value: Any, lines: bool) -> None:
    path = folder / ("rows.jsonl" if lines else "rows.json")
    path.write_text(json.dumps(value))
    rows = parse(lambda: Table(path).rows("text"))
    assert rows is None or len(rows) > 0


cells = st.lists(st.lists(st.text(letters, max_size=8), min_size=2, max_size=2), min_size=1, max_size=5)


@quick
@given(cells)
def test_a_csv_file_gives_back_the_cells_that_were_written(folder: Path, rows: list[list[str]]) -> None:
    path = folder / "written.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *rows])
    lines = lambda text: text.replace("\r\n", "\n").replace("\r", "\n")
    expected = [tuple(map(lines, row)) for row in rows if any(map(str.strip, row))]
    assert (parse(lambda: Table(path).rows("a", "b")) or []) == [
        (where, values) for where, values in zip(wheres(path, rows), expected, strict=True)
    ]


def wheres(path: Path, rows: list[list[str]]) -> list[str]:
    """Where each row that is not blank begins."""
    lines = lambda text: text.replace("\r\n", "\n").replace("\r", "\n")
    line, found = 2, []
    for row in rows:
        if any(map(str.strip, row)):
            found.append(f"{path}, line {line}")
        line += 1 + sum(lines(cell).count("\n") for cell in row)
    return found


@quick
@given(cells)
def test_json_lines_give_back_the_texts_that_were_written(folder: Path, rows: list[list[str]]) -> None:
    path = folder / "written.jsonl"
    path.write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in rows), encoding="utf-8")
    found = parse(lambda: Table(path).rows("b", "a"))
    assert found is not None
    assert [values for _, values in found] == [(b, a) for a, b in rows]


@quick
@given(contents, st.sampled_from([".conll", ".conllu"]), st.sampled_from([None, 0, 2, -3]))
def test_any_file_is_conll_or_one_error(folder: Path, content: bytes, end: str, column: int | None) -> None:
    path = folder / f"tags{end}"
    path.write_bytes(content)
    sentences = parse(lambda: conll(path, tag=column))
    assert sentences is None or all(len(s.words) == len(s.tags) > 0 for s in sentences)


words = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=5)
tags = st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B", "NN"])
tagged = st.lists(st.lists(st.tuples(words, tags), min_size=1, max_size=4), min_size=1, max_size=4)


@quick
@given(tagged, st.sampled_from([" ", "\t"]))
def test_conll_gives_back_the_words_and_tags_that_were_written(
    folder: Path, sentences: list[list[tuple[str, str]]], between: str
) -> None:
    path = folder / "written.conll"
    lines = ["\n".join(between.join(pair) for pair in pairs) for pairs in sentences]
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    expected = [(tuple(w for w, _ in pairs), tuple(to_bio([t for _, t in pairs]))) for pairs in sentences]
    found: list[Sentence] | None = parse(lambda: conll(path))
    assert found is not None
    assert [(s.words, s.tags) for s in found] == expected


@quick
@given(st.lists(tags, max_size=6))
def test_entities_in_bio_begin_with_b_and_stay_so(sequence: list[str]) -> None:
    bio = to_bio(sequence)
    assert to_bio(bio) == bio
    assert [t[2:] for t in bio] == [t[2:] for t in sequence]


# JSON of SQuAD's shape with anything in one place or another.
numbers = st.integers(-3, 9)
answers = st.lists(
    st.fixed_dictionaries({"text": st.text() | jsons, "answer_start": numbers | jsons}) | jsons
)
questions = st.fixed_dictionaries({"id": jsons, "question": st.text() | jsons, "answers": answers | jsons})
paragraphs = st.fixed_dictionaries({"context": st.text() | jsons, "qas": st.lists(questions | jsons) | jsons})
articles = st.fixed_dictionaries({"paragraphs": st.lists(paragraphs | jsons)})
squads = st.fixed_dictionaries({"data": st.lists(articles | jsons) | jsons}) | jsons


def one_question(question: str, answer: str) -> bytes:
    qas = f'[{{"id": 1, "question": {question}, "answers": [{answer}]}}]'
    return f'{{"data": [{{"paragraphs": [{{"context": "a", "qas": {qas}}}]}}]}}'.encode()


@quick
@given(contents | squads.map(json.dumps).map(str.encode))
@example(MANY_DIGITS)
@example(DEEP)
@example(one_question("5", '{"text": "a", "answer_start": 0}'))
@example(one_question('"q"', '{"text": ["a"], "answer_start": 0}'))
@example(one_question('"q"', '{"text": "a", "answer_start": 1e999}'))
def test_any_file_is_squad_or_one_error(folder: Path, content: bytes) -> None:
    path = folder / "squad.json"
    path.write_bytes(content)
    for question in parse(lambda: squad(path)) or ():
        assert isinstance(question.question, str)
        assert isinstance(question.context, str)
        place = locate_answer(question) if question.answers else None
        assert place is None or question.context[slice(*place)] == question.answers[0][0].strip()


strings = st.text(letters, max_size=12)


@quick
@given(
    st.lists(
        st.tuples(strings, strings, st.lists(st.tuples(strings, st.integers(0, 20)), max_size=2)),
        min_size=1,
        max_size=3,
    )
)
def test_squad_gives_back_the_questions_that_were_written(
    folder: Path, written: list[tuple[str, str, list[tuple[str, int]]]]
) -> None:
    path = folder / "written.json"
    expected = [Question(str(i), q, c, tuple(answers)) for i, (q, c, answers) in enumerate(written)]
    answers = lambda q: [{"text": text, "answer_start": start} for text, start in q.answers]
    qas = lambda q: [{"id": q.id, "question": q.question, "answers": answers(q)}]
    data = [{"paragraphs": [{"context": q.context, "qas": qas(q)}]} for q in expected]
    path.write_text(json.dumps({"data": data}))
    assert squad(path) == expected
