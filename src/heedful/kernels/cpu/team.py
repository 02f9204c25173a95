"""Threads that share one step of a decoder, instruction by instruction (kernels/cpu/rows.py).

The caller works itself and waits for nobody to begin: a thread that is late, or does not run at all because
the machine is busy, finds less left to do.
"""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import Any

from heedful.kernels.cpu.numba_intrinsics import (
    Array,
    Int,
    atomic_increment,
    atomic_load,
    atomic_store,
    compile_cached,
    compile_inline,
    pause,
    sched_yield,
)  # fmt: skip
from heedful.kernels.cpu.rows import (
    ATTEND,
    CHUNKS,
    EMBED,
    FIRST,
    HEADS,
    JOINED,
    LAYER,
    LINEAR,
    NORM,
    OP,
    OUT,
    PAST,
    ROUND,
    ROWS,
    TOKEN,
    Caches,
    Code,
    Now,
    Reals,
    Rows,
    attend_head,
    embed_row,
    linear_rows,
    norm_row,
    rotate_and_cache,
    round_row_int16,
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
def run_chunk(code: Code, reals: Reals, n: Int, now: Now, rows: Rows, caches: Caches, c: Int) -> None:
    """One of the pieces that threads share: some rows of a product and of those joined to it, or one head."""
    line = code[n]
    if line[OP] == LINEAR:
        for i in range(n, n + line[JOINED]):
            out, chunks = code[i, OUT], line[CHUNKS]
            linear_rows(code[i], reals[i], now, c * out // chunks, (c + 1) * out // chunks)
    else:
        row, h = c // line[HEADS], c % line[HEADS]
        end, first = rows[row, PAST] + 1, rows[row, FIRST]
        attend_head(line, reals[n], now, row, h, end, first, caches[line[LAYER], row])


@compile_cached
def assist_step(code: Code, reals: Reals, now: Now, rows: Rows, caches: Caches, shared: Array) -> None:
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
                run_chunk(code, reals, n, now, rows, caches, ticket % PHASE)
                atomic_increment(shared, DONE)
            spins = 0
        else:
            spins = spin(spins)


@compile_cached
def step(code: Code, reals: Reals, now: Now, rows: Rows, caches: Caches, shared: Array) -> None:
    """The whole list for one token of every row. Threads that `assist_step` share it; it can do without."""
    next_line = 0
    while next_line < len(code):
        n = next_line
        line, op = code[n], code[n, OP]
        next_line += line[JOINED] if op == LINEAR else 1
        if op in (LINEAR, ATTEND):
            count = chunk_count(line, now)
            atomic_store(shared, DONE, 0)
            atomic_store(shared, TICKET, n * PHASE)
            while True:
                c = atomic_increment(shared, TICKET) % PHASE
                if c >= count:
                    break
                run_chunk(code, reals, n, now, rows, caches, c)
                atomic_increment(shared, DONE)
            spins = 0
            while atomic_load(shared, DONE) < count:
                spins = spin(spins)
            continue
        for row in range(now[ROWS]):
            past = rows[row, PAST]
            position = past - rows[row, FIRST]
            if op == EMBED:
                embed_row(line, reals[n], now, row, rows[row, TOKEN], position)
            elif op == NORM:
                norm_row(line, reals[n], now, row)
            elif op == ROUND:
                round_row_int16(line, now, row)
            else:
                rotate_and_cache(line, now, row, past, position, caches[line[LAYER], row])
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

    def run(self, code: Any, reals: Any, now: Any, rows: Any, caches: Any, shared: Any) -> None:
        """One step, shared."""
        shared[TICKET] = BEGIN
        for _ in range(self.helpers):
            self.jobs.put((code, reals, now, rows, caches, shared))
        step(code, reals, now, rows, caches, shared)
