"""Time of one layer against the length of the text and the width of the model, and its exponents.

Self-attention is O(n²·d), a recurrence O(n·d²) (Vaswani et al. 2017, Table 1). What is measured is the part
in which tokens reach each other, without the MLP next to it, forward and without gradients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from heedful.classroom.experiments.gradient_flow import LineFit, fit_power
from heedful.classroom.experiments.systems import SizedSystem, System, build_system, mixing_part
from heedful.core.devices import one_thread
from heedful.data.batch import Batch
from heedful.data.batches import Batches, ShuffledOrder
from heedful.interp.inputs import Result
from heedful.models import find_config
from heedful.models.base import LM
from heedful.models.counting import count
from heedful.nn.context import Context, Mask
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.weights.loading import build

MIN_REPEATS, MAX_REPEATS = 2, 10  # calls of a size in a round
CALL_SECONDS = 0.1  # of them, after which no further call begins
MIN_ROUNDS, MAX_ROUNDS = 3, 8  # over all sizes
ROUND_SECONDS = 16.0  # of processor time, after which no further round begins
VOCAB = 16  # no token is read


def shortest_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the shortest time of a call: what else the machine does only ever adds.

    On a CPU it is the processor time of this thread, so that other processes on the same cores do not
    count; on a GPU the time between two events around the call.
    """
    call()
    times: list[float] = []
    now = time.perf_counter if device.type == "cuda" else time.thread_time
    began = now()
    while len(times) < MIN_REPEATS or (len(times) < MAX_REPEATS and now() - began < CALL_SECONDS):
        if device.type == "cuda":
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[0].record()
            call()
            events[1].record()
            torch.cuda.synchronize(device)
            times.append(events[0].elapsed_time(events[1]) / 1e3)
        else:
            start = time.thread_time()
            call()
            times.append(time.thread_time() - start)
    return min(times)


@dataclass(frozen=True)
class LayerTimes(Result):
    """Seconds of one layer at some lengths and at some widths, and the exponents of both at the far end."""

    lengths: tuple[int, ...]
    by_length: tuple[float, ...]  # seconds, at width `dim`
    dims: tuple[int, ...]
    by_dim: tuple[float, ...]  # seconds, at length `length`
    dim: int
    length: int
    length_exponent: LineFit
    dim_exponent: LineFit


@torch.no_grad()
def measure_layer_times(
    system: System, lengths: Sequence[int], dims: Sequence[int], *, dim: int, length: int,
    device: torch.device | str = "cpu", fit_points: int = 5,
) -> LayerTimes:  # fmt: skip
    """Measure one layer at every length and every width; the exponents are of the last `fit_points` points.

    All sizes are measured in turn, several times over, so that a moment in which the machine is busy does not
    fall on one of them alone.
    """
    device = torch.device(device)
    sizes = [*((dim, n) for n in lengths), *((d, length) for d in dims)]
    calls = [layer_call(system, d, n, device) for d, n in sizes]
    with one_thread():  # whose processor time tells how long it worked and not how long it waited
        began, rounds = time.process_time(), list[list[float]]()
        while len(rounds) < MIN_ROUNDS or (
            len(rounds) < MAX_ROUNDS and time.process_time() - began < ROUND_SECONDS
        ):
            rounds.append([shortest_seconds(call, device) for call in calls])
    seconds = [min(times) for times in zip(*rounds, strict=True)]
    by_length, by_dim = seconds[: len(lengths)], seconds[len(lengths) :]
    return LayerTimes(
        tuple(lengths), tuple(by_length), tuple(dims), tuple(by_dim), dim, length,
        fit_power(lengths[-fit_points:], by_length[-fit_points:]),
        fit_power(dims[-fit_points:], by_dim[-fit_points:]),
    )  # fmt: skip


def measure_step(
    sized_system: SizedSystem, *, vocab: int, length: int, batch: int, steps: int = 6, dtype: str = "float32",
    device: torch.device | str = "cpu",
) -> dict[str, float]:  # fmt: skip
    """Return the seconds of one training step, forward, backward and update: the shortest of a few.

    On a CPU the processor time of one thread, on a GPU the clock.
    """
    device = torch.device(device)
    model = build_system(sized_system, vocab=vocab, device=device)
    rows = torch.arange(batch * length).reshape(batch, length) % vocab
    order, same = ShuffledOrder(1 << 20, batch, 0, shuffle=False), Batch(rows, rows.roll(-1, 1))
    batches = Batches(lambda rows, epochs: same, order, "repeated")
    timed, now = [], time.perf_counter if device.type == "cuda" else time.thread_time
    config = TrainConfig(steps=steps, dtype=dtype, compile=False, graph=False)
    with one_thread():
        began = now()
        for step in fit(model, "next_token", batches, config):
            timed.append((step.loss, now() - began))  # the loss waits for the device
            began = now()
    return {"seconds": min(seconds for _, seconds in timed[1:]), "tokens": batch * length}


def layer_call(system: System, dim: int, length: int, device: torch.device) -> Callable[[], object]:
    """Return a call of the mixing part of one layer on one text of `length` tokens."""
    options = find_config(system.family)[1].field_names()
    sizes: dict[str, Any] = {**system.options, "layers": 1 + 2 * system.more_layers, "dim": dim}
    if "heads" in options:
        sizes["heads"] = 1
    if "context" in options:
        sizes["context"] = length
    model = build(system.family, vocab=VOCAB, seed=0, device=device, **sizes).eval()
    assert isinstance(model, LM)
    part = mixing_part(model)
    positions = torch.arange(length, device=device)[None]
    context = Context(positions, positions, Mask(causal=True))
    x = torch.randn(1, length, dim, generator=torch.Generator().manual_seed(0)).to(device)
    return lambda: part(x, context)


# What one more token costs behind a text that grows: time with a cache, time without, memory.
#
# A recurrence remembers a vector, attention every key and value: its cache and the time to read it grow with
# the text. Without a cache the whole text is read again for every token.


FLOAT_BYTES = 4


@torch.no_grad()
def measure_generation(
    sized_system: SizedSystem, contexts: Sequence[int], *, vocab: int, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Return seconds for one token behind each context, with and without memory, and the memory in bytes.

    The weights are random: time and memory do not depend on them. Steps are plain, without fused kernels.
    """
    device = torch.device(device)
    room = max(contexts) + 64
    sizes = {"context": room} if "context" in sized_system.model else {}
    model = cast(LM, build_system(sized_system, vocab=vocab, device=device, **sizes).eval())
    costs: dict[str, Any] = {"contexts": list(contexts), "step": [], "whole": [], "bytes": []}
    with one_thread():
        for context in contexts:
            tokens = torch.arange(context, device=device)[None] % vocab
            state = model.start(tokens, length=room)
            step, whole = partial(model.step, tokens[:, :1], state), partial(model, tokens)
            costs["step"].append(shortest_seconds(step, device))
            costs["whole"].append(shortest_seconds(whole, device))
            costs["bytes"].append(count(model, length=context, width=FLOAT_BYTES).cache_bytes)
    return costs
