"""The fast kernel is the definition: same windows, same numbers, same loss."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.word2vec import definition
from heedful.word2vec.corpus import Corpus
from heedful.word2vec.huffman import huffman
from heedful.word2vec.session import Session
from heedful.word2vec.settings import Settings
from heedful.word2vec.training import Cursor, Job, job_seed, run
from heedful.word2vec.vocabulary import alias_table

COMBINATIONS = [(mode, loss) for mode in ("skipgram", "cbow") for loss in ("negative", "hierarchical")]


def prepared(corpus: list[list[str]], **settings: object) -> tuple[Session, Job]:
    given = {"dim": 20, "window": 4, "min_count": 1, "subsample": 0.05, "epochs": 1, **settings}
    session = Session.new(Corpus(corpus), Settings.from_dict(given))
    return session, Job(session.tables, session.vocabulary, session.settings, session.encoded())


def definition_windows(session: Session, job: Job, number: int) -> list[definition.Window]:
    seed = job_seed(session.settings.seed, 0, number)
    return list(
        definition.windows(
            job.encoded.job(number), job.keep, job.alias, session.tables.paths, session.settings, seed
        )
    )


def define(session: Session, windows: list[definition.Window], rates: list[float]) -> tuple[np.ndarray, ...]:
    """Train copies of the tables by autograd in double precision; returns both and the summed loss."""
    dim = session.settings.dim
    v, u = (
        torch.tensor(t[:, :dim], dtype=torch.float64) for t in (session.tables.input, session.tables.output)
    )
    loss = math.fsum(definition.step(v, u, w, session.settings, rate) for w, rate in zip(windows, rates))
    return v.numpy(), u.numpy(), np.float64(loss)


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
def test_ten_thousand_updates_equal_the_definition(wide_corpus, mode, loss):
    session, job = prepared(wide_corpus, mode=mode, loss=loss, subsample=0.5)
    windows, rates = [], []
    for number in range(len(job.encoded)):
        windows += definition_windows(session, job, number)
        rates += [float(np.float32(job.rate(0, number)))] * (len(windows) - len(rates))
    assert len(windows) >= 10_000
    v, u, expected = define(session, windows, rates)
    sums = [job.run(0, number, job.scratch()) for number in range(len(job.encoded))]
    assert np.abs(session.tables.input[:, :20] - v).max() < 1e-5
    assert np.abs(session.tables.output[:, :20] - u).max() < 1e-5
    assert math.fsum(loss for loss, _, _ in sums) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "cbow", "cbow": "sum"},
        {"dynamic": False, "window": 9},
        {"negatives": 17},
        {"negatives": 1, "dim": 33},
        {"subsample": 0.0, "noise_exponent": 0.0},
    ],
)
def test_other_settings_equal_the_definition_too(corpus, settings):
    session, job = prepared(corpus[:60], **settings)
    windows = definition_windows(session, job, 0)
    v, u, expected = define(session, windows, [float(np.float32(job.rate(0, 0)))] * len(windows))
    loss, examples, _ = job.run(0, 0, job.scratch())
    dim = session.settings.dim
    assert np.abs(session.tables.input[:, :dim] - v).max() < 1e-5
    assert np.abs(session.tables.output[:, :dim] - u).max() < 1e-5
    assert loss == pytest.approx(expected, rel=1e-6)
    assert examples == sum(1 if session.settings.mode == "cbow" else len(w.contexts) for w in windows)
    assert not session.tables.input[:, dim:].any()
    assert not session.tables.output[:, dim:].any()


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
def test_reported_loss_is_the_brute_force_mean(corpus, mode, loss):
    """With a rate of zero nothing moves, so every window can be recomputed from the same tables."""
    session, job = prepared(corpus[:300], mode=mode, loss=loss, rate=0.0)
    session.tables.output[:] = np.random.default_rng(1).normal(size=session.tables.output.shape) * 3
    session.tables.output[:, 20:] = 0
    session.tables.input[:, :20] *= 20
    [*_, last] = run(session.tables, session.vocabulary, session.settings, job.encoded, Cursor())
    tables = (session.tables.input, session.tables.output)
    v, u = (torch.tensor(table[:, :20], dtype=torch.float64) for table in tables)
    windows = definition_windows(session, job, 0)
    total = math.fsum(float(definition.window_loss(v, u, w, session.settings)) for w in windows)
    examples = sum(1 if mode == "cbow" else len(w.contexts) for w in windows)
    assert last.loss == pytest.approx(total / examples, rel=1e-6)


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
def test_loss_is_the_same_number_for_any_number_of_threads(corpus, mode, loss):
    session, job = prepared(corpus * 3, mode=mode, loss=loss, rate=0.0)
    assert len(job.encoded) > 4
    fixed = (session.tables, session.vocabulary, session.settings, job.encoded)
    losses = [[*run(*fixed, Cursor(), threads)][-1].loss for threads in (1, 2, 5)]
    assert losses[0] == losses[1] == losses[2]


def test_examples_do_not_depend_on_threads_and_the_loss_hardly(corpus):
    losses = []
    for threads in (1, 3):
        session, job = prepared(corpus * 3)
        cursor = Cursor()
        [*_] = run(session.tables, session.vocabulary, session.settings, job.encoded, cursor, threads)
        losses.append(cursor.history[0])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_hierarchical_probabilities_sum_to_one():
    counts = np.random.default_rng(0).integers(1, 1000, size=200)
    paths = huffman(counts)
    u = torch.randn(paths.inner, 12, dtype=torch.float64)
    every = definition.probabilities(torch.randn(12, dtype=torch.float64), u, paths)
    assert float(every.sum()) == pytest.approx(1.0, abs=1e-12)
    assert len(every) == 200


def test_huffman_gives_frequent_words_short_paths():
    counts = np.array([100, 50, 20, 10, 5, 1])
    paths = huffman(counts)
    lengths = np.diff(paths.first)
    assert list(lengths) == sorted(lengths)
    assert (counts * lengths).sum() == 100 * 1 + 50 * 2 + 20 * 3 + 10 * 4 + 5 * 5 + 1 * 5


def test_noise_and_subsampling_follow_their_formulas(corpus):
    session, job = prepared(corpus, subsample=0.01)
    noise = session.vocabulary.noise(0.75)
    stream, alias = definition.Stream(3), alias_table(noise)
    drawn = np.bincount([stream.noise(alias) for _ in range(40_000)], minlength=len(noise)) / 40_000
    assert np.abs(drawn - noise).max() < 0.01
    share = session.vocabulary.counts / session.vocabulary.counts.sum()
    formula = np.minimum(1, np.sqrt(0.01 / share) + 0.01 / share)
    assert np.allclose((job.keep.astype(float) + 1) / 2**32, formula, atol=1e-9)
    windows = [w for n in range(len(job.encoded)) for w in definition_windows(session, job, n)]
    kept = np.bincount([w.centre for w in windows], minlength=len(share)) / session.vocabulary.counts
    assert np.abs(kept - formula).max() < 0.08


def test_a_noise_word_is_never_the_centre(corpus):
    session, job = prepared(corpus[:100], negatives=20)
    for window in definition_windows(session, job, 0):
        assert window.centre not in window.outputs[1:]


def test_padding_never_becomes_part_of_a_vector(tmp_path: Path, corpus):
    session, job = prepared(corpus[:100], dim=17)
    job.run(0, 0, job.scratch())
    assert session.tables.width == 32
    assert not session.tables.input[:, 17:].any()
