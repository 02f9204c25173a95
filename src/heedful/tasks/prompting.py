"""Few-shot prompting: examples in, a prompt out; a label or a text back   (Brown et al. 2020 §2)

print(few_shot([("great fun", "good"), ("a bore", "bad")], "I loved it", "Is the review good or bad?"))
FewShot("smollm2-135m-instruct", examples, labels=["good", "bad"])("I loved it")["label"]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.core.errors import InputError
from heedful.decode.loop import generate
from heedful.models.base import Model
from heedful.tasks.likelihood import By, rank
from heedful.tasks.model_cache import open_model

Example = Sequence[str] | Mapping[str, str]


def few_shot(
    examples: Iterable[Example],
    query: str,
    instruction: str | None = None,
    *,
    names: tuple[str, str] = ("Text", "Answer"),
    between: str = "\n\n",
) -> str:
    """Return instruction, examples and query as one text that ends where the answer begins.

    An example is a pair, or a mapping of two values in their order: {"text": …, "label": …}. `names` go
    before the two, `between` stands between examples. Without examples the prompt is zero-shot.
    """
    if not isinstance(query, str) or not query.strip():
        raise InputError(f"the query must be a text that is not empty; got {query!r}")
    if isinstance(names, str) or len(names) != 2:
        raise InputError(f"names must be two texts, that of the text and that of the answer; got {names!r}")
    text_name, answer_name = names
    shown = [f"{text_name}: {text}\n{answer_name}: {answer}" for text, answer in parse_examples(examples)]
    parts = [*([instruction] if instruction else []), *shown, f"{text_name}: {query}\n{answer_name}:"]
    return between.join(parts)


def parse_examples(examples: Iterable[Example]) -> list[tuple[str, str]]:
    """Return the text and the answer of every example; of a mapping from texts to answers its items."""
    items = examples.items() if isinstance(examples, Mapping) else examples
    if not isinstance(items, Iterable):
        raise InputError(f"examples must be a list of pairs of a text and its answer; got {items!r:.60}")
    return [parse_example(i, example) for i, example in enumerate(items)]


def parse_example(number: int, example: Example) -> tuple[str, str]:
    """Return the text and the answer of an example; raise InputError if it has not two texts."""
    values = list(example.values()) if isinstance(example, Mapping) else list(example)
    if isinstance(example, str) or len(values) != 2 or not all(isinstance(v, str) and v for v in values):
        raise InputError(
            f"example {number} is {example!r:.60}", hint="an example is a text and its answer, both texts"
        )
    return values[0], values[1]


class FewShot:
    """A model that learns its task from examples in the prompt. It chooses one of `labels`, or writes.

    A label's probability is that of its text after the prompt, shared out among all labels; `by="mean"` does
    not hold a long name against a label.
    """

    def __init__(
        self,
        model: Model | str | Path,
        examples: Iterable[Example],
        labels: Sequence[str] | None = None,
        *,
        instruction: str | None = None,
        names: tuple[str, str] = ("Text", "Answer"),
        by: By = "total",
        **settings: Any,
    ) -> None:
        self.examples, self.instruction, self.names = parse_examples(examples), instruction, names
        self.labels, self.by, self.settings = labels, by, settings
        answers = [answer for _, answer in self.examples]
        if labels is not None:
            if isinstance(labels, str) or len(set(labels)) < 2:
                raise InputError(f"labels must be at least two different texts; got {labels!r}")
            if unknown := [a for a in answers if a not in labels]:
                raise InputError(f"an example is answered {unknown[0]!r}, which is none of {list(labels)}")
        self.model = open_model(model)

    def prompt(self, query: str) -> str:
        """Return the prompt of a query."""
        return few_shot(self.examples, query, self.instruction, names=self.names)

    def __call__(self, query: str | Sequence[str]) -> Any:
        """Return {"label", "score", "scores"} if there are labels, else the text; a list for a list."""
        if not isinstance(query, str):
            return [self(one) for one in query]
        if self.labels is None:
            # The next example would begin after a line end, and the model would write it.
            settings: dict[str, Any] = {"max_tokens": 64, "stop": ["\n"]} | self.settings
            return generate(self.model, self.prompt(query), **settings).strip()
        rows = rank(self.model, self.prompt(query), [f" {label}" for label in self.labels], by=self.by)
        scores = {row["text"][1:]: row["probability"] for row in rows}
        best = next(iter(scores))
        return {"label": best, "score": scores[best], "scores": scores}
