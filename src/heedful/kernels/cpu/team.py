"""Threads that share one step of a decoder, instruction by instruction (kernels/cpu/rows.py).

Each thread has a queue of chunks that lie side by side in memory, so it reads one long stretch of a matrix.
A thread that is done takes chunks from the queues of others: one that is late, or does not run at all because
the machine is busy, holds nobody up. While a thread waits for others, it asks memory for the beginning of its
share of the next matrix, so that memory is busy all the time.
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
    prefetch,
    sched_yield,
)  # fmt: skip
from heedful.kernels.cpu.rows import Caches, Code, Now, Reals, Rows

DONE, PRESENT, QUEUES = 0, 16, 32  # words that threads share, a cache line each; then a queue per thread
LINGER = 20_000  # moments that a thread waits for the next step before it sleeps: some 0.3 ms
PHASE = 1 << 32  # a queue is instruction · PHASE + EMPTY + the number of chunks left
EMPTY = 1 << 31  # what is left may fall below zero: threads look and take in two steps
OVER = 1 << 30  # the instruction after the last
NEAR_BYTES = 1 << 17  # of the next matrix that a waiting thread asks for
MANY_ROWS = 128  # of a matrix, at least, in a chunk that is multiplied with many vectors
ASKED_BYTES = 1 << 10  # that it asks for before it looks whether the wait is over


@compile_inline
def queue_count(shared: Array) -> Int:
    return (len(shared) - QUEUES) // 16


@compile_inline
def set_queue(shared: Array, queue: Int, n: Int, left: Int) -> None:
    atomic_store(shared, QUEUES + 16 * queue, n * PHASE + EMPTY + left)


@compile_inline
def chunk_count(line: Code, now: Now) -> Int:
    """How many pieces an instruction has: of weights, of heads and rows, or rows."""
    op, rows = line[R.OP], now[R.ASKED] if line[R.HEAD] and line[R.OP] == R.ROUND else now[R.ROWS]
    if op == R.LINEAR:
        few = rows < R.MANY_VECTORS or line[R.HEAD]
        return line[R.CHUNKS] if few else min(line[R.CHUNKS], max(1, line[R.OUT] // MANY_ROWS))
    if op == R.ATTEND:
        return line[R.CHUNKS] * rows
    return rows


@compile_inline
def first_row(line: Code, c: Int, count: Int) -> Int:
    """The first row of a matrix in piece c of `count`."""
    return c * -(-line[R.OUT] // STRIPE) // count * STRIPE


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
        count = chunk_count(line, now)
        for i in range(n, n + line[R.JOINED]):
            low, high = first_row(code[i], c, count), min(first_row(code[i], c + 1, count), code[i, R.OUT])
            if low < high:
                R.linear_rows(code[i], reals[i], now, low, high)
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
def take_chunks(
    code: Code, reals: Reals, now: Now, rows: Rows, caches: Caches, shared: Array, me: Int
) -> None:
    """Run the chunks of a thread's own queue, then those of other queues."""
    queues = queue_count(shared)
    for i in range(queues):
        queue = (me + i) % queues
        while atomic_load(shared, QUEUES + 16 * queue) % PHASE > EMPTY:
            ticket = atomic_add(shared, QUEUES + 16 * queue, -1)
            n, left = ticket // PHASE, ticket % PHASE - EMPTY
            if left > 0:  # and no other thread took the last one meanwhile
                end = chunk_count(code[n], now) * (queue + 1) // queues
                run_chunk(code, reals, n, now, rows, caches, end - left)
                atomic_add(shared, DONE, 1)


@compile_cached
def ask_ahead(code: Code, n: Int, now: Now, shared: Array, me: Int, asked: Int) -> Int:
    """Ask memory for more of what this thread will read of the matrix after instruction n.

    It has asked for `asked` bytes. Return how many that are now.
    """
    after = n + max(1, code[n, R.JOINED] * (code[n, R.OP] == R.LINEAR))
    while after < len(code) and code[after, R.OP] != R.LINEAR:
        after += 1
    if asked < NEAR_BYTES and after < len(code):
        line, count = code[after], chunk_count(code[after], now)
        first = first_row(line, count * me // queue_count(shared), count)
        stored = first // STRIPE if line[R.KIND] == R.BLOCKS else first
        for place in range(asked, asked + ASKED_BYTES, 64):
            prefetch(line[R.WEIGHT] + stored * line[R.ROW_BYTES] + place)
        return asked + ASKED_BYTES
    return asked


@compile_cached
def assist_step(
    code: Code, reals: Reals, now: Now, rows: Rows, caches: Caches, shared: Array, me: Int
) -> None:
    """What further threads do during steps: take pieces as long as there are some, and wait for more."""
    spins = idle = asked = 0
    last = -1
    while idle < LINGER:
        ticket = atomic_load(shared, QUEUES + 16 * me)
        n = ticket // PHASE
        if n == OVER:
            idle, spins = idle + 1, spin(spins)
        elif n != last or ticket % PHASE > EMPTY:
            take_chunks(code, reals, now, rows, caches, shared, me)
            idle, spins, asked, last = 0, 0, 0, n
        else:
            asked, spins = ask_ahead(code, n, now, shared, me, asked), spin(spins)
    atomic_add(shared, PRESENT, -1)


@compile_cached
def invite(shared: Array) -> Int:
    """Open a step; return how many threads must be woken, and count them as present."""
    for queue in range(queue_count(shared)):
        set_queue(shared, queue, 0, 0)
    missing = queue_count(shared) - 1 - atomic_load(shared, PRESENT)
    atomic_add(shared, PRESENT, missing)
    return missing


@compile_cached
def step(code: Code, reals: Reals, now: Now, rows: Rows, caches: Caches, shared: Array) -> None:
    """The whole list for one token of every row. Threads that `assist_step` share it; it can do without."""
    next_line, queues = 0, queue_count(shared)
    while next_line < len(code):
        n = next_line
        next_line += code[n, R.JOINED] if code[n, R.OP] == R.LINEAR else 1
        count = chunk_count(code[n], now)
        if count < 2:  # nothing to share
            for c in range(count):
                run_chunk(code, reals, n, now, rows, caches, c)
            continue
        atomic_store(shared, DONE, 0)
        for i in range(queues):
            set_queue(shared, i, n, count * (i + 1) // queues - count * i // queues)
        take_chunks(code, reals, now, rows, caches, shared, 0)
        spins = asked = 0
        while atomic_load(shared, DONE) < count:
            asked, spins = ask_ahead(code, n, now, shared, 0, asked), spin(spins)
    for i in range(queues):
        set_queue(shared, i, OVER, 0)


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


def _help(jobs: SimpleQueue[Any], me: int) -> None:
    while (job := jobs.get()) is not None:
        code, reals, now, rows, caches, shared = job
        assist_step(code, reals, now, rows, caches, shared, me)


def _dismiss(jobs: SimpleQueue[Any], helpers: int) -> None:
    for _ in range(helpers):
        jobs.put(None)


class Team:
    """The calling thread and `threads` − 1 others, which sleep between texts and end with the team.

    Waking a thread takes longer than a layer: so one waits for a moment after a step, for another to follow.
    """

    def __init__(self, threads: int) -> None:
        self.jobs, helpers = SimpleQueue[Any](), threads - 1
        for i in range(helpers):
            threading.Thread(target=_help, args=(self.jobs, i + 1), daemon=True, name="heedful-rows").start()
        weakref.finalize(self, _dismiss, self.jobs, helpers)
        self.shared_words = QUEUES + 16 * threads

    def run(self, code: Any, reals: Any, now: Any, rows: Any, caches: Any, shared: Any, *ahead: Any) -> int:
        """One step, shared; `shared` has `shared_words` its own words for each list of instructions.

        With what `write_most_likely` takes beyond that, it writes some tokens and returns how many.
        """
        for _ in range(invite(shared)):
            self.jobs.put((code, reals, now, rows, caches, shared))
        if ahead:
            return int(write_most_likely(code, reals, now, rows, caches, shared, *ahead))
        step(code, reals, now, rows, caches, shared)
        return 1
