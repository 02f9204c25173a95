"""Order: what attention does not know without positions, and what a causal mask gives away."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from heedful.models.base import LM
from heedful.nn.attention.multi_head import Attention
from heedful.nn.block import Block, Stack
from heedful.nn.embedding import Embedding
from heedful.nn.ffn import MLP
from heedful.nn.norm import LayerNorm
from heedful.nn.position import Sinusoidal


def encoder(*, causal: bool = False, positions: bool = False) -> LM:
    torch.manual_seed(0)
    block = lambda: Block(lambda: LayerNorm(16), attn=Attention(16, 4), ffn=MLP(16, 32, F.relu))
    embed = Embedding(50, 16, position=Sinusoidal(16) if positions else None)
    return LM(embed, Stack([block(), block()]), causal=causal).eval()


TOKENS = torch.tensor([[3, 14, 15, 9, 26, 5]])
ORDER = torch.tensor([4, 2, 0, 5, 1, 3])


@torch.no_grad()
def test_without_positions_an_encoder_permutes_with_its_input() -> None:
    model = encoder()
    assert (model.encode(TOKENS)[:, ORDER] - model.encode(TOKENS[:, ORDER])).abs().max() <= 1e-6


@torch.no_grad()
def test_under_a_causal_mask_it_does_not() -> None:
    model = encoder(causal=True)
    assert (model.encode(TOKENS)[:, ORDER] - model.encode(TOKENS[:, ORDER])).abs().max() > 1e-3


@torch.no_grad()
def test_with_positions_it_does_not() -> None:
    model = encoder(positions=True)
    assert (model.encode(TOKENS)[:, ORDER] - model.encode(TOKENS[:, ORDER])).abs().max() > 1e-3
