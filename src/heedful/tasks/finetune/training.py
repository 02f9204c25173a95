"""The training of a fine-tuning run, and what a killed one leaves so that the next can go on.

OUT.training/            beside the folder to be, while a long run lasts
  command.txt            the command, which must be the same
  metrics.jsonl          scores of the evaluations so far
  best-000120.safetensors   the best weights so far, those that learn
  checkpoints/           the newest state, as `fit` writes it
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from heedful.core.errors import ConfigError, CorruptFile, HeedfulError
from heedful.core.files import make_folder, write_text
from heedful.tasks.examples import Examples
from heedful.tasks.finetune.finetune_result import repeat_command
from heedful.tasks.finetune.training_setup import TrainingSetup, score_quietly
from heedful.tasks.requests import FinetuneRequest
from heedful.train.checkpoint import newest
from heedful.train.fit import Step
from heedful.train.recipes.folder import Files, MetricsFiles
from heedful.train.recipes.progress import ProgressReporter
from heedful.train.recipes.train import TrainingLoop, TrainingResult, Validation
from heedful.weights.formats.tensor_files import save_tensors

PATIENCE = 4  # evaluations without a better one
MIN_CHOOSING_ROWS = 100  # validation rows that can tell good weights from lucky ones
COMMAND = "command.txt"  # the file that tells a folder of checkpoints from somebody's own
CHECKPOINT_SECONDS = 120.0  # between checkpoints; a run that takes less writes none


def checkpoint_folder(out: Path) -> Path:
    """Return where a run that will write `out` keeps its checkpoints."""
    return out.with_name(f"{out.name}.training")


def remove_checkpoints(out: Path) -> None:
    """Remove the checkpoints of a run, if it wrote any."""
    folder = checkpoint_folder(out)
    if (folder / COMMAND).is_file():
        shutil.rmtree(folder, ignore_errors=True)


def keep_checkpoints(
    setup: TrainingSetup, request: FinetuneRequest, out: Path, sha256: str, seconds: float,
    reporter: ProgressReporter,
) -> TrainingSetup:  # fmt: skip
    """Return the setup of a run that writes checkpoints, if it takes long, or goes on from those of another.

    `seconds` is how long it will take.
    """
    folder, command = checkpoint_folder(out), f"{repeat_command(request)}\n{request.file}: SHA-256 {sha256}\n"
    at = newest(folder) if (folder / COMMAND).is_file() else None
    if at is None and seconds < CHECKPOINT_SECONDS:
        return setup
    if at is None:
        remove_checkpoints(out)  # of a run that was killed before its first one
        if folder.exists():
            hint = "move it away, or take another --out"
            raise ConfigError(f"{folder} is in the way: checkpoints go there while a run lasts", hint=hint)
        make_folder(folder)
        write_text(folder / COMMAND, command)
    elif (folder / COMMAND).read_text(encoding="utf-8") != command:
        written = (folder / COMMAND).read_text(encoding="utf-8").splitlines()[0]
        raise ConfigError(
            f"{folder} holds a run that was killed, of another command or file: {written}",
            hint="repeat that one to go on with it, delete the folder, or take another --out",
        )
    else:
        reporter.report(f"resuming: a run that was killed is in {folder}; this one goes on from {at.name}")
    return replace(setup, config=replace(setup.config, folder=folder, keep=1, resume=True))


class KeptWeights:
    """The weights that score best so far: a copy in memory, and of a long run one beside its checkpoints."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.model, self.folder = setup.task.model, setup.config.folder
        self.values: dict[str, Tensor] = {}
        self.step, self.written = 0, time.monotonic()

    def keep(self, step: Step | None) -> None:
        """Copy the present weights."""
        learning = ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)
        self.values = {name: p.detach().clone() for name, p in learning}
        self.step = 0 if step is None else step.number

    def checkpoint(self, step: Step) -> None:
        """Write the best weights and the state of training, if it is time."""
        if self.folder is None or time.monotonic() - self.written < CHECKPOINT_SECONDS:
            return
        best = Path(self.folder) / f"best-{self.step:06d}.safetensors"
        part = best.with_suffix(".part")
        try:
            if not best.is_file():
                save_tensors({name: value.contiguous() for name, value in self.values.items()}, part)
                part.rename(best)
            step.save()
        except (OSError, SafetensorError) as error:
            raise HeedfulError(f"could not write {best}: {error}") from None
        for other in set(Path(self.folder).glob("best-*")) - {best}:
            other.unlink()
        self.written = time.monotonic()

    def restore(self, step: int | None) -> None:
        """Read the best weights of a run that is resumed."""
        if self.folder is None or step is None or newest(Path(self.folder)) is None:
            return
        path = Path(self.folder) / f"best-{step:06d}.safetensors"
        try:
            self.values, self.step = load_file(path, device=str(self.model.device)), step
        except (OSError, SafetensorError):
            hint = f"delete {self.folder} to begin anew"
            raise CorruptFile(f"{path} is not there or damaged", hint=hint) from None

    @torch.no_grad()
    def put_back(self) -> None:
        """Give the model the weights that were kept, if any were."""
        for name, parameter in self.model.named_parameters():
            if name in self.values:
                parameter.copy_(self.values[name])
        self.model.eval()


def finetune_model(setup: TrainingSetup, valid: Examples, reporter: ProgressReporter) -> TrainingResult:
    """Train, and leave the model with the weights that score best on the validation examples.

    With few examples the last weights stay. A model that comes with the task's head is scored first, and its
    own weights may stay.
    """
    task, options, kept = setup.task, setup.options, KeptWeights(setup)
    valid_batches = task.batches(valid, options) if task.by_loss else None

    def score(step: Step | None) -> dict[str, Any]:
        if valid_batches is not None:
            return task.loss_scores(valid_batches)
        return score_quietly(task, valid, options)

    validation = Validation(
        score, kept.keep, setup.steps_between_evaluations, task.metric, task.highest, PATIENCE,
        # Few rows pick a lucky evaluation, or stop the run before their metric has begun to move.
        choose=setup.has_head or task.by_loss or len(valid) >= MIN_CHOOSING_ROWS,
        untrained=setup.has_head,
        checkpoint=kept.checkpoint,
    )  # fmt: skip
    folder = setup.config.folder
    files = Files() if folder is None else MetricsFiles(Path(folder))
    loop = TrainingLoop(task.model, task.objective, setup.batches, setup.config, validation, reporter, files)
    if setup.config.resume:
        loop.restore()
        kept.restore(loop.result.best_step)
    resumed_at = loop.steps_before
    result = loop.run()
    kept.put_back()
    if result.best_step is not None and resumed_at > 0 and result.best_step <= resumed_at:
        result.scores = score(None)  # the file of scores has no intervals
    return result
