"""How good a dictionary is, and what its features stand for: tokens in context on which each is strongest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.interp.activations import Activations, Texts, collect_activations, content_tokens, mean_loss
from heedful.interp.dictionary import Dictionary, dictionary_activations, replace_value
from heedful.interp.inputs import names_of
from heedful.interp.results import Result
from heedful.models.base import Model
from heedful.nn.context import Watch


@dataclass(frozen=True)
class DictionaryScores(Result):
    """Measures of what a dictionary keeps of a value, on unseen texts. Losses are in nats a token."""

    also = ("loss_recovered", "loss_recovered_from_mean")

    l0: float  # features a token uses
    variance_explained: float
    dead: float  # share of features that no token uses
    loss: float
    loss_replaced: float  # with what the dictionary makes of the value in its place
    loss_zero: float  # with zero in its place
    loss_mean: float  # with its mean

    @property
    def loss_recovered(self) -> float:
        """(L_zero − L_replaced) / (L_zero − L): 1 if nothing is lost."""
        return (self.loss_zero - self.loss_replaced) / (self.loss_zero - self.loss)

    @property
    def loss_recovered_from_mean(self) -> float:
        """The share of the loss recovered beside the value's mean in place of zero, which is stricter."""
        return (self.loss_mean - self.loss_replaced) / (self.loss_mean - self.loss)


@torch.no_grad()
def score_dictionary(
    model: Model, dictionary: Dictionary, texts: Texts, *, max_length: int = 256
) -> DictionaryScores:
    """Return how sparse a dictionary is and what a model loses that computes with it."""
    config = dictionary.config
    names = list(dict.fromkeys((config.source, config.target)))
    found = collect_activations(model, texts, names, max_length=max_length)
    keep = content_tokens(model, found[config.source])
    keep &= found[config.source].values.norm(dim=1) <= float(dictionary.outlier)
    x, y = (found[name].values[keep].to(dictionary.decoder.device) for name in (config.source, config.target))
    f = torch.cat([dictionary.encode(rows) for rows in x.split(4096)])
    error = (dictionary.decode(f) - y).square().sum()
    middle = dictionary.target_mean

    def flat(value: Tensor) -> Tensor:
        return middle.to(value.dtype).expand_as(value) if value.shape[-1] == len(middle) else value * 0

    loss = lambda watch: mean_loss(model, texts, watch, max_length=max_length)
    return DictionaryScores(
        float((f > 0).float().sum(1).mean()), float(1 - error / (y - y.mean(0)).square().sum()),
        float((f == 0).all(0).float().mean()), loss(None), loss(replace_value(dictionary)),
        loss(Watch(edit={config.target: torch.zeros_like})), loss(Watch(edit={config.target: flat})),
    )  # fmt: skip


@dataclass(frozen=True)
class FeatureExample(Result):
    """A token on which a feature is strong, with those around it."""

    feature: int
    activation: float
    before: tuple[str, ...]
    token: str
    after: tuple[str, ...]
    text: int  # the number of the text
    position: int


def feature_examples(
    model: Model, dictionary: Dictionary, texts: Texts, features: Sequence[int] | None = None, *,
    count: int = 8, context: int = 6,
) -> dict[int, list[FeatureExample]]:  # fmt: skip
    """Return the tokens on which each feature is strongest, in context; by default of the ten strongest."""
    found = dictionary_activations(model, dictionary, texts)
    values = torch.where(content_tokens(model, found)[:, None], found.values, 0.0)
    if features is None:
        features = values.amax(0).topk(min(10, values.shape[1])).indices.tolist()
    out: dict[int, list[FeatureExample]] = {}
    for feature in features:
        best = values[:, feature].topk(min(count, len(values)))
        rows = [(int(i), float(a)) for i, a in zip(best.indices, best.values, strict=True) if float(a) > 0]
        out[feature] = [_example(model, found, feature, i, a, context) for i, a in rows]
    return out


def _example(
    model: Model, found: Activations, feature: int, row: int, activation: float, context: int
) -> FeatureExample:
    own = (found.text == found.text[row]).nonzero()[:, 0]  # the rows of the text stand in order
    at = int((own == row).nonzero()[0, 0])
    names = names_of(model, found.ids[own[max(0, at - context) : at + context + 1]])
    middle = min(at, context)
    before, after = names[:middle], names[middle + 1 :]
    number, position = int(found.text[row]), int(found.position[row])
    return FeatureExample(feature, activation, before, names[middle], after, number, position)
