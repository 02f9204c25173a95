"""Answers as spans, against a search over all of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tokenizers
import torch

from heedful.core.errors import InputError
from heedful.models.base import Model
from heedful.tasks import Truncated, pipeline
from heedful.text.tokenizer import Tokenizer
from tests.properties.tiny import tiny

NAMES = "where is the cat dog house sat on in a red blue paris berlin lives who ? . ##s ##ing é"
WORDS = NAMES.split()
CONTEXT = "The cat lives in Paris.  A dog sat on the red house in Berlin."


def wordpieces() -> Tokenizer:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({w: i for i, w in enumerate(names)}, unk_token="[UNK]")
    )
    backend.normalizer = tokenizers.normalizers.BertNormalizer()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return Tokenizer(backend, {r: f"[{r.upper()}]" for r in ("pad", "unk", "cls", "sep", "mask")})


@functools.cache
def reader() -> Model:
    model = tiny("bert", vocab=64, head="span", std=0.4)
    model.tokenizer = wordpieces()
    return model


def qa() -> Any:
    return pipeline("question-answering", reader())


@torch.no_grad()
def all_spans(model: Model, question: str, context: str, longest: int) -> list[tuple[float, int, int]]:
    """Every span that may be an answer, with its probability, by two loops."""
    tokenizer = wordpieces()
    q, c = (tokenizer.encode(t, special=False) for t in (question, context))
    ids = [2, *q, 3, *c, 3]
    types = [0] * (len(q) + 2) + [1] * (len(c) + 1)
    logits = model(torch.tensor([ids]), types=torch.tensor([types]))[0]
    lead = len(q) + 2
    kept = [0, *range(lead, lead + len(c))]
    start, end = logits[kept].softmax(0).unbind(1)
    places = tokenizer.offsets(context, special=False)
    return sorted(
        (
            (float(start[i + 1] * end[j + 1]), places[i][0], places[j][1])
            for i in range(len(c))
            for j in range(i, min(i + longest, len(c)))
        ),
        reverse=True,
    )


@pytest.mark.parametrize("longest", [1, 4, 15])
def test_the_best_spans_are_those_of_a_search_over_all(longest: int) -> None:
    question = "where is the cat?"
    found = qa()(question, CONTEXT, top_k=6, max_answer_len=longest, align_to_words=False)
    truth = all_spans(reader(), question, CONTEXT, longest)[:6]
    assert [row["score"] for row in found] == pytest.approx([score for score, _, _ in truth], rel=1e-4)
    assert [(row["start"], row["end"]) for row in found] == [(a, b) for _, a, b in truth]


def test_an_answer_is_the_text_between_its_characters() -> None:
    context = "  Ein Käfer 🐞 lives in\tPARIS . "
    for row in qa()(question="who lives?", context=context, top_k=5):
        assert row["answer"] == context[row["start"] : row["end"]] == row["answer"].strip()


@torch.no_grad()
def word_by_word(**wanted: tuple[float, float]) -> Model:
    """A model whose scores depend on each token alone: attention writes nothing, positions are nothing.

    `wanted` are the scores of being first and last for some tokens; the others get −8.
    """
    model = tiny("bert", vocab=64, head="span", layers=1, context=512)
    model.tokenizer = wordpieces()
    for name, parameter in model.named_parameters():
        if "position" in name or ".attn.o." in name:
            parameter.zero_()
    names = [*wordpieces().tokens(range(5 + len(WORDS)))]
    ids = torch.arange(len(names))[:, None]
    vectors = model.encode(ids, types=(ids > 2).long())[:, 0]  # type: ignore[operator]
    target = torch.tensor([wanted.get(name.strip("[]"), (-8.0, -8.0)) for name in names])
    head: Any = model.head
    head.span.weight.copy_(torch.linalg.lstsq(vectors, target).solution.T)
    head.span.bias.zero_()
    return model


def test_windows_find_the_answer_that_one_window_finds() -> None:
    model = word_by_word(CLS=(2.0, 2.0), dog=(12.0, -8.0), berlin=(-8.0, 12.0))
    ask = pipeline("question-answering", model)
    context = "The house is red. " * 12 + "A dog lives in Berlin. " + "The house is blue. " * 12
    whole = ask("where is the dog?", context)
    assert whole["answer"] == "dog lives in Berlin"
    for length, stride in ((24, 4), (24, 9), (40, 8), (300, 0)):
        found = ask("where is the dog?", context, max_seq_len=length, doc_stride=stride)
        assert (found["start"], found["end"]) == (whole["start"], whole["end"])
        assert found["score"] == pytest.approx(whole["score"], abs=1e-3)


def test_answers_behind_the_first_window_are_found_where_they_stand() -> None:
    ask = qa()
    context = "The house is red. " * 30 + "A dog lives in Berlin."
    found = ask("where is the dog?", context, max_seq_len=20, doc_stride=6, top_k=400)
    assert max(row["end"] for row in found) == len(context)
    places = [(row["start"], row["end"]) for row in found]
    assert len(set(places)) == len(places)


def test_whole_words_are_answered_unless_pieces_are_wanted() -> None:
    context = "catsing"
    whole = qa()("who?", context)
    assert whole["answer"] == "catsing"
    pieces = qa()("who?", context, align_to_words=False, top_k=6, max_answer_len=1)
    assert {row["answer"] for row in pieces} == {"cat", "s", "ing"}


def test_no_answer_is_one_if_it_may_be() -> None:
    question = "where is the cat?"
    rows = qa()(question, CONTEXT, top_k=500, handle_impossible_answer=True)
    nothing = [row for row in rows if row["answer"] == ""]
    assert [(row["start"], row["end"]) for row in nothing] == [(0, 0)]
    assert 0 < nothing[0]["score"] < 1
    assert all(row["answer"] for row in qa()(question, CONTEXT, top_k=500))


def test_every_form_of_question_gives_the_same_answer() -> None:
    ask, q, c = qa(), "who lives in paris?", CONTEXT
    one = ask(question=q, context=c)
    assert set(one) == {"score", "start", "end", "answer"}
    assert ask(q, c) == ask({"question": q, "context": c}) == one
    row = {"question": q, "context": c}
    assert ask([row] * 2) == ask(row, row) == ask(data=[row] * 2) == ask(X=[row] * 2) == [one, one]
    assert ask([row]) == ask(data=row) == ask(question=[q], context=c) == one
    assert ask(q, context=c) == ask(c, question=q) == one
    assert ask([q, q], [c, c]) == [one, one]
    assert ask(question=[q, q], context=c) == ask(question=q, context=[c, c]) == [one, one]
    assert list(ask({"question": q, "context": c} for _ in range(2))) == [one, one]
    assert ask(question=q, context=c, top_k=2)[0] == one


def test_a_batch_answers_as_each_alone() -> None:
    ask = qa()
    rows = [{"question": "who?", "context": CONTEXT[: 10 + 7 * i]} for i in range(6)]
    for together, row in zip(ask(rows, batch_size=4), rows, strict=True):
        alone = ask(row)
        assert (together["start"], together["end"]) == (alone["start"], alone["end"])
        assert together["score"] == pytest.approx(alone["score"], rel=1e-4)


def test_a_question_that_is_too_long_is_cut_and_that_is_said() -> None:
    with pytest.warns(Truncated, match="6 of 10 tokens of the question"):
        cut = qa()(question="the cat " * 5, context=CONTEXT, max_question_len=4)
    assert cut == qa()(question="the cat the cat", context=CONTEXT)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: qa()(question="who?"), "context= is missing"),
        (lambda: qa()(question="", context="a"), "question must be a text"),
        (lambda: qa()(question="who?", context=" "), "context must be a text"),
        (lambda: qa()({"question": "who?"}), "context is missing"),
        (lambda: qa()(["who?"]), "a question is"),
        (
            lambda: qa()(question={"question": "who?"}, context="a"),
            "question= must be a text.* got {'question'",
        ),
        (lambda: qa()({"question": "who?"}, "a"), "question= must be a text"),
        (lambda: qa()(question="who?", context=3), "context= must be a text, .* got 3"),
        (lambda: qa()(question=["a", "b"], context=["c"]), "2 questions and 1 contexts"),
        (lambda: qa()("who?", CONTEXT, top_k=0), "top_k=0"),
        (lambda: qa()("who?", CONTEXT, max_answer_len=0), "max_answer_len=0"),
        (lambda: qa()("who?", CONTEXT, max_question_len=0), "max_question_len=0"),
        (lambda: qa()("who?", CONTEXT, max_seq_len=0), "max_seq_len=0"),
        (lambda: qa()("who?", CONTEXT, CONTEXT), "takes a question and a context; got 3"),
        (lambda: qa()("who?", "a dog \ud800"), r"half a character \('.*dog .ud800'\)"),
        (lambda: qa()("who?", CONTEXT * 9, max_seq_len=16, doc_stride=12), "stride=12"),
        (lambda: qa()("who?", CONTEXT, max_seq_len=10**6), "max_seq_len=1000000"),
        (lambda: qa()("who?", CONTEXT, max_seq_len=4), "a window of 4 tokens has no room for the text"),
        (lambda: pipeline("question-answering", tiny("bert")), "needs a model that marks"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_line(ask: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        ask()
    assert "\n" not in str(caught.value)
