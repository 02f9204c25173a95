"""Attention in which a query sees a few blocks of keys instead of all, so that long texts cost O(T).

The rule who sees whom is a function of positions, and `attend` with that rule as a matrix is the definition.
`attend_blocks` computes the same without the matrix: it cuts the text into blocks of queries, gathers the
blocks of keys that each of them may see, and makes of every block a row of a batch of small, plain attention
calls. A text of T tokens costs T · (keys that a query sees) in time and memory. Padding is moved behind the
text before the cut, so that blocks count tokens, as positions do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.attention.attend import Call, attend, masked_softmax
from heedful.nn.attention.multi_head import Attention, join_heads, split_heads
from heedful.nn.context import Context, Mask, PartState


def token_order(call: Call) -> Tensor | None:
    """(B, T): the slots of the tokens in their order, then those of padding; None without padding."""
    valid = call.mask.valid
    return None if valid is None else (~valid).long().argsort(dim=1, stable=True)


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


class WindowedAttention(Attention):
    """Attention within a window, but for the `first` tokens, which see all and are seen by all

    (Beltagy et al. 2020, arXiv 2004.05150 §3.) The first tokens have their own queries, and their own keys
    and values of all tokens: the rows of `pattern` that are theirs weigh those values. `reach` is how far
    others see to either side. Without a first token the further matrices are not read.
    """

    def __init__(self, dim: int, heads: int, *, reach: int, first: int = 0, dropout: float = 0.0) -> None:
        super().__init__(dim, heads, bias=True, window=reach + 1, dropout=dropout)
        self.first = first
        self.first_q, self.first_k, self.first_v = (nn.Linear(dim, dim) for _ in range(3))

    def mixing_flops(self, length: int) -> int:
        assert self.window is not None
        return 4 * min(length, 2 * self.window - 1 + self.first) * self.heads * self.head_dim

    def forward(self, x: Tensor, ctx: Context, state: PartState | None = None) -> Tensor:
        q, k, v = (split_heads(y, self.heads) for y in self.project(x))  # (B, H, T, K)
        q, k, v = ctx.see("q", q), ctx.see("k", k, keys=-2), ctx.see("v", v, keys=-2)
        mask = replace(ctx.mask, window=self.window, first=self.first)
        dropout = self.dropout * self.training
        call = Call(q, k, v, ctx.q_pos, ctx.k_pos, mask, None, self.scale, dropout)
        heads = self.attend_first(call, x, ctx) if self.first else attend_window(call, ctx)
        return self.output(join_heads(heads), x, ctx)

    def attend_first(self, call: Call, x: Tensor, ctx: Context) -> Tensor:
        """What the heads read where the first tokens have matrices of their own."""
        layers = (self.first_q, self.first_k, self.first_v)
        q, k, v = (split_heads(layer(x), self.heads) for layer in layers)
        is_first = (call.q_pos < self.first)[:, None, :, None]  # (B or 1, 1, T, 1)
        if ctx.watches("scores", "pattern") or call.mask.k_documents is not None:
            scores = torch.where(is_first, q @ k.mT, call.q @ call.k.mT) * self.scale
            keep = call.mask.dense(call.q_pos, call.k_pos)
            pattern = ctx.see("pattern", masked_softmax(ctx.see("scores", scores, keys=-1), keep), keys=-1)
            thinned = F.dropout(pattern, call.dropout)
            return ctx.see("heads", torch.where(is_first, thinned @ v, thinned @ call.v))
        heads = attend_window(call, replace(ctx, watch=None))
        order = token_order(call)
        count = min(self.first, x.shape[1])
        index = torch.arange(count, device=x.device).expand(len(x), -1) if order is None else order[:, :count]
        plain = replace(call, q=pick(q, index), k=k, v=v, q_pos=pick(call.q_pos, index),
                        mask=replace(ctx.mask, window=None))  # fmt: skip
        seen = attend(plain, replace(ctx, watch=None))  # (B, H, first, K)
        whole = heads.scatter(2, index[:, None, :, None].expand_as(seen), seen)
        return ctx.see("heads", torch.where(is_first, whole, heads))


@dataclass(frozen=True)
class BlockMask(Mask):
    """Who sees whom in BigBird, counted in blocks of tokens: the first and the last see and are seen, and

    every block sees itself and its neighbours. A text of at most `limit` tokens is seen by all of it.
    """

    block: int = 64
    limit: int = 0
    length: Tensor | None = None  # (B or 1, 1 or T): the tokens of each query's text

    @property
    def is_causal_only(self) -> bool:
        return False

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        assert self.length is not None
        i, j = (q_pos // self.block)[:, None, :, None], (k_pos // self.block)[:, None, None, :]
        length = self.length[:, None, :, None]
        last = (length - 1) // self.block
        near = (i == 0) | (j == 0) | (i == last) | (j == last) | ((i - j).abs() <= 1) | (length <= self.limit)
        plain = Mask(valid=self.valid, q_documents=self.q_documents, k_documents=self.k_documents)
        return near & plain.dense(q_pos, k_pos)


class BlockSparseAttention(Attention):
    """Attention of blocks: to the first and the last, to the neighbours, and to some at random

    (Zaheer et al. 2020, arXiv 2007.14062 §2.) While it trains, a block of queries sees `random` further
    blocks, scattered over the text by a rule that depends on the layer. Published models see none of them
    when they are evaluated: the first block stands in for each, so that its keys count 1 + `random` times,
    and so it is here. The first and the last block see everything. A text of at most (5 + 2 · random)
    blocks is read by plain attention, as it would be seen almost whole.
    """

    def __init__(
        self, dim: int, heads: int, *, block: int = 64, random: int = 3, layer: int = 0, **more: Any
    ) -> None:
        super().__init__(dim, heads, **more)
        self.block, self.random, self.layer = block, random, layer
        self.limit = (5 + 2 * random) * block

    def mixing_flops(self, length: int) -> int:
        seen = length if length <= self.limit else (5 + self.random) * self.block
        return 4 * seen * self.heads * self.head_dim

    def attend(self, call: Call, ctx: Context) -> Tensor:
        T, valid = call.q.shape[2], call.mask.valid
        if self.limit >= T:
            return attend(call, ctx)
        rule = {name: getattr(call.mask, name) for name in ("valid", "q_documents", "k_documents")}
        mask = BlockMask(**rule, block=self.block, limit=self.limit, length=ctx.length)
        packed = call.mask.k_documents is not None
        if packed or ctx.backend != "auto" or ctx.watches("scores", "pattern"):
            return attend(replace(call, mask=mask, bias=self.repeats(call, ctx)), ctx)
        length = (
            call.q_pos.new_full((1, 1), T) if valid is None else valid.sum(1, keepdim=True)
        )  # (B or 1, 1)
        table = self.table(length, -(-T // self.block))
        heads = attend_blocks(replace(call, mask=Mask(valid=valid)), ctx, self.block, table)
        # The first and the last block of each text see everything: few rows of plain attention.
        order = token_order(call)
        place = torch.arange(self.block, device=call.q.device).expand(len(length), -1)
        last = (length - 1) // self.block * self.block + place
        index = torch.cat((place, last.clamp(0, T - 1)), 1).expand(len(call.q), -1)
        index = index if order is None else order.gather(1, index)
        few = attend(
            replace(call, q=pick(call.q, index), q_pos=pick(call.q_pos, index)), replace(ctx, watch=None)
        )
        return ctx.see("heads", heads.scatter(2, index[:, None, :, None].expand_as(few), few))

    def repeats(self, call: Call, ctx: Context) -> Tensor:
        """log of how often a key counts, (B or 1, 1, T, S): the first stands for the random ones."""
        i, j = (call.q_pos // self.block)[:, None, :, None], (call.k_pos // self.block)[:, None, None, :]
        length = ctx.length[:, None, :, None]
        middle = (i > 0) & (i < (length - 1) // self.block) & (length > self.limit)
        return ((j == 0) & middle).to(call.q.dtype) * math.log(1 + self.random)

    def table(self, length: Tensor, blocks: int) -> Tensor:
        """(B or 1, blocks, 5 + 2 · random): what each block sees in texts of `length`, (B or 1, 1)."""
        number, wide = torch.arange(blocks, device=length.device), 5 + 2 * self.random
        last = ((length - 1) // self.block)[..., None]  # (B or 1, 1, 1)
        i = number[None, :, None].expand(len(length), -1, -1)
        near = i + torch.arange(-1, 2, device=length.device)  # (B or 1, blocks, 3)
        near = near.masked_fill((near <= 0) | (near >= last), -1)  # the first and the last are there already
        drawn = torch.zeros_like(i).expand(-1, -1, self.random)
        if self.training:
            # Multiples of the golden ratio fill the text evenly and in no order, and need no random state.
            turn = torch.arange(1, self.random + 1, device=length.device) + self.random * i
            share = (turn * 0.6180339887 + self.layer * 0.7548776662) % 1.0
            drawn = (1 + share * (last - 1)).long().clamp(max=blocks - 1)
        some = torch.cat((torch.zeros_like(i), last.expand_as(i), near, drawn), -1)
        some = F.pad(some, (0, wide - some.shape[-1]), value=-1)
        every = torch.arange(wide, device=length.device).expand_as(some)
        every = every.masked_fill(every > last, -1)
        return torch.where(length[..., None] <= self.limit, every, some)
