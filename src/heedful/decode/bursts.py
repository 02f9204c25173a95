"""Decoding that never waits for the host: the device feeds its tokens back, some steps at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.decode.stepper import MAX_BURST, EagerStepper

if TYPE_CHECKING:
    from heedful.decode.loop import GeneratedRow, Piece
    from heedful.decode.token_choice import TokenChooser

BURST_SECONDS = 0.004  # of steps that the device takes before the host looks


def copy_to_host(tensors: tuple[Tensor, ...]) -> Callable[[], list[list[Any]]]:
    """Start copying to the host and return a call that waits for the copy, not for later launches."""
    if tensors[0].device.type != "cuda":
        return lambda: [t.tolist() for t in tensors]
    pinned = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    copies = [p.copy_(t, non_blocking=True) for p, t in zip(pinned, tensors, strict=True)]
    copied = torch.cuda.Event()
    copied.record()

    def wait() -> list[list[Any]]:
        copied.synchronize()
        return [c.tolist() for c in copies]

    return wait


def decode_bursts(
    stepper: EagerStepper, rows: list[GeneratedRow], logits: Tensor, choose: TokenChooser
) -> Iterator[Piece]:
    """Yield the tokens that every row gets after `logits` (B, V); rows that are done leave the batch.

    The host launches some steps, and the next before it reads them: as many as take BURST_SECONDS. What a
    row wrote after its end is dropped; none is stepped beyond its limit.
    """
    (tokens,), size, began = choose(logits), 1, time.perf_counter()
    launched, steps = [copy_to_host((tokens[:, None],))], 1  # what is not read yet; tokens of each row so far
    while True:
        more = min(size, min(row.limit for row in rows) - steps)
        if more > 0:
            written = choose.choose_ahead(stepper, tokens, more)
            tokens, steps = written[:, -1], steps + more
            launched.append(copy_to_host((written,)))
        if more > 0 and len(launched) == 1:  # after a row left: launch the next before this one is read
            continue
        texts: list[list[int]] = launched.pop(0)()[0]
        for column in zip(*texts, strict=True):
            for row, token in zip(rows, column, strict=True):
                if row.finish is None:
                    yield row.take(token)
        alive = [i for i, row in enumerate(rows) if row.finish is None]
        if not alive:
            return
        if len(alive) < len(rows):
            rows, index = [rows[i] for i in alive], torch.tensor(alive, device=tokens.device)
            stepper.reorder(index)
            choose.keep(rows, index)
            tokens = tokens[index]
            launched = [select_rows(copied, alive) for copied in launched]
        now = time.perf_counter()
        seconds, began = (now - began) / len(texts[0]), now
        size = max(1, min(MAX_BURST, int(BURST_SECONDS / max(seconds, 1e-6))))


def select_rows(
    copy_rows: Callable[[], list[list[Any]]], indices: list[int]
) -> Callable[[], list[list[Any]]]:
    """Return the same call for some of its rows."""
    return lambda: [[rows[i] for i in indices] for rows in copy_rows()]
