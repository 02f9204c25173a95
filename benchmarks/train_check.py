"""Is what a fast training step does right on this GPU? Each piece beside its definition, then whole steps.

    python benchmarks/train_check.py                      on a GPU, at GPT-2's sizes
    python benchmarks/train_check.py --tiny --device cpu  a dry run

A line says how far a piece is from its definition and whether all its numbers are finite; of a whole step,
which outputs and which gradients are the first that are not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.data.batch import IGNORE, Batch
from heedful.kernels.gpu import float8_product as float8
from heedful.kernels.gpu import fused_linear
from heedful.kernels.gpu.float8_product import BACKWARD, FORWARD, GELU, PLAIN, SLOPE
from heedful.train import float8 as swapping
from heedful.train.crossentropy import linear_cross_entropy
from heedful.train.float8 import fused_classes
from heedful.train.objectives import LossModule, attention_kernels, objective
from heedful.weights.loading import build
from train_parts import attempt


def off(got: Tensor, wanted: Tensor) -> str:
    """‖got − wanted‖ / ‖wanted‖, and what is not finite."""
    a, b = got.detach().float(), wanted.detach().float()
    bad = "" if bool(a.isfinite().all()) else f"  NOT FINITE: {int((~a.isfinite()).sum())} of {a.numel()}"
    return f"{float((a - b).norm() / b.norm().clamp(min=1e-30)):.1e}{bad}"


def say(name: str, **found: Any) -> None:
    print(f"{name:34s}", "  ".join(f"{k} {v}" for k, v in found.items()), flush=True)


def roundings(a: argparse.Namespace) -> None:
    """The kernel that rounds, against the definition done by torch on the same device."""
    D, M = a.dim, a.rows * a.length
    x = torch.randn(M, 4 * D, device=a.device, dtype=torch.bfloat16)
    up, weight = torch.randn_like(x) * 1e-7, torch.randn(4 * D, D, device=a.device) * 0.02
    far = x.clone()
    far[1, 0], far[5, 3] = 3e4, -3e4  # in rows that are not looked at
    three = [x[:, i * D : (i + 1) * D] * 10.0**-i for i in range(3)]
    cases: dict[str, tuple[list[Tensor], Tensor | None, int, bool]] = {
        "x": ([x], None, PLAIN, False), "x with outliers": ([far], None, PLAIN, False),
        "a weight": ([weight], None, PLAIN, False), "zeros": ([torch.zeros_like(x)], None, PLAIN, True),
        "a gradient": ([up], None, PLAIN, True), "outliers": ([far], None, PLAIN, True),
        "three side by side": (three, None, PLAIN, True), "GELU": ([x], None, GELU, False),
        "slope": ([x], up, SLOPE, True),
    }  # fmt: skip
    for name, (parts, beside, what, gradient) in cases.items():
        attempt(partial(rounding, name, parts, beside, what, gradient))
    small = up.to(BACKWARD)
    say(
        "flip",
        wrong=int((float8.transpose_float8(small).view(torch.int8) != small.view(torch.int8).t()).sum()),
    )


def rounding(name: str, parts: list[Tensor], up: Tensor | None, what: int, gradient: bool) -> None:
    flat, turned, back, sums = float8.round_operand(parts, up, what, gradient)
    value = torch.cat([float8.operand(part, up, what) for part in parts], 1)
    wanted, scale = float8.round_float8(value, BACKWARD if gradient else FORWARD)
    bits = lambda t: t.view(torch.int8)
    say(
        f"rounding {name}",
        off=off(flat.float() * back, wanted.float() * scale),
        differ=f"{float((bits(flat) != bits(wanted)).float().mean()):.1e}",
        turned=int((bits(turned) != bits(flat).t()).sum()),
        scale=f"{float(back):.2e} / {float(scale):.2e}",
        sums=off(sums.sum(0), value.sum(0)) if gradient else "-",
    )


def products(a: argparse.Namespace) -> None:
    """The three products of a layer in float8, from factors rounded by the kernel."""
    D, M = a.dim, a.rows * a.length
    for K, N in ((D, D), (D, 3 * D), (D, 4 * D), (4 * D, D)):
        x = torch.randn(M, K, device=a.device, dtype=torch.bfloat16)
        w, up = torch.randn(N, K, device=a.device) * 0.02, torch.randn(M, N, device=a.device).to(x) * 1e-7
        (f, ft, sf), (b, bt, sb) = float8.round_matrix(x), float8.round_matrix(w)
        g, gt, sg, _ = float8.round_operand([up], None, PLAIN, True)
        say(
            f"products {K} × {N}",
            y=off(float8.float8_product(f, sf, b, sb, torch.bfloat16), x @ w.to(x).t()),
            gx=off(float8.float8_product(g, sg, bt, sb, torch.bfloat16), up @ w.to(x)),
            gw=off(float8.float8_product(gt, sg, ft, sf, torch.float32, fast=False), up.t() @ x),
        )


def losses(a: argparse.Namespace) -> None:
    """The cross-entropy in bfloat16 and float8."""
    M, V = a.rows * a.length // 4, a.vocab
    x = torch.randn(M, a.dim, device=a.device, dtype=torch.bfloat16, requires_grad=True)
    w = (torch.randn(V, a.dim, device=a.device) * 0.02).requires_grad_()
    labels = torch.randint(V, (M,), device=a.device)
    found = []
    for eight in (False, True):
        loss = linear_cross_entropy(x, w, None, labels, rows=M // 2, float8=eight)
        found.append((loss, *torch.autograd.grad(loss / M, [x, w])))
    loss, gx, gw = (off(b, a) for a, b in zip(*found, strict=True))
    say("float8 loss beside bfloat16", loss=loss, gx=gx, gw=gw)
    if a.device != "cuda":
        return
    from heedful.kernels.gpu.crossentropy import loss_and_slope

    wide = -(-V // 64) * 64
    logits = torch.randn(1024, wide, device=a.device, dtype=torch.bfloat16)
    slope = torch.empty_like(logits, dtype=BACKWARD)
    loss_and_slope(logits, slope, labels[:1024], V, 0.0, IGNORE, 2.0**15)
    right = logits[:, :V].float().softmax(-1) - F.one_hot(labels[:1024], V)
    say("its slope in e5m2", off=off(slope.float()[:, :V] / 2**15, right), beyond=slope[:, V:].float().sum())


def attention(a: argparse.Namespace) -> None:
    """Attention over views of one product beside attention over tensors of their own."""
    T, D = a.length, a.dim
    whole = torch.randn(a.rows, T, 3 * D, device=a.device, dtype=torch.bfloat16)
    split = lambda t: t.unflatten(-1, (D // 64 or 1, -1)).transpose(1, 2)
    up, found = torch.randn_like(whole[..., :D]), []
    for own in (True, False):
        leaves = [t.contiguous() if own else t for t in whole.split(D, -1)]
        leaves = [t.detach().requires_grad_() for t in leaves]
        with attention_kernels(torch.device(a.device)):
            y = F.scaled_dot_product_attention(*map(split, leaves), is_causal=True).transpose(1, 2).flatten(2)
        found.append([y, *torch.autograd.grad(y, leaves, up)])
    y, q, k, v = (off(b, a) for a, b in zip(*found, strict=True))
    say("attention over views", y=y, q=q, k=k, v=v, strides=found[1][1].stride())


def visits(a: argparse.Namespace) -> None:
    """The bfloat16 kernels."""
    u, up = (torch.randn(a.rows * a.length, 4 * a.dim, device=a.device).bfloat16() for _ in range(2))
    (d, sums), (d2, sums2) = fused_linear.join([u], up), fused_linear.join_reference([u], up)
    h = fused_linear.gelu(u)
    say("GELU", h=off(h, F.gelu(u, approximate="tanh")), d=off(d, d2), sums=off(sums.sum(0), sums2[0]))
    parts = [u[:, : a.dim], up[:, a.dim : 2 * a.dim], u[:, 2 * a.dim : 3 * a.dim].contiguous()]
    (whole, sums), (whole2, sums2) = fused_linear.join(parts), fused_linear.join_reference(parts)
    say("joined", off=off(whole, whole2), sums=off(sums.sum(0), sums2[0]))


def watch(model: nn.Module) -> list[str]:
    """Names of modules whose output, and of those whose output's gradient, is not finite, as they come."""
    seen: list[str] = []

    def look(name: str, t: Tensor) -> None:
        if not bool(t.isfinite().all()):
            seen.append(name)

    def after(name: str, _module: nn.Module, _given: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.is_floating_point():
            look(f"{name} says", out)
            if out.requires_grad:
                out.register_hook(partial(look, f"{name} is told"))

    for name, module in model.named_modules():
        module.register_forward_hook(partial(after, name))
    return seen


def step(a: argparse.Namespace, how: str) -> dict[str, Tensor]:
    """Gradients of the first step of two layers; `how` has words: float8, words, fused, compiled."""
    torch._dynamo.reset()
    model = build(
        "gpt2", dropout=0.0, seed=0, device=a.device, vocab=a.vocab, dim=a.dim, layers=2, heads=a.dim // 64,
        context=a.length,
    )  # fmt: skip
    if "float8" in how:
        swapping.WORDS = "words" in how
        swapping.use_float8(model)
    if "fused" in how:
        for module, faster in fused_classes(model):
            module.__class__ = faster
    trained: Any = LossModule(model.train(), objective("next_token"))
    bad = [] if "compiled" in how else watch(model)
    trained = torch.compile(trained) if "compiled" in how else trained
    tokens = torch.randint(a.vocab, (a.rows, a.length + 1), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()).to(torch.device(a.device))
    count = lambda n: torch.full((), float(n), device=a.device)
    divide = {"label": count(a.rows * a.length), "row": count(a.rows), "token": count(a.rows * a.length)}
    with torch.autocast(a.device, torch.bfloat16), attention_kernels(torch.device(a.device)):
        loss, _ = trained(batch, divide)
    loss.backward()
    say(f"step, {how}", loss=f"{float(loss):.4f}", first_not_finite=bad[:6] or "none")
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def steps(a: argparse.Namespace) -> None:
    """First steps of all kinds beside the plain one."""
    plain = step(a, "plain")
    kinds = ["fused", "fused compiled", "float8", "float8 words", "float8 words compiled"]
    for how in kinds:
        began = time.perf_counter()
        found = attempt(partial(step, a, how))
        if not isinstance(found, dict):
            continue
        # The slope of a key's bias is zero but for rounding.
        far = {n: off(found[n], g) for n, g in plain.items() if not n.endswith("k.bias")}
        lost = [n for n, g in found.items() if not bool(g.isfinite().all())]
        furthest = sorted(far.items(), key=lambda item: -float(item[1].split()[0]))[:3]
        say("  its gradients", not_finite=lost or "none", furthest=furthest)
        print(f"  {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    a = parser.parse_args()
    a.rows, a.length, a.dim, a.vocab = (4, 64, 64, 512) if a.tiny else (64, 1024, 768, 50257)
    torch.manual_seed(0)
    work: list[Callable[[argparse.Namespace], None]] = [
        visits, attention, roundings, products, losses, steps,
    ]  # fmt: skip
    for piece in work:
        began = time.perf_counter()
        attempt(partial(piece, a))
        if a.device == "cuda":
            torch.cuda.empty_cache()
        print(f"[{piece.__name__}: {time.perf_counter() - began:.1f} s]", flush=True)


if __name__ == "__main__":
    main()
