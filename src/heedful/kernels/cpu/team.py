"""Threads that share one step of a decoder, instruction by instruction (kernels/cpu/rows.py).

The caller works itself and waits for nobody to begin: a thread that is late, or does not run at all because
the machine is busy, finds less left to do.
"""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import Any

from heedful.kernels.cpu import rows as R
from heedful.kernels.cpu.block_tensor import STRIPE
from heedful.kernels.cpu.numba_intrinsics import (
    Array,
    Int,
    atomic_add,
    atomic_load,
    atomic_store,
    compile_cached,
    compile_inline,
    pause,
    sched_yield,
)  # fmt: skip
from heedful.kernels.cpu.rows import Caches, Code, Now, Reals, Rows

TICKET, DONE, PRESENT = 0, 16, 32  # of the words threads share: a cache line each
SHARED = 48  # how many there are
LINGER = 20_000  # moments that a thread waits for the next step before it sleeps: some 0.3 ms
PHASE = 1 << 32  # a ticket is instruction · PHASE + chunk
OVER = 1 << 30  # the instruction after the last
BEGIN = 1 << 31  # a chunk that no instruction has: nothing to do yet


@compile_inline
def chunk_count(line: Code, now: Now) -> Int:
    """How many pieces an instruction has: of weights, of heads and rows, or rows."""
    op, rows = line[R.OP], now[R.ASKED] if line[R.HEAD] and line[R.OP] == R.ROUND else now[R.ROWS]
    if op == R.LINEAR:
        return line[R.CHUNKS]
    if op == R.ATTEND:
        return line[R.CHUNKS] * rows
    return rows


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
    """One of the pieces that threads share."""
    line, op = code[n], code[n, R.OP]
    if op == R.LINEAR:  # some rows of a product and of those joined to it
        for i in range(n, n + line[R.JOINED]):
            out, units = code[i, R.OUT], -(-code[i, R.OUT] // STRIPE)
            low, high = c * units // line[R.CHUNKS] * STRIPE, (c + 1) * units // line[R.CHUNKS] * STRIPE
            if low < high:
                R.linear_rows(code[i], reals[i], now, low, min(high, out))
    elif op == R.ATTEND:
        row, h = c // line[R.HEADS], c % line[R.HEADS]
        end, first = rows[row, R.PAST] + 1, rows[row, R.FIRST]
        R.attend_head(line, reals[n], now, row, h, end, first, caches[line[R.LAYER], row])
    elif op == R.ROUND:
        R.round_row(line, now, c)
    elif op == R.NORM:
        R.norm_row(line, reals[n], now, c)
    elif op == R.EMBED:
        R.embed_row(line, reals[n], now, c, rows[c, R.TOKEN], rows[c, R.PAST] - rows[c, R.FIRST])
    else:
        past = rows[c, R.PAST]
        R.rotate_and_cache(line, now, c, past, past - rows[c, R.FIRST], caches[line[R.LAYER], c])


@compile_cached
def assist_step(code: Code, reals: Reals, now: Now, rows: Rows, caches: Caches, shared: Array) -> None:
    """What further threads do during steps: take pieces as long as there are some, and wait for more."""
    spins = idle = 0
    while idle < LINGER:
        ticket = atomic_load(shared, TICKET)
        n = ticket // PHASE
        if n == OVER:
            idle, spins = idle + 1, spin(spins)
            continue
        idle = 0
        if ticket % PHASE < chunk_count(code[n], now):
            ticket = atomic_add(shared, TICKET, 1)
            n = ticket // PHASE
            if n < OVER and ticket % PHASE < chunk_count(code[n], now):
                run_chunk(code, reals, n, now, rows, caches, ticket % PHASE)
                atomic_add(shared, DONE, 1)
            spins = 0
        else:
            spins = spin(spins)
    atomic_add(shared, PRESENT, -1)


@compile_cached
def invite(shared: Array, helpers: Int) -> Int:
    """Open a step; return how many threads must be woken, and count them as present."""
    atomic_store(shared, TICKET, BEGIN)
    missing = helpers - atomic_load(shared, PRESENT)
    atomic_add(shared, PRESENT, missing)
    return missing


@compile_cached
def step(code: Code, reals: Reals, now: Now, rows: Rows, caches: Caches, shared: Array) -> None:
    """The whole list for one token of every row. Threads that `assist_step` share it; it can do without."""
    next_line = 0
    while next_line < len(code):
        n = next_line
        next_line += code[n, R.JOINED] if code[n, R.OP] == R.LINEAR else 1
        count = chunk_count(code[n], now)
        if count < 2:  # nothing to share
            for c in range(count):
                run_chunk(code, reals, n, now, rows, caches, c)
            continue
        atomic_store(shared, DONE, 0)
        atomic_store(shared, TICKET, n * PHASE)
        while True:
            c = atomic_add(shared, TICKET, 1) % PHASE
            if c >= count:
                break
            run_chunk(code, reals, n, now, rows, caches, c)
            atomic_add(shared, DONE, 1)
        spins = 0
        while atomic_load(shared, DONE) < count:
            spins = spin(spins)
    atomic_store(shared, TICKET, OVER * PHASE)


@compile_cached
def write_most_likely(
    code: Code, reals: Reals, now: Now, rows: Rows, caches: Caches, shared: Array, logits: Array, ends: Array,
    out: Array,
) -> Int:  # fmt: skip
    """Put the most likely tokens after `logits` (B, V) to `out` (B, N), with a step between two columns.

    It stops after a column with a token that ends a text. Return how many columns there are.
    """
    for t in range(out.shape[1]):
        ended = False
        for b in range(len(out)):
            best, top = 0, logits[b, 0]
            for v in range(1, logits.shape[1]):
                if logits[b, v] > top:
                    best, top = v, logits[b, v]
            out[b, t] = rows[b, R.TOKEN] = best
            rows[b, R.PAST] += 1
            for end in ends:
                ended = ended or best == end
        if ended or t + 1 == out.shape[1]:
            return t + 1
        step(code, reals, now, rows, caches, shared)
    return 0


def _help(jobs: SimpleQueue[Any]) -> None:
    while (job := jobs.get()) is not None:
        assist_step(*job)


def _dismiss(jobs: SimpleQueue[Any], helpers: int) -> None:
    for _ in range(helpers):
        jobs.put(None)


class Team:
    """The calling thread and `threads` − 1 others, which sleep between texts and end with the team.

    Waking a thread takes longer than a layer: so one waits for a moment after a step, for another to follow.
    """

    def __init__(self, threads: int) -> None:
        self.helpers, self.jobs = threads - 1, SimpleQueue[Any]()
        for _ in range(self.helpers):
            threading.Thread(target=_help, args=(self.jobs,), daemon=True, name="heedful-rows").start()
        weakref.finalize(self, _dismiss, self.jobs, self.helpers)

    def run(self, code: Any, reals: Any, now: Any, rows: Any, caches: Any, shared: Any, *ahead: Any) -> int:
        """One step, shared; `shared` has SHARED its own words for each list of instructions.

        With what `write_most_likely` takes beyond that, it writes some tokens and returns how many.
        """
        for _ in range(invite(shared, self.helpers)):
            self.jobs.put((code, reals, now, rows, caches, shared))
        if ahead:
            return int(write_most_likely(code, reals, now, rows, caches, shared, *ahead))
        step(code, reals, now, rows, caches, shared)
        return 1
