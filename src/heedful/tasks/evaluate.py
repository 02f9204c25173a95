"""Evaluate a trained model on files: `heed eval`. A task's own `score` measures what its pipeline answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from heedful import data
from heedful.core.errors import ConfigError, InputError, nearest
from heedful.core.files import expand_paths, stem_path
from heedful.core.progress import report_progress
from heedful.data.input_files import read_input_file
from heedful.data.readers import TABLE_KINDS, Table, parallel_documents, table_delimiter
from heedful.data.token_cache import tokenize_documents
from heedful.data.tokenization import find_template
from heedful.models.base import LM, Model, evaluation_mode
from heedful.tasks.examples import MESSAGES, ColumnFlags, Examples, check_flags, infer_file_task, list_unused
from heedful.tasks.finetune.request import EvaluationRequest
from heedful.tasks.label_kinds import label_kind_of, merge_labels
from heedful.tasks.metrics.perplexity import perplexity
from heedful.tasks.metrics.scores import correlation_scores
from heedful.tasks.pipelines.text_classification import TextClassification
from heedful.tasks.registry import bind_task, trainable_tasks
from heedful.tasks.task import TrainableTask
from heedful.tasks.task_specification import TaskSpecification
from heedful.train.recipes.prepare import TrainingData
from heedful.train.recipes.progress import LineReporter, ProgressReporter


def evaluate(model: Model, task: str, request: EvaluationRequest) -> dict[str, Any]:
    """Return the metrics of a task."""
    request, tasks = request.with_columns(task), trainable_tasks()
    if task in MEASURES:
        with evaluation_mode(model):
            return MEASURES[task](model, request)
    if task not in tasks:
        known = [*MEASURES, *tasks]
        hint = nearest(task, known) or f"one of {', '.join(known)}"
        raise ConfigError(f"no task is called {task!r}", hint=hint)
    kind = tasks[task]
    kind.check_model(model)
    settings, rows = dict(request.options), {"batch": request.batch}
    rows |= {} if request.length is None else {"length": request.length}
    learnt = TaskSpecification.of(model)
    learnt = learnt if learnt is not None and learnt.command == kind.command else None
    examples, facts = read_examples(kind, model, request.files, settings, learnt)
    examples = examples.first(None if request.limit is None else request.limit * request.batch)
    lines = ProgressReporter() if request.quiet else LineReporter()

    def report(number: int) -> None:
        if sys.stderr.isatty():
            report_progress("examples", number, len(examples))
        else:
            lines.step({"step": number, "steps": len(examples)})

    scores = bind_task(kind, model).score(
        examples, report=report if kind.by_loss else None, **(settings | rows)
    )
    first = {name: scores.pop(name) for name in ("first",) if name in scores}
    return scores | facts | first


def read_examples(
    task: type[TrainableTask], model: Model, files: Sequence[str], settings: dict[str, Any],
    learnt: TaskSpecification | None = None,
) -> tuple[Examples, dict[str, Any]]:  # fmt: skip
    """Return the examples of files, and which columns they come from; take the settings that name columns.

    `learnt` is what the model learnt from: columns of these names are taken, and others are refused.
    """
    flags, encoding = take_columns(settings), settings.pop("encoding", "utf-8")
    if len(files) == 2 and "lines" in task.file_kinds:
        if any(flags.values()):
            raise ConfigError("two files of lines have no columns", hint="leave --text and --label out")
        return read_parallel_lines(files, encoding)
    if "lines" in task.file_kinds and len(files) > 2:
        raise InputError(
            f"{task.command} reads one table or two files of lines", hint=f"got {len(files)} files"
        )
    parts = [read_one_file(task, model, path, flags, encoding, learnt) for path in files]
    examples = parts[0] if len(parts) == 1 else join_examples(parts)
    columns = {"columns": list(examples.columns.values())} if examples.columns else {}
    columns |= {"unused_columns": list(examples.unused)} if examples.unused else {}
    return examples, columns | ({"left_out": list(examples.notes)} if examples.notes else {})


def join_examples(parts: Sequence[Examples]) -> Examples:
    """Return the examples of several files as one."""
    name = lambda part, where: f"{part.path}, {where}" if part.path else where
    return Examples(
        [item for part in parts for item in part.items],
        [name(part, where) for part in parts for where in part.locations],
        parts[0].columns,
        tuple(note for part in parts for note in part.notes),
        unused=tuple(dict.fromkeys(name for part in parts for name in part.unused)),
    )


def take_columns(settings: dict[str, Any]) -> dict[str, str | None]:
    """Take the columns that settings name: text, label and pair, or text and label in columns=[…]."""
    both = settings.pop("columns", None)
    names = both.split(",") if isinstance(both, str) else [] if both is None else list(both)
    if both is not None and len(names) != 2:
        raise ConfigError(f"columns={both!r} must be two: the text, and what is expected of it")
    text, label = [str(name).strip() for name in names] or (None, None)
    found = {
        "--text": settings.pop("text", settings.pop("word", text)),
        "--label": settings.pop("label", settings.pop("column", label)), "--pair": settings.pop("pair", None),
    }  # fmt: skip
    return {flag: None if name is None else str(name) for flag, name in found.items()}


def read_parallel_lines(files: Sequence[str], encoding: str) -> tuple[Examples, dict[str, Any]]:
    """Return pairs of the lines of two files; a line that one of them leaves empty is left out."""
    sides = parallel_documents(list(files), None, encoding)
    texts, truths = (["".join(document).strip() for document in side] for side in sides)
    both = list(zip(texts, truths, strict=True))
    kept = [i for i, pair in enumerate(both) if all(pair)]
    if not kept:
        raise InputError(f"{files[0]} and {files[1]} have no line where both hold text")
    examples = Examples(both, [f"line {i}" for i in range(1, len(both) + 1)]).select(kept)
    return examples, {"left_out": len(both) - len(kept)} if len(kept) < len(both) else {}


def read_one_file(
    task: type[TrainableTask], model: Model, path: str, flags: ColumnFlags, encoding: str,
    learnt: TaskSpecification | None,
) -> Examples:  # fmt: skip
    """Return the examples of one file; columns are those learnt from, or found as in `heed finetune`."""
    named = [name for name in flags.values() if name is not None]
    if "lines" in task.file_kinds:
        check_table(task, path)
    source = read_input_file(path, encoding=encoding, kinds=task.file_kinds)
    if named and all(name.isdigit() for name in named) and source.kind == "table":
        source = read_input_file(path, encoding=encoding, kinds=task.file_kinds, header=False)
    usual = {name for role in task.roles.values() for name in role.names}
    known = named or usual & {name.lower() for name in source.columns}
    if not known and "lines" in task.file_kinds:
        bare = read_input_file(path, encoding=encoding, kinds=task.file_kinds, header=False)
        if len(bare.columns) == 2 and bare.columns != source.columns:  # those of JSON have names anyway
            return task.read_examples(bare, {"--text": bare.columns[0], "--label": bare.columns[1]})
    infer_file_task(source, trainable_tasks(), task.command)
    check_flags(source, flags)
    if learnt is not None:
        flags = learnt.complete_flags(flags, source.all_columns, task.roles)
    if issubclass(task, TextClassification):
        examples = task.read_examples(source, flags, label_kind_of(model))
    else:
        examples = task.read_examples(source, flags)
    if learnt is not None:
        learnt.check_columns(path, examples.columns, task.roles)
        examples = merge_labels(examples, learnt.labels) if learnt.merge_labels else examples
    return replace(examples, unused=tuple(list_unused(source, examples.columns)))


def check_table(task: type[TrainableTask], path: str) -> None:
    """Raise InputError for a file that is no table."""
    try:
        table_delimiter(expand_paths(path)[0])
    except InputError:
        raise InputError(
            f"{task.command} needs texts and what is expected of them: one .csv, .tsv or .jsonl file with "
            "both, or two files of as many lines",
            hint=f"got {path} alone",
        ) from None


def default_task(model: Model, files: Sequence[str] = ()) -> str:
    """Return the task that a model was fine-tuned for, or else the one that its head tells.

    The config.json of a published cross-encoder says how it scores. Files of conversations are for a model
    that has a chat template.
    """
    head, learnt = model.config.head, TaskSpecification.of(model)
    if learnt is not None:
        return learnt.command
    if head == "none" and isinstance(model, LM) and model.pooling is not None:
        return "similarity"
    if head == "lm":
        talks = model.tokenizer.chat_template is not None and any(map(holds_conversations, files))
        return ("chat" if talks else "perplexity") if isinstance(model, LM) else "translate"
    if head == "classify":
        one = "rerank" if "sentence_transformers" in model.hf_config else "regress"
        return one if model.config.labels == 1 else "classify"
    return {"tag": "tag", "span": "answer"}.get(head, "perplexity")


def holds_conversations(file: str) -> bool:
    """Return whether a file is a table with a column of messages."""
    return stem_path(Path(file)).suffix.lower() in TABLE_KINDS and bool(
        {*MESSAGES[:2]} & {*Table(file).names}
    )


def measure_perplexity(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return the perplexity of a text as one stream, per token and per character."""
    reading = {"length": 1, "batch": 1, "holdout": 0.0} | dict(request.options)
    documents = TrainingData("next_token", request.files, (), reading).documents(request.files)
    around = find_template(model.tokenizer, end=True)
    after = () if "line_end" in request.options else around.after  # the last line has its end already
    tokens = tokenize_documents(documents, model.tokenizer, before=around.before, after=after)
    stream = tokens.flat[: request.limit]
    if not isinstance(model, LM) or not model.causal or model.config.head != "lm":
        kind = f"this is a {model.family.name} with a {model.config.head!r} head"
        way = default_task(model)
        way_out = "which none of its tasks measures" if way == "perplexity" else f"try --task {way}"
        raise InputError("perplexity is of models that predict the next token", hint=f"{kind}, {way_out}")
    found = perplexity(model, stream, length=request.length, stride=request.stride, batch=request.batch)
    scores = {"perplexity": found.perplexity, "loss": found.loss, "tokens": found.tokens}
    if request.limit is not None and request.limit < len(tokens.flat):
        return scores
    characters = sum(len(text) for document in documents for text in document)
    return scores | {"characters": characters, "bits_per_character": found.per(characters)}


@torch.no_grad()
def measure_regression(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return the correlations of the model's number with the true scores."""
    length = {"length": request.length} if request.length else {}
    options = dict(request.options) | {"batch": request.batch} | length
    batches = data.regress(request.source, model.tokenizer, **options)
    truth: list[float] = []
    guess: list[float] = []
    for batch in islice(batches.once(), request.limit):
        there = batch.to(model.device)
        types = {"types": there.types} if isinstance(model, LM) else {}
        truth += batch.extra["score"].tolist()
        guess += model(there.tokens, valid=there.valid, **types).float().squeeze(-1).tolist()
    return correlation_scores(truth, guess)


MEASURES: dict[str, Callable[[Model, EvaluationRequest], dict[str, Any]]] = {
    "perplexity": measure_perplexity,
    "regress": measure_regression,
}
