"""The tree of a model: every part with its equation, its sizes and its number of parameters.

A build function assembles a model from parts, and `model_tree` reads the result from top to bottom. Layers
that are alike are listed once: `0 … 11`, or `0, 2 … 94` where two kinds take turns. `value_rows` lists the
values that a `Watch` can record or change, in the order in which a pass computes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from heedful.models.base import Model
from heedful.models.value_names import Shape, value_meaning
from heedful.nn.block import Stack
from heedful.nn.moe import SigmoidRouter


@dataclass
class TreeNode:
    """One part of a model, or several alike."""

    name: str
    kind: str  # its class
    equation: str  # the first line of the class's docstring; "" of torch's own
    parameters: int  # of one; shared ones once
    times: int = 1
    shape: str = ""  # of a matrix: in → out; of a table: rows × columns
    settings: dict[str, int | float] = field(default_factory=dict)  # heads, window, …
    tied: str = ""  # what its matrix is shared with
    children: list[TreeNode] = field(default_factory=list)


def model_tree(model: nn.Module) -> TreeNode:
    """The parts of a model as they are assembled."""
    tables = {id(p): name for name, p in model.named_parameters()}
    return _node("", model, tables, set())


def _node(name: str, module: nn.Module, tables: dict[int, str], visited: set[int]) -> TreeNode:
    ours = type(module).__module__.startswith("heedful")
    doc = (type(module).__doc__ or "").strip() if ours else ""
    node = TreeNode(name, type(module).__name__, doc.split("\n")[0], 0)
    node.settings = _settings(module) if ours else {}
    node.shape = _shape(module)
    for parameter in module.parameters(recurse=False):
        if id(parameter) in visited:
            node.tied = tables[id(parameter)].removesuffix(".weight")
        else:
            visited.add(id(parameter))
            node.parameters += parameter.numel()
    if isinstance(module, SigmoidRouter):  # its bias is moved by training, though by no gradient
        node.parameters += module.bias.numel()
    for label, times, child in _children(module):
        below = _node(label, child, tables, visited)
        below.times = times
        node.parameters += below.parameters * times
        if below.parameters or below.tied or isinstance(child, nn.Linear) or below.equation:
            node.children.append(below)
    return node


def _children(module: nn.Module) -> Iterator[tuple[str, int, nn.Module]]:
    """Children with their names; the layers of a stack that are alike as one."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for name, child in module.named_children():
        if not name.isdigit():
            continue
        groups.setdefault(_signature(child), []).append(int(name))
    for numbers in groups.values():
        yield label(numbers), len(numbers), module.get_submodule(str(numbers[0]))
    for name, child in module.named_children():
        if not name.isdigit():
            yield name, 1, child


def _signature(module: nn.Module) -> tuple[Any, ...]:
    """Equal for modules that are built alike."""
    shapes = tuple(tuple(p.shape) for p in module.parameters(recurse=False))
    below = tuple((name, _signature(child)) for name, child in module.named_children())
    return (type(module), tuple(_values(module).items()), shapes, below)


def _values(module: nn.Module) -> dict[str, int | float | str | bool]:
    """The arguments of a module, as far as they are plain values."""
    given = {k: v for k, v in vars(module).items() if k[0] != "_" and k != "training"}
    return {k: v for k, v in given.items() if isinstance(v, (int, float, str, bool))}


def _settings(module: nn.Module) -> dict[str, int | float]:
    """The whole numbers a part was made with, and the limits of what it computes."""
    in_shape, limits = ("num_embeddings", "embedding_dim"), ("clip", "softcap")
    values = {k: v for k, v in _values(module).items() if isinstance(v, (int, float)) and v}
    settings = {k: v for k, v in values.items() if (type(v) is int and k not in in_shape) or k in limits}
    if isinstance(module, Stack) and len(module) != len(set(module.depth)):
        settings["depth"] = len(module)
    return settings


def _shape(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return f"{module.in_features:,} → {module.out_features:,}{'' if module.bias is None else ' + b'}"
    own = list(module.parameters(recurse=False))
    if not own:
        return ""
    if all(p.shape == own[0].shape for p in own):
        return " × ".join(f"{n:,}" for n in own[0].shape)
    return ", ".join("×".join(str(n) for n in p.shape) for p in own[:4]) + (" …" if len(own) > 4 else "")


@dataclass(frozen=True)
class ValueRow:
    """The values that all layers, or some alike, show under one name."""

    name: str  # a pattern for a Watch if all layers have it: blocks.*.attn.q
    shape: Shape
    meaning: str


def value_rows(model: Model) -> list[ValueRow]:
    """The values that a model shows, in the order of a pass; layers that are alike once."""
    groups: dict[tuple[str, str, Shape], list[int]] = {}  # of what stands before and after a layer's number
    for name, shape in model.names().items():
        stack, number, rest = (*name.split(".", 2), "")[:3]
        key = (f"{stack}.", f".{rest}", shape) if number.isdigit() else (name, "", shape)
        groups.setdefault(key, []).append(int(number) if number.isdigit() else 0)
    layers = {before: set(n) for (before, after, _), n in groups.items() if after == ".input"}
    rows = []
    for (before, after, shape), numbers in groups.items():
        of_all = len(numbers) > 1 and set(numbers) == layers.get(before)
        layer = "" if not after else "*" if of_all else label(numbers)
        rows.append(ValueRow(f"{before}{layer}{after}", shape, value_meaning(f"{before}{layer}{after}")))
    return rows


def label(numbers: Sequence[int]) -> str:
    """[0 … 11] → "0 … 11"; [0, 2, 4, 6] → "0, 2 … 6"; else a list."""
    if len(numbers) < 3:
        return ", ".join(str(n) for n in numbers)
    step = numbers[1] - numbers[0]
    if list(numbers) != list(range(numbers[0], numbers[-1] + 1, step)):
        return ", ".join(str(n) for n in numbers)
    return f"{numbers[0]}{'' if step == 1 else f', {numbers[1]}'} … {numbers[-1]}"


def node_to_dict(node: TreeNode) -> dict[str, Any]:
    """The tree as a table of plain values, for JSON; what is empty is left out."""
    values = {name: value for name, value in vars(node).items() if value not in ("", {}, [])}
    return values | ({"children": [node_to_dict(one) for one in node.children]} if node.children else {})
