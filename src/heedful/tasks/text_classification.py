"""text-classification: a label for a whole text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from heedful.checks import check_integer
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


def parse_text_pair(given: Any) -> str | tuple[str, str]:
    """A text, or two of them given as {"text": …, "text_pair": …}."""
    if isinstance(given, str):
        return given
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list) and len(given[0]) == 2:
        return given[0][0], given[0][1]  # how transformers once wrote a pair
    if not isinstance(given, Mapping) or "text" not in given:
        raise InputError(f'a text is a string, a pair {{"text": …, "text_pair": …}}; got {given!r:.60}')
    return given["text"] if given.get("text_pair") is None else (given["text"], given["text_pair"])


class TextClassification(Pipeline):
    """p = softmax(u) over the labels, u the logits of the classifying head.

    One label, or several that may hold at once (problem_type in config.json), are scored by a sigmoid each;
    a regression gives its number as it is.
    """

    heads = ("classify",)
    needs = "a head that labels a whole text (classify)"

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """[{"label", "score"}]: the best label of a text; with `top_k` the best few (None: all)."""
        found = super().__call__(*inputs, **options)
        # As in transformers, the answer to one text stands in a list unless this very call gives top_k.
        given = inputs[0] if inputs else options.get("inputs")
        return [found] if isinstance(given, str) and "top_k" not in rename_options(options) else found

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
        function = SCORE_FUNCTIONS[self.usual() if function_to_apply is None else chosen(function_to_apply)]
        if top_k not in ("best", None):
            top_k = check_integer("top_k", top_k)
        names = self.model.label_names

        def ranked(logits: Tensor) -> Any:
            rows = [{"label": n, "score": s} for n, s in zip(names, function(logits).tolist(), strict=True)]
            if return_all_scores:
                return rows
            rows.sort(key=lambda row: -row["score"])
            return rows[0] if isinstance(top_k, str) else rows[:top_k]

        def answers(texts: list[Any]) -> list[Any]:
            pairs = [parse_text_pair(text) for text in texts]
            readings = tokenize_inputs(
                self.model, self.tokenizer, pairs, truncation=truncation, max_length=max_length
            )
            return [
                ranked(u)
                for u in forward_batches(self.model, self.tokenizer, readings, batch_size=batch_size)
            ]

        return map_inputs(inputs, answers, batch_size, (str, Mapping))

    def usual(self) -> str:
        """The function that turns this model's logits into scores."""
        problem = self.model.hf_config.get("problem_type")
        if problem == "regression":
            return "none"
        alone = problem == "multi_label_classification" or self.model.config.labels == 1
        return "sigmoid" if alone else "softmax"


def chosen(function: str) -> str:
    """A function by its name, in any case."""
    said = str(getattr(function, "value", function)).lower()  # transformers' own enumeration has values
    if said not in SCORE_FUNCTIONS:
        raise InputError(f"function_to_apply={function!r} is unknown; one of {', '.join(SCORE_FUNCTIONS)}")
    return said
