"""Evaluate a trained model on files: `heed eval`. A task's own `score` measures what its pipeline answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heedful.core.errors import ConfigError, InputError, nearest
from heedful.core.files import expand_paths, stem_path
from heedful.data.input_files import read_input_file
from heedful.data.readers import TABLE_KINDS, Table, parallel_documents, table_delimiter
from heedful.data.token_cache import tokenize_documents
from heedful.data.tokenization import find_template
from heedful.models.base import LM, MediaLM, Model, evaluation_mode
from heedful.tasks.examples import (
    MESSAGES,
    Examples,
    check_flags,
    infer_file_task,
    learnt_columns_named,
    list_unused,
)
from heedful.tasks.finetune.request import EvaluationRequest
from heedful.tasks.label_kinds import label_kind_of, merge_labels
from heedful.tasks.metrics.perplexity import perplexity
from heedful.tasks.pipelines.text_classification import TextClassification
from heedful.tasks.registry import bind_task, find_task, infer_task, trainable_tasks
from heedful.tasks.task import TrainableTask
from heedful.tasks.task_specification import TaskSpecification
from heedful.train.recipes.prepare import TrainingData


def evaluate(model: Model, task: str, request: EvaluationRequest) -> dict[str, Any]:
    """Return the metrics of a task; for classes also `confusion`, {true label: {predicted label: rows}}.

    A model that was fine-tuned reads texts as in training: its columns, its length, its labels.
    """
    tasks = trainable_tasks()
    if task == "perplexity":
        with evaluation_mode(model):
            return measure_perplexity(model, request)
    if task not in tasks:
        names = ["perplexity", *tasks]
        hint = nearest(task, names) or f"one of {', '.join(names)}"
        raise ConfigError(f"no task is called {task!r}", hint=hint)
    kind = tasks[task]
    kind.check_model(model)
    learnt = TaskSpecification.of(model, kind.command)
    length = request.length
    if length is None and learnt is not None and kind.metric != "loss":  # there it is of what is written
        length = learnt.max_length
    limit = "max_tokens" if kind.metric == "loss" else "length"  # of an answer, or of what is read
    settings = {"batch": request.batch, limit: length} | dict(request.options)
    examples, facts = read_examples(kind, model, request, learnt)
    examples = examples.first(None if request.limit is None else request.limit * request.batch)
    bound = bind_task(kind, model)
    if not isinstance(bound, TextClassification) or bound.label_kind.several:
        scores = bound.score(examples, **settings)
    else:
        answers = bound.answer_examples(examples, **settings)
        scores, confusion = bound.compare(examples, answers), dict[str, dict[str, int]]()
        for row, answer in zip(examples.items, answers, strict=True):
            guesses = confusion.setdefault(row[-1], {})
            guesses[answer["label"]] = guesses.get(answer["label"], 0) + 1
        facts["confusion"] = {label: confusion[label] for label in bound.labels if label in confusion}
    first = {name: scores.pop(name) for name in ("first",) if name in scores}
    return scores | facts | first


def deciding_metric(task: str, scores: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the name of the metric that decides about a task, and whether a high one is good."""
    kind = trainable_tasks().get(task)
    if kind is not None and not kind.highest and kind.metric in scores:
        return kind.metric, False
    first = next(name for name, value in scores.items() if isinstance(value, int | float))
    return first, first not in ("perplexity", "loss")


def read_examples(
    task: type[TrainableTask], model: Model, request: EvaluationRequest, learnt: TaskSpecification | None
) -> tuple[Examples, dict[str, Any]]:
    """Return the examples of files, and which columns they come from.

    `learnt` is what the model learnt from: columns of these names are taken, and others are refused.
    """
    files = request.files
    if len(files) == 2 and "lines" in task.file_kinds:
        if any(request.column_flags.values()):
            raise ConfigError("two files of lines have no columns", hint="leave `text=` and `label=` out")
        return read_parallel_lines(files, request.encoding)
    if "lines" in task.file_kinds and len(files) > 2:
        raise InputError(
            f"{task.command} reads one table or two files of lines", hint=f"got {len(files)} files"
        )
    parts = [read_one_file(task, model, path, request, learnt) for path in files]
    examples = parts[0]
    if len(parts) > 1:
        name = lambda part, where: f"{part.path}, {where}" if part.path else where
        examples = Examples(
            [item for part in parts for item in part.items],
            [name(part, where) for part in parts for where in part.locations],
            examples.columns, tuple(note for part in parts for note in part.notes),
            unused=tuple(dict.fromkeys(name for part in parts for name in part.unused)),
        )  # fmt: skip
    columns = {"columns": list(examples.columns.values())} if examples.columns else {}
    columns |= {"unused_columns": list(examples.unused)} if examples.unused else {}
    return examples, columns | ({"left_out": list(examples.notes)} if examples.notes else {})


def read_parallel_lines(files: Sequence[str], encoding: str) -> tuple[Examples, dict[str, Any]]:
    """Return pairs of the lines of two files; a line that one of them leaves empty is left out."""
    sides = parallel_documents(list(files), None, encoding)
    texts, truths = (["".join(document).strip() for document in side] for side in sides)
    both = list(zip(texts, truths, strict=True))
    filled = [i for i, pair in enumerate(both) if all(pair)]
    if not filled:
        raise InputError(f"{files[0]} and {files[1]} have no line where both hold text")
    examples = Examples(both, [f"line {i}" for i in range(1, len(both) + 1)]).select(filled)
    return examples, {"left_out": len(both) - len(filled)} if len(filled) < len(both) else {}


def read_one_file(
    task: type[TrainableTask], model: Model, path: str, request: EvaluationRequest,
    learnt: TaskSpecification | None,
) -> Examples:  # fmt: skip
    """Return the examples of one file; columns are those learnt from, or found as in `heed finetune`."""
    flags = request.column_flags
    read = lambda header: read_input_file(
        path, encoding=request.encoding, kinds=task.file_kinds, header=header
    )
    in_memory = path in request.tables
    if "lines" in task.file_kinds and not in_memory:
        try:
            table_delimiter(expand_paths(path)[0])
        except InputError:
            needs = "one .csv, .tsv or .jsonl file with both, or two files of as many lines"
            what = f"{task.command} needs texts and what is expected of them: {needs}"
            raise InputError(what, hint=f"got {path} alone") from None
    source = request.tables[path] if in_memory else read(request.header)
    usual = {name for role in task.roles.values() for name in role.names}
    if not any(flags.values()) and not in_memory and "lines" in task.file_kinds:
        bare = read(False) if not usual & {name.lower() for name in source.columns} else source
        if len(bare.columns) == 2 and bare.columns != source.columns:  # those of JSON have names anyway
            return task.read_examples(bare, {"--text": bare.columns[0], "--label": bare.columns[1]})
    infer_file_task(source, trainable_tasks(), task.command)
    check_flags(source, flags)
    if learnt is not None:
        flags = learnt.complete_flags(flags, source.all_columns, task.roles)
    with learnt_columns_named(learnt):
        if issubclass(task, TextClassification):
            separator = request.separator or (learnt.separator if learnt is not None else None)
            kind = replace(label_kind_of(model), separator=separator or "")
            examples = task.read_examples(source, flags, kind)
        else:
            examples = task.read_examples(source, flags)
    if learnt is not None:
        learnt.check_columns(path, examples.columns, task.roles)
        examples = merge_labels(examples, learnt.labels) if learnt.merge_labels else examples
        if learnt.data_sha256 and learnt.data_sha256 == source.sha256:
            note = f"the model learnt from {path}: expect a lower score on other rows"
            examples = replace(examples, notes=(*examples.notes, note))
    return replace(examples, unused=tuple(list_unused(source, examples.columns)))


def default_task(model: Model, files: Sequence[str] = ()) -> str:
    """Return the task that a model was fine-tuned for, or else the one that its head tells.

    The config.json of a published cross-encoder says how it scores. Files of conversations are for a model
    that has a chat template.
    """
    head, learnt = model.config.head, TaskSpecification.of(model)
    if learnt is not None:
        return learnt.command
    if head == "lm" and isinstance(model, LM):
        is_table = lambda file: stem_path(Path(file)).suffix.lower() in TABLE_KINDS
        has_messages = lambda file: is_table(file) and bool({*MESSAGES[:2]} & {*Table(file).names})
        talks = model.tokenizer.chat_template is not None and any(map(has_messages, files))
        return "chat" if talks else "perplexity"
    if head == "classify" and model.config.labels == 1 and not isinstance(model, MediaLM):
        return "rerank" if "sentence_transformers" in model.hf_config else "regress"
    task = infer_task(model)
    usual = "translate" if task == "text2text-generation" else "perplexity"
    return str(getattr(find_task(task).load(), "command", usual))


def measure_perplexity(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return the perplexity of a text as one stream, per token and per character."""
    known = ("line_end", "unit")
    if unknown := [name for name in request.options if name not in known]:
        hint = nearest(unknown[0], known) or f"there are {', '.join(known)}"
        raise ConfigError(f"perplexity has no option {unknown[0]!r}", hint=hint)
    reading = {"encoding": request.encoding} | dict(request.options)
    documents = TrainingData("next_token", request.files, (), reading).documents(request.files)
    around = find_template(model.tokenizer, end=True)
    after = () if "line_end" in request.options else around.after  # the last line has its end already
    tokens = tokenize_documents(documents, model.tokenizer, before=around.before, after=after)
    stream = tokens.flat[: request.limit]
    if not isinstance(model, LM) or not model.causal or model.config.head != "lm":
        kind = f"this is a {model.family.name} with a {model.config.head!r} head"
        way = default_task(model)
        way_out = "which none of its tasks measures" if way == "perplexity" else f"try `task={way}`"
        raise InputError("perplexity needs a model that predicts the next token", hint=f"{kind}, {way_out}")
    result = perplexity(model, stream, length=request.length, stride=request.stride, batch=request.batch)
    scores = {"perplexity": result.perplexity, "loss": result.loss, "tokens": result.tokens}
    if request.limit is not None and request.limit < len(tokens.flat):
        return scores
    characters = sum(len(text) for document in documents for text in document)
    return scores | {"characters": characters, "bits_per_character": result.per(characters)}
