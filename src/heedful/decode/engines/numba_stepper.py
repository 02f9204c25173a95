"""The stepper for a CPU: a prompt, and a step of a few rows, are calls of machine code, compiled by Numba."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from heedful.core.errors import InputError
from heedful.decode.engines.fallback import FastStepper, UnsupportedPart, model_fingerprint, outside_change
from heedful.decode.stepper import MAX_CAPACITY_AHEAD
from heedful.models.base import LM, Model
from heedful.models.calls import State, advance
from heedful.nn.context import PartState, Watch
from heedful.nn.state import KV, SlidingKV, StateGroup

if TYPE_CHECKING:
    from heedful.decode.engines.numba_program import RowProgram
    from heedful.kernels.cpu.team import Team

MAX_ROWS = 4  # beyond it, a product over all rows at once is faster
PROMPT_ROWS = 512  # tokens of prompts that one call reads at most


class NumbaStepper(FastStepper):
    """Prompts, and steps of a few rows, as calls of machine code, on the plain stepper's own state."""

    def __init__(self, model: Model, chunk: int | None = None) -> None:
        super().__init__(model, chunk)
        self.rows: RowProgram | None = None
        self.team: Team | None = None
        self.fingerprint: list[object] = []  # of the model that the program was written from
        self.bound: tuple[list[Tensor], list[int]] = [], []  # the keys that the program uses, and their rows
        self.known_caches: tuple[PartState | None, list[KV | SlidingKV] | None] = None, None
        self.compiles = importlib.util.find_spec("numba") is not None
        self.check_model()

    def check_model(self) -> None:
        super().check_model()
        if not self.compiles:
            self.fallback_reason = "numba is not installed (pip install 'heedful[fast]')"

    @torch.no_grad()
    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        fingerprint = [RemovableHandle.next_id, outside_change(self.model), *model_fingerprint(self.model)]
        if self.rows is None or self.rows.listing.copies or fingerprint != self.fingerprint:
            self.check_again()
            self.rows, self.fingerprint = None, fingerprint
        if not self.can_step_fast(None) or len(prompt) > MAX_ROWS:
            return super().prefill(prompt, valid, length)
        assert isinstance(self.model, LM)
        self.model.check(prompt, self.model.embed, valid)
        rows, count = prompt.shape
        length = max(count, min(length, count + MAX_CAPACITY_AHEAD))
        state = self.model.new_state(rows, length)
        advance(prompt, state, valid=valid)
        first, caches = first_positions(state, rows), self.caches(state) or []
        # Rows of one call write their keys before any of them looks: what a window overwrites must be out of
        # sight of all.
        most = min(
            [PROMPT_ROWS, *(kv.spare for kv in caches if isinstance(kv, SlidingKV) and kv.slots < count)]
        )
        if first is None or not caches or rows > most or not self.prepare(rows, length, caches):
            return super().prefill(prompt, valid, length)
        assert self.rows is not None
        self.state = state
        self.rows.allocate(caches, rows, length)
        ids = prompt.tolist()
        # From the last to the first, because the first rows of a call get logits. Padding is not read.
        places = [(p, r) for p in reversed(range(count)) for r in reversed(range(rows)) if p >= first[r]]
        for start in reversed(range(0, len(places), most)):
            piece = places[start : start + most]
            self.bind(caches, [row for _, row in piece])
            tokens = [(ids[row][p], p, first[row]) for p, row in piece]
            logits = self.rows.step(np.array(tokens), rows if start == 0 else 0)
        self.reach(caches, count)
        state.logits = logits.flip(0)
        return state.logits

    @torch.no_grad()
    def step(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        state, count, end = self.state, len(tokens), self.state.past + 1
        caches = self.caches(state)
        fits = bool(caches) and count <= MAX_ROWS and all(kv.fits(end) for kv in caches or ())
        first = first_positions(state, count) if fits and self.can_step_fast(watch) else None
        if caches is None:
            self.fallback_reason = (
                self.fallback_reason or "a layer remembers something else than keys and values"
            )
        if first is None or caches is None or not self.prepare(count, end, caches):
            return super().step(tokens, watch)
        assert isinstance(self.model, LM)
        assert self.rows is not None
        ids = tokens.tolist()
        if min(ids) < 0 or max(ids) >= self.model.embed.vocab:
            raise InputError(f"a token is outside the vocabulary 0 … {self.model.embed.vocab - 1}: {ids}")
        state.past = end
        if state.valid is not None:
            state.valid = torch.cat((state.valid, state.valid.new_ones(count, 1)), 1)
        self.model.check_reach(end, self.model.embed, state.valid)
        self.bind(caches, list(range(count)))
        self.reach(caches, end)
        return self.rows.step(np.array([(id, end - 1, f) for id, f in zip(ids, first, strict=True)]))

    def prepare(self, rows: int, end: int, caches: list[KV | SlidingKV]) -> bool:
        """Write the instructions for positions up to `end`, if missing; False if this step must be plain."""
        from heedful.decode.engines.numba_program import RowProgram
        from heedful.kernels.cpu.team import Team

        assert isinstance(self.model, LM)
        try:
            if self.rows is None or self.rows.limit < rows or self.rows.listing.capacity < end:
                self.team = self.team or Team(torch.get_num_threads())
                room = max([end, *(kv.k.shape[2] for kv in caches if kv.k is not None)])
                self.rows = RowProgram(self.model, PROMPT_ROWS, room, self.team)
                self.bound = [], []
        except UnsupportedPart as reason:
            self.fallback_reason, self.rows = str(reason), None
            return False
        return True

    def caches(self, state: State) -> list[KV | SlidingKV] | None:
        """The keys and values of a state, which are looked for once."""
        if self.known_caches[0] is None or self.known_caches[0] is not state.parts:
            self.known_caches = state.parts, kv_caches(state.parts)
        return self.known_caches[1]

    def bind(self, caches: list[KV | SlidingKV], rows: list[int]) -> None:
        """Let the program use these rows of the caches, unless they are those of the step before."""
        assert self.rows is not None
        keys = [kv.k for kv in caches if kv.k is not None]
        if rows != self.bound[1] or any(k is not b for k, b in zip(keys, self.bound[0], strict=True)):
            self.rows.bind(caches, rows)
            self.bound = keys, rows

    def reach(self, caches: list[KV | SlidingKV], end: int) -> None:
        """Tell windows how many positions the program wrote."""
        for kv in caches:
            if isinstance(kv, SlidingKV):
                kv.reached = max(kv.reached, end)


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
