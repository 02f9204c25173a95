"""Examples: what a task learns from or is measured on, and how some are held out for validation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from heedful.core.errors import InputError, nearest
from heedful.data.batches import seeded_generator
from heedful.data.input_files import MemoryTable
from heedful.data.labels import LabelNames
from heedful.models.base import Model

VALIDATION_SHARE = 0.1  # of the examples, without --valid
MIN_VALIDATION_ROWS = 100  # of a small file a fifth, up to so many: fewer would tell little
MAX_VALIDATION_ROWS = 2000  # more would only take time
EMPTY_LABELS = frozenset({"", "n/a", "#n/a", "na", "nan", "null", "-", "--", "?"})  # folded; they look empty
SPLIT_SEED = 0x5EED  # tells the draw of held-out examples from that of batches
MAX_CHARACTERS_PER_TOKEN = 64  # no text needs more characters than that for each token that is read


@dataclass(frozen=True)
class Examples:
    """The examples of one file, the line or row each stands on, and notes for the user."""

    items: Sequence[Any]
    locations: Sequence[str]
    columns: dict[str, str] = field(default_factory=dict)  # role → name
    notes: tuple[str, ...] = ()
    path: str = ""
    unused: tuple[str, ...] = ()  # columns that play no role

    def __len__(self) -> int:
        return len(self.items)

    def select(self, index: Sequence[int]) -> Examples:
        """Return the examples at these indices."""
        return replace(
            self, items=[self.items[i] for i in index], locations=[self.locations[i] for i in index], notes=()
        )

    def first(self, count: int | None) -> Examples:
        """Return the first `count` examples; None: all."""
        return self if count is None or count >= len(self) else self.select(range(count))

    def table(self, length: int, texts: int) -> MemoryTable:
        """Return the examples as the builders of batches take them; the first `texts` cells may be cut."""
        rows = [(*limit_characters(cells[:texts], length), *cells[texts:]) for cells in self.items]
        return MemoryTable("the file", held=rows, locations=list(self.locations))


def limit_characters(texts: Sequence[str], length: int) -> list[str]:
    """Return texts without what lies far beyond the tokens that are read: a row may hold megabytes."""
    limit = MAX_CHARACTERS_PER_TOKEN * length
    return [text if len(text) <= limit else text[:limit] for text in texts]


def count_values(values: Sequence[Hashable]) -> dict[str, int]:
    """Return how often each value occurs, the most frequent first."""
    return {str(name): n for name, n in Counter(values).most_common()}


def fold_label(label: str) -> str:
    """Return a label without what people vary by mistake: case, and how much white space there is."""
    return " ".join(label.split()).casefold()


def is_numeric(text: str) -> bool:
    """Return whether a cell is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def check_known(noun: str, values: Iterable[tuple[str, str]], names: Collection[str]) -> None:
    """Raise InputError for a label of validation, given with its line, that is none of training's names."""
    for value, where in values:
        if value not in names:
            hint = nearest(value, names) or f"training has {', '.join(map(repr, list(names)[:12]))}"
            raise InputError(f"validation, {where}: {noun} {value!r} does not occur in training", hint=hint)


def check_labels(model: Model, labels: Iterable[tuple[str, str]]) -> None:
    """Raise InputError for a label, given with its line, that the model's head does not have."""
    if not model.hf_config.get("id2label"):
        raise InputError("config.json has no id2label: the names of the classes are unknown")
    names = LabelNames(model.label_names)
    for label, where in labels:
        names.number(label, where)


def validation_count(count: int) -> int:
    """Return how many of the examples validate."""
    if count < 3:
        many = "1 example is" if count == 1 else f"{count} examples are"
        raise InputError(
            f"{many} too few to learn from and to hold some out", hint="give 3 or more, or --valid FILE"
        )
    tenth, fifth = round(count * VALIDATION_SHARE), round(count * 2 * VALIDATION_SHARE)
    return min(max(1, tenth, min(MIN_VALIDATION_ROWS, fifth)), MAX_VALIDATION_ROWS)


def move_to_training(train: Examples, valid: Examples, rows: Collection[int]) -> tuple[Examples, Examples]:
    """Return training examples with these rows of the validation examples, and validation without them."""
    moved = valid.select(sorted(rows))
    joined = replace(
        train, items=[*train.items, *moved.items], locations=[*train.locations, *moved.locations]
    )
    return joined, valid.select([i for i in range(len(valid)) if i not in rows])


def split_randomly(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Return training and validation examples, drawn at random."""
    count = validation_count(len(examples))
    order = seeded_generator(seed, SPLIT_SEED).permutation(len(examples)).tolist()
    return examples.select(sorted(order[count:])), examples.select(sorted(order[:count]))


def split_by_label(examples: Examples, labels: Sequence[Hashable], seed: int) -> tuple[Examples, Examples]:
    """Return training and validation examples, every label in proportion; one that occurs once trains."""
    count = validation_count(len(labels))
    order = seeded_generator(seed, SPLIT_SEED).permutation(len(labels)).tolist()
    total = Counter(labels)
    room = {label: min(int(count * n / len(labels) + 0.5), n - 1) for label, n in total.items()}
    if not any(room.values()):  # many rare labels: one each of the most frequent
        room |= {label: 1 for label, n in total.most_common(count) if n > 1}
    held = set()
    for i in order:
        if room[labels[i]] > 0:
            room[labels[i]] -= 1
            held.add(i)
    if not held:
        raise InputError(
            "every class has one row only, so that none can be held out to measure by",
            hint="give two rows of a class or more, or --valid FILE",
        )
    return examples.select(sorted(set(range(len(labels))) - held)), examples.select(sorted(held))


def split_by_group(examples: Examples, groups: Sequence[str], seed: int) -> tuple[Examples, Examples, int]:
    """Return training and validation examples and how many groups validate; none is torn apart."""
    names = list(dict.fromkeys(groups))
    order = seeded_generator(seed, SPLIT_SEED).permutation(len(names)).tolist()
    held: set[str] = set()
    size, counts, wanted = 0, count_values(groups), validation_count(len(examples))
    for i in order[:-1]:
        if size and size + counts[names[i]] > 2 * wanted:
            continue
        held.add(names[i])
        size += counts[names[i]]
        if size >= wanted:
            break
    parts: tuple[list[int], list[int]] = ([], [])
    for i, group in enumerate(groups):
        parts[group in held].append(i)
    return examples.select(parts[0]), examples.select(parts[1]), len(held)
