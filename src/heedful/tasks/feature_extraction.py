"""feature-extraction: the hidden states of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.tasks.model_inputs import BATCH_SIZE, map_inputs, truncation_options
from heedful.tasks.task import Task


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
            found = self.forward(tokenized, self.encode, batch_size)
            tensors = [x[None, : len(r)] for r, x in zip(tokenized, found, strict=True)]
            return [x.clone() if return_tensors else x.tolist() for x in tensors]

        return map_inputs(inputs, predict_batch, batch_size)
