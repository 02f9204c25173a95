"""Scores against values worked out by hand, by scipy, or printed in the papers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

import heedful
from heedful.core.errors import InputError
from heedful.models.base import LM
from heedful.tasks.metrics.generated import (
    answer_f1,
    answer_scores,
    bleu,
    bleu_interval,
    edit_distance,
    exact_match,
    rouge,
    rouge_l,
    rouge_n,
    transcriptions,
)
from heedful.tasks.metrics.perplexity import Perplexity, perplexity
from heedful.tasks.metrics.scores import (
    accuracy,
    balanced_scores,
    bootstrap_interval,
    correlation_interval,
    correlation_scores,
    entities,
    entity_f1,
    entity_f1_interval,
    exact_interval,
    f1,
    interval,
    macro_f1,
    matthews,
    multi_label_scores,
    ndcg,
    ordinal_scores,
    pearson,
    quadratic_kappa,
    ranks,
    reciprocal_rank,
    resampled_scores,
    spearman,
    t_quantile,
    tag_scores,
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


@pytest.mark.parametrize(("correlation", "count"), [(0.5, 4), (-0.3, 40), (1.0, 10), (-1.0, 10)])
def test_the_interval_of_a_correlation_is_its_formula(correlation: float, count: int) -> None:
    r = math.copysign(min(abs(correlation), 1 - 1 / count), correlation)
    half = 1.96 * math.sqrt((1 + r**2 / 2) / (count - 3))
    ends = math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)
    low, high = correlation_interval(correlation, count)
    assert (low, high) == pytest.approx((min(ends[0], correlation), max(ends[1], correlation)))


def test_scores_of_equal_numbers_are_zero() -> None:
    found = correlation_scores([1.0, 2.0, 3.0, 4.0, 5.0], [2.0] * 5)
    assert (found["spearman"], found["pearson"], found["rows"]) == (0.0, 0.0, 5)
    assert found["spearman_95"] == list(correlation_interval(0.0, 5))
    assert quadratic_kappa([2, 2], [2, 2]) == 0.0


def test_an_interval_is_wider_if_rows_count_as_fewer_trials() -> None:
    values = np.array([0.0, 1.0, 1.0, 1.0] * 10)
    mean = lambda sample: float(values[sample].mean())
    low, high = resampled_scores(mean, 40, None)
    wider = 2 * t_quantile(9) / 1.96
    assert resampled_scores(mean, 40, 10) == pytest.approx(
        [0.75 - (0.75 - low) * wider, 0.75 + (high - 0.75) * wider]
    )
    assert 0.75 - low == pytest.approx(1.96 * math.sqrt(0.75 * 0.25 / 40), abs=0.02)


def test_intervals_that_are_widened_stay_within_the_range_of_their_score() -> None:
    truth, guess = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 2, 0, 1, 0, 1, 0, 2]
    assert balanced_scores(truth, guess, 1.0)["macro_f1_95"] == [0.0, 1.0]
    assert ordinal_scores(truth, guess, 1.0)["kappa_95"] == [-1.0, 1.0]
    sets = [[{"abc"[label]} for label in side] for side in (truth, guess)]
    assert multi_label_scores(*sets, "abc", 1.0)["micro_f1_95"] == [0.0, 1.0]
    low, high = balanced_scores(truth, guess)["macro_f1_95"]
    assert 0 < low < macro_f1(truth, guess) < high < 1


def test_a_few_rows_without_a_mistake_leave_doubt() -> None:
    labels = ["a", "b", "c"] * 6
    places = [0, 1, 2] * 6
    intervals = [
        balanced_scores(labels, labels)["macro_f1_95"],
        ordinal_scores(places, places)["kappa_95"],
        multi_label_scores([{label} for label in labels], [{label} for label in labels], "abc")[
            "micro_f1_95"
        ],
    ]
    assert intervals == [[pytest.approx(interval(1.0, 18)[0]), 1.0]] * 3
    assert matthews(labels, labels) == 1.0
    assert matthews([0, 0, 1], [0, 0, 1]) == 1.0


def test_a_label_counts_if_it_is_expected_or_predicted() -> None:
    found = multi_label_scores([{"a"}, {"a"}, {"b"}], [{"a"}, {"a"}, {"c"}], "abcd")
    assert found["macro_f1"] == pytest.approx(1 / 3)  # of a, b and c
    assert found["micro_f1"] == pytest.approx(2 / 3)
    assert found["exact_match"] == pytest.approx(2 / 3)
    assert multi_label_scores([set()], [set()], "ab")["macro_f1"] == 0.0


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
        ("PER O LOC", [(0, 1, "PER"), (2, 3, "LOC")]),  # types alone: every word is an entity
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


def test_a_type_that_is_only_predicted_or_only_missed_scores_zero() -> None:
    found = entity_f1([["B-PER", "O", "O"]], [["O", "B-LOC", "O"]])
    assert found == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "f1_LOC": 0.0, "f1_PER": 0.0}
    assert entity_f1([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_an_entity_counts_as_one_trial_of_the_interval_if_it_is_expected_and_found() -> None:
    truth, guess = [["B-PER", "B-LOC", "O"]], [["B-PER", "O", "O"]]
    assert entity_f1_interval(truth, guess) == pytest.approx(interval(2 / 3, 1.5))


def test_tags_are_scored_by_entity_and_by_word() -> None:
    found = tag_scores([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "O", "O", "B-LOC"]])
    assert list(found) == [
        "f1_95", "f1", "precision", "recall", "f1_LOC", "f1_PER", "accuracy", "sentences",
    ]  # fmt: skip
    assert (found["f1"], found["f1_LOC"], found["accuracy"], found["sentences"]) == (0.5, 1.0, 0.75, 1)


def test_answers_are_compared_without_articles_and_punctuation() -> None:
    assert exact_match(["The Eiffel Tower"], "eiffel tower!") == 1
    assert answer_f1(["the quick brown fox"], "a brown dog") == pytest.approx(0.4)
    assert exact_match([], "") == answer_f1([], "") == 1  # no answer where there is none
    assert exact_match([], "Paris") == answer_f1([], "Paris") == 0
    found = answer_scores([["a cat", "dog"], ["x"]], ["dog", "y"])
    assert (found["exact_match"], found["f1"]) == (50, 50)


def test_intervals_of_answers_are_in_per_cent() -> None:
    found = answer_scores([["cat"], ["a big dog"]], ["cat", "dog"])
    per_cent = lambda share: pytest.approx([100 * end for end in interval(share, 2)])
    assert found == {
        "exact_match_95": per_cent(0.5), "exact_match": 50.0, "f1_95": per_cent(5 / 6),
        "f1": pytest.approx(100 * 5 / 6), "questions": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "edits"),
    [
        ("kitten", "sitting", 3),
        ("", "abc", 3),
        ("abc", "", 3),
        ("ab", "ba", 2),
        ("abc", "abc", 0),
        ("", "", 0),
    ],
)
def test_the_distance_of_two_texts_is_their_fewest_edits(first: str, second: str, edits: int) -> None:
    assert edit_distance(first, second) == edits


def test_characters_written_where_there_are_none_are_all_wrong() -> None:
    assert transcriptions([""], ["ab"])["character_error"] == 200
    assert transcriptions(["abcd", ""], ["abcx", ""])["character_error"] == 25


def test_texts_and_their_references_must_be_as_many_and_at_least_one() -> None:
    for score in (answer_scores, rouge, transcriptions):
        with refused(InputError, "1 texts are expected", "2 were given"):
            score(["a"], ["a", "b"])
        with refused(InputError, "0 texts are expected", "0 were given"):
            score([], [])


def test_rouge_of_the_papers_example() -> None:
    # Lin 2004 §3: "police killed the gunman" against "police kill the gunman" and "the gunman kill police"
    truth = ["police", "killed", "the", "gunman"]
    assert rouge_l(truth, ["police", "kill", "the", "gunman"]) == 0.75
    assert rouge_l(truth, ["the", "gunman", "kill", "police"]) == 0.5
    assert rouge_n(truth, ["the", "gunman", "kill", "police"], 2) == pytest.approx(1 / 3)
    assert rouge(["Police killed the gunman."], ["police killed the gunman"])["rouge2"] == 100


def test_rouge_reads_the_words_of_every_language() -> None:
    assert rouge(["Die Größe überrascht."], ["Die Größe überrascht"])["rouge2"] == 100
    assert rouge(["Ähnlich"], ["Ölig"])["rouge1"] == 0
    assert rouge(["猫坐在垫子上。"], ["猫在垫子上"])["rouge1"] == pytest.approx(100 * 2 * 5 / 11)
    assert rouge(["snake_case it's 3.5"], ["Snake case, it s 3 5"])["rougeL"] == 100  # as rouge_score does


def test_each_rouge_counts_its_own_units() -> None:
    found = rouge(["a b c d", "x"], ["a c b d e", "y x"])
    # words shared 4 of 4 and 5, 1 of 1 and 2; pairs 0 of 3 and 4, 0 of 0 and 1; in order 3, and 1
    means = {"rouge1": (8 / 9 + 2 / 3) / 2, "rouge2": 0.0, "rougeL": (6 / 9 + 2 / 3) / 2}
    assert found == {name: pytest.approx(100 * mean) for name, mean in means.items()}
    assert rouge(["a b c"], ["a b d"])["rouge2"] == 50
    assert rouge_l(["a"], ["a"]) == 1


@pytest.mark.parametrize("score", [ndcg, reciprocal_rank])
def test_ten_places_of_a_ranking_count(score: Callable[..., float]) -> None:
    expected = {ndcg: 1 / math.log2(11), reciprocal_rank: 1 / 10}
    assert score([0] * 9 + [1]) == pytest.approx(expected[score])
    assert score([0] * 10 + [1]) == 0
    assert score([0, 1, 1], depth=1) == 0


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


@pytest.fixture(scope="module")
def reader() -> LM:
    model = heedful.build("gpt2", vocab=16, dim=8, layers=1, heads=2, context=8, dropout=0.0, seed=0).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8.0)  # so that what stands before a token matters
    return model


@pytest.mark.parametrize(
    ("count", "options", "length", "stride"),
    [
        (30, {}, 8, 4),
        (30, {"batch": 2}, 8, 4),
        (30, {"length": 7}, 7, 3),
        (30, {"length": 5, "stride": 2}, 5, 2),
        (30, {"length": 5, "stride": 9}, 5, 5),
        (30, {"length": 1}, 1, 1),
        (6, {}, 5, 2),
        (2, {}, 1, 1),
    ],
    ids=str,
)
@torch.no_grad()
def test_each_token_is_predicted_from_the_first_window_that_reaches_it(
    reader: LM, count: int, options: dict[str, int], length: int, stride: int
) -> None:
    ids = torch.randint(16, (count,), generator=torch.Generator().manual_seed(1))
    nats = 0.0
    for t in range(1, count):
        start = min(math.ceil(max(t - length, 0) / stride) * stride, count - 1 - length)
        nats -= float(reader(ids[None, start:t])[0, -1].log_softmax(-1)[ids[t]])
    assert perplexity(reader, ids.tolist(), **options).nats == pytest.approx(nats, rel=1e-5)


def test_a_model_without_a_context_reads_512_tokens_at_once() -> None:
    model = heedful.build("lstm", vocab=16, dim=8, layers=1, dropout=0.0, seed=0).eval()
    ids = torch.randint(16, (600,), generator=torch.Generator().manual_seed(1)).tolist()
    assert perplexity(model, ids) == perplexity(model, ids, length=512, stride=256)
    assert perplexity(model, ids) != perplexity(model, ids, length=511, stride=256)
    assert perplexity(model, ids) != perplexity(model, ids, length=513, stride=256)


def test_a_single_token_has_no_perplexity(reader: LM) -> None:
    with pytest.raises(InputError, match="at least two tokens"):
        perplexity(reader, [3])


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
