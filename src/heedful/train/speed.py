"""Whether the steps of a run are compiled and recorded.

On a GPU a plain step wastes time twice. Between its matrix products, many small kernels read and write the
same tensors again and again, and the host launches each kernel by itself. The compiler joins small kernels to
few large ones (`compile`), and a CUDA graph launches a whole step at once (`graph`). Neither
is free: compiling takes seconds before the first step, and a recording repeats kernels, not what Python did
around them. `choose_speed` weighs both for a run whose config leaves them open.

The layers of a model share their code. So one layer is compiled, and what comes out serves all layers like
it: an H200 starts after 10 to 20 seconds however deep the model is, where compiling the whole model at once
takes minutes and hardly gains more.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.core.devices import capture_graph
from heedful.data.batch import Batch
from heedful.data.batches import Batches, StepBatches
from heedful.models.base import Model
from heedful.nn.block import Stack
from heedful.nn.recurrent import Recurrence
from heedful.nn.state_space.ssm import Mamba
from heedful.train.checkpoint import read_training
from heedful.train.config import TrainConfig
from heedful.train.distributed import Processes
from heedful.train.float8 import fused_classes
from heedful.train.objectives import MeanLoss, Objective

Result = tuple[Tensor, Tensor, dict[str, Tensor]]
StepFunction = Callable[[Batch, dict[str, Tensor]], Result]

WORDS = {"compile": "compiled", "graph": "recorded"}
COMPILE_SECONDS = 10.0  # to compile one layer
# The share of a plain step that compiling saves. An H200 saved 0.17 (GPT-2, BERT), 0.25 (LLaMA), 0.44 (T5).
SAVED_SHARE = 0.2
SAVED_SHARE_OF_MAMBA = 0.6  # its scan becomes one operator
FLOPS_PER_MULTIPROCESSOR = 2.5e12  # of plain steps in bfloat16, in a second
MIN_RECORDED_STEPS = 20  # a recording costs as much as a few steps
LOOKED_AT = 16  # batches whose shapes are compared
MAX_SHAPES = 12  # among them; with more, few recordings would ever be replayed
MAX_COMPILED_LAYERS = 64  # kinds of layers and of shapes that are compiled, where torch stops at eight
WARMUP_STEPS = 3  # steps done plainly first: libraries make their workspaces, optimisers their moments
MAX_GRAPHS = 64  # shapes that are recorded; what has another one is done plainly


def choose_speed(
    config: TrainConfig, model: Model, purpose: Objective | MeanLoss, batches: StepBatches,
    processes: Processes, checkpoint: Path | None,
) -> tuple[TrainConfig, str | None]:  # fmt: skip
    """Return the config with `compile` and `graph` decided, and a line that says what was chosen and why.

    The line is empty if the config has decided both, or on a CPU, where steps are neither. A run that
    continues from a `checkpoint` keeps its choice, so that resuming is exact.
    """
    undecided = [name for name in WORDS if getattr(config, name) is None]
    if not undecided or model.device.type != "cuda":
        return replace(config, compile=bool(config.compile), graph=bool(config.graph)), None
    if checkpoint is not None:
        earlier, basis = read_training(checkpoint)["config"], "as in the checkpoint"
        reasons = {name: "" if earlier.get(name) else "off" for name in undecided}
    else:
        seconds = plain_seconds(config, model, batches)
        basis = f"for about {max(1, round(seconds))} s of work"
        reasons = obstacles(config, model, purpose, batches, processes, seconds)
    chosen = {name: not reasons[name] if name in undecided else bool(getattr(config, name)) for name in WORDS}
    config = replace(config, compile=chosen["compile"], graph=chosen["graph"])
    positive = [WORDS[name] for name in WORDS if chosen[name]]
    negative = [f"not {WORDS[name]} ({reasons[name]})" for name in undecided if reasons[name]]
    return config, f"speed: {basis}, steps are {', '.join(positive + negative)}"


def plain_seconds(config: TrainConfig, model: Model, batches: StepBatches) -> float:
    """Estimate how long a run takes if its steps are neither compiled nor recorded.

    The estimate depends on the run and the kind of GPU alone, so the same run is always treated the same.
    """
    if config.minutes is not None:
        return 60 * config.minutes
    weights = sum(p.numel() for p in model.parameters())
    flops = 6 * weights * batches[0].tokens_read * config.steps  # Kaplan et al. 2020, §2.1
    processors = torch.cuda.get_device_properties(model.device).multi_processor_count
    return flops / (FLOPS_PER_MULTIPROCESSOR * processors)


def obstacles(
    config: TrainConfig, model: Model, purpose: Objective | MeanLoss, batches: StepBatches,
    processes: Processes, seconds: float,
) -> dict[str, str]:  # fmt: skip
    """Return what speaks against compiling and against recording the steps of a run; "" if nothing does."""
    modules, first = list(model.modules()), batches[0]
    # An iterable is read once: it cannot be asked for later batches before their turn.
    looked_at = range(min(LOOKED_AT, config.steps)) if isinstance(batches, Batches) else range(0)
    shapes = len({batch_shapes(first), *(batch_shapes(batches[k]) for k in looked_at)})
    recurrences = [m for m in modules if isinstance(m, Recurrence)]
    lengths = first.valid is not None and any(m.fused is not None for m in recurrences)
    share = SAVED_SHARE_OF_MAMBA if any(isinstance(m, Mamba) for m in modules) else SAVED_SHARE
    hook = next((type(m).__name__ for m in modules if m._forward_hooks or m._forward_pre_hooks), "")
    function = getattr(purpose, "func", purpose)  # of a functools.partial
    own = [f"{type(m).__name__} is your own" for m in modules if is_foreign(type(m))]
    own = ["the objective is your own"] * is_foreign(function) + own
    split = {"the model is split over processes": model.mesh is not None}
    against_compiling = split | {
        "this GPU is too old": torch.cuda.get_device_properties(model.device).major < 7,
        "the package triton is missing": importlib.util.find_spec("triton") is None,
        f"{hook} has a hook": bool(hook),
        "recurrences gain nothing": bool(recurrences),
        "its layers are in no stack": not stacked_layers(model),
        "batches have several shapes": shapes > 1,
        f"too short to earn {COMPILE_SECONDS:.0f} s of compiling": seconds * share < COMPILE_SECONDS,
    }
    against_recording = split | {
        "several processes take a step together": processes.world > 1,
        "adafactor reads numbers back": config.optimiser == "adafactor",
        f"{hook} has a hook": bool(hook),
        f"{''.join(own[:1])}: graph=True if it does the same in every step": bool(own),
        "its recurrence reads the lengths of padded rows": lengths,
        "batches have too many shapes": shapes > MAX_SHAPES,
        f"{config.steps} steps are too few": config.minutes is None and config.steps < MIN_RECORDED_STEPS,
    }
    first_that_holds = lambda reasons: next((reason for reason, holds in reasons.items() if holds), "")
    return {
        "compile": first_that_holds(against_compiling), "graph": first_that_holds(against_recording)
    }  # fmt: skip


def is_foreign(code: object) -> bool:
    """Return whether code is neither heedful's nor torch's: it may do what a recording does not repeat."""
    return (getattr(code, "__module__", None) or "").partition(".")[0] not in ("heedful", "torch")


def stacked_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of all stacks of a model, each once."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    return list({id(stack[i]): stack[i] for stack in stacks for i in range(len(stack))}.values())


class CompiledLayers:
    """The layers of a model, compiled while a `with` lasts: between steps the model is as it was.

    On a GPU some parts also become faster ones that compute the same (train/float8.py).
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.layers = [(layer, torch.compile(layer.forward)) for layer in stacked_layers(model)]
        self.classes = [(m, type(m), faster) for m, faster in fused_classes(model)] * (device.type == "cuda")
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, MAX_COMPILED_LAYERS)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Put the compiled layers and faster parts in place, and take them out again."""
        for module, _, faster in self.classes:
            module.__class__ = faster
        for layer, compiled in self.layers:
            layer.forward = compiled
        try:
            yield
        finally:
            for layer, _ in self.layers:
                del layer.forward
            for module, plain, _ in self.classes:
                module.__class__ = plain


# The same work on the same shapes, recorded once and replayed: the host launches one thing, not thousands.
#
# A CUDA graph keeps addresses, so a new batch is copied over the old one and results are copied out.
# Randomness still follows the seed that is set before each replay. A graph serves one shape of batch; data of
# many lengths has few shapes if they are rounded up (data.parallel(multiple=8)).


class CudaGraphRecorder:
    """CUDA graphs on one stream. They share their memory: one is replayed after another, results are copied.

    What a graph still needs later (its input, its results) is held, so that no other graph is given the
    same place; all else lives for one replay.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.pool: Any = None  # the memory of the first, and so of all

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Work where it can be recorded while a `with` lasts; afterwards its results may be used."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)

    def record(self, step: StepFunction, batch: Batch, divide: dict[str, Tensor]) -> StepFunction:
        """Return the work for batches of this one's shapes as a replay; capturing runs nothing."""
        torch.cuda.synchronize()
        static_batch, by = batch.clone(), {name: value.clone() for name, value in divide.items()}
        graph = torch.cuda.CUDAGraph()
        with capture_graph(graph, self.pool, self.stream):
            loss, norm, terms = step(static_batch, by)
        self.pool = graph.pool()

        def replay(batch: Batch, divide: dict[str, Tensor]) -> Result:
            copy_batch(static_batch, batch)
            for name, value in divide.items():
                by[name].copy_(value)
            graph.replay()
            return loss.clone(), norm.clone(), {name: t.clone() for name, t in terms.items()}

        return replay


class GraphedStep:
    """work(batch, divide): plainly when a shape comes the first time, recorded the second, then replayed.

    The first time libraries load the kernels of this shape, which nobody may do while recording. If recording
    fails it is given up, with one warning; `forget` clears what half-recorded work has left behind.
    """

    def __init__(
        self, step: StepFunction, forget: Callable[[], None], recorder: CudaGraphRecorder | None = None
    ) -> None:
        self.step, self.forget, self.done = step, forget, 0
        self.recorder = CudaGraphRecorder() if recorder is None else recorder
        self.seen: set[tuple[object, ...]] = set()
        self.recorded: dict[tuple[object, ...], StepFunction] = {}
        self.works = True

    def __call__(self, batch: Batch, divide: dict[str, Tensor]) -> Result:
        key = batch_shapes(batch)
        with self.recorder.on_stream():
            second = key in self.seen and key not in self.recorded
            if self.works and second and self.done >= WARMUP_STEPS and len(self.recorded) < MAX_GRAPHS:
                self._record(key, batch, divide)
            self.done += 1
            self.seen.add(key)
            return self.recorded.get(key, self.step)(batch, divide)

    def _record(self, key: tuple[object, ...], batch: Batch, divide: dict[str, Tensor]) -> None:
        try:
            self.recorded[key] = self.recorder.record(self.step, batch, divide)
        except (RuntimeError, NotImplementedError) as error:
            self.works = False
            self.forget()
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            warning = f"a step could not be recorded ({why}); from now on new shapes are done plainly"
            warnings.warn(warning, stacklevel=2)


def batch_shapes(batch: Batch) -> tuple[object, ...]:
    """Return the names, shapes and types that a recorded graph was made for."""
    return tuple((name, t.shape, t.dtype) for name, t in sorted(batch.tensors.items()))


def copy_batch(target: Batch, new: Batch) -> None:
    """Copy a batch into the tensors that the graph reads."""
    values = new.tensors
    for name, t in target.tensors.items():
        t.copy_(values[name], non_blocking=True)
