"""The parts of a model as a graph: what writes to the residual stream, and what reads from it.

    writes   embed   blocks.0.attn   blocks.0.ffn   blocks.0.attn head 3
    reads    blocks.1.attn   blocks.1.ffn   logits   blocks.1.attn.q head 2   (also k and v)

In a pre-norm model every read is the sum of all writes before it (Elhage et al. 2021). So one write can be
changed for one read alone, which is what path patching and edge attribution do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from heedful.core.errors import InputError, nearest
from heedful.interp.inputs import layer_names, output_matrix, part_at, stack_of
from heedful.models.base import Model
from heedful.nn.attention.multi_head import Attention, join_heads
from heedful.nn.block import Block, ParallelBlock, SandwichBlock
from heedful.nn.context import Watch

PROJECTIONS = ("q", "k", "v")


class Node(NamedTuple):
    """A write or a read. `depth` orders them: a read at a depth is of all writes below it."""

    name: str
    depth: int
    value: str  # the watched name of what is written, or of what a norm is given
    head: int | None = None
    projection: str = ""  # q, k or v of a read by one head

    @property
    def part(self) -> str:
        """Return the name without its head: "blocks.0.attn head 3" is of blocks.0.attn."""
        return self.name.partition(" ")[0]


class NodeTable:
    """All nodes of a model: `writes` are whole parts. An error where layers do not add to one stream."""

    def __init__(self, model: Model) -> None:
        where, stack = stack_of(model)
        embedding = layer_names(model, predicting=True)[0]
        writes, reads, depth = [Node("embed", 0, embedding)], [], 1
        for i in range(len(stack)):
            block, path = stack[i], f"{where}.{i}"
            if not isinstance(block, Block | ParallelBlock) or getattr(block, "order", "pre") == "post":
                raise InputError(
                    f"{path} adds to no stream that later parts read: its norm stands after the sum, or it "
                    "adds nothing",
                    hint="edges and paths need a pre-norm model; use activation_patching",
                )
            shared = isinstance(block, ParallelBlock) and not block.separate
            if shared:  # all parts read one norm
                reads.append(Node(path, depth, f"{path}.norm.input"))
            for name in block.names:
                if not shared:
                    reads.append(Node(f"{path}.{name}", depth, f"{path}.{name}_norm.input"))
                writes.append(Node(f"{path}.{name}", depth, f"{path}.{name}.output"))
                depth += isinstance(block, Block)
            depth += isinstance(block, ParallelBlock)
        last = f"{where}.{len(stack) - 1}.output"  # read by the last norm alone
        reads.append(Node("logits", depth, last))
        self.model, self.writes, self.reads = model, writes, reads

    def head_writes(self) -> list[Node]:
        """Return every head of every attention as a write."""
        return [
            node._replace(name=f"{node.name} head {h}", head=h)
            for node in self.writes[1:]
            for h in range(self._heads(node.name))
        ]

    def head_reads(self, projection: str) -> list[Node]:
        """Return what each head's queries, keys or values are made of, as reads."""
        reads = []
        for write in self.writes[1:]:
            if isinstance(part_at(self.model, write.name), Attention):
                block = write.name.rpartition(".")[0]  # which reads for all its parts if they share a norm
                norm = next(node for node in self.reads if node.name in (write.name, block))
                count = self._heads(write.name, projection)
                reads += [
                    norm._replace(name=f"{write.name}.{projection} head {h}", head=h, projection=projection)
                    for h in range(count)
                ]
        return reads

    def find_writes(self, names: Sequence[str] | str | None) -> list[Node]:
        """Return the writes of these names: all parts by default, all heads for "heads"."""
        if names is None:
            return list(self.writes)
        if names == "heads":
            return self.head_writes()
        return _find(names, [*self.writes, *self.head_writes()])

    def find_reads(self, names: Sequence[str] | str | None) -> list[Node]:
        """Return the reads of these names: all parts and the logits by default; "q", "k", "v" of heads."""
        if names is None:
            return list(self.reads)
        if names in PROJECTIONS:
            return self.head_reads(names)
        return _find(names, [*self.reads, *(node for p in PROJECTIONS for node in self.head_reads(p))])

    def _heads(self, path: str, projection: str = "q") -> int:
        if output_matrix(self.model, path) is None or isinstance(
            part_at(self.model, path.rpartition(".")[0]), SandwichBlock
        ):
            return 0  # what is added is not one matrix times what its heads say, side by side
        attention = cast(Attention, part_at(self.model, path))
        return attention.kv_heads if projection in ("k", "v") else attention.heads

    def value_names(self, nodes: Sequence[Node]) -> list[str]:
        """Return the watched names from which `output_change` computes what the nodes write."""
        return list(dict.fromkeys(map(self.value_name, nodes)))

    def value_name(self, node: Node) -> str:
        """Return the watched name of what a node writes, or of what its output matrix reads."""
        if node.head is None:
            return node.value
        return f"{node.part}.{'hidden' if part_at(self.model, node.part).pattern_leaves_out else 'heads'}"

    def head_entries(self, node: Node, value: Tensor) -> Tensor:
        """Return the entries of a head in the value of `value_names`, (B, T, K), as a view."""
        assert node.head is not None
        if value.dim() == 4:
            return value[:, node.head]
        heads = cast(Attention, part_at(self.model, node.part)).heads
        return value.unflatten(-1, (heads, -1))[:, :, node.head]

    def output_change(
        self, node: Node, watch: Watch | Mapping[str, Tensor], other: Watch | Mapping[str, Tensor]
    ) -> Tensor:
        """Return what a node writes in one run beyond what it writes in another, (B, T, D)."""
        name = self.value_name(node)
        change = watch[name] - other[name]
        if node.head is None:
            return change
        only = torch.zeros_like(change)
        self.head_entries(node, only).copy_(self.head_entries(node, change))
        only = join_heads(only) if only.dim() == 4 else only
        attention = cast(Attention, part_at(self.model, node.part))
        with torch.no_grad():
            wrote: Tensor = attention.o(only) - attention.o(torch.zeros_like(only[:1, :1]))
        return wrote


def _find(names: Sequence[str] | str, nodes: Sequence[Node]) -> list[Node]:
    by_name = {node.name: node for node in nodes}
    wanted = [names] if isinstance(names, str) else names
    if not wanted:
        raise InputError("no node was named", hint="name some, or leave the argument out for all parts")
    for name in wanted:
        if name not in by_name:
            hint = nearest(name, by_name) or f"there are {', '.join(list(by_name)[:6])} …"
            raise InputError(f"no node {name!r}", hint=hint)
    return [by_name[name] for name in wanted]
