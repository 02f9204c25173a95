"""Fine-tuning by the loop around `fit`: which weights are the best, kept in memory until they are saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.models.base import evaluation_mode
from heedful.runs.progress import ProgressReporter
from heedful.runs.training_loop import TrainingLoop, TrainingResult, Validation
from heedful.tasks.examples import Examples
from heedful.tasks.task import TrainableTask
from heedful.train.config import TrainConfig
from heedful.train.fit import Step
from heedful.train.loss import LossModule, mean_losses
from heedful.train.objectives import objective

PATIENCE = 4  # evaluations without a better one
MAX_STEPS_BETWEEN_EVALUATIONS = 250
MIN_CHOOSING_ROWS = 100  # validation rows that can tell good weights from lucky ones


def finetune_model(
    task: TrainableTask, batches: Batches, valid: Examples, options: BatchOptions, config: TrainConfig,
    reporter: ProgressReporter, has_head: bool = False,
) -> TrainingResult:  # fmt: skip
    """Train, and leave the model with the weights that score best on the validation examples.

    With few examples the last weights stay. A model that comes with the task's head is scored first, and its
    own weights may stay.
    """
    model, kept = task.model, dict[str, Tensor]()
    valid_batches = task.batches(valid, options) if task.by_loss else None

    def score(step: Step | None) -> dict[str, Any]:
        if valid_batches is None:
            return task.score(valid, batch=options.batch, length=options.length, truncate=True)
        with evaluation_mode(model):
            module = LossModule(model, objective(task.objective))
            return task.loss_scores(mean_losses(module, valid_batches, model.device)["loss"])

    def keep(step: Step | None) -> None:
        kept.update({n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad})

    validation = Validation(
        score, keep, min(len(batches), MAX_STEPS_BETWEEN_EVALUATIONS), task.metric, task.highest, PATIENCE,
        # Few rows pick a lucky evaluation, or stop the run before their metric has begun to move.
        choose=has_head or task.by_loss or len(valid) >= MIN_CHOOSING_ROWS,
        untrained=has_head,
    )  # fmt: skip
    result = TrainingLoop(model, task.objective, batches, config, validation, reporter).run()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in kept:
                parameter.copy_(kept[name])
    model.eval()
    return result
