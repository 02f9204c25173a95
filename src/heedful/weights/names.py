"""Which published tensor is which of ours: tables of rows, and how a table meets a model.

A row is (theirs, ours) or (theirs, ours, op). `*` is a number, the same on both sides in turn, and `**` any
name; `{a,b}` stands for one row each. A row names a module, and then covers its weight and bias, or a single
tensor in full.

    ("model.layers.*.self_attn.{q,k,v,o}_proj", "blocks.*.attn.{q,k,v,o}")
    ("h.*.attn.c_attn", ("blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.v"), Fused(transposed=True))

The first row that fits a tensor of ours names it. If the tensor belongs to an embedding or to the head, later
rows say under which other names a file may repeat it, such as an output matrix that is the table of tokens.
Where one side of a row has no braces, its name is used for each of the other side.

Several published tensors may make one of ours, and then also stand in a tuple, with the op `Concatenation`.
A `*` that only the published side has counts the experts that one tensor of ours holds. Loading and saving
are strict: a missing, unexpected or mis-shaped tensor is an error that names it and the nearest one.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from heedful.core.errors import (
    HeedfulError,
    MissingTensor,
    UnexpectedTensor,
    WeightsError,
    WrongShape,
    nearest,
)
from heedful.core.progress import report_progress
from heedful.kernels.cpu.block_tensor import BlockTensor, widened
from heedful.weights.formats.tensor_files import TensorEntry, TensorSource
from heedful.weights.ops import SAME, Alternating, Op, Stacked, Transposed

Row = tuple[Any, ...]
OWN_NAMES: list[Row] = [("**", "**")]  # of weights that are kept under our own names
# Buffers that some programs write and no model needs.
BUFFERS = ("*.rotary_emb.inv_freq", "*position_ids", "*.masked_bias", "rope_f*.weight")
Slices = Mapping[str, tuple[int, int, int]]  # by our name: the axis that is cut, where it begins and ends


@dataclass(frozen=True)
class Link:
    """These published tensors are those of ours, through this op. The names in a table have wildcards."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    op: Op

    def match(self, name: str) -> tuple[list[str], str] | None:
        """The numbers and the leaf ('' or '.weight' …) if `name` is the first of ours; else None."""
        body = re.escape(self.ours[0]).replace(r"\*\*", "(.+)").replace(r"\*", r"(\d+)")
        match = re.fullmatch(body + r"(\.(?:weight|bias))?", name)
        return None if match is None else (list(match.groups()[:-1]), match.groups()[-1] or "")


def braces(text: str) -> list[str]:
    """'a{b,c}d' → ['abd', 'acd']"""
    group = re.search(r"\{([^{}]*)\}", text)
    if group is None:
        return [text]
    return [
        r
        for word in group.group(1).split(",")
        for r in braces(text[: group.start()] + word + text[group.end() :])
    ]


def _fill(pattern: str, numbers: Sequence[str]) -> str:
    for number in numbers:
        pattern = re.sub(r"\*+", number, pattern, count=1)
    return pattern


def expand_rows(rows: Iterable[Row]) -> list[Link]:
    """The rows with their braces expanded."""
    out: list[Link] = []
    for theirs, ours, *rest in rows:
        op = rest[0] if rest else SAME
        if isinstance(ours, tuple) or isinstance(theirs, tuple):
            several = lambda names: names if isinstance(names, tuple) else (names,)
            out.append(Link(several(theirs), several(ours), op))
        else:
            left, right = braces(theirs), braces(ours)
            count = max(len(left), len(right))
            left, right = (names * count if len(names) == 1 else names for names in (left, right))
            out += [Link((t,), (o,), op) for t, o in zip(left, right, strict=True)]
    return out


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor a checkpoint holds, by our name; a shared one once."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    persistent = model.state_dict(keep_vars=True).keys()
    tensors.update({n: b for n, b in model.named_buffers() if n in persistent})
    return tensors


def connect(rows: Iterable[Row], ours: Mapping[str, Tensor]) -> list[Link]:
    """One link for every tensor of ours; an error for one that no row covers."""
    table, links = expand_rows(rows), []
    done: set[str] = set()
    for name, tensor in ours.items():
        for pattern in table if name not in done else ():
            match = pattern.match(name)
            if match is not None:
                numbers, leaf = match
                theirs = [_fill(t, numbers) + leaf for t in pattern.theirs]
                spread = range(tensor.shape[0]) if "*" in theirs[0] else (0,)
                names = tuple(_fill(o, numbers) + leaf for o in pattern.ours)
                published = tuple(t.replace("*", str(i)) for t in theirs for i in spread)
                links.append(Link(published, names, pattern.op))
                done.update(names)
                break
    for name in ours:
        if name not in done:
            raise HeedfulError(
                f"no row names our tensor {name!r}", hint=nearest(name, [o for p in table for o in p.ours])
            )
    return links


def repeated_names(model: nn.Module, rows: Iterable[Row], links: Iterable[Link]) -> dict[str, str]:
    """Names under which a file may repeat a tensor of an embedding or the head → the name it has there."""
    first = {link.ours[0]: link.theirs[0] for link in links if len(link.ours) == len(link.theirs) == 1}
    owner = {id(parameter): name for name, parameter in model.named_parameters()}
    every, ends = model.named_parameters(remove_duplicate=False), ("embed", "target_embed", "head")
    ours = {name: owner[id(p)] for name, p in every if name.split(".")[0] in ends}
    table = getattr(model, "target_embed", None) or model.get_submodule("embed")  # of a head that is not here
    ours.setdefault("head.out.weight", owner[id(table.get_parameter("token.weight"))])
    repeats: dict[str, str] = {}
    for pattern in expand_rows(rows):
        if pattern.op == SAME and len(pattern.theirs) == len(pattern.ours) == 1:
            for name, own in ours.items():
                if own in first and (match := pattern.match(name)) is not None:
                    repeats[_fill(pattern.theirs[0], match[0]) + match[1]] = first[own]
    return {theirs: original for theirs, original in repeats.items() if theirs != original}


def set_tensor(model: nn.Module, name: str, value: Tensor) -> None:
    """Make `value` the parameter or buffer called `name`, without a copy."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._parameters and isinstance(value, BlockTensor):
        module._parameters[leaf] = value.as_parameter()
    elif leaf in module._parameters:
        module._parameters[leaf] = nn.Parameter(value, requires_grad=value.is_floating_point())
    else:
        module._buffers[leaf] = value


@dataclass
class Origin:
    """How a checkpoint was laid out, so that saving gives it back under the same names."""

    names: dict[str, str] = field(default_factory=dict)  # in the table → in the file, where they differ
    copies: dict[str, str] = field(default_factory=dict)  # of a repeated tensor → of what it repeats
    dropped: list[str] = field(default_factory=list)  # buffers that were never needed


def in_file(name: str, entries: Mapping[str, TensorEntry], prefix: str) -> str:
    """The name a table's tensor has in this file: old files leave out the prefix, or call γ and β so."""
    bare = name.removeprefix(f"{prefix}.") if prefix else name
    older = (bare, name)
    for legacy in (*older, *(n.replace("LayerNorm.weight", "LayerNorm.gamma") for n in older),
                   *(n.replace("LayerNorm.bias", "LayerNorm.beta") for n in older)):  # fmt: skip
        if legacy in entries and name not in entries:
            return legacy
    return name


def fill_model(
    model: nn.Module, source: TensorSource, rows: Iterable[Row], *, prefix: str = "",
    copies: Mapping[str, str] | None = None, drop: Sequence[str] = (), dtype: torch.dtype | None = None,
    as_stored: bool = False, slices: Slices | None = None,
) -> Origin:  # fmt: skip
    """Give every tensor of a model made on `meta` its published value.

    `dtype` None is what most matrices have, and wider vectors stay wide, but for the bias of a matrix;
    `as_stored` leaves each in its type. Tensors in `slices` are read and set in that slice only.
    """
    ours = model_tensors(model)
    links = connect(rows, ours)
    copies = repeated_names(model, rows, links) | dict(copies or {})
    names = {theirs: in_file(theirs, source.entries, prefix) for link in links for theirs in link.theirs}
    for repeated, original in copies.items():
        repeats = in_file(repeated, source.entries, prefix)  # a file may keep any one of a tensor's names
        absent = original in names and names[original] not in source.entries
        if absent and repeated not in names and repeats in source.entries:
            names[original] = repeats
    origin = Origin({a: b for a, b in names.items() if a != b})
    _check_names(names, source, copies, (*BUFFERS, *drop), origin, prefix)
    target = dtype or _main_dtype(source.entries[n] for n in names.values())
    for number, link in enumerate(links, 1):
        cut = slices is not None and not slices.keys().isdisjoint(link.ours)
        values = [source.map(names[t]) if cut else source.read(names[t]) for t in link.theirs]
        loaded = _load_slices(link, values, ours, slices or {}) if cut else load_link(link, values, ours)
        for name, value in zip(link.ours, loaded, strict=True):
            added = isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Linear)  # to a product
            stored = value.dtype
            # A vector that was stored wider keeps its digits, unless a type was asked for.
            wide = dtype is None and not added and value.ndim < 2 and stored.itemsize > target.itemsize
            if not (as_stored or wide or stored == target) and value.is_floating_point():
                value = value.to(target)
            set_tensor(model, name, value.contiguous())
        report_progress("tensors", number, len(links))
    for repeated, original in origin.copies.items():
        if not torch.equal(source.read(repeated), source.read(names[original])):
            raise WeightsError(
                f"{repeated!r} should repeat {original!r} but differs",
                hint="does config.json say otherwise than the weights: tie_word_embeddings, architectures?",
            )
    return origin


def _check_names(
    names: Mapping[str, str],
    source: TensorSource,
    copies: Mapping[str, str],
    drop: Sequence[str],
    origin: Origin,
    prefix: str,
) -> None:
    wanted = set(names.values())
    missing = sorted(wanted - set(source.entries))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        instead = nearest(missing[0], source.entries) or "does config.json belong to these weights?"
        raise MissingTensor(f"the file has no tensor {missing[0]!r}{more}", hint=instead)
    for name in sorted(set(source.entries) - wanted):
        original = copies.get(name, copies.get(f"{prefix}.{name}", ""))
        while original in copies and original not in names:  # a copy of a copy repeats what that one repeats
            original = copies[original]
        if original in names:
            origin.copies[name] = original
        elif any(fnmatch.fnmatchcase(name, pattern) for pattern in drop):
            origin.dropped.append(name)
        else:
            instead = nearest(name, wanted) or "does config.json belong to these weights?"
            raise UnexpectedTensor(
                f"the file has a tensor {name!r} that this model has no place for", hint=instead
            )


def load_link(
    link: Link, values: list[Tensor], ours: Mapping[str, Tensor],
    hint: str = "does config.json belong to these weights?",
) -> list[Tensor]:  # fmt: skip
    """Return our tensors of a link; raise WeightsError if their shapes or kinds of number are not `ours`."""
    shapes, first = [ours[name].shape for name in link.ours], values[0]
    loaded: list[Tensor] = []
    try:
        if len(values) == 1 and isinstance(first, BlockTensor) and link.op.moves_rows(first.shape):
            orders = link.op.load([torch.arange(len(first))], shapes)
            loaded = [first.take_rows(order) for order in orders]
        else:
            loaded = link.op.load([widened(value) for value in values], shapes)
    except RuntimeError:
        pass
    if [list(t.shape) for t in loaded] != [list(shape) for shape in shapes]:
        raise WrongShape(
            f"{link.theirs[0]!r} has shape {tuple(values[0].shape)}, "
            f"which does not give {link.ours[0]!r} of shape {tuple(shapes[0])}",
            hint=hint,
        )
    for name, value in zip(link.ours, loaded, strict=True):
        if value.is_floating_point() != ours[name].is_floating_point():
            given, wanted = (str(t.dtype).removeprefix("torch.") for t in (value, ours[name]))
            raise WeightsError(
                f"{link.theirs[0]!r} holds {given}, which cannot be {name!r}, {wanted}",
                hint="was it quantized by a program that heedful does not support?",
            )
    return loaded


def _load_slices(
    link: Link, values: list[Tensor], ours: Mapping[str, Tensor], slices: Slices
) -> list[Tensor]:
    """Return the slices of a link's tensors, copied.

    `values` are views of a file. An op that gives further views reads nothing, and the slice alone is copied.
    Before an op that copies, the experts are chosen, or the rows of heads.
    """
    cuts = [slices.get(name, (0, 0, len(ours[name]))) for name in link.ours]
    axis, start, end = cuts[0]
    stacks = isinstance(link.op, Alternating | Stacked) or (link.op == Transposed() and values[0].ndim == 3)
    if stacks and axis == 0:
        chosen = values[start:end] if isinstance(link.op, Stacked) else [v[start:end] for v in values]
        return load_link(link, chosen, {name: ours[name][start:end] for name in link.ours})
    shapes, first = [ours[name].shape for name in link.ours], values[0]
    fits = [sum(s[0] for s in shapes), *shapes[0][1:]] == list(first.shape)
    if link.op.moves_rows(first.shape) and fits and all(cut[0] == 0 for cut in cuts):
        orders = link.op.load([torch.arange(len(first))], shapes)
        return [first[order[start:end]] for order, (_, start, end) in zip(orders, cuts, strict=True)]
    return [
        value.narrow(axis, start, end - start).clone(memory_format=torch.contiguous_format)
        for value, (axis, start, end) in zip(load_link(link, values, ours), cuts, strict=True)
    ]


def _main_dtype(entries: Iterable[TensorEntry]) -> torch.dtype:
    """The dtype most of the matrices have; nothing is computed in 8 bits, so that those become bfloat16."""
    sizes: Counter[torch.dtype] = Counter()
    for entry in entries:
        if entry.dtype.is_floating_point and len(entry.shape) > 1:
            sizes[entry.dtype] += int(torch.Size(entry.shape).numel())
    most = sizes.most_common(1)[0][0] if sizes else torch.get_default_dtype()
    return most if most.itemsize > 1 else torch.bfloat16


def published_tensors(
    model: nn.Module, rows: Iterable[Row], origin: Origin | None, leave: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Every tensor under its published name.

    `leave` names tensors of ours that no published model has.
    """
    apart = set(leave)
    ours = {name: tensor for name, tensor in model_tensors(model).items() if name not in apart}
    origin = origin or Origin()
    out: dict[str, Tensor] = {}
    for link in connect(rows, ours):
        saved = link.op.save([widened(ours[o].detach()) for o in link.ours])
        for theirs, value in zip(link.theirs, saved, strict=True):
            out[origin.names.get(theirs, theirs)] = value
    for repeated, original in origin.copies.items():
        out[repeated] = out[origin.names.get(original, original)].clone()
    return dict(sorted(out.items()))
