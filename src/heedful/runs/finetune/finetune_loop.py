"""Fine-tuning by the loop around `fit`: which weights are the best, kept in memory until they are saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.data.batches import Batches
from heedful.models.base import Model, evaluation_mode
from heedful.runs.finetune.finetune_task import Examples, FinetuneTask
from heedful.runs.progress import ProgressReporter
from heedful.runs.training_loop import TrainingLoop, TrainingResult, Validation
from heedful.train.config import TrainConfig
from heedful.train.fit import Step
from heedful.train.loss import LossModule, mean_losses
from heedful.train.objectives import objective

PATIENCE = 4  # evaluations without a better one
MAX_STEPS_BETWEEN_EVALUATIONS = 250
MIN_CHOOSING_ROWS = 100  # validation rows that can tell good weights from lucky ones


def finetune_model(
    task: FinetuneTask, model: Model, batches: Batches, valid: Batches, examples: Examples,
    config: TrainConfig, reporter: ProgressReporter, has_head: bool = False,
) -> TrainingResult:  # fmt: skip
    """Train, and leave the model with the weights that score best on the validation examples.

    With few examples the last weights stay. A model that comes with the task's head is scored first, and its
    own weights may stay.
    """
    kept: dict[str, Tensor] = {}

    def score(step: Step | None) -> dict[str, Any]:
        with evaluation_mode(model):
            loss = None
            if task.by_loss:
                loss = mean_losses(LossModule(model, objective(task.objective)), valid, model.device)["loss"]
            return task.score(model, examples, valid, loss)

    def keep(step: Step | None) -> None:
        kept.update({n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad})

    validation = Validation(
        score, keep, min(len(batches), MAX_STEPS_BETWEEN_EVALUATIONS), task.metric, task.highest, PATIENCE,
        # Few rows pick a lucky evaluation, or stop the run before their metric has begun to move.
        choose=has_head or task.by_loss or len(examples) >= MIN_CHOOSING_ROWS,
        untrained=has_head,
    )  # fmt: skip
    result = TrainingLoop(model, task.objective, batches, config, validation, reporter).run()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in kept:
                parameter.copy_(kept[name])
    model.eval()
    return result
