"""Devices: how one is named, and how work on a GPU is recorded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def capture_graph(
    graph: torch.cuda.CUDAGraph, pool: Any = None, stream: torch.cuda.Stream | None = None
) -> Iterator[None]:
    """Record the kernels launched inside into `graph`; if that fails, leave the process able to go on.

    Garbage is collected before and not during the capture: an older graph that is destroyed meanwhile would
    end it. A capture that fails leaves the device's random generator waiting for its end, and every later
    dropout would raise; recording a graph of one kernel, which succeeds, brings the generator back.
    """
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            yield
    except BaseException:
        _end_failed_capture()
        raise
    finally:
        if collecting:
            gc.enable()


def _end_failed_capture() -> None:
    """Bring the random generator of the current device out of a capture that failed."""
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")
