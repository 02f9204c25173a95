"""What trains the bundled models: a schedule by the clock, pairs of texts, the summariser's prompt."""

from __future__ import annotations

import copy
import itertools
import json
import lzma
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.data.batch import Batch
from heedful.data.batches import Batches, Indices, ShuffledOrder
from heedful.models.base import LM

sys.path.insert(0, str(Path(__file__).parents[1]))  # bundle/ is not installed

from bundle import contexts, everyday_texts, names, prose, sentence_pairs, summaries
from bundle import timed as by_clock
from bundle.modern import untokenized
from bundle.summarising import summariser
from bundle.timed import planned, timed
from bundle.words import split_words

TEXT = ["The old dog slept all day long.", "The cat sat on the warm mat.", "A bird sang in the tall tree."]


class Fixed:
    """Eight rows of tokens."""

    def __len__(self) -> int:
        return 8

    def batch(self, rows: Indices, epochs: Indices) -> Batch:
        ids = torch.arange(10)[None] + torch.from_numpy(rows)[:, None]
        return Batch(ids[:, :-1], labels=ids[:, 1:])


def test_steps_are_planned_from_the_time_left_and_the_pace() -> None:
    assert planned(100, left=10.0, pace=0.1, guess=7) == 201
    assert planned(100, left=-1.0, pace=0.1, guess=7) == 101
    assert planned(3, left=10.0, pace=0.0, guess=500) == 500


def test_the_learning_rate_falls_to_its_end_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(by_clock, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    model = heedful.build("gpt2", vocab=32, dim=16, layers=1, heads=2, context=16, dropout=0.0, seed=0)
    config = heedful.TrainConfig(steps=20, lr=1e-3, schedule="linear", final=0.0, warmup=2)
    batches = Batches(Fixed(), ShuffledOrder(8, 4, 0), "made up")
    rates = [step.lr for step in timed(model, "next_token", batches, config, 300.0)]
    assert len(rates) > 50
    assert rates[len(rates) // 4] > 5e-4
    assert rates[-1] < 5e-5
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_one_step_is_taken_however_late_it_is() -> None:
    model = heedful.build("gpt2", vocab=32, dim=16, layers=1, heads=2, context=16, dropout=0.0, seed=0)
    batches = Batches(Fixed(), ShuffledOrder(8, 4, 0), "made up")
    assert len(list(timed(model, "next_token", batches, heedful.TrainConfig(steps=5), 0.0))) == 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(TEXT * 40), encoding="utf-8")
    special = ("pad", "unk", "cls", "sep", "mask")
    return heedful.train_tokenizer("wordpiece", [str(path)], vocab=1200, special=special)


@pytest.fixture(scope="module")
def told(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> sentence_pairs.Told:
    """Three books; the words of each are its own."""
    path = tmp_path_factory.mktemp("books") / "books.jsonl.xz"
    lines = [json.dumps({"text": "\n".join([sentence] * 30)}) for sentence in TEXT]
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    return sentence_pairs.told_of(sentence_pairs.novels(path), tokenizer)


@pytest.mark.parametrize("short", [0.0, 1.0])
def test_what_does_not_follow_is_of_another_book(
    told: sentence_pairs.Told, tokenizer: Any, short: float
) -> None:
    rows = sentence_pairs.Pairs(told, tokenizer, 40, seed=0, short=short, plain=1.0)
    batch = sentence_pairs.batches(rows, 48)[0]
    assert batch.types is not None
    assert batch.valid is not None
    assert 12 < int(batch.extra["follows"].sum()) < 36
    for tokens, types, valid, follows in zip(
        batch.tokens, batch.types, batch.valid, batch.extra["follows"], strict=True
    ):
        first = tokenizer.decode(tokens[valid & (types == 0)].tolist())
        second = tokenizer.decode(tokens[valid & (types == 1)].tolist())
        named = [
            next(k for k, word in enumerate(("dog", "cat", "bird")) if word in t) for t in (first, second)
        ]
        assert (named[0] == named[1]) == bool(follows)
        assert int(tokens[0]) == tokenizer.cls
        assert int((tokens == tokenizer.sep).sum()) == 2


def test_only_rows_that_are_to_be_masked_are(told: sentence_pairs.Told, tokenizer: Any) -> None:
    rows = sentence_pairs.Pairs(told, tokenizer, 40, seed=0, short=0.0, plain=0.0)
    hidden, plain = (sentence_pairs.batches(r, 48)[0] for r in (rows, replace(rows, plain=1.0)))
    assert hidden.labels is not None
    assert plain.labels is not None
    assert 0.08 < float((hidden.labels >= 0).float().mean()) < 0.2
    assert not (plain.labels >= 0).any()
    truth = hidden.labels >= 0
    assert torch.equal(hidden.tokens[~truth], plain.tokens[~truth])
    assert torch.equal(hidden.labels[truth], plain.tokens[truth])


def test_windows_of_a_text_are_its_tokens_and_those_that_follow() -> None:
    rows = prose.Windows(np.arange(1000, dtype=np.uint16), 8, seed=0)
    batch = rows.batch(np.array([0, len(rows) - 1]), np.array([3, 3]))
    assert batch.labels is not None
    assert torch.equal(batch.labels, batch.tokens + 1)


def test_the_summariser_is_asked_as_the_pipeline_asks(tokenizer: Any) -> None:
    model = heedful.build("gpt2", vocab=len(tokenizer), dim=16, layers=1, heads=2, context=64, seed=0)
    model.tokenizer = copy.copy(tokenizer)
    model.tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}: {{ m.content }}>{% endfor %}"
    task = summariser(model)
    said = task.request.replace("{text}", "Two cats met.")
    asked = task.prompt_template.replace("{text}", "Two cats met.")
    assert asked == model.tokenizer.chat([{"role": "user", "content": said}]) != said


def test_the_best_of_several_summaries_counts() -> None:
    found = summaries.best_rouge([["a b c d", "x y"]], ["x y"])
    assert found["rouge1"] == found["rougeL"] == pytest.approx(100.0)


def test_a_recurrent_translator_is_kept_in_eight_bits_tables_included(tmp_path: Path) -> None:
    model = heedful.build("rnnsearch", vocab=60, dim=16, table_dim=12, seed=0).eval()
    source, target = torch.randint(0, 60, (2, 5)), torch.randint(0, 60, (2, 4))
    with torch.no_grad():
        before = model(source, target)
        small = heedful.quantize(model, "int8", tables=True)
        after = small(source, target)
        assert not any(p.is_floating_point() and p.ndim > 1 for p in small.parameters())
        torch.testing.assert_close(after, before, atol=0.01, rtol=0.1)
        again = heedful.load(heedful.save(small, tmp_path, quantized=True))
        torch.testing.assert_close(again(source, target), after)


def test_a_saved_tokenizer_has_no_needless_white_space(tmp_path: Path, tokenizer: Any) -> None:
    model = heedful.build("bert", vocab=len(tokenizer), dim=16, layers=1, heads=2, head="none", seed=0)
    model.tokenizer = tokenizer
    text = (heedful.save(model, tmp_path) / "tokenizer.json").read_text(encoding="utf-8")
    assert "\n" not in text.strip()
    again = heedful.load(tmp_path)
    assert isinstance(again, LM)
    assert again.tokenizer is not None
    assert again.tokenizer.encode(TEXT[0]) == tokenizer.encode(TEXT[0])


def test_tables_that_no_head_shares_stay_as_they_are_unless_asked_for() -> None:
    model = heedful.quantize(heedful.build("rnnsearch", vocab=60, dim=16, table_dim=12, seed=0), "int8")
    assert [n for n, p in model.named_parameters() if p.is_floating_point() and p.ndim > 1] == [
        "embed.token.weight",
        "target_embed.token.weight",
    ]


def test_everyday_sentences_are_labelled_by_rule_with_other_names() -> None:
    common, rng = {"the", "dogs", "rose", "old", "is"}, random.Random(0)
    assert names.labelled("The dogs is old.", common, rng) == [
        (word, "O") for word in ("The", "dogs", "is", "old", ".")
    ]
    rows = names.labelled("Is Tom in Boston?", common, rng)
    assert rows is not None
    kinds = [label for _, label in rows]
    assert kinds[:2] == ["O", "B-PER"]
    assert "B-LOC" in kinds
    assert names.labelled("The old Xanadu is old.", common, rng) is None  # a capital that nothing explains


def test_labels_of_three_files_are_read_as_one_kind() -> None:
    text = "# text = Ann left\n1\tAnn\tB-PER\t-\t-\n2\tleft\tO\t-\t-\n\nOslo\tB-location\nit\tB-product\n\t\n"
    first, second = names.conll(text)
    assert first == [("Ann", "B-PER"), ("left", "O")]
    assert names.renamed(second) == [("Oslo", "B-LOC"), ("it", "O")]


def test_what_the_models_are_judged_by_is_known_to_what_trains_them() -> None:
    found = everyday_texts()
    assert {"My name is Sarah and I live in London.", "The cat sat on the mat."} <= found


def test_words_of_a_text_are_lower_case_and_without_punctuation() -> None:
    assert split_words('"No," said Anna’s well-known friend; don\'t go to no. 5!') == (
        ["no", "said", "anna", "well-known", "friend", "don't", "go", "to", "no"]
    )


def test_wikitext_is_read_as_it_is_written_elsewhere() -> None:
    line = " The role @-@ playing game ( 2011 ) did n't sell 1 @,@ 000 <unk> . "
    assert untokenized(line) == "The role-playing game (2011) didn't sell 1,000 ."


def test_everyday_questions_have_their_answer_once_in_the_context() -> None:
    found = contexts.questions(300)
    assert len({one.question for one in found}) > 150
    for one in found:
        ((text, start),) = one.answers
        assert one.context[start : start + len(text)] == text
        assert "{" not in one.question + one.context
    assert not {one.context for one in found} & everyday_texts()


def test_sentences_that_stand_alone_are_masked_and_nothing_follows(
    told: sentence_pairs.Told, tokenizer: Any
) -> None:
    rows = sentence_pairs.Pairs(told, tokenizer, 40, seed=0, plain=1.0, lone=told, share=1.0, crowd=2)
    batch = sentence_pairs.batches(rows, 24)[0]
    assert len(batch) == 48  # short rows: more of them
    assert not batch.extra
    assert batch.labels is not None
    assert batch.valid is not None
    assert 0.03 < float((batch.labels >= 0).float().mean()) < 0.25
    assert (batch.tokens[:, 0] == tokenizer.cls).all()
    assert ((batch.tokens == tokenizer.sep).sum(1) == 1).all()
    assert not (batch.labels >= 0)[~batch.valid].any()
