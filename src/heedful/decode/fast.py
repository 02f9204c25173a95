"""The fast steppers: the same prefill, steps that cost little more than reading the weights.

    heedful.generate(fast(model), "Once upon a time")

On a CPU a step is one call over rows (fast_cpu.py); on a GPU it is one recorded graph (graph.py). What
they cannot compute, the plain stepper does: same words in, same logits out.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from heedful.decode.fallback import FastStepper, Unknown, fallback_reason
from heedful.decode.stepper import EagerStepper, Stepper
from heedful.errors import InputError
from heedful.models.base import LM, Model, State
from heedful.nn.context import PartState, Watch
from heedful.nn.state import KV, Group, Rolling

if TYPE_CHECKING:
    from heedful.decode.fast_cpu import Rows
    from heedful.kernels.team import Team


MOST_ROWS = 4  # beyond it, a product over all rows at once is faster
# Weights × tokens that make up for getting the machine code ready (docs/generation-speed.md): a quarter of a
# second to read what an earlier process compiled, some ten to compile it the first time.
PAYS_READ, PAYS_COMPILED = 4e9, 4e10


def stepper_where_it_pays(model: Model, rows: int, tokens: int) -> Stepper:
    """What `generate` and `stream` step a model with: the fast stepper where it says the same and is faster.

    That is a decoder with float32 weights on a CPU, its parts unchanged and without hooks, at most MOST_ROWS
    texts, and enough to write that what is gained exceeds what getting ready costs. On a GPU, `fast(model)`
    must be asked for: it lays out the weights anew and records a graph.
    """
    work = tokens * sum(p.numel() for p in model.parameters())
    pays = work >= (PAYS_READ if compiled_before() else PAYS_COMPILED)
    return fast(model) if pays and rows <= MOST_ROWS and stepped_alike(model) else EagerStepper(model)


def stepped_alike(model: Model) -> bool:
    """Whether the fast stepper on a CPU computes what the plain one does, up to rounding in float32.

    Whole-number weights are multiplied in another precision there.
    """
    plain = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    return plain and importlib.util.find_spec("numba") is not None and fallback_reason(model) is None


def compiled_before() -> bool:
    """Whether the machine code is loaded, or lies where Numba keeps it beside the source."""
    name = "heedful.kernels.rows"
    if name in sys.modules:
        return True
    spec = importlib.util.find_spec(name)
    return spec is not None and any(Path(str(spec.origin)).parent.glob("__pycache__/rows.step-*.nbi"))


def fast(model: Model, kept: torch.dtype | None = None) -> Stepper:
    """The fastest stepper there is for this model, where it is; the plain one if there is no other.

    `kept`, on a GPU: the type of the keys and values that are kept, torch.float8_e4m3fn or the model's own.
    """
    if model.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from heedful.decode.graph import OnGPU

        return cast(Stepper, OnGPU(model, kept=kept))
    if kept is not None:
        raise InputError(
            f"kept={kept} is for the stepper of a GPU with Triton; this model is on {model.device}"
        )
    return cast(Stepper, OnCPU(model) if model.device.type == "cpu" else EagerStepper(model))


class OnCPU(FastStepper):
    """Steps of a few rows as one call of machine code, on the plain stepper's own state."""

    def __init__(self, model: Model, chunk: int | None = None) -> None:
        super().__init__(model, chunk)
        self.rows: Rows | None = None
        self.team: Team | None = None
        self.compiles = importlib.util.find_spec("numba") is not None
        self.check_model()

    def check_model(self) -> None:
        super().check_model()
        if not self.compiles:
            self.why = "numba is not installed (pip install 'heedful[fast]')"

    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        self.check_model()
        self.rows = None  # the weights may have moved since
        return super().prefill(prompt, valid, length)

    @torch.no_grad()
    def step(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        if not self.takes_fast_way(watch) or not self.ready(len(tokens)):
            return super().step(tokens, watch)
        assert isinstance(self.model, LM)
        assert self.rows is not None
        state, ids = self.state, tokens.tolist()
        first = begins(state, len(ids))
        if first is None:
            return super().step(tokens, watch)
        if min(ids) < 0 or max(ids) >= self.model.embed.vocab:
            raise InputError(f"a token is outside the vocabulary 0 … {self.model.embed.vocab - 1}: {ids}")
        state.past += 1
        if state.valid is not None:
            state.valid = torch.cat((state.valid, state.valid.new_ones(len(ids), 1)), 1)
        self.model.check_reach(state.past, self.model.embed, state.valid)
        return self.rows.step(ids, state.past - 1, first)

    def ready(self, count: int) -> bool:
        """Make a list of instructions if there is none for so many rows; False if this step must be plain."""
        from heedful.decode.fast_cpu import Rows
        from heedful.kernels.team import Team

        held, end = caches(self.state.parts), self.state.past + 1
        if held is None:
            self.why = "a layer remembers something else than keys and values"
            return False
        if count > MOST_ROWS or not all(kv.fits(end) for kv in held):
            return False
        assert isinstance(self.model, LM)
        try:
            if self.rows is None or self.rows.rows != count or self.rows.listing.capacity < end:
                self.team = self.team or Team(torch.get_num_threads())
                room = max(kv.k.shape[2] for kv in held if kv.k is not None)
                self.rows = Rows(self.model, count, room if end <= room else 2 * end, self.team)
            self.rows.bind(held)
        except Unknown as reason:
            self.why, self.rows = str(reason), None
            return False
        for kv in held:
            if isinstance(kv, Rolling):
                kv.reached = max(kv.reached, end)  # the instructions write past it
        return True


def caches(state: PartState | None) -> list[KV | Rolling] | None:
    """The keys and values in the order of the layers; None if a layer remembers anything else."""
    if isinstance(state, Group):
        found = [caches(child) for child in state.parts.values() if child is not None]
        return None if any(f is None for f in found) else [kv for f in found if f is not None for kv in f]
    return [state] if isinstance(state, (KV, Rolling)) else None


def begins(state: State, rows: int) -> list[int] | None:
    """The first valid position of every row; None if padding is not all on the left."""
    if state.valid is None:
        return [0] * rows
    first = state.valid.int().argmax(1)
    return first.tolist() if bool((state.valid.sum(1) == state.past - first).all()) else None
