"""The stepper for a GPU: steps are replays of one recorded graph, over caches that never move."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from heedful.decode.fast import begins, caches
from heedful.decode.fast_gpu import Choice, Kernel, Launches, Matrices, Unknown, candidates, usual
from heedful.decode.stepper import Plain, resting
from heedful.models.base import LM, Model, State
from heedful.nn.context import PartState, Watch
from heedful.nn.state import KV, Group, Rolling

NAMES = ("qkv", "o", "up", "down", "head")


def record(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Run once to compile, then record; without a GPU the work itself is given."""
    work()
    if device.type != "cuda":
        return work
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def seconds(replay: Callable[[], None], times: int = 5) -> float:
    """Of one replay, the median."""
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)
    ]
    replay()
    for start, end in marks:
        start.record()
        replay()
        end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in marks)[times // 2] / 1e3


def tune(matrices: Matrices, names: tuple[str, ...] = NAMES) -> tuple[Choice, dict[str, dict[str, float]]]:
    """The fastest kernel of each product for one row, and the terabytes per second of all that were tried.

    A trial goes over the matrices of all layers, so that none is found in the cache.
    """
    choice: Choice = {}
    fair = {name: usual(matrices.named(name)[0][1].columns) for name in names}  # for the others: norms fuse
    rates: dict[str, dict[str, float]] = {}
    for name in names:
        found = matrices.named(name)
        size = sum(m.weight.numel() * m.weight.element_size() for _, m in found)
        times: dict[Kernel, float] = {}
        for kernel in candidates(found[0][1].columns):
            if kernel.rows == 0 and found[0][1].scale is not None:
                continue  # the library would widen the matrix first
            launches = Launches(matrices, 1, 8, fair | {name: kernel}, only=name)
            try:
                times[kernel] = seconds(record(launches.run, launches.device))
            except Exception:  # a kernel that does not fit this device is not a choice
                continue
        choice[name] = min(times, key=lambda k: times[k]) if times else usual(found[0][1].columns)
        rates[name] = {str(kernel): size / t / 1e12 for kernel, t in times.items()}
    return choice, rates


def growing(state: PartState | None) -> PartState | None:
    """The same state with all keys and values where a window's last ones would do: a graph's slots are
    positions.
    """
    if isinstance(state, Group):
        return Group({name: growing(part) for name, part in state.parts.items()})
    return KV() if isinstance(state, Rolling) else state


def held_whole(state: PartState | None) -> list[KV] | None:
    """The keys and values in the order of the layers; None if a layer does not hold all of them."""
    found = caches(state)
    return None if found is None or any(isinstance(kv, Rolling) for kv in found) else cast(list[KV], found)


class OnGPU(Plain):
    """Steps as replays of a graph, recorded once for a number of rows and a length.

    `why` says why a model is stepped plainly, None if it is not. `tuned` measures kernels first (seconds).
    """

    def __init__(
        self, model: Model, chunk: int | None = None, *, tuned: bool = False, splits: int = 0
    ) -> None:
        super().__init__(model, chunk)
        self.why: str | None = None
        self.launches: Launches | None = None
        self.at = -1  # what the device's counter says
        self.splits = splits
        try:
            if not isinstance(self.model, LM):
                raise Unknown("an encoder-decoder")
            with resting(self.model):
                self.matrices = Matrices(self.model)
            self.choice: Choice = {n: usual(m[0][1].columns) for n in NAMES if (m := self.matrices.named(n))}
            if tuned:
                self.choice, self.rates = tune(self.matrices)
            Launches(self.matrices, 1, 8, self.choice)
        except Unknown as reason:
            self.why = str(reason)

    @torch.no_grad()
    def make(self, rows: int, room: int) -> Launches:
        """Buffers and graphs for so many rows and positions."""
        launches = Launches(self.matrices, rows, room, self.choice, self.splits)
        self.launches = launches
        self.replay = record(launches.run, launches.device)

        def feed() -> None:
            """A step that writes the likeliest token itself, and reads it in the next."""
            launches.run()
            torch.argmax(launches.logits, -1, out=launches.tokens)
            launches.written.index_copy_(1, launches.past.long(), launches.tokens[:, None])

        self.replay_fed = record(feed, launches.device)
        self.at = -1
        return launches

    @torch.no_grad()
    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        if self.why is not None:
            return super().prefill(prompt, valid, length)
        assert isinstance(self.model, LM)
        rows, need, launches = len(prompt), max(length, prompt.shape[1] + 1), self.launches
        if launches is None or launches.rows != rows or launches.room < need:
            self.launches = launches = None  # the old caches go first
            launches = self.make(rows, -(-need // 64) * 64)
        with resting(self.model):
            state = self.model.new_state(rows, need)
            state.parts = growing(state.parts)
            self.hold(state.parts, launches)
            self.state = self.model.start(prompt, valid=valid, length=need, chunk=self.chunk, state=state)
        self.at = -1
        assert self.state.logits is not None
        return self.state.logits

    def hold(self, parts: PartState | None, launches: Launches) -> None:
        """Let the state write into the graph's own caches."""
        held = held_whole(parts)
        assert held is not None
        for kv, (k, v) in zip(held, launches.caches, strict=True):
            kv.k, kv.v = k, v

    @torch.no_grad()
    def step(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        if self.why is not None or watch is not None or not self.ready(len(tokens)):
            return super().step(tokens, watch)
        assert self.launches is not None
        self.launches.tokens.copy_(tokens)
        self.replay()
        self.count(1)
        return self.launches.logits

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        self.at = -1

    def restore(self, state: State) -> None:
        super().restore(state)
        self.at = -1

    def count(self, steps: int) -> None:
        """Book so many steps that the device has done."""
        state = self.state
        state.past, self.at = state.past + steps, state.past + steps
        if state.valid is not None:
            state.valid = torch.cat((state.valid, state.valid.new_ones(len(state.valid), steps)), 1)

    def ready(self, rows: int) -> bool:
        """Bring the device's counters and caches to where the state is; False if this step must be plain."""
        assert isinstance(self.model, LM)
        state, launches = self.state, self.launches
        held = held_whole(state.parts)
        if held is None:
            return False
        self.model.check_reach(state.past + 1, self.model.embed, state.valid)
        if launches is None or launches.rows != rows or launches.room <= state.past:
            launches = self.make(rows, max(2 * state.past, 64))
        for kv, (k, v) in zip(held, launches.caches, strict=True):
            if kv.k is not k and kv.k is not None and kv.v is not None:
                k[:, :, : state.past], v[:, :, : state.past] = (
                    kv.k[:, :, : state.past],
                    kv.v[:, :, : state.past],
                )
        self.hold(state.parts, launches)
        if self.at != state.past:
            first = begins(state, rows)
            if first is None:
                return False
            launches.past.fill_(state.past)
            launches.first.copy_(torch.tensor(first, dtype=torch.int32))
            self.at = state.past
        return True

    @torch.no_grad()
    def greedy(self, prompt: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """`count` likeliest tokens (B, count). Each is fed back on the device: the host never waits."""
        logits = self.prefill(prompt, valid, prompt.shape[1] + count)
        first = logits.argmax(-1)
        if self.why is not None or not self.ready(len(prompt)):
            raise Unknown(self.why or "padding that is not all on the left")
        assert self.launches is not None
        begin = self.state.past
        self.launches.tokens.copy_(first)
        for _ in range(count - 1):
            self.replay_fed()
        self.count(count - 1)
        return torch.cat((first[:, None], self.launches.written[:, begin + 1 : begin + count]), 1)
