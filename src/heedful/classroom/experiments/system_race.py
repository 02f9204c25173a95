"""`heed race`: language models that mix tokens in different ways, of one size, on one text, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from heedful.classroom.experiments.gradient_flow import exploding_rates, fit_rate, loss_gradient_by_distance
from heedful.classroom.experiments.layer_times import measure_generation, measure_layer_times, measure_step
from heedful.classroom.experiments.ledger import hardware
from heedful.classroom.experiments.measurement_store import Comparison, Measurement
from heedful.classroom.experiments.race_report import race_sections
from heedful.classroom.experiments.recall_tasks import VOCAB, score_task, task_batches
from heedful.classroom.experiments.report import Report
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
from heedful.train.config import TrainConfig
from heedful.train.fit import fit
from heedful.train.recipes.folder import read_metrics
from heedful.train.recipes.prepare import prepare_run
from heedful.train.recipes.recipes import Evaluation, Recipe, TokenizerOptions

HELD_OUT = 0.1  # of the text, for validation
EVALUATION_BATCHES = 8
POSITION_ROWS = 64  # of the validation text, for the loss by position


class Race(Comparison):
    """One comparison of language models in a folder."""

    def __init__(
        self, folder: Path, files: Sequence[str], settings: RaceSettings, device: torch.device,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        super().__init__(folder, device, report, {"device": device.type})
        s = self.settings = settings
        self.files, self.text_name = find_texts(files, folder)
        self.data = sha256(self.files)
        self.tokenizer = shared_tokenizer(folder / "tokenizer", s.tokenizer, self.files, s.vocab)
        sizes = {"vocab": len(self.tokenizer), "layers": s.layers, "context": s.length}
        self.competitors = [size_system(one, s.parameters, **sizes) for one in find_systems(s.systems)]

    def measurements(self) -> Iterator[Measurement]:
        """Yield the sizes of the systems, then what is measured part by part."""
        parts = self.settings.parts
        for competitor in self.competitors:
            yield from self.size(competitor)
        if "gradients" in parts:  # those of RNNs whose recurrent matrix was scaled, too
            gains = self.settings.gains
            yield Measurement("gains-rnn", {"gains": gains}, partial(exploding_rates, gains))
        kinds = {
            "layers": [self.layer], "generation": [self.generation], "loss": [self.speed, self.training],
            "positions": [self.positions], "gradients": [self.gradients], "tasks": [self.tasks],
        }  # fmt: skip
        for kind in (kind for part in PARTS if part in parts for kind in kinds[part]):
            for competitor in self.competitors:
                yield from kind(competitor)

    def make_report(self, command: str) -> Report:
        """Return the report of everything that was measured so far."""
        s = self.settings
        about = {
            "text": self.text_name, "tokenizer": f"{s.tokenizer}, {len(self.tokenizer)} tokens",
            "parameters": f"about {s.parameters:,}", "tokens": f"{s.steps * s.batch * s.length:,}",
            "machine": hardware(self.device.type),
        }  # fmt: skip
        title = "RNNs, Transformers and what came after, side by side"
        return Report(title, command, about, race_sections(self.store))

    def size(self, competitor: SizedSystem) -> Iterator[Measurement]:
        """The number of parameters, the layers and the path length of a system."""
        length, system = self.settings.length, competitor.system
        paths = {str(k): system.path_length(k, competitor.layers) for k in (1, length // 2, length - 1)}
        value = {
            "label": system.label, "mixing": system.mixing, "parameters": competitor.parameters,
            "model": dict(competitor.model), "lr": system.lr, "paths": paths,
        }  # fmt: skip
        yield Measurement(f"size-{system.family}", value, partial(dict, value))

    def layer(self, competitor: SizedSystem) -> Iterator[Measurement]:
        """The time of one layer against length and width."""
        s, system = self.settings, competitor.system
        # Attention and recurrences take long enough; at the same lengths the others' times are all noise.
        longer = 1 if system.mixing in ("attention", "recurrence") else s.longer
        options: dict[str, Any] = {
            "lengths": [longer * n for n in s.layer_lengths], "dims": s.layer_dims, "dim": s.layer_dim,
            "length": s.layer_length, "fit_points": s.fit_points,
        }  # fmt: skip
        measure = partial(measure_layer_times, system, device=self.device, **options)
        yield Measurement(f"layer-{system.family}", options, measure)

    def generation(self, competitor: SizedSystem) -> Iterator[Measurement]:
        """Time and memory of one more token behind texts of several lengths."""
        options: dict[str, Any] = {"contexts": self.settings.contexts, "vocab": len(self.tokenizer)}
        measure = partial(measure_generation, competitor, device=self.device, **options)
        settings = options | {"model": dict(competitor.model)}
        yield Measurement(f"generation-{competitor.system.family}", settings, measure)

    def speed(self, competitor: SizedSystem) -> Iterator[Measurement]:
        """The time of one training step."""
        s = self.settings
        options: dict[str, Any] = {
            "vocab": len(self.tokenizer), "length": s.length, "batch": s.batch, "dtype": s.dtype,
        }  # fmt: skip
        measure = partial(measure_step, competitor, device=self.device, **options)
        settings = options | {"model": dict(competitor.model)}
        yield Measurement(f"speed-{competitor.system.family}", settings, measure)

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
        )  # fmt: skip

    def training_settings(self, competitor: SizedSystem) -> dict[str, Any]:
        """Return what a trained model depends on."""
        names = ("length", "batch", "steps", "evaluations", "dtype", "seed")
        return {n: getattr(self.settings, n) for n in names} | {
            "model": dict(competitor.model), "lr": competitor.system.lr, "data": self.data,
            "vocab": len(self.tokenizer),
        }  # fmt: skip

    def training(self, competitor: SizedSystem) -> Iterator[Measurement]:
        """The validation loss of a system over the tokens it is trained on."""
        family = competitor.system.family

        def train() -> dict[str, Any]:
            self.train(competitor, self.recipe(competitor), self.tokenizer, self.files)
            lines = read_metrics(self.folder / family)
            spent = {x["train/global_step"]: x for x in lines if "train/seconds" in x}
            seen = [x for x in lines if "eval/loss" in x and x["train/global_step"] in spent]
            tokens = [spent[x["train/global_step"]]["train/tokens"] for x in seen]
            return {"tokens": tokens, "loss": [x["eval/loss"] for x in seen]}

        yield Measurement(f"training-{family}", self.training_settings(competitor), train)

    def validation_batches(self, competitor: SizedSystem) -> Batches:
        """Return the batches of the text that was held out."""
        settings = self.run_settings(competitor, self.recipe(competitor), self.files)
        valid = prepare_run(settings, torch.device("cpu"), self.folder / settings.name).valid
        if valid is None:
            raise InputError("the text is too short to hold out a part of it", hint="name a longer one")
        return valid

    def positions(self, competitor: SizedSystem) -> Iterator[Measurement]:
        """The loss of the trained system by the position in its context."""

        def measure() -> dict[str, Any]:
            model, valid = self.load_trained(competitor), self.validation_batches(competitor)
            rows = [row[None] for batch in (valid[i] for i in range(8)) for row in batch.tokens]
            rows = [row.to(self.device) for row in rows[:POSITION_ROWS]]
            by_position = loss_by_position(cast(LM, model), rows)
            return {"loss": [x for x in by_position.loss if x is not None], "rows": len(rows)}

        settings = self.training_settings(competitor)
        yield Measurement(f"position-{competitor.system.family}", settings, measure)

    def gradients(self, competitor: SizedSystem) -> Iterator[Measurement]:
        """How far back the loss of the trained system reaches, and of one that is not trained."""
        s = self.settings

        def measure() -> dict[str, Any]:
            batch, rows = self.validation_batches(competitor)[0], slice(0, s.gradient_rows)
            assert batch.labels is not None
            new = build_system(competitor, vocab=len(self.tokenizer), seed=s.seed, device=self.device)
            curves: dict[str, Any] = {}
            for name, one in (("trained", self.load_trained(competitor)), ("untrained", new)):
                labels = batch.labels[rows].clamp(min=0)
                curve = loss_gradient_by_distance(cast(LM, one), batch.tokens[rows], labels)
                curves[name] = {"norms": curve.norms, "rate": fit_rate(curve)}
            return curves

        settings = self.training_settings(competitor) | {"rows": s.gradient_rows}
        yield Measurement(f"gradient-{competitor.system.family}", settings, measure)

    def tasks(self, competitor: SizedSystem) -> Iterator[Measurement]:
        """The scores by distance of small models that learn each task, seed by seed."""
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
            scores = score_task(cast(LM, model), task, length=t.length, rows=t.rows)
            return scores | {"parameters": small.parameters, "table_std": table_std}

        def choose_start(task: str) -> dict[str, Any]:
            scores = [measure(task, t.pilot_seed, std) for std in t.table_stds]
            shares = [sum(one["right"]) / sum(one["count"]) for one in scores]
            return {"shares": shares, "table_std": t.table_stds[shares.index(max(shares))]}

        options = {n: v for n, v in asdict(t).items() if n not in ("systems", "names", "seeds")}
        for task in t.names if len(t.table_stds) > 1 else ():
            yield Measurement(f"pilot-{task}-{system.family}", options, partial(choose_start, task))
        for seed, task in product(t.seeds, t.names):
            pilot = self.store.values(f"pilot-{task}").get(system.family) if len(t.table_stds) > 1 else None
            start = pilot["table_std"] if pilot else system.table_std
            settings = options | {"start": start}
            measure_seed = partial(measure, task, seed, start)
            yield Measurement(f"task-{task}-{system.family}-{seed}", settings, measure_seed)


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
