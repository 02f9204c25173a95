"""The loss of a model by an objective: of one batch, as a module, and the mean over many."""

from __future__ import annotations

import contextlib
import itertools

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from heedful.core.errors import InputError
from heedful.data.batch import Batch
from heedful.data.batches import Data, as_batches
from heedful.models.base import Model
from heedful.train.distributed import Processes
from heedful.train.objectives import MeanLoss, Objective, as_terms, counts


class LossModule(nn.Module):
    """Σ weight · total / count over the terms of an objective: the loss that is stepped on and shown.

    Model and objective are one module, so that what wraps it (compiler, processes) sees the whole step.
    """

    def __init__(self, model: Model, purpose: Objective | MeanLoss) -> None:
        super().__init__()
        self.model, self.purpose = model, purpose

    def forward(self, batch: Batch, divide: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        terms = as_terms(self.purpose(self.model, batch), batch)
        shown = {name: term.total.detach() / divide[term.per] for name, term in terms.items()}
        parts = [term.weight * term.total / divide[term.per] for term in terms.values()]
        return torch.stack(parts).sum(), shown


@torch.no_grad()
def mean_losses(
    module: nn.Module,
    batches: Data,
    device: torch.device,
    *,
    dtype: str = "float32",
    max_batches: int | None = None,
    processes: Processes | None = None,
) -> dict[str, float]:
    """Σ loss · answers / Σ answers, over all batches or the first; each term too if there are several."""
    processes = processes or Processes()
    sums: dict[str, float | Tensor] = {}
    for batch, weight in processes.turns(itertools.islice(as_batches(batches).once(), max_batches)):
        divide = {per: torch.full((), float(max(n, 1)), device=device) for per, n in counts(batch).items()}
        with autocast(device, dtype), attention_kernels(device):
            loss, terms = module(batch.to(device), divide)
        answers = weight * batch.label_count
        for name, value in {"answers": 1.0, "loss": loss, **(terms if len(terms) > 1 else {})}.items():
            sums[name] = sums.get(name, 0.0) + value * answers
    processes.settle()
    if not sums:
        raise InputError(
            f"an evaluation of max_batches={max_batches} reads nothing", hint="give at least 1, or None"
        )
    tensors = [torch.as_tensor(v, device=device).double() for v in sums.values()]
    answers, *values = processes.mean(torch.stack(tensors)).tolist()
    return {name: value / (answers or 1.0) for name, value in zip(list(sums)[1:], values, strict=True)}


def autocast(device: torch.device, dtype: str) -> contextlib.AbstractContextManager[None]:
    """Multiply matrices in bfloat16 if that is the dtype; weights and sums stay float32."""
    return contextlib.nullcontext() if dtype == "float32" else torch.autocast(device.type, torch.bfloat16)


def attention_kernels(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """On a GPU, cuDNN's attention before the others: faster where it applies; elsewhere nothing changes."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    kinds = [
        SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
    ]  # fmt: skip
    return sdpa_kernel(kinds, set_priority=True)
