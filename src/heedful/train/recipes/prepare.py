"""Prepare a run: turn its settings into the tokenizer, batches, model and objective that `fit` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heedful.core.errors import ConfigError, InputError, NotFound
from heedful.data.batches import Batches
from heedful.models import find_config
from heedful.models.base import Config, Model, Seq2Seq
from heedful.models.memory import check_memory, parameter_count
from heedful.text import Tokenizer, load_tokenizer, save_tokenizer
from heedful.text.tokenizer_training import TRAINERS, train_tokenizer
from heedful.train.checkpoint import of_run
from heedful.train.objectives import Objective, distil, objective
from heedful.train.recipes.datasets import TrainingData
from heedful.train.recipes.recipes import TokenizerOptions
from heedful.train.recipes.settings import ResolvedSettings, with_file_line
from heedful.weights.loading import build, load

# The special tokens a decoder may start with, by objective, the preferred one first.
STARTS = {
    "spans": ("pad", "bos", "eos"),
    "denoise": ("eos", "sep", "bos"),
    "translate": ("bos", "pad", "eos"),
}

# Numbers that an optimiser keeps for each weight.
MOMENTS = {"adamw": 2, "muon": 1, "adafactor": 0}


@dataclass(frozen=True)
class PreparedRun:
    """The model, objective and batches of a run."""

    model: Model
    purpose: Objective
    batches: Batches
    valid: Batches | None
    notes: tuple[str, ...] = ()


def prepare_run(settings: ResolvedSettings, device: torch.device, folder: Path | None = None) -> PreparedRun:
    """Build everything a run needs; `folder` keeps the tokenizer, so that a resumed run has the same."""
    recipe = settings.recipe
    if not settings.files:
        raise InputError("no data was given", hint="name the files to train on: heed train RECIPE FILE…")
    corpus = TrainingData(recipe.objective, settings.files, settings.valid, recipe.data, recipe.train.seed)
    corpus.options()
    teacher = _teacher(settings, device)
    start_model = load(of_run(recipe.start), device=device).train() if recipe.start is not None else None
    known = next((m.tokenizer for m in (start_model, teacher) if m is not None), None)
    tokenizer = known if known is not None else make_tokenizer(recipe.tokenizer, corpus, folder)
    starts = (getattr(tokenizer, role) for role in STARTS.get(recipe.objective, ()))
    start = next((i for i in starts if i is not None), None)
    if isinstance(start_model, Seq2Seq):
        start = start_model.start_token
    check_row_length(settings, start_model)
    batches, valid = corpus.batches(tokenizer, start)
    try:
        make = lambda: new_model(settings, tokenizer, batches, start, device)
        model = make() if start_model is None else start_model
    except ConfigError as error:
        raise with_file_line(error, settings.origins) from None
    check_vocabulary(model, tokenizer, recipe.start)
    model.tokenizer = tokenizer
    purpose = distil(teacher) if teacher is not None else objective(recipe.objective)
    return PreparedRun(model, purpose, batches, valid, (*batches.notes, *(valid.notes if valid else ())))


def _teacher(settings: ResolvedSettings, device: torch.device) -> Model | None:
    if settings.recipe.objective != "distil":
        return None
    if settings.recipe.teacher is None:
        raise ConfigError("distil needs a teacher", hint="name a trained model: --set teacher=FOLDER")
    teacher = load(of_run(settings.recipe.teacher), device=device)
    if teacher.tokenizer is None:
        raise InputError(f"{settings.recipe.teacher} has no tokenizer, which its student needs too")
    return teacher


def make_tokenizer(options: TokenizerOptions, corpus: TrainingData, folder: Path | None) -> Tokenizer:
    """Return a run's tokenizer: the one in its folder, an existing one, or one trained on the data."""
    kept = None if folder is None else folder / "tokenizer"
    if kept is not None and (kept / "tokenizer.json").is_file():
        return _existing(kept)
    if options.kind not in TRAINERS:
        found = _existing(Path(options.kind))
    else:
        encoding = corpus.settings.get("encoding", "utf-8")
        with corpus.vocabulary_files() as files:
            found = train_tokenizer(
                options.kind, files, options.vocab, special=options.special, sentinels=options.sentinels,
                lower=options.lower, encoding=encoding,
            )  # fmt: skip
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        save_tokenizer(found, kept)
    return found


def _existing(folder: Path) -> Tokenizer:
    found = load_tokenizer(folder if folder.is_dir() else folder.parent, {}) if folder.exists() else None
    if found is None:
        kinds = ", ".join(TRAINERS)
        raise NotFound(
            f"tokenizer.kind = {str(folder)!r} is neither one of {kinds} nor a folder with a tokenizer"
        )
    return found


def check_row_length(settings: ResolvedSettings, start_model: Model | None) -> None:
    """Raise ConfigError for rows longer than the context, before any data is read."""
    config = start_model.config if start_model is not None else find_config(settings.recipe.family)[1]
    context = getattr(config, "context", None)
    if start_model is None:
        context = settings.recipe.model.get("context", context)
    length = settings.recipe.data["length"]
    if isinstance(context, int) and length > context:
        more = "" if start_model is not None else f", or --set model.context={length}"
        raise ConfigError(
            f"data.length = {length} is longer than the context of {context}",
            hint=f"use --length {context}{more}",
        )


def new_model(
    settings: ResolvedSettings,
    tokenizer: Tokenizer,
    batches: Batches,
    start: int | None,
    device: torch.device,
) -> Model:
    """Build the family's model in the recipe's size, for this vocabulary and these labels."""
    recipe = settings.recipe
    _, config = find_config(recipe.family)
    known, sizes = config.known(), dict(recipe.model)
    sizes.setdefault("vocab", len(tokenizer))
    if "source_vocab" in known:
        sizes.setdefault("source_vocab", sizes["vocab"])
    if "start_token" in known and start is not None:
        sizes.setdefault("start_token", start)
    if batches.labels:
        sizes["labels"] = len(batches.labels)
    heads = {"classify": "classify", "regress": "classify", "tag": "tag", "span": "span", "contrast": "none"}
    if recipe.objective in heads:
        sizes["head"] = heads[recipe.objective]
    if recipe.objective == "regress":
        sizes["labels"] = 1
    lists: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in sizes.items()}
    check_training_memory(settings, config.change(**lists), device)  # before anything is made
    model = build(recipe.family, device=device, seed=recipe.train.seed, **lists)
    model.hf_config = config_entries(tokenizer, batches.labels)
    return model


def check_training_memory(settings: ResolvedSettings, config: Config, device: torch.device) -> None:
    """Raise OutOfMemory for a run whose weights, gradients and moments the device cannot hold."""
    recipe = settings.recipe
    family = find_config(recipe.family)[0]
    count = parameter_count(family, config)
    copies = 2 + MOMENTS[recipe.train.optimiser] + (recipe.train.ema is not None)
    copies = 1 if recipe.parallel == "fsdp" else copies
    check_memory(
        f"training {settings.name} ({count:,} parameters)", 4 * copies * count, device,
        f"use heed train {family.name} …, which is small, fewer --set model.layers=… and model.dim=…, "
        "or a --device with more memory",
    )  # fmt: skip


def config_entries(tokenizer: Tokenizer, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return the entries of config.json besides the sizes: special tokens and names of classes."""
    ids = {f"{role}_token_id": getattr(tokenizer, role) for role in ("bos", "eos", "pad")}
    names = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}
    if ids["eos_token_id"] is None:
        ids["eos_token_id"] = tokenizer.sep
    found = {name: value for name, value in ids.items() if value is not None}
    return found | (names if labels else {})


def check_vocabulary(model: Model, tokenizer: Tokenizer, start: str | None) -> None:
    """Raise ConfigError if the tokenizer has more tokens than the model has vectors."""
    for what, table in model.tables.items():
        if len(tokenizer) > table.vocab:
            which = f"the model in {start}" if start is not None else "model.vocab"
            raise ConfigError(
                f"the tokenizer has {len(tokenizer):,} tokens, {which} has {table.vocab:,} for its {what}",
                hint="use a tokenizer and a model that belong together",
            )
