"""The batched path, on the processor: its step is the definition's gradient, its vectors are as good."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful.errors import ConfigError
from heedful.word2vec import Word2Vec, definition, gpu
from heedful.word2vec.corpus import Corpus
from heedful.word2vec.session import Session
from heedful.word2vec.settings import Settings

SMALL = {"dim": 12, "window": 3, "min_count": 1, "subsample": 0.0, "epochs": 1}
COMBINATIONS = [(mode, loss) for mode in ("skipgram", "cbow") for loss in ("negative", "hierarchical")]


def laid_out(corpus: list[list[str]], **settings: object) -> tuple[Session, gpu.Windows]:
    session = Session.new(Corpus(corpus), Settings.from_dict(SMALL | settings))
    output = session.tables.output[:, :12]
    output[:] = np.random.default_rng(0).normal(size=output.shape) * 0.3
    encoded = session.encoded()
    sampler = gpu.Sampler(session.vocabulary, session.settings, session.tables, torch.device("cpu"))
    return session, sampler.windows(np.concatenate([encoded.job(j) for j in range(len(encoded))]), 7)


def as_definition(windows: gpu.Windows) -> list[definition.Window]:
    return [
        definition.Window(-1, c[p > 0].tolist(), o[s != 0].tolist(), s[s != 0].tolist())
        for c, p, o, s in zip(windows.contexts, windows.present, windows.outputs, windows.signs)
    ]


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
@pytest.mark.parametrize("batch", [1, 7])
def test_a_step_is_the_gradient_of_the_definition(corpus, mode, loss, batch):
    session, windows = laid_out(corpus[:20], mode=mode, loss=loss)
    tables = (session.tables.input, session.tables.output)
    v, u = (torch.tensor(table[:, :12], dtype=torch.float64) for table in tables)
    stepper = gpu.Stepper(session.tables, session.settings, torch.device("cpu"))
    gpu.Batches(stepper, windows, len(windows), batch).train(windows, (0.01, 0.01))
    expected = 0.0
    plain = as_definition(windows)
    for start in range(0, len(plain), batch):
        frozen = v.clone(), u.clone()
        for window in plain[start : start + batch]:
            moved = frozen[0].clone(), frozen[1].clone()
            expected += definition.step(*moved, window, session.settings, 0.01)
            v += moved[0] - frozen[0]
            u += moved[1] - frozen[1]
    assert torch.allclose(stepper.v.double(), v, atol=1e-5)
    assert torch.allclose(stepper.u.double(), u, atol=1e-5)
    assert stepper.loss.item() == pytest.approx(expected, rel=1e-5)


def test_contexts_stay_in_their_sentence_and_reach(corpus):
    _, windows = laid_out(corpus[:50], dynamic=False)
    plain = [w for s in corpus[:50] for w in s]
    assert len(windows) == len(plain)
    assert windows.present.sum(1).max() == 6
    first = windows.present[0]
    assert first.tolist() == [0, 0, 0, 1, 1, 1]
    assert windows.present[11].tolist() == [1, 1, 1, 0, 0, 0]


def test_a_row_shared_by_a_whole_batch_does_not_overshoot(corpus):
    session, windows = laid_out(corpus, loss="hierarchical")
    stepper = gpu.Stepper(session.tables, session.settings, torch.device("cpu"))
    batches = gpu.Batches(stepper, windows, len(windows), 4096)
    for _ in range(3):
        batches.train(windows, (0.5, 0.5))
    assert stepper.u.isfinite().all()
    assert stepper.u.norm(dim=1).max() < 100


@pytest.mark.parametrize(("mode", "loss"), COMBINATIONS)
def test_words_of_a_topic_become_neighbours(corpus, mode, loss):
    settings = Settings.from_dict(SMALL | {"mode": mode, "loss": loss, "epochs": 6})
    session = Session.new(Corpus(corpus), settings)
    encoded = session.encoded()
    [*_] = gpu.run(session.tables, session.vocabulary, settings, encoded, session.cursor, "cpu", batch=64)
    vectors = Word2Vec.from_session(session)
    topic = {"queen", "crown", "throne", "palace", "prince"}
    assert len(topic & {word for word, _ in vectors.neighbours("king", 5)}) >= 4
    assert session.cursor.history[-1] < session.cursor.history[0]


def test_a_device_that_is_not_there_is_named(corpus):
    with pytest.raises(ConfigError, match="not known"):
        Word2Vec.train(corpus, **SMALL, device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="finds none"):
            Word2Vec.train(corpus, **SMALL, device="cuda")
