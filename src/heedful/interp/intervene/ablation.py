"""Ablation: switch heads or layers off, and see how far the predictions move.

If the predictions stay the same without a head, the model did not need it for this text. The change is
measured as KL(with ‖ without) in nats: 0 means no difference. A head that is off can output zero, or its mean
over a reference text, which is the gentler test because later layers are used to it (Wang et al. 2023, arXiv
2211.00593). A small change does not prove that a head is useless, because other heads can take over its work.
`prune` removes heads for good and returns a smaller model with the same output (Michel et al. 2019).
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.core.progress import report_progress
from heedful.interp.inputs import Input, Result, Text, check_names, part_at, reading
from heedful.interp.intervene.comparison import Edit, Intervention, row_edits
from heedful.interp.intervene.patching import carry as carry  # also offered here
from heedful.interp.intervene.patching import causal_trace as causal_trace
from heedful.interp.intervene.patching import patch as patch
from heedful.interp.observe.attention import attention
from heedful.interp.observe.mixing import parts_of
from heedful.interp.observe.prediction import divergence
from heedful.models.base import Model
from heedful.nn.adapt import KeptHeads
from heedful.nn.attention.multi_head import Attention, CrossAttention
from heedful.nn.context import Watch
from heedful.nn.norm import HeadLayerNorm, norm_size
from heedful.nn.quantised import Quantised

Heads = Mapping[str, Sequence[int]]  # path of a part → its heads: {"blocks.0.attn": [1, 2]}


def without(
    model: Model, heads: Heads | None = None, layers: Sequence[str] = (), *, mean: Text | None = None
) -> Watch:
    """A watch that switches heads and layers off in any call that takes it.

    A head's output (`heads`) becomes zero; a layer ("blocks.3") hands on what it was given. With `mean`, a
    reference text, their mean on that text takes the place of zero. A head writes its mean output over all
    positions, and a layer its input plus the mean of what it adds. Zero is a value that later layers may
    never have seen; the mean takes away only what the head knew of this input (the knockout of Wang et al.
    2023, arXiv 2211.00593). The text itself may be the reference: then a causal model's early tokens hear of
    later ones.
    """
    heads = _head_lists(heads or {})
    if layers:
        check_names(layers)
    for path in (*heads, *layers):
        if part_at(model, path).pattern_kind is None and path not in layers:
            raise InputError(f"{path!r} has no heads", hint=f"switch the layer off with `layers=[{path!r}]`")
    usual = {} if mean is None else means(model, mean, list(heads), layers)
    edits = {f"{path}.heads": _silence(path, which, usual) for path, which in heads.items()}
    for path in layers:
        edits |= _skip(path, usual.get(path))
    return Watch(edit=edits)


def _head_lists(heads: Heads) -> dict[str, list[int]]:
    """Return the numbers of the heads of each part; raise InputError for anything but a table of lists."""
    try:
        return {path: [operator.index(head) for head in which] for path, which in heads.items()}
    except (AttributeError, TypeError):
        raise InputError(
            f"`heads={heads!r:.80}` is not a table of lists of heads",
            hint="name each part and its heads, as in `heads={'blocks.0.attn': [1]}`",
        ) from None


@torch.no_grad()
def means(
    model: Model, reference: Text, heads: Sequence[str] = (), layers: Sequence[str] = ()
) -> dict[str, Tensor]:
    """The means over all positions of a text, special tokens too: of every head of a part, (H, 1, K), under
    "PATH.heads"; of what a layer adds, output − input, (D,), under its path.
    """
    ends = [f"{path}.{end}" for path in layers for end in ("input", "output")]
    names = [f"{path}.heads" for path in heads]
    watch = reading(model, reference).record(model, *names, *ends)
    over = {name: cast(int, axis) for name, axis in watch.positions.items()}
    out = {name: watch[name][0].mean(over[name], keepdim=True) for name in names}
    for path in layers:
        first, last = watch[f"{path}.input"][0], watch[f"{path}.output"][0]
        same = first.shape == last.shape
        out[path] = (last - first).mean(over[f"{path}.output"]) if same else last.new_zeros(())
    return out


def _silence(path: str, which: Sequence[int], means: Mapping[str, Tensor]) -> Edit:
    """Return the edit that takes heads out: they give zero, or their mean."""
    mean = means.get(f"{path}.heads")

    def edit(heads: Tensor) -> Tensor:  # (B, H, T, K)
        for head in which:
            if not 0 <= head < heads.shape[1]:
                raise InputError(f"{path} has heads 0 … {heads.shape[1] - 1}", hint=f"unknown head {head}")
            heads[:, head] = 0.0 if mean is None else mean[head]
        return heads

    return edit


def _skip(path: str, mean: Tensor | None) -> dict[str, Edit]:
    given: list[Tensor] = []

    def remember(x: Tensor) -> Tensor:
        given[:] = [x]
        return x

    def put_back(x: Tensor) -> Tensor:
        if not given or given[0].shape != x.shape:
            raise InputError(f"{path} changes the size of the vectors", hint="such a layer cannot be skipped")
        return given[0] if mean is None else given[0] + mean

    return {f"{path}.input": remember, f"{path}.output": put_back}


@dataclass(frozen=True)
class Ablation(Result):
    """Logits with and without something, and how much the predictions moved."""

    also = ("change",)

    logits: Tensor
    plain: Tensor

    @property
    def change(self) -> Tensor:
        """KL(plain ‖ changed) of each prediction, in nats."""
        return divergence(self.plain, self.logits)[0]


@torch.no_grad()
def ablate(
    model: Model, text: Text, target: Text | None = None, *, heads: Heads | None = None,
    layers: Sequence[str] = (), mean: Text | None = None,
) -> Ablation:  # fmt: skip
    """The logits without these heads and layers: ablate(model, text, heads={"blocks.0.attn": [1]}).

    `mean` is a reference text: its mean takes their place, not zero (see `without`).
    """
    given = reading(model, text, target)
    return Ablation(given.run(model, without(model, heads, layers, mean=mean)), given.run(model))


def prune(model: Model, heads: Heads) -> Model:
    """A copy without these heads: fewer parameters, the same output as with them switched off

    (Michel et al. 2019.) Query heads that share a key head leave together, or equally many from each group.
    A part that stands at several depths can only lose a head at all of them.
    """
    smaller, done = copy.deepcopy(model), set[int]()
    todo = {path: sorted(set(which)) for path, which in _head_lists(heads).items() if which}
    for path, which in todo.items():
        part = part_at(model, path)
        missing = [twin for twin, other in parts_of(model) if other is part and todo.get(twin) != which]
        if missing:
            hint = "remove the same heads from each"
            raise InputError(f"{path} is one part with {', '.join(missing)}", hint=hint)
        if id(part) in done:
            continue  # the same part at another depth
        done.add(id(part))
        parent, _, name = path.rpartition(".")
        setattr(part_at(smaller, parent), name, _shrunk(part_at(smaller, path), path, which))
    if todo:
        smaller.hf_config = smaller.hf_config | {"pruned": True}  # `save` asks
    return smaller


def _shrunk(part: nn.Module, path: str, which: Sequence[int]) -> nn.Module:
    # Where queries are normalised over all heads together, each head depends on all others.
    norm = part.q_norm if isinstance(part, Attention) else None
    separate = norm is None or norm_size(norm) == cast(Attention, part).head_dim
    matrices = {}
    if type(part) in (Attention, KeptHeads, CrossAttention) and separate:
        linears = {n: _dequantised_linear(getattr(part, n)) for n in "qkvo"}
        matrices = {n: m for n, m in linears.items() if m is not None}
    if len(matrices) < 4:
        raise InputError(
            f"{path} is a {type(part).__name__} and cannot lose single heads: only plain attention with "
            "plain matrices can",
            hint="switch them off with ablate instead",
        )
    part = cast(Attention, part)
    if which[0] < 0 or which[-1] >= part.heads:
        raise InputError(f"{path} has heads 0 … {part.heads - 1}, got {list(which)}")
    left = [h for h in range(part.heads) if h not in which]
    if not left:
        raise InputError(
            f"{path} would have no heads left", hint="leave one, or switch the layer off with ablate"
        )
    cross = isinstance(part, CrossAttention)
    groups = _groups(left, part.heads, part.heads if cross else part.kv_heads, path)
    new = _without_matrices(part)
    new.heads = len(left)
    if not cross:
        new.kv_heads = len(groups)
    if isinstance(new, KeptHeads):
        new.kept = tuple(part.kept[h] for h in left) if isinstance(part, KeptHeads) else tuple(left)
    rows = lambda heads: torch.cat([torch.arange(part.head_dim) + h * part.head_dim for h in heads])
    for name, heads in (("q", left), ("k", groups), ("v", groups)):
        matrix, index = matrices[name], rows(heads)
        bias = None if matrix.bias is None else matrix.bias[index]
        setattr(new, name, _linear(matrix.weight[index], bias))
    new.o = _linear(matrices["o"].weight[:, rows(left)], matrices["o"].bias)
    for name, heads in (("q_norm", left), ("k_norm", groups)):
        if isinstance(norm := new._modules.get(name), HeadLayerNorm):
            setattr(new, name, norm.select_heads(heads))
    return new


def _without_matrices(part: Attention) -> Attention:
    """The part without its matrices, and able to pick its heads out of a shared bias."""
    new = copy.copy(part)
    new._modules = {n: m for n, m in part._modules.items() if n not in ("q", "k", "v", "o")}
    if type(part) is not Attention:
        return new
    reduced = KeptHeads.__new__(KeptHeads)
    reduced.__dict__.update(new.__dict__)
    return reduced


def _groups(left: Sequence[int], heads: int, kv_heads: int, path: str) -> list[int]:
    """The key heads that are still asked by somebody; each must be asked by equally many."""
    size = heads // kv_heads
    counts = [sum(h // size == g for h in left) for g in range(kv_heads)]
    if len({n for n in counts if n}) > 1:
        raise InputError(
            f"{path}: {size} query heads share each key head, and {counts} would be left",
            hint="remove whole groups, or the same number from each",
        )
    return [g for g, n in enumerate(counts) if n]


def _dequantised_linear(layer: nn.Module) -> nn.Linear | None:
    """A matrix that rows can be taken from: whole numbers become what they stand for."""
    if isinstance(layer, Quantised):
        return _linear(layer.dequantise(layer.scale.dtype), layer.bias)
    return layer if type(layer) is nn.Linear else None


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    new = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    new.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone())
    return new


# How much each head matters: each is switched off alone. Row b of a batch is the same text without head b.

MAX_ROWS = 16  # heads in one batch
MAX_BYTES = 64 * 2**20  # of one batch's logits


class _ReportingWatch(Watch):
    """A watch that reports progress at every value: a report may raise to stop in the middle of a pass."""

    def __init__(self, done: int, total: int, edit: Mapping[str, Edit] | None = None) -> None:
        super().__init__(edit=edit)
        self.done, self.total = done, total

    def visit(self, name: str, value: Tensor) -> Tensor:
        report_progress("heads", self.done, self.total)
        return super().visit(name, value)


@torch.no_grad()
def each_head_effect(
    model: Model, inputs: Input, heads: Mapping[str, int], *, mean: Text | None = None
) -> Iterator[tuple[str, int, float]]:
    """Yield the part, the number and the effect of every head in turn: the mean KL(plain ‖ without) in nats.

    `heads` has the number of heads of each part. A head that is off gives zero, or with `mean`, a reference
    text, its mean there (see `without`). The numbers are those of one head after the other. Progress is
    reported at every value of a pass, so that whoever waits can stop it in the middle.
    """
    usual = {} if mean is None else means(model, mean, list(heads))
    every = [(path, head) for path, count in heads.items() for head in range(count)]
    plain = inputs.run(model, _ReportingWatch(0, len(every)))
    rows = max(1, min(MAX_ROWS, MAX_BYTES // max(1, plain.numel() * 4)))
    silence = lambda path, head: lambda rows, first: _silence(path, [head], usual)(rows)
    for start in range(0, len(every), rows):
        batch = every[start : start + rows]
        edits = row_edits([[Intervention(f"{path}.heads", None, silence(path, h))] for path, h in batch])
        outputs = inputs.run(model, _ReportingWatch(start, len(every), edits), repeat=len(batch))
        for (path, head), logits in zip(batch, outputs, strict=True):
            yield path, head, float(divergence(plain[0], logits).mean())
    report_progress("heads", len(every), len(every))


def head_effects(
    model: Model, text: Text, target: Text | None = None, *, mean: Text | None = None
) -> dict[str, list[float]]:
    """Return how far predictions move, in nats, when each head alone is switched off, or says its mean."""
    given = reading(model, text, target)
    patterns = attention(model, given).patterns
    counts = {name.removesuffix(".pattern"): pattern.heads for name, pattern in patterns.items()}
    effects: dict[str, list[float]] = {path: [] for path in counts}
    for path, _, change in each_head_effect(model, given, counts, mean=mean):
        effects[path].append(change)
    return effects
