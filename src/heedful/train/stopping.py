"""When to stop, and which weights to keep: early stopping, averages of weights, checkpoints and runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heedful.core.errors import ConfigError, NotFound
from heedful.models.base import Model
from heedful.models.tensor_parallel import group_by_mesh
from heedful.nn.adapt import LoRA, swap
from heedful.train import checkpoint as store
from heedful.weights.loading import load
from heedful.weights.names import model_tensors


@dataclass
class EarlyStopping:
    """Stop after `patience` evaluations without a better one   (Prechelt 1998)

        stopping = EarlyStopping(patience=3)
        for step in fit(…):
            if step.number % 100 == 0:
                if stopping.better(validate(model)):
                    step.save(best=True)
                if stopping.stop:
                    break

    `highest` is for metrics that should rise.
    """

    patience: int = 3
    highest: bool = False
    best: float | None = None
    waited: int = 0

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigError(f"`patience={self.patience}` must be at least 1")

    def better(self, value: float) -> bool:
        """Note an evaluation; return whether it is the best so far. NaN never is."""
        gain = math.inf if self.best is None else (value - self.best if self.highest else self.best - value)
        if not math.isnan(value) and gain > 0:
            self.best, self.waited = value, 0
            return True
        self.waited += 1
        return False

    @property
    def stop(self) -> bool:
        """Whether the patience is spent."""
        return self.waited >= self.patience


class WeightAverage:
    """ema ← d · ema + (1 − d) · weights, after every step   (Polyak and Juditsky 1992)"""

    def __init__(self, model: Model, decay: float) -> None:
        self.model, self.decay = model, decay
        self.values = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        parameters = dict(self.model.named_parameters())
        now = {id(average): parameters[n] for n, average in self.values.items()}
        for averages in group_by_mesh(self.values.values()):
            torch._foreach_lerp_(averages, [now[id(average)] for average in averages], 1 - self.decay)

    @contextmanager
    def in_model(self) -> Iterator[Model]:
        """Put the averaged weights in, and the others back afterwards."""
        parameters = dict(self.model.named_parameters())
        own = {n: p.detach().clone() for n, p in parameters.items()}
        store.put_values(parameters, self.values)
        try:
            yield self.model
        finally:
            store.put_values(parameters, own)


def soup(folders: Sequence[str | Path]) -> Model:
    """The model whose weights are the mean of several, fine-tuned from one start   (Wortsman et al. 2022)

    Runs that began alike, head included, and read the data in different orders end in one valley of the loss;
    its middle is often better than any of them, and costs no more to run. The folder of a run stands for its
    best checkpoint, or its last. The last checkpoints of one run can be averaged, too (Vaswani et al. 2017
    §6.1). What adapters learned is added to the weights first.
    """
    if isinstance(folders, str | Path) or not folders:
        raise ConfigError(f"give a list of at least one folder; got {folders!r}")
    paths = [store.of_run(folder) for folder in folders]
    models = [_check_whole(path) for path in paths]
    first = models[0]
    for path, other in zip(paths, models, strict=True):
        if other.family is not first.family or other.config != first.config:
            raise ConfigError(
                f"{path} is another model than {paths[0]}",
                hint="only checkpoints of the same model can be averaged",
            )
        if other.hf_config.get("id2label") != first.hf_config.get("id2label"):
            raise ConfigError(
                f"{path} has its labels in another order than {paths[0]}", hint="train them alike"
            )
    return _fill_weights(first, _mean(models))


def _check_whole(name: str | Path) -> Model:
    """A model whose weights can be averaged. The mean of B A is not that of B and A: adapters are merged."""
    model = load(name)
    if "quantization" in model.hf_config:
        raise ConfigError(f"{name} is quantised", hint="average the models it was made from")
    swap(model, lambda _, module: module.merged() if isinstance(module, LoRA) else None)
    return model


def ema_model(checkpoint: str | Path) -> Model:
    """The model of a checkpoint with its averaged weights, of a run with TrainConfig(ema=…)."""
    try:
        values = store.read_tensors(Path(checkpoint), "ema")
    except NotFound:
        values = {}
    if not values:
        path = Path(checkpoint) / "ema.safetensors"
        raise NotFound(
            f"{path} is not there: the run kept no average of its weights", hint="train with `ema=0.999`"
        )
    return _fill_weights(load(checkpoint), values)


def _mean(models: list[Model]) -> dict[str, Tensor]:
    """Sums in float64, so that the mean of equal weights is those weights; counters are the last one's."""
    tensors = [model_tensors(model) for model in models]
    mean: Callable[[str, Tensor], Tensor] = lambda n, t: (
        torch.stack([m[n].double() for m in tensors]).mean(0).to(t.dtype) if t.is_floating_point() else t
    )
    return {name: mean(name, tensor.detach()) for name, tensor in tensors[-1].items()}


def _fill_weights(model: Model, values: Mapping[str, Tensor]) -> Model:
    store.put_values(model_tensors(model), values)
    return model
