"""zero-shot-classification: labels that the model was never trained on, given with the question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.models.base import Model
from heedful.tasks.model_inputs import BATCH_SIZE, map_inputs, truncates
from heedful.tasks.sentence_similarity import sentence_vectors
from heedful.tasks.task import Task

# What sentence encoders multiply cosines with in the softmax they are trained with. On topics, sentiment and
# emotions it also gives the right label a higher likelihood than 10 or 30 do, or nearly so.
COSINE_SCALE = 20.0

# By the kind of head. The first is transformers' own; cosines are better with the subject named as such.
TEMPLATES = {"classify": "This example is {}.", "none": "This text is about {}."}


class ZeroShot(Task):
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
    fields = ("text", "labels")

    @classmethod
    def fits(cls, model: Model) -> bool:
        """Return whether it is a sentence encoder, or a classifier with a class of entailment."""
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
        """Return {"sequence", "labels", "scores"}, the likeliest label first; a list for a list.

        `candidate_labels` is a list, or a string with commas. `hypothesis_template` None is the sentence that
        suits the kind of model, TEMPLATES. Of a long text the end is cut and reported.
        """
        names = parse_labels(candidate_labels)
        template = hypothesis_template or TEMPLATES[self.model.config.head]
        hypotheses = [_fill_template(template, name) for name in names]
        independent = multi_label or len(names) == 1  # each label is judged alone
        by_entailment = self.model.config.head == "classify"
        judge = self.entailment_scores if by_entailment else self.cosine_scores
        blank = [] if by_entailment else [_fill_template(template, "")]

        def predict_batch(texts: list[str]) -> list[dict[str, Any]]:
            if "" in texts:
                raise InputError(f"input {texts.index('')} is empty", hint="give a text to be judged")
            found = []
            judged = judge(texts, [*hypotheses, *blank], independent, truncation, batch_size)
            for text, scores in zip(texts, judged, strict=True):  # (labels,) for each text
                order = scores.argsort(descending=True, stable=True).tolist()
                ranked = {"labels": [names[i] for i in order], "scores": [float(scores[i]) for i in order]}
                found.append({"sequence": text, **ranked})
            return found

        return map_inputs(sequences, predict_batch, batch_size)

    def entailment_scores(
        self, texts: list[str], hypotheses: list[str], independent: bool, truncation: Any, batch_size: int
    ) -> Tensor:
        """Return (texts, labels) by a classifier of entailment."""
        pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
        found = self.forward(self.tokenize(pairs, truncation=truncation), batch_size=batch_size)
        logits = torch.stack(found).unflatten(0, (len(texts), len(hypotheses)))
        yes = entailment_class(self.model)
        assert yes is not None
        no = -1 if yes == 0 else 0  # where every published classifier of entailment keeps contradiction
        return logits[..., [no, yes]].softmax(-1)[..., 1] if independent else logits[..., yes].softmax(-1)

    def cosine_scores(
        self, texts: list[str], hypotheses: list[str], independent: bool, truncation: Any, batch_size: int
    ) -> Tensor:
        """Return (texts, labels) by the cosines of a sentence encoder; the last hypothesis is of none."""
        x = sentence_vectors(
            self, [*texts, *hypotheses], truncation=truncates(truncation), batch_size=batch_size
        )
        cosines = x[: len(texts)] @ x[len(texts) :].T * COSINE_SCALE
        labels, none = cosines[:, :-1], cosines[:, -1:]
        return (labels - none).sigmoid() if independent else labels.softmax(-1)


def entailment_class(model: Model) -> int | None:
    """Return the number of the class of entailment among a model's labels, or None."""
    named = (i for i, name in enumerate(model.label_names) if name.lower().startswith("entail"))
    return next(named, None)


def parse_labels(candidates: str | Sequence[str]) -> list[str]:
    """Return the labels of a list, or of a string with commas."""
    if isinstance(candidates, str):
        names = [label.strip() for label in candidates.split(",")]
    else:
        names = list(candidates) if isinstance(candidates, Iterable) else []
    if any(names) and all(isinstance(label, str) for label in names):
        return [label for label in names if label]
    raise InputError(f"candidate_labels must name at least one label, each a text; got {candidates!r:.60}")


def _fill_template(template: str, label: str) -> str:
    try:
        made = template.format(label)
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        raise InputError(f"hypothesis_template={template!r} cannot be filled in ({error})") from None
    if made == template:
        raise InputError(f"hypothesis_template={template!r} has no {{}} where the label goes")
    return made
