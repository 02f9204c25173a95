"""classify: a class for a text or for two. similarity: how close two texts are, each by its own vector."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from heedful import data
from heedful.data.batch import Batch
from heedful.data.batches import Batches, CollatedRows
from heedful.errors import InputError, nearest
from heedful.loading import with_head
from heedful.models.base import LM, Model
from heedful.pooling import Pooling, pool
from heedful.runs.evaluate import class_scores, correlation_scores
from heedful.runs.finetune.column_roles import infer_columns
from heedful.runs.finetune.finetune_task import (
    BatchSettings,
    Defaults,
    Examples,
    FinetuneTask,
    count_values,
    limit_characters,
    split_by_label,
    with_new_head,
)
from heedful.runs.finetune.input_files import InputFile, MemoryTable, select_rows
from heedful.runs.finetune.linear_head import are_few
from heedful.train.objectives import Objective, Term, promote_float32

MAX_CLASSES = 1000  # classes: so many in a small file are no classes
MANY_CLASSES = 10  # from which on learning is faster and longer


def as_table(examples: Examples, length: int, texts: int) -> MemoryTable:
    """Return the examples as a table; their first `texts` cells are texts and may be cut."""
    rows = [(*limit_characters(cells[:texts], length), *cells[texts:]) for cells in examples.items]
    return MemoryTable("the file", held=rows, locations=list(examples.locations))


class Classify(FinetuneTask):
    """Classification: one class for each row."""

    name, pipeline, head, metric = "classify", "text-classification", "classify", "accuracy"
    defaults = Defaults(lr=5e-5, lora_lr=1e-3, epochs=4, length=256)

    def __init__(self) -> None:
        self.labels: tuple[str, ...] = ()
        self.pair = False

    def read(self, source: InputFile, column_flags: dict[str, str | None]) -> Examples:
        columns = infer_columns(source, "classify", column_flags)
        check_single_labels(source, columns["label"])
        roles = [role for role in ("text", "pair", "label") if role in columns]
        found = select_rows(source, {role: columns[role] for role in roles})
        cells = [(*row[:-1], row[-1].strip()) for row in found.cells]
        return Examples(cells, found.locations, {r: columns[r] for r in roles}, found.notes)

    def split_validation(self, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        check_classes(examples)
        train, valid = split_by_label([row[-1] for row in examples.items], seed)
        return examples.select(train), examples.select(valid), "drawn at random, every label in proportion"

    def prepare(self, train: Examples, valid: Examples) -> None:
        if train.columns.keys() != valid.columns.keys():
            read = [", ".join(map(repr, part.columns.values())) for part in (train, valid)]
            raise InputError(
                f"training has the columns {read[0]}, validation {read[1]}: one has a text more",
                hint="name the columns with --text, --pair and --label",
            )
        self.pair = "pair" in train.columns
        check_classes(replace(train, items=[*train.items, *valid.items]))
        names = count_values([row[-1] for row in train.items])
        for row, where in zip(valid.items, valid.locations, strict=True):
            if row[-1] not in names:
                hint = nearest(row[-1], names) or f"training has {', '.join(map(repr, list(names)[:12]))}"
                raise InputError(
                    f"validation, {where}: label {row[-1]!r} does not occur in training", hint=hint
                )
        self.labels = classes_of(train)
        if len(names) >= MANY_CLASSES:  # a new head of many is far from settled after so many careful steps
            self.defaults = replace(self.defaults, lr=2e-4, steps=max(self.defaults.steps, 3 * len(names)))

    def texts(self, examples: Examples) -> list[str]:
        return [" ".join(row[:-1]) for row in examples.items]

    def facts(self, train: Examples, valid: Examples) -> dict[str, Any]:
        return {"labels": count_values([row[-1] for row in (*train.items, *valid.items)])}

    def check(self, model: Model) -> None:
        if self.head not in model.family.heads:
            has = f"a {model.family.name} model has no {self.head!r} head"
            raise InputError(has, hint="take an encoder, such as all-minilm-l6-v2")

    def fits_linear_head(self, examples: Examples, model: Model) -> bool:
        """Return whether a linear head on sentence vectors learns these rows better than all weights."""
        trained = self.own_labels(model) and not model.config.classifier_pooling
        return isinstance(model, LM) and not trained and are_few([row[-1] for row in examples.items])

    def own_labels(self, model: Model) -> list[str]:
        """Return the model's labels in order if its head has the file's, else none."""
        names = model.label_names if model.config.head == "classify" else []
        return names if set(names) == set(self.labels) else []

    def attach_head(self, model: Model, seed: int) -> tuple[Model, str]:
        if before := self.own_labels(model):
            self.labels = tuple(before)
            return model, f"its own head, of {len(before)} classes"
        new = f"a new head of {len(self.labels)} classes"
        return with_new_head(model, "classify", self.labels, seed), new

    def batches(self, examples: Examples, model: Model, batching: BatchSettings) -> Batches:
        return data.classify(
            as_table(examples, batching.length, 1 + self.pair), model.tokenizer, text=0,
            pair=1 if self.pair else None, label=1 + self.pair, labels=self.labels, **batching.keywords,
        )  # fmt: skip

    @property
    def objective(self) -> str | Objective:
        return "classify"

    def score(self, model: Model, examples: Examples, batches: Batches, loss: float | None) -> dict[str, Any]:
        return class_scores(model, batches)


class Similarity(FinetuneTask):
    """Similarity: the cosine of two texts' vectors learns to follow a score."""

    name, pipeline, head, metric = "similarity", "sentence-similarity", "none", "spearman"
    defaults = Defaults(lr=3e-5, lora_lr=5e-4, epochs=4, length=128)

    def __init__(self) -> None:
        self.low, self.high = 0.0, 1.0

    def read(self, source: InputFile, column_flags: dict[str, str | None]) -> Examples:
        columns = infer_columns(source, "similarity", column_flags)
        found = select_rows(
            source, columns, lambda cells: "" if is_numeric(cells[-1]) else "whose score is no number"
        )
        return Examples(found.cells, found.locations, columns, found.notes)

    def prepare(self, train: Examples, valid: Examples) -> None:
        scores = [float(row[-1]) for row in train.items]
        self.low, self.high = min(scores), max(scores)
        if self.low == self.high:
            only = f"every row has the score {self.low:g}"
            raise InputError(f"{only}: there is nothing to tell apart", hint="is it the right column?")

    def texts(self, examples: Examples) -> list[str]:
        return [text for row in examples.items for text in row[:2]]

    def facts(self, train: Examples, valid: Examples) -> dict[str, Any]:
        return {"scores": {"lowest": self.low, "highest": self.high}}

    def check(self, model: Model) -> None:
        if not isinstance(model, LM):
            raise InputError(
                "similarity needs a model with one stack", hint="take an encoder, such as all-minilm-l6-v2"
            )

    def attach_head(self, model: Model, seed: int) -> tuple[Model, str]:
        done = model if model.config.head == "none" else with_head(model, "none", seed=seed).to(model.device)
        done.pooling = done.pooling or Pooling(normalise=True)
        return done, f"sentence vectors by the {done.pooling.mode}"

    def trained_whole(self) -> tuple[str, ...]:
        return ()

    def batches(self, examples: Examples, model: Model, batching: BatchSettings) -> Batches:
        rows = as_table(examples, batching.length, 2)
        made = data.contrast(
            rows, model.tokenizer, columns=(0, 1), **batching.keywords,
        )  # fmt: skip
        values = np.array([float(row[-1]) for row in examples.items])
        wanted = ((values - self.low) / (self.high - self.low)).astype(np.float32)
        inner = made.source
        assert isinstance(inner, CollatedRows)
        scored = CollatedRows(
            inner.count, lambda row, epoch: {**inner.make(row, epoch), "score": wanted[row]}, inner.pad
        )
        return replace(made, source=scored)

    @property
    def objective(self) -> str | Objective:
        return cosine_loss

    @torch.no_grad()
    def score(self, model: Model, examples: Examples, batches: Batches, loss: float | None) -> dict[str, Any]:
        truth: list[float] = []
        guess: list[float] = []
        for batch in batches.once():
            truth += batch.extra["score"].tolist()
            guess += cosines(model, batch.to(model.device)).float().cpu().tolist()
        return correlation_scores(truth, guess)


def is_numeric(text: str) -> bool:
    """Return whether a cell is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def cosines(model: Model, batch: Batch) -> torch.Tensor:
    """cos(a, b) for every row, (B,)"""
    assert isinstance(model, LM)
    pooling = model.pooling or Pooling()
    sides = []
    for tokens, valid in (
        (batch.tokens, batch.valid),
        (batch.extra["other_tokens"], batch.extra.get("other_valid")),
    ):
        whole = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        sides.append(pool(model.encode(tokens, valid=valid), whole, pooling))
    return F.cosine_similarity(promote_float32(sides[0]), promote_float32(sides[1]), dim=-1)


def cosine_loss(model: Model, batch: Batch) -> dict[str, Term]:
    """Σ (cos(a, b) − score)², scores between 0 and 1   (Reimers and Gurevych 2019 §3, regression)"""
    loss = F.mse_loss(cosines(model, batch), batch.extra["score"], reduction="sum")
    return {"closeness": Term(loss, "row")}


def check_classes(examples: Examples) -> None:
    """Raise InputError for labels that are no classes: all the same, or nearly all different."""
    names = count_values([row[-1] for row in examples.items])
    if len(names) < 2:
        only = f"every row has the label {next(iter(names))!r}"
        raise InputError(f"{only}: there is nothing to tell apart", hint="is it the right column?")
    if len(names) > MAX_CLASSES or len(names) * 2 > len(examples) > 20:
        many = f"{len(names):,} different labels in {len(examples):,} rows"
        raise InputError(f"column {examples.columns['label']!r} has {many}", hint="is it the right column?")


def check_single_labels(source: InputFile, column: str) -> None:
    """Raise InputError for rows that have a list of labels: a row is of one class."""
    for row in source.rows:
        if isinstance(value := row.values.get(column), list | dict):
            what = f"{source.path}, {row.where}: {column!r} is {str(value)[:60]}"
            raise InputError(what, hint="classify learns one class for each row: give a text or a number")


def classes_of(train: Examples) -> tuple[str, ...]:
    """Return the labels in order: as numbers if all are numbers, else by name."""
    names = {str(row[-1]) for row in train.items}
    return tuple(sorted(names, key=float if all(map(is_numeric, names)) else str))
