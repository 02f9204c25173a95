"""Count what a model costs without building it: parameters, FLOPs and memory per token.

parameters           The backbone without task heads. An untied output matrix counts, and so does a pooler
                     that was published with the model.
active               The parameters that one token uses. Experts that it is not sent to do not count, nor
                     the bias that steers the choice of experts.
flops_per_token      2 · (weights a token is multiplied with)  +  4 · T · heads · head size per attention.
                     T is the length. Multiplications and additions count, forward only (training: 3 ×).
                     A plain Transformer layer has 24 · dim² + 4 · T · dim. A causal mask is not deducted,
                     but a window is. An encoder-decoder counts a token on either side.
kv_bytes_per_token   The memory that every further token adds in a decoder: keys and values, or latents. A
                     layer with a window adds nothing once T fills it.
state_bytes          The memory of recurrent layers, which does not grow with the text, and of full windows.
without_embeddings   The size N of scaling laws (Kaplan et al. 2020 §2.1), without tables of tokens,
                     positions and types, and without an untied output matrix.
notes, matrices      Textbooks count GPT-3 this way: the matrices of every head separately, and the output
                     matrix apart from the table even if they are one. No biases, norms or positions.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.core.checks import check_integer
from heedful.core.errors import ConfigError, InputError, NotFound, OutOfMemory
from heedful.models import all_families, find_config
from heedful.models.assembled import has_own_parts
from heedful.models.base import LM, Config, Family, Model, Seq2Seq
from heedful.models.value_names import meta_copy
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.block import Stack
from heedful.nn.context import Context, Mask, Part, PartState
from heedful.nn.embedding import Embedding
from heedful.nn.head import LMHead, Pooler
from heedful.nn.init import outline
from heedful.nn.moe import Experts, MoE, SigmoidRouter
from heedful.nn.state import FixedState, RecurrentState, StateGroup

TABLES = (
    "embed.token", "embed.position", "embed.types", "target_embed.token", "target_embed.position", "head.out",
)  # fmt: skip
LENGTH = 1024  # where neither the caller nor the config says how long a text is


@dataclass(frozen=True)
class Count:
    """What a model costs. Bytes are those of numbers of `width` bytes: 2 for bfloat16."""

    name: str
    parameters: int
    active: int
    components: dict[str, int]  # name → parameters, all layers together; they sum to `parameters`
    heads: dict[str, int]  # kind of task head → what it adds
    flops_per_token: int
    kv_bytes_per_token: int
    state_bytes: int
    memory_bytes_per_token: int  # what every source token adds to the decoder's memory
    notes: int
    matrices: int
    batch: int = 1
    length: int = LENGTH
    width: int = 2

    @property
    def without_embeddings(self) -> int:
        """The parameters less the embedding tables and an untied output matrix."""
        return self.parameters - sum(self.components.get(table, 0) for table in TABLES)

    @property
    def weight_bytes(self) -> int:
        """What the weights take."""
        return self.parameters * self.width

    @property
    def flops(self) -> int:
        """One forward pass over the batch."""
        return self.batch * self.length * self.flops_per_token

    @property
    def cache_bytes(self) -> int:
        """What decoding remembers of the batch at full length."""
        growing = self.length * (self.kv_bytes_per_token + self.memory_bytes_per_token)
        return self.batch * (growing + self.state_bytes)


@torch.no_grad()
def count(
    model: str | Config | Model, batch: int = 1, length: int | None = None, *, width: int = 2, **changes: Any
) -> Count:
    """Count the parameters, the FLOPs and the memory of a preset, a config or a model.

    Nothing is allocated, so the largest models can be counted on a laptop.

    >>> import heedful
    >>> heedful.count("gpt3").parameters
    174604259328
    >>> heedful.count("deepseek-v3").kv_bytes_per_token
    70272
    >>> heedful.count("gpt2", layers=24).parameters
    209494272

    Args:
        model: The name of a preset, a config, or a model.
        batch: The number of rows.
        length: The number of tokens per row. The default is the model's context.
        width: Bytes per number: 2 for bfloat16, 4 for float32.
        changes: Fields of the config that differ from the preset, such as `layers=24`.
    """
    for argument, value in (("batch", batch), ("length", length), ("width", width)):
        if value is not None:
            check_integer(argument, value)
    name, family, config = _identify(model)
    if changes and isinstance(model, Model):
        raise ConfigError(f"a built model already has its own {next(iter(changes))}", hint="give its preset")
    config = config.change(**changes) if changes else config
    with outline():
        own = isinstance(model, Model) and has_own_parts(model)
        built = meta_copy(model) if own and isinstance(model, Model) else family.build(config)
        backbone = built if own else _backbone(family, config, built)
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    T = length or values.get("context") or LENGTH
    learned, steering = _trainable_parameters(backbone), _steering(backbone)
    probe = Probe(config.dim)
    state_numbers = _total_state_numbers(built, T, probe)
    notes = list(_matrices(backbone))
    return Count(
        name=name,
        parameters=learned + steering,
        active=learned - sum(_idle_expert_parameters(m) for m in backbone.modules() if isinstance(m, MoE)),
        components=_components(backbone) | ({"steering": steering} if steering else {}),
        heads={} if own else _heads(family, config, backbone),
        flops_per_token=_flops(built, T, probe),
        kv_bytes_per_token=state_numbers["token"] * width,
        state_bytes=state_numbers["fixed"] * width,
        memory_bytes_per_token=state_numbers["source"] * width,
        notes=sum(size for size, _ in notes),
        matrices=sum(many for _, many in notes),
        batch=batch,
        length=T,
        width=width,
    )


@dataclass
class Probe:
    """Gives a part tokens to read, on `meta`, and counts what its state holds; once for parts alike."""

    dim: int
    seen: dict[tuple[Any, ...], dict[str, int]] = field(default_factory=dict)

    def state_numbers(self, part: Part, length: int) -> dict[str, int]:
        """The numbers in the state of a part, by what they grow with: token, source, or fixed.

        A container's children count for themselves, and so does a part that another one wraps.
        """
        if (own := part.state_numbers(length)) is not None:
            return own
        state = part.new_state(1, length)
        inner = (m for m in part.modules() if isinstance(m, Part) and m is not part)
        if (
            state is None
            or isinstance(state, StateGroup)
            or any(m.new_state(1, 1) is not None for m in inner)
        ):
            return {}
        kind = type(part), type(state), *(p.shape for p in part.parameters())
        key = (*kind,) if isinstance(state, RecurrentState) else (*kind, length)
        if key not in self.seen:
            try:
                self.seen[key] = self._measure(part, state, length)
            except (RuntimeError, NotImplementedError, TypeError) as error:
                reason = str(error).partition("\n")[0]
                raise InputError(
                    f"the state of a {type(part).__name__} cannot be counted ({reason:.160})",
                    hint="its forward must run with its new_state on tensors of `device='meta'`",
                ) from error
        return self.seen[key]

    def _measure(self, part: Part, state: PartState, length: int) -> dict[str, int]:
        if isinstance(state, FixedState):
            return {"source": self._numbers_held(part, 1)}
        if isinstance(state, RecurrentState):
            return {"fixed": self._numbers_held(part, 1)}
        length = max(length, 2)
        whole = self._numbers_held(part, length)
        growth = whole - self._numbers_held(part, length - 1)  # none, once a window is full
        return {"token": growth, "fixed": whole - growth * length}

    def _numbers_held(self, part: Part, length: int) -> int:
        """The numbers in the tensors of a new state after a text of `length` tokens."""
        state = part.new_state(1, length)
        at = torch.arange(length, device="meta")[None]
        x = torch.empty(1, length, self.dim, device="meta")
        part(x, Context(at, at, Mask(causal=True), memory=x), state)
        return sum(t.numel() * (2 if t.is_complex() else 1) for t in _tensors(vars(state)))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in a value, however its tables and lists are nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors(inner)


def _identify(model: str | Config | Model) -> tuple[str, Family, Config]:
    if isinstance(model, str):
        return model, *find_config(model)
    if isinstance(model, Model):
        return model.family.name, model.family, model.config
    having = [family for family in all_families().values() if type(model) is family.config]
    if not having:
        raise NotFound(
            f"no family has a {type(model).__name__}", hint="give a preset's name, a config or a model"
        )
    if len({family.build for family in having}) > 1:
        names = ", ".join(family.name for family in having)
        raise InputError(
            f"a {type(model).__name__} may be any of {names}", hint="give a model with `device='meta'`"
        )
    return having[0].name, having[0], model


def backbone_parameters(family: Family, config: Config) -> int:
    """The parameters alone, as `count` gives them."""
    with outline():
        backbone = _backbone(family, config, family.build(config) if config.head == "lm" else None)
    return _trainable_parameters(backbone) + _steering(backbone)


def _backbone(family: Family, config: Config, model: Model | None) -> Model:
    """The model without its task head, with the pooler that belongs to it; a language model's head stays."""
    if model is not None and (config.head == "none" or isinstance(model.head, LMHead)):
        return model
    try:
        return family.build(config.change(head="none"))
    except ConfigError:  # a family that is never without one
        return model or family.build(config)


def _trainable_parameters(model: Model) -> int:
    return sum(p.numel() for p in model.parameters())


def _steering(model: Model) -> int:
    """Biases that only steer which expert is chosen: no gradient moves them, yet training does."""
    return sum(m.bias.numel() for m in model.modules() if isinstance(m, SigmoidRouter))


def _components(model: nn.Module) -> dict[str, int]:
    """Parameters by part; the layers of a stack together."""
    sizes: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        path = re.sub(r"\.\d+(?=\.)", ".*", name).split(".")[:-1]
        depth = 3 if "*" in path[:2] else 2
        sizes[".".join(path[:depth])] += parameter.numel()
    return dict(sizes)


def _heads(family: Family, config: Config, backbone: Model) -> dict[str, int]:
    """What each kind of task head adds to the backbone. It does not depend on the layers: one will do."""
    sizes: dict[str, int] = {}
    shared = sum(p.numel() for m in backbone.modules() if isinstance(m, Pooler) for p in m.parameters())
    for kind in family.heads:
        if kind in ("lm", "none"):
            continue
        with outline():
            try:
                small = family.build(config.change(head=kind, layers=1))
            except ConfigError:
                small = family.build(config.change(head=kind))
        # A tied matrix goes by the embedding's name and is left out.
        own = sum(p.numel() for name, p in small.named_parameters() if name.startswith("head."))
        pooled = any(isinstance(m, Pooler) for m in small.modules())
        sizes[kind] = own - (shared if pooled else 0)
    return sizes


# ── FLOPs ─────────────────────────────────────────────────────────────────────────────────────────────────


def _flops(model: Model, length: int, probe: Probe) -> int:
    """Of one token's way through the model, in a text of that length."""
    weights = mixed = 0
    for module, times in _visits(model):
        weights += times * _multiplied_weights(module)
        mixed += times * mixing(module, length, probe)
    return 2 * weights + mixed


def _visits(module: nn.Module, times: int = 1) -> Iterator[tuple[nn.Module, int]]:
    """Every module and how often a token passes it: a stack may use one layer at several depths."""
    yield module, times
    uses = Counter(module.depth) if isinstance(module, Stack) else Counter()
    for name, child in module.named_children():
        again = uses[int(name)] if isinstance(module, Stack) and name.isdigit() else 1
        yield from _visits(child, times * again)


def _multiplied_weights(module: nn.Module) -> int:
    """The weights of this module itself that a token is multiplied with. A table is looked up instead."""
    if isinstance(module, nn.Embedding):
        return 0
    own = sum(p.numel() for p in module.parameters(recurse=False) if p.ndim >= 2)
    return (
        own - _idle_expert_parameters(module) if isinstance(module, MoE) else own
    )  # its experts are counted below it, all of them


def _idle_expert_parameters(moe: MoE) -> int:
    """Parameters of the experts that a token is not sent to."""
    return sum(p.numel() for p in moe.parameters()) - moe.active_parameters()


def mixing(part: nn.Module, length: int, probe: Probe) -> int:
    """FLOPs one token spends on the others, if need be by its state: 2 for each number that it reads, as
    often as query heads share it, and 2 more in a recurrent state, which it updates too.
    """
    if not isinstance(part, Part):
        return 0
    if (own := part.mixing_flops(length)) is not None:
        return own
    sizes = probe.state_numbers(part, length)
    if isinstance(part.new_state(1, 1), RecurrentState) and "source" not in sizes:
        return 4 * sizes.get("fixed", 0)
    kv_heads = getattr(part, "kv_heads", None)
    shared = 1 if kv_heads is None else getattr(part, "heads", 1) // kv_heads
    numbers = sizes.get("fixed", 0) + length * (sizes.get("token", 0) + sizes.get("source", 0))
    return 2 * numbers * shared


# ── Memory ────────────────────────────────────────────────────────────────────────────────────────────────


def _total_state_numbers(model: Model, length: int, probe: Probe) -> Counter[str]:
    """Numbers that decoding remembers of a text of that length: per token, per source token, and fixed.

    An encoder has no memory.
    """
    sizes: Counter[str] = Counter()
    if isinstance(model, Seq2Seq):
        stack = model.decoder
    elif isinstance(model, LM) and model.causal:
        stack = model.blocks
    else:
        return sizes
    for module, times in _visits(stack):
        if isinstance(module, Part):
            for kind, size in probe.state_numbers(module, length).items():
                sizes[kind] += times * size
    return sizes


# ── As textbooks count ────────────────────────────────────────────────────────────────────────────────────


def _matrices(model: Model) -> Iterator[tuple[int, int]]:
    """(numbers, matrices) of each part: one query, key and value matrix per head, one of everything else."""
    tables = [m.token.weight for m in model.modules() if isinstance(m, Embedding) and m.vocab]
    yield sum(t.numel() for t in tables), len(tables)
    for module in model.modules():
        if isinstance(module, Experts):
            yield sum(p.numel() for p in module.parameters()), sum(len(p) for p in module.parameters())
        elif isinstance(module, nn.Linear):
            yield module.weight.numel(), 1
        if isinstance(module, Attention):  # its q, k and v were one each
            yield 0, module.heads + 2 * module.kv_heads - 3
        elif isinstance(module, CrossAttention):
            yield 0, 3 * module.heads - 3


def describe(size: Count) -> dict[str, Any]:
    """The count as a table of plain values, for JSON."""
    plain = {f.name: getattr(size, f.name) for f in fields(size)}
    return plain | {
        "without_embeddings": size.without_embeddings,
        "weight_bytes": size.weight_bytes,
        "flops": size.flops,
        "cache_bytes": size.cache_bytes,
    }


# Whether a model fits into the memory of its device, asked before anything is allocated.
#
# needed = parameters × bytes of a number × copies     copies: 1 for the weights alone; in training also the
#                                                      gradients and what the optimiser keeps of each weight


CGROUP = Path("/sys/fs/cgroup")


def parameter_count(family: Family, config: Config) -> int:
    """Return how many numbers a model of this config holds, its head included; nothing is allocated."""
    with outline():
        return sum(p.numel() for p in family.build(config).parameters())


def check_memory(name: str, needed_bytes: int, device: torch.device, hint: str) -> None:
    """Raise OutOfMemory if the device has fewer than `needed_bytes` free.

    `name` begins the sentence: "'gpt3' has 175 B parameters and". `hint` says what to do instead.
    """
    free = available_bytes(device)
    if free is None or needed_bytes <= free:
        return
    raise OutOfMemory(
        f"{name} needs {gigabytes(needed_bytes)}, and {device} has {gigabytes(free)} free", hint=hint
    )


def gigabytes(size: int) -> str:
    """Return a number of bytes in GB, with three digits: 6230444800 → "6.23 GB"."""
    return f"{size / 1e9:,.0f} GB" if size >= 1e11 else f"{size / 1e9:.3g} GB"


def available_bytes(device: torch.device) -> int | None:
    """Return how many bytes a device has free; None where that cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    limits = [_system_free(), _cgroup_free()]
    return min((size for size in limits if size is not None), default=None)


def _system_free() -> int | None:
    """Return what the system could give to a process: free, reclaimable and swap."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _physical_memory()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes["MemAvailable"] + sizes.get("SwapFree", 0) if "MemAvailable" in sizes else _physical_memory()


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup_free() -> int | None:
    """Return what the control group of a container has left; the cache of files in it can be reclaimed."""
    for folder, limit, usage in (
        (CGROUP, "memory.max", "memory.current"),
        (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            allowed, used = (int((folder / name).read_text()) for name in (limit, usage))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
        cached = int(stat.get("inactive_file", stat.get("total_inactive_file", 0)))
        return max(0, allowed - used + cached)
    return None
