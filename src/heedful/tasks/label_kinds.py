"""Classification of other kinds of labels: unbalanced, ordered, and several that hold at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from heedful.core.errors import ConfigError, InputError
from heedful.data.batch import Batch
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import BalancedOrder, Batches, CollatedRows
from heedful.data.input_files import InputFile, UnusableRow, cell_text
from heedful.data.readers import column_hint
from heedful.models.base import LM, Model
from heedful.tasks.examples import (
    ColumnFlags,
    Examples,
    check_known,
    count_values,
    infer_columns,
    is_numeric,
    move_to_training,
    split_randomly,
)
from heedful.tasks.metrics.scores import balanced_scores, multi_label_scores, ordinal_scores
from heedful.tasks.text_classification import MAX_CLASSES, MAX_ROWS_PER_CLASS, TextClassification
from heedful.train.objectives import Objective, Term, extra_of, promote_float32

YES, NO = ("1", "true", "yes", "x"), ("0", "false", "no", "")  # of a column that is one label
THRESHOLD = 0.5  # of the probability from which on a label holds


class UnbalancedClassification(TextClassification):
    """p = softmax(u) over labels of which some are rare: learnt as if all were equally frequent

    Batches draw every class equally often, a linear head weighs rare rows more, and the score is macro F1,
    in which a rare class counts as much as a frequent one.
    """

    metric = "macro_f1"

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        plain = super().batches(examples, options)
        number = {name: i for i, name in enumerate(self.labels)}
        labels = np.array([number[row[-1]] for row in examples.items], np.int64)
        order = BalancedOrder(range(len(labels)), labels, options.batch, options.seed)
        return replace(plain, order=order, settings={**plain.settings, "balanced": True})

    @classmethod
    def class_weights(cls, examples: Examples) -> list[float]:
        counts = Counter(row[-1] for row in examples.items)
        labels = cls.label_order(examples)
        return [len(examples) / (len(labels) * counts[label]) for label in labels]

    def label_scores(
        self, examples: Examples, guesses: Sequence[str], trials: float | None = None
    ) -> dict[str, Any]:
        return balanced_scores([row[-1] for row in examples.items], guesses, trials)


class OrdinalClassification(TextClassification):
    """p = softmax(u) over labels with an order: a mistake of two steps is worse than one of one step

    Loss: −log p(y) + Σ_k (P(label ≤ k) − [y ≤ k])²   (Hou et al. 2016). Score: quadratic weighted kappa.
    """

    head_settings: ClassVar[Mapping[str, Any]] = {"ordinal": True}
    metric = "kappa"
    order: ClassVar[tuple[str, ...]]  # from the lowest to the highest; empty: they are numbers

    @property
    def objective(self) -> Objective:  # type: ignore[override]
        return ordinal_loss

    @classmethod
    def label_order(cls, train: Examples) -> tuple[str, ...]:
        return cls.order or super().label_order(train)

    @classmethod
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        for row, where in zip(
            (*train.items, *valid.items), (*train.locations, *valid.locations), strict=True
        ):
            if cls.order and row[-1] not in cls.order:
                known = f"--order has {', '.join(cls.order)}"
                raise InputError(f"{where}: the label {row[-1]!r} has no place in the order", hint=known)
            if not cls.order and not is_numeric(row[-1]):
                raise InputError(
                    f"{where}: the label {row[-1]!r} is no number", hint="name all: --order low,middle,high"
                )
        super().check_examples(train, valid)

    def label_scores(
        self, examples: Examples, guesses: Sequence[str], trials: float | None = None
    ) -> dict[str, Any]:
        place = {label: i for i, label in enumerate(self.labels)}
        return ordinal_scores(
            [place[row[-1]] for row in examples.items], [place[guess] for guess in guesses], trials
        )


def ordinal_classification(order: str | Sequence[str]) -> type[OrdinalClassification]:
    """Return the task whose labels have this order: names, "low,middle,high", or "numbers"."""
    if not isinstance(order, str):
        names = tuple(order)
    elif order.strip() == "numbers":
        names = ()
    else:
        names = tuple(name.strip() for name in order.split(",") if name.strip())
        if len(names) < 3 or len(set(names)) < len(names):
            what = f"--order {order!r} must name three labels or more, each once"
            raise ConfigError(what, hint="or say --order numbers")
    about = {"order": names, "__doc__": OrdinalClassification.__doc__}
    return type("OrdinalClassification", (OrdinalClassification,), about)


def ordinal_loss(model: Model, batch: Batch) -> dict[str, Term]:
    """Σ −log p(y) + Σ_k (P(label ≤ k) − [y ≤ k])²   (Hou et al. 2016)"""
    types = {"types": batch.types} if isinstance(model, LM) else {}
    logits = promote_float32(model(batch.tokens, valid=batch.valid, **types))  # (B, C)
    labels = extra_of(batch, "label")
    reached = F.one_hot(labels, logits.shape[1]).cumsum(1)  # (B, C)
    steps = (logits.softmax(1).cumsum(1) - reached).square().sum()
    return {"ordinal": Term(F.cross_entropy(logits, labels, reduction="sum") + steps, "row")}


class MultiLabelClassification(TextClassification):
    """p_c = σ(u_c): each label holds or not, whatever the others do

    A row has a list of labels, perhaps none, or a column for every label. Loss: the cross-entropy of each
    label. A label holds from p = ½ on; the score is micro F1, over all labels of all rows.
    """

    head_settings: ClassVar[Mapping[str, Any]] = {"problem_type": "multi_label_classification"}
    metric, label_unit = "micro_f1", "labels"

    @classmethod
    def best_guess(cls, train: Examples) -> str | None:
        return None  # a row may have no label, or several

    @property
    def objective(self) -> Objective:  # type: ignore[override]
        return multi_label_loss

    @classmethod
    def read_examples(cls, source: InputFile, column_flags: ColumnFlags) -> Examples:
        """Return (text, labels) or (text, pair, labels) of every row, labels a tuple of names."""
        named = column_flags.get("--label") or ""
        if "," in named and named not in source.columns:  # a column for each label
            columns = [name.strip() for name in named.split(",")]
            for name in columns:
                if name not in source.columns:
                    hint = column_hint(name, source.columns)
                    raise InputError(f"{source.path} has no column {name!r} for --label", hint=hint)
            holding = lambda row: [
                name for name in columns if cls.holds(source, row.where, name, row.values.get(name))
            ]
            column = named
            lists: list[Any] = [holding(row) for row in source.rows]
        else:
            column = infer_columns(source, cls.command, cls.roles, column_flags)["label"]
            lists = [row.values.get(column) for row in source.rows]
        rows = [
            replace(row, values={**row.values, column: json.dumps(labels, ensure_ascii=False)})
            for row, labels in zip(source.rows, lists, strict=True)
        ]
        named_columns = dict.fromkeys((*source.columns, column))
        return super(TextClassification, cls).read_examples(
            replace(source, columns=tuple(named_columns), rows=rows), column_flags
        )

    @staticmethod
    def holds(source: InputFile, where: str, column: str, value: Any) -> bool:
        """Return whether a label holds, by the cell of its column."""
        text = cell_text(value).strip().lower()
        if text not in (*YES, *NO):
            what = f"{source.path}, {where}: {column!r} is {text[:60]!r}, neither 1 nor 0"
            raise InputError(what, hint="a column for each label says whether it holds")
        return text in YES

    @classmethod
    def parse_cells(cls, cells: Mapping[str, str]) -> tuple[Any, ...]:
        *texts, written = cells.values()
        if empty := next(
            (role for role, text in cells.items() if role != "label" and not text.strip()), None
        ):
            raise UnusableRow(f"without a {empty}")
        found = json.loads(written)
        if not isinstance(found, list) or not all(isinstance(label, str | int | float) for label in found):
            raise UnusableRow("whose labels are no list of names")
        return (*texts, tuple(dict.fromkeys(str(label).strip() for label in found)))

    @classmethod
    def split_validation(cls, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        """Split at random; rows with a label that only they have train, or it could not be learnt."""
        check_label_lists(examples)
        train, valid = split_randomly(examples, seed)
        known = {label for row in train.items for label in row[-1]}
        rare = {i for i, row in enumerate(valid.items) if not set(row[-1]) <= known}
        if len(rare) == len(valid):
            what = "the rows are too few to hold some out: their labels differ too much"
            raise InputError(what, hint="give --valid FILE")
        return (*move_to_training(train, valid, rare), "drawn at random")

    @classmethod
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        check_label_lists(train)
        lines = zip(valid.items, valid.locations, strict=True)
        used = [(label, where) for row, where in lines for label in row[-1]]
        check_known("label", used, set(cls.label_order(train)))

    @classmethod
    def facts(cls, train: Examples, valid: Examples) -> dict[str, Any]:
        rows = [*train.items, *valid.items]
        none = sum(not row[-1] for row in rows)
        return {"labels": count_values([label for row in rows for label in row[-1]])} | (
            {"rows without a label": none} if none else {}
        )

    @classmethod
    def label_order(cls, train: Examples) -> tuple[str, ...]:
        names = {label for row in train.items for label in row[-1]}
        return tuple(sorted(names, key=float if all(map(is_numeric, names)) else str))

    @classmethod
    def name_examples(cls, examples: Examples) -> Examples:
        return examples.select([])

    @classmethod
    def prefers_linear_head(cls, model: Model, examples: Examples) -> bool:
        trained = cls.has_labels(model, examples) and not model.config.classifier_pooling
        few = len(examples) <= MAX_ROWS_PER_CLASS * len(cls.label_order(examples))
        return isinstance(model, LM) and not trained and few

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        """Return batches of texts with extra["label"], (B, C): 1 for every label that holds."""
        number = {name: i for i, name in enumerate(self.labels)}
        truth = np.zeros((len(examples), len(number)), np.float32)
        for i, row in enumerate(examples.items):
            truth[i, [number[label] for label in row[-1]]] = 1
        first = replace(examples, items=[(*row[:-1], self.labels[0]) for row in examples.items])
        plain = super().batches(first, options)
        rows = plain.source
        assert isinstance(rows, CollatedRows)
        make = lambda row, epoch: {**rows.make(row, epoch), "label": truth[row]}
        return replace(plain, source=CollatedRows(rows.count, make, rows.pad))

    def scoring_options(self, examples: Examples, **settings: Any) -> dict[str, Any]:
        return {"top_k": None} | super().scoring_options(examples, **settings)

    def check_truth(self, examples: Examples) -> None:
        lines = list(zip(examples.items, examples.locations, strict=True))
        used = [((*row[:-1], label), where) for row, where in lines for label in row[-1]]
        rows, locations = zip(*used, strict=True) if used else ((), ())
        super().check_truth(replace(examples, items=rows, locations=locations))

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        found = [{row["label"] for row in answer if row["score"] >= THRESHOLD} for answer in answers]
        return multi_label_scores([set(row[-1]) for row in examples.items], found, self.labels)

    def compare_logits(self, examples: Examples, logits: Tensor, trials: float) -> dict[str, Any]:
        held = logits.sigmoid() >= THRESHOLD
        found = [{self.labels[i] for i in row.nonzero().flatten().tolist()} for row in held]
        return multi_label_scores([set(row[-1]) for row in examples.items], found, self.labels, trials)


def check_label_lists(examples: Examples) -> None:
    """Raise InputError for lists in which there is nothing to tell apart."""
    counts = count_values([label for row in examples.items for label in row[-1]])
    if not counts or all(count == len(examples) for count in counts.values()):
        what = (
            "no row has a label" if not counts else f"every row has {', '.join(map(repr, list(counts)[:3]))}"
        )
        raise InputError(f"{what}: there is nothing to tell apart", hint="is it the right column?")
    if len(counts) > MAX_CLASSES:
        raise InputError(f"the rows have {len(counts):,} different labels", hint="is it the right column?")


def multi_label_loss(model: Model, batch: Batch) -> dict[str, Term]:
    """−Σ_c y_c log σ(u_c) + (1 − y_c) log(1 − σ(u_c)), y_c whether label c holds"""
    types = {"types": batch.types} if isinstance(model, LM) else {}
    logits = promote_float32(model(batch.tokens, valid=batch.valid, **types))  # (B, C)
    truth = extra_of(batch, "label").to(logits.dtype)
    return {"labels": Term(F.binary_cross_entropy_with_logits(logits, truth, reduction="sum"), "row")}
