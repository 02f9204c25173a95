"""Several processes, one model: each reads its rows of a batch, together they take the step that one would.

    Processes               one process alone, which has everything
    DistributedProcesses    several of them, over torch.distributed
      kind ddp     every process holds the whole model; gradients are averaged (Li et al. 2020)
      kind fsdp    weights, gradients and moments are shared out, gathered layer by layer (Zhao et al. 2023)
      tensor n     n processes at a time compute one copy together (models/tensor_parallel.py), with either

What belongs to several processes alone is imported when there are several: it takes seconds.

Counts are averaged over the processes before a loss is divided by them, so the mean of all losses is that
of the whole batch, however unevenly its labels fall. Process 0 writes; of a model that is shared out, each
process writes its own shard.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError, HeedfulError
from heedful.core.files import sha256
from heedful.data.batch import Batch
from heedful.data.batches import StepBatches
from heedful.models.base import LM, Model, Seq2Seq
from heedful.models.tensor_parallel import (
    check_splits,
    gather_dtensor,
    group_by_mesh,
    is_shared,
    parallelize,
)
from heedful.nn.block import Stack

T = TypeVar("T")
Divide = dict[str, Tensor]


class OtherProcessFailed(HeedfulError):
    """Another process failed and has said why."""


class Processes:
    """One process alone. What it would say to others it keeps."""

    rank, world = 0, 1  # which share of the rows of a batch this process reads, and how many shares there are
    is_first = True  # whether this process writes and reports
    sharded = False  # whether weights are shared out

    def split(self, model: Model) -> None:
        """Split the model over the processes that compute one copy of it."""

    def share(self, batches: StepBatches) -> StepBatches:
        """This process's rows of every batch."""
        return batches

    def wrap(self, module: nn.Module, batches: StepBatches, device: torch.device) -> nn.Module:
        """The module whose gradients are those of all processes."""
        return module

    def total(self, counts: Mapping[Any, int]) -> dict[Any, int]:
        """Counts of the whole batch from those of this process's rows."""
        return dict(counts)

    def parts(self, batch: Batch, divide: Divide, count: int) -> Iterator[tuple[Batch, Divide]]:
        """The micro-batches of a step, and what each is divided by."""
        yield from ((part, divide) for part in batch.split(count))

    def turns(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, int]]:
        """The batches this process evaluates, and what each counts: 1, or 0 to keep the others company."""
        yield from ((batch, 1) for batch in batches)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all processes."""
        return values

    def clip(self, weights: Sequence[Tensor], limit: float) -> Tensor:
        """Make the gradient at most this long; return how long it was."""
        return nn.utils.clip_grad_norm_(weights, limit)

    def settle(self) -> None:
        """Share out again what a forward pass has gathered and no backward pass will let go."""

    def run_on_first(self, function: Callable[[], T]) -> T | None:
        """Let process 0 do something while the others wait; if it fails, all fail."""
        return function()

    def run_on_all(self, function: Callable[[], T]) -> T:
        """Let every process do something; if one fails, all fail."""
        return function()

    def any_process(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return flag


class DistributedProcesses(Processes):
    """Several processes that have found each other."""

    def __init__(self, kind: str = "ddp", tensor: int = 1) -> None:
        check_choice("parallel", kind, ("ddp", "fsdp"), ConfigError)
        every = dist.get_world_size()
        if tensor < 1 or every % tensor:
            fits = ", ".join(str(n) for n in range(1, every + 1) if every % n == 0)
            raise ConfigError(f"`tensor={tensor}` does not divide {every} processes", hint=f"choose {fits}")
        if kind == "ddp" and 1 < tensor < every:
            raise ConfigError(
                f"`tensor={tensor}` of {every} processes makes {every // tensor} copies: ddp keeps none",
                hint=f"--set parallel=fsdp for several copies, --set tensor={every} for one",
            )
        self.tensor, self.world = tensor, every // tensor
        self.rank, self.is_first = dist.get_rank() // tensor, dist.get_rank() == 0
        self.kind = kind if self.world > 1 else "one copy"
        self.sharded = kind == "fsdp" or tensor > 1
        self.mesh: Any = None  # (copies, processes of a copy)
        self.module: Any = None
        self.spare: Batch | None = None  # one row, for a process that has none of its own

    def split(self, model: Model) -> None:
        if self.kind == "ddp":
            return
        from torch.distributed.device_mesh import init_device_mesh

        # torch suggests on every process to join dimensions, which slices of slices do not allow.
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        shape, names = (self.world, self.tensor), ("data", "tensor")
        self.mesh = init_device_mesh(model.device.type, shape, mesh_dim_names=names)
        if self.tensor > 1 and model.mesh is None:
            self.run_on_first(lambda: check_splits(model, self.tensor))  # what all would say is said once
            parallelize(model, self.mesh["tensor"])

    def share(self, batches: StepBatches) -> StepBatches:
        self.spare = batches[0].rows(slice(0, 1))
        return batches.shard(self.rank, self.world)

    def wrap(self, module: nn.Module, batches: StepBatches, device: torch.device) -> nn.Module:
        if self.kind == "fsdp":
            module = self._wrap_fsdp(module)
        elif self.kind == "ddp":
            ids = [device.index] if device.type == "cuda" else None
            unused = not self._all_used(module, device)
            module = nn.parallel.DistributedDataParallel(
                module, device_ids=ids, find_unused_parameters=unused
            )
        self.module = module
        return module

    def _all_used(self, module: nn.Module, device: torch.device) -> bool:
        """Whether every weight gets a gradient: experts that no token visits do not, nor unused heads."""
        assert self.spare is not None
        row = self.spare.to(device)
        loss, _ = module(row, dict.fromkeys(("label", "row", "token"), torch.ones((), device=device)))
        loss.backward()
        used = all(p.grad is not None for p in module.parameters() if p.requires_grad)
        module.zero_grad(set_to_none=True)
        return used

    def _wrap_fsdp(self, module: nn.Module) -> nn.Module:
        """Layers that read nothing but their input are gathered one by one; all else together, as the root.

        A decoder's layers also read the encoder's memory, past which their gradients are not waited for: they
        belong to the root. So do layers that share weights.
        """
        from torch.distributed.fsdp import fully_shard

        mesh, model = self.mesh["data"], module.model
        stack = (
            model.encoder if isinstance(model, Seq2Seq) else model.blocks if isinstance(model, LM) else None
        )
        layers = [stack[i] for i in range(len(stack))] if isinstance(stack, Stack) else []
        weights = [id(p) for layer in layers for p in layer.parameters()]
        for layer in layers if len(set(weights)) == len(weights) else ():
            fully_shard(layer, mesh=mesh)
        root: Any = fully_shard(module, mesh=mesh)
        sharded: nn.Module = root
        return sharded

    def total(self, counts: Mapping[Any, int]) -> dict[Any, int]:
        summed = torch.tensor(list(counts.values()), dtype=torch.int64)
        dist.all_reduce(summed)  # the processes of a copy read the same rows
        return dict(zip(counts, (summed // self.tensor).tolist(), strict=True))

    def parts(self, batch: Batch, divide: Divide, count: int) -> Iterator[tuple[Batch, Divide]]:
        """Every process takes `count` parts, or the others would wait for it: what is missing is made up by
        rows that are divided by infinity."""
        assert self.spare is not None
        made = [(part, divide) for part in batch.split(count)] if len(batch) else []
        nothing = {per: torch.full_like(n, float("inf")) for per, n in divide.items()}
        spare = self.spare.to(next(iter(divide.values())).device)
        made += [(spare, nothing)] * (count - len(made))
        for i, part in enumerate(made):
            if self.kind == "ddp":  # gradients travel once, with the last part
                self.module.require_backward_grad_sync = i == count - 1
            yield part

    def turns(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, int]]:
        pending: list[Batch] = []
        for batch in batches:
            pending.append(batch)
            if len(pending) == self.world:
                yield pending[self.rank], 1
                pending = []
        if pending:
            yield pending[min(self.rank, len(pending) - 1)], int(self.rank < len(pending))

    def mean(self, values: Tensor) -> Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values / dist.get_world_size()

    def clip(self, weights: Sequence[Tensor], limit: float) -> Tensor:
        groups = group_by_mesh(weights)
        norms = [nn.utils.get_total_norm([w.grad for w in g if w.grad is not None]) for g in groups]
        norm = torch.linalg.vector_norm(torch.stack([gather_dtensor(n) for n in norms]))
        for group in groups:
            nn.utils.clip_grads_with_norm_(group, limit, norm)
        return norm

    def settle(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        for module in self.module.modules() if self.kind == "fsdp" else ():
            if isinstance(module, FSDPModule):
                module.reshard()

    def run_on_first(self, function: Callable[[], T]) -> T | None:
        return self.run_on_all(function if self.is_first else lambda: None)

    def run_on_all(self, function: Callable[[], T]) -> T:
        done, failure = None, None
        try:
            done = function()
        except Exception as error:
            failure = error
        if self.any_process(failure is not None):
            raise failure or OtherProcessFailed("another process failed", hint="its message says why")
        return cast("T", done)

    def any_process(self, flag: bool) -> bool:
        flags = torch.tensor([int(flag)])
        dist.all_reduce(flags)
        return bool(flags.item())


def save_shards(tensors: Mapping[str, Tensor], folder: Path, processes: Processes) -> dict[str, str]:
    """Write this process's parts of tensors as a file; return the SHA-256 of all files by their names."""
    from torch.distributed import checkpoint as dcp

    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)  # safetensors, no pickles
    with quiet_checkpoint("written"):
        dcp.save(dict(tensors), storage_writer=writer)
    mine = sorted(folder.glob(f"shard-{dist.get_rank() + 1:05d}-*.safetensors"))
    sums: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(sums, processes.run_on_all(lambda: {path.name: sha256([path]) for path in mine}))
    return {name: digest for one in sums for name, digest in one.items()}


def load_shards(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Fill this process's parts of tensors from shards, however many processes wrote them."""
    from torch.distributed import checkpoint as dcp

    with quiet_checkpoint("read"):
        dcp.load(dict(tensors), storage_reader=dcp.HuggingFaceStorageReader(str(folder)))


@contextlib.contextmanager
def quiet_checkpoint(verb: str) -> Iterator[None]:
    """Turn what torch raises about shards on any process, which is not an Exception, into an OSError."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        reasons = {str(failure[0]) for failure in error.failures.values()}
        raise OSError(f"shards could not be {verb}: {'; '.join(sorted(reasons)):.300}") from None


def shared_like(value: Tensor, shared: Tensor, source: int | None = 0) -> Tensor:
    """A tensor, shared out as another one is; process `source` has the values, or (None) each has."""
    if not is_shared(shared) or is_shared(value) or value.dim() == 0:
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placed = shared.device_mesh, shared.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(shared.device), mesh, placed, src_data_rank=source)


def empty_like(shape: Sequence[int], dtype: torch.dtype, shared: Tensor) -> Tensor:
    """A tensor to be filled, shared out as another one is."""
    if not is_shared(shared) or not shape:
        return torch.empty(tuple(shape), dtype=dtype, device=shared.device)
    if shape == shared.shape:
        return torch.empty_like(shared, dtype=dtype)
    from torch.distributed.tensor import empty

    mesh, placed = shared.device_mesh, shared.placements  # type: ignore[attr-defined]
    made: Tensor = empty(*shape, dtype=dtype, device_mesh=mesh, placements=placed)
    return made


@contextlib.contextmanager
def processes(kind: str = "ddp", gpu: bool = False, tensor: int = 1) -> Iterator[Processes]:
    """This process alone, or with those it was started with: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT."""
    # torchrun, Slurm and `heed train --nproc` set both.
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
        if tensor > 1:
            raise ConfigError(
                f"`tensor={tensor}` needs {tensor} processes and this is one", hint=f"add --nproc {tensor}"
            )
        yield Processes()
        return
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # Tensors of the GPU travel by NCCL, counts and flags by gloo: those wait for nothing on the device.
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=timedelta(minutes=30))
    try:
        try:
            joined = DistributedProcesses(kind, tensor)
        except ConfigError as error:  # what all would say is said once
            raise error if dist.get_rank() == 0 else OtherProcessFailed(error.marked_message) from None
        yield joined
    finally:
        dist.destroy_process_group()
