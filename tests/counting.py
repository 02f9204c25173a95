"""What a computation costs, counted in operations of torch: the same on every machine, however busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OperationCounter(TorchDispatchMode):
    """Counts the operations of torch."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(compute: Callable[[], object]) -> int:
    """Return how many operations a call takes, backward passes within included."""
    with OperationCounter() as counter:
        compute()
    return counter.count
