"""The batched path, on the processor: its step is the definition's gradient, its vectors are as good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.core.errors import ConfigError
from heedful.word2vec import Word2Vec, definition, gpu
from heedful.word2vec.corpus import Corpus
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.trainer import Trainer

SMALL = {"dim": 12, "window": 3, "min_count": 1, "subsample": 0.0, "epochs": 1}
COMBINATIONS = [(mode, loss) for mode in ("skipgram", "cbow") for loss in ("negative", "hierarchical")]


@pytest.fixture
def lay_out(tmp_path: Path) -> Callable[..., tuple[Trainer, gpu.WindowTensors]]:
    def make(corpus: list[list[str]], **settings: object) -> tuple[Trainer, gpu.WindowTensors]:
        trainer = Trainer.create(Corpus(corpus), Settings.from_dict(SMALL | settings))
        output = trainer.tables.output
        output[:] = np.random.default_rng(0).normal(size=output.shape) * 0.3
        encoded = trainer.encode_text(tmp_path)
        sampler = gpu.WindowSampler(trainer.counts, trainer.settings, trainer.tables, torch.device("cpu"))
        ids = np.concatenate([encoded.job(j) for j in range(len(encoded))])
        return trainer, sampler.draw_windows(ids, 7)

    return make


def as_definition(windows: gpu.WindowTensors) -> list[definition.Window]:
    return [
        definition.Window(-1, c[p > 0].tolist(), o[s != 0].tolist(), s[s != 0].tolist())
        for c, p, o, s in zip(*windows)
    ]


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
@pytest.mark.parametrize("batch", [1, 7])
def test_a_step_is_the_gradient_of_the_definition(lay_out, corpus, mode, loss, batch):
    trainer, windows = lay_out(corpus[:20], mode=mode, loss=loss)
    v, u = (torch.tensor(t, dtype=torch.float64) for t in (trainer.tables.input, trainer.tables.output))
    tables = gpu.DeviceTables(trainer.tables, trainer.settings, torch.device("cpu"))
    gpu.BatchRunner(tables, windows, len(windows.contexts), batch).train(windows, (0.01, 0.01))
    expected = 0.0
    plain = as_definition(windows)
    for start in range(0, len(plain), batch):
        frozen = v.clone(), u.clone()
        for window in plain[start : start + batch]:
            moved = frozen[0].clone(), frozen[1].clone()
            expected += definition.gradient_step(*moved, window, trainer.settings, 0.01)
            v += moved[0] - frozen[0]
            u += moved[1] - frozen[1]
    assert torch.allclose(tables.v.double(), v, atol=1e-5)
    assert torch.allclose(tables.u.double(), u, atol=1e-5)
    assert tables.loss.item() == pytest.approx(expected, rel=1e-5)


def test_contexts_stay_in_their_sentence_and_reach(lay_out, corpus):
    _, windows = lay_out(corpus[:50], dynamic=False)
    plain = [w for s in corpus[:50] for w in s]
    assert len(windows.contexts) == len(plain)
    assert windows.present.sum(1).max() == 6
    first = windows.present[0]
    assert first.tolist() == [0, 0, 0, 1, 1, 1]
    assert windows.present[11].tolist() == [1, 1, 1, 0, 0, 0]


def test_a_row_shared_by_a_whole_batch_does_not_overshoot(lay_out, corpus):
    trainer, windows = lay_out(corpus, loss="hierarchical")
    tables = gpu.DeviceTables(trainer.tables, trainer.settings, torch.device("cpu"))
    runner = gpu.BatchRunner(tables, windows, len(windows.contexts), 4096)
    for _ in range(3):
        runner.train(windows, (0.5, 0.5))
    assert tables.u.isfinite().all()
    assert tables.u.norm(dim=1).max() < 100


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
def test_words_of_a_topic_become_neighbours(tmp_path, corpus, mode, loss):
    settings = Settings.from_dict(SMALL | {"mode": mode, "loss": loss, "epochs": 6})
    trainer = Trainer.create(Corpus(corpus), settings)
    encoded = trainer.encode_text(tmp_path)
    backend = gpu.GpuTrainer(trainer.tables, trainer.counts, settings, encoded, torch.device("cpu"), batch=64)
    [*_] = trainer.train_encoded(backend)
    vectors = Word2Vec.from_trainer(trainer)
    topic = {"queen", "crown", "throne", "palace", "prince"}
    assert len(topic & {word for word, _ in vectors.neighbours("king", 5)}) >= 4
    assert vectors.history[-1] < vectors.history[0]


@pytest.mark.parametrize("mode", ["skipgram", "cbow"])
def test_a_small_vocabulary_does_not_diverge_in_batches_of_the_usual_size(tmp_path, corpus, mode):
    settings = Settings.from_dict(SMALL | {"mode": mode, "epochs": 2})
    trainer = Trainer.create(Corpus(corpus * 3), settings)
    text = trainer.encode_text(tmp_path)
    [*_] = trainer.train_encoded(
        gpu.GpuTrainer(trainer.tables, trainer.counts, settings, text, torch.device("cpu"))
    )
    assert trainer.state.history[1] < trainer.state.history[0]


def test_a_device_that_is_not_there_is_named(corpus):
    with pytest.raises(ConfigError, match="is unknown"):
        Word2Vec.train(corpus, **SMALL, device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="torch finds no such GPU"):
            Word2Vec.train(corpus, **SMALL, device="cuda")
