"""Prompts read on a GPU with a step's merged matrices: what stands between the products is one kernel each.

The plain forward pass is the definition, and reads what `can_prefill` does not know. Over many tokens
products take the time; norms, rotations and gates pass over all of them again with every operation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.decode.engines.merged_matrices import MergedMatrix, multiply, norm_fields
from heedful.decode.engines.recorded_step import ACTS, StepKernels
from heedful.kernels import gpu_attend as A
from heedful.kernels import gpu_rows as R
from heedful.kernels.gpu_products import power_of_two
from heedful.models.base import LM
from heedful.nn.attention import Attention
from heedful.nn.block import Block
from heedful.nn.ffn import MLP, GatedMLP
from heedful.nn.head import LMHead

HEADS_PER_PROGRAM = 16  # heads of a position that one program turns


def can_prefill(model: LM) -> bool:
    """Whether all parts are known: blocks of order "pre" without windows or biases, positions by rotation.

    It is asked of a model whose step is recorded: its parts are what their classes say (see fallback.py).
    """
    embed = model.embed
    rest = (embed.position, embed.types, embed.widen, embed.project, embed.norm, model.blocks.bias)
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


def prefill_prompt(kernels: StepKernels, prompt: Tensor) -> Tensor:
    """Logits (B, V) after prompts (B, T) without padding. Keys and values go to the caches of `kernels`."""
    model, (rows, length) = kernels.model, prompt.shape
    x = F.embedding(prompt.flatten(), model.embed.token.weight).float() * model.embed.scale  # (B T, D)
    caches, pending = iter(kernels.caches), None
    for number in range(len(model.blocks)):
        block = model.blocks[number]
        assert isinstance(block, Block)
        for name in block.names:
            part, norm = block.part(name), block.get_submodule(f"{name}_norm")
            n = add_and_normalise(kernels, x, pending, norm)
            if isinstance(part, Attention):
                pending = attend_prompt(kernels, part, n, rows, next(caches))
            else:
                assert isinstance(part, (MLP, GatedMLP))
                pending = feed_forward(kernels, part, n)
    assert pending is not None
    x, pending = (t.view(rows, length, -1)[:, -1].contiguous() for t in (x, pending))
    assert isinstance(model.head, LMHead)
    head = kernels.matrices[model.head]["head"]
    return multiply_rows(add_and_normalise(kernels, x, pending, model.blocks.norm), head, model.head.scale)


def multiply_rows(x: Tensor, w: MergedMatrix, factor: float = 1.0) -> Tensor:
    """factor · x Wᵀ + b"""
    out = x.new_empty(len(x), w.rows)
    multiply(x, w, out, factor)
    return out


def add_and_normalise(
    kernels: StepKernels, x: Tensor, residual: Tensor | None, norm: nn.Module | None
) -> Tensor:
    """x += added;  norm(x)"""
    kind, gamma, beta, eps = norm_fields(norm)
    size, none = x.shape[1], kernels.none
    n = torch.empty_like(x, dtype=kernels.dtype)
    tensors = (x, kernels.or_none(residual), n, none, kernels.or_none(gamma), kernels.or_none(beta))
    kinds = {"NORM": kind, "BETA": beta is not None, "HAS_RESIDUAL": residual is not None, "DIGITS": False}
    R.normalise_kernel[(len(x),)](
        *tensors, size, eps, **kinds, BLOCK=power_of_two(size), num_warps=8 if size >= 2048 else 4
    )
    return n


def attend_prompt(
    kernels: StepKernels, part: Attention, n: Tensor, rows: int, cache: tuple[Tensor, Tensor]
) -> Tensor:
    """o(softmax(q kᵀ · scale) v), causal"""
    H, G, K = part.heads, part.kv_heads, part.head_dim
    matrices, (cos, sin) = kernels.matrices[part], kernels.turn(part.rotary, K)
    qkv = multiply_rows(n, matrices["qkv"])  # (B T, (H + 2G) K)
    whole, length = torch.empty_like(qkv), len(n) // rows
    sizes = {
        "SIZE": K,
        "PADDED": power_of_two(K),
        "HEADS": HEADS_PER_PROGRAM,
        "ROTARY": part.rotary is not None,
    }
    grid = (len(n), -(-(H + 2 * G) // HEADS_PER_PROGRAM))
    A.rotate_prompt_kernel[grid](
        qkv, whole, *cache, cos, sin, length, kernels.capacity, H, G, **sizes, num_warps=4
    )
    heads = whole.view(rows, length, H + 2 * G, K).transpose(1, 2)  # (B, H + 2G, T, K)
    q, k, v = heads.split((H, G, G), 1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=part.scale, enable_gqa=H != G)
    return multiply_rows(y.transpose(1, 2).reshape(len(n), H * K), matrices["o"])


def feed_forward(kernels: StepKernels, part: MLP | GatedMLP, n: Tensor) -> Tensor:
    """down(act(gate n) ⊙ up n), or down(act(up n))"""
    matrices, gated, size = kernels.matrices[part], isinstance(part, GatedMLP), part.up.out_features
    up = multiply_rows(n, matrices["up"])
    hidden = up.new_empty(len(n), size)
    kinds = {"ACT": ACTS[part.act], "HAS_GATE": gated, "BLOCK": 1024}
    R.gate_kernel[(len(n), -(-size // 1024))](up, hidden, size, **kinds, num_warps=4)
    return multiply_rows(hidden, matrices["down"])
