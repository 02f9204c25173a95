"""image-classification and zero-shot-image-classification: a label for a whole image.

A fine-tuned ViT has a head with its labels. CLIP has none: each label becomes a text, and the image is
compared with all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from heedful import data
from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.input_files import InputFile
from heedful.models.base import DualEncoder, MediaLM, Model
from heedful.tasks.examples import ROLES, ColumnFlags, Examples, find_images
from heedful.tasks.label_kinds import LabelKind
from heedful.tasks.model_inputs import BATCH_SIZE, forward_images, map_images
from heedful.tasks.pipelines.text_classification import TextClassification, label_hypotheses
from heedful.tasks.task import Task, TrainingDefaults

TOP_LABELS = 5  # of an answer, as in transformers
TEMPLATE = "This is a photo of {}."  # transformers' own


class ImageClassification(TextClassification):
    """p = softmax(u) over the labels, u the logits of the head that labels an image

    It is TextClassification of images: the kinds of labels, the split and the scores are the same.
    """

    needs = "a model that labels images, such as a ViT (classify)"
    kinds, reads, fields = (MediaLM,), "images", ("image",)
    command = "classify-images"
    training = TrainingDefaults(lr=5e-5, lora_lr=1e-3, epochs=5, length=8)
    roles = ROLES["classify-images"]
    unit: ClassVar[str] = "images"
    has_length: ClassVar[bool] = False

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return Task.__call__(self, *inputs, **options)  # one image has a list of labels anyway

    def predict(  # type: ignore[override]
        self,
        images: Any,
        *,
        top_k: int | str | None = TOP_LABELS,
        function_to_apply: str | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return the best labels of each image, [{"label", "score"}]; `top_k` None: all labels."""
        name, count = self.check_ranking(function_to_apply, top_k)

        def predict_batch(batch: list[Any]) -> list[Any]:
            assert isinstance(self.model, MediaLM)
            logits = forward_images(self.model, batch, batch_size)
            ranked = [self.rank_labels(u, name) for u in logits]
            return [rows[0] if count == "best" else rows[:count] for rows in ranked]

        return map_images(images, predict_batch, batch_size)

    @classmethod
    def read_examples(
        cls, source: InputFile, column_flags: ColumnFlags, label_kind: LabelKind | None = None
    ) -> Examples:
        """Return (image, label) of every row; paths of images count from the table's own folder."""
        return find_images(source, super().read_examples(source, column_flags, label_kind))

    @classmethod
    def texts(cls, examples: Examples) -> list[str]:
        return []  # images have no length

    @classmethod
    def check_model(cls, model: Model) -> None:
        if not isinstance(model, MediaLM) or cls.head not in model.family.heads:
            reads = "" if model.image_processor is None else ", or use `task=read` to learn the text in them"
            raise InputError(
                f"a {model.family.name} model cannot learn to label images",
                hint=f"take a ViT or a DeiT{reads}",
            )

    @classmethod
    def prefers_linear_head(cls, model: Model, examples: Examples) -> bool:
        return False  # no published class would open it

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        images, truth = [row[0] for row in examples.items], self.targets(examples)
        batches = data.image_classify(
            images, truth, self.model.image_processor, labels=self.labels, batch=options.batch,
            seed=options.seed,
        )  # fmt: skip
        return self.balance(batches, truth, options)

    def call_options(self, **settings: Any) -> dict[str, Any]:
        return {"top_k": "best"} | super().call_options(**settings)


class ZeroShotImageClassification(Task):
    """p = softmax over the labels of e^s · cosine(image, text of the label)   (Radford et al. 2021 §3.1)"""

    heads = ("contrast",)
    needs = "a model that compares texts and images, such as CLIP"
    reads, fields = "images", ("image", "labels")

    def predict(
        self,
        images: Any,
        candidate_labels: str | Sequence[str] = (),
        *,
        hypothesis_template: str = TEMPLATE,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return [{"score", "label"}] of each image, the most likely label first.

        `candidate_labels` is a list, or a string with commas. Each is put into `hypothesis_template`, at {}.
        """
        names, hypotheses = label_hypotheses(candidate_labels, hypothesis_template)
        model = self.model
        assert isinstance(model, DualEncoder)
        reader = Task(self.task, model.text, self.tokenizer)
        texts = torch.stack(reader.forward(reader.tokenize(hypotheses), batch_size=batch_size))  # (C, P)

        @torch.inference_mode()
        def predict_batch(batch: list[Any]) -> list[Any]:
            vectors = forward_images(model.image, batch, batch_size)  # (B, P)
            logits = model.head.compare(vectors.to(model.device), texts.to(model.device)).cpu()
            rows = [zip(scores, names, strict=True) for scores in logits.softmax(-1).tolist()]
            ranked = [sorted(row, key=lambda pair: -pair[0]) for row in rows]
            return [[{"score": score, "label": name} for score, name in row] for row in ranked]

        return map_images(images, predict_batch, batch_size)
