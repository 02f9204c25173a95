"""Attention with a sparse pattern: a window and a few tokens that see all, or few blocks for each block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.attention.attend import Call, attend, masked_softmax
from heedful.nn.attention.blocks import attend_blocks, attend_window, pick, token_order
from heedful.nn.attention.multi_head import Attention, join_heads, split_heads
from heedful.nn.context import Context, Mask, PartState


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
        """What the heads read where the first tokens have separate matrices."""
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
