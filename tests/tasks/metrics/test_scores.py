"""Scores against values worked out by hand, by scipy, or printed in the papers."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

import heedful
from heedful.core.errors import InputError
from heedful.tasks.metrics.generated import (
    answer_f1,
    answers,
    bleu,
    bleu_interval,
    exact_match,
    rouge,
    rouge_l,
    rouge_n,
)
from heedful.tasks.metrics.perplexity import Perplexity, perplexity
from heedful.tasks.metrics.scores import (
    accuracy,
    bootstrap_interval,
    correlation_interval,
    entities,
    entity_f1,
    entity_f1_interval,
    exact_interval,
    f1,
    interval,
    macro_f1,
    matthews,
    pearson,
    ranks,
    spearman,
    t_quantile,
)
from tests.refusal import refused


def test_accuracy_and_f1_of_a_small_table() -> None:
    truth, guess = [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0, 0]
    assert accuracy(truth, guess) == 0.75
    assert f1(truth, guess) == {0: pytest.approx(0.8), 1: pytest.approx(2 / 3)}
    assert macro_f1(truth, guess) == pytest.approx((0.8 + 2 / 3) / 2)


def test_matthews_is_one_for_the_truth_and_zero_for_a_constant() -> None:
    truth = [1, 1, 1, 0, 0]
    assert matthews(truth, truth) == pytest.approx(1)
    assert matthews(truth, [1] * 5) == 0
    assert matthews(truth, [1 - t for t in truth]) == pytest.approx(-1)
    # TP 6, TN 3, FP 1, FN 2: (6·3 − 1·2) / √(7·8·4·5)
    table = [1] * 8 + [0] * 4, [1] * 6 + [0] * 2 + [1] + [0] * 3
    assert matthews(*table) == pytest.approx(16 / math.sqrt(7 * 8 * 4 * 5))


def test_equal_values_share_their_rank() -> None:
    assert ranks([10, 20, 20, 5]) == [2, 3.5, 3.5, 1]


def test_correlations_equal_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    x, y = [1.0, 2.5, 2.5, 4.0, 7.0, 0.5], [2.0, 2.0, 3.5, 3.0, 9.0, 1.0]
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)


def test_a_perfect_score_of_few_sentences_leaves_doubt() -> None:
    perfect = [["B-PER", "O"], ["O", "B-LOC"]]
    low, high = entity_f1_interval(perfect, perfect)
    assert (high, low < 0.4) == (1.0, True)
    assert entity_f1_interval([["O"]], [["O"]]) == (0.0, 1.0)


def test_sentences_that_differ_widen_the_interval_of_f1() -> None:
    truth, guess = [["B-PER"] * 8] * 16, [["B-PER"] * 8, ["O"] * 8] * 8
    clustered, even = entity_f1_interval(truth, guess), interval(2 / 3, 96)
    assert clustered[0] < even[0]
    assert clustered[1] > even[1]


def test_a_bootstrap_of_a_mean_is_as_wide_as_its_standard_error() -> None:
    values = np.array([0.0, 1.0] * 50)
    low, high = bootstrap_interval(lambda sample: float(values[sample].mean()), len(values))
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05), abs=0.02)


def test_a_correlation_of_few_pairs_is_hardly_known() -> None:
    assert correlation_interval(1.0, 3) == (-1.0, 1.0)
    low, high = correlation_interval(1.0, 5)
    assert (low < 0, high) == (True, 1.0)
    low, high = correlation_interval(0.8, 1000)
    assert 0.77 < low < 0.8 < high < 0.83


def test_a_small_sample_has_a_wide_interval() -> None:
    low, high = interval(0.5, 10)
    assert (low, high) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-PER I-PER O", [(1, 3, "PER")]),
        ("B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER")]),
        ("I-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")]),  # IOB1: an entity may begin with I
        ("I-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")]),
        ("B-ORG I-ORG E-ORG S-LOC", [(0, 3, "ORG"), (3, 4, "LOC")]),
        ("O O", []),
    ],
)
def test_entities_of_every_notation(tags: str, found: list[tuple[int, int, str]]) -> None:
    assert entities(tags.split()) == found


def test_an_entity_counts_only_whole() -> None:
    truth = [["B-PER", "I-PER", "O", "B-LOC"]]
    guess = [["B-PER", "O", "O", "B-LOC"]]
    assert entity_f1(truth, guess) == {
        "precision": 0.5,
        "recall": 0.5,
        "f1": 0.5,
        "f1_LOC": 1.0,
        "f1_PER": 0.0,
    }


def test_answers_are_compared_without_articles_and_punctuation() -> None:
    assert exact_match(["The Eiffel Tower"], "eiffel tower!") == 1
    assert answer_f1(["the quick brown fox"], "a brown dog") == pytest.approx(0.4)
    assert exact_match([], "") == answer_f1([], "") == 1  # no answer where there is none
    assert exact_match([], "Paris") == answer_f1([], "Paris") == 0
    assert answers([["a cat", "dog"], ["x"]], ["dog", "y"]) == {"exact_match": 50, "f1": 50}


def test_rouge_of_the_papers_example() -> None:
    # Lin 2004 §3: "police killed the gunman" against "police kill the gunman" and "the gunman kill police"
    truth = ["police", "killed", "the", "gunman"]
    assert rouge_l(truth, ["police", "kill", "the", "gunman"]) == 0.75
    assert rouge_l(truth, ["the", "gunman", "kill", "police"]) == 0.5
    assert rouge_n(truth, ["the", "gunman", "kill", "police"], 2) == pytest.approx(1 / 3)
    assert rouge(["Police killed the gunman."], ["police killed the gunman"])["rouge2"] == 100


def test_the_interval_of_bleu_is_about_that_of_sacrebleu_and_narrows_with_more_texts() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    rng = random.Random(0)
    words = list("abcdefghijklmno")
    truths = [" ".join(rng.choices(words, k=rng.randint(6, 14))) for _ in range(200)]
    guesses = [" ".join(w if rng.random() < 0.8 else rng.choice(words) for w in t.split()) for t in truths]
    low, high = bleu_interval(truths, guesses)
    theirs = sacrebleu.metrics.BLEU().corpus_score(guesses, [truths], n_bootstrap=1000)
    assert low < bleu(truths, guesses)["bleu"] < high
    assert high - low == pytest.approx(2 * theirs._ci, rel=0.15)
    few = bleu_interval(truths[:20], guesses[:20])
    assert few[1] - few[0] > 1.5 * (high - low)


def test_the_interval_of_bleu_counts_texts_that_are_too_short() -> None:
    pytest.importorskip("sacrebleu")
    truths, guesses = ["the cat sat on the mat today"] * 3, ["the cat sat on the mat"] * 3
    expected = bleu(truths, guesses)["bleu"]
    assert expected < 90  # every n-gram is right: only the brevity penalty lowers it
    assert bleu_interval(truths, guesses, samples=5) == pytest.approx((expected, expected))


def test_bleu_says_how_it_was_counted() -> None:
    pytest.importorskip("sacrebleu")
    found = bleu(["the cat sat on the mat today"], ["the cat sat on the mat"])
    assert found["bleu"] == pytest.approx(
        100 * math.exp(1 - 7 / 6), abs=1e-2
    )  # all n-grams right, but too short
    assert "tok:13a" in found["signature"]


def test_perplexity_of_a_model_that_knows_nothing_is_the_vocabulary() -> None:
    model = heedful.build("gpt2", vocab=16, dim=8, layers=1, heads=2, context=8, dropout=0.0)
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    found = perplexity(model, list(range(16)) * 3)
    assert found.tokens == 47
    assert found.perplexity == pytest.approx(16, rel=1e-5)
    assert found.per(48) == pytest.approx(47 * 4 / 48, rel=1e-5)


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_every_token_is_predicted_once_whatever_the_stride(stride: int) -> None:
    model = heedful.build("lstm", vocab=16, dim=8, layers=1, dropout=0.0, seed=0).eval()
    ids = torch.randint(16, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    found = perplexity(model, ids, length=29)
    assert found.tokens == 29
    window = perplexity(model, ids, length=8, stride=stride)
    assert window.tokens == 29
    one = torch.tensor([ids])
    whole = torch.nn.functional.cross_entropy(model(one[:, :-1])[0], one[0, 1:])
    assert found.loss == pytest.approx(float(whole.detach()), rel=1e-5)
    assert window.loss == pytest.approx(found.loss, rel=0.1)


def test_bad_input_says_what_is_missing() -> None:
    with refused(InputError, "3 answers", "2 were given"):
        accuracy([1, 2, 3], [1, 2])
    with pytest.raises(InputError, match="from left to right"):
        perplexity(heedful.build("bert", vocab=16, dim=8, layers=1, heads=2, context=8), [1, 2, 3])
    assert Perplexity(1, 1e6).perplexity == math.inf


def test_the_exact_interval_is_that_of_korn_and_graubard() -> None:
    """Values by scipy: t.ppf(0.975, 9) and beta.ppf of 10·(1.96/t)² trials, 7 of 10 right."""
    assert t_quantile(9) == pytest.approx(2.262157, abs=1e-6)
    assert t_quantile(1e6) == pytest.approx(1.96, abs=1e-4)
    assert exact_interval(0.7, 10) == pytest.approx((0.2927840, 0.9536287), abs=1e-6)
    assert exact_interval(1.0, 10)[1] == 1.0
    assert exact_interval(0.0, 10)[0] == 0.0


@pytest.mark.parametrize("trials", [1.6, 4.0, 19.2, 120.0])
def test_dependent_predictions_have_a_wider_interval_than_as_many_others(trials: float) -> None:
    for share in (0.5, 0.9):
        low, high = exact_interval(share, trials)
        assert 0 <= low <= share <= high <= 1
        assert high - low > interval(share, trials)[1] - max(0.0, interval(share, trials)[0])
