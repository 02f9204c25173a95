"""The stepper for a CPU: a prompt, and a step of a few rows, are calls of machine code, compiled by Numba."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.decode.engines.fallback import (
    FastStepper,
    UnsupportedPart,
    find_fallback_reason,
    model_fingerprint,
)
from heedful.decode.settings import GenerationSettings
from heedful.decode.stepper import MAX_CAPACITY_AHEAD
from heedful.kernels.cpu import find_obstacle
from heedful.models.base import LM, Model
from heedful.models.calls import State, advance
from heedful.nn.context import PartState, Watch
from heedful.nn.state import KV, SlidingKV, state_leaves

if TYPE_CHECKING:
    from heedful.decode.engines.numba_program import RowProgram
    from heedful.kernels.cpu.team import Team

MAX_ROWS = 32  # beyond it, torch's own products over all rows at once are as fast
PROMPT_ROWS = 512  # tokens of prompts that one call reads at most


class NumbaStepper(FastStepper):
    """Prompts, and steps of a few rows, as calls of machine code, on the plain stepper's own state."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.rows: RowProgram | None = None
        self.team: Team | None = None
        self.fingerprint: list[object] | None = None  # of the model that the program was written from
        self.known_caches: tuple[PartState | None, list[KV | SlidingKV] | None] = None, None
        self.check_model()

    def find_reason(self) -> str | None:
        return find_obstacle() or find_fallback_reason(self.model)

    @torch.no_grad()
    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        self.check_model()
        if self.rows is not None and (
            self.rows.listing.copies or model_fingerprint(self.model) != self.fingerprint
        ):
            self.rows = None
        if not self.can_step_fast(None):
            return super().prefill(prompt, valid, length)
        assert isinstance(self.model, LM)
        self.model.check(prompt, self.model.embed, valid)
        before, self.state = self.state, self.model.new_state(len(prompt), max(length, prompt.shape[1]))
        length = max(prompt.shape[1], min(length, prompt.shape[1] + MAX_CAPACITY_AHEAD))
        logits = self.read(prompt, valid, length, 1)
        if logits is None:
            self.state = before
            return super().prefill(prompt, valid, length)
        self.state.logits = logits[:, 0]
        return self.state.logits

    @torch.no_grad()
    def step(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        logits = self.read(tokens[:, None], None, 0, 1) if self.can_step_fast(watch) else None
        if logits is None:
            self.convert(plain_dtype(self.model))
            return super().step(tokens, watch)
        return logits[:, 0]

    @torch.no_grad()
    def step_ahead(
        self,
        tokens: Tensor,
        count: int,
        settings: GenerationSettings,
        uniforms: Tensor | None = None,
        ends: Collection[int] = (),
    ) -> Tensor:
        fast = settings.greedy and self.can_step_fast(None)
        logits = self.read(tokens[:, None], None, self.past + count, 1) if fast else None
        if logits is None:
            return super().step_ahead(tokens, count, settings, uniforms, ends)
        assert self.rows is not None
        written = self.rows.write(count, ends).flip(0)  # `read` has the last row first
        more, state = written.shape[1] - 1, self.state
        state.past += more
        if state.valid is not None:
            state.valid = F.pad(state.valid, (0, more), value=True)
        for kv in self.caches(state) or ():
            if isinstance(kv, SlidingKV):
                kv.reached = max(kv.reached, state.past)
        return written

    @torch.no_grad()
    def extend(self, tokens: Tensor) -> Tensor:
        logits = self.read(tokens, None, 0, tokens.shape[1]) if self.can_step_fast(None) else None
        if logits is None:
            self.convert(plain_dtype(self.model))
            return super().extend(tokens)
        return logits

    def read(self, tokens: Tensor, valid: Tensor | None, length: int, asked: int) -> Tensor | None:
        """Append tokens (B, T) and return the logits (B, asked, V) after the last; None: this must be plain.

        `length` is how many positions there will be. The logits are a buffer that the next call overwrites.
        """
        (rows, count), state, past = tokens.shape, self.state, self.state.past
        end, caches = past + count, self.caches(state)
        if caches is None and self.fallback_reason is None:
            self.fallback_reason = "a layer remembers something else than keys and values"
        # Rows of one call write their keys before any of them looks: what a window overwrites must be out of
        # sight of all.
        windows = [kv for kv in caches or () if isinstance(kv, SlidingKV) and kv.slots < end and count > 1]
        most = min([PROMPT_ROWS, *(kv.spare for kv in windows)])
        if not caches or rows > MAX_ROWS or rows * asked > most:
            return None
        first = first_positions(state.valid if past else valid, past or count, rows)
        if first is None or not self.prepare(max(end, length), caches):
            return None
        assert isinstance(self.model, LM)
        assert self.rows is not None
        ids = tokens.tolist()
        if past:
            bad = next((id for row in ids for id in row if not 0 <= id < self.model.embed.vocab), None)
            if bad is not None:
                vocabulary = f"the vocabulary 0 … {self.model.embed.vocab - 1}"
                raise InputError(f"the token {bad} is outside {vocabulary}")
        if count == 1 and past:
            state.past = end
            if state.valid is not None:
                state.valid = torch.cat((state.valid, state.valid.new_ones(rows, 1)), 1)
        else:
            advance(tokens, state, valid=valid)
        self.model.check_reach(end, self.model.embed, state.valid)
        self.convert(torch.float32)
        self.rows.allocate(caches, rows, max(end, length))
        for kv in caches:
            if isinstance(kv, SlidingKV):
                kv.reached = max(kv.reached, end)
        # From the last to the first, because the first rows of a call get logits. Padding is not read.
        order = [
            (t, r) for t in reversed(range(count)) for r in reversed(range(rows)) if past + t >= first[r]
        ]
        for start in reversed(range(0, len(order), most)):
            piece = order[start : start + most]
            self.rows.bind(caches, [row for _, row in piece])
            entries = [(ids[row][t], past + t, first[row]) for t, row in piece]
            logits = self.rows.step(np.array(entries), 0 if start else rows * asked)
        if rows * asked == 1:
            return logits[None]
        return logits.unflatten(0, (asked, rows)).flip(0, 1).transpose(0, 1)

    def prepare(self, end: int, caches: list[KV | SlidingKV]) -> bool:
        """Write the instructions for positions up to `end`, if missing; False if this step must be plain."""
        from heedful.decode.engines.numba_program import RowProgram
        from heedful.kernels.cpu.team import Team

        assert isinstance(self.model, LM)
        try:
            if self.rows is None or self.rows.listing.capacity < end:
                self.team = self.team or Team(torch.get_num_threads())
                room = max([2 * end if self.state.past else end, *(kv.capacity for kv in caches)])
                self.rows = RowProgram(self.model, PROMPT_ROWS, room, self.team)
                self.fingerprint = model_fingerprint(self.model)
        except UnsupportedPart as reason:
            self.fallback_reason, self.rows = str(reason), None
            return False
        return True

    def caches(self, state: State) -> list[KV | SlidingKV] | None:
        """The keys and values of a state, which are looked for once."""
        if self.known_caches[0] is None or self.known_caches[0] is not state.parts:
            self.known_caches = state.parts, kv_caches(state.parts)
        return self.known_caches[1]

    def convert(self, dtype: torch.dtype) -> None:
        """Let caches be of the type that the next step computes with: the program's is always float32."""
        for kv in self.caches(self.state) or ():
            if kv.k is not None and kv.v is not None and kv.k.dtype != dtype:
                kv.k, kv.v = kv.k.to(dtype), kv.v.to(dtype)


def plain_dtype(model: Model) -> torch.dtype:
    """Return the type that a decoder itself computes with: that of its vectors of tokens."""
    token = model.embed.token if isinstance(model, LM) else None
    return token.weight.dtype if type(token) is nn.Embedding else torch.float32


def kv_caches(state: PartState | None) -> list[KV | SlidingKV] | None:
    """The keys and values in the order of the layers; None if a layer remembers anything else."""
    leaves = list(state_leaves(state))
    caches = [leaf for leaf in leaves if isinstance(leaf, (KV, SlidingKV))]
    return caches if state is not None and len(caches) == len(leaves) else None


def first_positions(valid: Tensor | None, past: int, rows: int) -> list[int] | None:
    """The first valid of `past` positions in every row; None if padding is not all on the left."""
    if valid is None:
        return [0] * rows
    first = valid.int().argmax(1)
    return first.tolist() if bool((valid.sum(1) == past - first).all()) else None
