"""Tensor parallelism: every process holds a slice of each large matrix   (Shoeybi et al. 2019, Megatron-LM)

    mesh = init_device_mesh("cuda", (4,))
    model = heedful.load("…", device="cuda", mesh=mesh)      each process reads only its slices
    model = heedful.parallelize(model, mesh)                 or split a model that is there

An attention layer is a sum over its heads, and a feed-forward network is a sum over its hidden units. So each
of n processes can own a few heads and a few units: it reads all of x, computes its own terms of the sum, and
one all-reduce adds the terms of all processes. The matrices that make heads and units (q, k, v, gate, up) are
cut by their output columns, those that read them (o, down) by their input rows, experts by expert, and the
vocabulary by token. Norms and other small tensors stay whole in every process.

`PLAN` is the whole plan: class of a part → how its matrices are cut. A part without a row stays whole. Slices
are torch's DTensors, so optimisers, FSDP2 and sharded checkpoints know what they are slices of; a part
computes with the local tensors in them, so its own code, its caches and all of torch's kernels run unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heedful.core.errors import ConfigError, InputError
from heedful.models.base import Model
from heedful.nn.attention.disentangled import DisentangledAttention
from heedful.nn.attention.latent import LatentAttention
from heedful.nn.attention.multi_head import (
    Attention,
    BiasedAttention,
    CrossAttention,
    GatedAttention,
    SinkAttention,
)
from heedful.nn.attention.relative import RelativeAttention, SentenceRelativeAttention
from heedful.nn.attention.sparse import BlockSparseAttention, WindowedAttention
from heedful.nn.block import Stack
from heedful.nn.context import Context, Part, PartState
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP, GatedMLP
from heedful.nn.head import WordHead
from heedful.nn.moe import ClippedExperts, Experts, UngatedExperts
from heedful.nn.norm import HeadLayerNorm, norm_size
from heedful.nn.quantised import Quantised
from heedful.nn.state_space.linear_attention import GatedConv, GatedLinearAttention, LinearAttention
from heedful.nn.state_space.ssm import ShortConv

Mesh = Any  # torch.distributed.device_mesh.DeviceMesh, whose import takes a while


@dataclass(frozen=True)
class Split:
    """How a part is cut: which layers by columns, which one by rows, and which tensors on which axis."""

    columns: tuple[str, ...] = ()
    rows: str = ""
    tensors: Mapping[str, int] = field(default_factory=dict)


EXPERTS = Split(tensors=dict.fromkeys(("gate", "up", "down", "gate_bias", "up_bias", "down_bias"), 0))
RELATIVE = Split(("q", "k", "v", "distance"), "o", {"content_bias": 0, "distance_bias": 0})
PLAN: dict[type[nn.Module], Split] = {
    Attention: Split(("q", "k", "v", "q_norm", "k_norm"), "o"),
    SinkAttention: Split(("q", "k", "v", "q_norm", "k_norm"), "o", {"sinks": 0}),
    GatedAttention: Split(("q", "k", "v", "q_norm", "k_norm", "gate"), "o"),
    BiasedAttention: Split(("q", "k", "v"), "o", {"position_bias.table.weight": 1}),
    WindowedAttention: Split(("q", "k", "v", "first_q", "first_k", "first_v"), "o"),
    BlockSparseAttention: Split(("q", "k", "v"), "o"),
    RelativeAttention: RELATIVE,
    SentenceRelativeAttention: replace(
        RELATIVE, tensors={**RELATIVE.tensors, "sentence_bias": 0, "sentences": 1}
    ),
    CrossAttention: Split(("q", "k", "v"), "o"),
    LatentAttention: Split(("q", "q_up", "kv_up"), "o"),
    DisentangledAttention: Split(("q", "k", "v", "pos_q", "pos_k"), "o"),
    LinearAttention: Split(("q", "k", "v"), "o"),
    GatedLinearAttention: Split(("q", "k", "v", "decay", "gate"), "o"),
    GatedConv: Split(("value", "gate", "conv"), "out"),
    MLP: Split(("up",), "down"),
    GatedMLP: Split(("gate", "up"), "down"),
    Experts: EXPERTS,
    ClippedExperts: EXPERTS,
    UngatedExperts: EXPERTS,
}
# The axis that is cut of each tensor of a layer, LoRA's (up, down) included; others stay whole.
COLUMN_AXES, ROW_AXES = {"weight": 0, "bias": 0, "up": 0}, {"weight": 1, "down": 1}


def local_range(size: int, count: int, rank: int) -> tuple[int, int]:
    """Where process `rank` begins and ends on an axis of `size`: as torch's Shard, the last get less."""
    step = -(-size // count)
    return min(rank * step, size), min((rank + 1) * step, size)


def shares_keys(part: nn.Module, count: int) -> bool:
    """Whether there are fewer key heads than processes, so that several hold one: then k and v stay whole."""
    return isinstance(part, Attention) and part.kv_heads < count


def part_axes(part: nn.Module, count: int) -> dict[str, int]:
    """Map the tensors of a part that are cut, by their names within it, to the axis."""
    split, own = PLAN[type(part)], dict(part.named_parameters())
    axes = {name: axis for name, axis in split.tensors.items() if name in own}
    for layer in (*split.columns, split.rows):
        module = part._modules.get(layer)
        keys = layer in ("k", "v", "k_norm") and shares_keys(part, count)
        if module is None or keys or not isinstance(module, nn.Linear | HeadLayerNorm | ShortConv):
            continue
        cut = ROW_AXES if layer == split.rows else COLUMN_AXES
        axes |= {f"{layer}.{n}": axis for n, axis in cut.items() if module._parameters.get(n) is not None}
    return axes


def split_axes(model: Model, count: int) -> dict[str, int]:
    """Map the tensors of a model that `count` processes cut to the axis; raise ConfigError if they cannot."""
    check_splits(model, count)
    axes: dict[str, int] = {}
    for name, module in model.named_modules():
        if type(module) in PLAN:
            axes |= {f"{name}.{tensor}": axis for tensor, axis in part_axes(module, count).items()}
        elif isinstance(module, Embedding) and type(module.token) is nn.Embedding:
            axes[f"{name}.token.weight"] = 0
        elif isinstance(module, WordHead):
            axes |= {f"{name}.out.{tensor}": 0 for tensor in ("weight", "bias")}
    names = {tensor for tensor, _ in model.named_parameters()}  # a tied matrix has the table's name alone
    return {name: axis for name, axis in axes.items() if name in names}


def check_splits(model: Model, count: int) -> None:
    """Raise ConfigError for a model that `count` processes cannot share."""
    family = model.family.name
    if "quantization" in model.hf_config or any(isinstance(m, Quantised) for m in model.modules()):
        raise ConfigError(
            f"this {family} is quantized, and quantized matrices cannot be split",
            hint="split the model it was made from, or use one process",
        )
    if "pruned" in model.hf_config:
        raise ConfigError("heads were pruned from this model, so it cannot be split", hint="use one process")
    parts = [module for module in model.modules() if type(module) in PLAN]
    if not parts:
        hint = "use one process, or train it with FSDP: heed train … --set parallel=fsdp"
        raise ConfigError(f"{family} has no attention or feed-forward part, so it cannot be split", hint=hint)
    heads = {(int(p.heads), int(getattr(p, "kv_heads", p.heads))) for p in parts if hasattr(p, "heads")}  # type: ignore[arg-type]
    fits = lambda n: all(h % n == 0 and (g % n == 0 or n % g == 0) for h, g in heads)
    if not fits(count):
        numbers = ", ".join(f"{h} heads" + f" with {g} of keys" * (g != h) for h, g in sorted(heads))
        allowed = [n for n in range(1, max(h for h, _ in heads) + 1) if fits(n)]
        listed = " or ".join([", ".join(map(str, allowed[:-1])), str(allowed[-1])] if allowed[1:] else ["1"])
        raise ConfigError(
            f"{count} processes cannot share the {numbers} of this {family}", hint=f"use {listed} processes"
        )
    for part in parts:  # a norm over all key heads is of slices that are all different
        if isinstance(part, Attention) and shares_keys(part, count) and is_wide_norm(part.k_norm, part):
            raise ConfigError(
                f"{family} normalises its {part.kv_heads} key heads together, and {count} processes cannot",
                hint=f"use at most {part.kv_heads} processes",
            )


def is_wide_norm(norm: nn.Module | None, part: Attention) -> bool:
    """Whether a norm of queries or keys is over all heads as one vector."""
    return norm is not None and norm_size(norm) != part.head_dim


def parallelize(model: Model, mesh: Mesh) -> Model:
    """Split a model over the processes of a one-dimensional DeviceMesh, in place, and return it.

    Every process calls this function with the same model. Afterwards each process holds slices of the large
    matrices, and all of them must make the same calls. `heedful.save` writes one normal folder.

    >>> import heedful
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> mesh = init_device_mesh("cpu", (4,))                       # doctest: +SKIP
    >>> model = heedful.parallelize(heedful.build("llama-7b", seed=0), mesh)    # doctest: +SKIP
    """
    plan, parameters = SlicePlan(model, mesh), dict(model.named_parameters())
    for name, (axis, start, end) in plan.slices.items():
        whole = parameters[name]
        own = whole.detach().narrow(axis, start, end - start).clone(memory_format=torch.contiguous_format)
        set_parameter(model, name, own, whole.requires_grad)
    return plan.join(model)


class SlicePlan:
    """Which slices of a model this process holds, found out while the model is whole or an outline.

    `slices` maps the name of a tensor to its axis, its beginning and its end.
    """

    def __init__(self, model: Model, mesh: Mesh) -> None:
        check_whole(model)
        count, rank = mesh_place(mesh)
        self.mesh, axes = mesh, split_axes(model, count)
        self.shapes = {name: p.shape for name, p in model.named_parameters() if name in axes}
        self.slices = {
            name: (axis, *local_range(self.shapes[name][axis], count, rank)) for name, axis in axes.items()
        }

    def join(self, model: Model) -> Model:
        """Make a model whose tensors are these slices compute together with those of the other processes."""
        from torch.distributed.tensor import DTensor, Shard

        if model.device.type != self.mesh.device_type:
            raise InputError(
                f"the model is on {model.device.type} and the mesh is of {self.mesh.device_type}",
                hint=f"use `device={self.mesh.device_type!r}`",
            )
        parameters = dict(model.named_parameters())
        for name, (axis, _, _) in self.slices.items():
            own, shape = parameters[name], self.shapes[name]
            stride = torch.empty(shape, device="meta").stride()
            whole = DTensor.from_local(
                own.detach(), self.mesh, [Shard(axis)], run_check=False, shape=shape, stride=stride
            )
            set_parameter(model, name, whole, own.requires_grad)
        model.tie()

        local: dict[nn.Module, type[Local]] = {}  # the class that stands in front of a module's own
        for name, module in model.named_modules():
            if type(module) in PLAN:
                local[module] = LocalExperts if isinstance(module, Experts) else LocalSum
                for norm in (module.q_norm, module.k_norm) if isinstance(module, Attention) else ():
                    if norm is not None and is_wide_norm(norm, module):
                        local[norm] = LocalNorm
            elif isinstance(module, Stack) and module.bias is not None:
                local[module.bias] = LocalBias
            elif isinstance(module, Embedding) and f"{name}.token.weight" in self.slices:
                local[module.token] = LocalTable
            elif isinstance(module, WordHead):
                local[module.out] = LocalWords
        for module, front in local.items():
            kind = type(module)
            module.__class__ = type(kind.__name__, (front, kind), {"kind": kind})
            cast(Local, module).prepare(self.mesh)
        model.mesh = self.mesh
        model.tie()
        return model


def check_whole(model: nn.Module) -> None:
    """Raise InputError for a model that is split, of which a function needs all."""
    if getattr(model, "mesh", None) is not None:
        raise InputError(
            "this model is split over processes", hint="do this before it is split, or load it in one process"
        )


def mesh_place(mesh: Mesh) -> tuple[int, int]:
    """How many processes share a model, and which of them this one is."""
    if mesh.ndim != 1:
        raise InputError(
            f"mesh has {mesh.ndim} dimensions", hint="give the one that is split: mesh['tensor'], for example"
        )
    return mesh.size(), mesh.get_local_rank()


def set_parameter(model: nn.Module, name: str, value: Tensor, requires_grad: bool) -> None:
    """Put a tensor in the place of a parameter."""
    path, _, leaf = name.rpartition(".")
    model.get_submodule(path)._parameters[leaf] = nn.Parameter(value, requires_grad)


# What goes into a part, what comes out of it, and how each is differentiated.


def enter(x: Tensor, mesh: Mesh) -> Tensor:
    """x itself; going back, the gradients of all processes are summed."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return x
    from torch.distributed.tensor import DTensor, Partial, Replicate

    whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return whole.to_local(grad_placements=[Partial()])


def leave(x: Tensor, mesh: Mesh) -> Tensor:
    """The sum of x over all processes; going back, each gets the gradient of the sum."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        x = x.contiguous()
        dist.all_reduce(x, group=mesh.get_group())
        return x
    from torch.distributed.tensor import DTensor, Partial, Replicate

    terms = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    return terms.redistribute(placements=[Replicate()]).to_local()


def gather_columns(x: Tensor, mesh: Mesh, size: int) -> Tensor:
    """The columns of x of all processes side by side, (…, size)."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    shape = torch.Size((*x.shape[:-1], size))
    stride = torch.empty(shape, device="meta").stride()
    columns = DTensor.from_local(x, mesh, [Shard(x.dim() - 1)], run_check=False, shape=shape, stride=stride)
    return columns.redistribute(placements=[Replicate()]).to_local()


class Local(nn.Module):
    """What stands in front of the class of a module that is split."""

    kind: type[nn.Module]  # its own class
    mesh: Mesh
    place: tuple[int, int]  # how many processes there are, and which of them this one is

    def prepare(self, mesh: Mesh) -> None:
        """Find out which slices this process holds."""
        self.mesh, self.place = mesh, mesh_place(mesh)
        self.tensors = [
            (module._parameters, name, f"{path}.{name}".removeprefix("."))
            for path, module in self.named_modules()
            for name, p in module._parameters.items()
            if p is not None
        ]

    @contextlib.contextmanager
    def own_tensors(self) -> Iterator[None]:
        """Let the part find its own slices as plain tensors while a `with` lasts.

        What stays whole is used by all processes for different heads: its gradients are summed.
        """
        whole = [cast(nn.Parameter, tensors[name]) for tensors, name, _ in self.tensors]
        try:
            for (tensors, name, path), tensor in zip(self.tensors, whole, strict=True):
                tensors[name] = self.own(path, tensor)
            yield
        finally:
            for (tensors, name, _), tensor in zip(self.tensors, whole, strict=True):
                tensors[name] = tensor

    def own(self, name: str, tensor: Tensor) -> Tensor | None:
        """The tensor that this process computes with, in the place of the one of this name."""
        return tensor.to_local() if is_shared(tensor) else enter(tensor, self.mesh)  # type: ignore[attr-defined]


class LocalSum(Local, Part):
    """Σ over the processes of what the part's own class makes of its heads, or of its hidden units."""

    def prepare(self, mesh: Mesh) -> None:
        super().prepare(mesh)
        count, rank = self.place
        self.last = PLAN[self.kind].rows
        self.key_head: int | None = None  # the one that this process shares with others, if it does
        if isinstance(self, Attention):
            self.key_head = rank * self.kv_heads // count if shares_keys(self, count) else None
            self.kv_heads = max(1, self.kv_heads // count)
        if hasattr(self, "heads"):
            self.heads: int = self.heads // count

    def own(self, name: str, tensor: Tensor) -> Tensor | None:
        layer, _, leaf = name.rpartition(".")
        if layer == self.last and leaf == "bias":
            return None  # it is added to the sum, once
        own = cast(Tensor, super().own(name, tensor))
        if self.key_head is None or layer not in ("k", "v", "k_norm") or leaf not in COLUMN_AXES:
            return own
        part = cast(Attention, self)
        if layer == "k_norm":
            return own[self.key_head, None] if isinstance(part.k_norm, HeadLayerNorm) else own
        return own[self.key_head * part.head_dim : (self.key_head + 1) * part.head_dim]

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        bias = cast(nn.Linear, self._modules[self.last]).bias
        if isinstance(self, CrossAttention) and ctx.memory is not None:
            ctx = replace(ctx, memory=enter(ctx.memory, self.mesh))
        with self.own_tensors():
            out = leave(super().forward(enter(x, self.mesh), ctx, state), self.mesh)
        return out if bias is None else out + bias.to(out.dtype)


class LocalExperts(Local, Experts):
    """Σ over the processes of what each one's experts make of the tokens that chose them."""

    def forward(self, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
        start, end = local_range(self.down.shape[0], *self.place)
        x, weights = enter(x, self.mesh), enter(weights, self.mesh)
        tokens, place = ((indices >= start) & (indices < end)).nonzero(as_tuple=True)
        with self.own_tensors():
            chosen, share = indices[tokens, place] - start, weights[tokens, place]
            made = super().forward(x[tokens], share[:, None], chosen[:, None])
        return leave(torch.zeros_like(x).index_add(0, tokens, made), self.mesh)

    def show(self, x: Tensor, weights: Tensor, expert_indices: Tensor, ctx: Context) -> Tensor:
        raise InputError(
            "the experts of a model that is split cannot be watched", hint="load it in one process"
        )


class LocalBias(Local):
    """The bias of this process's heads, (B or 1, H/n, T, S)."""

    def forward(self, ctx: Context) -> Tensor:
        bias = enter(super().forward(ctx), self.mesh)
        start, end = local_range(bias.shape[1], *self.place)
        return bias[:, start:end]


class LocalNorm(Local):
    """This process's heads of a norm over all heads as one vector: they are gathered for it."""

    def forward(self, x: Tensor) -> Tensor:
        count, rank = self.place
        whole = gather_columns(x, self.mesh, count * x.shape[-1])
        normed: Tensor = super().forward(enter(whole, self.mesh))
        return normed.chunk(count, -1)[rank]


class LocalTable(Local, nn.Embedding):
    """The vectors of tokens, each from the process that holds its row."""

    def forward(self, tokens: Tensor) -> Tensor:
        start, end = local_range(self.num_embeddings, *self.place)
        here = (tokens >= start) & (tokens < end)
        with self.own_tensors():
            vectors = super().forward((tokens - start).where(here, 0))
        return leave(vectors.masked_fill(~here[..., None], 0.0), self.mesh)


class LocalWords(Local, nn.Linear):
    """The logits of all words, gathered from the processes that hold their rows."""

    def forward(self, x: Tensor) -> Tensor:
        with self.own_tensors():
            logits = super().forward(enter(x, self.mesh))
        return gather_columns(logits, self.mesh, self.out_features)


# Slices and whole tensors.


def is_shared(value: Any) -> bool:
    """Whether a tensor lies in slices on several processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def gather_dtensor(value: Tensor) -> Tensor:
    """A tensor whose slices may lie on several processes, whole on each."""
    full: Tensor = value.full_tensor() if is_shared(value) else value  # type: ignore[attr-defined]
    return full


def group_by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Whole tensors, and slices by the processes that share them: torch computes with one kind at a time."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        mesh = tensor.device_mesh if is_shared(tensor) else None  # type: ignore[attr-defined]
        groups.setdefault(mesh, []).append(tensor)
    return list(groups.values())


@contextlib.contextmanager
def gather_weights(model: nn.Module) -> Iterator[None]:
    """Give process 0 whole weights while a `with` lasts; all processes must enter it."""
    slices = [
        (m, n, p) for m in model.modules() for n, p in m._parameters.items() if p is not None and is_shared(p)
    ]
    full: dict[int, nn.Parameter] = {}
    for _, _, p in slices:
        if id(p) not in full:  # tied weights stay one
            value = gather_dtensor(p.detach())
            full[id(p)] = nn.Parameter(value.cpu(), p.requires_grad) if dist.get_rank() == 0 else p
    for module, name, p in slices:
        module._parameters[name] = full[id(p)]
    try:
        yield
    finally:
        for module, name, p in slices:
            module._parameters[name] = p
