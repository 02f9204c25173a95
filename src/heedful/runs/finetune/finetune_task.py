"""What the fine-tuning tasks share: examples of a file, validation rows, a head, batches, scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from heedful.data.batches import Batches, seeded_generator
from heedful.decode.request import context_length
from heedful.errors import InputError
from heedful.loading import with_head
from heedful.models.base import LM, Model
from heedful.runs.finetune.input_files import InputFile
from heedful.train.objectives import Objective

VALIDATION_SHARE = 0.1  # of the examples, without --valid
MIN_VALIDATION_ROWS = 100  # of a small file a fifth, up to so many: fewer would tell little
MAX_VALIDATION_ROWS = 2000  # more would only take time
SPLIT_SEED = 0x5EED  # tells the draw of held-out examples from that of batches
MAX_CHARACTERS_PER_TOKEN = 64  # characters: no text needs more than that for each token that is read


@dataclass(frozen=True)
class Examples:
    """The examples of one file, the line or row each stands on, and notes for the user."""

    items: Sequence[Any]
    locations: Sequence[str]
    columns: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def select(self, index: Sequence[int]) -> Examples:
        """Return the examples at these indices."""
        return replace(
            self, items=[self.items[i] for i in index], locations=[self.locations[i] for i in index], notes=()
        )


@dataclass(frozen=True)
class Defaults:
    """Settings that give good results without a flag."""

    lr: float
    lora_lr: float
    epochs: int
    length: int
    batch: int = 32
    steps: int = 200  # at least so many, so that a small file is read often enough
    most_epochs: int = 20


@dataclass(frozen=True)
class BatchSettings:
    """The length of rows, rows per batch, and the seed."""

    length: int
    batch: int
    seed: int

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords that all builders of batches share; long texts are cut."""
        return {"length": self.length, "batch": self.batch, "seed": self.seed, "truncate": True}


class FinetuneTask(ABC):
    """A task that a model can be fine-tuned for on a file."""

    name: ClassVar[str]
    pipeline: ClassVar[str]  # what `heedful.pipeline` calls it
    head: ClassVar[str]
    metric: ClassVar[str]  # the score that training stops on
    highest: ClassVar[bool] = True
    by_loss: ClassVar[bool] = False  # whether the scores under way follow from the loss
    what: ClassVar[str] = "rows"
    cuts: ClassVar[bool] = True  # whether long texts are cut; else they are read in windows
    defaults: Defaults  # a task may change it by what it sees in a file

    @abstractmethod
    def read(self, source: InputFile, column_flags: dict[str, str | None]) -> Examples:
        """Return the examples of a file."""

    def split_validation(self, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        """Return training and validation examples, and how they were split."""
        count = validation_count(len(examples))
        order = seeded_generator(seed, SPLIT_SEED).permutation(len(examples)).tolist()
        held = sorted(order[:count])
        rest = sorted(order[count:])
        return examples.select(rest), examples.select(held), "drawn at random"

    def prepare(self, train: Examples, valid: Examples) -> None:  # noqa: B027
        """Raise InputError if nothing can be learnt from both parts: unknown labels, one class only …"""

    @abstractmethod
    def texts(self, examples: Examples) -> list[str]:
        """Return all text of every example, to measure its length."""

    def facts(self, train: Examples, valid: Examples) -> dict[str, Any]:
        """Return facts about the examples beside their number: labels and how often each occurs."""
        return {}

    def check(self, model: Model) -> None:
        """Raise InputError for a model that cannot learn this task."""
        if self.head not in model.family.heads or not isinstance(model, LM):
            raise InputError(
                f"a {model.family.name} model has no {self.head!r} head, which {self.name} needs",
                hint="take an encoder, such as all-minilm-l6-v2",
            )

    def attach_head(self, model: Model, seed: int) -> tuple[Model, str]:
        """Return the model with the head that the task needs, and a description of that head."""
        return with_new_head(model, self.head, None, seed), "a new head"

    def trained_whole(self) -> tuple[str, ...]:
        """Return the parameters that are trained in full beside a LoRA adapter."""
        return ("head.*",)

    @abstractmethod
    def batches(self, examples: Examples, model: Model, batching: BatchSettings) -> Batches:
        """Return the batches of the examples."""

    @property
    @abstractmethod
    def objective(self) -> str | Objective:
        """The training objective."""

    @abstractmethod
    def score(self, model: Model, examples: Examples, batches: Batches, loss: float | None) -> dict[str, Any]:
        """Return the scores during training; `loss` is that of the same batches, where known."""

    def final_scores(
        self, model: Model, examples: Examples, batches: Batches, batching: BatchSettings
    ) -> dict[str, Any]:
        """Return scores of the finished model that would cost too much during training."""
        return {}

    def finish(self, model: Model) -> None:  # noqa: B027
        """Set what the checkpoint's config says about the task."""


def with_new_head(model: Model, head: str, labels: Sequence[str] | None, seed: int) -> Model:
    """Return the trained body with a new head. It gives sentence vectors no more."""
    made = with_head(model, head, labels, seed=seed).to(model.device)
    made.pooling = None
    return made


def validation_count(count: int) -> int:
    """Return how many of the examples validate."""
    if count < 3:
        many = "1 example is" if count == 1 else f"{count} examples are"
        raise InputError(
            f"{many} too few to learn from and to hold some out", hint="give 3 or more, or --valid FILE"
        )
    return min(
        max(
            1, round(count * VALIDATION_SHARE), min(MIN_VALIDATION_ROWS, round(count * 2 * VALIDATION_SHARE))
        ),
        MAX_VALIDATION_ROWS,
    )


def split_by_label(labels: Sequence[Hashable], seed: int) -> tuple[list[int], list[int]]:
    """Return training and validation indices, every label in proportion; one that occurs once trains."""
    count = validation_count(len(labels))
    order = seeded_generator(seed, SPLIT_SEED).permutation(len(labels)).tolist()
    total = Counter(labels)
    share = {label: count * n / len(labels) for label, n in total.items()}
    room = {
        label: min(int(s + 0.5), n - 1) for (label, n), s in zip(total.items(), share.values(), strict=True)
    }
    if not any(room.values()):  # many rare labels: one each of the most frequent
        room |= {label: 1 for label, n in total.most_common(count) if n > 1}
    held = []
    for i in order:
        if room[labels[i]] > 0:
            room[labels[i]] -= 1
            held.append(i)
    if not held:
        raise InputError(
            "every class has one row only, so that none can be held out to measure by",
            hint="give two rows of a class or more, or --valid FILE",
        )
    kept = set(held)
    return sorted(set(range(len(labels))) - kept), sorted(kept)


def count_values(values: Sequence[Hashable]) -> dict[str, int]:
    """Return how often each value occurs, the most frequent first."""
    return {str(name): n for name, n in Counter(values).most_common()}


def limit_characters(texts: Sequence[str], length: int) -> list[str]:
    """Return texts without what lies far beyond the tokens that are read: a row may hold megabytes."""
    limit = MAX_CHARACTERS_PER_TOKEN * length
    return [text if len(text) <= limit else text[:limit] for text in texts]


def max_input_length(model: Model) -> int:
    """Return the longest input of a model, in tokens."""
    own = context_length(model, source=True)
    pooled = model.pooling.length if model.pooling is not None else None
    return min(n for n in (own, pooled, 1 << 30) if n is not None)


def count_tokens(texts: Sequence[str], model: Model, length: int) -> tuple[np.ndarray[Any, Any], int]:
    """Return the tokens of every text, and how many texts were too long to be counted whole."""
    cut = limit_characters(texts, length)
    ids = model.tokenizer.encode_all(cut, special=False)
    return np.array([len(row) for row in ids]), sum(
        a is not b and len(a) != len(b) for a, b in zip(texts, cut, strict=True)
    )
