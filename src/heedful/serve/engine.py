"""One thread that owns the models, and a bounded queue before it: first come, first served.

All texts of a model are written in one batch (`decode/continuous.py`); a request's texts join it as soon as
there is room and leave it at any step. Other work (embeddings, classes, scores of a prompt) is rows and a
function of rows. Between two steps the thread computes a few rows, those of several requests together if
their function is the same. A function that writes texts (summaries, translations) takes many steps, and
between these the thread does what else is quick. Before each step it looks whether somebody still waits. What
a step gave goes to the event loop in one call; neither waits for the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.types import Receive

from heedful.core.errors import HeedfulError
from heedful.core.progress import call_between_steps
from heedful.decode.continuous import ContinuousBatch, GenerationTask
from heedful.decode.rows import Piece
from heedful.serve.metrics import Metrics
from heedful.serve.openai_errors import FINAL, Gone, OpenAIError, as_openai_error, shutting_down, timeout

ROWS_AT_ONCE = 32  # computed between two steps
MAX_UNREAD_ITEMS = 16_384  # that may wait for a client before its work is given up
# Events cost more than tokens of a small model: with many streams, tokens of some steps go out together.
MANY_STREAMS, MERGE_SECONDS = 8, 0.05
log = logging.getLogger("heedful.serve")

Compute = Callable[[Sequence[Any]], Sequence[Any]]  # one result for each row
END = object()  # stands behind the last item of a job's queue


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the engine does for a request: compute rows, generate texts, or first the one and then the other.

    `compute` gives one result for each of the `rows`, which must be what it is for that row alone: rows of
    other requests with an equal `compute` come with them. A `slow` one writes texts, which takes many steps.
    It reports its progress (core/progress.py), and quick work is done at each report.
    """

    rows: Sequence[Any] = ()
    compute: Compute = list
    rows_at_once: int = ROWS_AT_ONCE
    slow: bool = False
    batch: ContinuousBatch | None = None
    task: GenerationTask | None = None


class EngineJob:
    """One request's work while it is done.

    Everything that ends it comes through one queue of items: the last of them, a failure, a client that left,
    a time that is up.
    """

    def __init__(self, engine: Engine, work: Work, label: str) -> None:
        self.engine, self.label, self.batch, self.task = engine, label, work.batch, work.task
        self.rows, self.compute, self.rows_at_once = deque(work.rows), work.compute, work.rows_at_once
        self.slow, self.cancelled = work.slow, threading.Event()
        self.submitted = time.perf_counter()
        self.last_token: float | None = None
        self.loop = asyncio.get_running_loop()
        self.items: deque[Any] = deque()  # filled and emptied in the event loop
        self.ready = asyncio.Event()
        if self.task is not None:
            self.task.on_piece = self.put_piece

    @property
    def writes_next(self) -> bool:
        """Whether nothing is left to do but to write its texts."""
        return not self.rows and self.task is not None

    def put_piece(self, piece: Piece | Exception) -> None:
        """Hand on a token, or the failure of the texts. In the engine's thread."""
        assert self.task is not None
        if isinstance(piece, Exception):
            self.engine.finish(self, piece)
            return
        self.last_token = self.engine.metrics.count_token(self.submitted, self.last_token)
        self.engine.outbox[self].append(piece)
        if len(self.items) > MAX_UNREAD_ITEMS:
            assert self.batch is not None
            message = "the answer was not read as fast as it was written"
            self.batch.fail(self.task, OpenAIError(408, "slow_reader", message, headers=FINAL))
        elif self.task.is_done:
            self.engine.finish(self)

    def deliver(self, items: Sequence[Any]) -> None:
        """Give items to whoever waits. In the event loop."""
        self.items += items
        self.ready.set()

    def end(self, error: Exception | None = None) -> None:
        """Nobody waits any more, or only for this error. In the event loop."""
        self.engine.cancel(self)
        if error is not None:
            self.deliver([error])

    async def next(self, seconds: float | None = None) -> list[Any]:
        """The items there are now, END behind the last; none if there is none for that long.

        A failure is raised when all before it were taken.
        """
        if not self.items:
            self.ready.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self.ready.wait()
            except TimeoutError:
                return []
        if isinstance(self.items[0], Exception):
            raise self.items.popleft()
        items = []
        while self.items and not isinstance(self.items[0], Exception):
            items.append(self.items.popleft())
        return items

    async def collect(self) -> list[Any]:
        """All items to the end."""
        items: list[Any] = []
        while not items or items[-1] is not END:
            items += await self.next()
        return items[:-1]

    @asynccontextmanager
    async def following(self, receive: Receive, seconds: float) -> AsyncIterator[None]:
        """End the job if the client leaves or the time is up while inside, and on leaving in any case."""

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.end(Gone("the client went away"))

        watcher = asyncio.create_task(watch())
        timer = asyncio.get_running_loop().call_later(seconds, lambda: self.end(timeout(seconds)))
        try:
            yield
        finally:
            timer.cancel()
            watcher.cancel()
            self.end()


class Engine:
    """The thread, the queue before it, and what runs."""

    def __init__(self, max_queue: int = 64, metrics: Metrics | None = None) -> None:
        self.max_queue, self.metrics = max_queue, metrics or Metrics()
        self.draining = False
        self.running: list[EngineJob] = []
        self.writing: list[EngineJob] = []  # whose slow function has been begun and not ended
        self.between = False  # whether the thread is between two steps of theirs
        self.queue: deque[EngineJob] = deque()
        self.outbox: dict[EngineJob, list[Any]] = defaultdict(list)  # of the engine's thread, until a flush
        self.flushed = 0.0  # when
        self._turn = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="heed-engine", daemon=True)
        self._thread.start()

    def submit(self, work: Work, label: str = "request") -> EngineJob:
        """Put work into the queue, in the event loop; refused if it is full or the server ends."""
        job = EngineJob(self, work, label)
        with self._turn:
            if self.draining:
                raise shutting_down()
            self.queue.append(job)
            if self.count_waiting() > self.max_queue:
                self.queue.pop()
                message = (
                    f"{self.max_queue} requests are waiting already, which is the most; try again in a moment"
                )
                wait = {"Retry-After": "1"}
                raise OpenAIError(429, "queue_full", message, type="rate_limit_error", headers=wait)
            self._turn.notify_all()
        return job

    def count_waiting(self) -> int:
        """Return how many jobs of the queue have to wait: what there is room for begins at the next step."""
        wanted = Counter(job.batch for job in self.queue if job.writes_next)
        beginning = int(len(self.queue) > wanted.total() and not any(job.rows for job in self.running))
        for batch, count in wanted.items():
            assert batch is not None
            beginning += min(count, max(0, batch.slots.max_rows - len(batch.rows) - len(batch.waiting)))
        return len(self.queue) - beginning

    def cancel(self, job: EngineJob) -> None:
        """Take a job out of the queue, or let the thread drop it before its next step."""
        with self._turn:
            if job in self.queue:
                self.queue.remove(job)
                self.metrics.aborted.add()
            job.cancelled.set()

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self.queue or self.running or self._closed)
                if self._closed:
                    return
            self.take_turn()

    def take_turn(self) -> None:
        """Begin jobs for which there is room, advance all that run by a step, and hand on what came out."""
        with self._turn:
            for job in list(self.queue):
                if self.can_begin(job):
                    self.queue.remove(job)
                    self.begin(job)
        try:
            self.advance()
        except Exception as error:  # whatever it is, the next request must not suffer from it
            for job in [job for job in self.running if job not in self.writing]:
                with contextlib.suppress(Exception):
                    self.drop(job)
                self.finish(job, error)
        if len(self.running) <= MANY_STREAMS or time.perf_counter() - self.flushed > MERGE_SECONDS:
            self.flush()

    def advance(self) -> None:
        """Drop those nobody waits for, take a step of every batch, and compute one item of other work."""
        for job in [job for job in self.running if job.cancelled.is_set() and job not in self.writing]:
            self.drop(job)
        for batch in {job.batch: None for job in self.running if job.writes_next}:
            assert batch is not None
            batch.step()
        self.compute_rows()

    def work_between_steps(self) -> None:
        """Do what is quick between two steps of a slow function; end the function if nobody waits for it."""
        if self.between:
            return
        if self._closed or all(job.cancelled.is_set() for job in self.writing):
            raise shutting_down()
        self.between = True
        try:
            self.take_turn()
        finally:
            self.between = False

    def can_begin(self, job: EngineJob) -> bool:
        """Whether there is room for a job; those that came before it have begun, or want another model."""
        if job.writes_next:
            assert job.batch is not None
            before = next((j for j in self.queue if j.batch is job.batch and j.writes_next), job)
            return before is job and job.batch.has_room
        if self.between and job.slow:
            return False
        # First come, first served: a job with another function ends the joining of those behind it.
        if next(j for j in self.queue if not (j.writes_next or (self.between and j.slow))) is not job:
            return False
        running = [other for other in self.running if other.rows and not (self.between and other.slow)]
        room = job.rows_at_once - sum(len(other.rows) for other in running)
        return not running or (running[0].compute == job.compute and room > 0)

    def begin(self, job: EngineJob) -> None:
        self.running.append(job)
        self.metrics.queue_time.observe(time.perf_counter() - job.submitted)
        if not job.rows:
            self.generate(job)

    def generate(self, job: EngineJob) -> None:
        """Let a job without rows, or without any left, write its texts; if it has none, it is done."""
        if job.task is None:
            self.finish(job)
        else:
            assert job.batch is not None
            job.batch.add(job.task)

    def drop(self, job: EngineJob) -> None:
        """Free what a cancelled job holds."""
        if job.batch is not None and job.task is not None:
            job.batch.remove(job.task)
        self.running.remove(job)
        self.outbox.pop(job, None)
        self.metrics.aborted.add()

    def compute_rows(self) -> None:
        """Compute a few rows of the job that came first, and of others with the same function behind it."""
        first = next((job for job in self.running if job.rows and not (self.between and job.slow)), None)
        if first is None:
            return
        parts: dict[EngineJob, list[Any]] = {}
        room = first.rows_at_once
        for job in self.running:
            if room and job.rows and job.compute == first.compute:
                parts[job] = [job.rows.popleft() for _ in range(min(room, len(job.rows)))]
                room -= len(parts[job])
        try:
            results = self.compute(list(parts), [row for rows in parts.values() for row in rows])
        except Exception as error:  # whatever it is, the next request must not suffer from it
            if len(parts) == 1:
                self.fail(first, error)
                return
            results = None  # nor may the others of this batch: each is computed alone
        for job, rows in parts.items():
            try:
                self.outbox[job] += (
                    self.compute([job], rows) if results is None else islice(results, len(rows))
                )
            except Exception as error:
                self.fail(job, error)
                continue
            if not job.rows:
                self.generate(job)

    def compute(self, jobs: list[EngineJob], rows: Sequence[Any]) -> Iterator[Any]:
        """Compute rows of jobs that share a function; between the steps of a slow one, do what is quick."""
        if not jobs[0].slow:
            return iter(jobs[0].compute(rows))
        self.writing = jobs
        try:
            with call_between_steps(self.work_between_steps):
                return iter(jobs[0].compute(rows))
        finally:
            self.writing = []

    def fail(self, job: EngineJob, error: Exception) -> None:
        """End a job whose function raised an error, which it also does when nobody waits any more."""
        if job.cancelled.is_set():
            self.drop(job)
        else:
            self.finish(job, error)

    def finish(self, job: EngineJob, error: Exception | None = None) -> None:
        """Hand on a job's end, or its failure. In the engine's thread."""
        if error is not None and not isinstance(error, HeedfulError):
            log.error("%s failed", job.label, exc_info=error)
        self.outbox[job].append(END if error is None else as_openai_error(error))
        if job in self.running:
            self.running.remove(job)

    def flush(self) -> None:
        """Give the event loops what came out since the last time, in one call each."""
        out, self.outbox, self.flushed = self.outbox, defaultdict(list), time.perf_counter()
        for loop in {job.loop for job in out}:
            mine = [(job, items) for job, items in out.items() if job.loop is loop]
            try:
                loop.call_soon_threadsafe(deliver_all, mine)
            except RuntimeError:  # the loop was closed: nobody waits any more
                for job, _ in mine:
                    job.cancelled.set()

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def is_idle(self) -> bool:
        with self._turn:
            return not self.running and not self.queue

    def abandon(self) -> None:
        """End what runs and what waits, and say so to those who wait. In the event loop."""
        with self._turn:
            left = [*self.running, *self.queue]
        for job in left:
            job.end(shutting_down())

    def close(self, seconds: float = 5.0) -> None:
        """Stop after the step that is being computed."""
        with self._turn:
            self._closed = self.draining = True
            self._turn.notify_all()
        self._thread.join(seconds)


def deliver_all(out: list[tuple[EngineJob, list[Any]]]) -> None:
    for job, items in out:
        job.deliver(items)
