"""Prompts read on a GPU with a step's merged matrices: what stands between the products is one kernel each.

The plain forward pass is the definition, and reads whatever this does not know (`reads`). Over many tokens
products take the time; norms, rotations and gates pass over all of them again with every operation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.decode.fast_gpu import ACTS, Launches
from heedful.decode.gpu_matrices import Matrix, described, multiply, power
from heedful.kernels import gpu_attend as A
from heedful.kernels import gpu_rows as R
from heedful.models.base import LM
from heedful.nn.attention import Attention
from heedful.nn.block import Block
from heedful.nn.ffn import MLP, GatedMLP
from heedful.nn.head import LMHead

MANY = 16  # heads of a position that one program turns


def reads(model: LM) -> bool:
    """Whether all parts are known: blocks of order "pre" without windows or biases, positions by rotation.

    It is asked of a model whose step is recorded: its parts are what their classes say (see `fallback`).
    """
    embed = model.embed
    rest = (embed.position, embed.types, embed.project, embed.norm, model.blocks.bias)
    blocks = [model.blocks[i] for i in range(len(model.blocks))]
    if any(part is not None for part in rest) or type(embed.token) is not nn.Embedding:
        return False
    if not all(type(block) is Block and block.order == "pre" for block in blocks):
        return False
    parts = [block.part(name) for block in blocks if isinstance(block, Block) for name in block.names]
    return all(
        (isinstance(p, Attention) and p.window is None)
        or (isinstance(p, (MLP, GatedMLP)) and p.act in ACTS)
        for p in parts
    )  # fmt: skip


def read(launches: Launches, prompt: Tensor) -> Tensor:
    """Logits (B, V) after prompts (B, T) without padding. Keys and values go to the caches of `launches`."""
    model, (rows, length) = launches.model, prompt.shape
    x = F.embedding(prompt.flatten(), model.embed.token.weight).float() * model.embed.scale  # (B T, D)
    caches, pending = iter(launches.caches), None
    for number in range(len(model.blocks)):
        block = model.blocks[number]
        assert isinstance(block, Block)
        for name in block.names:
            part, norm = block.part(name), block.get_submodule(f"{name}_norm")
            n = normalised(launches, x, pending, norm)
            if isinstance(part, Attention):
                pending = attended(launches, part, n, rows, next(caches))
            else:
                assert isinstance(part, (MLP, GatedMLP))
                pending = fed(launches, part, n)
    assert pending is not None
    x, pending = (t.view(rows, length, -1)[:, -1].contiguous() for t in (x, pending))
    assert isinstance(model.head, LMHead)
    head = launches.matrices[model.head]["head"]
    return product(normalised(launches, x, pending, model.blocks.norm), head, model.head.scale)


def product(x: Tensor, w: Matrix, factor: float = 1.0) -> Tensor:
    """factor · x Wᵀ + b"""
    out = x.new_empty(len(x), w.rows)
    multiply(x, w, out, factor)
    return out


def normalised(launches: Launches, x: Tensor, added: Tensor | None, norm: nn.Module | None) -> Tensor:
    """x += added;  norm(x)"""
    kind, gamma, beta, eps = described(norm)
    size, none = x.shape[1], launches.none
    n = torch.empty_like(x, dtype=launches.dtype)
    tensors = (x, launches.or_none(added), n, none, launches.or_none(gamma), launches.or_none(beta))
    kinds = {"NORM": kind, "BETA": beta is not None, "ADDED": added is not None, "DIGITS": False}
    R.normalise[(len(x),)](
        *tensors, size, eps, **kinds, BLOCK=power(size), num_warps=8 if size >= 2048 else 4
    )
    return n


def attended(
    launches: Launches, part: Attention, n: Tensor, rows: int, cache: tuple[Tensor, Tensor]
) -> Tensor:
    """o(softmax(q kᵀ · scale) v), causal"""
    H, G, K = part.heads, part.kv_heads, part.head_dim
    matrices, (cos, sin) = launches.matrices[part], launches.turn(part.rotary, K)
    qkv = product(n, matrices["qkv"])  # (B T, (H + 2G) K)
    whole, length = torch.empty_like(qkv), len(n) // rows
    sizes = {"SIZE": K, "WIDE": power(K), "MANY": MANY, "ROTARY": part.rotary is not None}
    grid = (len(n), -(-(H + 2 * G) // MANY))
    A.launch_attention[grid](qkv, whole, *cache, cos, sin, length, launches.room, H, G, **sizes, num_warps=4)
    heads = whole.view(rows, length, H + 2 * G, K).transpose(1, 2)  # (B, H + 2G, T, K)
    q, k, v = heads.split((H, G, G), 1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=part.scale, enable_gqa=H != G)
    return product(y.transpose(1, 2).reshape(len(n), H * K), matrices["o"])


def fed(launches: Launches, part: MLP | GatedMLP, n: Tensor) -> Tensor:
    """down(act(gate n) ⊙ up n), or down(act(up n))"""
    matrices, gated, size = launches.matrices[part], isinstance(part, GatedMLP), part.up.out_features
    up = product(n, matrices["up"])
    hidden = up.new_empty(len(n), size)
    kinds = {"ACT": ACTS[part.act], "GATED_": gated, "BLOCK": 1024}
    R.gate[(len(n), -(-size // 1024))](up, hidden, size, **kinds, num_warps=4)
    return product(hidden, matrices["down"])
