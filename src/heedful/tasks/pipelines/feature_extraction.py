"""feature-extraction: the hidden states of a text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import InputError
from heedful.tasks.model_inputs import BATCH_SIZE, map_inputs, smallest_limit, truncates, truncation_options
from heedful.tasks.task import Task
from heedful.weights.pooling import Pooling, pool


class FeatureExtraction(Task):
    """The last hidden states of every token, before any head; of an encoder-decoder its encoder's."""

    needs = "any model"

    def predict(
        self,
        inputs: Any,
        *,
        return_tensors: bool | str = False,
        tokenize_kwargs: Mapping[str, Any] | None = None,
        truncation: bool | str = False,
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return (1, T, D) of each text, as nested lists or with `return_tensors` as a tensor."""
        cut = truncation_options(truncation, max_length, tokenize_kwargs)

        def predict_batch(texts: list[str]) -> list[Any]:
            tokenized = self.tokenize(texts, **cut)
            vectors = self.forward(tokenized, self.encode, batch_size)
            tensors = [x[None, : len(r)] for r, x in zip(tokenized, vectors, strict=True)]
            return [x.clone() if return_tensors else x.tolist() for x in tensors]

        return map_inputs(inputs, predict_batch, batch_size)


# sentence-similarity: how near two texts are in meaning.


def sentence_vectors(
    task: Task,
    texts: Sequence[str],
    *,
    truncation: bool | str = True,
    max_length: int | None = None,
    batch_size: int = BATCH_SIZE,
) -> Tensor:
    """Return (N, D): a vector of length 1 per text, pooled as the checkpoint says, by default by the mean."""
    pooling = task.model.pooling or Pooling()
    limit = smallest_limit(max_length, pooling.length if truncates(truncation) else None)

    def pool_states(tokens: Tensor, valid: Tensor | None = None, **options: Any) -> Tensor:
        real = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        return pool(task.encode(tokens, valid=valid, **options), real, pooling)

    tokenized = task.tokenize(texts, truncation=truncation, max_length=limit)
    return F.normalize(torch.stack(task.forward(tokenized, pool_states, batch_size)), dim=-1)


def pair_texts(first: Sequence[Any], second: Any) -> list[tuple[Any, Any]]:
    """Return two lists as a list of pairs; raise InputError if their lengths differ."""
    if isinstance(second, str) or not isinstance(second, Collection) or len(first) != len(second):
        size = f"{len(second)}" if isinstance(second, (list, tuple)) else f"{second!r:.40}"
        raise InputError(
            f"the first texts are {len(first)} and the second {size}",
            hint="give the same number of first and second texts",
        )
    return list(zip(first, second, strict=True))
