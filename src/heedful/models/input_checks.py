"""What a model is called with, looked at before it is read: one clear error each."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.errors import InputError


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
