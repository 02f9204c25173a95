"""Which published tensor is which of ours: tables of rows, and how a table meets a model.

A row is (theirs, ours) or (theirs, ours, op). `*` is a number, the same on both sides in turn; `{a,b}` stands
for one row each. A row names a module, and then covers its weight and bias, or a single tensor in full.

    ("model.layers.*.self_attn.{q,k,v,o}_proj", "blocks.*.attn.{q,k,v,o}")
    ("h.*.attn.c_attn", ("blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.v"), Fused(transposed=True))

Several published tensors may make one of ours, and then stand in a tuple, too, with the op `Concatenation`.
A `*` that only the published side has counts the experts that one tensor of ours holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from heedful.core.errors import HeedfulError, nearest
from heedful.kernels.block_tensor import BlockTensor
from heedful.weights.ops import SAME, Op

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Link:
    """These published tensors are those of ours, through this op."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    op: Op


@dataclass(frozen=True)
class _Pattern:
    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    op: Op

    def match(self, name: str) -> tuple[list[str], str] | None:
        """The numbers and the leaf ('' or '.weight' …) if `name` is the first of ours; else None."""
        body = re.escape(self.ours[0]).replace(r"\*", r"(\d+)")
        found = re.fullmatch(body + r"(\.(?:weight|bias))?", name)
        return None if found is None else (list(found.groups()[:-1]), found.groups()[-1] or "")


def braces(text: str) -> list[str]:
    """'a{b,c}d' → ['abd', 'acd']"""
    found = re.search(r"\{([^{}]*)\}", text)
    if found is None:
        return [text]
    return [
        r
        for word in found.group(1).split(",")
        for r in braces(text[: found.start()] + word + text[found.end() :])
    ]


def _fill(pattern: str, numbers: Sequence[str]) -> str:
    for number in numbers:
        pattern = pattern.replace("*", number, 1)
    return pattern


def expand_rows(rows: Iterable[Row]) -> list[_Pattern]:
    """The rows with their braces expanded."""
    out: list[_Pattern] = []
    for theirs, ours, *rest in rows:
        op = rest[0] if rest else SAME
        if isinstance(ours, tuple) or isinstance(theirs, tuple):
            several = lambda names: names if isinstance(names, tuple) else (names,)
            out.append(_Pattern(several(theirs), several(ours), op))
        else:
            out += [_Pattern((t,), (o,), op) for t, o in zip(braces(theirs), braces(ours), strict=True)]
    return out


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor a checkpoint holds, by our name; a shared one once."""
    found: dict[str, Tensor] = dict(model.named_parameters())
    persistent = model.state_dict(keep_vars=True).keys()
    found.update({n: b for n, b in model.named_buffers() if n in persistent})
    return found


def own_rows(model: nn.Module) -> list[Row]:
    """A table for weights that are kept under our own names."""
    stars = {re.sub(r"\.\d+(?=\.)", ".*", name) for name in model_tensors(model)}
    return [(name, name) for name in sorted(stars)]


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
