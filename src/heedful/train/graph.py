"""The same work on the same shapes, recorded once and replayed: the host launches one thing, not thousands.

A CUDA graph keeps addresses, so a new batch is copied over the old one and results are copied out. Randomness
still follows the seed that is set before each replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch
from torch import Tensor

from heedful.data.batch import Batch

Result = tuple[Tensor, Tensor, dict[str, Tensor]]
Work = Callable[[Batch, dict[str, Tensor]], Result]

WARM = 3  # steps done plainly first, so that libraries have chosen their kernels and made their workspaces


class Replayed:
    """work(batch, divide), on a stream of its own; recorded after a few steps for the shapes it sees then."""

    def __init__(self, work: Work) -> None:
        self.work, self.done = work, 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.shapes: tuple[object, ...] = ()

    def __call__(self, batch: Batch, divide: dict[str, Tensor]) -> Result:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if self.done == WARM:
                self._record(batch, divide)
            self.done += 1
            if self.graph is None or shapes(batch) != self.shapes:
                result = self.work(batch, divide)
            else:
                copy_over(self.batch, batch)
                for name, value in divide.items():
                    self.divide[name].copy_(value)
                self.graph.replay()
                loss, norm, terms = self.result
                result = loss.clone(), norm.clone(), {name: t.clone() for name, t in terms.items()}
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def _record(self, batch: Batch, divide: dict[str, Tensor]) -> None:
        """Record the work without doing it: capturing runs nothing."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.batch, self.shapes = batch.copied(), shapes(batch)
        self.divide = {name: value.clone() for name, value in divide.items()}
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.result = self.work(self.batch, self.divide)


def tensors(batch: Batch) -> dict[str, Tensor]:
    """Every tensor of a batch by name."""
    own = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name != "extra"}
    return {name: t for name, t in (own | dict(batch.extra)).items() if t is not None}


def shapes(batch: Batch) -> tuple[object, ...]:
    """What must be equal for a recorded graph to serve."""
    return tuple((name, t.shape, t.dtype) for name, t in sorted(tensors(batch).items()))


def copy_over(held: Batch, new: Batch) -> None:
    """Put a batch's values where the graph reads them."""
    values = tensors(new)
    for name, t in tensors(held).items():
        t.copy_(values[name], non_blocking=True)
