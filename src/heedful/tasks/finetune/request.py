"""Requests of `heed finetune`, `heed eval` and `heed predict`: fields with an `Option` are their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from heedful.core.checks import Option, find_options
from heedful.core.errors import InputError, nearest

ModelName = Annotated[str, Option("A trained model: its name (heed ls), its folder, or a hub id.")]
Device = Annotated[str, Option("Compute on this device: auto, cpu, cuda, cuda:1 …", variable="HEED_DEVICE")]


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How files are read, for every request. Columns have names, or numbers if a table has no header."""

    text: Annotated[
        str | None,
        Option("Read the text (source, context, prompt) from this column, given by name or number."),
    ] = None
    label: str | None = None
    pair: Annotated[str | None, Option("Read a second text, or the question, from this column.")] = None
    encoding: Annotated[str, Option("Read the files in this encoding: utf-8, cp1252, utf-16 …")] = "utf-8"
    tables: Mapping[str, Any] = field(default_factory=dict)  # each `InputFile` in memory by its name

    @property
    def column_flags(self) -> dict[str, str | None]:
        """Map each flag that names a column to that name."""
        return {"--text": self.text, "--label": self.label, "--pair": self.pair}

    @property
    def header(self) -> bool:
        """Whether the table has a header: columns named by numbers have none."""
        named = [name for name in self.column_flags.values() if name is not None]
        return not named or not all(name.isdigit() for name in named)


@dataclass(frozen=True)
class FinetuneRequest(FileOptions):
    """Which model to fine-tune on which file, and how; None leaves the choice to the task."""

    model: ModelName
    file: Annotated[
        str, Option("The examples: .csv, .tsv, .jsonl, .conll, SQuAD .json, .txt or a folder of images.")
    ]
    task: Annotated[
        str | None,
        Option(
            "Learn to classify, regress, tag, answer, translate, summarize, similarity, rerank, complete, "
            "chat, read or classify-images. By default it follows from the file."
        ),
    ] = None
    label: Annotated[
        str | None,
        Option("Read the answer (label, score, target, summary) from this column, or from several: a,b,c."),
    ] = field(default=None, kw_only=True)
    order: Annotated[
        str | None,
        Option(
            "Treat the labels as ordered, so that a neighbouring one is less wrong: low,middle,high, or the "
            "word numbers if the labels are numbers."
        ),
    ] = None
    balance: Annotated[
        bool | None,
        Option(
            "Draw rare classes as often as others; by default where one has far more rows than the rest.",
            ("--balance/--no-balance",),
        ),
    ] = None
    merge_labels: Annotated[
        bool,
        Option(
            "Merge labels that differ only by case, white space or as 1 and 1.0; leave out empty ones (N/A).",
            ("--merge-labels",),
        ),
    ] = False
    separator: Annotated[
        str | None, Option("Split a label at this text into several labels: '|' for cells such as a|b.")
    ] = None
    valid: Annotated[str | None, Option("Validate on this file; by default a part is held out.")] = None
    lora: Annotated[
        bool | None,
        Option("Train a small adapter or all weights; by default the size decides.", ("--lora/--full",)),
    ] = None
    out: Annotated[
        str | None, Option("Write the model to this folder. [default: FILE-MODEL]", ("--out", "-o"))
    ] = None
    epochs: Annotated[float | None, Option("Read the file N times.", minimum=0.0)] = None
    minutes: Annotated[
        float | None, Option("Train for N minutes, however often the file is read.", minimum=0.0)
    ] = None
    lr: Annotated[float | None, Option("Set the highest learning rate.")] = None  # HEED_LR is of heed train
    batch: Annotated[int | None, Option("Take N rows per step.", minimum=1, variable="HEED_BATCH")] = None
    length: Annotated[
        int | None, Option("Cut texts after this many tokens.", minimum=8, variable="HEED_LENGTH")
    ] = None
    seed: Annotated[
        int, Option("Draw the split, the head and the order with this seed.", minimum=0, variable="HEED_SEED")
    ] = 0
    device: Device = "auto"
    dtype: Annotated[
        str | None,
        Option("Compute in float32 or bfloat16. [default: bfloat16 on a GPU]", variable="HEED_DTYPE"),
    ] = None
    base: Any = None  # a `Model` in memory, which `model` only names


@dataclass(frozen=True)
class EvaluationRequest(FileOptions):
    """The files to evaluate a model on, and how they are read."""

    files: Annotated[
        Sequence[str], Option("A text, a table, or two files with parallel lines.", metavar="DATA")
    ]
    batch: Annotated[int, Option("Read N rows at once.", minimum=1)] = 16
    length: Annotated[
        int | None,
        Option("Limit a row, a window or an answer to N tokens. [default: as in training]", minimum=1),
    ] = None
    stride: Annotated[int | None, Option("Move the window of perplexity by N tokens.", minimum=1)] = None
    limit: Annotated[int | None, Option("Read at most N batches (perplexity: tokens).", minimum=1)] = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the builder of the data, and of generation
    label: Annotated[str | None, Option("Read the expected answer from this column.")] = field(
        default=None, kw_only=True
    )
    separator: Annotated[
        str | None, Option("Split a label at this text into several labels. [default: as in training]")
    ] = None


@dataclass(frozen=True)
class PredictionRequest(FileOptions):
    """The files whose rows are to be predicted, and where rows and predictions are written."""

    model: ModelName
    files: Annotated[
        Sequence[str],
        Option(
            "Tables (.csv, .tsv, .jsonl), .conll, SQuAD .json, .txt with a text per line, folders of images.",
            metavar="FILE",
        ),
    ]
    out: Annotated[
        str, Option("Write rows and predictions to this .csv, .tsv, .jsonl or .parquet.", ("--out", "-o"))
    ]
    task: Annotated[
        str | None,
        Option(
            "Do this task of `heed finetune`, or embed for vectors; by default the one that the model learnt."
        ),
    ] = None
    batch: Annotated[int, Option("Compute N rows at once.", minimum=1, variable="HEED_BATCH")] = 32
    length: Annotated[
        int | None, Option("Cut texts after this many tokens. [default: as in training]", minimum=8)
    ] = None
    max_tokens: Annotated[int | None, Option("Generate at most N tokens.", ("--max-tokens",), minimum=1)] = (
        None
    )
    device: Device = "auto"
    base: Any = None  # a `Model` in memory, which `model` only names


def check_options(function: str, request: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the fields of a request have them; raise InputError for one that it does not have."""
    required = {f.name for f in fields(request) if f.default is MISSING and f.default_factory is MISSING}
    names = [name for name, _, _ in find_options(request) if name not in required]  # the others are arguments
    for name in options:
        if name not in names:
            hint = nearest(name, names) or f"it has {', '.join(names)}"
            raise InputError(f"{function} has no option {name!r}", hint=hint)
    joined = {
        name: ",".join(map(str, value)) for name, value in options.items() if isinstance(value, list | tuple)
    }
    paths = {name: str(value) for name, value in options.items() if isinstance(value, Path)}
    return dict(options) | joined | paths
