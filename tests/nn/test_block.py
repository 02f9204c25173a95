"""Blocks join their parts as their equations say."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import SandwichBlock
from heedful.nn.context import Context, Mask
from heedful.nn.ffn import MLP
from heedful.nn.norm import RMSNorm


def context(length: int) -> Context:
    pos = torch.arange(length)[None]
    return Context(pos, pos, Mask(causal=True))


@torch.no_grad()
def test_a_sandwich_block_normalises_what_a_part_gives_before_it_is_added() -> None:
    torch.manual_seed(0)
    parts = {"attn": Attention(12, 3), "ffn": MLP(12, 20, F.gelu)}
    both = SandwichBlock(lambda: RMSNorm(12), lambda: RMSNorm(12), **parts)
    after = SandwichBlock(nn.Identity, lambda: RMSNorm(12), **parts)
    for block in (both, after):
        for parameter in block.parameters():
            parameter.normal_(std=0.5)
        x, ctx = torch.randn(2, 5, 12), context(5)
        y = x + block.attn_post_norm(block.attn(block.attn_norm(x), ctx))
        wanted = y + block.ffn_post_norm(block.ffn(block.ffn_norm(y), ctx))
        assert torch.equal(block(x, ctx), wanted)
