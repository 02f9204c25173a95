"""Predictions for tables of any size: `heed predict` and `heedful.predict`.

file ── stream_rows ──▶ rows ── a window at a time, sorted by length ──▶ pipeline ──▶ rows with more columns

A window is a few thousand rows. Texts of like length share a batch in it, so that little padding is computed,
and its rows are written in their own order. Only one window is in memory. After each, the file that is being
written and the number of its rows are on disk, and the next run of the same command goes on from there. The
windows begin at the same rows again, so that it writes the same bytes.

OUT.part        what was predicted so far
OUT.part.json   the command, and how many rows and bytes of OUT.part are whole
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from heedful.core.checks import check_integer
from heedful.core.errors import ConfigError, InputError
from heedful.core.files import Paths, expand_paths, read_json, read_lines, write_text
from heedful.core.images import open_image
from heedful.core.lazy import import_optional
from heedful.core.locks import FileLock
from heedful.core.progress import print_above, report_progress
from heedful.data.examples.answer_spans import squad
from heedful.data.examples.tagging import conll
from heedful.data.input_files import (
    InputFile,
    Row,
    cell_text,
    file_kind,
    find_input_file,
    read_image_folder,
    stream_table,
    table_in_memory,
)
from heedful.models.base import evaluation_mode
from heedful.tasks.examples import ColumnFlags, infer_input_columns, input_roles
from heedful.tasks.finetune.request import PredictionRequest, check_options
from heedful.tasks.model_inputs import Truncated
from heedful.tasks.pipelines.encoders import FeatureExtraction, sentence_vectors
from heedful.tasks.pipelines.number_tasks import SentenceSimilarity
from heedful.tasks.registry import TASKS, pipeline, trainable_tasks
from heedful.tasks.task import Task, TrainableTask, file_stamp
from heedful.tasks.task_specification import TaskSpecification
from heedful.train.checkpoint import of_run
from heedful.weights.hub import resolve

WINDOW_ROWS = 2048
DIGITS = 6  # of scores and vectors
MAX_WINDOW_CHARACTERS = 4_000_000  # of a window, which has fewer rows if they are long
REPORT_SECONDS = 10.0  # between lines about progress where stderr is not a terminal
FORMATS = {".csv": ",", ".tsv": "\t", ".jsonl": "json", ".parquet": "json"}  # how OUT.part is written


@dataclass(frozen=True)
class RowPredictor:
    """A task that answers the rows of tables: which columns it reads, how it is called, what it adds."""

    task: Task
    command: str  # its name in `heed finetune`; "embed" gives vectors
    options: Mapping[str, Any]  # of every call
    new_columns: tuple[str, ...]  # that predictions add
    learnt: TaskSpecification | None

    @classmethod
    def of(cls, request: PredictionRequest) -> RowPredictor:
        """Return the predictor of a model: for the task that it learnt, that its head tells, or --task."""
        tasks = trainable_tasks()
        if request.task is not None and request.task not in (*tasks, "embed"):
            raise ConfigError("is unknown", argument="task", value=request.task, allowed=[*tasks, "embed"])
        kind = None if request.task is None else tasks.get(request.task, SentenceSimilarity)
        name = next((name for name, entry in TASKS.items() if entry.load() is kind), None)
        model = of_run(request.model) if request.base is None else request.base
        task = pipeline(name, model, device=request.device)
        command = request.task
        if command is None and not isinstance(task, TrainableTask | FeatureExtraction):
            raise InputError(
                f"predict has no columns for {task.task}", hint="name another task with `task=…`"
            )
        if command is None:
            vectors = isinstance(task, SentenceSimilarity | FeatureExtraction)
            untaught = vectors and TaskSpecification.of(task.model) is None
            command = "embed" if untaught else str(getattr(task, "command", "embed"))
        options: dict[str, Any] = {
            "batch_size": request.batch, "truncation": True, "max_length": request.length,
        }  # fmt: skip
        columns: tuple[str, ...] = ("vector",)
        if command != "embed":
            assert isinstance(task, TrainableTask)
            options = task.call_options(
                batch=request.batch, length=request.length, max_tokens=request.max_tokens
            )
            columns = task.answer_columns
        return cls(task, command, options, columns, TaskSpecification.of(task.model, command))

    def added_columns(self, source: InputFile) -> dict[str, str]:
        """Return what the new columns are called: "predicted_…" if the table has that name already.

        "Label" and "label" are one name to many databases and people.
        """
        names, taken = dict[str, str](), {name.lower() for name in source.columns}
        for name in self.new_columns:
            names[name] = name
            while names[name] in taken:
                names[name] = f"predicted_{names[name]}"
        return names

    def choose_columns(self, source: InputFile, flags: ColumnFlags) -> dict[str, str]:
        """Return which columns are read, by their roles."""
        return infer_input_columns(source, self.command, input_roles(self.command), flags, self.learnt)

    def predict(self, rows: Sequence[tuple[str, ...]]) -> list[dict[str, Any] | None]:
        """Return the new cells of rows, given by the texts that are read, or by an image.

        It is None for a row without a text, and for an image that cannot be read.
        """
        usable = [i for i, texts in enumerate(rows) if all(str(text).strip() for text in texts)]
        if self.task.reads == "images":
            usable = [i for i in usable if is_readable(rows[i][0])]
        order = sorted(usable, key=lambda i: sum(len(str(text)) for text in rows[i]))
        answers: list[dict[str, Any] | None] = [None] * len(rows)
        if order:
            with evaluation_mode(self.task.model):
                if self.command == "embed":
                    vectors = sentence_vectors(self.task, [rows[i][0] for i in order], **self.options)
                    cells: list[dict[str, Any]] = [{"vector": vector} for vector in vectors.tolist()]
                else:
                    assert isinstance(self.task, TrainableTask)
                    found = self.task(*self.task.call_inputs([rows[i] for i in order]), **self.options)
                    cells = [self.task.answer_cells(answer) for answer in found]
            for i, row in zip(order, cells, strict=True):
                answers[i] = round_numbers(row)
        return answers


def is_readable(image: Any) -> bool:
    """Return whether an image can be read; a file that is missing is an error."""
    try:
        open_image(image)
    except InputError:
        return False
    return True


def round_numbers(value: Any) -> Any:
    """Return a value with every float in it rounded: further digits tell nothing, and make files large."""
    if isinstance(value, Mapping):
        return {name: round_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [round_numbers(one) for one in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def stream_rows(path: str, request: PredictionRequest) -> tuple[InputFile, Iterator[Row]]:
    """Return a file without its rows, and its rows: of a table, sentences, questions, or lines of text."""
    if path in request.tables:
        table: InputFile = request.tables[path]
        return table, iter(table.rows)
    if Path(path).is_dir():
        images = read_image_folder(Path(path))
        return images, iter(images.rows)
    file, encoding = find_input_file(path, request.encoding)
    kind = file_kind(file, encoding, ("conll",) if request.task == "tag" else ())
    if kind == "table":
        return stream_table(path, encoding=encoding, header=request.header)
    if kind == "conll":
        rows = (Row(one.where, {"text": " ".join(one.words)}) for one in conll(file, encoding=encoding))
        return InputFile(file, kind, encoding, ("text",)), rows
    if kind == "squad":
        questions = squad(file, encoding)
        rows = (Row(q.id, {"id": q.id, "question": q.question, "context": q.context}) for q in questions)
        return InputFile(file, kind, encoding, ("id", "question", "context")), rows
    lines = enumerate(read_lines(file, encoding), 1)
    filled = (Row(f"line {i}", {"text": line.strip()}) for i, line in lines if line.strip())
    return InputFile(file, kind, encoding, ("text",)), filled


def windows(rows: Iterable[Row], columns: Sequence[str]) -> Iterator[tuple[list[Row], list[tuple[str, ...]]]]:
    """Yield rows in windows, each with the texts of its rows in these columns."""
    some, texts, size = list[Row](), list[tuple[str, ...]](), 0
    for row in rows:
        some.append(row)
        texts.append(tuple(_row_text(row.get(name)) for name in columns))
        size += sum(map(len, texts[-1]))
        if len(some) >= WINDOW_ROWS or size >= MAX_WINDOW_CHARACTERS:
            yield some, texts
            some, texts, size = [], [], 0
    if some:
        yield some, texts


def _row_text(cell: Any) -> str:
    """Return a cell as text; a list of words, as a tagger learns from, as the text that they make."""
    words = isinstance(cell, list) and bool(cell) and all(isinstance(one, str) for one in cell)
    return " ".join(cell) if words else cell_text(cell)


def predict_rows(
    predictor: RowPredictor, source: InputFile, rows: Iterable[Row], flags: ColumnFlags
) -> Iterator[list[dict[str, Any]]]:
    """Yield windows of rows with their predictions."""
    columns, new = predictor.choose_columns(source, flags), predictor.added_columns(source)
    empty = dict.fromkeys(new.values())
    for some, texts in windows(rows, list(columns.values())):
        if predictor.task.reads == "images":
            # Paths count from the table's own folder; an image in memory is taken as it is.
            images = [row.get(columns["image"]) for row in some]
            paths = [str(source.folder / row[0]) for row in texts]
            named = [isinstance(image, str) and bool(image.strip()) for image in images]
            texts = [(path if name else x,) for name, path, x in zip(named, paths, images, strict=True)]
        if "input" in columns:  # the text that an instruction is about is part of its prompt
            texts = [("\n\n".join(filter(str.strip, row)),) for row in texts]
        answers = predictor.predict(texts)
        for row in some:  # the columns of JSON are the fields of its first row
            if late := next((name for name in empty if name in row.values), None):
                what = f"{source.path}, {row.where}: the row has the field {late!r}, which a prediction needs"
                raise InputError(what, hint="give the first row that field too, or rename it")
        yield [
            row.values | (empty if answer is None else {new[name]: v for name, v in answer.items()})
            for row, answer in zip(some, answers, strict=True)
        ]


# Files of predictions: written a window at a time, so that a run that was killed can go on.


def predict_files(request: PredictionRequest) -> tuple[Path, int]:
    """Predict the rows of files and write them with their predictions; return the file and how many rows."""
    out = Path(request.out)
    form = FORMATS.get(out.suffix.lower())
    if form is None:
        raise ConfigError("has no known ending", argument="out", value=request.out, allowed=FORMATS)
    if out.suffix.lower() == ".parquet":
        import_optional("pyarrow.parquet", "a .parquet file", "write a .jsonl file")
    if out.exists():
        raise ConfigError(f"`out={out}` already exists", hint="choose another name, or delete it")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"`out={out}`: folder not found: {out.absolute().parent}", hint="make it first")
    part, state_file = out.with_name(out.name + ".part"), out.with_name(out.name + ".part.json")
    with FileLock(out.with_name(out.name + ".lock"), f"`out={out}`", "wait for it to end"):
        others = ("files", "out", "base", "tables")
        options = {name: value for name, value in vars(request).items() if name not in others}
        files = {path: stream_rows(path, request)[0].sha256 for path in request.files}
        stamp = None if request.base is not None else file_stamp(resolve(of_run(request.model)))
        job = {"options": options, "files": files, "model": stamp}
        state: dict[str, Any] = {"rows": 0, "bytes": 0, "header": []}
        if state_file.is_file():
            state = read_json(state_file)
            if state.pop("job", None) != json.loads(json.dumps(job)):
                hint = f"repeat that command, delete {part} and {state_file}, or choose another name"
                raise ConfigError(f"{part} was left by another command, or of other files", hint=hint)
            print_above(f"resuming: {state['rows']:,} rows are in {part}")
        predictor = RowPredictor.of(request)
        for path in request.files:  # a wrong one is an error now, and not after hours
            source = stream_rows(path, request)[0]
            columns = predictor.choose_columns(source, request.column_flags)
            print_above(f"{path}: {', '.join(f'{role} = {name!r}' for role, name in columns.items())}")
            for note in source.notes:
                print_above(f"note: {note}")
        try:
            with part.open("r+b" if state["bytes"] else "wb") as file:
                file.truncate(state["bytes"])
                file.seek(state["bytes"])
                rows = write_windows(predictor, request, file, form, job, state, state_file)
        finally:
            if not state_file.is_file():  # nothing to go on from
                part.unlink(missing_ok=True)
        if out.suffix.lower() == ".parquet":
            write_parquet(part, out)
            part.unlink()
        else:
            part.replace(out)
        state_file.unlink(missing_ok=True)
    return out, rows


def write_windows(
    predictor: RowPredictor, request: PredictionRequest, file: io.BufferedRandom | Any, form: str,
    job: Mapping[str, Any], state: Mapping[str, Any], state_file: Path,
) -> int:  # fmt: skip
    """Append the rows that are not written yet; return how many rows the file has then."""
    done, began, reported, cut, empty = state["rows"], time.monotonic(), time.monotonic(), False, 0
    header, skip = list[str](state["header"]), done
    for path in request.files:
        source, rows = stream_rows(path, request)
        if skip:
            passed = sum(1 for _ in islice(rows, skip))
            skip -= passed
        if skip:
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", Truncated)
            for window in predict_rows(predictor, source, rows, request.column_flags):
                if not header:
                    header = list(dict.fromkeys((*source.columns, *window[0])))
                    if form != "json":
                        file.write(format_row(dict(zip(header, header, strict=True)), header, form))
                for row in window:
                    if form != "json" and (extra := [name for name in row if name not in header]):
                        what = f"{path}: a row has the field {extra[0]!r}, which the first row does not have"
                        raise InputError(what, hint="write a .jsonl file")
                    file.write(format_row(row, header, form))
                new = predictor.added_columns(source).values()
                empty += sum(all(row[name] is None for name in new) for row in window)
                done += len(window)
                file.flush()
                os.fsync(file.fileno())
                write_text(
                    state_file, json.dumps({"job": job, "rows": done, "bytes": file.tell(), "header": header})
                )
                report_progress("rows", done)
                if time.monotonic() - reported >= REPORT_SECONDS:
                    reported = time.monotonic()
                    pace = (done - state["rows"]) / (reported - began)
                    print_above(f"{done:,} rows, {pace:,.0f} rows per second")
        cut = cut or any(issubclass(one.category, Truncated) for one in caught)
    if cut:
        limit = predictor.options.get("max_length")
        where = "where they were in training, or where the model reads no more"
        print_above(f"note: long texts are cut {where if limit is None else f'after {limit} tokens'}")
    if empty:
        what = "image that can be read" if predictor.task.reads == "images" else "text"
        print_above(
            f"note: {empty:,} {'row has' if empty == 1 else 'rows have'} no {what}, and no prediction"
        )
    return done


def format_row(row: Mapping[str, Any], header: Sequence[str], form: str) -> bytes:
    """Return a row as a line of JSON, or of cells with this delimiter."""
    if form == "json":
        return (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode()
    cells = []
    for value in (row.get(name) for name in header):
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            cells.append("|".join(value))  # several labels
        else:
            cells.append("" if value is None or value == [] else cell_text(value))  # other lists are JSON
    if form == "\t":  # quotes are text in such a file, and a cell has one line
        escape = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
        return ("\t".join(cell.translate(escape) for cell in cells) + "\n").encode()
    line = io.StringIO()
    csv.writer(line, delimiter=form, lineterminator="\n").writerow(cells)
    return line.getvalue().encode()


def write_parquet(part: Path, out: Path) -> None:
    """Turn JSON Lines into Parquet, a window at a time."""
    import pyarrow.parquet

    def tables() -> Iterator[Any]:
        with part.open(encoding="utf-8") as lines:
            while some := list(islice(lines, WINDOW_ROWS)):
                yield pyarrow.Table.from_pylist([json.loads(line) for line in some])

    schema = pyarrow.unify_schemas([table.schema for table in tables()], promote_options="permissive")
    whole = out.with_name(out.name + ".writing")
    with pyarrow.parquet.ParquetWriter(whole, schema) as writer:
        for table in tables():
            missing = [field for field in schema if field.name not in table.column_names]
            for field in missing:
                table = table.append_column(field.name, pyarrow.nulls(len(table), field.type))
            writer.write_table(table.select(schema.names).cast(schema))
    whole.replace(out)


# Predictions on many machines: rows of many files, in batches that Ray Data hands to workers.
#
# Ray Data cuts a data set into batches and calls one function on them, in as many processes as it is given,
# on one machine or on many. `BatchPredictor` is that function. Each worker makes one, and with it one copy of
# the model, and keeps it for all of its batches. The rows are those that `heedful.predict` gives.
#
#     heedful.tasks.predict_on_ray("my-model", ["a.parquet", "b.jsonl"], "predicted", workers=2)
#
#     data = ray.data.read_parquet("s3://…")                       # or in a pipeline of your own
#     data.map_batches(BatchPredictor, fn_constructor_kwargs={"model": "my-model"}, concurrency=8)


BATCH_ROWS = 512


class BatchPredictor:
    """A function of batches of rows: it adds the columns that `heedful.predict` adds.

    `options` are those of `heedful.predict`; `task="embed"` gives vectors.
    """

    def __init__(self, model: str | Path, **options: Any) -> None:
        settings = check_options("predict", PredictionRequest, options)
        self.request = PredictionRequest(model=str(model), files=[], out="", **settings)
        self.predictor = RowPredictor.of(self.request)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Return the columns of a batch and the new ones, in the order of its rows."""
        table = table_in_memory(batch, "the batch")
        predicted = predict_rows(self.predictor, table, table.rows, self.request.column_flags)
        rows = list(itertools.chain.from_iterable(predicted))
        return {name: [row.get(name) for row in rows] for name in rows[0]}


def predict_on_ray(
    model: str | Path, files: Paths, out: str | Path, *, workers: int = 2, **options: Any
) -> Path:
    """Predict the rows of many tables in `workers` processes of Ray; write Parquet files to the folder `out`.

    Files are read and predicted where Ray puts them, so every machine must reach `files`, `model` and `out`
    by the same paths. The rows of all files keep their order. The options are those of `heedful.predict`.
    """
    ray = import_optional("ray", "a prediction on many machines")
    check_integer("workers", workers)
    check_options("predict", PredictionRequest, options)
    folder = Path(out).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"`out={out}` already exists", hint="choose another name, or delete it")
    paths = [{"path": str(path.absolute())} for path in expand_paths(files)]
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    read = lambda item: (row.values for row in stream_table(item["path"])[1])  # in a worker
    # A model takes a core. Reading and writing take none, or with as many workers as cores they would wait.
    rows = ray.data.from_items(paths, override_num_blocks=len(paths)).flat_map(read, num_cpus=0)
    predicted = rows.map_batches(
        BatchPredictor, fn_constructor_kwargs={"model": str(model), **options}, batch_size=BATCH_ROWS,
        concurrency=workers,
    )  # fmt: skip
    predicted.write_parquet(str(folder), ray_remote_args={"num_cpus": 0})
    return folder
