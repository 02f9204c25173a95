"""Between a file of published tensors and a model: filling one from the other, and giving it back.

Strict both ways: a missing, unexpected or mis-shaped tensor is an error that names it and the nearest one.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from heedful.core.errors import MissingTensor, UnexpectedTensor, WeightsError, WrongShape, nearest
from heedful.core.progress import report_progress
from heedful.kernels.block_tensor import BlockTensor, widened
from heedful.weights.formats.tensor_files import TensorEntry, TensorSource
from heedful.weights.names import Link, Row, connect, model_tensors, set_tensor


@dataclass
class Origin:
    """How a checkpoint was laid out, so that saving gives it back under the same names and dtypes."""

    names: dict[str, str] = field(
        default_factory=dict
    )  # name in the table → name in the file, where they differ
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)  # by name in the file
    copies: dict[str, str] = field(
        default_factory=dict
    )  # name of a repeated tensor → name of what it repeats
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
    as_stored: bool = False,
) -> Origin:  # fmt: skip
    """Give every tensor of a model made on `meta` its published value.

    `dtype` None is what most matrices have, and wider vectors stay wide, but for the bias of a matrix;
    `as_stored` leaves each in its own.
    """
    ours = model_tensors(model)
    links = connect(rows, ours)
    names = {theirs: in_file(theirs, source.entries, prefix) for link in links for theirs in link.theirs}
    for repeated, original in (copies or {}).items():
        kept = in_file(repeated, source.entries, prefix)  # a file may keep any one of a tensor's names
        absent = original in names and names[original] not in source.entries
        if absent and repeated not in names and kept in source.entries:
            names[original] = kept
    origin = Origin(
        {a: b for a, b in names.items() if a != b}, {n: e.dtype for n, e in source.entries.items()}
    )
    _check_names(names, source, copies or {}, drop, origin, prefix)
    target = dtype or _main_dtype(source.entries[n] for n in names.values())
    for number, link in enumerate(links, 1):
        values = [source.read(names[t]) for t in link.theirs]
        for name, value in zip(link.ours, _load(link, values, ours), strict=True):
            added = isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Linear)  # to a product
            value = value if as_stored else _cast(value, target, keep_wide=dtype is None and not added)
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


def _load(link: Link, values: list[Tensor], ours: Mapping[str, Tensor]) -> list[Tensor]:
    """Return our tensors of a link; raise WeightsError if their shapes or kinds of number are not `ours`."""
    shapes, first = [ours[name].shape for name in link.ours], values[0]
    loaded: list[Tensor] = []
    try:
        if len(values) == 1 and isinstance(first, BlockTensor) and link.op.moves_rows:
            loaded = [
                BlockTensor(rows.contiguous(), first.kind) for rows in link.op.load([first.blocks], shapes)
            ]
        else:
            loaded = link.op.load([widened(value) for value in values], shapes)
    except RuntimeError:
        pass
    if [list(t.shape) for t in loaded] != [list(shape) for shape in shapes]:
        raise WrongShape(
            f"{link.theirs[0]!r} has shape {tuple(values[0].shape)}, "
            f"which does not give {link.ours[0]!r} of shape {tuple(shapes[0])}",
            hint="does config.json belong to these weights?",
        )
    for name, value in zip(link.ours, loaded, strict=True):
        if value.is_floating_point() != ours[name].is_floating_point():
            given, wanted = (str(t.dtype).removeprefix("torch.") for t in (value, ours[name]))
            raise WeightsError(
                f"{link.theirs[0]!r} holds {given}, which cannot be {name!r}, {wanted}",
                hint="is it quantised by a program that is not read here?",
            )
    return loaded


def _main_dtype(entries: Iterable[TensorEntry]) -> torch.dtype:
    """The dtype most of the matrices have; nothing is computed in 8 bits, so that those become bfloat16."""
    sizes: Counter[torch.dtype] = Counter()
    for entry in entries:
        if entry.dtype.is_floating_point and len(entry.shape) > 1:
            sizes[entry.dtype] += int(torch.Size(entry.shape).numel())
    most = sizes.most_common(1)[0][0] if sizes else torch.get_default_dtype()
    return most if most.itemsize > 1 else torch.bfloat16


def _cast(value: Tensor, dtype: torch.dtype, *, keep_wide: bool) -> Tensor:
    """To `dtype`; a vector that was stored wider keeps its digits unless a dtype was asked for."""
    if not value.is_floating_point() or value.dtype == dtype:
        return value
    if keep_wide and value.ndim < 2 and value.dtype.itemsize > dtype.itemsize:
        return value
    return value.to(dtype)


def published_tensors(
    model: nn.Module, rows: Iterable[Row], origin: Origin | None, leave: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Every tensor under its published name, in the dtype it came in (a wider one of ours is kept).

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
