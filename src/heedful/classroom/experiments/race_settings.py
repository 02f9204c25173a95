"""How large a comparison is: what `heed race --quick` measures, and what it measures without."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.classroom.experiments.systems import SYSTEMS
from heedful.core.checks import check_choice

# What a race measures, in this order. Positions and gradients are those of the models that `loss` trains.
PARTS = ("layers", "generation", "loss", "positions", "gradients", "tasks")


@dataclass(frozen=True)
class TaskSettings:
    """Settings of the tasks that ask for something seen before: how they are learnt and scored."""

    systems: tuple[str, ...] = tuple(SYSTEMS)
    names: tuple[str, ...] = ("copy", "recall", "induction", "needle")
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    parameters: int = 20_000
    length: int = 64
    batch: int = 256
    steps: int = 2000
    lr: float = 5e-3
    weight_decay: float = 0.01
    rows: int = 2048  # that are scored
    # Standard deviations of the token table at the start. Of several, every system learns a task from the one
    # with which it did best in a run of another seed, the pilot; of none, from its own.
    table_stds: tuple[float, ...] = (0.02, 0.3)
    pilot_seed: int = 1000


@dataclass(frozen=True)
class RaceSettings:
    """The settings of a comparison of language models: all but the text and the machine."""

    systems: tuple[str, ...] = tuple(SYSTEMS)
    parts: tuple[str, ...] = PARTS
    parameters: int = 3_000_000
    layers: int = 4
    tokenizer: str = "bpe"
    vocab: int = 4096
    length: int = 256
    batch: int = 64
    steps: int = 800
    evaluations: int = 10
    dtype: str = "bfloat16"
    seed: int = 0
    layer_lengths: tuple[int, ...] = (2048, 4096, 8192, 16384, 24576, 32768, 49152, 65536)
    longer: int = 1  # by which the lengths are multiplied for systems without attention or recurrence
    layer_dim: int = 64
    layer_dims: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    layer_length: int = 2048
    fit_points: int = 5  # of the longest lengths, through which the exponent is fitted
    contexts: tuple[int, ...] = (64, 256, 1024, 4096, 16384)
    gradient_rows: int = 32
    gains: tuple[float, ...] = (0.5, 0.9, 1.0, 1.2, 1.5, 2.0)
    tasks: TaskSettings = TaskSettings()

    def __post_init__(self) -> None:
        for name in self.parts:
            check_choice("parts", name, PARTS)


FULL = RaceSettings()
QUICK = RaceSettings(
    parameters=50_000, layers=2, tokenizer="char", vocab=128, length=64, batch=16, steps=200, evaluations=8,
    dtype="float32", layer_lengths=(1024, 2048, 4096, 6144, 8192, 12288, 16384), longer=4,
    layer_dim=32,
    layer_dims=(64, 128, 256, 512), layer_length=256, contexts=(16, 64, 256, 1024), gradient_rows=32,
    tasks=TaskSettings(
        systems=("rnn", "lstm", "llama"), names=("copy", "induction"), seeds=(0, 1), length=24, batch=64,
        steps=400, lr=1e-2, table_stds=(),
    ),
)  # fmt: skip
