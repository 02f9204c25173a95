"""Kinds of labels: one of several classes, unbalanced ones, ordered ones, or several that hold at once.

All of them are text classification: the same texts, the same head. What differs is a value, `LabelKind`: the
loss, the score that decides, and what config.json says of the head. The examples of a file carry their kind
(`Examples.label_kind`), and so does the task that is bound to a model.

    one label     p = softmax(u); accuracy
    balanced      the same, with every class drawn equally often: of labels of which some are rare; macro F1
    ordered       −log p(y) + Σ_k (P(label ≤ k) − [y ≤ k])²   (Hou et al. 2016); quadratic weighted kappa
    several       p_c = σ(u_c), each label holds or not, from p = ½ on; micro F1 over all labels of all rows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch.nn.functional as F

from heedful.core.errors import ConfigError, InputError
from heedful.data.batch import Batch
from heedful.data.examples.classification import is_numeric
from heedful.data.input_files import InputFile, Row, cell_text
from heedful.data.readers import column_hint
from heedful.models.base import Model
from heedful.tasks.examples import EMPTY_LABELS, Examples, UnusableRow, count_values, fold_label
from heedful.tasks.metrics.scores import balanced_scores, class_scores, multi_label_scores, ordinal_scores
from heedful.train.objectives import Objective, Term, extra_of, logits_of

YES, NO = ("1", "true", "yes", "x"), ("0", "false", "no", "")  # of a column that is one label
THRESHOLD = 0.5  # of the probability from which on a label holds
UNEVEN = 4  # a class with so many times the rows of the middle one makes the classes unbalanced


def ordinal_loss(model: Model, batch: Batch) -> dict[str, Term]:
    """Σ −log p(y) + Σ_k (P(label ≤ k) − [y ≤ k])²   (Hou et al. 2016)"""
    logits, labels = logits_of(model, batch), extra_of(batch, "label")  # (B, C), (B,)
    reached = F.one_hot(labels, logits.shape[1]).cumsum(1)  # (B, C)
    steps = (logits.softmax(1).cumsum(1) - reached).square().sum()
    return {"ordinal": Term(F.cross_entropy(logits, labels, reduction="sum") + steps, "row")}


def multi_label_loss(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ_c y_c log σ(u_c) + (1 − y_c) log(1 − σ(u_c)), y_c whether label c holds"""
    logits = logits_of(model, batch)  # (B, C)
    truth = extra_of(batch, "label").to(logits.dtype)
    return {"labels": Term(F.binary_cross_entropy_with_logits(logits, truth, reduction="sum"), "row")}


@dataclass(frozen=True)
class LabelKind:
    """How the labels of examples are related, and what follows from it.

    `scores` takes the true labels, the predicted ones, the names of all labels in order, and how many
    independent predictions they count as (None: as many as they are).
    """

    metric: str
    scores: Callable[[Sequence[Any], Sequence[Any], Sequence[str], float | None], dict[str, Any]]
    objective: str | Objective = "classify"
    head_settings: Mapping[str, Any] = field(default_factory=dict)  # of config.json
    unit: str = "classes"  # what labels are called
    balanced: bool = False  # whether rare classes are drawn as often as others
    ordered: bool = False
    order: tuple[str, ...] = ()  # of ordered labels, from the lowest on; empty: they are numbers
    several: bool = False  # whether the label of a row is a tuple of them, perhaps empty
    separator: str = ""  # between several labels in one cell


def _ordinal_scores(
    truths: Sequence[str], guesses: Sequence[str], labels: Sequence[str], trials: float | None
) -> dict[str, Any]:
    place = {label: i for i, label in enumerate(labels)}
    return ordinal_scores([place[label] for label in truths], [place[label] for label in guesses], trials)


ONE_LABEL = LabelKind("accuracy", lambda truths, guesses, _, trials: class_scores(truths, guesses, trials))
BALANCED = LabelKind(
    "macro_f1", lambda truths, guesses, _, trials: balanced_scores(truths, guesses, trials), balanced=True
)
ORDINAL = LabelKind("kappa", _ordinal_scores, ordinal_loss, {"ordinal": True}, ordered=True)
SEVERAL = LabelKind(
    "micro_f1",
    lambda truths, guesses, labels, trials: multi_label_scores([*map(set, truths)], guesses, labels, trials),
    multi_label_loss, {"problem_type": "multi_label_classification"}, unit="labels", several=True,
)  # fmt: skip


def label_kind_of(model: Model) -> LabelKind:
    """Return the kind of labels that a model has learnt, as its config.json says."""
    if model.hf_config.get("problem_type") == "multi_label_classification":
        return SEVERAL
    return replace(ORDINAL, order=tuple(model.label_names)) if model.hf_config.get("ordinal") else ONE_LABEL


def choose_label_kind(examples: Examples, order: str | None, balance: bool | None) -> Examples:
    """Return the examples with the kind that --order and --balance ask for, or that their numbers suggest.

    `order` is "low,middle,high" or "numbers". `balance` None balances where one class has far more rows than
    the one in the middle.
    """
    if order is not None:
        if kind_of(examples).several:
            raise ConfigError(
                "`order=` needs one label per row, and these rows have several", hint="leave it out"
            )
        names = () if order.strip() == "numbers" else tuple(filter(None, map(str.strip, order.split(","))))
        if order.strip() != "numbers" and (len(names) < 3 or len(set(names)) < len(names)):
            what = f"`order={order!r}` must name three labels or more, each once"
            raise ConfigError(what, hint="if the labels are numbers, give `order='numbers'`")
        return replace(examples, label_kind=replace(ORDINAL, order=names))
    if kind_of(examples) is ONE_LABEL and balance is not False:
        counts = sorted(count_values([row[-1] for row in examples.items]).values())
        uneven = len(counts) > 1 and counts[-1] > UNEVEN * counts[(len(counts) - 1) // 2]
        return replace(examples, label_kind=BALANCED) if balance or uneven else examples
    return examples


def kind_of(examples: Examples) -> LabelKind:
    """Return the kind of the examples' labels."""
    return examples.label_kind or ONE_LABEL


def labels_of(example: Any) -> tuple[str, ...]:
    """Return the labels of an example, which are one or several."""
    return (example[-1],) if isinstance(example[-1], str) else tuple(example[-1])


def label_names(examples: Examples) -> tuple[str, ...]:
    """Return the labels in order: the one that was given, as numbers if all are numbers, or by name."""
    names = {label for row in examples.items for label in labels_of(row)}
    by_name = tuple(sorted(names, key=float if all(map(is_numeric, names)) else str))
    return kind_of(examples).order or by_name


def label_notes(examples: Examples) -> tuple[str, ...]:
    """Return notes about labels that look like mistakes: spellings of one label, and empty ones."""
    counts = count_values([label for row in examples.items for label in labels_of(row)])
    form = lambda labels: " and ".join(f"{label!r} ({counts[label]:,})" for label in labels)
    alike: dict[str, list[str]] = {}
    for label in counts:
        alike.setdefault(fold_label(label), []).append(label)
    empty = [label for label in counts if fold_label(label) in EMPTY_LABELS]
    parted = [label for label in counts if "|" in label]
    written = lambda folded: "how the number is written" if is_numeric(folded) else "case or white space"
    notes = [
        f"the labels {form(labels)} differ only by {written(folded)}; --merge-labels makes them one"
        for folded, labels in alike.items() if len(labels) > 1 and folded not in EMPTY_LABELS
    ]  # fmt: skip
    if empty:
        subject = f"labels {form(empty)} look" if len(empty) > 1 else f"label {form(empty)} looks"
        notes.append(f"the {subject} empty; --merge-labels leaves such rows out")
    if parted:
        notes.append(f"the label {form(parted[:1])} has a |; --separator '|' makes it several labels")
    return tuple(notes)


def merge_labels(examples: Examples, names: Sequence[str] = ()) -> Examples:
    """Write every label as the most frequent of its spellings is, or as in `names`; drop empty ones."""
    counts = count_values([label for row in examples.items for label in labels_of(row)])
    spelling: dict[str, str] = {}
    for label in (*names, *counts):
        spelling.setdefault(fold_label(label), label)
    items, usable = list(examples.items), list[int]()
    for i, row in enumerate(examples.items):
        folded = [fold_label(label) for label in labels_of(row)]
        merged = tuple(dict.fromkeys(spelling[one] for one in folded if one not in EMPTY_LABELS))
        if merged or not isinstance(row[-1], str):
            items[i] = (*row[:-1], merged[0] if isinstance(row[-1], str) else merged)
            usable.append(i)
    lost = len(items) - len(usable)
    subject, verb = ("1 row", "is") if lost == 1 else (f"{lost:,} rows", "are")
    notes = (f"{subject} whose label looks empty {verb} left out",) if lost else ()
    return replace(replace(examples, items=items).select(usable), notes=(*examples.notes, *notes))


def class_weights(examples: Examples) -> list[float] | None:
    """Return how much each class counts in the loss of a linear head; None: all alike."""
    if not kind_of(examples).balanced:
        return None
    counts, labels = Counter(row[-1] for row in examples.items), label_names(examples)
    return [len(examples) / (len(labels) * counts[label]) for label in labels]


# Several labels in a table: a column of lists, or a column for each label.


def join_label_columns(source: InputFile, label: str) -> InputFile:
    """Return a table in which the columns of --label a,b,c are one, with a list of those that hold."""
    if "," not in label or label in source.columns:
        return source
    columns = [name.strip() for name in label.split(",")]
    for name in columns:
        if name not in source.columns:
            hint = column_hint(name, source.columns)
            raise InputError(f"{source.path} has no column {name!r} for `label=`", hint=hint)

    def holds(row: Row, name: str) -> bool:
        text = cell_text(row.get(name)).strip().lower()
        if text not in (*YES, *NO):
            what = f"{source.path}, {row.where}: {name!r} is {text[:60]!r}, neither 1 nor 0"
            raise InputError(what, hint="a column for each label says whether it holds")
        return text in YES

    rows = [
        Row(row.where, {**row.values, label: [name for name in columns if holds(row, name)]})
        for row in source.rows
    ]
    others = (name for name in source.columns if name not in columns)
    return replace(source, columns=(*others, label), rows=rows)


def parse_label_list(cells: Mapping[str, Any], separator: str) -> tuple[Any, ...]:
    """Return the texts of a row, by their roles, and the tuple of its labels: a list, or with a `separator`
    a text ("spam|urgent").
    """
    texts = {role: cell_text(cell) for role, cell in cells.items() if role != "label"}
    if empty := next((role for role, text in texts.items() if not text.strip()), None):
        raise UnusableRow(f"without a {empty}")
    labels = cells["label"]
    if separator and not isinstance(labels, list):
        labels = [name for name in map(str.strip, cell_text(labels).split(separator)) if name]
    if not isinstance(labels, list) or not all(isinstance(name, str | int | float) for name in labels):
        raise UnusableRow("whose labels are not a list of names")
    return (*texts.values(), tuple(dict.fromkeys(str(name).strip() for name in labels)))
