"""text-classification: a label for a whole text, or for a pair of texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.checks import check_choice, check_integer
from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import BalancedOrder, Batches
from heedful.data.examples.classification import is_numeric, text_batches
from heedful.data.input_files import InputFile
from heedful.models.base import LM, Model
from heedful.tasks.examples import (
    ROLES,
    ColumnFlags,
    Examples,
    check_known,
    check_labels,
    check_same_columns,
    count_values,
    fold_text,
    infer_columns,
    parse_rows,
    parse_table,
    split_by_label,
    split_learnable,
)
from heedful.tasks.label_kinds import (
    ONE_LABEL,
    SEVERAL,
    THRESHOLD,
    LabelKind,
    join_label_columns,
    kind_of,
    label_kind_of,
    label_names,
    labels_of,
    parse_label_list,
)
from heedful.tasks.model_inputs import BATCH_SIZE, map_inputs, rename_options, truncates
from heedful.tasks.pipelines.encoders import sentence_vectors
from heedful.tasks.task import Task, TrainableTask, TrainingDefaults
from heedful.tasks.task_specification import TaskSpecification
from heedful.train.objectives import Objective

MAX_CLASSES = 1000  # so many in a small file are not classes
MAX_ROWS_PER_CLASS = 32  # in the mean; from more on training all weights does better (docs/finetuning.md)

SCORE_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "none": lambda logits: logits,
}


def read_text_pairs(model: Model, inputs: Sequence[Any]) -> list[str | tuple[str, str]]:
    """Return inputs, each a text or {"text": …, "text_pair": …}, as texts or pairs.

    Raise InputError for one if the model learnt from the other.
    """
    pairs: list[str | tuple[str, str]] = []
    for one in inputs:
        if isinstance(one, list) and len(one) == 1 and isinstance(one[0], list) and len(one[0]) == 2:
            pairs.append((one[0][0], one[0][1]))  # as transformers once wrote a pair
        elif isinstance(one, str):
            pairs.append(one)
        elif isinstance(one, Mapping) and "text" in one:
            pairs.append(one["text"] if one.get("text_pair") is None else (one["text"], one["text_pair"]))
        else:
            raise InputError(f'a text is a string, a pair {{"text": …, "text_pair": …}}; got {one!r:.60}')
    if (learnt := TaskSpecification.of(model)) is not None:
        for number, pair in enumerate(pairs):
            learnt.check_input(1 if isinstance(pair, str) else 2, number)
    return pairs


def text_pair_inputs(rows: Sequence[tuple[str, ...]]) -> tuple[Any, ...]:
    """Return rows of one text or two as the input of a pipeline."""
    return ([row[0] if len(row) == 1 else {"text": row[0], "text_pair": row[1]} for row in rows],)


@dataclass(frozen=True, eq=False, repr=False)
class TextClassification(TrainableTask):
    """p = softmax(u) over the labels, u the logits of the classifying head.

    One label, or several that may hold at once (problem_type in config.json), are scored by a sigmoid each;
    a regression gives its number as it is.
    """

    heads = ("classify",)
    needs = "a head that labels a whole text (classify)"
    command, head = "classify", "classify"
    training = TrainingDefaults(lr=5e-5, lora_lr=1e-3, epochs=4, length=256, many_labels_lr=2e-4)
    roles = ROLES["classify"]
    learners = (Model,)

    answer_columns = ("label", "score")
    call_inputs = staticmethod(text_pair_inputs)

    label_kind: LabelKind = None  # type: ignore[assignment]  # None: as the model's config.json says

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return [{"label", "score"}]: the best label of a text; with `top_k` the best few (None: all)."""
        results = super().__call__(*inputs, **options)
        # As in transformers, the answer to one text stands in a list unless this very call gives top_k.
        first = inputs[0] if inputs else options.get("inputs")
        return [results] if isinstance(first, str) and "top_k" not in rename_options(options) else results

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
        name, top_k = self.check_ranking(function_to_apply, top_k)

        def answer(logits: Tensor) -> Any:
            if return_all_scores:
                return self.score_labels(logits, name)
            rows = self.rank_labels(logits, name)
            return rows[0] if isinstance(top_k, str) else rows[:top_k]

        def predict_batch(texts: list[Any]) -> list[Any]:
            pairs = read_text_pairs(self.model, texts)
            tokenized = self.tokenize(pairs, truncation=truncation, max_length=max_length)
            return [answer(u) for u in self.forward(tokenized, batch_size=batch_size)]

        return map_inputs(inputs, predict_batch, batch_size, (str, Mapping))

    def check_ranking(self, function_to_apply: str | None, top_k: int | str | None) -> tuple[str, Any]:
        """Return the name of the function that makes logits scores, and how many labels an answer has."""
        name = self.default_function if function_to_apply is None else function_to_apply
        name = str(getattr(name, "value", name)).lower()  # transformers' own enumeration has values
        check_choice("function_to_apply", name, SCORE_FUNCTIONS)
        return name, top_k if top_k in ("best", None) else check_integer("top_k", top_k)

    def score_labels(self, logits: Tensor, function: str | None = None) -> list[dict[str, Any]]:
        """Return {"label", "score"} of every label, in the order of the head."""
        scores = SCORE_FUNCTIONS[function or self.default_function](logits).tolist()
        return [{"label": name, "score": score} for name, score in zip(self.labels, scores, strict=True)]

    def rank_labels(self, logits: Tensor, function: str | None = None) -> list[dict[str, Any]]:
        """Return {"label", "score"} of every label, the best first."""
        return sorted(self.score_labels(logits, function), key=lambda row: -row["score"])

    def labels_that_hold(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the labels of a text that hold, of several that may hold at once: from p = ½ on."""
        return [row for row in rows if row["score"] >= THRESHOLD]

    @property
    def default_function(self) -> str:
        """The name of the function that turns this model's logits into scores."""
        problem = self.model.hf_config.get("problem_type")
        if problem == "regression":
            return "none"
        sigmoid = problem == "multi_label_classification" or self.model.config.labels == 1
        return "sigmoid" if sigmoid else "softmax"

    @classmethod
    def fits(cls, model: Model) -> bool:
        # A head that still learns a number, or has no bias, gives it standardised (number_tasks.py).
        return super().fits(model) and "regression" not in model.hf_config

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "label_kind", self.label_kind or label_kind_of(self.model))

    @property
    def metric(self) -> str:  # type: ignore[override]
        return self.label_kind.metric

    @property
    def objective(self) -> str | Objective:  # type: ignore[override]
        return self.label_kind.objective

    @classmethod
    def read_examples(
        cls, source: InputFile, column_flags: ColumnFlags, label_kind: LabelKind | None = None
    ) -> Examples:
        """Return (text, label) or (text, pair, label) of every row; where several hold, label is a tuple.

        `label_kind` is that of other examples, or of a model; None: lists of labels tell that several hold.
        """
        if label_kind is None or label_kind.several:
            source = join_label_columns(source, column_flags.get("--label") or "")
        columns = infer_columns(source, cls.command, cls.roles, column_flags)
        label = columns["label"]
        if label_kind is None:
            has_lists = any(isinstance(row.get(label), list) for row in source.rows)
            label_kind = SEVERAL if has_lists else ONE_LABEL
        if label_kind.several:
            cells = lambda row: {role: row.get(name) for role, name in columns.items()}
            parse = partial(parse_label_list, separator=label_kind.separator)
            rows = ((row.where, cells(row)) for row in source.rows)
            examples = parse_rows(source.path, rows, parse, f"read as label = {label!r}")
            return replace(examples, columns=columns, path=str(source.path), label_kind=label_kind)
        listed = next((row for row in source.rows if isinstance(row.get(label), list | dict)), None)
        if listed is not None:
            what = f"{source.path}, {listed.where}: {label!r} is {str(listed.get(label))[:60]}"
            raise InputError(what, hint="a label is a text or a number, or in every row a list of them")
        return replace(parse_table(source, columns, cls.parse_cells), label_kind=label_kind)

    @classmethod
    def parse_cells(cls, cells: Mapping[str, str]) -> tuple[str, ...]:
        *texts, label = super().parse_cells(cells)
        return (*texts, label.strip())

    @classmethod
    def split_validation(cls, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        """Split with every label in proportion. Of several at once, split at random.

        Rows with a label that only they have train, or it could not be learnt.
        """
        check_classes(examples)
        if not kind_of(examples).several:
            train, valid = split_by_label(examples, [row[-1] for row in examples.items], seed)
            return train, valid, "drawn at random, every label in proportion"
        few = "rows are too few to hold some out: their labels"
        return (*split_learnable(examples, labels_of, seed, few), "drawn at random")

    @classmethod
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        kind = kind_of(train)
        if kind.ordered:
            for row, where in [
                pair for part in (train, valid) for pair in zip(part.items, part.locations, strict=True)
            ]:
                if kind.order and row[-1] not in kind.order:
                    hint = f"`order=` has {', '.join(kind.order)}"
                    raise InputError(f"{where}: the label {row[-1]!r} has no place in the order", hint=hint)
                if not kind.order and not is_numeric(row[-1]):
                    hint = "name all labels, the lowest first, as in `order='low,middle,high'`"
                    raise InputError(f"{where}: the label {row[-1]!r} is not a number", hint=hint)
        if not kind.several:
            check_same_columns(train, valid)
        check_classes(train if kind.several else replace(train, items=[*train.items, *valid.items]))
        lines = zip(valid.items, valid.locations, strict=True)
        used = [(label, where) for row, where in lines for label in labels_of(row)]
        check_known("label", used, count_values([label for row in train.items for label in labels_of(row)]))

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
                texts = tuple(map(fold_text, row[:-1]))
                for key in (texts,) if whole else texts:
                    group[find_root(i)] = find_root(first.setdefault(key, i))
            roots = [find_root(i) for i in range(len(group))]
            if 2 * max(count_values(roots).values(), default=0) <= len(roots):
                return roots
        return list(range(len(examples)))

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        labels = [labels_of(row) for row in examples.items]
        none = sum(not names for names in labels)
        return {"labels": count_values([name for names in labels for name in names])} | (
            {"rows without a label": none} if none else {}
        )

    @classmethod
    def prefers_linear_head(cls, model: Model, examples: Examples) -> bool:
        trained = cls.has_head(model, examples) and not model.config.classifier_pooling
        few = are_few(len(examples), [label for row in examples.items for label in labels_of(row)])
        return isinstance(model, LM) and not trained and few

    @classmethod
    def name_examples(cls, examples: Examples) -> Examples:
        """Return an example more for every class, its name as a text, if the names are words.

        "BookRestaurant" and "card_arrival" are; "0", "LABEL_3" and "B" are not. Two texts have no such name,
        and neither have several labels at once.
        """
        if kind_of(examples).several:
            return examples.select([])
        labels = label_names(examples)
        names = [
            re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"[\W_]+", " ", label)).strip() for label in labels
        ]
        words = {"".join(c for c in name.lower() if c.isalpha()) for name in names}
        if len(words) < len(labels) or any(len(word) < 3 for word in words) or len(examples.items[0]) != 2:
            return examples.select([])
        rows = [(name.lower(), label) for name, label in zip(names, labels, strict=True)]
        return replace(examples, items=rows, locations=["the name of a class"] * len(rows), notes=())

    @classmethod
    def head_labels(cls, train: Examples) -> tuple[str, ...]:
        return label_names(train)

    @classmethod
    def attach_head(cls, model: Model, train: Examples, seed: int) -> tuple[Model, str]:
        made, description = super().attach_head(model, train, seed)
        if made is model:
            return made, description
        made.hf_config |= kind_of(train).head_settings
        return made, f"a new head of {len(made.label_names)} {kind_of(train).unit}"

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        """Return batches of texts with extra["label"]: (B,), or (B, C) with 1 for each label that holds."""
        columns, truth = len(examples.items[0]) - 1, self.targets(examples)
        batches = text_batches(
            "classify", examples.encode(self.tokenizer, options.length, columns), columns, self.tokenizer,
            options, "label", truth, tuple(self.labels),
        )  # fmt: skip
        return self.balance(batches, truth, options)

    def targets(self, examples: Examples) -> NDArray[Any]:
        """Return the number of each example's label, (B,), or (B, C) with 1 for each label that holds."""
        number = {name: i for i, name in enumerate(self.labels)}
        if not self.label_kind.several:
            return np.array([number[row[-1]] for row in examples.items], np.int64)
        truth = np.zeros((len(examples), len(number)), np.float32)
        for i, row in enumerate(examples.items):
            truth[i, [number[label] for label in row[-1]]] = 1
        return truth

    def balance(self, batches: Batches, truth: NDArray[Any], options: BatchOptions) -> Batches:
        """Return batches that draw every class as often, if that is the kind of the labels."""
        if not self.label_kind.balanced:
            return batches
        order = BalancedOrder(range(len(truth)), truth, options.batch, options.seed)
        return replace(batches, order=order, settings={**batches.settings, "balanced": True})

    def call_options(self, **settings: Any) -> dict[str, Any]:
        return ({"top_k": None} if self.label_kind.several else {}) | super().call_options(**settings)

    def answer_cells(self, answer: Any) -> dict[str, Any]:
        if not self.label_kind.several:
            return super().answer_cells(answer)
        holding = self.labels_that_hold(answer)
        return {name: [row[name] for row in holding] for name in self.answer_columns}

    def answer_examples(self, examples: Examples, **settings: Any) -> list[Any]:
        file = f"{examples.path}, " if examples.path else ""
        lines = zip(examples.items, examples.locations, strict=True)
        check_labels(self.model, [(name, f"{file}{at}") for row, at in lines for name in labels_of(row)])
        return super().answer_examples(examples, **settings)

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        if self.label_kind.several:
            chosen = lambda rows: {row["label"] for row in self.labels_that_hold(rows)}
        else:
            chosen = lambda row: row["label"]
        guesses = list(map(chosen, answers))
        return self.label_kind.scores([row[-1] for row in examples.items], guesses, self.labels, None)

    def compare_logits(self, examples: Examples, logits: Tensor, trials: float) -> dict[str, Any]:
        """Return the scores of logits, a row for each example, that count as N independent answers."""
        if self.label_kind.several:
            holding = logits.sigmoid() >= THRESHOLD
            guesses: list[Any] = [
                {self.labels[i] for i in row.nonzero().flatten().tolist()} for row in holding
            ]
        else:
            guesses = [self.labels[i] for i in logits.argmax(1).tolist()]
        return self.label_kind.scores([row[-1] for row in examples.items], guesses, self.labels, trials)


def are_few(rows: int, labels: Sequence[str]) -> bool:
    """Return whether a linear head is the better choice for a number of rows with these labels."""
    return rows <= MAX_ROWS_PER_CLASS * len(set(labels))


def check_classes(examples: Examples) -> None:
    """Raise InputError for labels that tell nothing apart, or that are not classes: nearly all different."""
    several, hint = kind_of(examples).several, "is it the right column?"
    names = count_values([label for row in examples.items for label in labels_of(row)])
    if several and not names:
        raise InputError("no row has a label: there is nothing to distinguish", hint=hint)
    if several and all(count == len(examples) for count in names.values()):
        same = f"every row has {', '.join(map(repr, list(names)[:3]))}"
        raise InputError(f"{same}: there is nothing to distinguish", hint=hint)
    if several and len(names) > MAX_CLASSES:
        raise InputError(f"the rows have {len(names):,} different labels", hint=hint)
    if several:
        return
    if len(names) < 2:
        only = f"every row has the label {next(iter(names))!r}"
        raise InputError(f"{only}: there is nothing to distinguish", hint=hint)
    if len(names) > MAX_CLASSES or len(names) * 2 > len(examples) > 20:
        many = f"{len(names):,} different labels in {len(examples):,} rows"
        if all(map(is_numeric, names)):
            hint = (
                "the labels are numbers: predict them with `task='regress'`, or round them and give "
                "`order='numbers'`"
            )
        raise InputError(f"column {examples.columns['label']!r} has {many}", hint=hint)


# zero-shot-classification: labels that the model was never trained on, given with the question.


# What sentence encoders multiply cosines with in the softmax they are trained with. On topics, sentiment and
# emotions it also gives the right label a higher likelihood than 10 or 30 do, or nearly so.
COSINE_SCALE = 20.0

# By the kind of head. The first is transformers' own; cosines are better with the subject named as such.
TEMPLATES = {"classify": "This example is {}.", "none": "This text is about {}."}


class ZeroShot(Task):
    """Each label becomes a hypothesis and is judged next to the text.

    By a classifier of entailment (Yin et al. 2019): p = softmax over the labels of the logit of "entailment"
    of (text, hypothesis); with `multi_label` softmax over "entailment" and "contradiction" for each label.

    By a sentence encoder, if the model has no classifying head: p = softmax over the labels of
    20 · cos(text, hypothesis), the very softmax such encoders are trained with. With `multi_label` each label
    stands against the hypothesis of none, σ(20 · (cos(text, hypothesis) − cos(text, empty template))). It
    knows topics well and negation badly: a label and its opposite are near each other.
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
        """Return {"sequence", "labels", "scores"}, the most likely label first; a list for a list.

        `candidate_labels` is a list, or a string with commas. `hypothesis_template` None is the sentence that
        suits the kind of model, TEMPLATES. A long text loses its end, which is reported.
        """
        template = hypothesis_template or TEMPLATES[self.model.config.head]
        names, hypotheses = label_hypotheses(candidate_labels, template)
        independent = multi_label or len(names) == 1  # each label is judged alone
        by_entailment = self.model.config.head == "classify"
        judge = self.entailment_scores if by_entailment else self.cosine_scores
        blank = [] if by_entailment else [_fill_template(template, "")]

        def predict_batch(texts: list[str]) -> list[dict[str, Any]]:
            if "" in texts:
                raise InputError(f"input {texts.index('')} is empty", hint="give a text to be judged")
            rows = []
            judged = judge(texts, [*hypotheses, *blank], independent, truncation, batch_size)
            for text, scores in zip(texts, judged, strict=True):  # (labels,) for each text
                order = scores.argsort(descending=True, stable=True).tolist()
                ranked = {"labels": [names[i] for i in order], "scores": [float(scores[i]) for i in order]}
                rows.append({"sequence": text, **ranked})
            return rows

        return map_inputs(sequences, predict_batch, batch_size)

    def entailment_scores(
        self, texts: list[str], hypotheses: list[str], independent: bool, truncation: Any, batch_size: int
    ) -> Tensor:
        """Return (texts, labels) by a classifier of entailment."""
        pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
        outputs = self.forward(self.tokenize(pairs, truncation=truncation), batch_size=batch_size)
        logits = torch.stack(outputs).unflatten(0, (len(texts), len(hypotheses)))
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


def label_hypotheses(labels: Any, template: str) -> tuple[list[str], list[str]]:
    """Return labels, given as a list or as a text with commas, and the template filled in with each."""
    if isinstance(labels, str):
        names = [label.strip() for label in labels.split(",")]
    else:
        names = list(labels) if isinstance(labels, Iterable) else []
    if not any(names) or not all(isinstance(label, str) for label in names):
        what = "candidate_labels must name at least one label, each a text"
        raise InputError(f"{what}; got {labels!r:.60}")
    names = [label for label in names if label]
    return names, [_fill_template(template, name) for name in names]


def entailment_class(model: Model) -> int | None:
    """Return the number of the class of entailment among a model's labels, or None."""
    named = (i for i, name in enumerate(model.label_names) if name.lower().startswith("entail"))
    return next(named, None)


def _fill_template(template: str, label: str) -> str:
    try:
        made = template.format(label)
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        raise InputError(f"`hypothesis_template={template!r}` cannot be filled in ({error})") from None
    if made == template:
        raise InputError(f"`hypothesis_template={template!r}` has no {{}} where the label goes")
    return made
