"""What a training step is made of: a table of its kernels, and its parts timed alone.

python benchmarks/train_gpt2.py --where --out where.json        the step's kernels, on a GPU
python benchmarks/train_parts.py                                the parts alone
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.data.batch import IGNORE
from heedful.train.objectives import attention_kernels

VOCAB, WIDE, DIM, HEADS, ROWS, LENGTH, LAYERS = 50257, 50304, 768, 12, 65536, 1024, 12

# Numbers at a time, warps, and the most registers of a thread.
SHAPES = [
    (2048, 4, 128), (4096, 8, 64), (4096, 16, 32), (4096, 16, 64), (8192, 8, 128), (8192, 16, 64),
    (8192, 32, 32), (16384, 32, 64),
]  # fmt: skip


def short(name: str) -> str:
    """A kernel's name without its template arguments, but with the tile sizes that tell kernels apart."""
    if name.startswith(("triton_", "nvjet", "cutlass", "cudnn", "Mem")):
        return name[:110]
    return re.sub(r"\s+", " ", re.sub(r"^void |at::native::|\(anonymous namespace\)::", "", name))[:110]


def kernel_table(profiler: Any, steps: int) -> dict[str, Any]:
    """Time per step of every kernel, the time no kernel ran, and the order in which they ran."""
    events = [
        e
        for e in profiler.profiler.kineto_results.events()
        if "CUDA" in str(e.device_type()) and not e.is_user_annotation() and e.duration_ns() > 0
    ]
    spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns(), short(e.name())) for e in events)
    if not spans:
        return {"kernels": [], "order": []}
    total: dict[str, list[float]] = {}
    for start, end, name in spans:
        seen = total.setdefault(name, [0, 0.0])
        seen[0] += 1
        seen[1] += (end - start) / 1e6
    busy, reached = 0, spans[0][0]
    for start, end, _ in spans:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    whole = (reached - spans[0][0]) / 1e6 / steps
    ranked = sorted(((n, c / steps, ms / steps) for n, (c, ms) in total.items()), key=lambda r: -r[2])
    one = spans[-(len(spans) // steps) :]
    return {
        "span_ms": round(whole, 3), "busy_ms": round(busy / 1e6 / steps, 3),
        "idle_ms": round(whole - busy / 1e6 / steps, 3), "launches": len(spans) / steps,
        "kernels": [[n, round(c, 2), round(ms, 4)] for n, c, ms in ranked],
        "order": [[round((s - one[0][0]) / 1e6, 4), round((e - s) / 1e6, 4), n] for s, e, n in one],
    }  # fmt: skip


def show(table: dict[str, Any], most: int = 60) -> None:
    """The top of a table of kernels."""
    head = {k: v for k, v in table.items() if k not in ("kernels", "order")}
    print(json.dumps(head))
    for name, count, ms in table["kernels"][:most]:
        print(f"{ms:9.3f} ms {count:7.1f} ×  {name}", flush=True)


def clock(work: Callable[[], Any], times: int = 10) -> float:
    """Milliseconds of one call, by events on the device."""
    for _ in range(3):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return round(begin.elapsed_time(end) / times, 4)


def cross_entropies() -> dict[str, Any]:
    """The kernel of the cross-entropy in several shapes, a chunk of 16,384 rows."""
    from heedful.kernels.gpu import crossentropy

    chunk = 16384
    logits = torch.randn(chunk, WIDE, device="cuda", dtype=torch.bfloat16)
    held, labels = logits.clone(), torch.randint(VOCAB, (chunk,), device="cuda")
    found: dict[str, Any] = {"copy (one read, one write)": clock(lambda: held.copy_(logits))}
    for shape in SHAPES:
        held.copy_(logits)
        crossentropy.SHAPE = dict(zip(("BLOCK", "num_warps", "maxnreg"), shape, strict=True))
        work = partial(crossentropy.loss_and_slope, held, held, labels, VOCAB, 0.0, IGNORE)
        found[str(shape)] = attempt(partial(clock, work))
    return found


def heads() -> dict[str, Any]:
    """The head's products alone, and the ways to sum the weight's gradient over chunks."""
    w = torch.randn(WIDE, DIM, device="cuda", dtype=torch.bfloat16)
    total = torch.zeros(WIDE, DIM, device="cuda")
    return {str(chunk): attempt(lambda: head(chunk, w, total)) for chunk in (8192, 16384, 32768)}  # noqa: B023


def head(chunk: int, w: Tensor, total: Tensor) -> dict[str, Any]:
    x = torch.randn(chunk, DIM, device="cuda", dtype=torch.bfloat16)
    slope, gx = torch.empty(chunk, WIDE, device="cuda", dtype=torch.bfloat16), torch.empty_like(x)
    return {
        "logits": clock(lambda: torch.mm(x, w.t(), out=slope)),
        "gradient of x": clock(lambda: torch.mm(slope, w, out=gx)),
        "gradient of w": clock(lambda: slope.t() @ x),
        "gradient of w, added in float32": clock(lambda: total.add_(slope.t() @ x)),
        "gradient of w, out_dtype float32": attempt(
            lambda: clock(lambda: torch.mm(slope.t(), x, out_dtype=torch.float32))
        ),
        "gradient of w, addmm out_dtype float32": attempt(
            lambda: clock(lambda: torch.addmm(total, slope.t(), x, out_dtype=torch.float32, out=total))
        ),
    }


def attention() -> dict[str, Any]:
    """One layer's attention, forward and both, by the kernels that training asks for."""
    found: dict[str, Any] = {}
    for name, apart in (("(B, T, H, K) transposed", True), ("(B, H, T, K)", False)):
        sizes = (ROWS // LENGTH, LENGTH, HEADS, 64) if apart else (ROWS // LENGTH, HEADS, LENGTH, 64)
        made = [torch.randn(sizes, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in "qkv"]
        up = torch.randn(sizes, device="cuda", dtype=torch.bfloat16)
        turn = (lambda t: t.transpose(1, 2)) if apart else (lambda t: t)

        def forward(made: list[Any] = made, turn: Any = turn) -> Tensor:
            with attention_kernels(torch.device("cuda")):
                return turn(F.scaled_dot_product_attention(*map(turn, made), is_causal=True))

        def both(made: list[Any] = made, up: Tensor = up, forward: Any = forward) -> None:
            torch.autograd.grad(forward(), made, up)

        found[f"forward, {name}"], found[f"both, {name}"] = clock(forward), clock(both)
    return found


def optimiser() -> dict[str, Any]:
    """AdamW and the norm of the gradient, on weights of GPT-2's sizes."""
    sizes = [(VOCAB, DIM), (LENGTH, DIM), (DIM,), (DIM,)]
    sizes += [s for _ in range(LAYERS) for s in [(DIM, DIM)] * 4 + [(4 * DIM, DIM), (DIM, 4 * DIM)]]
    sizes += [(n,) for _ in range(LAYERS) for n in [DIM] * 8 + [4 * DIM, DIM]]
    weights = [torch.randn(s, device="cuda").requires_grad_() for s in sizes]
    for w in weights:
        w.grad = torch.randn_like(w)
    adam = torch.optim.AdamW(weights, lr=torch.tensor(1e-4, device="cuda"), fused=True, capturable=True)
    norm = lambda: torch.nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None])
    clip = lambda: torch.nn.utils.clip_grad_norm_(weights, 1.0)
    halves = [torch.empty(s, device="cuda", dtype=torch.bfloat16) for s in sizes]
    cast = lambda: torch._foreach_copy_(halves, [w.detach() for w in weights])
    return {
        "AdamW, fused": clock(adam.step), "clip_grad_norm_": clock(clip), "norm alone": clock(norm),
        "weights to bfloat16": clock(cast),
    }  # fmt: skip


def tables() -> dict[str, Any]:
    """The gradient of the table of words, several ways."""
    return {str(dtype): table(dtype) for dtype in (torch.bfloat16, torch.float32)}


def table(dtype: torch.dtype) -> dict[str, Any]:
    ids = torch.randint(VOCAB, (ROWS,), device="cuda")
    up, out = torch.randn(ROWS, DIM, device="cuda", dtype=dtype), torch.zeros(VOCAB, DIM, device="cuda")
    plain = lambda: torch.ops.aten.embedding_dense_backward(up, ids, VOCAB, -1, False)
    return {
        "embedding_dense_backward": clock(plain),
        "index_put": clock(lambda: out.index_put_((ids,), up.float(), accumulate=True)),
        "index_add": clock(lambda: out.index_add_(0, ids, up.float())),
    }


def products() -> dict[str, Any]:
    """A layer's products in bfloat16 and in float8, with one scale a tensor or one a row; and sums."""
    sizes = ((DIM, DIM), (DIM, 3 * DIM), (DIM, 4 * DIM), (4 * DIM, DIM))
    return {f"{ROWS} × {K} × {N}": attempt(lambda: product(K, N)) for K, N in sizes}  # noqa: B023


def by_lt(work: Callable[[], Any]) -> Any:
    """The same with the other of the two libraries."""

    def other() -> float:
        torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            return clock(work)
        finally:
            torch.backends.cuda.preferred_blas_library("default")

    return attempt(other)


def product(K: int, N: int) -> dict[str, Any]:
    x = torch.randn(ROWS, K, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(N, K, device="cuda", dtype=torch.bfloat16)
    up = torch.randn(ROWS, N, device="cuda", dtype=torch.bfloat16)
    bias, one = torch.zeros(N, device="cuda", dtype=torch.bfloat16), torch.ones((), device="cuda")
    e4, e5 = torch.float8_e4m3fn, torch.float8_e5m2
    x8, w8, w8t, up8 = x.to(e4), w.to(e4), w.t().contiguous().to(e4), up.to(e5)
    upt, xt = up8.t().contiguous(), x8.t().contiguous()
    rows = torch.ones(ROWS, 1, device="cuda")
    across = lambda n: torch.ones(1, n, device="cuda")

    def times(a: Any, b: Any, sa: Any, sb: Any, fast: bool = True, out: Any = torch.bfloat16) -> Any:
        work = lambda: torch._scaled_mm(a, b, sa, sb, out_dtype=out, use_fast_accum=fast)
        return attempt(lambda: clock(work))

    plain = {
        "forward": lambda: x @ w.t(), "forward with bias": lambda: F.linear(x, w, bias),
        "gradient of x": lambda: up @ w, "gradient of w": lambda: up.t() @ x,
    }  # fmt: skip
    return {
        **{name: clock(work) for name, work in plain.items()},
        **{f"{name}, cublaslt": by_lt(work) for name, work in plain.items()},
        "sum of up over rows": clock(lambda: up.sum(0)),
        "float8, forward": times(x8, w8.t(), one, one),
        "float8, forward, a scale a row": times(x8, w8.t(), rows, across(N)),
        "float8, gradient of x": times(up8, w8t.t(), one, one),
        "float8, gradient of x, a scale a row": times(up8, w8t.t(), rows, across(K)),
        "float8, gradient of w": times(upt, xt.t(), one, one),
        "float8, gradient of w, exact sums": times(upt, xt.t(), one, one, False),
        "float8, gradient of w, exact sums, float32": times(upt, xt.t(), one, one, False, torch.float32),
        "float8, gradient of w, float32": times(upt, xt.t(), one, one, True, torch.float32),
        "float8, turning up and x": clock(lambda: (up8.t().contiguous(), x8.t().contiguous())),
    }


def visits() -> dict[str, Any]:
    """The kernels that visit memory once in bfloat16: GELU forward and back, and three gradients joined."""
    from heedful.kernels.gpu import fused_linear, linear_kernels

    u = torch.randn(ROWS, 4 * DIM, device="cuda", dtype=torch.bfloat16)
    up, parts = torch.randn_like(u), [torch.randn(ROWS, DIM, device="cuda", dtype=torch.bfloat16)] * 3
    found: dict[str, Any] = {
        "copy": clock(lambda: torch.empty_like(u).copy_(u)),
        "GELU": attempt(lambda: clock(lambda: fused_linear.gelu(u))),
        "cat": clock(lambda: torch.cat(parts, 1)),
    }
    for rows in (16, 32, 64):
        linear_kernels.JOIN_ROWS = linear_kernels.SLOPE_ROWS = rows
        found[f"GELU back, {rows} rows"] = attempt(partial(clock, partial(fused_linear.join, [u], up)))
        found[f"joined, {rows} rows"] = attempt(partial(clock, partial(fused_linear.join, parts)))
    return found


def roundings() -> dict[str, Any]:
    """Rounding to float8 both ways, plain and through a GELU and its slope, in several tiles."""
    from heedful.kernels.gpu import float8_product as float8
    from heedful.kernels.gpu import linear_kernels

    x = torch.randn(ROWS, 4 * DIM, device="cuda", dtype=torch.bfloat16)
    up, weight = torch.randn_like(x) * 1e-5, torch.randn(4 * DIM, DIM, device="cuda")
    small = x.to(float8.BACKWARD)
    found: dict[str, Any] = {"copy": clock(lambda: torch.empty_like(x).copy_(x))}
    found["transpose"] = attempt(lambda: clock(lambda: linear_kernels.transpose_bytes(small)))
    found["a weight"] = attempt(lambda: clock(lambda: float8.round_matrix(weight)))
    for tile in ((64, 64, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8), (256, 64, 8), (64, 128, 4)):
        for name, what, gradient in (
            ("plain", 0, False),
            ("plain, summed", 0, True),
            ("GELU", 1, False),
            ("slope", 2, True),
        ):
            linear_kernels.TILES[what, gradient] = linear_kernels.Tile(*tile)
            work = partial(float8.round_operand, [x], up, what, gradient)
            found[f"{name} {tile}"] = attempt(partial(clock, work))
    return found


def attempt(work: Callable[[], Any]) -> Any:
    """What `work` gives, or what went wrong, in a line."""
    try:
        return work()
    except Exception as problem:
        print(traceback.format_exc(limit=-3)[:1500], flush=True)
        return f"{type(problem).__name__}: {str(problem).splitlines()[0][:160]}"


def parts(names: str = "all") -> dict[str, Any]:
    """Parts timed alone; one that fails says so and the others go on."""
    found: dict[str, Any] = {}
    every = (visits, roundings, cross_entropies, attention, optimiser, tables, heads, products)
    for work in (w for w in every if names == "all" or w.__name__ in names.split(",")):
        found[work.__name__] = attempt(work)
        torch.cuda.empty_cache()
        print(json.dumps({work.__name__: found[work.__name__]}, indent=1), flush=True)
    return found


if __name__ == "__main__":
    parts()
