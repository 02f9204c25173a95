"""Attention in which a query sees a few blocks of keys instead of all, so that long texts cost O(T).

The rule who sees whom is a function of positions, and `attend` with that rule as a matrix is the definition.
`attend_blocks` computes the same without the matrix: it cuts the text into blocks of queries, gathers the
blocks of keys that each of them may see, and makes of every block a row of a batch of small, plain attention
calls. A text of T tokens costs T · (keys that a query sees) in time and memory. Padding is moved behind the
text before the cut, so that blocks count tokens, as positions do.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.nn.attention.attend import Call, attend
from heedful.nn.context import Context


def token_order(call: Call) -> Tensor | None:
    """(B, T): the slots of the tokens in their order, then those of padding; None without padding."""
    if call.mask.valid is None:
        return None
    return (~call.mask.valid.expand(len(call.q), -1)).long().argsort(dim=1, stable=True)


def pick(t: Tensor, index: Tensor | None) -> Tensor:
    """The slots `index` (B, N) of every row of t, (B, H, T, K) or (B, T)."""
    if index is None:
        return t
    if t.dim() == 2:
        return t.expand(len(index), -1).gather(1, index)
    return t.gather(2, index[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3]))


def attend_blocks(call: Call, ctx: Context, block: int, table: Tensor, first: int = 0) -> Tensor:
    """attend(call), where the queries of block i look for keys in the blocks table[i] alone, (B, H, T, K)

    `table` (B or 1, blocks, m) has numbers of blocks, and -1 for none; what stands there twice counts twice.
    Everyone also sees the `first` tokens. The rule of the call's mask still holds within these keys.
    """
    B, _, T, _ = call.q.shape
    order, mask = token_order(call), call.mask
    rows = torch.arange(B, device=call.q.device)[:, None, None]
    count = table.shape[1]
    valid = torch.ones(B, T, dtype=torch.bool, device=call.q.device) if mask.valid is None else mask.valid
    table = table.expand(B, -1, -1)

    def cut(t: Tensor) -> Tensor:
        """(B, H, T, K) → (B, blocks, H, block, K),  (B, T) → (B, blocks, block)"""
        t, room = pick(t, order), count * block - T
        if t.dim() == 2:
            return F.pad(t.expand(B, -1), (0, room)).unflatten(1, (count, block))
        return F.pad(t, (0, 0, 0, room)).unflatten(2, (count, block)).transpose(1, 2)

    def gather(t: Tensor) -> Tensor:
        """The keys of every block of queries: (B · blocks, H, keys, K) or (B · blocks, keys)"""
        t = cut(t)
        near = t[rows, table.clamp(min=0)]  # (B, blocks, m, …)
        near = near.flatten(2) if t.dim() == 3 else near.transpose(2, 3).flatten(3, 4)
        if first:
            whole = t.flatten(1) if t.dim() == 3 else t.transpose(1, 2).flatten(2, 3)
            head = whole[:, None, ..., :first] if t.dim() == 3 else whole[:, None, ..., :first, :]
            near = torch.cat((head.expand(-1, count, *head.shape[2:]), near), -1 if t.dim() == 3 else -2)
        return near.flatten(0, 1)

    listed = (table >= 0).repeat_interleave(block, 2)  # (B, blocks, m · block)
    if first:  # these were seen already
        listed = listed & (cut(call.k_pos)[rows, table.clamp(min=0)].flatten(2) >= first)
        listed = F.pad(listed, (first, 0), value=True)
    documents = mask.k_documents
    small = replace(
        call, q=cut(call.q).flatten(0, 1), k=gather(call.k), v=gather(call.v),
        q_pos=cut(call.q_pos).flatten(0, 1), k_pos=gather(call.k_pos),
        mask=replace(
            mask, valid=gather(valid) & listed.flatten(0, 1),
            q_documents=None if documents is None else cut(documents).flatten(0, 1),
            k_documents=None if documents is None else gather(documents),
        ),
    )  # fmt: skip
    heads = attend(small, replace(ctx, watch=None)).unflatten(0, (B, count))  # (B, blocks, H, block, K)
    heads = heads.transpose(1, 2).flatten(2, 3)[:, :, :T]
    return heads if order is None else pick(heads, order.argsort(1))


def attend_window(call: Call, ctx: Context) -> Tensor:
    """attend(call), whose mask has a window: O(T · window). A watched pattern follows the definition."""
    mask, length = call.mask, call.q.shape[2]
    assert mask.window is not None
    block = max(mask.window - 1, 1)
    packed_first = bool(mask.first) and mask.k_documents is not None  # every document has its own
    dense = ctx.backend != "auto" or call.bias is not None or length != call.k.shape[2] or packed_first
    if dense or length <= 3 * block or ctx.watches("scores", "pattern"):
        return attend(call, ctx)
    number = torch.arange(-(-length // block), device=call.q.device)[:, None]
    table = number + torch.arange(-1, 1 if mask.causal else 2, device=call.q.device)
    table = table.masked_fill(table >= len(number), -1)
    return ctx.see("heads", attend_blocks(call, ctx, block, table[None], mask.first))
