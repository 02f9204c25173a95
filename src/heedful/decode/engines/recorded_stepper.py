"""The stepper for a GPU: steps are replays of one recorded graph, over caches that never move."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from heedful.decode.engines.fallback import FastStepper, UnsupportedPart, model_fingerprint
from heedful.decode.engines.graph_stepper import rounded_capacity
from heedful.decode.engines.merged_matrices import AttentionPlan, KernelChoice, MergedMatrices
from heedful.decode.engines.numba_stepper import first_positions, kv_caches
from heedful.decode.engines.recorded_prefill import can_prefill, prefill_prompt
from heedful.decode.engines.recorded_step import StepKernels
from heedful.decode.engines.recordings import RecordingPool
from heedful.decode.engines.tuning import default_kernels, record_graph, tune_attention, tune_products
from heedful.errors import InputError
from heedful.models.base import LM, Model, State, evaluation_mode
from heedful.nn.context import PartState, Watch
from heedful.nn.state import KV, SlidingKV, StateGroup

MIN_PROMPT_TOKENS = 16  # tokens of prompts; the plain pass launches several times as many kernels


class RoundedKV(KV):
    """Keys and values kept in fewer bits than they are computed in: rounded when they are written."""

    def __init__(self, dtype: torch.dtype, capacity: int = 0) -> None:
        super().__init__(capacity)
        self.dtype, self.largest = dtype, torch.finfo(dtype).max

    def append(self, k: Tensor, v: Tensor, past: int | Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().append(self.round_to_dtype(k), self.round_to_dtype(v), past)
        return keys.to(k.dtype), values.to(v.dtype)

    def round_to_dtype(self, x: Tensor) -> Tensor:
        return x.clamp(-self.largest, self.largest).to(self.dtype)  # beyond it there are no numbers

    def reorder(self, index: Tensor) -> None:
        if self.k is not None and self.v is not None:  # not every index knows 8-bit floats; bytes it does
            self.k, self.v = (t.view(torch.uint8)[index].view(self.dtype) for t in (self.k, self.v))


def full_length_state(state: PartState | None, cache_dtype: torch.dtype | None) -> PartState | None:
    """The same state with all keys and values where a window's last ones would do: a graph's slots are
    positions. They are `kept` as they are, or narrower.
    """
    if isinstance(state, StateGroup):
        return StateGroup({name: full_length_state(part, cache_dtype) for name, part in state.parts.items()})
    if not isinstance(state, (KV, SlidingKV)):
        return state
    return KV(state.capacity) if cache_dtype is None else RoundedKV(cache_dtype, state.capacity)


def full_kv_caches(state: PartState | None) -> list[KV] | None:
    """The keys and values in the order of the layers; None if a layer does not hold all of them."""
    found = kv_caches(state)
    return None if found is None or any(isinstance(kv, SlidingKV) for kv in found) else cast(list[KV], found)


@dataclass
class MergedRecording:
    """The kernels of a step over their buffers, and the graphs of them: with and without feeding back."""

    key: object
    kernels: StepKernels
    replay: Callable[[], None]
    replay_fed: Callable[[], None]

    @property
    def nbytes(self) -> int:
        return self.kernels.nbytes


RECORDINGS: RecordingPool[MergedRecording] = RecordingPool()
# What was merged of a model: its fingerprint then, the matrices, or why there are none.
MERGED: weakref.WeakKeyDictionary[Model, tuple[list[object], MergedMatrices | None, str | None]] = (
    weakref.WeakKeyDictionary()
)


class RecordedStepper(FastStepper):
    """Steps as replays of a graph of few kernels, recorded once for a number of rows and a length.

    `tune` measures kernels when it meets a number of rows for the first time (seconds). `cache_dtype` is the
    type of the keys and values: the model's own, or float8_e4m3fn with half of what many long rows read and
    three bits of precision.
    """

    matrices: MergedMatrices

    def __init__(
        self,
        model: Model,
        chunk: int | None = None,
        *,
        tune: bool = False,
        attending: AttentionPlan | None = None,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(model, chunk)
        self.device = model.device
        self.kernels: StepKernels | None = None
        self.lease: weakref.finalize[..., object] | None = None
        self.at = -1  # what the device's counter says
        self.tune, self.cache_dtype, self.attending = tune, cache_dtype, attending
        self.choice: KernelChoice = {}
        self.attention: dict[int, AttentionPlan] = {}  # by the number of rows
        self.times: dict[int, dict[str, float]] = {}
        self.rates: dict[str, dict[str, float]] = {}
        self.merged_from: list[object] = []  # the fingerprint of the model whose matrices were merged
        self.refusal: str | None = None  # why they could not be
        if cache_dtype not in (None, torch.float8_e4m3fn):
            raise InputError(
                f"cache_dtype={cache_dtype}: keys and values can be kept in torch.float8_e4m3fn alone",
                hint="or None: the type of the model",
            )
        self.check_model()

    def check_model(self) -> None:
        super().check_model()
        if self.fallback_reason is None and self.model.device != self.device:
            self.fallback_reason = (
                f"the model is on {self.model.device}; its stepper was made for {self.device}"
            )
        if self.fallback_reason is None:
            self.fallback_reason = self.merge()

    def merge(self) -> str | None:
        """Merge the matrices, unless that was done for this model; return why it cannot be, or None."""
        assert isinstance(self.model, LM)
        found = model_fingerprint(self.model)
        if found != self.merged_from:
            self.kernels, self.rates, self.attention = None, {}, {}
            known = MERGED.get(self.model)
            if known is None or known[0] != found:
                matrices, refusal = try_merging(self.model)
                found = model_fingerprint(self.model)  # the matrices may have moved
                known = MERGED[self.model] = (found, matrices, refusal)
            self.merged_from, matrices, self.refusal = known
            if matrices is not None:
                self.matrices, self.choice = matrices, default_kernels(matrices)
        return self.refusal

    @torch.no_grad()
    def make(self, rows: int, capacity: int) -> StepKernels:
        """Return buffers and graphs for this number of rows and positions."""
        if self.tune and rows == 1 and not self.rates:
            self.choice, self.rates = tune_products(self.matrices)
        if self.tune and self.attending is None and rows not in self.attention:
            self.attention[rows], self.times[rows] = tune_attention(
                self.matrices, rows, capacity, self.cache_dtype
            )
        plan = self.attending or self.attention.get(rows, AttentionPlan())
        key = (rows, capacity, tuple(sorted(self.choice.items())), plan, self.cache_dtype, self.merged_from)
        if self.lease is not None:
            self.lease()  # the old caches may be taken, or go
        found = RECORDINGS.take(self.model, key)
        if found is None:
            kernels = StepKernels(self.matrices, rows, capacity, self.choice, plan, self.cache_dtype)
            found = record_kernels(key, kernels)
        self.lease = RECORDINGS.lend(found, self, self.model)
        self.kernels, self.replay, self.replay_fed = found.kernels, found.replay, found.replay_fed
        self.at = -1
        return found.kernels

    @torch.no_grad()
    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        self.check_again()
        if self.fallback_reason is not None:
            return super().prefill(prompt, valid, length)
        assert isinstance(self.model, LM)
        rows, need, kernels = len(prompt), max(length, prompt.shape[1] + 1), self.kernels
        if kernels is None or kernels.rows != rows or kernels.capacity < need:
            self.kernels = kernels = None  # the old caches go first
            kernels = self.make(rows, rounded_capacity(need))
        with evaluation_mode(self.model):
            state = self.model.new_state(rows, need)
            state.parts = full_length_state(state.parts, self.cache_dtype)
            self.hold(state.parts, kernels)
            if (
                valid is None
                and self.chunk is None
                and prompt.numel() >= MIN_PROMPT_TOKENS
                and can_prefill(self.model)
            ):
                self.model.check(prompt, self.model.embed, None)
                state.logits, state.past = prefill_prompt(kernels, prompt), prompt.shape[1]
                self.state = state
            else:
                self.state = self.model.start(prompt, valid=valid, length=need, chunk=self.chunk, state=state)
        self.at = -1
        assert self.state.logits is not None
        return self.state.logits

    def hold(self, parts: PartState | None, kernels: StepKernels) -> None:
        """Let the state write into the graph's own caches."""
        held = full_kv_caches(parts)
        assert held is not None
        for kv, (k, v) in zip(held, kernels.caches, strict=True):
            kv.k, kv.v = k, v

    @torch.no_grad()
    def step(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        if not self.can_step_fast(watch) or not self.prepare(len(tokens)):
            return super().step(tokens, watch)
        assert self.kernels is not None
        self.kernels.tokens.copy_(tokens)
        self.replay()
        self.count(1)
        return self.kernels.logits

    @torch.no_grad()
    def step_greedily(self, tokens: Tensor, count: int) -> Tensor:
        if not self.can_step_fast(None) or not self.prepare(len(tokens), count):
            return super().step_greedily(tokens, count)
        assert self.kernels is not None
        begin = self.state.past
        self.kernels.tokens.copy_(tokens)
        for _ in range(count):
            self.replay_fed()
        self.count(count)
        return self.kernels.written[:, begin + 1 : begin + 1 + count].clone()

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        self.at = -1

    def restore(self, state: State) -> None:
        super().restore(state)
        self.at = -1

    def count(self, steps: int) -> None:
        """Add to the state the number of steps that the device has done."""
        state = self.state
        state.past, self.at = state.past + steps, state.past + steps
        if state.valid is not None:
            state.valid = torch.cat((state.valid, state.valid.new_ones(len(state.valid), steps)), 1)

    def prepare(self, rows: int, count: int = 1) -> bool:
        """Bring the device's counters and caches to where the state is, with room for `count` more.

        False if this step must be plain.
        """
        assert isinstance(self.model, LM)
        state, kernels = self.state, self.kernels
        held = full_kv_caches(state.parts)
        if held is None:
            return False
        self.model.check_reach(state.past + count, self.model.embed, state.valid)
        if kernels is None or kernels.rows != rows or kernels.capacity < state.past + count:
            kernels = self.make(rows, rounded_capacity(2 * (state.past + count)))
        for kv, (k, v) in zip(held, kernels.caches, strict=True):
            if kv.k is not k and kv.k is not None and kv.v is not None:
                k[:, :, : state.past], v[:, :, : state.past] = (
                    kv.k[:, :, : state.past],
                    kv.v[:, :, : state.past],
                )
        self.hold(state.parts, kernels)
        if self.at != state.past:
            first = first_positions(state, rows)
            if first is None:
                return False
            kernels.past.fill_(state.past)
            kernels.first.copy_(torch.tensor(first, dtype=torch.int32))
            self.at = state.past
        return True

    @torch.no_grad()
    def greedy(self, prompt: Tensor, count: int, valid: Tensor | None = None) -> Tensor:
        """Return the likeliest tokens (B, count). Each is fed back on the device: the host never waits."""
        first = self.prefill(prompt, valid, prompt.shape[1] + count).argmax(-1)
        if count == 1:
            return first[:, None]
        return torch.cat((first[:, None], self.step_greedily(first, count - 1)), 1)


def try_merging(model: LM) -> tuple[MergedMatrices | None, str | None]:
    """Merge the matrices of a model and see whether its step can be written; else return why not."""
    try:
        with evaluation_mode(model):
            matrices = MergedMatrices(model)
        StepKernels(matrices, 1, 8, default_kernels(matrices), AttentionPlan())
    except UnsupportedPart as reason:
        return None, str(reason)
    return matrices, None


def record_kernels(key: object, kernels: StepKernels) -> MergedRecording:
    """Record the step, alone and with the likeliest token written and read in the next."""

    def feed() -> None:
        kernels.run()
        torch.argmax(kernels.logits, -1, out=kernels.tokens)
        kernels.written.index_copy_(1, kernels.past.long(), kernels.tokens[:, None])

    replay = record_graph(kernels.run, kernels.device)
    return MergedRecording(key, kernels, replay, record_graph(feed, kernels.device))
