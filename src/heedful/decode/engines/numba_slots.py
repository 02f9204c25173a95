"""Texts side by side on a CPU: every token of every one is a row of one call of machine code.

A row writes its key and value before any row looks, so the tokens of a prompt can be rows of the same call as
the newest tokens of others. A row's numbers depend on its own text alone, to the bit: not on its neighbours,
nor on how a prompt was cut, nor on whether its beginning was copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.decode.engines.fallback import UnsupportedPart, find_fallback_reason
from heedful.decode.engines.numba_program import RowProgram
from heedful.decode.engines.numba_stepper import kv_caches
from heedful.decode.slots import EagerSlots, Slot
from heedful.kernels.cpu.team import Team
from heedful.models.base import LM, Seq2Seq
from heedful.nn.state import SlidingKV

PROMPT_ROWS = 128  # tokens of prompts that one call reads at most


class NumbaSlots(EagerSlots):
    """Rows of texts as one call; what it cannot step is an UnsupportedPart."""

    chunk = 1  # a beginning of any length is the same to the bit

    def __init__(self, model: LM | Seq2Seq, max_rows: int, context: int | None = None) -> None:
        reason = find_fallback_reason(model)
        if reason is not None or not isinstance(model, LM):
            raise UnsupportedPart(reason or "an encoder-decoder")
        super().__init__(model, max_rows, context)
        caches = kv_caches(model.new_state(1, 1).parts)
        if caches is None:
            raise UnsupportedPart("a layer remembers something else than keys and values")
        self.vocab = model.embed.vocab
        spare = [kv.spare for kv in caches if isinstance(kv, SlidingKV)]
        self.prompt_rows = min([PROMPT_ROWS, *spare])  # what is overwritten must be out of every window
        team = Team(torch.get_num_threads())
        self.program = RowProgram(model, max_rows + PROMPT_ROWS, self.context, team, exact=True)
        self.program.allocate(caches, 1, 1)
        self.program.cache_table(caches)  # refuses what no kernel reads
        self.tables: dict[Slot, np.ndarray] = {}
        self.bound: list[Slot] = []

    def open(self, ids: Sequence[int], length: int) -> Slot:
        length = min(length, self.context)
        slot = super().open(ids, length)
        caches = kv_caches(slot.state.parts)
        assert caches is not None
        self.program.allocate(caches, 1, length)
        self.tables[slot] = self.program.cache_table(caches)
        return slot

    def copy_prefix(self, source: Slot, target: Slot, length: int) -> None:
        caches = kv_caches(target.state.parts)
        assert caches is not None
        self.program.allocate(caches, 1, target.capacity)
        super().copy_prefix(source, target, length)

    def piece(self, slot: Slot, left: int, budget: int) -> int:
        return min(left, budget, self.prompt_rows)

    @torch.no_grad()
    def forward(self, feeds: Sequence[tuple[Slot, Sequence[int]]]) -> Tensor:
        """The last token of each text first, because only these need logits; then the others."""
        for slot, ids in feeds:  # machine code looks at no bounds
            if slot.past + len(ids) > slot.capacity or not 0 <= min(ids) <= max(ids) < self.vocab:
                raise InputError(f"{ids} do not fit behind {slot.past} of {slot.capacity} positions")
        last = [(slot, ids[-1], slot.past + len(ids) - 1) for slot, ids in feeds]
        rest = [(slot, id, slot.past + i) for slot, ids in feeds for i, id in enumerate(ids[:-1])]
        rows = last + rest
        slots = [slot for slot, _, _ in rows]
        if slots != self.bound:
            self.program.caches[:, : len(rows)] = np.stack([self.tables[slot] for slot in slots], 1)
            self.bound = slots
        logits = self.program.step(np.array([(id, past, 0) for _, id, past in rows]), len(last))
        for slot, ids in feeds:
            slot.ids += ids
            slot.reusable = slot.state.past = slot.past
        return logits

    def close(self, slot: Slot) -> None:
        super().close(slot)
        self.tables.pop(slot)
        self.bound = []
