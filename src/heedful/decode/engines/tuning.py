"""Choose the kernels of a recorded step: by rule, or by timing each candidate on the device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from heedful.decode.engines.merged_matrices import CUBLAS, AttentionPlan, Kernel, KernelChoice, MergedMatrices
from heedful.decode.engines.recorded_step import StepKernels
from heedful.devices import capture_graph
from heedful.kernels.gpu_products import power_of_two
from heedful.nn.attention import Attention

PRODUCTS = ("qkv", "o", "up", "down", "head")


def candidate_kernels(columns: int, int8: bool) -> list[Kernel]:
    """Return the kernels worth trying for one row of `columns`. One that reads whole rows can normalise too.

    With weights of 8 bits a block counts words, and digits are read whatever the block is.
    """
    if int8:
        return [Kernel(4, 1024, 8), Kernel(8, 1024, 8), Kernel(2, 1024, 4), Kernel(4, 512, 4),
                Kernel(8, 512, 4), Kernel(1, 1024, 4)]  # fmt: skip
    whole = power_of_two(columns)
    looped = [Kernel(4, 1024, 4), Kernel(8, 512, 4), Kernel(2, 2048, 4), Kernel(1, 4096, 4)]
    if whole > 4096:
        return [CUBLAS, *looped]
    full = [Kernel(rows, whole, warps) for rows, warps in ((1, 4), (2, 4), (4, 8), (8, 8))]
    return [CUBLAS, *full, *looped[:2]]


def attention_plans(matrices: MergedMatrices, rows: int) -> list[AttentionPlan]:
    """Return the ways over the cache worth trying: in pieces where rows and heads do not fill the device."""
    heads = max((m.kv_heads for m in matrices.model.modules() if isinstance(m, Attention)), default=1)
    if rows * heads >= 132:
        sizes = ((64, 4, 3), (32, 4, 4), (64, 8, 3), (128, 4, 2), (128, 8, 2), (32, 2, 4))
        return [AttentionPlan(*size, splits=1) for size in sizes]
    return [AttentionPlan(block, 4, 2, splits) for block in (32, 64) for splits in (1, 2, 4, 8)]


def record_graph(launch: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Run once to compile, then record; return the replay, or without a GPU the work itself."""
    launch()
    if device.type != "cuda":
        return launch
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launch()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with capture_graph(graph, other_threads=True):
        launch()
    return graph.replay


def median_seconds(replay: Callable[[], None], times: int = 5) -> float:
    """Return the median time of one replay in seconds."""
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)
    ]
    replay()
    for start, end in marks:
        start.record()
        replay()
        end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in marks)[times // 2] / 1e3


def default_kernels(matrices: MergedMatrices) -> KernelChoice:
    """Return a good kernel of each product for one row, without measuring."""
    choice: KernelChoice = {}
    for name in PRODUCTS:
        for _, matrix in matrices.find(name)[:1]:
            whole = power_of_two(matrix.columns)
            if matrix.scale is not None:  # 8 bits
                choice[name] = Kernel(4, min(1024, max(16, whole // 4)), 8 if whole >= 4096 else 4)
            elif whole <= 4096:
                choice[name] = Kernel(2 if whole >= 2048 else 4, whole, 4)
            else:
                choice[name] = Kernel(4, 1024, 4)
    return choice


def tune_products(
    matrices: MergedMatrices, names: tuple[str, ...] = PRODUCTS
) -> tuple[KernelChoice, dict[str, dict[str, float]]]:
    """Return the fastest kernel of each product for one row, and the TB/s of all that were tried.

    A trial goes over the matrices of all layers, so that none is found in the cache.
    """
    choice: KernelChoice = {}
    fair = default_kernels(matrices)  # for the others: norms fuse
    rates: dict[str, dict[str, float]] = {}
    for name in names:
        found = matrices.find(name)
        size = sum(m.weight.numel() * m.weight.element_size() for _, m in found)
        times: dict[Kernel, float] = {}
        for kernel in candidate_kernels(found[0][1].columns, found[0][1].scale is not None):
            kernels = StepKernels(matrices, 1, 8, fair | {name: kernel}, AttentionPlan(), only=name)
            try:
                times[kernel] = median_seconds(record_graph(kernels.run, kernels.device))
            except Exception:  # a kernel that does not fit this device is not a choice
                continue
        choice[name] = min(times, key=lambda k: times[k]) if times else fair[name]
        rates[name] = {str(kernel): size / t / 1e12 for kernel, t in times.items()}
    return choice, rates


def tune_attention(
    matrices: MergedMatrices, rows: int, capacity: int, cache_dtype: torch.dtype | None
) -> tuple[AttentionPlan, dict[str, float]]:
    """Return the fastest way over caches three quarters full, and the milliseconds of all that were tried."""
    times: dict[AttentionPlan, float] = {}
    choice = default_kernels(matrices)
    for plan in attention_plans(matrices, rows):
        try:
            kernels = StepKernels(matrices, rows, capacity, choice, plan, cache_dtype, only="attend")
            kernels.past.fill_(capacity * 3 // 4)
            times[plan] = median_seconds(record_graph(kernels.run, kernels.device))
        except Exception:  # one that does not fit this device is not a choice
            continue
    best = min(times, key=lambda plan: times[plan]) if times else AttentionPlan()
    return best, {str(plan): t * 1e3 for plan, t in times.items()}
