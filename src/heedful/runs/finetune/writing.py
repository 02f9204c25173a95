"""Where the checkpoint goes and what stands in it beside the weights."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from heedful.errors import ConfigError, HeedfulError
from heedful.loading import save, save_on_base
from heedful.locks import FileLock
from heedful.models.base import Model
from heedful.runs.cards import Card, card
from heedful.runs.finetune.training import Trained
from heedful.train.checkpoint import sync, sync_folder

MAX_WHOLE = 100_000_000  # parameters of a named model that are written together with a linear head


@dataclass(frozen=True)
class Asked:
    """What the command line says; None is for the task to choose."""

    model: str
    file: str
    task: str | None = None
    text: str | None = None
    label: str | None = None
    pair: str | None = None
    valid: str | None = None
    lora: bool | None = None
    out: str | None = None
    epochs: float | None = None
    lr: float | None = None
    batch: int | None = None
    length: int | None = None
    seed: int = 0
    device: str = "auto"
    dtype: str | None = None
    encoding: str = "utf-8"

    @property
    def given(self) -> dict[str, str | None]:
        """The columns by their flags."""
        return {"--text": self.text, "--label": self.label, "--pair": self.pair}

    @property
    def header(self) -> bool:
        """Columns that are given as numbers belong to a table without names."""
        named = [name for name in self.given.values() if name is not None]
        return not named or not all(name.isdigit() for name in named)


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    task: str
    pipeline: str
    model: str
    folder: Path
    scores: dict[str, Any]
    found: dict[str, Any]  # about the file
    train_rows: int
    valid_rows: int
    training: Trained
    labels: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    parameters: int = 0
    learning: int = 0  # parameters that were trained
    folds: int = 0  # of the cross-validation that measured it; 0: validation rows did

    @property
    def linear_head(self) -> bool:
        """Whether only a linear head on the frozen model's sentence vectors was fitted."""
        return "penalty" in self.settings

    @property
    def use(self) -> str:
        """The line of Python that uses it."""
        quoted = json.dumps(str(self.folder), ensure_ascii=False)  # a folder may have quotes in its name
        return f'heedful.pipeline("{self.pipeline}", model={quoted})'


def place(asked: Asked) -> Path:
    """Where the checkpoint goes: as told, or here, named after file and model. Never over something."""
    if asked.out is not None:
        out = Path(asked.out)
        if out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise ConfigError(f"--out {out} is there already; take another name, or delete it")
        above = next(path for path in out.absolute().parents if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):  # told now, and not after an hour of training
            why = "nothing may be written there" if above.is_dir() else "that is a file"
            raise ConfigError(f"--out {out} would lie in {above}: {why}; take another place")
        return out
    name = f"{Path(asked.file).name.split('.')[0] or 'data'}-{Path(asked.model).name}"
    tries = (Path(f"{name}{suffix}") for suffix in ("", *(f"-{i}" for i in range(2, 1000))))
    return next(path for path in tries if not path.exists() and out_lock(path).is_free())


def out_lock(out: Path) -> FileLock:
    """Return the lock of a folder that does not exist yet: a file in the nearest folder above that does."""
    above = next(path for path in out.absolute().parents if path.exists())
    name = ".".join(out.absolute().relative_to(above).parts)
    return FileLock(above / f"{name}.lock", f"--out {out}", "take another name, or wait for it to end")


def write(model: Model, outcome: Outcome, asked: Asked) -> None:
    """Write the checkpoint beside its place and rename it: it is whole, or not there.

    An adapter of a model that has a name is written alone, and so is a linear head of a large one; one that
    stands on a folder, with its weights.
    """
    out = outcome.folder
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        alone = outcome.settings["lora"] or (outcome.linear_head and outcome.parameters > MAX_WHOLE)
        if alone and not Path(asked.model).exists():
            save_on_base(model, part, asked.model, torch.float32)
        else:
            save(model, part)
        (part / "README.md").write_text(card(card_of(outcome, asked)), encoding="utf-8")
        sync_folder(part)
        if out.is_dir():
            out.rmdir()
        part.replace(out)
        sync(out.parent)
    except (OSError, SafetensorError) as error:
        told = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise HeedfulError(f"could not write {out}: {told}; nothing is left there") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def measured(outcome: Outcome, data: str) -> str:
    """Say how the scores were measured, for the card."""
    if outcome.folds:
        return (
            f"By {outcome.folds}-fold cross-validation: each of {outcome.valid_rows:,} examples was scored "
            "by a head that had not seen it. The head in this folder learnt all of them."
        )
    on = f"On {outcome.valid_rows:,} examples ({data})"
    if outcome.linear_head or not outcome.training.chosen:
        return f"{on}, from which nothing was learnt."
    return f"{on}, by which the best weights were chosen: a score on other data may be a little lower."


def card_of(outcome: Outcome, asked: Asked) -> Card:
    """What the card of a checkpoint says. Paths stay out of it: names and a hash tell the data."""
    file = Path(asked.file).name
    held = f"{outcome.folds}-fold cross-validation on {file}" if outcome.folds else f"held out of {file}"
    validation = Path(asked.valid).name if asked.valid else held
    steps, kept = outcome.training.steps, outcome.training.best_step
    trained = f"{steps:,} steps" + (f", those of step {kept:,} kept" if kept else "")
    if outcome.linear_head:
        trained = (
            "a linear head on the frozen model's sentence vectors, which heedful opens and transformers not"
        )
    return Card(
        title=outcome.folder.name,
        base=base_name(asked.model),
        task=outcome.pipeline,
        use=outcome.use,
        command=command(asked),
        data=file,
        sha256=outcome.found["sha256"],
        train_rows=outcome.train_rows,
        validation=validation,
        measured=measured(outcome, validation),
        trained=trained,
        scores=outcome.scores,
        labels=list(outcome.labels),
        settings=outcome.settings,
    )


def base_name(model: str) -> str:
    """The name of a model; of a folder its last part, for where it lies says nothing to others."""
    return Path(model).resolve().name if Path(model).exists() else model


def command(asked: Asked) -> str:
    """The command line that does it again."""
    words = ["heed", "finetune", base_name(asked.model), Path(asked.file).name]
    for name in ("task", "text", "label", "pair", "epochs", "lr", "batch", "length", "dtype"):
        if (value := getattr(asked, name)) is not None:
            words += [f"--{name}", str(value)]
    words += ["--valid", Path(asked.valid).name] if asked.valid else []
    words += [] if asked.lora is None else ["--lora" if asked.lora else "--full"]
    words += ["--encoding", asked.encoding] if asked.encoding != "utf-8" else []
    return shlex.join([*words, "--seed", str(asked.seed)])
