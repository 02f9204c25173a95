"""The fast kernel is the definition: same windows, same numbers, same loss."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.word2vec import definition
from heedful.word2vec.corpus import Corpus, job_seed
from heedful.word2vec.definition import RandomStream
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.trainer import CpuTrainer, Trainer, TrainingState
from heedful.word2vec.word_counts import alias_table, build_tree

COMBINATIONS = [(mode, loss) for mode in ("skipgram", "cbow") for loss in ("negative", "hierarchical")]


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[..., tuple[Trainer, CpuTrainer]]:
    def make(corpus: list[list[str]], **settings: object) -> tuple[Trainer, CpuTrainer]:
        chosen = {"dim": 20, "window": 4, "min_count": 1, "subsample": 0.05, "epochs": 1, **settings}
        trainer = Trainer.create(Corpus(corpus), Settings.from_dict(chosen))
        encoded = trainer.encode_text(tmp_path)
        return trainer, CpuTrainer(trainer.tables, trainer.counts, trainer.settings, encoded)

    return make


def definition_windows(trainer: Trainer, cpu: CpuTrainer, job: int) -> list[definition.Window]:
    seed = job_seed(trainer.settings.seed, 0, job)
    ids, tree = cpu.text.job(job), trainer.tables.tree
    return list(definition.draw_windows(ids, cpu.keep, cpu.noise, tree, trainer.settings, seed))


def rate_of(cpu: CpuTrainer, job: int) -> float:
    return float(np.float32(cpu.settings.rate_at(cpu.text.progress(0, job, 1))))


def as_double(trainer: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
    tables = (trainer.tables.input, trainer.tables.output)
    v, u = (torch.tensor(table, dtype=torch.float64) for table in tables)
    return v, u


def train_by_definition(
    trainer: Trainer, windows: list[definition.Window], rates: list[float]
) -> tuple[np.ndarray, np.ndarray, float]:
    """Train copies of the tables by autograd in double precision; returns both and the summed loss."""
    v, u = as_double(trainer)
    steps = (
        definition.gradient_step(v, u, w, trainer.settings, rate)
        for w, rate in zip(windows, rates, strict=True)
    )
    return v.numpy(), u.numpy(), math.fsum(steps)


@pytest.mark.parametrize(
    ("mode", "loss"),
    [c if n == 0 else pytest.param(*c, marks=pytest.mark.slow) for n, c in enumerate(COMBINATIONS)],
)
def test_ten_thousand_updates_equal_the_definition(prepare, wide_corpus, mode, loss):
    trainer, cpu = prepare(wide_corpus, mode=mode, loss=loss, subsample=0.5)
    windows, rates = [], []
    for job in range(len(cpu.text)):
        windows += definition_windows(trainer, cpu, job)
        rates += [rate_of(cpu, job)] * (len(windows) - len(rates))
    assert len(windows) >= 10_000
    v, u, expected = train_by_definition(trainer, windows, rates)
    sums = [cpu.train_job(0, job) for job in range(len(cpu.text))]
    assert np.abs(trainer.tables.input - v).max() < 1e-5
    assert np.abs(trainer.tables.output - u).max() < 1e-5
    assert math.fsum(loss for loss, _ in sums) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "cbow", "cbow": "sum"},
        {"dynamic": False, "window": 9},
        {"negatives": 17},
        {"negatives": 1, "dim": 33},
        {"negatives": 150, "rate": 1e-4},
        {"negatives": 2, "dim": 1},
        {"subsample": 0.0, "noise_exponent": 0.0},
    ],
)
def test_other_settings_equal_the_definition_too(prepare, corpus, settings):
    trainer, cpu = prepare(corpus[:60], **settings)
    windows = definition_windows(trainer, cpu, 0)
    v, u, expected = train_by_definition(trainer, windows, [rate_of(cpu, 0)] * len(windows))
    loss, examples = cpu.train_job(0, 0)
    assert np.abs(trainer.tables.input - v).max() < 1e-5
    assert np.abs(trainer.tables.output - u).max() < 1e-5
    assert loss == pytest.approx(expected, rel=1e-6)
    assert examples == sum(1 if trainer.settings.mode == "cbow" else len(w.contexts) for w in windows)


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
def test_reported_loss_is_the_brute_force_mean(prepare, corpus, mode, loss):
    """With a rate of zero nothing moves, so every window can be recomputed from the same tables."""
    trainer, cpu = prepare(corpus[:300], mode=mode, loss=loss, rate=0.0)
    trainer.tables.output[:] = np.random.default_rng(1).normal(size=trainer.tables.output.shape) * 3
    trainer.tables.input *= 20
    [*_, last] = trainer.train_encoded(cpu)
    v, u = as_double(trainer)
    windows = definition_windows(trainer, cpu, 0)
    total = math.fsum(float(definition.window_loss(v, u, w, trainer.settings)) for w in windows)
    examples = sum(1 if mode == "cbow" else len(w.contexts) for w in windows)
    assert last.loss == pytest.approx(total / examples, rel=1e-6)


def test_scores_far_from_zero_have_the_loss_of_the_definition(prepare, corpus):
    trainer, cpu = prepare(corpus[:20], rate=0.0)
    trainer.tables.output[:] = np.random.default_rng(1).normal(size=trainer.tables.output.shape) * 500
    loss, _ = cpu.train_job(0, 0)
    v, u = as_double(trainer)
    windows = definition_windows(trainer, cpu, 0)
    assert loss == pytest.approx(
        math.fsum(float(definition.window_loss(v, u, w, trainer.settings)) for w in windows), rel=1e-6
    )


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
def test_loss_is_the_same_number_for_any_number_of_threads(prepare, corpus, mode, loss):
    trainer, cpu = prepare(corpus * 3, mode=mode, loss=loss, rate=0.0)
    assert len(cpu.text) > 4
    losses = []
    for threads in (1, 2, 5):
        trainer.state, cpu.threads = TrainingState(), threads
        losses.append([*trainer.train_encoded(cpu)][-1].loss)
    assert losses[0] == losses[1] == losses[2]


def test_examples_do_not_depend_on_threads_and_the_loss_hardly(prepare, corpus):
    losses = []
    for threads in (1, 3):
        trainer, cpu = prepare(corpus * 3)
        cpu.threads = threads
        [*_] = trainer.train_encoded(cpu)
        losses.append(trainer.state.history[0])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_hierarchical_probabilities_sum_to_one():
    counts = np.random.default_rng(0).integers(1, 1000, size=200)
    tree = build_tree(counts)
    u = torch.randn(tree.inner_nodes, 12, dtype=torch.float64)
    probabilities = definition.word_probabilities(torch.randn(12, dtype=torch.float64), u, tree)
    assert float(probabilities.sum()) == pytest.approx(1.0, abs=1e-12)
    assert len(probabilities) == 200


def test_huffman_gives_frequent_words_short_paths():
    counts = np.array([100, 50, 20, 10, 5, 1])
    lengths = np.diff(build_tree(counts).first)
    assert list(lengths) == sorted(lengths)
    assert (counts * lengths).sum() == 100 * 1 + 50 * 2 + 20 * 3 + 10 * 4 + 5 * 5 + 1 * 5


def test_noise_and_subsampling_follow_their_formulas(prepare, corpus):
    trainer, cpu = prepare(corpus, subsample=0.01)
    noise = trainer.counts.noise_distribution(0.75)
    stream, alias = RandomStream(3), alias_table(noise)
    drawn = np.bincount([stream.draw_noise(alias) for _ in range(40_000)], minlength=len(noise)) / 40_000
    assert np.abs(drawn - noise).max() < 0.01
    share = trainer.counts.counts / trainer.counts.counts.sum()
    formula = np.minimum(1, np.sqrt(0.01 / share) + 0.01 / share)
    assert np.allclose((cpu.keep.astype(float) + 1) / 2**32, formula, atol=1e-9)
    windows = [w for job in range(len(cpu.text)) for w in definition_windows(trainer, cpu, job)]
    kept = np.bincount([w.centre for w in windows], minlength=len(share)) / trainer.counts.counts
    assert np.abs(kept - formula).max() < 0.08


def test_a_noise_word_is_never_the_centre(prepare, corpus):
    trainer, cpu = prepare(corpus[:100], negatives=20)
    for window in definition_windows(trainer, cpu, 0):
        assert window.centre not in window.outputs[1:]


def test_a_kernel_without_a_folder_for_its_machine_code_is_compiled_all_the_same():
    from heedful.word2vec.kernels import compile_kernel

    names: dict[str, Callable[[float], float]] = {}
    exec("def double(x): return 2 * x", names)  # from no file, so that there is no place beside it
    assert compile_kernel(names["double"])(4.0) == 8.0


def test_numba_and_torch_are_imported_by_training_and_by_nothing_else(tmp_path):
    path = str(tmp_path / "v.bin")
    code = (
        "import sys\nfrom heedful.word2vec import Word2Vec\n"
        "loaded = lambda: [name for name in ('numba', 'torch') if name in sys.modules]\n"
        f"vectors = Word2Vec.from_table([[1.0, 2.0], [3.0, 4.0]])\nvectors.save({path!r})\n"
        f"Word2Vec.load({path!r}).neighbours('0')\nprint(loaded())\n"
        "Word2Vec.train([['a', 'b', 'c'] * 5] * 9, dim=4, min_count=1, epochs=1)\nprint(loaded())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "['numba']"]
