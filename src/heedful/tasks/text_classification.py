"""text-classification: a label for a whole text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from heedful.checks import check_choice, check_integer
from heedful.errors import InputError
from heedful.tasks.common import (
    BATCH_SIZE,
    Pipeline,
    forward_batches,
    map_inputs,
    rename_options,
    tokenize_inputs,
)

SCORE_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "none": lambda logits: logits,
}


def parse_text_pair(example: Any) -> str | tuple[str, str]:
    """Return a text, or two of them for {"text": …, "text_pair": …}."""
    if isinstance(example, str):
        return example
    if (
        isinstance(example, list)
        and len(example) == 1
        and isinstance(example[0], list)
        and len(example[0]) == 2
    ):
        return example[0][0], example[0][1]  # as transformers once wrote a pair
    if not isinstance(example, Mapping) or "text" not in example:
        raise InputError(f'a text is a string, a pair {{"text": …, "text_pair": …}}; got {example!r:.60}')
    return example["text"] if example.get("text_pair") is None else (example["text"], example["text_pair"])


class TextClassification(Pipeline):
    """p = softmax(u) over the labels, u the logits of the classifying head.

    One label, or several that may hold at once (problem_type in config.json), are scored by a sigmoid each;
    a regression gives its number as it is.
    """

    heads = ("classify",)
    needs = "a head that labels a whole text (classify)"

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return [{"label", "score"}]: the best label of a text; with `top_k` the best few (None: all)."""
        found = super().__call__(*inputs, **options)
        # As in transformers, the answer to one text stands in a list unless this very call gives top_k.
        first = inputs[0] if inputs else options.get("inputs")
        return [found] if isinstance(first, str) and "top_k" not in rename_options(options) else found

    def predict(
        self,
        inputs: Any,
        *,
        top_k: int | str | None = "best",
        function_to_apply: str | None = None,
        return_all_scores: bool = False,
        truncation: bool | str = False,
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        name = self.default_function if function_to_apply is None else function_to_apply
        name = str(getattr(name, "value", name)).lower()  # transformers' own enumeration has values
        function = SCORE_FUNCTIONS[check_choice("function_to_apply", name, SCORE_FUNCTIONS)]
        if top_k not in ("best", None):
            top_k = check_integer("top_k", top_k)
        names = self.model.label_names

        def rank_labels(logits: Tensor) -> Any:
            rows = [{"label": n, "score": s} for n, s in zip(names, function(logits).tolist(), strict=True)]
            if return_all_scores:
                return rows
            rows.sort(key=lambda row: -row["score"])
            return rows[0] if isinstance(top_k, str) else rows[:top_k]

        def predict_batch(texts: list[Any]) -> list[Any]:
            pairs = [parse_text_pair(text) for text in texts]
            tokenized = tokenize_inputs(
                self.model, self.tokenizer, pairs, truncation=truncation, max_length=max_length
            )
            return [
                rank_labels(u)
                for u in forward_batches(self.model, self.tokenizer, tokenized, batch_size=batch_size)
            ]

        return map_inputs(inputs, predict_batch, batch_size, (str, Mapping))

    @property
    def default_function(self) -> str:
        """The name of the function that turns this model's logits into scores."""
        problem = self.model.hf_config.get("problem_type")
        if problem == "regression":
            return "none"
        sigmoid = problem == "multi_label_classification" or self.model.config.labels == 1
        return "sigmoid" if sigmoid else "softmax"
