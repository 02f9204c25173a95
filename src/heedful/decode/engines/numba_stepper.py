"""The stepper for a CPU: a step of a few rows is one call of machine code, compiled by Numba."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.decode.engines.fallback import FastStepper, UnsupportedPart
from heedful.models.base import LM, Model, State
from heedful.nn.context import PartState, Watch
from heedful.nn.state import KV, SlidingKV, StateGroup

if TYPE_CHECKING:
    from heedful.decode.engines.numba_program import RowProgram
    from heedful.kernels.cpu.team import Team

MAX_ROWS = 4  # beyond it, a product over all rows at once is faster


class NumbaStepper(FastStepper):
    """Steps of a few rows as one call of machine code, on the plain stepper's own state."""

    def __init__(self, model: Model, chunk: int | None = None) -> None:
        super().__init__(model, chunk)
        self.rows: RowProgram | None = None
        self.team: Team | None = None
        self.compiles = importlib.util.find_spec("numba") is not None
        self.check_model()

    def check_model(self) -> None:
        super().check_model()
        if not self.compiles:
            self.fallback_reason = "numba is not installed (pip install 'heedful[fast]')"

    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        self.check_again()
        self.rows = None  # the weights may have moved since
        return super().prefill(prompt, valid, length)

    @torch.no_grad()
    def step(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        if not self.can_step_fast(watch) or not self.prepare(len(tokens)):
            return super().step(tokens, watch)
        assert isinstance(self.model, LM)
        assert self.rows is not None
        state, ids = self.state, tokens.tolist()
        first = first_positions(state, len(ids))
        if first is None:
            return super().step(tokens, watch)
        if min(ids) < 0 or max(ids) >= self.model.embed.vocab:
            raise InputError(f"a token is outside the vocabulary 0 … {self.model.embed.vocab - 1}: {ids}")
        state.past += 1
        if state.valid is not None:
            state.valid = torch.cat((state.valid, state.valid.new_ones(len(ids), 1)), 1)
        self.model.check_reach(state.past, self.model.embed, state.valid)
        return self.rows.step(np.array([(id, state.past - 1, f) for id, f in zip(ids, first, strict=True)]))

    def prepare(self, count: int) -> bool:
        """Write the instructions for this number of rows, if missing; False if this step must be plain."""
        from heedful.decode.engines.numba_program import RowProgram
        from heedful.kernels.cpu.team import Team

        held, end = kv_caches(self.state.parts), self.state.past + 1
        if held is None:
            self.fallback_reason = "a layer remembers something else than keys and values"
            return False
        if count > MAX_ROWS or not all(kv.fits(end) for kv in held):
            return False
        assert isinstance(self.model, LM)
        try:
            if self.rows is None or self.rows.limit != count or self.rows.listing.capacity < end:
                self.team = self.team or Team(torch.get_num_threads())
                room = max(kv.k.shape[2] for kv in held if kv.k is not None)
                self.rows = RowProgram(self.model, count, room if end <= room else 2 * end, self.team)
            self.rows.bind(held)
        except UnsupportedPart as reason:
            self.fallback_reason, self.rows = str(reason), None
            return False
        for kv in held:
            if isinstance(kv, SlidingKV):
                kv.reached = max(kv.reached, end)  # the instructions write past it
        return True


def kv_caches(state: PartState | None) -> list[KV | SlidingKV] | None:
    """The keys and values in the order of the layers; None if a layer remembers anything else."""
    if isinstance(state, StateGroup):
        found = [kv_caches(child) for child in state.parts.values() if child is not None]
        return None if any(f is None for f in found) else [kv for f in found if f is not None for kv in f]
    return [state] if isinstance(state, (KV, SlidingKV)) else None


def first_positions(state: State, rows: int) -> list[int] | None:
    """The first valid position of every row; None if padding is not all on the left."""
    if state.valid is None:
        return [0] * rows
    first = state.valid.int().argmax(1)
    return first.tolist() if bool((state.valid.sum(1) == state.past - first).all()) else None
