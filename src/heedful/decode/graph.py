"""The stepper for a GPU: steps are replays of one recorded graph, over caches that never move."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from heedful.decode.fallback import FastStepper, Unknown, fingerprint
from heedful.decode.fast import begins, caches
from heedful.decode.fast_gpu import Launches
from heedful.decode.gpu_matrices import (
    Attending,
    Choice,
    Kernel,
    Matrices,
    attendings,
    candidates,
    usual,
)
from heedful.decode.gpu_reading import read, reads
from heedful.decode.stepper import evaluation_mode
from heedful.devices import capture_graph
from heedful.errors import InputError
from heedful.models.base import LM, Model, State
from heedful.nn.context import PartState, Watch
from heedful.nn.state import KV, Group, Rolling

NAMES = ("qkv", "o", "up", "down", "head")
READ_FROM = 2048  # tokens of prompts; fewer are read soon enough by the plain pass


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
    with capture_graph(graph):
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


def fair_choice(matrices: Matrices) -> Choice:
    """Kernels for one row without measuring."""
    found = {name: matrices.named(name) for name in NAMES}
    return {name: usual(f[0][1].columns, f[0][1].scale is not None) for name, f in found.items() if f}


def tune(matrices: Matrices, names: tuple[str, ...] = NAMES) -> tuple[Choice, dict[str, dict[str, float]]]:
    """The fastest kernel of each product for one row, and the terabytes per second of all that were tried.

    A trial goes over the matrices of all layers, so that none is found in the cache.
    """
    choice: Choice = {}
    fair = fair_choice(matrices)  # for the others: norms fuse
    rates: dict[str, dict[str, float]] = {}
    for name in names:
        found = matrices.named(name)
        size = sum(m.weight.numel() * m.weight.element_size() for _, m in found)
        times: dict[Kernel, float] = {}
        for kernel in candidates(found[0][1].columns, found[0][1].scale is not None):
            launches = Launches(matrices, 1, 8, fair | {name: kernel}, Attending(), only=name)
            try:
                times[kernel] = seconds(record(launches.run, launches.device))
            except Exception:  # a kernel that does not fit this device is not a choice
                continue
        choice[name] = min(times, key=lambda k: times[k]) if times else fair[name]
        rates[name] = {str(kernel): size / t / 1e12 for kernel, t in times.items()}
    return choice, rates


def tune_attention(
    matrices: Matrices, rows: int, room: int, kept: torch.dtype | None
) -> tuple[Attending, dict[str, float]]:
    """The fastest way over caches three quarters full, and the milliseconds of all that were tried."""
    times: dict[Attending, float] = {}
    choice = fair_choice(matrices)
    for how in attendings(matrices, rows):
        try:
            launches = Launches(matrices, rows, room, choice, how, kept, only="attend")
            launches.past.fill_(room * 3 // 4)
            times[how] = seconds(record(launches.run, launches.device))
        except Exception:  # one that does not fit this device is not a choice
            continue
    best = min(times, key=lambda how: times[how]) if times else Attending()
    return best, {str(how): t * 1e3 for how, t in times.items()}


class Narrow(KV):
    """Keys and values kept in fewer bits than they are computed in: rounded when they are written."""

    def __init__(self, kept: torch.dtype, capacity: int = 0) -> None:
        super().__init__(capacity)
        self.kept, self.most = kept, torch.finfo(kept).max

    def append(self, k: Tensor, v: Tensor, past: int | Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().append(self.rounded(k), self.rounded(v), past)
        return keys.to(k.dtype), values.to(v.dtype)

    def rounded(self, x: Tensor) -> Tensor:
        return x.clamp(-self.most, self.most).to(self.kept)  # beyond it there are no numbers

    def reorder(self, index: Tensor) -> None:
        if self.k is not None and self.v is not None:  # not every index knows 8-bit floats; bytes it does
            self.k, self.v = (t.view(torch.uint8)[index].view(self.kept) for t in (self.k, self.v))


def growing(state: PartState | None, kept: torch.dtype | None) -> PartState | None:
    """The same state with all keys and values where a window's last ones would do: a graph's slots are
    positions. They are `kept` as they are, or narrower.
    """
    if isinstance(state, Group):
        return Group({name: growing(part, kept) for name, part in state.parts.items()})
    if not isinstance(state, (KV, Rolling)):
        return state
    return KV(state.capacity) if kept is None else Narrow(kept, state.capacity)


def held_whole(state: PartState | None) -> list[KV] | None:
    """The keys and values in the order of the layers; None if a layer does not hold all of them."""
    found = caches(state)
    return None if found is None or any(isinstance(kv, Rolling) for kv in found) else cast(list[KV], found)


class OnGPU(FastStepper):
    """Steps as replays of a graph, recorded once for a number of rows and a length.

    `tuned` measures kernels when it meets a number of rows for the first time (seconds). `kept` is the type
    of the keys and values that are kept: the model's own, or float8_e4m3fn with half of what many long rows
    read and three bits of precision.
    """

    matrices: Matrices

    def __init__(
        self,
        model: Model,
        chunk: int | None = None,
        *,
        tuned: bool = False,
        attending: Attending | None = None,
        kept: torch.dtype | None = None,
    ) -> None:
        super().__init__(model, chunk)
        self.device = model.device
        self.launches: Launches | None = None
        self.at = -1  # what the device's counter says
        self.tuned, self.kept, self.attending = tuned, kept, attending
        self.choice: Choice = {}
        self.attention: dict[int, Attending] = {}  # by the number of rows
        self.times: dict[int, dict[str, float]] = {}
        self.rates: dict[str, dict[str, float]] = {}
        self.merged_from: list[object] = []  # the fingerprint of the model whose matrices were merged
        self.refusal: str | None = None  # why they could not be
        if kept not in (None, torch.float8_e4m3fn):
            raise InputError(
                f"kept={kept}: keys and values are kept in torch.float8_e4m3fn, or None: as they are"
            )
        self.check_model()

    def check_model(self) -> None:
        super().check_model()
        if self.why is None and self.model.device != self.device:
            self.why = f"the model is on {self.model.device}; its stepper was made for {self.device}"
        if self.why is None:
            self.why = self.merge()

    def merge(self) -> str | None:
        """Merge the matrices, unless it was done for the model as it is; return why it cannot be, or None."""
        assert isinstance(self.model, LM)
        if fingerprint(self.model) != self.merged_from:
            self.launches, self.refusal, self.rates, self.attention = None, None, {}, {}
            try:
                with evaluation_mode(self.model):
                    self.matrices = Matrices(self.model)
                self.choice = fair_choice(self.matrices)
                Launches(self.matrices, 1, 8, self.choice, Attending())
            except Unknown as reason:
                self.refusal = str(reason)
            self.merged_from = fingerprint(self.model)
        return self.refusal

    @torch.no_grad()
    def make(self, rows: int, room: int) -> Launches:
        """Buffers and graphs for so many rows and positions."""
        if self.tuned and rows == 1 and not self.rates:
            self.choice, self.rates = tune(self.matrices)
        if self.tuned and self.attending is None and rows not in self.attention:
            self.attention[rows], self.times[rows] = tune_attention(self.matrices, rows, room, self.kept)
        how = self.attending or self.attention.get(rows, Attending())
        launches = Launches(self.matrices, rows, room, self.choice, how, self.kept)
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
        self.check_model()
        if self.why is not None:
            return super().prefill(prompt, valid, length)
        assert isinstance(self.model, LM)
        rows, need, launches = len(prompt), max(length, prompt.shape[1] + 1), self.launches
        if launches is None or launches.rows != rows or launches.room < need:
            self.launches = launches = None  # the old caches go first
            launches = self.make(rows, -(-need // 64) * 64)
        with evaluation_mode(self.model):
            state = self.model.new_state(rows, need)
            state.parts = growing(state.parts, self.kept)
            self.hold(state.parts, launches)
            if valid is None and self.chunk is None and prompt.numel() >= READ_FROM and reads(self.model):
                self.model.check(prompt, self.model.embed, None)
                state.logits, state.past = read(launches, prompt), prompt.shape[1]
                self.state = state
            else:
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
        if not self.takes_fast_way(watch) or not self.ready(len(tokens)):
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
        if not self.takes_fast_way(None) or not self.ready(len(prompt)):
            written = [first]
            while len(written) < count:
                written.append(self.step(written[-1]).argmax(-1))
            return torch.stack(written, 1)
        assert self.launches is not None
        begin = self.state.past
        self.launches.tokens.copy_(first)
        for _ in range(count - 1):
            self.replay_fed()
        self.count(count - 1)
        return torch.cat((first[:, None], self.launches.written[:, begin + 1 : begin + count]), 1)
