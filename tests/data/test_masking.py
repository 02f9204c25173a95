"""Rows for encoders: masked tokens, sentence pairs, replaced tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful import data
from heedful.core.errors import ConfigError, InputError
from heedful.data import IGNORE
from tests.data.toy import Letters, Words
from tests.refusal import refused

WORDS = [f"w{i}" for i in range(300)]


@pytest.fixture(scope="module")
def words() -> Words:
    return Words(WORDS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten documents of sentences; a word says which document it is from."""
    rng = np.random.default_rng(0)
    line = lambda d: " ".join(f"w{30 * d + rng.integers(30)}" for _ in range(rng.integers(3, 12))) + " ."
    file = tmp_path_factory.mktemp("text") / "documents.txt"
    file.write_text("\n\n".join("\n".join(line(d) for _ in range(12)) for d in range(10)))
    return file


def restored(batch: data.Batch) -> torch.Tensor:
    return torch.where(batch.labels != IGNORE, batch.labels, batch.tokens)


@pytest.mark.parametrize("packed", [True, False])
def test_masked_rows_are_framed_and_hold_the_whole_text(path: Path, words: Words, packed: bool) -> None:
    batches = data.masked(path, words, length=20, batch=4, unit="paragraph", packed=packed)
    kept: list[int] = []
    masks = 0
    for batch in batches.once():
        rows = restored(batch)
        assert rows.shape[1] <= 20
        assert (rows[:, 0] == words.cls).all()
        valid = batch.valid if batch.valid is not None else torch.ones_like(rows, dtype=torch.bool)
        for row, ok in zip(rows, valid, strict=True):
            assert row[ok][-1] == words.sep
            kept += row[ok].tolist()
        masks += int((batch.tokens == words.mask).sum())
        assert not torch.isin(batch.labels, torch.tensor([words.cls, words.sep, words.pad])).any()
    assert masks > 50
    text = [words.ids[w] for w in path.read_text().split()]
    assert [i for i in kept if i not in (words.cls, words.sep)][: len(text) - 20] == text[: len(text) - 20]


def test_packed_documents_are_kept_apart_unless_told_otherwise(path: Path, words: Words) -> None:
    batch = data.masked(path, words, length=60, batch=8, unit="paragraph")[0]
    ids, documents = restored(batch), batch.documents
    word = (ids >= words.ids["w0"]) & (ids <= words.ids["w299"])
    for row in range(8):
        of = (ids[row] - words.ids["w0"])[word[row]] // 30
        assert torch.equal(of.diff() != 0, documents[row][word[row]].diff() != 0)
    assert data.masked(path, words, length=60, batch=8, unit="paragraph", apart=False)[0].documents is None


def test_dynamic_masking_changes_with_the_epoch_and_static_masking_takes_turns(
    path: Path, words: Words
) -> None:
    def hidden(**more: Any) -> list[dict[tuple[int, ...], tuple[int, ...]]]:
        batches = data.masked(path, words, length=16, batch=1, packed=False, unit="line", **more)
        n = len(batches)
        made = [[batches[e * n + i] for i in range(n)] for e in range(4)]
        return [
            {tuple(restored(b)[0].tolist()): tuple(b.labels[0].tolist()) for b in epoch} for epoch in made
        ]

    dynamic, static = hidden(), hidden(static=2)
    assert dynamic[0].keys() == dynamic[1].keys()
    assert len({str(sorted(e.items())) for e in dynamic}) == 4
    assert static[0] == static[2] != static[1] == static[3]


def test_whole_words_are_hidden_whole(tmp_path: Path, words: Words) -> None:
    (tmp_path / "t.txt").write_text("abcd efg hij klmno w1 w2 " * 20)
    for batch in data.masked(tmp_path / "t.txt", words, length=40, batch=2, whole=True, rate=0.5).once():
        ids, chosen = restored(batch), batch.labels != IGNORE
        inside = torch.tensor([[words.names[i].startswith("##") for i in row] for row in ids.tolist()])[:, 2:]
        assert torch.equal(chosen[:, 2:][inside], chosen[:, 1:-1][inside])


def test_masking_needs_a_mask_and_whole_words_need_names(path: Path) -> None:
    with refused(InputError, "mask token"):
        data.masked(path, Letters(), length=8)
    with pytest.raises(ConfigError, match="rate=2"):
        data.masked(path, Words(WORDS), rate=2.0)
    with pytest.raises(InputError, match="length=2 leaves no room"):
        data.masked(path, Words(WORDS), length=2)


def documents_of(ids: torch.Tensor, words: Words) -> set[int]:
    """The documents that words come from."""
    return {int(words.names[i][1:]) // 30 for i in ids.tolist() if words.names[i] in WORDS}


def test_half_of_the_pairs_follow_and_the_others_are_of_another_document(path: Path, words: Words) -> None:
    batches = data.pairs(path, words, length=24, batch=8)
    follow = []
    for step in range(4 * len(batches)):
        batch = batches[step]
        ids = restored(batch)
        for row in range(len(batch)):
            ok = slice(None) if batch.valid is None else batch.valid[row]
            tokens, types = ids[row][ok], batch.types[row][ok]
            a, b = tokens[types == 0], tokens[types == 1]
            assert (a[0], a[-1], b[-1]) == (words.cls, words.sep, words.sep)
            of = [documents_of(t, words) for t in (a, b)]
            assert len(of[0]) <= 1
            assert len(of[1]) <= 1
            if of[0] and of[1]:
                assert (of[0] == of[1]) == bool(batch.extra["follows"][row])
            follow.append(bool(batch.extra["follows"][row]))
        assert ids.shape[1] <= 24
    assert abs(np.mean(follow) - 0.5) < 3 * 0.5 / len(follow) ** 0.5


def test_pairs_that_follow_are_parted_between_sentences_where_there_are_two(path: Path, words: Words) -> None:
    stop = words.ids["."]
    for batch in data.pairs(path, words, length=40, batch=4).once():
        ids = restored(batch)
        for row in range(len(batch)):
            cut, end = (ids[row] == words.sep).nonzero().flatten()[:2].tolist()
            whole = [*ids[row, 1:cut].tolist(), *ids[row, cut + 1 : end].tolist()]
            if batch.extra["follows"][row] and stop in whole[:-1]:
                assert ids[row, cut - 1] == stop


def test_pairs_need_two_documents(tmp_path: Path, words: Words) -> None:
    (tmp_path / "one.txt").write_text("w1 w2 .\nw3 w4 .")
    with refused(InputError, "one document", hint="blank lines"):
        data.pairs(tmp_path / "one.txt", words)
    with pytest.raises(InputError, match=r"needs? a token between"):
        data.pairs(path_of(tmp_path), Letters())


def path_of(folder: Path) -> Path:
    (folder / "two.txt").write_text("a b\n\nc d")
    return folder / "two.txt"


def test_replaced_tokens_are_marked_and_special_ones_ignored(path: Path, words: Words) -> None:
    batches = data.replaced(path, words, length=32, batch=8)
    original = data.masked(path, words, length=32, batch=8)
    ones = count = 0
    for batch, other in zip(batches.once(), original.once(), strict=True):
        flags, ids = batch.extra["replaced"], restored(other)
        assert torch.equal(flags == 1, batch.tokens != ids)
        assert (flags[:, 0] == IGNORE).all()
        ones, count = ones + int((flags == 1).sum()), count + int((flags != IGNORE).sum())
    assert abs(ones / count - 0.15) < 0.03


def test_a_drawn_order_begins_with_special_tokens_and_its_last_sixth_is_predicted(
    path: Path, words: Words
) -> None:
    batches = data.permuted(path, words, length=32, batch=8)
    for batch in batches.once():
        chosen, order, kept = batch.labels != IGNORE, batch.extra["order"], valid(batch)
        assert torch.equal(batch.labels[chosen], batch.tokens[chosen])
        for tokens, ranks, ok, hidden in zip(batch.tokens, order, kept, chosen, strict=True):
            count = int(ok.sum())
            assert ranks[ok].sort().values.tolist() == list(range(count))
            fixed = ranks[ok & ((tokens == words.cls) | (tokens == words.sep))].sort().values.tolist()
            assert fixed == list(range(len(fixed)))
            assert ranks[hidden].min() == count - max(1, round((count - len(fixed)) / 6))
            assert not (hidden & ~ok).any()
    assert (
        batches[0].extra["order"] != data.permuted(path, words, length=32, batch=8, seed=1)[0].extra["order"]
    ).any()


def test_a_generator_gets_masks_the_labels_and_the_original(path: Path, words: Words) -> None:
    for batch in data.replaced(path, words, length=32, batch=8, generated=True).once():
        chosen = batch.labels != IGNORE
        assert torch.equal(batch.tokens == words.mask, chosen)
        assert torch.equal(restored(batch), batch.extra["original"])


@pytest.mark.parametrize("objective", ["masked", "permuted", "masked_and_next", "replaced", "denoise"])
def test_every_objective_of_plain_text_is_deterministic_and_shared_by_rows(
    path: Path, objective: str
) -> None:
    make = lambda: data.text(path, Words(WORDS), length=24, batch=6, objective=objective)
    a, b = make()[9], make()[9]
    assert torch.equal(a.tokens, b.tokens)
    shares = [make().shard(rank, 3)[9] for rank in range(3)]
    rows = lambda batch: [r[v].tolist() for r, v in zip(batch.tokens, valid(batch), strict=True)]
    assert [row for share in shares for row in rows(share)] == rows(a)


def valid(batch: data.Batch) -> torch.Tensor:
    return torch.ones_like(batch.tokens, dtype=torch.bool) if batch.valid is None else batch.valid


def test_an_unknown_objective_is_answered_with_the_nearest(path: Path, words: Words) -> None:
    with pytest.raises(InputError, match="did you mean 'masked'"):
        data.text(path, words, objective="maskd")
