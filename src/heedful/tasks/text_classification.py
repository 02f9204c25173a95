"""text-classification: a label for a whole text, or for a pair of texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from heedful import data
from heedful.core.checks import check_choice, check_integer
from heedful.core.errors import ConfigError, InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.input_files import InputFile
from heedful.models.base import LM, Model
from heedful.tasks.examples import (
    EMPTY_LABELS,
    INPUT_ROLES,
    LABEL,
    ColumnFlags,
    Examples,
    Role,
    check_known,
    check_labels,
    count_values,
    fold_label,
    infer_columns,
    is_numeric,
    split_by_label,
)
from heedful.tasks.feature_extraction import sentence_vectors
from heedful.tasks.metrics.scores import class_scores
from heedful.tasks.model_inputs import BATCH_SIZE, map_inputs, rename_options, truncates
from heedful.tasks.task import Task, TrainableTask, TrainingDefaults, row_keywords
from heedful.tasks.task_specification import TaskSpecification

MAX_CLASSES = 1000  # so many in a small file are no classes
MANY_CLASSES = 10  # from which on learning is faster and longer
UNEVEN = 4  # a class with so many times the rows of the middle one makes the classes unbalanced
MAX_ROWS_PER_CLASS = 32  # in the mean; from more on training all weights does better (docs/finetuning.md)

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


class TextClassification(TrainableTask):
    """p = softmax(u) over the labels, u the logits of the classifying head.

    One label, or several that may hold at once (problem_type in config.json), are scored by a sigmoid each;
    a regression gives its number as it is.
    """

    heads = ("classify",)
    needs = "a head that labels a whole text (classify)"
    command, head, objective, metric = "classify", "classify", "classify", "accuracy"
    training = TrainingDefaults(lr=5e-5, lora_lr=1e-3, epochs=4, length=256)
    roles: ClassVar[Mapping[str, Role]] = {**INPUT_ROLES["classify"], "label": Role("--label", LABEL)}

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
        names, specification = self.model.label_names, TaskSpecification.of(self.model)

        def rank_labels(logits: Tensor) -> Any:
            rows = [{"label": n, "score": s} for n, s in zip(names, function(logits).tolist(), strict=True)]
            if return_all_scores:
                return rows
            rows.sort(key=lambda row: -row["score"])
            return rows[0] if isinstance(top_k, str) else rows[:top_k]

        def predict_batch(texts: list[Any]) -> list[Any]:
            pairs = [parse_text_pair(text) for text in texts]
            if specification is not None:
                for number, pair in enumerate(pairs):
                    specification.check_input(1 if isinstance(pair, str) else 2, number)
            tokenized = self.tokenize(pairs, truncation=truncation, max_length=max_length)
            return [rank_labels(u) for u in self.forward(tokenized, batch_size=batch_size)]

        return map_inputs(inputs, predict_batch, batch_size, (str, Mapping))

    @property
    def default_function(self) -> str:
        """The name of the function that turns this model's logits into scores."""
        problem = self.model.hf_config.get("problem_type")
        if problem == "regression":
            return "none"
        sigmoid = problem == "multi_label_classification" or self.model.config.labels == 1
        return "sigmoid" if sigmoid else "softmax"

    @classmethod
    def for_file(cls, source: InputFile, column_flags: ColumnFlags, order: str | None) -> type[TrainableTask]:
        """Lists of labels, or several columns of them, may hold at once; labels may have an order."""
        from heedful.tasks.label_kinds import MultiLabelClassification, ordinal_classification

        several = "," in (column_flags.get("--label") or "") and column_flags["--label"] not in source.columns
        if several or cls.has_lists(source, column_flags):
            if order is not None:
                raise ConfigError(
                    "--order is of rows with one label; here several may hold", hint="leave it out"
                )
            return MultiLabelClassification
        return cls if order is None else ordinal_classification(order)

    @classmethod
    def has_lists(cls, source: InputFile, column_flags: ColumnFlags) -> bool:
        """Return whether the labels of a file are lists."""
        column = infer_columns(source, cls.command, cls.roles, column_flags)["label"]
        return any(isinstance(row.values.get(column), list) for row in source.rows)

    @classmethod
    def for_examples(cls, examples: Examples, balance: bool | None) -> type[TrainableTask]:
        from heedful.tasks.label_kinds import UnbalancedClassification

        counts = sorted(count_values([row[-1] for row in examples.items]).values())
        uneven = len(counts) > 1 and counts[-1] > UNEVEN * counts[(len(counts) - 1) // 2]
        return (
            UnbalancedClassification
            if cls is TextClassification and (balance or (balance is None and uneven))
            else cls
        )

    @classmethod
    def for_model(cls, model: Model) -> type[TrainableTask]:
        from heedful.tasks.label_kinds import MultiLabelClassification, ordinal_classification

        if model.hf_config.get("problem_type") == "multi_label_classification":
            return MultiLabelClassification
        return ordinal_classification(model.label_names) if model.hf_config.get("ordinal") else cls

    @classmethod
    def read_examples(cls, source: InputFile, column_flags: ColumnFlags) -> Examples:
        """Return (text, label) or (text, pair, label) of every row, which is of one class."""
        examples = super().read_examples(source, column_flags)
        column = examples.columns["label"]
        for row in source.rows:
            if isinstance(value := row.values.get(column), list | dict):
                what = f"{source.path}, {row.where}: {column!r} is {str(value)[:60]}"
                raise InputError(what, hint="a label is a text or a number, or in every row a list of them")
        return examples

    @classmethod
    def parse_cells(cls, cells: Mapping[str, str]) -> tuple[str, ...]:
        *texts, label = super().parse_cells(cells)
        return (*texts, label.strip())

    @classmethod
    def labels_of(cls, example: Any) -> tuple[str, ...]:
        """Return the labels of an example, which are one or several."""
        label = example[-1]
        return (label,) if isinstance(label, str) else tuple(label)

    @classmethod
    def label_notes(cls, examples: Examples) -> tuple[str, ...]:
        counts = count_values([label for row in examples.items for label in cls.labels_of(row)])
        form = lambda labels: " and ".join(f"{label!r} ({counts[label]:,})" for label in labels)
        alike: dict[str, list[str]] = {}
        for label in counts:
            alike.setdefault(fold_label(label), []).append(label)
        empty = [label for label in counts if fold_label(label) in EMPTY_LABELS]
        notes = [
            f"the labels {form(labels)} differ only by case or white space; --merge-labels makes them one"
            for folded, labels in alike.items() if len(labels) > 1 and folded not in EMPTY_LABELS
        ]  # fmt: skip
        if empty:
            subject = f"labels {form(empty)} look" if len(empty) > 1 else f"label {form(empty)} looks"
            notes.append(f"the {subject} empty; --merge-labels leaves such rows out")
        return tuple(notes)

    @classmethod
    def merge_labels(cls, examples: Examples, names: Sequence[str] = ()) -> Examples:
        """Write every label as the most frequent of its spellings is, or as in `names`; drop empty ones."""
        counts = count_values([label for row in examples.items for label in cls.labels_of(row)])
        spelling: dict[str, str] = {}
        for label in (*names, *counts):
            spelling.setdefault(fold_label(label), label)
        items, kept = list(examples.items), list[int]()
        for i, row in enumerate(examples.items):
            folded = [fold_label(label) for label in cls.labels_of(row)]
            merged = tuple(dict.fromkeys(spelling[one] for one in folded if one not in EMPTY_LABELS))
            if merged or not isinstance(row[-1], str):
                items[i] = (*row[:-1], merged[0] if isinstance(row[-1], str) else merged)
                kept.append(i)
        lost = len(items) - len(kept)
        subject, verb = ("1 row", "is") if lost == 1 else (f"{lost:,} rows", "are")
        notes = (f"{subject} whose label looks empty {verb} left out",) if lost else ()
        return replace(replace(examples, items=items).select(kept), notes=(*examples.notes, *notes))

    @classmethod
    def split_validation(cls, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        check_classes(examples)
        train, valid = split_by_label(examples, [row[-1] for row in examples.items], seed)
        return train, valid, "drawn at random, every label in proportion"

    @classmethod
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        if train.columns.keys() != valid.columns.keys():
            read = [", ".join(map(repr, part.columns.values())) for part in (train, valid)]
            raise InputError(
                f"training has the columns {read[0]}, validation {read[1]}: one has a text more",
                hint="name the columns with --text, --pair and --label",
            )
        check_classes(replace(train, items=[*train.items, *valid.items]))
        labels = [(row[-1], where) for row, where in zip(valid.items, valid.locations, strict=True)]
        check_known("label", labels, count_values([row[-1] for row in train.items]))

    @classmethod
    def identity_of(cls, example: Any) -> Any:
        return example[:-1]  # a text with two labels is still one text

    @classmethod
    def group_rows(cls, examples: Examples) -> list[int]:
        """Return a number for every row: rows that share a text, of a pair one of the two, have the same.

        Where nearly all share one, as a question that is asked of every text, only whole inputs count.
        """
        for whole in (False, True):
            group, first = list(range(len(examples))), dict[Any, int]()

            def find_root(i: int, group: list[int] = group) -> int:
                while group[i] != i:
                    i = group[i]
                return i

            for i, row in enumerate(examples.items):
                texts = tuple(map(fold_label, row[:-1]))
                for key in (texts,) if whole else texts:
                    group[find_root(i)] = find_root(first.setdefault(key, i))
            roots = [find_root(i) for i in range(len(group))]
            if 2 * max(count_values(roots).values(), default=0) <= len(roots):
                return roots
        return list(range(len(examples)))

    @classmethod
    def facts(cls, train: Examples, valid: Examples) -> dict[str, Any]:
        return {"labels": count_values([row[-1] for row in (*train.items, *valid.items)])}

    @classmethod
    def best_guess(cls, train: Examples) -> str | None:
        return next(iter(count_values([row[-1] for row in train.items])))

    def guess_answers(self, examples: Examples, guess: str) -> list[Any]:
        return [{"label": guess}] * len(examples)

    @classmethod
    def training_defaults(cls, train: Examples) -> TrainingDefaults:
        classes = len({row[-1] for row in train.items})
        if classes < MANY_CLASSES:
            return cls.training
        # A new head of many is far from settled after so many careful steps.
        return replace(cls.training, lr=2e-4, steps=max(cls.training.steps, 3 * classes))

    @classmethod
    def check_model(cls, model: Model) -> None:
        if cls.head not in model.family.heads:
            has = f"a {model.family.name} model has no {cls.head!r} head"
            raise InputError(has, hint="take an encoder, such as all-minilm-l6-v2")

    @classmethod
    def prefers_linear_head(cls, model: Model, examples: Examples) -> bool:
        trained = cls.has_labels(model, examples) and not model.config.classifier_pooling
        return isinstance(model, LM) and not trained and are_few([row[-1] for row in examples.items])

    @classmethod
    def name_examples(cls, examples: Examples) -> Examples:
        """Return an example more for every class, its name as a text, if the names are words.

        "BookRestaurant" and "card_arrival" are; "0", "LABEL_3" and "B" are not. Two texts have no such name.
        """
        labels = cls.label_order(examples)
        names = [
            re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"[\W_]+", " ", label)).strip() for label in labels
        ]
        words = {"".join(c for c in name.lower() if c.isalpha()) for name in names}
        if len(words) < len(labels) or any(len(word) < 3 for word in words) or len(examples.items[0]) != 2:
            return examples.select([])
        rows = [(name.lower(), label) for name, label in zip(names, labels, strict=True)]
        return replace(examples, items=rows, locations=["the name of a class"] * len(rows), notes=())

    @classmethod
    def has_labels(cls, model: Model, train: Examples) -> bool:
        """Return whether the model has a head for the labels of these examples."""
        return model.config.head == cls.head and set(model.label_names) == set(cls.label_order(train))

    @classmethod
    def label_order(cls, train: Examples) -> tuple[str, ...]:
        """Return the labels in order: as numbers if all are numbers, else by name."""
        names = {str(row[-1]) for row in train.items}
        return tuple(sorted(names, key=float if all(map(is_numeric, names)) else str))

    @classmethod
    def attach_head(cls, model: Model, train: Examples, seed: int) -> tuple[Model, str]:
        if cls.has_labels(model, train):
            return model, f"its own head, of {len(model.label_names)} classes"
        return super().attach_head(model, train, seed)

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        pair = len(examples.items[0]) == 3
        return data.classify(
            examples.table(options.length, 1 + pair), self.tokenizer, text=0, pair=1 if pair else None,
            label=1 + pair, labels=self.labels, **row_keywords(options),
        )  # fmt: skip

    def inputs(self, examples: Examples) -> tuple[Any, ...]:
        one = lambda row: row[0] if len(row) == 2 else {"text": row[0], "text_pair": row[1]}
        return ([one(row) for row in examples.items],)

    def check_truth(self, examples: Examples) -> None:
        file = f"{examples.path}, " if examples.path else ""
        lines = zip(examples.items, examples.locations, strict=True)
        check_labels(self.model, [(row[-1], f"{file}{where}") for row, where in lines])

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        return self.label_scores(examples, [answer["label"] for answer in answers])

    def label_scores(
        self, examples: Examples, guesses: Sequence[str], trials: float | None = None
    ) -> dict[str, Any]:
        """Return the scores of labels; `trials` is how many independent ones they count as."""
        return class_scores([row[-1] for row in examples.items], guesses, trials)

    def compare_logits(self, examples: Examples, logits: Tensor, trials: float) -> dict[str, Any]:
        guesses = [self.labels[i] for i in logits.argmax(1).tolist()]
        return self.label_scores(examples, guesses, trials)


def are_few(labels: Sequence[str]) -> bool:
    """Return whether a linear head is the better choice for rows of these labels."""
    return len(labels) <= MAX_ROWS_PER_CLASS * len(set(labels))


def check_classes(examples: Examples) -> None:
    """Raise InputError for labels that are no classes: all the same, or nearly all different."""
    names = count_values([row[-1] for row in examples.items])
    if len(names) < 2:
        only = f"every row has the label {next(iter(names))!r}"
        raise InputError(f"{only}: there is nothing to tell apart", hint="is it the right column?")
    if len(names) > MAX_CLASSES or len(names) * 2 > len(examples) > 20:
        many = f"{len(names):,} different labels in {len(examples):,} rows"
        hint = "is it the right column?"
        if all(map(is_numeric, names)):
            hint = "they are numbers: round them to a few classes, and say --order numbers"
        raise InputError(f"column {examples.columns['label']!r} has {many}", hint=hint)


# zero-shot-classification: labels that the model was never trained on, given with the question.


# What sentence encoders multiply cosines with in the softmax they are trained with. On topics, sentiment and
# emotions it also gives the right label a higher likelihood than 10 or 30 do, or nearly so.
COSINE_SCALE = 20.0

# By the kind of head. The first is transformers' own; cosines are better with the subject named as such.
TEMPLATES = {"classify": "This example is {}.", "none": "This text is about {}."}


class ZeroShot(Task):
    """Each label becomes a hypothesis and is judged beside the text.

    By a classifier of entailment (Yin et al. 2019): p = softmax over the labels of the logit of "entailment"
    of (text, hypothesis); with `multi_label` softmax over "entailment" and "contradiction" for each label.

    By a sentence encoder, if the model has no classifying head: p = softmax over the labels of
    20 · cos(text, hypothesis), the very softmax such encoders are trained with; with `multi_label` each label
    stands against the hypothesis of none, σ(20 · (cos(text, hypothesis) − cos(text, empty template))).
    It knows topics well and negation badly: a label and its opposite are near each other.
    """

    heads = ("classify", "none")
    needs = "a classifier of entailment (classify) or a sentence encoder (no head)"
    fields = ("text", "labels")

    @classmethod
    def fits(cls, model: Model) -> bool:
        """Return whether it is a sentence encoder, or a classifier with a class of entailment."""
        return super().fits(model) and (model.config.head == "none" or entailment_class(model) is not None)

    @property
    def equation(self) -> str:
        if self.model.config.head == "classify":
            return "softmax over the labels of the logit of entailment of (text, hypothesis)"
        return (
            f"softmax over the labels of {COSINE_SCALE:.0f} · cosine(text, hypothesis) of a sentence encoder"
        )

    def predict(
        self,
        sequences: Any,
        candidate_labels: str | Sequence[str] = (),
        *,
        hypothesis_template: str | None = None,
        multi_label: bool = False,
        truncation: bool | str = "only_first",
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return {"sequence", "labels", "scores"}, the likeliest label first; a list for a list.

        `candidate_labels` is a list, or a string with commas. `hypothesis_template` None is the sentence that
        suits the kind of model, TEMPLATES. Of a long text the end is cut and reported.
        """
        names = parse_labels(candidate_labels)
        template = hypothesis_template or TEMPLATES[self.model.config.head]
        hypotheses = [_fill_template(template, name) for name in names]
        independent = multi_label or len(names) == 1  # each label is judged alone
        by_entailment = self.model.config.head == "classify"
        judge = self.entailment_scores if by_entailment else self.cosine_scores
        blank = [] if by_entailment else [_fill_template(template, "")]

        def predict_batch(texts: list[str]) -> list[dict[str, Any]]:
            if "" in texts:
                raise InputError(f"input {texts.index('')} is empty", hint="give a text to be judged")
            found = []
            judged = judge(texts, [*hypotheses, *blank], independent, truncation, batch_size)
            for text, scores in zip(texts, judged, strict=True):  # (labels,) for each text
                order = scores.argsort(descending=True, stable=True).tolist()
                ranked = {"labels": [names[i] for i in order], "scores": [float(scores[i]) for i in order]}
                found.append({"sequence": text, **ranked})
            return found

        return map_inputs(sequences, predict_batch, batch_size)

    def entailment_scores(
        self, texts: list[str], hypotheses: list[str], independent: bool, truncation: Any, batch_size: int
    ) -> Tensor:
        """Return (texts, labels) by a classifier of entailment."""
        pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
        found = self.forward(self.tokenize(pairs, truncation=truncation), batch_size=batch_size)
        logits = torch.stack(found).unflatten(0, (len(texts), len(hypotheses)))
        yes = entailment_class(self.model)
        assert yes is not None
        no = -1 if yes == 0 else 0  # where every published classifier of entailment keeps contradiction
        return logits[..., [no, yes]].softmax(-1)[..., 1] if independent else logits[..., yes].softmax(-1)

    def cosine_scores(
        self, texts: list[str], hypotheses: list[str], independent: bool, truncation: Any, batch_size: int
    ) -> Tensor:
        """Return (texts, labels) by the cosines of a sentence encoder; the last hypothesis is of none."""
        x = sentence_vectors(
            self, [*texts, *hypotheses], truncation=truncates(truncation), batch_size=batch_size
        )
        cosines = x[: len(texts)] @ x[len(texts) :].T * COSINE_SCALE
        labels, none = cosines[:, :-1], cosines[:, -1:]
        return (labels - none).sigmoid() if independent else labels.softmax(-1)


def entailment_class(model: Model) -> int | None:
    """Return the number of the class of entailment among a model's labels, or None."""
    named = (i for i, name in enumerate(model.label_names) if name.lower().startswith("entail"))
    return next(named, None)


def parse_labels(candidates: str | Sequence[str]) -> list[str]:
    """Return the labels of a list, or of a string with commas."""
    if isinstance(candidates, str):
        names = [label.strip() for label in candidates.split(",")]
    else:
        names = list(candidates) if isinstance(candidates, Iterable) else []
    if any(names) and all(isinstance(label, str) for label in names):
        return [label for label in names if label]
    raise InputError(f"candidate_labels must name at least one label, each a text; got {candidates!r:.60}")


def _fill_template(template: str, label: str) -> str:
    try:
        made = template.format(label)
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        raise InputError(f"hypothesis_template={template!r} cannot be filled in ({error})") from None
    if made == template:
        raise InputError(f"hypothesis_template={template!r} has no {{}} where the label goes")
    return made
