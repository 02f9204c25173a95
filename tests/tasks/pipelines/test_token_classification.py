"""Labels for tokens, and entities made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful import pipeline
from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.examples.tagging import Sentence, encode_words
from heedful.tasks import Truncated
from heedful.tasks.examples import Examples
from heedful.tasks.model_inputs import tokenize
from heedful.tasks.pipelines.token_classification import (
    ScoredToken,
    TokenClassification,
    group_neighbours,
    merge_words,
    same_entity,
    scored_tokens,
    split_sentence,
)
from heedful.weights.loading import with_head
from tests.tasks.conftest import TAGS, Tiny

TEXT = "Ada Lovelace 🐉 lived in London, unbelievably; مرحبا and Paris."
STRATEGIES = ["none", "simple", "first", "average", "max"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_offsets_point_into_the_text_as_it_was_given(tiny: Tiny, strategy: str, family: str) -> None:
    nlp = pipeline("ner", model=tiny("tag", TAGS, family), aggregation_strategy=strategy)
    found = nlp(TEXT, ignore_labels=[])
    assert found
    for row in found:
        assert 0 <= row["start"] < row["end"] <= len(TEXT)
    covered = {i for row in found for i in range(row["start"], row["end"])}
    assert {i for i, letter in enumerate(TEXT) if not letter.isspace()} <= covered


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_an_entity_is_spelt_as_in_the_text(tiny: Tiny, strategy: str, family: str) -> None:
    nlp = pipeline("ner", model=tiny("tag", TAGS, family), aggregation_strategy=strategy, ignore_labels=[])
    for row in nlp(TEXT):
        assert row["word"] == TEXT[row["start"] : row["end"]].strip()


@pytest.mark.parametrize("strategy", STRATEGIES[2:])
def test_an_entity_is_made_of_whole_words(tiny: Tiny, strategy: str) -> None:
    nlp = pipeline("ner", model=tiny("tag", TAGS), aggregation_strategy=strategy, ignore_labels=[])
    text = "Satya Nadella went to Unbelievableville"
    assert len(nlp.tokenizer.encode(text, special=False)) > len(text.split())
    for row in nlp(text):
        assert set(row["word"].split()) <= set(text.split())


@pytest.mark.parametrize("old", [{"grouped_entities": True}, {"aggregation_strategy": "simple"}])
def test_a_model_taught_first_tokens_alone_gives_whole_words(tiny: Tiny, old: dict[str, Any]) -> None:
    text = "Satya Nadella went to Unbelievableville"
    taught = with_head(tiny("mlm"), "tag", TAGS).eval()
    nlp = pipeline("ner", model=taught, ignore_labels=[])
    assert nlp(text, **old) == nlp(text, aggregation_strategy="first")
    assert len(nlp(text, aggregation_strategy="none")) == len(nlp.tokenizer.encode(text, special=False))


def test_a_word_whose_letters_are_taken_apart_begins_where_it_stands(tmp_path: Path) -> None:
    text = "Paris 한국 서울 Rome"
    (tmp_path / "text.txt").write_text(f"{text}\n" * 20)
    tokenizer = heedful.train_tokenizer("wordpiece", tmp_path / "text.txt", 60, lower=True)
    one = tokenize(tokenizer, text)
    assert any(len(name) > 2 and not name.isascii() for name in tokenizer.tokens(one.ids))  # letters apart
    found = scored_tokens(one, torch.zeros(len(one), 1), text, tokenizer)
    assert [token.start for token in found if not token.continues] == [0, 6, 9, 12]


def test_a_token_by_itself_keeps_its_name_in_the_vocabulary(tiny: Tiny) -> None:
    nlp = pipeline("ner", model=tiny("tag", TAGS), ignore_labels=[])
    assert [row["word"] for row in nlp("Unbelievably")] == nlp.tokenizer.tokens(
        nlp.tokenizer.encode("Unbelievably", special=False)
    )


@pytest.mark.parametrize("stride", [0, 1, 10, None])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_long_text_by_windows_equals_one_reading_of_it(
    local: Tiny, strategy: str, stride: int | None
) -> None:
    long = TEXT * 10
    narrow, wide = local("tag", TAGS), local("tag", TAGS, context=512)
    wide.load_state_dict({k: v for k, v in narrow.state_dict().items() if "position" not in k}, strict=False)
    how: dict[str, Any] = {"aggregation_strategy": strategy, "ignore_labels": []}
    expected = pipeline("ner", model=wide, **how)(long)
    found = pipeline("ner", model=narrow, **how)(long, stride=stride)
    assert len(narrow.tokenizer.encode(long)) > 3 * 64
    for a, b in zip(found, expected, strict=True):
        assert a.pop("score") == pytest.approx(b.pop("score"), abs=1e-5)
        assert a == b


def test_every_window_of_a_long_text_is_judged_inside_itself(tiny: Tiny) -> None:
    """Where two windows share tokens, the first half is judged in the earlier one, the rest in the later."""
    nlp = pipeline("ner", model=tiny("tag", TAGS), ignore_labels=[])
    tokenizer, long = nlp.tokenizer, "the cat sat on the mat in London and " * 8
    ids = tokenizer.encode(long, special=False)
    assert 62 < len(ids) < 100
    stride = 20
    with torch.no_grad():
        judged = [nlp.model(torch.tensor([[tokenizer.cls, *part, tokenizer.sep]]))[0, 1:-1].softmax(-1)
                  for part in (ids[:62], ids[62 - stride :])]  # fmt: skip
    expected = torch.cat((judged[0][: 62 - stride // 2], judged[1][stride - stride // 2 :]))
    scores = [row["score"] for row in nlp(long, stride=stride)]
    assert scores == pytest.approx(expected.amax(-1).tolist(), abs=1e-5)


def test_truncation_reads_the_beginning_and_says_so(tiny: Tiny) -> None:
    nlp = pipeline("ner", model=tiny("tag", TAGS), ignore_labels=[])
    long = TEXT * 6
    with pytest.warns(Truncated, match="tokens of input 0"):
        found = nlp(long, truncation=True)
    assert len(found) == 62
    with pytest.warns(Truncated):
        assert len(nlp(long.split(), is_split_into_words=True, truncation=True)[0]) == 62


def test_every_word_is_scored_wherever_it_stands(tiny: Tiny) -> None:
    """The words behind the first window count, and one that the tokenizer drops is an O."""
    nlp = pipeline("ner", model=tiny("tag", TAGS))
    assert isinstance(nlp, TokenClassification)
    words = (*["the", "cat", "sat", "on", "the", "mat", "in", "London"], "\u200b") * 12
    examples = Examples([Sentence(words, ("O",) * len(words), "line 1")], ["line 1"])
    [rows] = nlp.answer_examples(examples, batch=4, length=16, truncate=True)
    right = sum(row["entity"] == "O" for row in rows if not row["word"].startswith("##"))
    scores = nlp.compare(examples, [rows])
    assert len({row["start"] for row in rows}) > 90
    assert scores["accuracy"] == pytest.approx((right + 12) / len(words))


def test_predict_and_eval_read_the_windows_of_training(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that learnt from 16 tokens at a time is used as it is scored, however long the text is."""
    model = tiny("tag", TAGS)
    learnt = {"role": "words", "column": "words"}
    model.hf_config["task_specification"] = {
        "task": "token-classification", "command": "tag", "inputs": [learnt], "max_length": 16,
    }  # fmt: skip
    lengths: list[list[int]] = []
    forward = TokenClassification.forward

    def record(self: Any, texts: Any, *arguments: Any, **options: Any) -> Any:
        lengths.append([len(text) for text in texts])
        return forward(self, texts, *arguments, **options)

    monkeypatch.setattr(TokenClassification, "forward", record)
    words = ("the cat sat on the mat in London and " * 8).split()
    file = tmp_path / "long.conll"
    file.write_text("".join(f"{word} O\n" for word in words))
    heedful.evaluate(model, file)
    heedful.predict(model, [" ".join(words)])
    heedful.predict(model, [{"words": words}])
    pipeline("ner", model)(" ".join(words))
    assert max(lengths[0]) == 16
    assert all(read == lengths[0] for read in lengths)
    heedful.predict(model, [" ".join(words)], length=32)
    assert max(lengths[-1]) == 32


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_model_that_learnt_words_finds_words_with_punctuation_inside(tiny: Tiny, family: str) -> None:
    model = tiny("tag", TAGS, family)
    model.hf_config["label_all_tokens"] = False
    nlp = pipeline("ner", model=model, aggregation_strategy="first", ignore_labels=[])
    assert isinstance(nlp, TokenClassification)
    text = "U.S.-based M. O'Brien's AL-AIN (in London), 3.5 and don't."
    one = tokenize(nlp.tokenizer, text)
    scores = torch.zeros(len(one), len(TAGS))
    words = merge_words(scored_tokens(one, scores, text, nlp.tokenizer, True), lambda p: p[0])
    spelt = [text[word.start : word.end].strip() for word in words]
    assert [word for word in spelt if word] == [  # a space may be a token
        "U.S.-based", "M.", "O'Brien", "'s", "AL-AIN", "(", "in", "London", ")", ",", "3.5", "and", "don",
        "'t", ".",
    ]  # fmt: skip
    spans = {(row["start"], row["end"]) for row in nlp(text)}
    assert not {end for _, end in spans} & {1, 2, 3, 5}  # nothing ends inside "U.S.-based"


def test_every_word_is_learnt_wherever_it_stands(tiny: Tiny) -> None:
    nlp = pipeline("ner", model=tiny("tag", TAGS))
    assert isinstance(nlp, TokenClassification)
    words = (
        tuple(
            [
                "the",
                "unbelievably",
                "\u200b",
                "old",
                "cat",
                "sat",
                "on",
                "the",
                "mat",
                "in",
                "Paris",
                "and",
                "London",
            ]
        )
        * 9
    )
    tags = tuple(TAGS[i % len(TAGS)] for i in range(len(words)))
    examples = Examples([Sentence(words, tags, "line 1")], ["line 1"])
    batches = nlp.batches(examples, BatchOptions(16, 4, 0, truncate=True))
    learnt = [int((batch.labels >= 0).sum()) for batch in batches.once()]
    assert sum(learnt) == len(words) - 9  # those of which the tokenizer makes nothing
    pieces = split_sentence(examples.items[0], nlp.tokenizer, 14)
    assert sum((piece.words for piece in pieces), ()) == words
    assert sum((piece.tags for piece in pieces), ()) == tags
    assert max(len(encode_words(piece.words, nlp.tokenizer)[0]) for piece in pieces) <= 14


def test_truncation_by_name_is_read_as_elsewhere(tiny: Tiny) -> None:
    nlp, long = pipeline("ner", model=tiny("tag", TAGS), ignore_labels=[]), "the cat sat on the mat " * 30
    assert nlp(long, truncation="do_not_truncate") == nlp(long)
    with pytest.raises(InputError, match="truncation='begin' is unknown"):
        nlp(long, truncation="begin")


def test_nothing_is_found_in_nothing(tiny: Tiny) -> None:
    nlp = pipeline("ner", model=tiny("tag", TAGS), ignore_labels=[])
    for strategy in STRATEGIES:
        assert nlp(["", "  "], aggregation_strategy=strategy) == [[], []]


def test_words_that_are_given_keep_their_places(tiny: Tiny) -> None:
    nlp = pipeline("ner", model=tiny("tag", TAGS), ignore_labels=[], aggregation_strategy="first")
    given = ["Ada", "unbelievably", "مرحبا"]
    [found] = nlp(given, is_split_into_words=True, delimiter="__")
    text = "__".join(given)
    assert text[found[0]["start"] :].startswith("Ada")
    assert found[-1]["end"] == len(text)
    with pytest.raises(InputError, match="is_split_into_words=True takes lists of words; got 'Ada'"):
        nlp("Ada", is_split_into_words=True)


def test_a_strategy_that_does_not_exist_is_answered_with_the_nearest(tiny: Tiny) -> None:
    with pytest.raises(InputError, match="aggregation_strategy='frist' is unknown; did you mean 'first'"):
        pipeline("ner", model=tiny("tag", TAGS))(TEXT, aggregation_strategy="frist")


def test_the_old_name_for_joining_still_joins(tiny: Tiny) -> None:
    nlp = pipeline("ner", model=tiny("tag", TAGS))
    assert nlp(TEXT, grouped_entities=True) == nlp(TEXT, aggregation_strategy="simple")


def test_old_names_and_nothing_mean_what_they_meant(tiny: Tiny) -> None:
    nlp, text = pipeline("ner", model=tiny("tag", TAGS)), "Ada Lovelace was unbelievably dangerous"
    first = nlp(text, aggregation_strategy="first")
    assert nlp(text, grouped_entities=True, ignore_subwords=True) == first
    assert nlp(text, grouped_entities=True, ignore_subwords=False) == nlp(text, aggregation_strategy="simple")
    assert nlp(text, ignore_labels=None) == nlp(text)
    given = text.split()
    assert nlp(given, is_split_into_words=True, delimiter=None) == nlp(given, is_split_into_words=True)
    with pytest.raises(InputError, match="takes lists of words; got 3"):
        nlp([3], is_split_into_words=True)


def row(entity: str, word: str) -> dict[str, Any]:
    return {"entity": entity, "word": word}


def test_a_beginning_starts_a_new_entity_and_an_inside_goes_on() -> None:
    tags = ["B-PER", "I-PER", "B-PER", "O", "I-LOC", "B-LOC", "LOC", "O", "O"]
    groups = group_neighbours([row(tag, str(i)) for i, tag in enumerate(tags)], same_entity)
    assert [[r["word"] for r in group] for group in groups] == [
        ["0", "1"], ["2"], ["3"], ["4"], ["5", "6"], ["7", "8"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "expected"), [("first", [0.6, 0.4]), ("average", [0.35, 0.65]), ("max", [0.1, 0.9])]
)
def test_a_word_of_two_pieces_is_scored_as_the_strategy_says(strategy: str, expected: list[float]) -> None:
    from heedful.tasks.pipelines.token_classification import WORD_STRATEGIES

    pieces = [
        ScoredToken("lon", torch.tensor([0.6, 0.4]), 0, 3, 1),
        ScoredToken("##don", torch.tensor([0.1, 0.9]), 3, 6, 2, continues=True),
    ]
    [word] = merge_words(pieces, WORD_STRATEGIES[strategy])
    assert word.scores.tolist() == pytest.approx(expected)
    assert (word.start, word.end) == (0, 6)
