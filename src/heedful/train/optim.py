"""Optimisers and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from heedful.core.errors import ConfigError
from heedful.models.tensor_parallel import gather_dtensor, group_by_mesh
from heedful.train.config import TrainConfig
from heedful.train.distributed import shared_like

TIMED_WARMUP = 0.1  # the share of a run of minutes after which its warm-up ends at the latest
DECAY_SHARE = 5  # wsd falls in the last fifth


def learning_rate(step: int, c: TrainConfig, seconds: float = 0.0) -> float:
    """The learning rate of step 0, 1, …, begun `seconds` after the first.

    Warm-up rises linearly to `lr`; then constant, linear or cosine to `final`·lr (Loshchilov and Hutter
    2017), flat and falling only at the end (wsd: Hu et al. 2024), or 1/√step (Vaswani et al. 2017 eq. 3,
    with lr at its peak). A run of `minutes` follows the share of its time that is used. One that was extended
    begins its schedule again there, rising from the rate it had (Ibrahim et al. 2024, arXiv 2403.08763).
    """
    before, low, seconds_before = c.extended or (0, 0.0, 0.0)
    k = step - before
    if c.minutes is None:
        total = c.steps - before
        warmup = c.warmup if c.extended is None else min(c.warmup or total // 20, total // 2)
        if k < warmup:
            return low + (c.lr - low) * (k + 1) / warmup
        along = (k - warmup) / max(1, total - warmup)
        left = (total - k) / (c.decay if c.decay is not None else max(1, total // DECAY_SHARE))
    else:
        along = min(1.0, (seconds - seconds_before) / (60 * c.minutes - seconds_before))
        risen = max((k + 1) / c.warmup if c.warmup else 1.0, along / TIMED_WARMUP)
        if risen < 1:
            return low + (c.lr - low) * risen
        left = (1 - along) * DECAY_SHARE
    if c.schedule == "linear":
        return c.lr * (1 - (1 - c.final) * along)
    if c.schedule == "cosine":
        return c.lr * (c.final + (1 - c.final) * 0.5 * (1 + math.cos(math.pi * along)))
    if c.schedule == "wsd":
        return c.lr * (c.final + (1 - c.final) * min(1.0, left))
    if c.schedule == "inverse_sqrt":
        return c.lr * math.sqrt(max(1, c.warmup) / max(1, step + 1))
    return c.lr


def groups(model: nn.Module, c: TrainConfig) -> list[dict[str, object]]:
    """Matrices decay, vectors do not; each group keeps its own scale of the learning rate."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim >= 2]
    vectors = [p for p in trained if p.ndim < 2]
    return [{"params": matrices, "weight_decay": c.weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def make_optimisers(model: nn.Module, c: TrainConfig) -> list[Optimizer]:
    """The optimisers of a run: one, or Muon for the blocks' matrices with AdamW for all the rest."""
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(
            "no weight of this model is trainable",
            hint="unfreeze some with requires_grad_; weights in 8 or 4 bits cannot learn, so begin with the "
            "model they were made from",
        )
    if c.optimiser == "muon":
        named = [(n.split("."), m) for n, m in model.named_modules()]
        linear = [m for path, m in named if isinstance(m, nn.Linear) and "head" not in path]
        hidden = {id(m._parameters["weight"]) for m in linear}
        matrices = [p for p in model.parameters() if id(p) in hidden and p.requires_grad]
        rest = [g | {"params": [p for p in g["params"] if id(p) not in hidden]} for g in groups(model, c)]  # type: ignore[attr-defined]
        if not matrices:
            raise ConfigError(
                "`optimiser='muon'` found no matrix of a linear layer to train", hint="use 'adamw'"
            )
        muon = Muon(matrices, lr=first_rate(matrices[0], c), weight_decay=c.weight_decay)
        return [muon, adamw(rest, c)] if any(g["params"] for g in rest) else [muon]
    if c.optimiser == "adafactor":
        return [Adafactor(groups(model, c), lr=c.lr, weight_decay=c.weight_decay)]
    return [adamw(groups(model, c), c)]


def adamw(parameters: Iterable[dict[str, object]], c: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019), one fused kernel for all tensors."""
    groups = [g | {"params": alike} for g in parameters for alike in group_by_mesh(g["params"])]  # type: ignore[arg-type]
    rate = first_rate(groups[0]["params"][0], c)  # type: ignore[index]
    recorded = isinstance(rate, Tensor)
    return torch.optim.AdamW(groups, lr=rate, betas=c.betas, eps=c.eps, fused=True, capturable=recorded)


def first_rate(parameter: Tensor, c: TrainConfig) -> float | Tensor:
    """The learning rate as a number, or as a tensor that a recorded step can read again each time."""
    return torch.tensor(c.lr, device=parameter.device) if c.graph and parameter.is_cuda else c.lr


class Muon(Optimizer):
    """W ← W − lr · s · orthogonalise(momentum), s = 0.2 √max(rows, columns)   (Jordan et al. 2024)

    The scale makes an update as large as AdamW's, so that one learning rate serves both (Liu et al. 2025).
    Of a matrix that is shared out, momentum stays so; to be made orthogonal it is gathered, one at a time.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 3e-4,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group, p, grad in gradients(self):
            state = self.state[p]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(p)
            momentum = state["momentum"].lerp_(grad, 1 - group["momentum"])
            update = orthogonalise(gather_dtensor(grad.lerp(momentum, group["momentum"]))).to(p.dtype)
            p.mul_(1 - group["lr"] * group["weight_decay"])
            rate = group["lr"] * 0.2 * math.sqrt(max(p.shape))
            p.sub_(shared_like(update, p, source=None) * rate)


def gradients(optimiser: Optimizer) -> Iterator[tuple[dict[str, Any], Tensor, Tensor]]:
    """Yield every parameter that has a gradient: the settings of its group, itself, and the gradient."""
    for group in optimiser.param_groups:
        yield from ((group, p, p.grad) for p in group["params"] if p.grad is not None)


def orthogonalise(m: Tensor, rounds: int = 5) -> Tensor:
    """About U Vᵀ for M = U S Vᵀ, by five rounds of X ← aX + (bA + cA²)X, A = XXᵀ   (Jordan et al. 2024)"""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = m.bfloat16() if m.is_cuda else m.to(torch.promote_types(m.dtype, torch.float32))
    x = x.t() if m.shape[0] > m.shape[1] else x
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        gram = x @ x.t()
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.t() if m.shape[0] > m.shape[1] else x


class Adafactor(Optimizer):
    """W ← W − α U / max(1, rms(U)),  U = G / √V,  V = r cᵀ / mean(r)   (Shazeer and Stern 2018 §4, §6)

    r and c are running means of G² over the columns and over the rows; a vector keeps V whole.
    α = max(0.001, rms(W)) · min(lr, 1/√t), as torch.optim.Adafactor has it. Means and norms are of whole
    tensors: one that is shared out is gathered for its step.
    """

    def __init__(
        self, params: Iterable[dict[str, object]], lr: float = 1e-2, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group, p, grad in gradients(self):
            w, g, state = gather_dtensor(p), gather_dtensor(grad), self.state[p]
            if not state:
                state["step"] = torch.tensor(0.0)
                factors = {"row_var": g[..., :1], "col_var": g[..., :1, :]} if g.dim() > 1 else None
                means = factors or {"variance": g}  # a vector keeps V whole
                state |= {name: torch.zeros_like(value) for name, value in means.items()}
            state |= {name: gather_dtensor(value) for name, value in state.items()}  # after a restart
            state["step"] += 1
            t = float(state["step"])
            update = factored_update(g, state, t**-0.8)
            rate = min(group["lr"], t**-0.5) * max(1e-3, float(rms(w)))
            rate /= max(1.0, float(rms(update)))
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_(shared_like(update * rate, p, source=None))


def factored_update(g: Tensor, state: dict[str, Tensor], new: float) -> Tensor:
    """U = G / √V, after V has taken in G² with weight `new`."""
    tiny = torch.finfo(g.dtype).eps
    if g.dim() < 2:
        v = state["variance"].lerp_(g * g, new)
    else:
        row = state["row_var"].lerp_(g.square().mean(-1, keepdim=True), new)
        column = state["col_var"].lerp_(g.square().mean(-2, keepdim=True), new)
        v = row @ column / row.mean(-2, keepdim=True).clamp(min=tiny)
    return g * v.clamp(min=tiny * tiny).rsqrt()


def rms(x: Tensor) -> Tensor:
    """√(mean of squares)."""
    return x.norm() / math.sqrt(x.numel())
