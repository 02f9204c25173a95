"""What the tasks share: examples read from a file, a part held out, a head, batches, scores."""

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
from heedful.runs.finetune.inspecting import Source
from heedful.train.objectives import Objective

HELD = 0.1  # of the examples, if no file to validate on is given
FEW = 100  # of a small file a fifth, up to so many: fewer would tell little
MOST = 2000  # more would only take time
SPLIT = 0x5EED  # tells the draw of held-out examples from that of batches
PER_TOKEN = 64  # characters: no text needs more than that for each token that is read


@dataclass(frozen=True)
class Examples:
    """What was read of one file: the examples, where each stands, and what is worth saying."""

    items: Sequence[Any]
    places: Sequence[str]
    columns: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def some(self, index: Sequence[int]) -> Examples:
        """A part of them."""
        return replace(
            self, items=[self.items[i] for i in index], places=[self.places[i] for i in index], notes=()
        )


@dataclass(frozen=True)
class Defaults:
    """What gives good results without a flag."""

    lr: float
    lora_lr: float
    epochs: int
    length: int
    batch: int = 32
    steps: int = 200  # at least so many, so that a small file is read often enough
    most_epochs: int = 20


@dataclass(frozen=True)
class Reading:
    """How examples become batches."""

    length: int
    batch: int
    seed: int


class Task(ABC):
    """One thing that can be learnt from a file."""

    name: ClassVar[str]
    pipeline: ClassVar[str]  # what `heedful.pipeline` calls it
    head: ClassVar[str]
    metric: ClassVar[str]  # the score that training stops on
    highest: ClassVar[bool] = True
    by_loss: ClassVar[bool] = False  # whether the scores under way follow from the loss
    what: ClassVar[str] = "rows"
    cuts: ClassVar[bool] = True  # whether long texts are cut; else they are read in windows
    usual: Defaults  # a task may change it by what it sees in a file

    @abstractmethod
    def read(self, source: Source, given: dict[str, str | None]) -> Examples:
        """The examples of a file."""

    def held_out(self, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        """Training and validation examples, and how they were parted."""
        count = wanted(len(examples))
        order = seeded_generator(seed, SPLIT).permutation(len(examples)).tolist()
        held = sorted(order[:count])
        rest = sorted(order[count:])
        return examples.some(rest), examples.some(held), "drawn at random"

    def prepare(self, train: Examples, valid: Examples) -> None:  # noqa: B027
        """Look at both parts: labels that differ, one class only … Raises what is wrong with them."""

    @abstractmethod
    def texts(self, examples: Examples) -> list[str]:
        """All text of every example, to measure its length."""

    def facts(self, train: Examples, valid: Examples) -> dict[str, Any]:
        """What is worth saying about the examples beside their number: labels and how often each occurs."""
        return {}

    def check(self, model: Model) -> None:
        """An error for a model that cannot learn this."""
        if self.head not in model.family.heads or not isinstance(model, LM):
            raise InputError(
                f"a {model.family.name} model has no {self.head!r} head, which {self.name} needs; "
                "take an encoder, such as all-minilm-l6-v2"
            )

    def dress(self, model: Model, seed: int) -> tuple[Model, str]:
        """The model under the head that the task needs, and what was done."""
        return headed(model, self.head, None, seed), "a new head"

    def trained_whole(self) -> tuple[str, ...]:
        """What learns in full beside a LoRA adapter."""
        return ("head.*",)

    @abstractmethod
    def batches(self, examples: Examples, model: Model, how: Reading) -> Batches:
        """What `fit` takes."""

    @property
    @abstractmethod
    def objective(self) -> str | Objective:
        """What is learnt."""

    @abstractmethod
    def score(self, model: Model, examples: Examples, batches: Batches, loss: float | None) -> dict[str, Any]:
        """The scores that a model has under way; `loss` is that of the same batches, where known."""

    def final(self, model: Model, examples: Examples, batches: Batches, how: Reading) -> dict[str, Any]:
        """The scores of the finished model, where they cost more than is spent under way."""
        return {}

    def finish(self, model: Model) -> None:  # noqa: B027
        """What the checkpoint says beside its weights."""


def headed(model: Model, head: str, labels: Sequence[str] | None, seed: int) -> Model:
    """The trained body under a new head. It gives sentence vectors no more."""
    made = with_head(model, head, labels, seed=seed).to(model.device)
    made.pooling = None
    return made


def wanted(count: int) -> int:
    """How many of the examples validate."""
    if count < 3:
        many = "1 example is" if count == 1 else f"{count} examples are"
        raise InputError(
            f"{many} too few to learn from and to hold some out; give 3 or more, or --valid FILE"
        )
    return min(max(1, round(count * HELD), min(FEW, round(count * 2 * HELD))), MOST)


def in_proportion(labels: Sequence[Hashable], seed: int) -> tuple[list[int], list[int]]:
    """Training and validation indices, every label held out in proportion; one that occurs once trains."""
    count = wanted(len(labels))
    order = seeded_generator(seed, SPLIT).permutation(len(labels)).tolist()
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


def counted(values: Sequence[Hashable]) -> dict[str, int]:
    """How often each occurs, the most frequent first."""
    return {str(name): n for name, n in Counter(values).most_common()}


def shortened(texts: Sequence[str], length: int) -> list[str]:
    """Texts without what lies far beyond the tokens that are read: a row may hold megabytes."""
    limit = PER_TOKEN * length
    return [text if len(text) <= limit else text[:limit] for text in texts]


def reach(model: Model) -> int:
    """The longest input of a model, in tokens."""
    own = context_length(model, source=True)
    pooled = model.pooling.length if model.pooling is not None else None
    return min(n for n in (own, pooled, 1 << 30) if n is not None)


def measured(texts: Sequence[str], model: Model, length: int) -> tuple[np.ndarray[Any, Any], int]:
    """Tokens of every text, as far as they matter, and how many texts were too long to be counted whole."""
    cut = shortened(texts, length)
    ids = model.tokenizer.encode_all(cut, special=False)
    return np.array([len(row) for row in ids]), sum(
        a is not b and len(a) != len(b) for a, b in zip(texts, cut, strict=True)
    )
