"""text-regression: a number for a whole text, or for a pair of texts.

A price, a rating with decimals, minutes until an answer: numbers whose distance means something, unlike that
of classes. The head has one output u. While it learns, the answer is mean + scale · u: a head that begins
near zero would take very long to reach a price of 250,000 by itself. Afterwards mean and scale become part of
its weights, W' = scale · W and b' = scale · b + mean: any program that opens the folder gets the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.examples.classification import text_batches
from heedful.models.base import Model
from heedful.tasks.examples import INPUT_ROLES, NUMBER, Examples, Role, check_same_columns
from heedful.tasks.metrics.scores import regression_scores
from heedful.tasks.model_inputs import BATCH_SIZE, map_inputs
from heedful.tasks.pipelines.text_classification import read_text_pairs, text_pair_inputs
from heedful.tasks.task import NumberTask, TrainingDefaults
from heedful.tasks.task_specification import TaskSpecification

SCALE_KEY = "regression"  # of config.json while a head learns, or if it has no bias: {"mean": …, "scale": …}


class TextRegression(NumberTask):
    """y = mean + scale · u, u the one logit of a head that reads a text or a pair of texts"""

    heads = ("classify",)
    needs = "a head of one label that gives a number"
    command, head, objective, metric, highest = "regress", "classify", "regress", "rmse", False
    head_settings: ClassVar[Mapping[str, Any]] = {"problem_type": "regression"}
    training = TrainingDefaults(lr=1e-4, lora_lr=1e-3, epochs=4, length=256)
    roles: ClassVar[Mapping[str, Role]] = {**INPUT_ROLES["classify"], "number": Role("--label", NUMBER)}
    call_inputs = staticmethod(text_pair_inputs)

    def predict(
        self,
        inputs: Any,
        *,
        truncation: bool | str = False,
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return {"score": number} for each text, or for each pair {"text": …, "text_pair": …}."""
        scale = self.model.hf_config.get(SCALE_KEY) or {"mean": 0.0, "scale": 1.0}

        def predict_batch(texts: list[Any]) -> list[dict[str, float]]:
            pairs = read_text_pairs(self.model, texts)
            tokenized = self.tokenize(pairs, truncation=truncation, max_length=max_length)
            logits = self.forward(tokenized, batch_size=batch_size)
            return [{"score": scale["mean"] + scale["scale"] * float(u)} for u in logits]

        return map_inputs(inputs, predict_batch, batch_size, (str, Mapping))

    @classmethod
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        if len({float(row[-1]) for row in train.items}) < 2:
            only = f"every row has the number {train.items[0][-1]}"
            raise InputError(f"{only}: there is nothing to learn", hint="is it the right column?")
        check_same_columns(train, valid)

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        numbers = [float(row[-1]) for row in examples.items]
        return {"numbers": {"lowest": min(numbers), "mean": float(np.mean(numbers)), "highest": max(numbers)}}

    @classmethod
    def attach_head(
        cls, model: Model, train: Examples, seed: int, labels: tuple[str, ...] | None = None
    ) -> tuple[Model, str]:
        numbers = np.array([float(row[-1]) for row in train.items])
        scale = {"mean": float(numbers.mean()), "scale": float(numbers.std()) or 1.0}
        if TaskSpecification.of(model) is not None and cls.fits(model):
            if SCALE_KEY not in model.hf_config:
                rescale_output(model, 1 / scale["scale"], -scale["mean"] / scale["scale"])
                model.hf_config[SCALE_KEY] = scale
            return model, "its own head, of one number"
        made, _ = super().attach_head(model, train, seed, (train.columns.get("number", "number"),))
        made.hf_config[SCALE_KEY] = scale
        return made, "a new head of one number"

    def finish_training(self) -> None:
        scale = self.model.hf_config[SCALE_KEY]
        if rescale_output(self.model, scale["scale"], scale["mean"]):
            del self.model.hf_config[SCALE_KEY]

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        """Return batches of one text or two, and the standardised number, extra["score"]."""
        scale, columns = self.model.hf_config[SCALE_KEY], len(examples.items[0]) - 1
        numbers = np.array([float(row[-1]) for row in examples.items])
        return text_batches(
            "regress", examples.encode(self.tokenizer, options.length, columns), columns, self.tokenizer,
            options, "score", ((numbers - scale["mean"]) / scale["scale"]).astype(np.float32),
        )  # fmt: skip

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        truths = [float(row[-1]) for row in examples.items]
        return regression_scores(truths, [answer["score"] for answer in answers])


@torch.no_grad()
def rescale_output(model: Model, scale: float, mean: float) -> bool:
    """Make a head of one output give scale · u + mean; return False if it has no bias to hold the mean."""
    layers = [part for part in model.modules() if isinstance(part, nn.Linear) and part.out_features == 1]
    if not layers or layers[-1].bias is None:
        return False
    layers[-1].weight.mul_(scale)
    layers[-1].bias.mul_(scale).add_(mean)
    return True
