"""Training on the processor: jobs of text given to threads that share the tables without locks."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from heedful.core.errors import MissingPackage
from heedful.word2vec.corpus import EncodedCorpus
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.random_bits import job_seed
from heedful.word2vec.word_counts import HuffmanTree, WordCounts, alias_table

if TYPE_CHECKING:
    from heedful.word2vec.trainer import Tables, TrainingState

NO_TREE = HuffmanTree(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))


class CpuTrainer:
    """The compiled kernel with the arguments that stay the same in a run."""

    adaptive = True  # as many jobs between two reports as there is time for

    def __init__(
        self, tables: Tables, counts: WordCounts, settings: Settings, text: EncodedCorpus, threads: int = 1
    ) -> None:
        if find_spec("numba") is None:
            raise MissingPackage(
                "training on the processor needs numba",
                hint="pip install 'heedful[fast]', or train with device='cuda'",
            )
        from heedful.word2vec import kernels

        self.tables, self.settings, self.text = tables, settings, text
        self.threads = self.jobs_per_report = threads
        noise = np.ones(1) if tables.tree else counts.noise_distribution(settings.noise_exponent)
        self.keep = counts.keep_limits(settings.subsample_threshold(len(counts)))
        self.noise = alias_table(noise)
        self.tree = tuple(tables.tree or NO_TREE)
        self.negatives = 0 if tables.tree else settings.negatives
        self.max_outputs = tables.tree.depth if tables.tree else settings.negatives + 1
        self._kernel = kernels.train_job
        self._call(np.zeros(0, np.int32), 0.0, 0)  # compile before anything is timed

    def train_job(self, epoch: int, job: int) -> tuple[float, int]:
        """Train on one job; return (summed loss, number of examples)."""
        settings, text = self.settings, self.text
        rate = settings.rate_at(text.progress(epoch, job, settings.epochs))
        return self._call(text.job(job), rate, job_seed(settings.seed, epoch, job))

    def _call(self, ids: np.ndarray, rate: float, seed: int) -> tuple[float, int]:
        settings, tables = self.settings, self.tables
        return self._kernel(
            ids, tables.input, tables.output, self.keep, self.noise, self.tree, settings.window,
            settings.dynamic, self.negatives, self.max_outputs, settings.mode == "skipgram",
            settings.cbow == "mean", np.float32(rate), np.uint64(seed),
        )  # fmt: skip

    def train_jobs(self, state: TrainingState, stop: int) -> None:
        """Train on the jobs from state.job up to `stop` (Hogwild: Niu et al. 2011).

        Interrupted, every thread finishes its job, so that the state still says exactly what was trained.
        """
        jobs = count(state.job)  # next() of a counter is one step of the interpreter: no lock needed
        failures: list[BaseException] = []

        def train() -> None:
            try:
                while not failures and (job := next(jobs)) < stop:
                    state.losses[job], state.examples[job] = self.train_job(state.epoch, job)
            except BaseException as error:
                failures.append(error)

        threads = [Thread(target=train, daemon=True) for _ in range(self.threads)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt as interrupt:
            failures.append(interrupt)
            for thread in threads:
                thread.join()
        state.job = min(stop, next(jobs))
        if failures:
            raise failures[0]
