"""Seconds of work that a GPU does, or a CPU where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def synchronise() -> None:
    """Wait until the GPU has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_call(work: Callable[[], Any]) -> float:
    """Return the seconds of one call, from an idle device to an idle device."""
    synchronise()
    began = time.perf_counter()
    work()
    synchronise()
    return time.perf_counter() - began
