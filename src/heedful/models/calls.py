"""The call of a model: its keywords, checks of what it reads, positions of tokens, state of decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn

from heedful.core.errors import InputError
from heedful.nn.context import Context, Mask, PartState, Watch


class WatchOptions(TypedDict, total=False):
    """The keywords of every call of a model: how it is computed and watched."""

    watch: Watch | None
    backend: str  # of attention: auto, reference, sdpa, blocked


class StepOptions(WatchOptions, total=False):
    """The keywords of `step`."""

    valid: Tensor | None  # (B, T) False on padding


class ForwardOptions(StepOptions, total=False):
    """The keywords of an LM that reads a text in one pass."""

    types: Tensor | None  # (B, T) which segment a token belongs to
    documents: Tensor | None  # (B, T) which packed document


@dataclass
class State:
    """What a model remembers while it decodes. The model counts; the parts hold."""

    parts: PartState | None
    past: int = 0  # positions held, padding included
    valid: Tensor | None = None  # (B, past), None while nothing was padding
    memory: Tensor | None = None
    memory_mask: Mask | None = None
    logits: Tensor | None = None  # (B, V) for the next token, after `start`
    runs: frozenset[int] = frozenset()  # of the watches that have seen all of it: see Watch.begin
    prompt: int | Tensor = 0  # tokens that were or will be read as one text; (B, 1) if rows were padded
    # Lengths past which all that was read is read again (nn/position.py), and the tokens (B, past) for that.
    reread_lengths: tuple[int, ...] = ()
    tokens: Tensor | None = None
    is_stale: bool = False  # it was cropped to a length at which its tokens must be read again

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row index[b] was."""
        if self.parts is not None:
            self.parts.reorder(index)
        self.valid = None if self.valid is None else self.valid[index]
        self.memory = None if self.memory is None else self.memory[index]
        if self.memory_mask is not None and self.memory_mask.valid is not None:
            self.memory_mask = Mask(valid=self.memory_mask.valid[index])
        self.logits = None if self.logits is None else self.logits[index]
        self.tokens = None if self.tokens is None else self.tokens[index]
        self.prompt = self.prompt[index] if isinstance(self.prompt, Tensor) else self.prompt
        self.runs = frozenset()  # what was recorded stands in the order of the rows before

    def crop(self, length: int) -> None:
        """Forget everything after the first `length` positions."""
        if length < self.past:
            if self.parts is not None:
                self.parts.crop(length)
            before = self.lengths()
            self.past, self.prompt, self.runs = length, 0, frozenset()
            self.valid = None if self.valid is None else self.valid[:, :length]
            self.tokens = None if self.tokens is None else self.tokens[:, :length]
            self.is_stale = self.is_stale or self.changes_between(self.lengths(), before)

    def lengths(self, more: int | Tensor = 0) -> Tensor:
        """The tokens of each row's text, (B, 1) or one number for all rows; `more` are about to be read."""
        counts = self.past if self.valid is None else self.valid.sum(1, keepdim=True)
        return torch.maximum(torch.as_tensor(counts + more), torch.as_tensor(self.prompt))

    def changes_between(self, shorter: Tensor, longer: Tensor) -> bool:
        """Whether what was read for one length must be read again for the other."""
        return any(bool(((shorter <= n) & (longer > n)).any()) for n in self.reread_lengths)


def check_ids_tensor(tokens: Tensor, name: str) -> None:
    """One clear error for what is no (B, T) tensor of whole numbers, or an empty one."""
    if not isinstance(tokens, Tensor):
        raise InputError(
            f"{name} must be a (B, T) tensor of ids, such as torch.tensor([[3, 1, 4]]), "
            f"got {type(tokens).__name__}",
            hint="model.tokenizer.encode turns a text into ids",
        )
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"{name} must be a (B, T) tensor of ids, got {tuple(tokens.shape)} of {tokens.dtype}"
        )
    if tokens.numel() == 0:
        raise InputError(f"{name} is empty", hint="give at least one token")


def check_beside(tokens: Tensor, extra: Tensor | None, name: str, count: int | None = None) -> None:
    """One clear error for types or documents that do not fit the tokens; `count` types are known."""
    if extra is None:
        return
    if not isinstance(extra, Tensor) or extra.shape != tokens.shape or extra.is_floating_point():
        got = tuple(extra.shape) if isinstance(extra, Tensor) else type(extra).__name__
        raise InputError(
            f"{name} must be a tensor of whole numbers of shape {tuple(tokens.shape)}, got {got}"
        )
    if count is None or torch.compiler.is_compiling() or (extra.is_cuda and torch.is_grad_enabled()):
        return
    if int(extra.min()) < 0 or int(extra.max()) >= count:
        bad = int(extra.min()) if int(extra.min()) < 0 else int(extra.max())
        raise InputError(f"{name} has the number {bad}", hint=f"this model knows {count}, from 0")


def positions(valid: Tensor | None, length: int, device: torch.device) -> Tensor:
    """(B or 1, S): how many valid tokens stand before each one, so that padding changes nothing."""
    if valid is None:
        return torch.arange(length, device=device)[None]
    return (valid.long().cumsum(1) - 1).clamp(min=0)


def document_positions(documents: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Positions that start again with each packed document, where they start, and how many tokens the
    document of each token has; all (B, T).
    """
    index = torch.arange(documents.shape[1], device=documents.device)[None]
    fresh = torch.ones_like(documents, dtype=torch.bool)
    fresh[:, 1:] = documents[:, 1:] != documents[:, :-1]
    pos = index - torch.where(fresh, index, 0).cummax(1).values
    number = fresh.long().cumsum(1) - 1
    count = pos + 1 if valid is None else (pos + 1) * valid
    lengths = torch.zeros_like(count).scatter_reduce(1, number, count, "amax").gather(1, number)
    return pos, fresh, lengths


def advance(
    tokens: Tensor,
    state: State,
    *,
    valid: Tensor | None = None,
    watch: Watch | None = None,
    backend: str = "auto",
) -> Context:
    """The context of the next tokens; counts them in the state, once for all layers."""
    state.runs = frozenset() if watch is None else watch.begin(state.runs)
    T, past = tokens.shape[1], state.past
    if valid is not None or state.valid is not None:
        old = tokens.new_ones(len(tokens), past, dtype=torch.bool) if state.valid is None else state.valid
        new = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        state.valid = torch.cat((old, new), 1)
        valid = new
    k_pos = positions(state.valid, past + T, tokens.device)
    if not past and isinstance(state.prompt, int) and state.prompt < T:  # the first tokens are one text
        state.prompt = T if valid is None else valid.sum(1, keepdim=True)
    ctx = Context(
        k_pos[:, past:], k_pos, Mask(causal=True, valid=state.valid), past=past, valid_new=valid,
        text_length=state.prompt, memory=state.memory, memory_mask=state.memory_mask, watch=watch,
        backend=backend,
    )  # fmt: skip
    if state.reread_lengths:
        state.tokens = tokens if state.tokens is None else torch.cat((state.tokens, tokens), 1)
    state.past = past + T
    return ctx


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off for a while, also in the middle of training; costs nothing in eval mode."""
    if not model.training:
        yield
        return
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
