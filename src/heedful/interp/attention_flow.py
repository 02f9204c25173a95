"""Attention as a network of pipes: how much can flow from a token to a position above it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from heedful.interp.attention import mixed_layers
from heedful.interp.inputs import Input, Text, position_of, reading
from heedful.models.base import Model

SMALLEST = 1e-12  # what is left of a capacity that counts as none


class FlowNetwork:
    """Pipes between numbered nodes, and the most that flows through them (Dinic 1970)."""

    def __init__(self, nodes: int) -> None:
        self.pipes: list[list[int]] = [[] for _ in range(nodes)]  # the numbers of the pipes at each node
        self.ends: list[int] = []
        self.capacities: list[float] = []

    def add(self, start: int, end: int, capacity: float) -> None:
        """Lay a pipe; its number is even, and the next number is the way back."""
        for node, other, size in ((start, end, capacity), (end, start, 0.0)):
            self.pipes[node].append(len(self.ends))
            self.ends.append(other)
            self.capacities.append(size)

    def max_flow(self, source: int, sink: int) -> float:
        """Return the most that flows from the source to the sink; the network stays as it was."""
        left, total = list(self.capacities), 0.0
        while True:
            depth = self._depths(left, source, sink)
            if depth[sink] < 0:
                return total
            following = [0] * len(self.pipes)
            while True:
                path = self._path(left, depth, following, source, sink)
                if not path:
                    break
                size = min(left[pipe] for pipe in path)
                for pipe in path:
                    left[pipe] -= size
                    left[pipe ^ 1] += size
                total += size

    def _depths(self, left: list[float], source: int, sink: int) -> list[int]:
        depth, queue = [-1] * len(self.pipes), deque([source])
        depth[source] = 0
        while queue and depth[sink] < 0:
            node = queue.popleft()
            for pipe in self.pipes[node]:
                if left[pipe] > SMALLEST and depth[self.ends[pipe]] < 0:
                    depth[self.ends[pipe]] = depth[node] + 1
                    queue.append(self.ends[pipe])
        return depth

    def _path(
        self, left: list[float], depth: list[int], following: list[int], source: int, sink: int
    ) -> list[int]:
        """A shortest path of pipes with room; `following` has the pipe each node tries next."""
        path: list[int] = []
        node = source
        while node != sink:
            pipes = self.pipes[node]
            while following[node] < len(pipes):
                pipe = pipes[following[node]]
                if left[pipe] > SMALLEST and depth[self.ends[pipe]] == depth[node] + 1:
                    break
                following[node] += 1
            if following[node] < len(pipes):
                path.append(pipes[following[node]])
                node = self.ends[path[-1]]
            elif path:  # a dead end: go back, and try the next pipe there
                node = self.ends[path.pop() ^ 1]
                following[node] += 1
            else:
                return []
        return path


def attention_flow(
    model: Model, text: Text | Input, target: Text | None = None, *, side: str = "",
    position: int | str | None = -1, report: Callable[[int, int], None] | None = None,
) -> Tensor:  # fmt: skip
    """Return the most that can flow from each input token to `position` of the last layer, (T,)

    (Abnar and Zuidema 2020 §3.) Weights, ½ mean_h pattern + ½ I, are capacities of pipes between layers. With
    position=None of every position, (T, T). `rollout` multiplies where this finds bottlenecks. As there,
    `side` is a stack, and what values and other parts do is not in it. `report` is called with the number of
    flows found and of all, and may raise to stop.
    """
    given = reading(model, text, target)
    layers = mixed_layers(model, given, side)
    count, size = len(layers), layers[0].shape[-1]
    names = given.names if len(given.names) == size else given.tokens
    network = FlowNetwork((count + 1) * size)
    for depth, layer in enumerate(layers, 1):
        for t, s in (layer > 0).nonzero().tolist():
            network.add(depth * size + t, (depth - 1) * size + s, float(layer[t, s]))
    tops = range(size) if position is None else [position_of(names, position)]
    out = torch.zeros(len(tops), size, dtype=torch.float64)
    for i, t in enumerate(tops):
        for s in range(size):
            if report is not None:
                report(i * size + s, len(tops) * size)
            out[i, s] = network.max_flow(count * size + t, s)
    return out if position is None else out[0]
