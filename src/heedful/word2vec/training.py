"""The training run as a stream: `for progress in run(...)`; when to print or stop is the caller's `if`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from heedful.word2vec.huffman import Paths
from heedful.word2vec.machine import train_job
from heedful.word2vec.settings import Settings
from heedful.word2vec.vocabulary import Vocabulary, alias_table

if TYPE_CHECKING:
    from heedful.word2vec.encoding import Encoded

LANES = 16  # rows are padded to whole vectors of the kernel; the padding stays zero
MASK = 2**64 - 1


@dataclass
class Tables:
    """Both vectors of every word, rows padded to `width`: input (V, width); output (V, width), or one row per
    inner node.
    """

    input: np.ndarray
    output: np.ndarray
    paths: Paths | None = None

    @property
    def width(self) -> int:
        return int(self.input.shape[1])


@dataclass
class Cursor:
    """Where a run stands: the next job, the epoch's sums so far, the average losses of the epochs that are
    done.
    """

    epoch: int = 0
    job: int = 0
    losses: np.ndarray = field(default_factory=lambda: np.zeros(0))
    examples: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    history: list[float] = field(default_factory=list)

    def mean(self) -> float:
        """Σ loss / examples over the jobs done of this epoch, summed exactly, so that the order plays no
        part.
        """
        done = int(self.examples.sum())
        return math.fsum(self.losses) / done if done else math.nan

    def finish(self) -> None:
        """The epoch is complete: its mean loss joins the history."""
        self.history.append(self.mean())
        self.epoch, self.job = self.epoch + 1, 0
        self.losses, self.examples = np.zeros(0), np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Progress:
    """One report: `loss` is the exact mean over the examples of this epoch so far."""

    epoch: int
    words: int
    total: int
    words_per_second: float
    loss: float
    rate: float
    finished: bool  # the epoch is complete


def padded(dim: int) -> int:
    return -(-dim // LANES) * LANES


def new_tables(vocabulary: Vocabulary, settings: Settings, paths: Paths | None) -> Tables:
    """Input vectors uniform in ±1/(2 dim), output vectors zero, as in the authors' program."""
    rows = paths.inner if paths is not None else len(vocabulary)
    tables = Tables(
        np.zeros((len(vocabulary), padded(settings.dim)), np.float32),
        np.zeros((rows, padded(settings.dim)), np.float32),
        paths,
    )
    fill_new_rows(tables, 0, settings)
    return tables


def fill_new_rows(tables: Tables, start: int, settings: Settings) -> None:
    """Fresh input vectors for the rows from `start` on, in blocks to save memory."""
    rng = np.random.default_rng([settings.seed, start])
    for low in range(start, len(tables.input), 4096):
        block = tables.input[low : low + 4096, : settings.dim]
        block[:] = (rng.random(block.shape, dtype=np.float32) - 0.5) / settings.dim


def scramble(value: int) -> int:
    """SplitMix64's finaliser, on Python integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def job_seed(seed: int, epoch: int, job: int) -> int:
    """One random stream per (seed, epoch, job)."""
    value = 0
    for part in (seed, epoch, job):
        value = scramble((value + part + 0x9E3779B97F4A7C15) & MASK)
    return value


class Job:
    """The kernel with what never changes bound to it, and one thread's scratch memory."""

    def __init__(self, tables: Tables, vocabulary: Vocabulary, settings: Settings, encoded: Encoded) -> None:
        self.kernel, self.encoded, self.settings, self.tables = train_job(), encoded, settings, tables
        self.keep = vocabulary.keep(settings.threshold(len(vocabulary)))
        empty = np.zeros(2, dtype=np.uint32)
        self.alias = (
            empty if settings.hierarchical else alias_table(vocabulary.noise(settings.noise_exponent))
        )
        none = np.zeros(0, dtype=np.int64)
        paths = tables.paths if tables.paths is not None else Paths(none, none, np.zeros(0, np.float32))
        self.paths = (paths.first, paths.nodes, paths.turns)
        self.outputs = paths.longest if settings.hierarchical else settings.negatives + 1
        self.cbow = 0 if settings.mode == "skipgram" else 1 if settings.cbow == "mean" else 2

    def scratch(self) -> tuple[np.ndarray, ...]:
        """kept, h, u, x, step, inputs, outputs, signs, only of train_job."""
        width, inputs = self.tables.width, 2 * self.settings.window
        return (
            np.zeros(self.encoded.longest, np.int32),
            np.zeros(inputs * width, np.float32),
            np.zeros((self.outputs + 1) * width, np.float32),
            np.zeros(inputs * self.outputs + 2 * LANES, np.float32),
            np.zeros(width, np.float32),
            np.zeros(inputs, np.int64),
            np.zeros(2 * (self.outputs + 1), np.int64),
            np.zeros(2 * (self.outputs + 1), np.float32),
            np.zeros(1, np.int64),
        )

    def rate(self, epoch: int, job: int) -> float:
        done = (epoch * self.encoded.words + int(self.encoded.read[job])) / (
            self.settings.epochs * self.encoded.words
        )
        return self.settings.rate_at(done)

    def warm(self) -> None:
        """Compile, or fetch what was compiled before, by training on no text."""
        self.train(np.zeros(0, np.int32), 0.0, 0, self.scratch())

    def run(self, epoch: int, job: int, scratch: tuple[np.ndarray, ...]) -> tuple[float, int, int]:
        """Train on one job: (summed loss, examples, words kept)."""
        return self.train(
            self.encoded.job(job), self.rate(epoch, job), job_seed(self.settings.seed, epoch, job), scratch
        )

    def train(
        self, ids: np.ndarray, rate: float, seed: int, scratch: tuple[np.ndarray, ...]
    ) -> tuple[float, int, int]:
        s, tables = self.settings, self.tables
        negatives = 0 if s.hierarchical else s.negatives
        return self.kernel(
            ids,
            self.keep,
            self.alias,
            *self.paths,
            tables.input.reshape(-1),
            tables.output.reshape(-1),
            tables.width,
            s.window,
            s.dynamic,
            negatives,
            self.cbow,
            np.float32(rate),
            np.uint64(seed),
            *scratch,
        )


def run_jobs(work: Job, cursor: Cursor, stop: int, threads: int) -> None:
    """Jobs cursor.job..stop on `threads` threads that share the tables without locks (Hogwild, Niu et al.
    2011).

    Interrupted, every thread finishes the job it holds, so that the cursor still says exactly what was
    trained.
    """
    numbers = count(cursor.job)  # next() of a counter is one step of the interpreter: no lock needed
    failures: list[BaseException] = []

    def serve() -> None:
        scratch = work.scratch()
        try:
            while not failures and (job := next(numbers)) < stop:
                cursor.losses[job], cursor.examples[job], _ = work.run(cursor.epoch, job, scratch)
        except BaseException as error:
            failures.append(error)

    helpers = [Thread(target=serve, daemon=True) for _ in range(threads)]
    for helper in helpers:
        helper.start()
    try:
        for helper in helpers:
            helper.join()
    except KeyboardInterrupt as interrupt:
        failures.append(interrupt)
        for helper in helpers:
            helper.join()
    cursor.job = min(stop, next(numbers))
    if failures:
        raise failures[0]


def run(
    tables: Tables,
    vocabulary: Vocabulary,
    settings: Settings,
    encoded: Encoded,
    cursor: Cursor,
    threads: int = 1,
    interval: float = 0.5,
) -> Iterator[Progress]:
    """Train `tables` in place, reporting about every `interval` seconds; all threads rest while a report is
    out.

    With one thread the result is a function of its arguments, bit for bit; so is the set of examples with any
    number.
    """
    work = Job(tables, vocabulary, settings, encoded)
    work.warm()
    jobs, step = len(encoded), threads
    while cursor.epoch < settings.epochs:
        if len(cursor.losses) != jobs:
            cursor.losses, cursor.examples = np.zeros(jobs), np.zeros(jobs, dtype=np.int64)
        before, began = cursor.job, time.perf_counter()
        run_jobs(work, cursor, min(jobs, cursor.job + step), threads)
        took = max(time.perf_counter() - began, 1e-9)
        step = max(threads, min(4 * step, int(step * interval / took)))
        report = Progress(
            epoch=cursor.epoch,
            words=cursor.epoch * encoded.words + int(encoded.read[cursor.job]),
            total=settings.epochs * encoded.words,
            loss=cursor.mean(),
            rate=work.rate(cursor.epoch, cursor.job),
            words_per_second=int(encoded.read[cursor.job] - encoded.read[before]) / took,
            finished=cursor.job == jobs,
        )
        if report.finished:
            cursor.finish()
        yield report
