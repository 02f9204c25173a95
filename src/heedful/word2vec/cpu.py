"""Training on the processor: jobs of text given to threads that share the tables without locks."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from heedful.errors import MissingPackage
from heedful.word2vec.corpus import EncodedCorpus
from heedful.word2vec.huffman import HuffmanTree
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.random_bits import job_seed
from heedful.word2vec.word_counts import WordCounts, alias_table

if TYPE_CHECKING:
    from heedful.word2vec.kernels import Workspace
    from heedful.word2vec.trainer import Tables, TrainingState

NO_TREE = HuffmanTree(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))


class CpuTrainer:
    """The compiled kernel with the arguments that stay the same in a run."""

    adaptive = True  # as many jobs between two reports as there is time for

    def __init__(
        self, tables: Tables, counts: WordCounts, settings: Settings, encoded: EncodedCorpus, threads: int = 1
    ) -> None:
        if find_spec("numba") is None:
            raise MissingPackage(
                "training on the processor needs numba",
                hint="pip install 'heedful[fast]', or train with device='cuda'",
            )
        from heedful.word2vec import kernels

        self.tables, self.settings, self.encoded = tables, settings, encoded
        self.threads = self.jobs_per_report = threads
        hierarchical, exponent = settings.hierarchical, settings.noise_exponent
        noise = np.ones(1) if hierarchical else counts.noise_distribution(exponent)
        self.sampling = kernels.Sampling(
            keep=counts.keep_limits(settings.subsample_threshold(len(counts))),
            noise=alias_table(noise),
            window=settings.window,
            dynamic=settings.dynamic,
            negatives=0 if hierarchical else settings.negatives,
        )
        self.tree = NO_TREE if tables.tree is None else tables.tree
        self._kernel, self._workspace = kernels.train_job, kernels.Workspace
        self._call(np.zeros(0, np.int32), 0.0, 0, self.workspace())  # compile before anything is timed

    def workspace(self) -> Workspace:
        """Allocate the memory that one thread needs beside the tables."""
        settings, dim = self.settings, self.tables.input.shape[1]
        C = 2 * settings.window + 1
        M = self.tree.depth if settings.hierarchical else settings.negatives + 1
        floats = lambda *shape: np.zeros(shape, np.float32)
        return self._workspace(
            sentence=np.zeros(int(np.diff(self.encoded.starts).max()), np.int32),
            inputs=np.zeros(C, np.int64),
            outputs=np.zeros(M + 1, np.int64),
            signs=floats(M + 1),
            scores=floats(C * M),
            weights=floats(C),
            hidden=floats(dim),
            gradient=floats(M, dim),
        )

    def train_job(self, epoch: int, job: int, workspace: Workspace) -> tuple[float, int]:
        """Train on one job; return (summed loss, number of examples)."""
        settings, encoded = self.settings, self.encoded
        rate = settings.rate_at(encoded.progress(epoch, job, settings.epochs))
        return self._call(encoded.job(job), rate, job_seed(settings.seed, epoch, job), workspace)

    def _call(self, ids: np.ndarray, rate: float, seed: int, workspace: Workspace) -> tuple[float, int]:
        return self._kernel(
            ids, self.tables.input, self.tables.output, self.sampling, self.tree,
            self.settings.mode == "skipgram", self.settings.cbow == "mean",
            np.float32(rate), np.uint64(seed), workspace,
        )  # fmt: skip

    def train_jobs(self, state: TrainingState, stop: int) -> None:
        """Train on the jobs from state.job up to `stop` (Hogwild: Niu et al. 2011).

        Interrupted, every thread finishes its job, so that the state still says exactly what was trained.
        """
        jobs = count(state.job)  # next() of a counter is one step of the interpreter: no lock needed
        failures: list[BaseException] = []

        def train() -> None:
            workspace = self.workspace()
            try:
                while not failures and (job := next(jobs)) < stop:
                    state.losses[job], state.examples[job] = self.train_job(state.epoch, job, workspace)
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
