"""The same work on the same shapes, recorded once and replayed: the host launches one thing, not thousands.

A CUDA graph keeps addresses, so a new batch is copied over the old one and results are copied out. Randomness
still follows the seed that is set before each replay. A graph serves one shape of batch; data of many lengths
has few shapes if they are rounded up (data.parallel(multiple=8)).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from heedful.core.devices import capture_graph
from heedful.data.batch import Batch

Result = tuple[Tensor, Tensor, dict[str, Tensor]]
StepFunction = Callable[[Batch, dict[str, Tensor]], Result]

WARMUP_STEPS = 3  # steps done plainly first: libraries make their workspaces, optimisers their moments
MAX_GRAPHS = 64  # shapes that are recorded; what has another one is done plainly


class CudaGraphRecorder:
    """CUDA graphs on one stream. They share their memory: one is replayed after another, results are copied.

    What a graph still needs later (its input, its results) is held, so that no other graph is given the
    same place; all else lives for one replay.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.pool: Any = None  # the memory of the first, and so of all

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Work where it can be recorded while a `with` lasts; afterwards its results may be used."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)

    def record(self, step: StepFunction, batch: Batch, divide: dict[str, Tensor]) -> StepFunction:
        """Return the work for batches of this one's shapes as a replay; capturing runs nothing."""
        torch.cuda.synchronize()
        static_batch, by = batch.clone(), {name: value.clone() for name, value in divide.items()}
        graph = torch.cuda.CUDAGraph()
        with capture_graph(graph, self.pool, self.stream):
            loss, norm, terms = step(static_batch, by)
        self.pool = graph.pool()

        def replay(batch: Batch, divide: dict[str, Tensor]) -> Result:
            copy_batch(static_batch, batch)
            for name, value in divide.items():
                by[name].copy_(value)
            graph.replay()
            return loss.clone(), norm.clone(), {name: t.clone() for name, t in terms.items()}

        return replay


class GraphedStep:
    """work(batch, divide): plainly when a shape comes the first time, recorded the second, then replayed.

    The first time libraries load the kernels of this shape, which nobody may do while recording. If recording
    fails it is given up, with one warning; `forget` clears what half-recorded work has left behind.
    """

    def __init__(
        self, step: StepFunction, forget: Callable[[], None], recorder: CudaGraphRecorder | None = None
    ) -> None:
        self.step, self.forget, self.done = step, forget, 0
        self.recorder = CudaGraphRecorder() if recorder is None else recorder
        self.seen: set[tuple[object, ...]] = set()
        self.recorded: dict[tuple[object, ...], StepFunction] = {}
        self.works = True

    def __call__(self, batch: Batch, divide: dict[str, Tensor]) -> Result:
        key = batch_shapes(batch)
        with self.recorder.on_stream():
            second = key in self.seen and key not in self.recorded
            if self.works and second and self.done >= WARMUP_STEPS and len(self.recorded) < MAX_GRAPHS:
                self._record(key, batch, divide)
            self.done += 1
            self.seen.add(key)
            return self.recorded.get(key, self.step)(batch, divide)

    def _record(self, key: tuple[object, ...], batch: Batch, divide: dict[str, Tensor]) -> None:
        try:
            self.recorded[key] = self.recorder.record(self.step, batch, divide)
        except (RuntimeError, NotImplementedError) as error:
            self.works = False
            self.forget()
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            warning = f"a step could not be recorded ({why}); from now on new shapes are done plainly"
            warnings.warn(warning, stacklevel=2)


def batch_shapes(batch: Batch) -> tuple[object, ...]:
    """Return the names, shapes and types that a recorded graph was made for."""
    return tuple((name, t.shape, t.dtype) for name, t in sorted(batch.tensors.items()))


def copy_batch(target: Batch, new: Batch) -> None:
    """Copy a batch into the tensors that the graph reads."""
    values = new.tensors
    for name, t in target.tensors.items():
        t.copy_(values[name], non_blocking=True)
