"""One training run from text to vectors: count, encode, train, save half-way, resume.

`for report in trainer.run(): …` is the loop; when to print or stop is the caller's `if`.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from heedful.core.checks import check_integer
from heedful.core.errors import ConfigError, CorruptFile, InputError, NotFound
from heedful.core.lazy import missing_package
from heedful.word2vec.corpus import Corpus, EncodedCorpus, encode_corpus, job_seed
from heedful.word2vec.hyperparameters import Settings
from heedful.word2vec.vector_files import (
    file_lock,
    pack_tables,
    read_tensor_file,
    require_tensors,
    unpack_tree,
    unpack_words,
    write_tensor_file,
)
from heedful.word2vec.word_counts import HuffmanTree, WordCounts, alias_table, build_tree, build_vocabulary

if TYPE_CHECKING:
    from heedful.word2vec.gpu import GpuTrainer

SAVE_SECONDS = 300.0  # between two checkpoints
REPORT_SECONDS = 0.5


@dataclass
class Tables:
    """Both vectors of every word: input (V, D); output (V, D), or one row per inner node of the tree."""

    input: np.ndarray
    output: np.ndarray
    tree: HuffmanTree | None = None

    @classmethod
    def create(cls, words: int, settings: Settings, tree: HuffmanTree | None) -> Tables:
        """Input vectors uniform in ±1/(2 dim), output vectors zero, as in the authors' program."""
        empty = np.zeros((0, settings.dim), np.float32)
        return cls(empty, empty).extend(words, settings, tree)

    def extend(self, words: int, settings: Settings, tree: HuffmanTree | None) -> Tables:
        """Return a copy with rows for new words, as `create` makes them."""
        rows, start = words if tree is None else tree.inner_nodes, len(self.input)
        tables = Tables(
            np.zeros((words, settings.dim), np.float32), np.zeros((rows, settings.dim), np.float32)
        )
        tables.input[:start], tables.output[: len(self.output)] = self.input, self.output
        rng = np.random.default_rng([settings.seed, start])
        for low in range(start, words, 4096):  # in blocks, to save memory
            block = tables.input[low : low + 4096]
            block[:] = (rng.random(block.shape, dtype=np.float32) - 0.5) / settings.dim
        tables.tree = tree
        return tables


@dataclass
class TrainingState:
    """The progress of a run: its next job, the sums of the epoch's jobs, the losses of finished epochs."""

    epoch: int = 0
    job: int = 0
    losses: np.ndarray = field(default_factory=lambda: np.zeros(0))
    examples: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    history: list[float] = field(default_factory=list)


NO_TREE = HuffmanTree(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))


class CpuTrainer:
    """The compiled kernel with the arguments that stay the same in a run."""

    adaptive = True  # as many jobs between two reports as there is time for

    def __init__(
        self, tables: Tables, counts: WordCounts, settings: Settings, text: EncodedCorpus, threads: int = 1
    ) -> None:
        if find_spec("numba") is None:
            raise missing_package("numba", "training on the processor", "train with `device='cuda'`")
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


@dataclass(frozen=True)
class ProgressReport:
    """The progress of training: `loss` is the exact mean over the examples of this epoch so far."""

    epoch: int
    words: int
    total: int
    words_per_second: float
    loss: float
    rate: float
    finished: bool  # the epoch is complete


@dataclass
class Trainer:
    """The vocabulary, tables and state of a run; its encoded text is a temporary file while it trains."""

    corpus: Corpus
    settings: Settings
    counts: WordCounts
    tables: Tables
    state: TrainingState = field(default_factory=TrainingState)
    digest: str = ""  # of the encoded text the state belongs to

    @classmethod
    def create(cls, corpus: Corpus, settings: Settings) -> Trainer:
        """Count the words and make new tables."""
        counts = build_vocabulary(corpus, settings.min_count, settings.max_vocab)
        tree = build_tree(counts.counts) if settings.hierarchical else None
        return cls(corpus, settings, counts, Tables.create(len(counts), settings, tree))

    @classmethod
    def begin(
        cls, corpus: Corpus, settings: Settings, checkpoint: Path | None = None, resume: bool = False
    ) -> Trainer:
        """Return a new run, or with `resume` the one that `checkpoint` holds."""
        if not resume:
            return cls.create(corpus, settings)
        if checkpoint is None:
            raise ConfigError(
                "`resume=True` needs a run to continue", hint="name its file with `checkpoint=`"
            )
        return cls.resume(corpus, checkpoint, settings)

    @classmethod
    def resume(cls, corpus: Corpus, path: Path, settings: Settings | None = None) -> Trainer:
        """Continue the run saved in `path`; `settings`, if given, must be those it began with."""
        if not path.exists():
            raise NotFound(f"no checkpoint {path} to resume from", hint="start without resume")
        tensors, saved = read_tensor_file(path)
        if "cursor" not in saved:
            raise CorruptFile(
                f"{path} holds finished vectors, not a checkpoint", hint="continue training with update()"
            )
        require_tensors(path, tensors, "output", "counts", "losses", "examples")
        words = unpack_words(path, tensors)
        first = Settings.from_dict(saved["settings"])
        for name, value in (settings or first).to_dict().items():
            if value != getattr(first, name):
                raise ConfigError(
                    f"{path} began with `{name}={getattr(first, name)}` and cannot continue with {value}",
                    hint="give the same settings, or start from scratch",
                )
        state = TrainingState(losses=tensors["losses"], examples=tensors["examples"], **saved["cursor"])
        tables = Tables(tensors["input"], tensors["output"], unpack_tree(path, tensors))
        counts = WordCounts(words, tensors["counts"], saved["total"])
        return cls(corpus, first, counts, tables, state, saved["digest"])

    def save(self, path: Path) -> None:
        """Save everything a resumed run needs; see corpus.py for why that includes no random state."""
        cursor = {"epoch": self.state.epoch, "job": self.state.job, "history": self.state.history}
        saved = {
            "settings": self.settings.to_dict(),
            "total": self.counts.total,
            "digest": self.digest,
            "cursor": cursor,
            "history": self.state.history,
        }
        tables, counts = self.tables, self.counts
        tensors = pack_tables(counts.words, tables.input, tables.output, counts.counts, tables.tree)
        tensors |= {"losses": self.state.losses, "examples": self.state.examples}
        write_tensor_file(path, tensors, saved)

    def encode_text(self, folder: Path) -> EncodedCorpus:
        """Write the text as numbers into a folder; a resumed run must find the text it began with."""
        text = encode_corpus(self.corpus, self.counts.index, folder / "ids.int32")
        if self.digest and text.digest != self.digest:
            raise InputError(
                "the corpus is not the one this checkpoint began with: its words differ",
                hint="give the same text, or start from scratch",
            )
        if not text.has_pairs:
            raise InputError(
                "no line of the text has two known words side by side, so there is nothing to learn from",
                hint="write a sentence or paragraph a line, or a lower `min_count=`",
            )
        self.digest = text.digest
        return text

    def run(
        self, threads: int | None = None, checkpoint: Path | None = None, device: str = "cpu", *,
        save_seconds: float = SAVE_SECONDS, report_seconds: float = REPORT_SECONDS,
    ) -> Iterator[ProgressReport]:  # fmt: skip
        """Train; save to `checkpoint` every `save_seconds`, after each epoch, and when left early.

        With one thread the result is a function of text and settings, bit for bit; with any number of
        threads so is the set of examples.
        """
        threads = os.cpu_count() or 1 if threads is None else threads
        check_integer("threads", threads, error=ConfigError)
        saved = time.monotonic()
        lock = nullcontext() if checkpoint is None else file_lock(checkpoint)
        with lock, tempfile.TemporaryDirectory(prefix="heed-word2vec-") as folder:
            backend = self.backend(self.encode_text(Path(folder)), threads, device)
            try:
                for report in self.train_encoded(backend, report_seconds):
                    if report.finished:
                        self._check_loss(report)
                    if checkpoint and (report.finished or time.monotonic() - saved >= save_seconds):
                        self.save(checkpoint)
                        saved = time.monotonic()
                    yield report
            except (KeyboardInterrupt, GeneratorExit):
                if checkpoint is not None:
                    self.save(checkpoint)
                raise

    def backend(self, text: EncodedCorpus, threads: int, device: str) -> CpuTrainer | GpuTrainer:
        """Return what trains on jobs of the text: threads of the processor, or an accelerator."""
        if device != "cpu":
            from heedful.core.devices import resolve_device

            resolved = resolve_device(device)
            if resolved.type != "cpu":
                from heedful.word2vec.gpu import GpuTrainer

                return GpuTrainer(self.tables, self.counts, self.settings, text, resolved)
        return CpuTrainer(self.tables, self.counts, self.settings, text, threads)

    def train_encoded(
        self, backend: CpuTrainer | GpuTrainer, report_seconds: float = REPORT_SECONDS
    ) -> Iterator[ProgressReport]:
        """Train on encoded text, reporting about every `report_seconds`; training rests during a report."""
        state, text, epochs = self.state, backend.text, self.settings.epochs
        jobs, group = len(text), backend.jobs_per_report
        while state.epoch < epochs:
            if len(state.losses) != jobs:
                state.losses, state.examples = np.zeros(jobs), np.zeros(jobs, dtype=np.int64)
            start, began = state.job, time.perf_counter()
            backend.train_jobs(state, min(jobs, start + group))
            seconds = max(time.perf_counter() - began, 1e-9)
            if backend.adaptive:
                group = max(backend.jobs_per_report, min(4 * group, int(group * report_seconds / seconds)))
            before, now = (int(text.words_before[job]) for job in (start, state.job))
            examples, total = int(state.examples.sum()), math.fsum(state.losses)  # exact in any order
            report = ProgressReport(
                epoch=state.epoch,
                words=state.epoch * text.words + now,
                total=epochs * text.words,
                words_per_second=(now - before) / seconds,
                loss=total / examples if examples else math.nan,
                rate=self.settings.rate_at(text.progress(state.epoch, state.job, epochs)),
                finished=state.job == jobs,
            )
            if report.finished:
                state.history.append(report.loss)
                state.epoch, state.job = state.epoch + 1, 0
                state.losses, state.examples = np.zeros(0), np.zeros(0, dtype=np.int64)
            yield report

    def _check_loss(self, report: ProgressReport) -> None:
        """Check that vectors are still numbers, and after the last epoch that something was learnt."""
        if math.isfinite(report.loss):
            return
        settings, tables = self.settings, self.tables
        if not (np.isfinite(tables.input).all() and np.isfinite(tables.output).all()):
            raise ConfigError(
                f"training diverged in epoch {report.epoch + 1}: `rate={settings.initial_rate:g}` is too "
                f"large for `window={settings.window}` and `negatives={settings.negatives}`",
                hint="lower the rate",
            )
        # Subsampling dropped all pairs of this epoch; another one draws anew.
        if report.epoch + 1 == settings.epochs and not np.isfinite(self.state.history).any():
            threshold = settings.subsample_threshold(len(self.counts))
            raise InputError(
                f"`subsample={threshold:g}` thinned this small text out until no two words stood side by "
                f"side in any of {settings.epochs} epochs",
                hint="give `subsample=0` to keep all, or leave it out",
            )
