"""zero-shot-classification: labels that the model was never trained on, given with the question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.errors import InputError
from heedful.models.base import Model
from heedful.tasks.common import (
    BATCH_SIZE,
    Pipeline,
    forward_batches,
    map_inputs,
    tokenize_inputs,
    truncates,
)
from heedful.tasks.sentence_similarity import sentence_vectors

# What sentence encoders multiply cosines with in the softmax they are trained with. On topics, sentiment and
# emotions it also gives the right label a higher likelihood than 10 or 30 do, or nearly so.
COSINE_SCALE = 20.0

# By the kind of head. The first is transformers' own; cosines are better with the subject named as such.
TEMPLATES = {"classify": "This example is {}.", "none": "This text is about {}."}


@dataclass(frozen=True)
class Hypotheses:
    """Hypotheses, one for each label; that of no label; whether each label is judged alone; how to read."""

    hypotheses: list[str]
    blank: str
    alone: bool
    truncation: Any
    batch_size: int


class ZeroShot(Pipeline):
    """Each label becomes a hypothesis and is judged beside the text.

    By a classifier of entailment (Yin et al. 2019): p = softmax over the labels of the logit of "entailment"
    of (text, hypothesis); with `multi_label` softmax over "entailment" and "contradiction" for each label.

    By a sentence encoder, if the model has no classifying head: p = softmax over the labels of
    20 · cos(text, hypothesis), the very softmax such encoders are trained with; with `multi_label` each label
    stands against the hypothesis of none, σ(20 · (cos(text, hypothesis) − cos(text, empty template))).
    It knows topics well and negation badly: a label and its opposite are near each other.
    """

    heads = ("classify", "none")
    needs = "a classifier of entailment (classify) or a sentence encoder (no head)"

    @classmethod
    def fits(cls, model: Model) -> bool:
        """A classifier must have a class of entailment among its labels."""
        return super().fits(model) and (model.config.head == "none" or entailment_class(model) is not None)

    @property
    def equation(self) -> str:
        if self.model.config.head == "classify":
            return "softmax over the labels of the logit of entailment of (text, hypothesis)"
        return (
            f"softmax over the labels of {COSINE_SCALE:.0f} · cosine(text, hypothesis) of a sentence encoder"
        )

    def predict(
        self,
        sequences: Any,
        candidate_labels: str | Sequence[str] = (),
        *,
        hypothesis_template: str | None = None,
        multi_label: bool = False,
        truncation: bool | str = "only_first",
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """{"sequence", "labels", "scores"}, the likeliest label first; a list of them for a list of texts.

        `candidate_labels` is a list, or a string with commas. `hypothesis_template` None is the sentence that
        suits the kind of model, TEMPLATES. Of a long text the end is cut and reported.
        """
        named, template = (
            parse_labels(candidate_labels),
            hypothesis_template or TEMPLATES[self.model.config.head],
        )
        hypotheses = [_hypothesis(template, label) for label in named]
        alone = multi_label or len(named) == 1
        asked = Hypotheses(hypotheses, _hypothesis(template, ""), alone, truncation, batch_size)
        judge = self.entailed if self.model.config.head == "classify" else self.near

        def answers(texts: list[str]) -> list[dict[str, Any]]:
            if "" in texts:
                raise InputError(f"input {texts.index('')} is empty", hint="give a text to be judged")
            p = judge(texts, asked)  # (texts, labels)
            return [_ranked(text, named, row) for text, row in zip(texts, p, strict=True)]

        return map_inputs(sequences, answers, batch_size)

    def entailed(self, texts: list[str], asked: Hypotheses) -> Tensor:
        """By a classifier of entailment."""
        pairs = [(text, hypothesis) for text in texts for hypothesis in asked.hypotheses]
        readings = tokenize_inputs(self.model, self.tokenizer, pairs, truncation=asked.truncation)
        logits = torch.stack(
            forward_batches(self.model, self.tokenizer, readings, batch_size=asked.batch_size)
        )
        logits = logits.unflatten(0, (len(texts), len(asked.hypotheses)))
        yes = entailment_class(self.model)
        assert yes is not None
        no = -1 if yes == 0 else 0  # where every published classifier of entailment keeps contradiction
        return logits[..., [no, yes]].softmax(-1)[..., 1] if asked.alone else logits[..., yes].softmax(-1)

    def near(self, texts: list[str], asked: Hypotheses) -> Tensor:
        """By the cosines of a sentence encoder."""
        given, cut = [*texts, *asked.hypotheses, asked.blank], truncates(asked.truncation)
        x = sentence_vectors(self.model, self.tokenizer, given, truncation=cut, batch_size=asked.batch_size)
        cosines = x[: len(texts)] @ x[len(texts) :].T * COSINE_SCALE
        if asked.alone:
            return (cosines[:, :-1] - cosines[:, -1:]).sigmoid()
        return cosines[:, :-1].softmax(-1)


def entailment_class(model: Model) -> int | None:
    """The class of entailment among a model's labels."""
    named = (i for i, name in enumerate(model.label_names) if name.lower().startswith("entail"))
    return next(named, None)


def parse_labels(candidates: str | Sequence[str]) -> list[str]:
    if isinstance(candidates, str):
        named = [label.strip() for label in candidates.split(",")]
    else:
        named = list(candidates) if isinstance(candidates, Iterable) else []
    if any(named) and all(isinstance(label, str) for label in named):
        return [label for label in named if label]
    raise InputError(f"candidate_labels must name at least one label, each a text; got {candidates!r:.60}")


def _hypothesis(template: str, label: str) -> str:
    try:
        made = template.format(label)
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        raise InputError(f"hypothesis_template={template!r} cannot be filled in ({error})") from None
    if made == template:
        raise InputError(f"hypothesis_template={template!r} has no {{}} where the label goes")
    return made


def _ranked(text: str, named: Sequence[str], scores: Tensor) -> dict[str, Any]:
    order = scores.argsort(descending=True, stable=True).tolist()
    return {
        "sequence": text,
        "labels": [named[i] for i in order],
        "scores": [float(scores[i]) for i in order],
    }
