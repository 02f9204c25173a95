"""The stepper: a model while it writes. Every loop goes over one; a fast path is another, put in by value.

    logits = stepper.prefill(prompt)              (B, V) for the first token
    logits = stepper.step(tokens)                 (B, V) for the next, after each row wrote one
    stepper.reorder(index)                        beams, n samples, rows that are done
    logits = stepper.extend(tokens); stepper.crop(length)      speculation

`stream` and `generate` take a model, or a stepper made from one. A stepper is used by one call at a time;
`prefill` starts again.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from heedful.core.errors import InputError
from heedful.decode.sampling import choose_token
from heedful.decode.settings import GenerationSettings
from heedful.models.base import LM, Model, Seq2Seq, State, evaluation_mode
from heedful.nn.context import PartState, Watch
from heedful.nn.state import FixedState, RecurrentState, SlidingKV, state_leaves

PROMPT_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
MAX_BURST = 64  # tokens that a row may write before the host looks
MAX_CAPACITY_AHEAD = 4096  # positions allocated at once; a state that needs more grows


@runtime_checkable
class Stepper(Protocol):
    """A model while it generates. Logits may be of any float type; the loop makes them float32.

    The logits of `step` may be a buffer that the next call overwrites.
    """

    @property
    def model(self) -> Model:
        """The model, for its tokenizer and config."""

    @property
    def fixed_batch(self) -> bool:
        """Whether the number of rows cannot change: a row that is done is stepped further and ignored."""

    @property
    def past(self) -> int:
        """The number of positions so far, padding included."""

    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        """Read prompts (B, T), padded on the left where `valid` is False; logits (B, V) of the next token.

        An encoder-decoder reads them as its sources. `length` is how many positions there will be at most,
        the prompt's included; an encoder-decoder counts its target only.
        """

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token (B,) to each row and return the logits (B, V) of the next."""

    def extend(self, tokens: Tensor) -> Tensor:
        """Append several tokens (B, T) to each row and return the logits (B, T, V) after each."""

    def reorder(self, index: Tensor) -> None:
        """Let row b continue what row index[b] was. Unless `fixed_batch`, the number of rows may change."""

    def crop(self, length: int) -> None:
        """Forget everything after the first `length` positions."""


class EagerStepper:
    """A model's own `start` and `step`: the definition that the fast steppers are compared with.

    A `watch` sees every pass. Its rows stay where they are: one whose text has ended is stepped further.
    """

    fixed_batch = False
    watch: Watch | None = None

    def __init__(self, model: Model, chunk: int | None = None, watch: Watch | None = None) -> None:
        if not isinstance(model, (LM, Seq2Seq)) or (isinstance(model, LM) and not model.causal):
            raise InputError(
                f"{model.family.name} reads both ways and cannot generate",
                hint="take a decoder or encoder-decoder: heed ls has some for text-generation, translation",
            )
        if model.config.head != "lm":
            raise InputError(
                f"this {model.family.name} has the head {model.config.head!r}, which gives no next token",
                hint="load it with the head 'lm', or take one for text-generation or translation: heed ls",
            )
        self.model: LM | Seq2Seq = model
        self.chunk = chunk  # prompts longer than this are read in pieces
        self.watch = watch
        if watch is not None:
            self.fixed_batch = True
        self.state: State = State(None)

    @property
    def past(self) -> int:
        return self.state.past

    @torch.no_grad()
    def prefill(self, prompt: Tensor, valid: Tensor | None = None, length: int = 0) -> Tensor:
        length = min(length, prompt.shape[1] + MAX_CAPACITY_AHEAD)
        # cuDNN's attention makes a plan for every new length, which takes longer than reading a prompt.
        with evaluation_mode(self.model), sdpa_kernel(PROMPT_BACKENDS):
            if isinstance(self.model, LM):
                self.state = self.model.start(
                    prompt, valid=valid, length=length, chunk=self.chunk, watch=self.watch
                )
            else:
                self.state = self.model.start(prompt, valid=valid, length=length, watch=self.watch)
        assert self.state.logits is not None
        return self.state.logits

    @torch.no_grad()
    def step(self, tokens: Tensor, watch: Watch | None = None) -> Tensor:
        valid = None
        if self.watch is not None:
            valid, watch = self._within_context(), self.watch if watch is None else self.watch + watch
        with evaluation_mode(self.model):
            return self.model.step(tokens[:, None], self.state, watch=watch, valid=valid)[:, -1]

    def _within_context(self) -> Tensor | None:
        """(B, 1): False for rows that ended because the context is full; None if there is none."""
        model, valid = self.model, self.state.valid
        context = (model.embed if isinstance(model, LM) else model.decoder_embed).context
        if context is None or valid is None or self.state.past < context:
            return None
        return valid.sum(1, keepdim=True) < context

    @torch.no_grad()
    def extend(self, tokens: Tensor) -> Tensor:
        with evaluation_mode(self.model):
            return self.model.step(tokens, self.state, watch=self.watch)

    @torch.no_grad()
    def step_ahead(
        self,
        tokens: Tensor,
        count: int,
        settings: GenerationSettings,
        uniforms: Tensor | None = None,
        ends: Collection[int] = (),
    ) -> Tensor:
        """Append tokens (B,), choose the next and go on with it, `count` times; return those, (B, count).

        `uniforms` (B, count) are the random numbers, if `settings` draw; they have no penalties. On a CPU
        there are fewer if a row chooses one of `ends`; a GPU does not wait to find out.
        """
        chosen = [tokens]
        for i in range(count):
            u = None if uniforms is None else uniforms[:, i]
            chosen.append(choose_token(settings, self.step(chosen[-1]), u))
            if ends and tokens.device.type == "cpu" and not set(ends).isdisjoint(chosen[-1].tolist()):
                break
        return torch.stack(chosen[1:], 1)

    def reorder(self, index: Tensor) -> None:
        runs = self.state.runs
        self.state.reorder(index)
        if self.watch is not None:
            self.watch.reorder(index)
            self.state.runs = runs

    def crop(self, length: int) -> None:
        self.state.crop(length)

    def crops(self, count: int) -> bool:
        """Return whether the newest `count` positions can be forgotten; a recurrent state cannot forget."""
        return count <= erasable(self.state.parts)


def erasable(part: PartState | None) -> float:
    """Return how many of the newest positions all layers can forget: none if recurrent, a few of a window."""
    most = math.inf
    for leaf in state_leaves(part):
        if isinstance(leaf, SlidingKV):
            most = min(most, leaf.spare)
        elif isinstance(leaf, RecurrentState) and not isinstance(leaf, FixedState):
            most = 0
    return most


def stepper_for(model: Model | Stepper) -> Stepper:
    """Return the stepper itself, or the eager one of a model."""
    if isinstance(model, Model):
        return EagerStepper(model)
    if not isinstance(model, Stepper):
        raise InputError(f"{model!r:.60} is not a model", hint="heedful.load(…) gives one")
    return model
