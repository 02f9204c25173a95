"""Devices: how one is named, how many threads compute, and how work on a GPU is recorded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from heedful.core.errors import ConfigError, InputError

DeviceName = int | str | torch.device | None


def resolve_device(
    name: DeviceName, error: type[ConfigError] | type[InputError] = ConfigError
) -> torch.device:
    """Return the device of a name; "auto" is a GPU if there is one. Raise `error` for one that is not there.

    A whole number counts GPUs as transformers does: 0 is the first, below 0 is the CPU. None is the CPU.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name is None or (isinstance(name, int) and name < 0):
        return torch.device("cpu")
    try:
        device = torch.device("cuda", name) if isinstance(name, int) else torch.device(name)
    except (RuntimeError, TypeError):
        hint = "use auto, cpu, cuda, cuda:1 or mps"
        raise error("is unknown", hint, argument="device", value=name) from None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    lacks_gpu = device.type == "cuda" and (device.index or 0) >= count
    if lacks_gpu or (device.type == "mps" and not torch.backends.mps.is_available()):
        raise error("is not available: torch finds no such GPU", "use cpu", argument="device", value=name)
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in this thread alone: for small products it takes longer to wake the others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def capture_graph(
    graph: torch.cuda.CUDAGraph,
    pool: Any = None,
    stream: torch.cuda.Stream | None = None,
    *,
    other_threads: bool = False,
) -> Iterator[None]:
    """Record the kernels launched inside into `graph`; if that fails, leave the process able to go on.

    Garbage is collected before and not during the capture: an older graph that is destroyed meanwhile would
    end it. A capture that fails leaves the device's random generator waiting for its end, and every later
    dropout would raise; recording a graph of one kernel, which succeeds, brings the generator back.
    `other_threads` may use the device meanwhile.
    """
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        mode = "thread_local" if other_threads else "global"
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode):
            yield
    except BaseException:
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")
        raise
    finally:
        if collecting:
            gc.enable()
