"""Results of fine-tuning: where the model goes, its card, and the checkpoints of a long run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from heedful.core.errors import ConfigError, CorruptFile, HeedfulError
from heedful.core.files import make_folder, make_folder_atomically, write_text
from heedful.core.locks import FileLock
from heedful.models.base import Model
from heedful.tasks.finetune.data import Report
from heedful.tasks.finetune.request import FinetuneRequest
from heedful.tasks.registry import pipeline
from heedful.tasks.task import Task
from heedful.tasks.task_specification import TaskSpecification
from heedful.train.checkpoint import newest
from heedful.train.config import TrainConfig
from heedful.train.fit import Step
from heedful.train.recipes.train import TrainingResult
from heedful.weights.formats.tensor_files import save_tensors
from heedful.weights.saving import save, save_on_base

COMMAND = "command.txt"  # the file that tells a folder of checkpoints from somebody's own
CHECKPOINT_SECONDS = 120.0  # between checkpoints; a run that takes less writes none
MAX_WHOLE = 100_000_000  # parameters of a named model that are written together with a linear head


@dataclass(frozen=True)
class FinetuneResult:
    """The outcome of a fine-tuning run."""

    task: str
    task_name: str  # of the pipeline
    base: str  # the name of the model it began with
    model: Model = field(repr=False)
    folder: Path
    scores: dict[str, Any]
    found: dict[str, Any] = field(repr=False)  # about the file
    train_rows: int
    valid_rows: int
    training: TrainingResult = field(repr=False)
    labels: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    parameters: int = 0
    learning: int = 0  # parameters that were trained
    folds: int = 0  # of the cross-validation that measured it; 0: validation rows did

    @property
    def linear_head(self) -> bool:
        """Whether a linear head on sentence vectors was fitted."""
        return "penalty" in self.settings

    @property
    def use(self) -> str:
        """The line of Python that uses the checkpoint."""
        quoted = json.dumps(str(self.folder), ensure_ascii=False)  # a folder may have quotes in its name
        return f'heedful.pipeline("{self.task_name}", model={quoted})'

    @cached_property
    def pipeline(self) -> Task:
        """The model as a function of texts, as `heedful.pipeline` gives it."""
        return pipeline(self.task_name, self.model)


def output_folder(request: FinetuneRequest) -> Path:
    """Return the folder of the checkpoint: --out, or a new one here, named after file and model."""
    if request.out is not None:
        out = Path(request.out)
        if out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise ConfigError(f"`out={out}` already exists", hint="choose another name, or delete it")
        above = next(path for path in out.absolute().parents if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):  # told now, and not after an hour of training
            why = "nothing may be written there" if above.is_dir() else "that is a file"
            raise ConfigError(f"`out={out}` would lie in {above}: {why}", hint="choose another place")
        return out
    name = f"{Path(request.file).name.split('.')[0] or 'data'}-{Path(request.model).name}"
    tries = (Path(f"{name}{suffix}") for suffix in ("", *(f"-{i}" for i in range(2, 1000))))
    return next(path for path in tries if not path.exists() and out_lock(path).is_free())


def out_lock(out: Path) -> FileLock:
    """Return the lock of a folder that does not exist yet: a file in the nearest folder above that does."""
    above = next(path for path in out.absolute().parents if path.exists())
    name = ".".join(out.absolute().relative_to(above).parts)
    return FileLock(above / f"{name}.lock", f"`out={out}`", "choose another name, or wait for it to end")


def write_result(model: Model, result: FinetuneResult, request: FinetuneRequest) -> None:
    """Write the checkpoint next to its place and rename it: it is whole, or not there.

    An adapter of a model that has a name is written alone, and so is a linear head of a large one; one that
    stands on a folder, with its weights.
    """
    out = result.folder
    if (learnt := TaskSpecification.of(model)) is not None:
        score, interval = (result.scores.get(name) for name in (str(learnt.metric), f"{learnt.metric}_95"))
        ends = None if interval is None else tuple(interval)
        replace(
            learnt, merge_labels=request.merge_labels, separator=request.separator, score=score,
            score_interval=ends, validation=validation_data(result, request),
            data_sha256=result.found["sha256"],
        ).write(model)  # fmt: skip
    try:
        with make_folder_atomically(out) as part:
            alone = result.settings["lora"] or (result.linear_head and result.parameters > MAX_WHOLE)
            if alone and request.base is None and not Path(request.model).exists():
                save_on_base(model, part, request.model, torch.float32)
            else:
                save(model, part)
            write_text(part / "README.md", card_text(result, request))
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise HeedfulError(f"could not write {out}: {reason}", hint="nothing is left there") from None


def validation_data(result: FinetuneResult, request: FinetuneRequest) -> str:
    """Return what the scores were measured on. Paths stay out of a card: names and a hash identify data."""
    file = Path(request.file).name
    held_out = f"{result.folds}-fold cross-validation on {file}" if result.folds else f"held out of {file}"
    return Path(request.valid).name if request.valid else held_out


def base_name(model: str) -> str:
    """Return the name of a model; of a folder its last part, for its path says nothing to others."""
    return Path(model).resolve().name if Path(model).exists() else model


def repeat_command(request: FinetuneRequest) -> str:
    """Return what repeats the run: a command line, or with data or a model in memory a call in Python.

    It has every option that is not as by default, and the seed.
    """
    changed = {
        option.name: getattr(request, option.name)
        for option in fields(request)
        if option.name not in ("model", "file", "out", "device", "base", "tables")
        and (getattr(request, option.name) != option.default or option.name == "seed")
    }
    if request.base is not None or request.tables:
        base = "model" if request.base is not None else repr(base_name(request.model))
        file = "data" if request.file in request.tables else repr(Path(request.file).name)
        settings = [
            f"{name}={'valid' if name == 'valid' else repr(value)}" for name, value in changed.items()
        ]
        return f"heedful.finetune({', '.join([base, file, *settings])})"
    words = ["heed", "finetune", base_name(request.model), Path(request.file).name]
    for name, value in changed.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append({"lora": ("--full", "--lora")}.get(name, (f"--no-{flag}", f"--{flag}"))[value])
        else:
            words += [f"--{flag}", Path(value).name if name == "valid" else str(value)]
    return shlex.join(words)


# Model cards: README.md next to a checkpoint, with the YAML head that the hub reads.


# What the hub calls our scores.
METRICS = {
    "macro_f1": "f1",
    "bleu": "sacrebleu",
    "rougeL": "rouge",
    "rouge1": "rouge",
    "rouge2": "rouge",
    "spearman": "spearmanr",
    "pearson": "pearsonr",
}
COUNTS = ("rows", "questions", "sentences")


def card_head(result: FinetuneResult, request: FinetuneRequest) -> str:
    """Return the YAML head: license, base_model, pipeline_tag, metrics, model-index."""
    import yaml

    single = {n: v for n, v in result.scores.items() if isinstance(v, int | float) and n not in COUNTS}
    metrics = [
        {"type": METRICS.get(name, name), "name": name, "value": round(float(value), 4)}
        for name, value in single.items()
    ]
    data = {"name": validation_data(result, request), "type": Path(request.file).name}
    measured = {"task": {"type": result.task_name}, "dataset": data, "metrics": metrics}
    values = {
        "license": "unknown",
        "library_name": "heedful",
        "base_model": base_name(request.model),
        "pipeline_tag": result.task_name,
        "metrics": list(dict.fromkeys(METRICS.get(name, name) for name in single if name != "loss")),
        "model-index": [{"name": result.folder.name, "results": [measured]}],
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def card_text(result: FinetuneResult, request: FinetuneRequest) -> str:
    """Return the whole card: the head, how to use the model, what it scores, how it was trained."""
    rows = "\n".join(f"| {name} | {format_score(value)} |" for name, value in result.scores.items())
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    names = ", ".join(f"`{name}`" for name in result.labels)
    labels = f"\n## Labels\n\n{names}\n" if names else ""
    file, sha256 = Path(request.file).name, result.found["sha256"]
    on = f"On {result.valid_rows:,} examples ({validation_data(result, request)})"
    if result.folds:
        measured = (
            f"By {result.folds}-fold cross-validation: each of {result.valid_rows:,} examples was scored "
            "by a model that had not seen it. The one in this folder learnt all of them."
        )
    elif result.linear_head or not result.training.chosen:
        measured = f"{on}, from which nothing was learnt."
    else:
        measured = (
            f"{on}, by which the best weights were chosen: a score on other data may be a little lower."
        )
    if result.linear_head:
        way = result.settings["way"]
        body = (
            "frozen model's sentence vectors"
            if way == "frozen"
            else f"model's own, tuned sentence vectors ({way})"
        )
        trained = f"a linear head on the {body}; transformers has no class for it"
    else:
        best = result.training.best_step
        trained = f"{result.training.steps:,} steps" + (f", those of step {best:,} kept" if best else "")
    return f"""---
{card_head(result, request)}---

# {result.folder.name}

`{base_name(request.model)}`, fine-tuned for {result.task_name} with heedful.

```python
import heedful

pipe = {result.use}
```

## Scores

{measured}

| score | value |
| --- | --- |
{rows}
{labels}
## Training

- data: `{file}`, {result.train_rows:,} examples to learn from; sha256 of the file `{sha256}`
- {trained}; {settings}
- licence: not stated. It follows from those of the base model and of the data.

```
{repeat_command(request)}
```
"""


def format_score(value: Any) -> str:
    """Return a score as people read it."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return " – ".join(f"{v:.4f}" for v in value)
    if isinstance(value, str):
        return f"`{value}`"
    return f"{value:,}" if isinstance(value, int) else json.dumps(value)


# The checkpoints of a long run, next to the folder to be while it lasts. A killed run is resumed from them:
#
# OUT.training/
#   command.txt            the command, which must be the same
#   metrics.jsonl          scores of the evaluations so far
#   best-000120.safetensors   the best weights so far, those that learn
#   checkpoints/           the newest state, as `fit` writes it


def checkpoint_folder(out: Path) -> Path:
    """Return where a run that will write `out` keeps its checkpoints."""
    return out.with_name(f"{out.name}.training")


def remove_checkpoints(out: Path) -> None:
    """Remove the checkpoints of a run, if it wrote any."""
    folder = checkpoint_folder(out)
    if (folder / COMMAND).is_file():
        shutil.rmtree(folder, ignore_errors=True)


def keep_checkpoints(
    config: TrainConfig, request: FinetuneRequest, out: Path, sha256: str, seconds: float,
    report: Report,
) -> TrainConfig:  # fmt: skip
    """Return the config of a run that writes checkpoints, if it takes long, or goes on from those of another.

    `seconds` is how long it will take.
    """
    folder, command = checkpoint_folder(out), f"{repeat_command(request)}\n{request.file}: SHA-256 {sha256}\n"
    at = newest(folder) if (folder / COMMAND).is_file() else None
    if at is None and seconds < CHECKPOINT_SECONDS:
        return config
    if at is None:
        remove_checkpoints(out)  # of a run that was killed before its first one
        if folder.exists():
            hint = "move it away, or take another `out=`"
            raise ConfigError(f"{folder} is in the way: checkpoints go there while a run lasts", hint=hint)
        make_folder(folder)
        write_text(folder / COMMAND, command)
    elif (folder / COMMAND).read_text(encoding="utf-8") != command:
        written = (folder / COMMAND).read_text(encoding="utf-8").splitlines()[0]
        raise ConfigError(
            f"{folder} holds a run that was killed, of another command or file: {written}",
            hint="repeat that one to continue it, delete the folder, or choose another `out=`",
        )
    else:
        report(f"resuming: a run that was killed is in {folder}; this one goes on from {at.name}")
    return replace(config, folder=folder, keep=1, resume=True, save_minutes=None)


class KeptWeights:
    """The best weights so far: a copy in memory, and for a long run one next to its checkpoints."""

    def __init__(self, model: Model, folder: str | Path | None) -> None:
        self.model, self.folder = model, folder
        self.values: dict[str, Tensor] = {}
        self.step, self.written = 0, time.monotonic()

    def keep(self, step: Step | None) -> None:
        """Copy the present weights."""
        learning = ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)
        self.values = {name: p.detach().clone() for name, p in learning}
        self.step = 0 if step is None else step.number

    def checkpoint(self, step: Step) -> None:
        """Write the best weights and the state of training, if it is time."""
        if self.folder is None or time.monotonic() - self.written < CHECKPOINT_SECONDS:
            return
        best = Path(self.folder) / f"best-{self.step:06d}.safetensors"
        part = best.with_suffix(".part")
        try:
            if not best.is_file():
                save_tensors({name: value.contiguous() for name, value in self.values.items()}, part)
                part.rename(best)
            step.save()
        except (OSError, SafetensorError) as error:
            raise HeedfulError(f"could not write {best}: {error}") from None
        for other in set(Path(self.folder).glob("best-*")) - {best}:
            other.unlink()
        self.written = time.monotonic()

    def restore(self, step: int | None) -> None:
        """Read the best weights of a run that is resumed."""
        if self.folder is None or step is None or newest(Path(self.folder)) is None:
            return
        path = Path(self.folder) / f"best-{step:06d}.safetensors"
        try:
            self.values, self.step = load_file(path, device=str(self.model.device)), step
        except (OSError, SafetensorError):
            hint = f"delete {self.folder} to start again"
            raise CorruptFile(f"{path} is not there or damaged", hint=hint) from None

    @torch.no_grad()
    def put_back(self) -> None:
        """Give the model the weights that were kept, if any were."""
        for name, parameter in self.model.named_parameters():
            if name in self.values:
                parameter.copy_(self.values[name])
        self.model.eval()
