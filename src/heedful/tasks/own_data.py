"""Your own data in Python: `heedful.finetune`, `heedful.evaluate` and `heedful.predict`.

They do what `heed finetune`, `heed eval` and `heed predict` do, with the same options by the same names. Data
may be the path of a file, or a table in memory: a list of dicts, of tuples or of texts, a DataFrame of pandas
or polars, or a Dataset of `datasets` (data/input_files.py:table_in_memory).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from heedful.core.checks import takes_options_of
from heedful.core.errors import InputError
from heedful.data.input_files import InputFile, table_in_memory
from heedful.models.base import Model
from heedful.tasks.evaluate import default_task
from heedful.tasks.evaluate import evaluate as measure
from heedful.tasks.finetune.request import (
    EvaluationRequest,
    FinetuneRequest,
    PredictionRequest,
    check_options,
)
from heedful.tasks.finetune.result import FinetuneResult
from heedful.tasks.finetune.run import finetune as run_finetune
from heedful.tasks.prediction import RowPredictor, predict_files, predict_rows, stream_rows
from heedful.tasks.task import load_trained
from heedful.tasks.task_specification import TaskSpecification


@takes_options_of(FinetuneRequest, "model", "file")
def finetune(model: str | Path | Model, data: Any, *, quiet: bool = False, **options: Any) -> FinetuneResult:
    """Fine-tune a model on your own data, and save it in a folder.

    >>> import heedful
    >>> rows = [("It works.", "good"), ("It broke.", "bad"), ("Works.", "good"), ("Broke again.", "bad")] * 3
    >>> result = heedful.finetune("all-minilm-l6-v2", rows, task="classify", out="my-model", quiet=True)
    >>> result.pipeline("It works well.")[0]["label"]
    'good'

    `result.scores` has the scores on held-out rows, `result.model` the model, and `result.folder` the
    folder, which `heedful.load`, `heedful.pipeline(model=…)` and `heed serve` open.

    Args:
        model: The name of a model (`heed ls`), its folder, or a model in memory, which is copied.
        data: The path of a file, a list of dicts or tuples, a DataFrame or a Dataset. Tuples are (text,
            label) or (text, pair, label). `valid` takes the same.
        quiet: Print nothing.
    """
    tables: dict[str, InputFile] = {}
    file = name_table(data, "data", tables)
    if options.get("valid") is not None:
        options["valid"] = name_table(options["valid"], "validation data", tables)
    settings = check_options("finetune", FinetuneRequest, options) | {"tables": tables}
    settings |= name_model(model)
    return run_finetune(
        FinetuneRequest(file=file, **(tuple_columns(tables.get(file)) | settings)), quiet=quiet
    )


@takes_options_of(EvaluationRequest, "files")
def evaluate(
    model: str | Path | Model, data: Any, *, task: str | None = None, device: str = "auto", **options: Any
) -> dict[str, Any]:
    """Measure a model on your own data, and return its metrics, the most important one first.

    >>> import heedful
    >>> scores = heedful.evaluate("sentiment", [("Great fun.", "POSITIVE"), ("A bore.", "NEGATIVE")])
    >>> scores["accuracy"]
    1.0

    Args:
        model: A name, a folder, a run or a model in memory.
        data: The path of a file or a list of paths, a list of dicts or tuples, a DataFrame or a Dataset. A
            fine-tuned model reads it as in training.
        task: A task of `heed finetune`, or "perplexity". By default it is the task of the model.
        device: Compute on this device.
    """
    tables: dict[str, InputFile] = {}
    paths = isinstance(data, list | tuple) and data and all(isinstance(one, str | Path) for one in data)
    files = [str(path) for path in data] if paths else [name_table(data, "data", tables)]
    settings = check_options("evaluate", EvaluationRequest, options)
    settings = tuple_columns(tables.get("data")) | settings
    loaded = model if isinstance(model, Model) else load_trained(name_model(model)["model"], device)
    request = EvaluationRequest(files=files, tables=tables, **settings)
    return measure(loaded, task or default_task(loaded, () if tables else files), request)


@takes_options_of(PredictionRequest, "model", "files", "out")
def predict(
    model: str | Path | Model, data: Any, *, out: str | Path | None = None, **options: Any
) -> list[dict[str, Any]] | Path:
    """Predict every row of your own data: return the rows with new columns, or write them to a file.

    >>> import heedful
    >>> rows = heedful.predict("sentiment", ["Great fun.", "A bore."])
    >>> [(row["text"], row["label"]) for row in rows]
    [('Great fun.', 'POSITIVE'), ('A bore.', 'NEGATIVE')]

    Args:
        model: A name, a folder or a model in memory.
        data: The path of a file or a list of paths, a list of texts, dicts or tuples, a DataFrame or a
            Dataset. The model reads the columns that it learned from, unless `text` and `pair` name others.
        out: Write a .csv, .tsv, .jsonl or .parquet file of any size and return its path. A run that was
            killed continues where it stopped.
    """
    tables: dict[str, InputFile] = {}
    paths = isinstance(data, list | tuple) and data and all(isinstance(one, Path) for one in data)
    files = [str(path) for path in data] if paths else [name_table(data, "data", tables)]
    settings = check_options("predict", PredictionRequest, options) | name_model(model)
    request = PredictionRequest(files=files, out=str(out or ""), tables=tables, **settings)
    if "data" in tables and tuple_columns(tables["data"]) and request.text is None:
        learnt = (
            TaskSpecification.of(model) if isinstance(model, Model) else TaskSpecification.of_folder(model)
        )
        pair = "1" if learnt is not None and len(learnt.inputs) > 1 else None
        request = replace(request, text="0", pair=pair)
    if out is not None:
        return predict_files(request)[0]
    predictor, rows = RowPredictor.of(request), list[dict[str, Any]]()
    for file in files:
        source, stream = stream_rows(file, request)
        for window in predict_rows(predictor, source, stream, request.column_flags):
            rows += window
    return rows


def name_table(data: Any, name: str, tables: dict[str, InputFile]) -> str:
    """Return the path of a file; a table in memory is put into `tables` under the name that is returned."""
    if isinstance(data, str | Path):
        return str(data)
    tables[name] = table_in_memory(data, name)
    return name


def name_model(model: Any) -> dict[str, Any]:
    """Return the fields of a request that say which model: its name, and the model itself if it is one."""
    if isinstance(model, Model):
        return {"model": str(model.hf_config.get("_name_or_path") or model.family.name), "base": model}
    if not isinstance(model, str | Path):
        raise InputError(
            f"`model=` is a {type(model).__name__}",
            hint="give a folder, the name of a model or heedful's model",
        )
    return {"model": str(model)}


def tuple_columns(table: InputFile | None) -> dict[str, str]:
    """Return which columns of tuples are read: text and label, or text, pair and label."""
    if table is None or not all(name.isdigit() for name in table.columns):
        return {}
    roles = {1: ("text",), 2: ("text", "label"), 3: ("text", "pair", "label")}.get(len(table.columns), ())
    return {role: str(number) for number, role in enumerate(roles)}
