"""Texts of one model side by side, each at its own position: what continuous batching steps over.

    slots = choose_slots(model, max_rows=64)
    slot = slots.open(prompt, length)              room for `length` positions; equal beginnings are copied
    logits = slots.forward([(slot, prompt[slot.past :]), (other, [token])])       (2, V): after their last
    slots.close(slot)

What a text gets does not depend on its neighbours: `EagerSlots` reads and steps every text alone and is the
definition; the engines step many in one call.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heedful.decode.request import context_length
from heedful.decode.stepper import erasable
from heedful.models.base import LM, Seq2Seq, State, evaluation_mode
from heedful.nn.context import PartState
from heedful.nn.position import Rotary
from heedful.nn.state import KV, state_leaves

CHUNK = 64  # prompt tokens read at once, between two steps of the others
KEPT_SLOTS = 16  # closed texts whose beginning may be used again
POSITIONS_AHEAD = 512  # that a text is expected to need yet
DEFAULT_CONTEXT = 4096  # of a model that states none


@dataclass(eq=False)
class Slot:
    """One text: its tokens so far, and what the model remembers of them."""

    capacity: int  # positions it may come to hold
    state: State = field(default_factory=lambda: State(None))
    ids: list[int] = field(default_factory=list)  # read so far
    reusable: int = 0  # so many of them may be the beginning of another text
    reused: int = 0  # so many were copied from another

    @property
    def past(self) -> int:
        return len(self.ids)

    @property
    def reserved_positions(self) -> int:
        """The positions to count for it: few texts become as long as they may; memory is taken when used."""
        return min(self.capacity, self.past + POSITIONS_AHEAD)


class EagerSlots:
    """A model that continues several texts at once: by its own `start` and `step`, text by text.

    At most `max_rows` texts may be open, of at most `context` positions each. Prompts are read in pieces that
    begin at multiples of `chunk`, and a beginning is used again in whole pieces only: so every number is
    computed in the same way, whoever came before.
    """

    chunk = CHUNK
    prompt_tokens = (32, 128)  # to read in a step that also writes texts, and in one that does not

    def __init__(self, model: LM | Seq2Seq, max_rows: int, context: int | None = None) -> None:
        self.model, self.max_rows = model, max_rows
        self.context = context or context_length(model) or DEFAULT_CONTEXT
        self.live: list[Slot] = []
        self.kept: deque[Slot] = deque()  # closed, the oldest first
        with torch.no_grad(), evaluation_mode(model):
            self.example = model.start(torch.zeros(1, 1, dtype=torch.long, device=model.device))
        if model.device.type == "cuda":
            free = torch.cuda.mem_get_info(model.device)[0]
        else:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        tensors = (t for kv in kv_parts(self.example.parts) for t in (kv.k, kv.v) if t is not None)
        slot_bytes = max(1, sum(t.nbytes for t in tensors))  # by one position
        # All texts together may hold as many positions as they may want, or as half the memory holds.
        self.positions = min(max_rows * self.context, max(1, free // 2 // slot_bytes))
        self.reuses = isinstance(model, LM) and erasable(self.example.parts) == float("inf")
        scalings = (part.scaling for part in model.modules() if isinstance(part, Rotary))
        self.scalings = {scaling for scaling in scalings if scaling is not None}

    @property
    def usage(self) -> float:
        """The share of the memory for texts that is in use, between 0 and 1."""
        return min(1.0, sum(slot.reserved_positions for slot in self.live) / self.positions)

    def fits(self, length: int) -> bool:
        """Return whether a text that will hold this many positions can be opened now."""
        used = sum(slot.reserved_positions for slot in self.live)
        return len(self.live) < self.max_rows and (not self.live or used + length <= self.positions)

    def open(self, ids: Sequence[int], length: int) -> Slot:
        """Begin a text of these tokens; `slot.past` of them need not be read any more."""
        slot = Slot(length)
        source, common = self.find_prefix(ids)
        self.make_room(min(length, len(ids) + POSITIONS_AHEAD))
        if isinstance(self.model, LM):
            slot.state = self.model.new_state(1, length)
            slot.state.prompt = len(ids)
        if source is not None:
            self.copy_prefix(source, slot, common)
        self.live.append(slot)
        return slot

    def make_room(self, length: int) -> None:
        """Forget the oldest beginnings that are kept, as far as their room is needed."""
        used = sum(slot.reserved_positions for slot in self.live) + sum(slot.past for slot in self.kept)
        while self.kept and (used + length > self.positions or len(self.kept) > KEPT_SLOTS):
            used -= self.kept.popleft().past

    def find_prefix(self, ids: Sequence[int]) -> tuple[Slot | None, int]:
        """Return the text that begins like this one for the longest, and how much of it can be copied."""
        best: Slot | None = None
        common = 0
        if self.reuses:
            for slot in (*self.live, *reversed(self.kept)):
                limit = min(slot.reusable, len(ids) - 1)  # the last token is read, for its logits
                read_as = int(slot.state.prompt)
                if any(scaling.regime(read_as) != scaling.regime(len(ids)) for scaling in self.scalings):
                    continue  # its keys are turned by other angles
                if limit <= common or slot.ids[common] != ids[common]:
                    continue
                pairs = enumerate(zip(itertools.islice(slot.ids, limit), ids, strict=False))
                same = next((i for i, (ours, theirs) in pairs if ours != theirs), limit)
                same -= same % self.chunk
                if same > common:
                    best, common = slot, same
        return best, common

    def copy_prefix(self, source: Slot, target: Slot, length: int) -> None:
        """Let a new text remember the first positions of another."""
        for old, new in zip(kv_parts(source.state.parts), kv_parts(target.state.parts), strict=True):
            assert old.k is not None
            assert old.v is not None
            new.append(old.k[:, :, :length], old.v[:, :, :length], 0)
        target.state.past, target.state.tokens = length, source.state.tokens
        if target.state.tokens is not None:
            target.state.tokens = target.state.tokens[:, :length]
        target.ids, target.reusable, target.reused = source.ids[:length], length, length

    def piece(self, slot: Slot, left: int, budget: int) -> int:
        """Return how many of the `left` tokens of a prompt to read at once within a budget."""
        if isinstance(self.model, Seq2Seq):
            return left
        return min(left, self.chunk - slot.past % self.chunk)

    def forward(self, feeds: Sequence[tuple[Slot, Sequence[int]]]) -> Tensor:
        """Append tokens to each text; logits (B, V) after each one's last, valid until the next call."""
        return torch.cat([self.append_tokens(slot, ids) for slot, ids in feeds])

    @torch.no_grad()
    def append_tokens(self, slot: Slot, ids: Sequence[int]) -> Tensor:
        """Append tokens to one text and return the logits (1, V) after the last."""
        tokens = torch.tensor([list(ids)], device=self.model.device)
        with evaluation_mode(self.model):
            if slot.past and len(ids) == 1:
                slot.state.logits = self.model.step(tokens, slot.state)[:, -1]
            elif isinstance(self.model, LM):
                self.model.start(tokens, state=slot.state)
                slot.reusable = slot.past + len(ids)
            else:
                slot.state = self.model.start(tokens, length=slot.capacity)
        slot.ids += ids
        assert slot.state.logits is not None
        return slot.state.logits

    def close(self, slot: Slot) -> None:
        """End a text; its beginning may be used again until its room is needed."""
        self.live.remove(slot)
        if self.reuses and slot.reusable >= self.chunk:
            self.kept.append(slot)
            self.make_room(0)


def kv_parts(part: PartState | None) -> list[KV]:
    """Return the keys and values of all layers, in order."""
    return [leaf for leaf in state_leaves(part) if isinstance(leaf, KV)]


# Texts of models that are split over processes: the first one leads, and the others repeat what it does.


class LeadingSlots(EagerSlots):
    """Slots of a model that is split, in its first process: every call that computes is sent to the others.

    Slots are sent as their places among those that are open, which are the same in every process.
    """

    number: int  # of this model among those that are served
    channel: Any  # the group of processes that is told

    def tell(self, *message: Any) -> None:
        """Let the other processes make a call."""
        dist.broadcast_object_list([message], src=0, group=self.channel)

    def open(self, ids: Sequence[int], length: int) -> Slot:
        self.tell(self.number, "open", list(ids), length)
        return super().open(ids, length)

    def forward(self, feeds: Sequence[tuple[Slot, Sequence[int]]]) -> Tensor:
        self.tell(self.number, "forward", [(self.live.index(slot), list(ids)) for slot, ids in feeds])
        return super().forward(feeds)

    def close(self, slot: Slot) -> None:
        self.tell(self.number, "close", self.live.index(slot))
        super().close(slot)


@contextlib.contextmanager
def follow_first(slots: Sequence[EagerSlots]) -> Iterator[bool]:
    """Yield True in the first process, which leads; in another, follow until it ends, and yield False."""
    # Others may wait for the next request for as long as there is none.
    channel = dist.new_group(backend="gloo", timeout=timedelta(days=365))
    for number, one in enumerate(slots):
        positions = torch.tensor(one.positions)
        dist.all_reduce(positions, dist.ReduceOp.MIN, group=channel)  # all have room for the same texts
        one.positions = int(positions)
        if dist.get_rank() == 0:
            one.__class__, one.number, one.channel = LeadingSlots, number, channel  # type: ignore[attr-defined]
    if dist.get_rank() == 0:
        try:
            yield True
        finally:
            dist.broadcast_object_list([None], src=0, group=channel)
        return
    while True:
        message: list[Any] = [None]
        dist.broadcast_object_list(message, src=0, group=channel)
        if message[0] is None:
            break
        number, call, *values = message[0]
        followed = slots[number]
        if call == "open":
            followed.open(*values)
        elif call == "close":
            followed.close(followed.live[values[0]])
        else:
            followed.forward([(followed.live[place], ids) for place, ids in values[0]])
    yield False
