"""What the comparisons stand on: fits, sizes, tasks, measurements that are taken once."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from heedful.classroom.experiments.gradient_flow import fit_exponential, fit_line, fit_power, mean_interval
from heedful.classroom.experiments.loss_surface import (
    FORMS,
    ScalePoint,
    efficient_points,
    extend_line,
    fit_surface,
    prediction_errors,
)
from heedful.classroom.experiments.measurement_store import MeasurementStore
from heedful.classroom.experiments.race_report import accuracy_text
from heedful.classroom.experiments.recall_tasks import SYMBOLS, TASKS, score_task, task_batches
from heedful.classroom.experiments.systems import SYSTEMS, build_system, find_systems, size_system
from heedful.classroom.experiments.translation_data import (
    english_number,
    german_number,
    number_pairs,
    write_sample_text,
)
from heedful.core.errors import ConfigError, InputError, NotFound
from heedful.data.batch import IGNORE


def test_a_power_law_without_noise_gives_its_exponent() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    fit = fit_power(x, [3 * v**1.7 for v in x])
    assert fit.slope == pytest.approx(1.7)
    assert math.exp(fit.intercept) == pytest.approx(3)
    assert fit.high - fit.low < 1e-6


def test_the_interval_of_a_slope_holds_the_true_one_in_about_95_of_100_trials() -> None:
    rng, x, hits = np.random.default_rng(0), np.arange(6.0), 0
    for _ in range(400):
        fit = fit_line(x, 0.5 * x + rng.normal(size=6))
        hits += fit.low <= 0.5 <= fit.high
    assert 360 <= hits <= 396


def test_an_exponential_gives_its_rate_and_too_few_points_an_error() -> None:
    assert fit_exponential(range(5), np.exp(-0.3 * np.arange(5))).slope == pytest.approx(-0.3)
    with pytest.raises(InputError, match="3 points"):
        fit_line([1, 2], [1, 2])
    with pytest.raises(InputError, match="not finite"):
        fit_line([1, 2, 3], [1, math.inf, 2])


def test_the_mean_of_one_value_has_no_interval() -> None:
    assert mean_interval([2.0])[0] == 2.0
    assert math.isnan(mean_interval([2.0])[1])
    _, _, high = mean_interval([0.0, 1.0] * 20)  # 39 degrees of freedom: more than the 1.96 of a normal one
    assert (high - 0.5) / (statistics.stdev([0.0, 1.0] * 20) / 40**0.5) == pytest.approx(2.0227, abs=1e-4)
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (mean, high - mean) == (2.0, pytest.approx(4.302653 / math.sqrt(3)))
    assert low < mean


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_comes_within_two_per_cent_of_the_budget(name: str) -> None:
    competitor = size_system(SYSTEMS[name], 60_000, vocab=100, layers=2, context=64)
    assert competitor.parameters == pytest.approx(60_000, rel=0.02)
    model = build_system(competitor, vocab=100)
    assert sum(p.numel() for p in model.parameters()) == competitor.parameters


def test_a_budget_too_small_for_the_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="at its smallest"):
        size_system(SYSTEMS["gpt2"], 1000, vocab=5000, layers=2, context=64)
    with pytest.raises(NotFound, match="no system"):
        find_systems(["lstn"])


def test_the_path_grows_with_the_distance_in_a_recurrence_alone() -> None:
    assert SYSTEMS["lstm"].path_length(100, layers=2) == 102
    assert SYSTEMS["gpt2"].path_length(100, layers=2) == 2


@pytest.mark.parametrize("task", TASKS)
def test_every_answer_of_a_task_stood_where_its_distance_says(task: str) -> None:
    whole, back = TASKS[task](np.random.default_rng(0), 200, 30)
    rows, at = np.nonzero(back)
    assert len(set(rows.tolist())) == 200
    assert (whole[rows, at] == whole[rows, at - back[rows, at]]).all()
    assert set(back[rows, at].tolist()) >= set(range(5, 20)) - (
        {*range(5, 20, 2)} if task == "recall" else set()
    )


@pytest.mark.parametrize("task", TASKS)
def test_only_answers_are_learnt_and_a_batch_follows_from_its_number(task: str) -> None:
    batches = task_batches(task, length=24, batch=8, seed=0)
    one, again, other = batches[3], batches[3], batches[4]
    assert one.tokens.equal(again.tokens)
    assert not one.tokens.equal(other.tokens)
    assert one.labels is not None
    assert 8 <= int((one.labels != IGNORE).sum()) <= 8 * SYMBOLS


def test_a_row_too_short_for_a_task_is_refused() -> None:
    with pytest.raises(InputError, match="length"):
        task_batches("recall", length=4, batch=8, seed=0)
    with pytest.raises(InputError, match="unknown task"):
        task_batches("juggle", length=24, batch=8, seed=0)


def test_an_untrained_model_scores_about_chance() -> None:
    competitor = size_system(SYSTEMS["gru"], 10_000, vocab=20, layers=1, context=24)
    found = score_task(build_system(competitor, vocab=20), "copy", length=24, rows=400)
    assert sum(found["right"]) / sum(found["count"]) < 3 / SYMBOLS


def surface(parameters: float, tokens: float) -> float:
    return 1.2 + 40 / parameters**0.42 + 300 / tokens**0.4


POINTS = [
    ScalePoint(n, d, surface(n, d)) for n in (4000, 9000, 20000, 50000) for d in (1 << 17, 1 << 18, 1 << 20)
]


def test_the_chinchilla_form_finds_the_surface_it_was_drawn_from() -> None:
    fit = fit_surface(POINTS, "chinchilla")
    assert fit.predict(2e5, 4e6) == pytest.approx(surface(2e5, 4e6), rel=2e-3)
    values = fit.intervals()
    assert values["α"][0] == pytest.approx(0.42, abs=0.02)
    assert values["β"][0] == pytest.approx(0.40, abs=0.02)
    low, high = fit.predict_interval(2e5, 4e6)
    assert low <= fit.predict(2e5, 4e6) <= high


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_fit_better_than_a_line_foretells(form: str) -> None:
    n, d = 2e5, 1 << 22
    truth = surface(n, d)
    fit = fit_surface(POINTS, form)
    line = extend_line(POINTS, ScalePoint(int(n), d, 0).compute)
    assert abs(fit.predict(n, d) / truth - 1) < abs(line / truth - 1)


def test_the_form_is_chosen_by_what_it_foretells_of_the_dearest_runs() -> None:
    errors = prediction_errors(POINTS)
    assert errors["chinchilla"] < 1e-3 < errors["kaplan"]  # the points were drawn from the first
    few = prediction_errors(POINTS[:6])  # too few to leave any out: the errors of the fits
    assert few["chinchilla"] == pytest.approx(fit_surface(POINTS[:6], "chinchilla", draws=0).error)


def test_the_best_size_for_a_budget_is_where_the_loss_is_lowest() -> None:
    fit = fit_surface(POINTS, "chinchilla")
    best = fit.optimal_parameters(1e12)
    loss = lambda n: fit.predict(n, 1e12 / 6 / n)
    assert loss(best) <= min(loss(best * 1.3), loss(best / 1.3))
    low, high = fit.optimal_interval(1e12)
    assert low <= best <= high


def test_too_few_runs_and_an_unknown_form_are_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        fit_surface(POINTS[:3])
    with pytest.raises(InputError, match="form="):
        fit_surface(POINTS, "straight")


def test_efficient_points_are_those_that_nothing_cheaper_equals() -> None:
    points = [ScalePoint(1, 10, 3.0), ScalePoint(2, 10, 3.5), ScalePoint(3, 10, 2.0)]
    assert [p.loss for p in efficient_points(points)] == [3.0, 2.0]


def test_a_measurement_is_taken_once_for_the_same_settings(tmp_path: Path) -> None:
    store, taken = MeasurementStore(tmp_path), list[int]()
    measure = lambda: taken.append(1) or {"x": (1, 2)}
    assert store.take("a-b", {"n": 1}, measure) == {"x": [1, 2]}
    assert store.take("a-b", {"n": 1}, measure) == {"x": [1, 2]}
    assert len(taken) == 1
    store.take("a-b", {"n": 2}, measure)
    assert len(taken) == 2
    (tmp_path / "a-b.json").write_text('{"settings": {')  # a process was killed while it wrote
    store.take("a-b", {"n": 2}, measure)
    assert len(taken) == 3
    assert store.values("a") == {"b": {"x": [1, 2]}}


def test_numbers_are_written_as_they_are_said() -> None:
    assert english_number(721) == "seven hundred and twenty one"
    assert english_number(40_007) == "forty thousand and seven"
    assert german_number(721) == "sieben hundert ein und zwanzig"
    assert german_number(101_001) == "ein hundert ein tausend eins"
    assert number_pairs(5, seed=1) == number_pairs(5, seed=1)


def test_the_text_that_comes_along_is_prose(tmp_path: Path) -> None:
    text = write_sample_text(tmp_path / "text.txt").read_text(encoding="utf-8")
    assert len(text) > 200_000
    assert text.count(" the ") > 1000


def test_the_interval_of_an_accuracy_is_no_narrower_than_that_of_its_answers() -> None:
    assert accuracy_text([0.5], 100) == "0.50 [0.40, 0.60]"
    assert accuracy_text([0.5, 0.5], 100) == "0.50 [0.40, 0.60]"  # two seeds that happen to agree
    assert accuracy_text([0.4, 0.6], 10_000) == "0.50 [0.00, 1.00]"
