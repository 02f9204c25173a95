"""What a feature of a dictionary stands for, seen from four sides.

A feature is a direction without a name. The tokens on which it is strongest suggest one, and the share of
tokens on which it is active says how special it is. Its direction, read by the model's own last norm and
head, makes some next tokens more likely and others less (Bricken et al. 2023). That is the direct effect
alone: a feature of an early layer acts mostly through the parts that read it, as `set_feature` shows.
Features with similar directions often share a meaning, or are one meaning split in two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.interp.activations import SOURCE_SIDE, Activations, Texts, content_tokens
from heedful.interp.inputs import Result, names_of, output_matrix, part_at
from heedful.interp.learn.dictionary import (
    Dictionary,
    FeatureExample,
    check_features,
    dictionary_activations,
    strongest_examples,
)
from heedful.interp.observe.lens import read_out
from heedful.interp.observe.prediction import predicts
from heedful.models.base import Model, Seq2Seq
from heedful.nn.block import SandwichBlock

BINS = 20  # of a histogram
# The stream, and what embeddings, layers and parts add to it; a norm's output is read and not added.
STREAM = re.compile(r"(\w*embed|\w+\.\d+)\.output|\w+\.\d+\.(input|after_\w+|(?!\w*norm\.)\w+\.output)")


@dataclass(frozen=True)
class FeatureDescription(Result):
    """One feature of a dictionary.

    `density` is the share of the `tokens` that were read on which it is active. The histogram of its
    activations above zero has `counts` between `edges`. `promoted` and `suppressed` are next tokens with what
    the direction alone adds to their logits, compared with the mean of all tokens. They are empty where the
    direction reaches no head. `neighbours` are the features with the greatest cosines.
    """

    feature: int
    tokens: int
    density: float
    examples: list[FeatureExample]
    edges: list[float]
    counts: list[int]
    promoted: list[tuple[str, float]]
    suppressed: list[tuple[str, float]]
    neighbours: list[tuple[int, float]]


@torch.no_grad()
def describe_features(
    model: Model, dictionary: Dictionary, texts: Texts | Activations, features: Sequence[int], *,
    count: int = 10, context: int = 6,
) -> list[FeatureDescription]:  # fmt: skip
    """Describe features by what they do on texts, and by their directions.

    In place of the texts it takes what `dictionary_activations` returned for them.
    """
    if not isinstance(texts, Activations):
        texts = dictionary_activations(model, dictionary, texts)
    kept = content_tokens(model, texts)
    examples = strongest_examples(model, texts, check_features(dictionary, features), count, context)
    directions = F.normalize(dictionary.decoder * dictionary.target_scale, dim=1)
    described = []
    for feature in features:
        active = texts.values[kept, feature]
        active = active[active > 0]
        edges, counts = Tensor(), Tensor()
        if len(active):
            counts, edges = torch.histogram(active, BINS, range=(0.0, float(active.max())))
        close = directions @ directions[feature]
        close[feature] = -torch.inf
        near = close.topk(min(count, len(close) - 1))
        logits = feature_logits(model, dictionary, feature)
        best, worst = (side.topk(min(count, len(logits))) for side in (logits, -logits))
        described.append(FeatureDescription(
            feature, int(kept.sum()), len(active) / max(1, int(kept.sum())), examples[feature],
            edges.tolist(), counts.int().tolist(),
            list(zip(names_of(model, best.indices), best.values.tolist(), strict=True)),
            list(zip(names_of(model, worst.indices), (-worst.values).tolist(), strict=True)),
            list(zip(near.indices.tolist(), near.values.tolist(), strict=True)),
        ))  # fmt: skip
    return described


@torch.no_grad()
def feature_logits(model: Model, dictionary: Dictionary, feature: int) -> Tensor:
    """head(norm(d)) − head(norm(0)) for the direction d of a feature, less its mean over the tokens: (V,).

    The direction of heads is what the output matrix makes of it. Empty where the feature writes to something
    else than the stream that the head reads, such as queries or outputs of a norm.
    """
    target = dictionary.config.targets[-1]
    direction = dictionary.direction(feature).chunk(len(dictionary.config.targets))[-1].to(model.device)
    source_side = isinstance(model, Seq2Seq) and target.startswith(SOURCE_SIDE)
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())  # weights may be of 8 bits
    vectors = torch.stack((direction, torch.zeros_like(direction)))[None].to(dtype)  # (1, 2, D)
    if target.endswith(".heads"):  # which a matrix writes to the stream, if nothing stands between them
        path = target.removesuffix(".heads")
        matrix, block = output_matrix(model, path), part_at(model, path.rpartition(".")[0])
        if matrix is None or part_at(model, path).pattern_leaves_out or isinstance(block, SandwichBlock):
            return torch.zeros(0)
        vectors = matrix(vectors)
        vectors = vectors - vectors[:, 1:]  # without its bias
    elif not STREAM.fullmatch(target):
        return torch.zeros(0)
    if predicts(model) != "words" or vectors.shape[-1] != model.config.dim or source_side:
        return torch.zeros(0)
    logits = read_out(model, vectors)[0].float().cpu()
    change = logits[0] - logits[1]
    return change - change.mean()
