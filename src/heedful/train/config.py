"""TrainConfig: every value a training run depends on, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from heedful.core.checks import Option, check_choice, check_integer, check_number, show_plain_types
from heedful.core.errors import ConfigError

OPTIMISERS = ("adamw", "muon", "adafactor")
SCHEDULES = ("constant", "linear", "cosine", "wsd", "inverse_sqrt")
DTYPES = ("float32", "bfloat16")
# The least a whole number may be, by name. None is left alone where a setting may be None.
LEAST = {"steps": 1, "accumulate": 1, "keep": 1, "save_every": 1, "decay": 1, "warmup": 0, "seed": 0}


@show_plain_types
@dataclass(frozen=True)
class TrainConfig:
    """Set how `heedful.fit` trains: steps, learning rate, optimizer, precision and checkpoints.

    >>> import heedful
    >>> config = heedful.TrainConfig(steps=1000, lr=3e-4, warmup=100, dtype="bfloat16")
    >>> config.optimiser
    'adamw'

    Step k depends only on the weights, the optimizer and k, so a run resumes exactly.
    """

    steps: Annotated[int, Option("Train for N steps.", variable="HEED_STEPS")] = 1000
    minutes: Annotated[
        float | None, Option("Train for N minutes, however many steps that is.", variable="HEED_MINUTES")
    ] = None
    lr: Annotated[float, Option("Set the highest learning rate.", variable="HEED_LR")] = 3e-4
    optimiser: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1  # of matrices; vectors and norms never decay
    schedule: str = "cosine"
    warmup: int = 0  # steps of rising learning rate
    decay: int | None = None  # steps of falling at the end (wsd); None: a fifth of all
    final: float = 0.1  # the last learning rate, as a part of the highest
    clip: float | None = 1.0  # the largest norm of the gradient; None: any
    accumulate: int = 1  # micro-batches per step
    dtype: Annotated[
        str, Option("Multiply matrices in float32 or bfloat16; weights stay float32.", variable="HEED_DTYPE")
    ] = "float32"
    compile: bool | None = None  # compile the layers; None: on a GPU, where it pays (train/speed.py)
    graph: bool | None = None  # record a step for each shape of batch and replay it; None: likewise
    float8: bool = False  # matrix products in float8 (H100 and newer)
    checkpointing: bool = False  # keep only block inputs, compute the rest again going back
    ema: float | None = None  # decay of an average of the weights
    seed: Annotated[
        int, Option("Draw weights, batches and dropout with this seed.", variable="HEED_SEED")
    ] = 0
    folder: str | Path | None = None  # where checkpoints go; None: nowhere
    save_every: int | None = None  # steps between checkpoints; None: by the clock
    save_minutes: float | None = 5.0  # minutes between checkpoints without save_every; None: only at the end
    keep: int = 2  # newest checkpoints that stay, beside the best one
    resume: bool = False  # go on from the newest checkpoint in `folder`, if there is one
    # Where a resumed run got other `steps` or `minutes`, and so a new schedule: step, learning rate, seconds.
    extended: tuple[int, float, float] | None = None

    def __post_init__(self) -> None:
        for name, choices in (("optimiser", OPTIMISERS), ("schedule", SCHEDULES), ("dtype", DTYPES)):
            check_choice(name, getattr(self, name), choices, ConfigError)
        for name, least in LEAST.items():
            if getattr(self, name) is not None or name not in ("save_every", "decay"):
                check_integer(name, getattr(self, name), least, error=ConfigError)
        if self.seed >= 2**63:
            raise ConfigError(f"`seed={self.seed}` must be below 2**63")
        for name in ("lr", "eps", "clip"):  # a clip of 0 learns nothing, a negative one climbs
            if name != "clip" or self.clip is not None:
                check_number(name, getattr(self, name), above=0, error=ConfigError)
        for name in ("minutes", "save_minutes"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0, error=ConfigError)
        check_number("weight_decay", self.weight_decay, 0, error=ConfigError)
        check_number("final", self.final, 0, 1, error=ConfigError)  # a part of the highest rate
        if not (len(self.betas) == 2 and all(isinstance(b, int | float) and 0 <= b < 1 for b in self.betas)):
            raise ConfigError(f"`betas={self.betas!r}` must be two numbers, 0 or above and below 1")
        object.__setattr__(self, "betas", tuple(map(float, self.betas)))  # torch takes no whole numbers
        if self.minutes is not None and self.decay is not None:
            raise ConfigError(
                f"`decay={self.decay}` counts steps and `minutes={self.minutes:g}` does not",
                hint="leave decay out: the rate then falls in the last fifth of the time",
            )
        for name in ("warmup", "decay"):
            if self.minutes is None and (getattr(self, name) or 0) > self.steps:
                raise ConfigError(
                    f"`{name}={getattr(self, name)}` is longer than the run of `steps={self.steps}`"
                )
        if self.ema is not None and not 0 < self.ema < 1:
            raise ConfigError(f"`ema={self.ema}` must lie between 0 and 1", hint="0.999 is usual")
        if self.graph and self.optimiser == "adafactor":
            raise ConfigError(
                "`graph=True` does not work with adafactor", hint="use adamw or muon, or `graph=False`"
            )
        if self.resume and self.folder is None:
            raise ConfigError("`resume=True` needs `folder=…`, the folder of the run to continue")
