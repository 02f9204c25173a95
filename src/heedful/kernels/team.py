"""Threads that share one step of a decoder, instruction by instruction (kernels/cpu_rows.py).

The caller works itself and waits for nobody to begin: a thread that is late, or does not run at all because
the machine is busy, finds less left to do.
"""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import Any

from heedful.kernels.cpu_rows import (
    ATTEND,
    CHUNKS,
    EMBED,
    HEADS,
    LINEAR,
    NORM,
    OP,
    OUT,
    PAST,
    ROUND,
    ROWS,
    Code,
    Now,
    Reals,
    attend_head,
    embed_row,
    linear_rows,
    norm_row,
    rotate_and_cache,
    round_row_int16,
)  # fmt: skip
from heedful.kernels.numba_intrinsics import (
    Array,
    Float,
    Int,
    atomic_increment,
    atomic_load,
    atomic_store,
    compile_cached,
    compile_inline,
    pause,
    sched_yield,
)  # fmt: skip

TICKET, DONE = 0, 16  # of the words threads share: a cache line each
PHASE = 1 << 32  # a ticket is instruction · PHASE + chunk
OVER = 1 << 30  # the instruction after the last
BEGIN = 1 << 31  # a chunk that no instruction has: nothing to do yet


@compile_inline
def chunk_count(line: Code, now: Now) -> Int:
    return line[CHUNKS] if line[OP] == LINEAR else line[CHUNKS] * now[ROWS]


@compile_inline
def spin(spins: Int) -> Int:
    """A moment in a loop that waits; after a thousand, the core is offered to others."""
    pause()
    if spins > 1000:
        sched_yield()
        return 0
    return spins + 1


@compile_cached
def run_chunk(line: Code, real: Float, now: Now, first: Array, c: Int) -> None:
    """One of the pieces that threads share: some rows of a product, or one head."""
    if line[OP] == LINEAR:
        linear_rows(line, real, now, c * line[OUT] // line[CHUNKS], (c + 1) * line[OUT] // line[CHUNKS])
    else:
        row, h = c // line[HEADS], c % line[HEADS]
        attend_head(line, real, now, row, h, first[row])


@compile_cached
def assist_step(code: Code, reals: Reals, now: Now, first: Array, shared: Array) -> None:
    """What further threads do during a step: take pieces as long as there are some."""
    spins = 0
    while True:
        ticket = atomic_load(shared, TICKET)
        n = ticket // PHASE
        if n == OVER:
            return
        if ticket % PHASE < chunk_count(code[n], now):
            ticket = atomic_increment(shared, TICKET)
            n = ticket // PHASE
            if n < OVER and ticket % PHASE < chunk_count(code[n], now):
                run_chunk(code[n], reals[n], now, first, ticket % PHASE)
                atomic_increment(shared, DONE)
            spins = 0
        else:
            spins = spin(spins)


@compile_cached
def step(code: Code, reals: Reals, now: Now, tokens: Array, first: Array, shared: Array) -> None:
    """The whole list for one token of every row. Threads that `assist_step` share it; it can do without."""
    for n in range(len(code)):
        line, op = code[n], code[n, OP]
        if op in (LINEAR, ATTEND):
            count = chunk_count(line, now)
            atomic_store(shared, DONE, 0)
            atomic_store(shared, TICKET, n * PHASE)
            while True:
                c = atomic_increment(shared, TICKET) % PHASE
                if c >= count:
                    break
                run_chunk(line, reals[n], now, first, c)
                atomic_increment(shared, DONE)
            spins = 0
            while atomic_load(shared, DONE) < count:
                spins = spin(spins)
            continue
        for row in range(now[ROWS]):
            position = now[PAST] - first[row]
            if op == EMBED:
                embed_row(line, reals[n], now, row, tokens[row], position)
            elif op == NORM:
                norm_row(line, reals[n], now, row)
            elif op == ROUND:
                round_row_int16(line, now, row)
            else:
                rotate_and_cache(line, now, row, position)
    atomic_store(shared, TICKET, OVER * PHASE)


def _help(jobs: SimpleQueue[Any]) -> None:
    while (job := jobs.get()) is not None:
        assist_step(*job)


def _dismiss(jobs: SimpleQueue[Any], helpers: int) -> None:
    for _ in range(helpers):
        jobs.put(None)


class Team:
    """The calling thread and `threads` − 1 others, which sleep between steps and end with the team."""

    def __init__(self, threads: int) -> None:
        self.helpers, self.jobs = threads - 1, SimpleQueue[Any]()
        for _ in range(self.helpers):
            threading.Thread(target=_help, args=(self.jobs,), daemon=True, name="heedful-rows").start()
        weakref.finalize(self, _dismiss, self.jobs, self.helpers)

    def run(self, code: Any, reals: Any, now: Any, tokens: Any, first: Any, shared: Any) -> None:
        """One step, shared."""
        shared[TICKET] = BEGIN
        for _ in range(self.helpers):
            self.jobs.put((code, reals, now, first, shared))
        step(code, reals, now, tokens, first, shared)
