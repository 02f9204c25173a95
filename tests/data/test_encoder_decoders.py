"""Rows for encoder-decoders: spans, noise, translation pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from heedful import data
from heedful.core.errors import InputError
from heedful.data import IGNORE
from heedful.data.batch import Row, collate
from heedful.data.examples import corruption as corrupt
from heedful.data.examples.masking import decoder_row
from heedful.data.examples.translation import pair_batches
from heedful.data.token_cache import ragged_array
from heedful.data.tokenization import Template
from tests.data.toy import Letters, Words, restore_spans
from tests.refusal import refused

WORDS = [f"w{i}" for i in range(100)]


@pytest.fixture(scope="module")
def words() -> Words:
    return Words(WORDS, sentinels=60)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("text") / "t.txt"
    sentence = lambda: " ".join(f"w{rng.integers(100)}" for _ in range(rng.integers(3, 9))) + " ."
    file.write_text("\n\n".join(" ".join(sentence() for _ in range(20)) for _ in range(8)))
    return file


def test_spans_and_the_rest_are_the_text_and_lengths_are_exact(path: Path, words: Words) -> None:
    marks = [words.ids[f"<extra_id_{i}>"] for i in range(60)]
    assert marks[0] > marks[1]
    raw, target = corrupt.span_lengths(40)
    batch = data.spans(path, words, length=40, batch=4)[0]
    assert batch.tokens.shape == (4, 40)
    assert batch.labels.shape == batch.target.shape == (4, target)
    assert batch.valid is None
    for source, labels in zip(batch.tokens, batch.labels, strict=True):
        assert source[-1] == labels[-1] == words.sep
        assert len(restore_spans(source[:-1].numpy(), labels[:-1].numpy(), marks)) == raw
    whole = restore_spans(batch.tokens[0, :-1].numpy(), batch.labels[0, :-1].numpy(), marks)
    text = [words.ids[w] for w in path.read_text().split()]
    assert str(whole.tolist())[1:-1] in str(text)


def test_the_decoder_reads_the_labels_moved_right_by_the_start_token(path: Path, words: Words) -> None:
    made = data.spans(path, words, length=30, batch=2, start=7), data.denoise(path, words, start=7)
    for batch in (batches[0] for batches in made):
        assert (batch.target[:, 0] == 7).all()
        assert torch.equal(batch.target[:, 1:], batch.labels[:, :-1])


def test_sentinels_may_be_any_ids_and_without_any_the_error_says_which(path: Path) -> None:
    plain = Words(WORDS)
    with refused(InputError, "<extra_id_0>", hint=f"vocab={len(plain) + 100}"):
        data.spans(path, plain)
    ascending = range(len(plain), len(plain) + 100)
    batch = data.spans(path, plain, length=30, batch=2, sentinels=ascending)[0]
    assert [t for t in batch.labels[0].tolist() if t in ascending] == list(ascending[:2])


def test_documents_by_themselves_are_padded(path: Path, words: Words) -> None:
    for batch in data.spans(path, words, length=30, batch=3, packed=False, unit="paragraph").once():
        assert batch.tokens.shape[1] <= 30
        assert batch.target.shape == batch.labels.shape


@pytest.mark.parametrize("noise", corrupt.NOISES)
def test_each_noise_leaves_the_whole_text_to_be_written(path: Path, words: Words, noise: str) -> None:
    text = str([*(words.ids[w] for w in path.read_text().split()), words.sep])
    for batch in data.denoise(path, words, length=40, batch=4, noises=[noise]).once():
        assert batch.tokens.shape[1] <= 40
        for row in batch.labels:
            assert row[0] == words.cls
            assert row[-1] == words.sep
            assert str(row[1:-1].tolist())[1:-1] in text


def test_an_unknown_noise_is_answered_with_the_nearest(path: Path, words: Words) -> None:
    with refused(InputError, "noise='infil'", hint="'infill'"):
        data.denoise(path, words, noises=["infil"])


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(1)
    lines = [("a" * rng.integers(1, 30), "b" * rng.integers(1, 30)) for _ in range(50)]
    (tmp_path / "x.de").write_text("\n".join(a for a, _ in lines) + "\n")
    (tmp_path / "x.en").write_text("\n".join(b for _, b in lines) + "\n")
    (tmp_path / "x.tsv").write_text("\n".join(f"{a}\t{b}\tby someone" for a, b in lines))
    return tmp_path / "x.de", tmp_path / "x.en"


def test_pairs_stay_together_in_files_and_tables_alike(pair: tuple[Path, Path]) -> None:
    letters = Letters()
    files = data.parallel(pair, letters, length=40, batch=8)
    table = data.parallel(pair[0].with_suffix(".tsv"), letters, length=40, batch=8)
    for batches in (files, table):
        rows = [b.rows(i) for b in batches.once() for i in range(len(b))]
        assert len(rows) == 50
        sources, targets = (p.read_text().split("\n") for p in pair)
        for i, row in enumerate(rows):
            assert row.extra["row"].item() == i
            ok = slice(None) if row.valid is None else row.valid[0]
            assert letters.decode(row.tokens[0][ok].tolist()) == sources[i] + "$"
            assert letters.decode(row.labels[0][row.labels[0] != IGNORE].tolist()) == targets[i] + "$"
            assert row.target[0, 0] == letters.eos


def test_lengths_stand_together_and_max_tokens_bounds_a_batch(pair: tuple[Path, Path]) -> None:
    batches = data.parallel(pair, Letters(), length=40, batch=100, max_tokens=200)
    seen: list[int] = []
    for step in range(len(batches)):
        batch = batches[step]
        assert len(batch) * max(batch.tokens.shape[1], batch.labels.shape[1]) <= 200
        seen += batch.extra["row"].tolist()
    assert sorted(seen) == list(range(50))


def test_long_pairs_are_refused_or_cut_openly(pair: tuple[Path, Path]) -> None:
    with refused(InputError, "50 pairs", "20 tokens", hint="truncate=True"):
        data.parallel(pair, Letters(), length=20)
    batches = data.parallel(pair, Letters(), length=20, truncate=True)
    assert "were cut to 20 tokens" in batches.notes[0]
    for batch in batches.once():
        assert max(batch.tokens.shape[1], batch.labels.shape[1]) <= 20
        last = batch.labels[torch.arange(len(batch)), (batch.labels != IGNORE).sum(1) - 1]
        assert (last == Letters().eos).all()


def test_pairs_with_an_empty_side_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n\nthree\n")
    (tmp_path / "b").write_text("x\ny\nz\n")
    batches = data.parallel((tmp_path / "a", tmp_path / "b"), Letters(), batch=4)
    assert batches.notes == ("1 of 3 pairs is left out because one side is empty",)
    assert [b.extra["row"].tolist() for b in batches.once()] == [[0, 2]]


def test_files_that_do_not_pair_up_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("x\n")
    with refused(InputError, "a has 2 lines", "b has 1", hint="pair"):
        data.parallel((tmp_path / "a", tmp_path / "b"), Letters())


def test_a_prefix_goes_before_every_source(pair: tuple[Path, Path]) -> None:
    batch = data.parallel(pair, Letters(), length=60, batch=1, prefix="to english ")[0]
    assert Letters().decode(batch.tokens[0].tolist()).startswith("to english a")


def test_a_text_that_begins_with_the_start_token_is_not_given_it_twice(path: Path, words: Words) -> None:
    batch = data.denoise(path, words, length=20, batch=2, start=words.cls)[0]
    assert (batch.target[:, 0] == words.cls).all()
    assert (batch.labels[:, 0] != words.cls).all()


def test_rounded_batches_have_few_shapes_and_the_same_rows(tmp_path: Path, words: Words) -> None:
    rng = np.random.default_rng(1)
    sides = [tmp_path / "a", tmp_path / "b"]
    for side in sides:
        side.write_text("\n".join(" ".join(["w3"] * rng.integers(2, 30)) for _ in range(300)) + "\n")
    read = lambda multiple: data.parallel(sides, words, batch=64, max_tokens=480, multiple=multiple)
    plain, rounded = read(1), read(8)
    assert plain.fingerprint != rounded.fingerprint
    made = [rounded[i] for i in range(len(rounded))]
    numbers = torch.cat([b.extra["row"] for b in made])
    assert sorted(numbers[numbers >= 0].tolist()) == list(range(300))
    kinds = lambda batches: len({(b.tokens.shape, b.target.shape) for b in batches})
    assert kinds(made) < 8 < 12 < kinds(plain[i] for i in range(len(plain)))
    for batch in made:
        width = max(batch.tokens.shape[1], batch.target.shape[1])
        assert batch.tokens.shape[1] % 8 == batch.target.shape[1] % 8 == 0
        assert len(batch) == min(64, 480 // width)
        empty = batch.extra["row"] < 0
        assert not batch.valid[empty].any()
        assert not batch.target_valid[empty].any()
        assert (batch.labels[empty] == IGNORE).all()
        assert torch.equal(batch.labels != IGNORE, batch.target_valid)


def test_lengths_cannot_be_rounded_to_less_than_one(path: Path, words: Words) -> None:
    with pytest.raises(InputError, match="multiple=0"):
        data.parallel([path, path], words, multiple=0)


@pytest.mark.parametrize("before", [(), (5,), (7,)])
@pytest.mark.parametrize("length", [6, 64])
def test_a_batch_of_pairs_is_what_its_rows_are_one_by_one(before: tuple[int, ...], length: int) -> None:
    rng = np.random.default_rng(2)
    sources, targets = (
        ragged_array([rng.integers(6, 9, rng.integers(1, 12)) for _ in range(40)]) for _ in range(2)
    )
    around, beyond, start, kept = Template((1, 2), (3,)), Template(before, (3, 4)), 7, np.arange(5, 40)
    make_batch = pair_batches(sources, targets, kept, around, beyond, length, start, pad=0)

    def row(i: int) -> Row:
        ids, answer = sources[i][: length - around.single_count], targets[i][: length - beyond.single_count]
        return {"tokens": around.wrap(ids), **decoder_row(beyond.wrap(answer), start), "row": i}

    for rows in (np.arange(35), np.array([3]), np.array([30, 2, 2, 17])):
        got, wanted = make_batch(rows, rows), collate([row(int(kept[i])) for i in rows], pad=0)
        for name in ("tokens", "labels", "valid", "target", "target_valid"):
            a, b = getattr(got, name), getattr(wanted, name)
            assert (a is None) == (b is None)
            assert a is None or (torch.equal(a, b) and a.dtype == b.dtype)
        assert torch.equal(got.extra["row"], wanted.extra["row"])
