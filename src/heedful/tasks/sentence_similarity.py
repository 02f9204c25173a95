"""sentence-similarity: how near two texts are in meaning."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import InputError
from heedful.models.base import Model
from heedful.pooling import Pooling, pool
from heedful.tasks.common import (
    BATCH_SIZE,
    Pipeline,
    encode_function,
    forward_batches,
    map_inputs,
    tokenize_inputs,
    truncates,
)
from heedful.text import Tokenizer


def sentence_vectors(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    truncation: bool | str = True,
    batch_size: int = BATCH_SIZE,
) -> Tensor:
    """Return (N, D): a vector of length 1 per text, pooled as the checkpoint says, by default by the mean."""
    pooling, encode = model.pooling or Pooling(), encode_function(model)
    tokenized = tokenize_inputs(
        model,
        tokenizer,
        texts,
        truncation=truncation,
        max_length=pooling.length if truncates(truncation) else None,
    )

    def pool_states(tokens: Tensor, valid: Tensor | None = None, **options: Any) -> Tensor:
        real = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        return pool(encode(tokens, valid=valid, **options), real, pooling)

    return F.normalize(
        torch.stack(forward_batches(model, tokenizer, tokenized, pool_states, batch_size)), dim=-1
    )


def pair_texts(first: Sequence[Any], second: Any) -> list[tuple[Any, Any]]:
    """Return two lists as a list of pairs; raise InputError if their lengths differ."""
    if isinstance(second, str) or not isinstance(second, Collection) or len(first) != len(second):
        size = f"{len(second)}" if isinstance(second, (list, tuple)) else f"{second!r:.40}"
        raise InputError(
            f"the first texts are {len(first)} and the second {size}", hint="give as many of both"
        )
    return list(zip(first, second, strict=True))


class SentenceSimilarity(Pipeline):
    """cos(a, b) = a·b / |a||b| of the pooled vectors of two texts, from −1 to 1

    A text longer than the encoder was made for is read to there, and the rest reported.
    """

    needs = "any model that encodes text"

    def predict(
        self, first: Any, second: Any = None, *, truncation: bool | str = True, batch_size: int = BATCH_SIZE
    ) -> Any:
        """Return for {"source_sentence": …, "sentences": […]} a cosine for each sentence.

        Called with two texts: one float; with a text and a list: a list of floats; with two lists: one float
        for each pair.
        """
        embed = lambda texts: sentence_vectors(
            self.model, self.tokenizer, texts, truncation=truncation, batch_size=batch_size
        )

        def score_request(request: Any) -> list[float]:
            if not isinstance(request, Mapping) or not {"source_sentence", "sentences"} <= set(request):
                raise InputError(
                    (
                        'sentence-similarity takes {"source_sentence": …, "sentences": […]} or two texts; '
                        f"got {request!r:.60}"
                    ),
                )
            return score_all(request["source_sentence"], request["sentences"])

        def score_all(source: str, sentences: Sequence[str]) -> list[float]:
            if isinstance(sentences, str) or not isinstance(sentences, Iterable):
                raise InputError(f"sentences must be a list of texts; got {sentences!r:.60}")
            found = embed([source, *sentences])
            return (found[1:] @ found[0]).clamp(-1, 1).tolist()

        if second is None:
            return map_inputs(
                first, lambda requests: [score_request(r) for r in requests], batch_size, (Mapping, str)
            )
        if isinstance(first, str):
            return score_all(first, [second])[0] if isinstance(second, str) else score_all(first, second)
        pairs = pair_texts(first, second)
        if not pairs:
            return []
        found = embed([text for pair in pairs for text in pair]).unflatten(0, (len(pairs), 2))
        return (found[:, 0] * found[:, 1]).sum(-1).clamp(-1, 1).tolist()
