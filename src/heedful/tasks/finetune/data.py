"""The file of a fine-tuning run: a report of its contents, and the examples that are held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heedful.core.errors import ConfigError, InputError, count_of
from heedful.core.files import sha256
from heedful.core.images import image_identity
from heedful.data.input_files import InputFile, read_input_file
from heedful.models.base import Model
from heedful.tasks.examples import (
    Examples,
    check_flags,
    fold_text,
    infer_file_task,
    list_unused,
    move_to_training,
)
from heedful.tasks.finetune.request import FinetuneRequest
from heedful.tasks.label_kinds import SEVERAL, choose_label_kind, label_names, label_notes, merge_labels
from heedful.tasks.pipelines.text_classification import TextClassification
from heedful.tasks.registry import bind_task, trainable_tasks
from heedful.tasks.task import TrainableTask

MAX_NAMED_COLUMNS = 40  # of those that are not used; the JSON object names all
MAX_NAMED_LABELS = 12
Report = Callable[[str], None]  # takes a line for the user


@dataclass(frozen=True)
class SplitExamples:
    """The examples of a file in two parts, their task, and facts about the file."""

    task: type[TrainableTask]
    examples: Examples  # of the file, those held out included
    train: Examples
    valid: Examples
    facts: dict[str, Any]  # about the file
    split_method: str  # how the two parts came about

    def bind(self, model: Model) -> TrainableTask:
        """Return the task of the examples bound to a model that has its head."""
        return bind_task(self.task, model, self.examples.label_kind)


def read_and_split(request: FinetuneRequest, report: Report) -> SplitExamples:
    """Read the file, report what was found, and split off validation examples."""
    tasks = trainable_tasks()

    def open_file(path: str) -> InputFile:
        if path in request.tables:
            table: InputFile = request.tables[path]
            return table
        named = tasks.get(request.task or "")
        kinds = () if named is None else named.file_kinds
        return read_input_file(path, encoding=request.encoding, header=request.header, kinds=kinds)

    source = open_file(request.file)
    task = tasks[infer_file_task(source, tasks, request.task, request.column_flags, report)]
    check_flags(source, request.column_flags)
    classes = task if issubclass(task, TextClassification) else None
    for name in ("order", "merge_labels", "separator"):
        if classes is None and (value := getattr(request, name)):
            what = f"`{name}={value!r}`: it is only for the classes of `task=classify`"
            raise ConfigError(what, hint="leave it out")

    def read_labelled(source: InputFile, like: Examples | None = None) -> Examples:
        """Return the examples of a file; labels are of the same kind, and spelt, as those of `like`."""
        if classes is None:
            return task.read_examples(source, request.column_flags)
        kind = replace(SEVERAL, separator=request.separator) if request.separator else None
        kind = kind if like is None else like.label_kind
        examples = classes.read_examples(source, request.column_flags, kind)
        return merge_labels(examples, label_names(like) if like else ()) if request.merge_labels else examples

    examples = read_labelled(source)
    notes = () if classes is None else label_notes(examples)
    if classes is not None:
        examples = choose_label_kind(examples, request.order, request.balance)
    if request.valid is None:
        if source.kind == "text":
            train, valid, method = task.split_validation(examples, request.seed)
            method = f"{method} (seed {request.seed})"
        else:
            train, valid, method = hold_out_texts(task, examples, request.seed)
    else:
        other = open_file(request.valid)
        infer_file_task(other, tasks, task.command)
        train, valid = examples, read_labelled(other, examples)
        same = repeated_examples(task, train, valid) if source.kind != "text" else set()
        shared = [f"{len(same):,} of them are in the training file too"] if same else []
        method = "; ".join([f"{count_of(len(valid), task.unit)} of {request.valid}", *shared, *valid.notes])
    task.check_examples(train, valid)
    facts, unused = task.facts(examples), list_unused(source, examples.columns)
    for line in describe_file(task, source, examples, facts, unused):
        report(line)
    for note in notes:
        report(f"note: {note}")
    file = {"file": str(source.path), "sha256": source.sha256, "kind": source.kind, "rows": len(examples)}
    file |= {"columns": list(source.columns), "read_as": examples.columns, "unused_columns": unused}
    file |= {"left_out": list(examples.notes)} | facts | ({"label_notes": list(notes)} if notes else {})
    return SplitExamples(task, examples, train, valid, file, method)


def hold_out_texts(
    task: type[TrainableTask], examples: Examples, seed: int
) -> tuple[Examples, Examples, str]:
    """Return training and validation examples, and how they were split.

    Examples that read the same are drawn as one: a text that is learnt and held out would measure memory.
    Copies of a text that is learnt are learnt too; those of one that is held out are left out.
    """
    names, first = read_texts(task, examples), dict[str, int]()
    for i, name in enumerate(names):
        first.setdefault(name, i)
    note = ""
    try:
        train, valid, method = task.split_validation(examples.select(list(first.values())), seed)
        held_out = set(read_texts(task, valid))
        copies = [i for i, name in enumerate(names) if first[name] < i]
        learnt = [i for i in copies if names[i] not in held_out]
        train, _ = move_to_training(train, examples, learnt)
        if left := len(copies) - len(learnt):
            verbs = ("repeats", "is") if left == 1 else ("repeat", "are")
            note = f"; {left:,} more that {verbs[0]} a held-out text {verbs[1]} left out"
    except InputError:
        if len(first) == len(examples):
            raise
        train, valid, method = task.split_validation(examples, seed)  # too few are different
        same = len(repeated_examples(task, train, valid))
        note = (
            f"; {same:,} of them repeat{'s' * (same == 1)} a training text: the score says little of others"
        )
    return train, valid, f"{count_of(len(valid), task.unit)} held out, {method} (seed {seed}){note}"


def repeated_examples(task: type[TrainableTask], train: Examples, valid: Examples) -> set[int]:
    """Return which of the validation examples are among the training examples too."""
    names = set(read_texts(task, train))
    return {i for i, name in enumerate(read_texts(task, valid)) if name in names}


def read_texts(task: type[TrainableTask], examples: Examples) -> list[str]:
    """Return what is read of every example: a text with two labels is still one text.

    Case and white space do not count, which many tokenizers drop anyway. Of images the content counts.
    """
    if task.reads == "images":
        images = [row[0] for row in examples.items]
        return [sha256([image]) if isinstance(image, str) else image_identity(image) for image in images]
    texts = task.texts(examples)
    each = max(1, len(texts) // max(1, len(examples)))
    return [fold_text(" ".join(texts[i : i + each])) for i in range(0, len(texts), each)]


def describe_file(
    task: type[TrainableTask], source: InputFile, examples: Examples, facts: dict[str, Any],
    unused: Sequence[str],
) -> list[str]:  # fmt: skip
    """Return what was found in a file, line by line."""
    what = "plain text" if source.kind == "text" else count_of(len(examples), task.unit)
    lines = [f"file: {source.path}, {what}; task: {task.command}"]
    if source.columns:
        read = ", ".join(f"{role} = {name!r}" for role, name in examples.columns.items())
        more = f" and {len(unused) - MAX_NAMED_COLUMNS} more" if len(unused) > MAX_NAMED_COLUMNS else ""
        named = ", ".join(map(repr, unused[:MAX_NAMED_COLUMNS]))
        lines.append(f"columns: {read}" + (f"; not used: {named}{more}" if unused else ""))
    form = lambda name, n: f"{name} ({n:,})" if isinstance(n, int) else f"{name} {n:g}"
    for name, value in facts.items():
        if isinstance(value, dict):  # positive (520), negative (480) …
            first = ", ".join(form(label, n) for label, n in list(value.items())[:MAX_NAMED_LABELS])
            rest = len(value) - MAX_NAMED_LABELS
            lines.append(f"{name}: {first}" + (f" and {rest} more" if rest > 0 else ""))
        else:
            lines.append(f"{name}: {value:,}")
    return lines + [f"note: {note}" for note in examples.notes]
