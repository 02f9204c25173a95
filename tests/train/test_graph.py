"""Recorded steps: which shapes are recorded and when, and that rounding up to few shapes changes no loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from heedful import data
from heedful.data.batch import Batch, pad_batch
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes
from heedful.train.fit import TrainingRun
from heedful.train.objectives import objective
from heedful.train.speed import (
    MAX_GRAPHS,
    WARMUP_STEPS,
    CudaGraphRecorder,
    GraphedStep,
    Result,
    StepFunction,
    batch_shapes,
    copy_batch,
)
from tests.train import toys

Files = dict[str, Path]


class Pretended(CudaGraphRecorder):
    """Records as a graph does: what was recorded reads the memory of the batch it was recorded with."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.recorded, self.replayed = fails, list[int](), list[int]()

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        yield

    def record(self, work: StepFunction, batch: Batch, divide: dict[str, Tensor]) -> StepFunction:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        held, width = batch.clone(), batch.tokens.shape[1]
        self.recorded.append(width)

        def replay(batch: Batch, divide: dict[str, Tensor]) -> Result:
            self.replayed.append(width)
            copy_batch(held, batch)
            return work(held, divide)

        return replay


def summed(batch: Batch, divide: dict[str, Tensor]) -> Result:
    total = batch.tokens.sum().float()
    return total, total, {}


def wide(width: int, value: int = 1) -> Batch:
    return Batch(torch.full((2, width), value))


def test_a_shape_is_recorded_when_it_comes_again_and_then_replayed() -> None:
    recorder = Pretended()
    work = GraphedStep(summed, lambda: None, recorder)
    widths = [3, 4, 3, 4, 3, 5, 4, 5]  # the first three steps are plain whatever they are
    found = [float(work(wide(width, i), {})[0]) for i, width in enumerate(widths)]
    assert found == [2.0 * width * i for i, width in enumerate(widths)]
    assert recorder.recorded == [4, 3, 5]
    assert recorder.replayed == [4, 3, 4, 5]
    assert WARMUP_STEPS == 3


def test_one_shape_is_recorded_after_the_first_steps() -> None:
    recorder = Pretended()
    work = GraphedStep(summed, lambda: None, recorder)
    for _ in range(6):
        work(wide(3), {})
    assert (recorder.recorded, recorder.replayed) == ([3], [3] * 3)


def test_not_more_shapes_are_recorded_than_are_kept() -> None:
    recorder = Pretended()
    work = GraphedStep(summed, lambda: None, recorder)
    for width in [w for w in range(1, MAX_GRAPHS + 9) for _ in range(2)] * 2:
        assert float(work(wide(width), {})[0]) == 2 * width
    assert len(recorder.recorded) == MAX_GRAPHS


def test_what_cannot_be_recorded_is_done_plainly_and_said_once() -> None:
    forgotten = []
    work = GraphedStep(summed, lambda: forgotten.append(True), Pretended(fails=True))
    run = lambda: [float(work(wide(width), {})[0]) for width in (3, 4, 5) * 4]
    with pytest.warns(UserWarning, match=r"recorded \(operation not permitted.*capturing\)") as said:
        found = run()
    assert found == [6, 8, 10] * 4
    assert (len(said), forgotten) == (1, [True])


def test_shapes_tell_apart_what_a_graph_cannot_serve() -> None:
    plain, masked = wide(3), Batch(torch.ones(2, 3).long(), valid=torch.ones(2, 3).bool())
    assert batch_shapes(plain) == batch_shapes(wide(3, 7))
    others = [wide(4), Batch(torch.ones(3, 3).long()), masked, Batch(torch.ones(2, 3).int())]
    assert len({batch_shapes(batch) for batch in [plain, *others]}) == 5


def test_values_are_put_where_a_graph_reads_them() -> None:
    held, new = (Batch(torch.full((2, 3), i), extra={"row": torch.full((2,), i)}) for i in (1, 2))
    places = {name: t.data_ptr() for name, t in held.tensors.items()}
    copy_batch(held, new)
    assert {name: t.data_ptr() for name, t in held.tensors.items()} == places
    assert all((t == 2).all() for t in held.tensors.values())


@pytest.mark.parametrize("family", ["transformer", "rnnsearch", "seq2seq", "luong"])
def test_a_rounded_batch_has_the_same_loss_and_gradients(family: str, files: Files) -> None:
    model = toys.tiny(family, dropout=0.0).double()
    plain = toys.batches_of("translate", files, model=model)[0]
    more = pad_batch(plain, rows=len(plain) + 3, multiple=7, pad=0)
    assert more.tokens.shape[1] > plain.tokens.shape[1]
    found = []
    for batch in (plain, more):
        model.zero_grad()
        loss = objective("translate")(model, batch)["translate"].total
        loss.backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append((loss.detach(), grads, batch.label_count, batch.tokens_read))
    (loss, grads, *counted), (again, others, *recounted) = found
    assert counted == recounted
    torch.testing.assert_close(again, loss, rtol=1e-12, atol=0)
    for a, b in zip(others, grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_a_run_on_rounded_batches_is_recorded_for_each_shape(files: Files) -> None:
    model = toys.tiny("rnnsearch")
    batches = data.parallel(
        [files["source"], files["target"]], toys.WORDS, batch=8, multiple=4, start=model.start_token
    )
    run, recorder = (
        TrainingRun(model, objective("translate"), batches, TrainConfig(steps=20), Processes()),
        Pretended(),
    )
    run.change = GraphedStep(run._change, run._forget, recorder)
    for _ in range(20):
        run.step()
    assert len(recorder.recorded) == len({batch_shapes(batches[i]) for i in range(20)}) < 6
    assert len(recorder.replayed) > 10
