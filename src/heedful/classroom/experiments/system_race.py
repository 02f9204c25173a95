"""`heed race`: language models that mix tokens in different ways, of one size, on one text, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from heedful.classroom.experiments.gradient_flow import exploding_rates, fit_rate, loss_gradient_by_distance
from heedful.classroom.experiments.layer_times import measure_generation, measure_layer_times, measure_step
from heedful.classroom.experiments.measurement_store import MeasurementStore
from heedful.classroom.experiments.race_report import race_sections
from heedful.classroom.experiments.recall_tasks import VOCAB, score_task, task_batches
from heedful.classroom.experiments.report import Report, machine_name
from heedful.classroom.experiments.systems import (
    SYSTEMS,
    SizedSystem,
    build_system,
    find_systems,
    shared_tokenizer,
    size_system,
)
from heedful.classroom.experiments.translation_data import find_texts
from heedful.core.checks import check_choice
from heedful.core.errors import InputError
from heedful.core.files import sha256
from heedful.data.batches import Batches
from heedful.interp.observe.lens import loss_by_position
from heedful.models.base import LM
from heedful.train.checkpoint import of_run
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.recipes.folder import read_metrics
from heedful.train.recipes.prepare import prepare_run
from heedful.train.recipes.recipes import Evaluation, Recipe, ResolvedSettings, TokenizerOptions
from heedful.train.recipes.train import run_training
from heedful.weights.loading import load
from heedful.weights.saving import save

HELD_OUT = 0.1  # of the text, for validation
EVALUATION_BATCHES = 8
POSITION_ROWS = 64  # of the validation text, for the loss by position


class Race:
    """One comparison in a folder: every measurement is taken once and kept."""

    def __init__(
        self, folder: Path, files: Sequence[str], settings: RaceSettings, device: torch.device,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self.folder, self.settings, self.device, self.report = folder, settings, device, report
        self.number = 0  # of measurements, those on disk included
        self.store = MeasurementStore(folder / "measurements")
        self.files, self.text_name = find_texts(files, folder)
        self.data = sha256(self.files)
        self.tokenizer = shared_tokenizer(
            folder / "tokenizer", settings.tokenizer, self.files, settings.vocab
        )
        self.systems = find_systems(settings.systems)
        sizes = {"vocab": len(self.tokenizer), "layers": settings.layers, "context": settings.length}
        self.competitors = [size_system(system, settings.parameters, **sizes) for system in self.systems]

    def measure(self) -> None:
        """Take every measurement that is not there yet, part by part."""
        self.measure_sizes()
        measures: dict[str, Sequence[Callable[[SizedSystem], None]]] = {
            "layers": [self.measure_layer], "generation": [self.measure_generation],
            "loss": [self.measure_speed, self.measure_training], "positions": [self.measure_positions],
            "gradients": [self.measure_gradients], "tasks": [self.measure_tasks],
        }  # fmt: skip
        if "gradients" in self.settings.parts:  # those of RNNs whose recurrent matrix was scaled, too
            gains = self.settings.gains
            self.take("gains-rnn", {"gains": gains}, lambda: exploding_rates(gains))
        for part in PARTS:
            for measure in measures[part] if part in self.settings.parts else ():
                for competitor in self.competitors:
                    measure(competitor)

    @property
    def total(self) -> int:
        """The number of all measurements."""
        t, s = self.settings.tasks, self.settings
        learners = [name for name in s.systems if name in t.systems]
        each = {"layers": 1, "generation": 1, "loss": 2, "positions": 1, "gradients": 1, "tasks": 0}
        return (
            (1 + sum(each[part] for part in s.parts)) * len(s.systems) + ("gradients" in s.parts)
            + ("tasks" in s.parts) * len(learners) * len(t.names) * (len(t.seeds) + (len(t.table_stds) > 1))
        )  # fmt: skip

    def take(self, name: str, settings: Mapping[str, Any], measure: Callable[[], Any]) -> Any:
        """Return a measurement, and report it before it is taken."""
        self.number += 1

        def measure_now() -> Any:
            self.report(f"[{self.number}/{self.total}] {name.replace('-', ' ')}")
            return measure()

        return self.store.take(name, {**settings, "device": self.device.type}, measure_now)

    def make_report(self, command: str) -> Report:
        """Return the report of everything that was measured so far."""
        s = self.settings
        about = {
            "text": self.text_name, "tokenizer": f"{s.tokenizer}, {len(self.tokenizer)} tokens",
            "parameters": f"about {s.parameters:,}", "tokens": f"{s.steps * s.batch * s.length:,}",
            "machine": machine_name(self.device),
        }  # fmt: skip
        return Report(
            "RNNs, Transformers and what came after, side by side", command, about, race_sections(self.store)
        )

    def measure_sizes(self) -> None:
        """Keep the number of parameters, the layers and the path length of every system."""
        length = self.settings.length
        for one in self.competitors:
            paths = {str(k): one.system.path_length(k, one.layers) for k in (1, length // 2, length - 1)}
            value = {
                "label": one.system.label, "mixing": one.system.mixing, "parameters": one.parameters,
                "model": dict(one.model), "lr": one.system.lr, "paths": paths,
            }  # fmt: skip
            self.take(f"size-{one.system.family}", value, partial(dict, value))

    def measure_layer(self, competitor: SizedSystem) -> None:
        """Measure the time of one layer against length and width."""
        s, system = self.settings, competitor.system
        # Attention and recurrences take long enough; at the same lengths the others' times are all noise.
        longer = 1 if system.mixing in ("attention", "recurrence") else s.longer
        options: dict[str, Any] = {
            "lengths": [longer * n for n in s.layer_lengths], "dims": s.layer_dims, "dim": s.layer_dim,
            "length": s.layer_length, "fit_points": s.fit_points,
        }  # fmt: skip
        measure = lambda: measure_layer_times(system, device=self.device, **options).to_dict()
        self.take(f"layer-{system.family}", options, measure)

    def measure_generation(self, competitor: SizedSystem) -> None:
        """Measure time and memory of one more token behind texts of several lengths."""
        options: dict[str, Any] = {"contexts": self.settings.contexts, "vocab": len(self.tokenizer)}
        measure = lambda: measure_generation(competitor, device=self.device, **options)
        self.take(
            f"generation-{competitor.system.family}", options | {"model": dict(competitor.model)}, measure
        )

    def measure_speed(self, competitor: SizedSystem) -> None:
        """Measure one training step."""
        s = self.settings
        options: dict[str, Any] = {
            "vocab": len(self.tokenizer), "length": s.length, "batch": s.batch, "dtype": s.dtype,
        }  # fmt: skip
        measure = lambda: measure_step(competitor, device=self.device, **options)
        self.take(f"speed-{competitor.system.family}", options | {"model": dict(competitor.model)}, measure)

    def recipe(self, competitor: SizedSystem) -> Recipe:
        """Return the recipe of a system: all settings but the model's and the learning rate are the same."""
        s = self.settings
        every = max(1, s.steps // s.evaluations)
        return Recipe(
            competitor.system.family, "one of the systems of a race",
            tokenizer=TokenizerOptions(str(self.folder / "tokenizer"), s.vocab), model=dict(competitor.model),
            data={"length": s.length, "batch": s.batch, "holdout": HELD_OUT},
            train=TrainConfig(
                steps=s.steps, lr=competitor.system.lr, warmup=max(1, s.steps // 10), dtype=s.dtype,
                seed=s.seed, save_every=every,
            ),
            evaluate=Evaluation(every=every, batches=EVALUATION_BATCHES, log=every, sample=0),
            start=str(self.folder / "start" / competitor.system.family), device=str(self.device),
        )  # fmt: skip

    def resolve_recipe(self, competitor: SizedSystem) -> ResolvedSettings:
        """Return the settings of a system's run."""
        return ResolvedSettings(competitor.system.family, self.recipe(competitor), tuple(self.files))

    def training_settings(self, competitor: SizedSystem) -> dict[str, Any]:
        """Return what a trained model depends on."""
        s = self.settings
        names = ("length", "batch", "steps", "evaluations", "dtype", "seed")
        return {n: getattr(s, n) for n in names} | {
            "model": dict(competitor.model), "lr": competitor.system.lr, "data": self.data,
            "vocab": len(self.tokenizer),
        }  # fmt: skip

    def measure_training(self, competitor: SizedSystem) -> None:
        """Train a system and keep its validation loss over tokens."""
        family = competitor.system.family
        folder = self.folder / family

        def train() -> dict[str, Any]:
            first = self.folder / "start" / family
            if not first.is_dir():
                model = build_system(competitor, vocab=len(self.tokenizer), seed=self.settings.seed)
                model.tokenizer = self.tokenizer
                save(model, first)
            run_training(self.resolve_recipe(competitor), folder, resume=True, quiet=True)
            lines = read_metrics(folder)
            spent = {x["train/global_step"]: x for x in lines if "train/seconds" in x}
            seen = [x for x in lines if "eval/loss" in x and x["train/global_step"] in spent]
            of = lambda key: [spent[x["train/global_step"]][key] for x in seen]
            return {"tokens": of("train/tokens"), "loss": [x["eval/loss"] for x in seen]}

        self.take(f"training-{family}", self.training_settings(competitor), train)

    def load_trained(self, competitor: SizedSystem) -> tuple[LM, Batches]:
        """Return a trained system and the validation batches."""
        folder = self.folder / competitor.system.family
        model = cast(LM, load(of_run(folder), device=self.device))
        valid = prepare_run(self.resolve_recipe(competitor), torch.device("cpu"), folder).valid
        if valid is None:
            raise InputError("the text is too short to hold a part of it out", hint="name a longer one")
        return model, valid

    def measure_positions(self, competitor: SizedSystem) -> None:
        """Measure the loss of the trained system by the position in its context."""

        def measure() -> dict[str, Any]:
            model, valid = self.load_trained(competitor)
            rows = [row[None] for batch in (valid[i] for i in range(8)) for row in batch.tokens]
            by_position = loss_by_position(model, [r.to(self.device) for r in rows[:POSITION_ROWS]])
            return {"loss": [x for x in by_position.loss if x is not None], "rows": len(rows[:POSITION_ROWS])}

        self.take(f"position-{competitor.system.family}", self.training_settings(competitor), measure)

    def measure_gradients(self, competitor: SizedSystem) -> None:
        """Measure how far back the loss of the trained system reaches, and of one that is not trained."""

        def measure() -> dict[str, Any]:
            model, valid = self.load_trained(competitor)
            batch = valid[0]
            rows = slice(0, self.settings.gradient_rows)
            new = build_system(
                competitor, vocab=len(self.tokenizer), seed=self.settings.seed, device=self.device
            )
            curves: dict[str, Any] = {}
            for name, one in (("trained", model), ("untrained", new)):
                assert batch.labels is not None
                curve = loss_gradient_by_distance(one, batch.tokens[rows], batch.labels[rows].clamp(min=0))
                curves[name] = {"norms": curve.norms, "rate": fit_rate(curve).to_dict()}
            return curves

        options = self.training_settings(competitor) | {"rows": self.settings.gradient_rows}
        self.take(f"gradient-{competitor.system.family}", options, measure)

    def measure_tasks(self, competitor: SizedSystem) -> None:
        """Train small models of a system on every task, seed by seed, and score them by distance."""
        t, system = self.settings.tasks, competitor.system
        if system.family not in t.systems:
            return
        small = size_system(system, t.parameters, vocab=VOCAB, layers=2, context=t.length)
        config = TrainConfig(
            steps=t.steps, lr=t.lr, warmup=t.steps // 20, weight_decay=t.weight_decay,
            compile=False, graph=self.device.type == "cuda",
        )  # fmt: skip

        def measure(task: str, seed: int, table_std: float | None) -> dict[str, Any]:
            begun = replace(small, system=replace(system, table_std=table_std))
            model = build_system(begun, vocab=VOCAB, seed=seed, device=self.device)
            batches = task_batches(task, length=t.length, batch=t.batch, seed=seed)
            for _ in fit(model, "next_token", batches, config):
                pass
            scores = score_task(model, task, length=t.length, rows=t.rows)
            return scores | {"parameters": small.parameters, "table_std": table_std}

        def choose_start(task: str) -> dict[str, Any]:
            scores = [measure(task, t.pilot_seed, std) for std in t.table_stds]
            shares = [sum(one["right"]) / sum(one["count"]) for one in scores]
            return {"shares": shares, "table_std": t.table_stds[shares.index(max(shares))]}

        options = {n: v for n, v in asdict(t).items() if n not in ("systems", "names", "seeds")}
        starts = {task: system.table_std for task in t.names}
        for task in t.names if len(t.table_stds) > 1 else ():
            pilot = self.take(f"pilot-{task}-{system.family}", options, partial(choose_start, task))
            starts[task] = pilot["table_std"]
        for seed, task in product(t.seeds, t.names):
            measured = partial(measure, task, seed, starts[task])
            self.take(f"task-{task}-{system.family}-{seed}", options | {"start": starts[task]}, measured)


# How large a comparison is: what `heed race --quick` measures, and what it measures without.


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
