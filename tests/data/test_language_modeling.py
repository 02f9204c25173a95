"""Next-token rows: every token predicted once, no label across documents, the end of text kept."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from heedful import data
from heedful.core.errors import InputError
from heedful.data import IGNORE
from heedful.data.batches import Batches
from tests.data.toy import Letters, Words
from tests.refusal import refused

DOCS = ["hello", "world abc", "x", "the quick brown fox jumps."]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "docs.txt").write_text("\n\n".join(DOCS))
    return tmp_path / "docs.txt"


def bigrams(batches: Batches, steps: range | None = None) -> Counter[tuple[int, int]]:
    seen: Counter[tuple[int, int]] = Counter()
    for batch in batches.once() if steps is None else (batches[i] for i in steps):
        keep = batch.labels != IGNORE
        seen.update(zip(batch.tokens[keep].tolist(), batch.labels[keep].tolist(), strict=True))
    return seen


def expected(docs: list[str]) -> Counter[tuple[int, int]]:
    coded = [[*Letters().encode(d), Letters().eos] for d in docs]
    return Counter(pair for ids in coded for pair in pairwise(ids))


@pytest.mark.parametrize("length", [1, 3, 7, 8, 100])
def test_one_pass_predicts_every_token_of_every_document_once(path: Path, length: int) -> None:
    batches = data.text(path, Letters(), length=length, batch=3, unit="paragraph")
    assert bigrams(batches) == expected(DOCS)


def test_a_later_epoch_cuts_elsewhere_and_still_predicts_every_token_once(path: Path) -> None:
    batches = data.text(path, Letters(), length=7, batch=1, unit="paragraph")
    n = len(batches)
    assert bigrams(batches, range(3 * n, 4 * n)) == expected(DOCS)
    rows = lambda e: {tuple(batches[i].tokens[0].tolist()) for i in range(e * n, e * n + n)}
    assert any(rows(e) != rows(0) for e in range(1, 4))


def test_documents_are_numbered_and_labels_stay_inside(path: Path) -> None:
    batch = data.text(path, Letters(), length=50, batch=1, unit="paragraph")[0]
    parts = [len(d) + 1 for d in DOCS]
    assert batch.documents[0].unique_consecutive(return_counts=True)[1].tolist() == [*parts[:3], parts[3] - 1]
    ends = [sum(parts[: i + 1]) - 1 for i in range(3)]
    assert (batch.labels[0] == IGNORE).nonzero().flatten().tolist() == ends


def test_the_end_of_text_stays_a_label_though_it_is_also_the_padding(path: Path) -> None:
    letters = Letters()
    batches = data.text(path, letters, length=40, batch=4, unit="paragraph", packed=False)
    assert letters.pad == letters.eos
    batch = batches[0]
    assert (batch.labels == letters.eos).sum(1).tolist() == [1, 1, 1, 1]
    assert torch.equal(batch.labels != IGNORE, batch.valid)
    assert bigrams(batches) == expected(DOCS)


def test_one_stream_lets_documents_follow_each_other(path: Path) -> None:
    batch = data.text(path, Letters(), length=50, batch=1, unit="paragraph", apart=False)[0]
    assert batch.documents is None
    assert (batch.labels != IGNORE).all()
    assert torch.equal(batch.labels[0, :-1], batch.tokens[0, 1:])


def test_a_file_is_one_document_and_needs_no_document_numbers(path: Path) -> None:
    batches = data.text(path, Letters(), length=8, batch=2)
    assert batches[0].documents is None
    assert bigrams(batches) == expected(["\n\n".join(DOCS)])


def test_a_tokenizer_that_frames_texts_frames_documents(path: Path) -> None:
    words = Words(["hello", "world"])
    batch = data.text(path, words, length=60, batch=1, unit="paragraph")[0]
    assert batch.tokens[0, :4].tolist() == [words.cls, words.ids["hello"], words.sep, words.cls]


def test_long_documents_are_refused_or_cut_openly_when_not_packed(path: Path) -> None:
    more = dict(length=10, batch=2, unit="paragraph", packed=False)
    with refused(InputError, "1 of 4", 10, 26, hint="packed=True"):
        data.text(path, Letters(), **more)
    batches = data.text(path, Letters(), **more, truncate=True)
    assert batches.notes == ("1 of 4 documents was cut to 10 tokens; 16 tokens are not read",)
    assert max(b.tokens.shape[1] for b in batches.once()) == 10
