"""Probabilities of texts against sums of log_softmax taken by hand."""

from __future__ import annotations

import math

import pytest
import torch

from heedful.core.errors import InputError
from heedful.models.base import Model
from heedful.tasks import likelihood as score
from heedful.tasks.likelihood import Continuations, infill, log_probability, rank, score_continuations
from tests.data.toy import Words
from tests.decode.toy import letters, speller
from tests.properties.tiny import DECODERS, SEQ2SEQS, tiny


def masked() -> Model:
    model = tiny("bert", vocab=128)
    model.tokenizer = Words(["the", "cat", "sat", "dog"])
    return model


def translator() -> Model:
    model = tiny("transformer", vocab=260)
    model.tokenizer = letters()
    return model


@torch.no_grad()
def by_hand(model: Model, start: list[int], ending: list[int]) -> list[float]:
    """One pass over everything, and the logarithm of every softmax."""
    whole = torch.tensor([[*start, *ending]])
    logs = model(whole).log_softmax(-1)[0]
    return [float(logs[len(start) + t - 1, token]) for t, token in enumerate(ending)]


def test_a_text_costs_the_sum_of_its_tokens_given_those_before() -> None:
    model = speller()
    found = log_probability(model, "hello")
    expected = by_hand(model, [model.tokenizer.eos], model.tokenizer.encode("hello"))
    assert found.logprobs == pytest.approx(expected, abs=1e-4)
    assert found.total == pytest.approx(sum(expected), abs=1e-4)
    assert found.perplexity == pytest.approx(math.exp(-sum(expected) / 5), rel=1e-4)


@pytest.mark.parametrize("family", DECODERS)
def test_endings_that_share_a_beginning_cost_what_they_cost_alone(family: str) -> None:
    model = tiny(family)
    groups = [Continuations([5, 6, 7, 8], [[9], [10, 11, 12], [13, 14]]), Continuations([20, 21], [[22, 23]])]
    expected = [[by_hand(model, list(g.prefix), list(e)) for e in g.endings] for g in groups]
    for found, truth in zip(score_continuations(model, groups), expected, strict=True):
        for one, logs in zip(found, truth, strict=True):
            assert one.logprobs == pytest.approx(logs, abs=2e-3)


@pytest.mark.parametrize("family", SEQ2SEQS)
def test_a_target_costs_the_sum_of_its_tokens_given_the_source(family: str) -> None:
    model = tiny(family)
    groups = [Continuations([5, 6, 7], [[9, 10], [11]]), Continuations([8, 9, 10, 11, 12], [[13, 14, 15]])]
    for group, found in zip(groups, score_continuations(model, groups), strict=True):
        for ending, one in zip(group.endings, found, strict=True):
            read = torch.tensor([[model.start_token, *ending[:-1]]])
            with torch.no_grad():
                logs = model(torch.tensor([group.prefix]), read).log_softmax(-1)[0]
            expected = [float(logs[t, token]) for t, token in enumerate(ending)]
            assert one.logprobs == pytest.approx(expected, abs=2e-3)


def test_batches_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = speller()
    texts = ["a", "bc", "a much longer text", "d e"]
    together = [s.total for s in log_probability(model, texts)]
    monkeypatch.setattr(score, "MAX_BATCH_TOKENS", 1)
    alone = [s.total for s in log_probability(model, texts)]
    assert together == pytest.approx(alone, abs=1e-4)


def test_a_masked_model_hides_every_token_once() -> None:
    model = masked()
    ids = model.tokenizer.encode("the cat sat")
    expected = []
    for at in range(1, len(ids) - 1):
        hidden = [*ids[:at], model.tokenizer.mask, *ids[at + 1 :]]
        with torch.no_grad():
            expected.append(float(model(torch.tensor([hidden])).log_softmax(-1)[0, at, ids[at]]))
    assert log_probability(model, "the cat sat").logprobs == pytest.approx(expected, abs=1e-4)


def test_candidates_are_ranked_by_what_they_add_to_the_prompt() -> None:
    model = speller()
    rows = rank(model, "ab", ["c", "de"], by="total")
    spell = model.tokenizer.encode
    expected = {c: sum(by_hand(model, spell("ab"), spell(c))) for c in ("c", "de")}
    assert {row["text"]: row["score"] for row in rows} == pytest.approx(expected, abs=1e-4)
    assert rows[0]["score"] >= rows[1]["score"]
    assert sum(row["probability"] for row in rows) == pytest.approx(1)


def test_candidates_may_come_one_after_the_other() -> None:
    model = speller()
    assert rank(model, "a", (c for c in "bc")) == rank(model, "a", ["b", "c"])
    assert infill(model, "a___", (c for c in "bc")) == infill(model, "a___", ["b", "c"])


def test_by_mean_length_does_not_count() -> None:
    rows = rank(speller(), "ab", ["c", "ccccccc"], by="mean")
    assert all(row["score"] == pytest.approx(row["total"] / len(row["text"])) for row in rows)


def test_what_follows_the_blank_counts() -> None:
    model = speller()
    rows = infill(model, "x ___ y", ["a", "b"])
    spell = model.tokenizer.encode
    expected = {c: sum(by_hand(model, spell("x "), spell(f"{c} y"))) for c in "ab"}
    assert {row["text"]: row["total"] for row in rows} == pytest.approx(expected, abs=1e-4)
    assert rows[0]["sequence"] == f"x {rows[0]['text']} y"


def test_a_masked_model_fills_a_blank_by_the_whole_text() -> None:
    model = masked()
    rows = infill(model, "the ___ sat", ["cat", "dog"])
    assert {r["text"]: r["total"] for r in rows} == pytest.approx(
        {c: log_probability(model, f"the {c} sat").total for c in ("cat", "dog")}, abs=1e-4
    )


def test_an_encoder_decoder_ranks_targets_of_a_source() -> None:
    model = translator()
    rows = rank(model, "ab", ["c", "d"])
    scored = log_probability(model, "c", source="ab")
    assert next(r for r in rows if r["text"] == "c")["total"] == pytest.approx(scored.total, abs=1e-4)
    assert scored.ids[-1] == model.tokenizer.eos


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: log_probability(speller(), ""), "no token"),
        (lambda: log_probability(speller(), "a", source="b"), "encoder-decoders"),
        (lambda: log_probability(translator(), "a"), "source="),
        (lambda: log_probability(speller(), "a" * 500), "context"),
        (lambda: rank(speller(), "a", []), "list of texts"),
        (lambda: rank(speller(), "a", "b"), "list of texts"),
        (lambda: rank(speller(), "a", ["b"], by="sum"), "one of total, mean"),  # type: ignore[arg-type]
        (lambda: rank(speller(), "a", ["b", 3]), "candidates must be a list of texts"),  # type: ignore[list-item]
        (lambda: rank(speller(), 3, ["b"]), "the prompt must be a text; got 3"),  # type: ignore[arg-type]
        (lambda: log_probability(speller(), 3), "text must be a list of texts; got 3"),  # type: ignore[arg-type]
        (lambda: infill(speller(), 3, ["b"]), "0 blanks"),  # type: ignore[arg-type]
        (lambda: infill(speller(), "no blank", ["b"]), "0 blanks"),
        (lambda: infill(speller(), "___ and ___", ["b"]), "2 blanks"),
        (lambda: infill(translator(), "a ___", ["b"]), "no token for a blank"),
        (lambda: log_probability(tiny("llama"), "a"), "no tokenizer"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_said_in_a_line(ask: object, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        ask()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
