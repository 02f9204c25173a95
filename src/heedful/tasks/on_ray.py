"""Predictions on many machines: rows of many files, in batches that Ray Data hands to workers.

Ray Data cuts a data set into batches and calls one function on them, in as many processes as it is given, on
one machine or on many. `BatchPredictor` is that function. Each worker makes one, and with it one copy of the
model, and keeps it for all of its batches. The rows are those that `heedful.predict` gives.

    heedful.tasks.predict_on_ray("my-model", ["a.parquet", "b.jsonl"], "predicted", workers=2)

    data = ray.data.read_parquet("s3://…")                       # or in a pipeline of your own
    data.map_batches(BatchPredictor, fn_constructor_kwargs={"model": "my-model"}, concurrency=8)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from heedful.core.checks import check_integer
from heedful.core.errors import InputError, MissingPackage
from heedful.core.files import Paths, expand_paths
from heedful.data.input_files import stream_table, table_in_memory
from heedful.tasks.finetune.request import PredictionRequest
from heedful.tasks.own_data import check_options
from heedful.tasks.prediction import RowPredictor, predict_rows

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


def read_rows(source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one file, in the worker that was given its path."""
    yield from (row.values for row in stream_table(source["path"])[1])


def predict_on_ray(
    model: str | Path, files: Paths, out: str | Path, *, workers: int = 2, **options: Any
) -> Path:
    """Predict the rows of many tables in `workers` processes of Ray; write Parquet files to the folder `out`.

    Files are read and predicted where Ray puts them, so every machine must reach `files`, `model` and `out`
    by the same paths. The rows of all files keep their order. The options are those of `heedful.predict`.
    """
    try:
        import ray
    except ImportError:
        raise MissingPackage("many machines need ray", hint="pip install 'heedful[ray]'") from None
    check_integer("workers", workers)
    check_options("predict", PredictionRequest, options)
    folder = Path(out).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"out={out} is there already", hint="take another name, or delete it")
    paths = [{"path": str(path.absolute())} for path in expand_paths(files)]
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    # A model takes a core. Reading and writing take none, or with as many workers as cores they would wait.
    rows = ray.data.from_items(paths, override_num_blocks=len(paths)).flat_map(read_rows, num_cpus=0)
    predicted = rows.map_batches(
        BatchPredictor, fn_constructor_kwargs={"model": str(model), **options}, batch_size=BATCH_ROWS,
        concurrency=workers,
    )  # fmt: skip
    predicted.write_parquet(str(folder), ray_remote_args={"num_cpus": 0})
    return folder
