"""Prepare a run: turn its settings into the tokenizer, batches, model and objective that `fit` takes."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful import data
from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError, InputError, NotFound, nearest
from heedful.core.files import expand_paths, split_lines, stem_path
from heedful.data.batches import Batches, BucketedOrder, Indices, ShuffledOrder, seeded_generator
from heedful.data.readers import Documents, Table, open_documents, parallel_documents, split_documents
from heedful.models import find_config
from heedful.models.base import Config, Model, Seq2Seq
from heedful.models.counting import check_memory, parameter_count
from heedful.text import Tokenizer, load_tokenizer, save_tokenizer
from heedful.text.tokenizer_training import TRAINERS, train_tokenizer
from heedful.train.checkpoint import of_run
from heedful.train.config import TrainConfig
from heedful.train.objectives import Objective, distil, objective
from heedful.train.recipes.recipes import ResolvedSettings, TokenizerOptions, with_file_line
from heedful.weights.loading import build, load

# Numbers that an optimiser keeps for each weight.
MOMENTS = {"adamw": 2, "muon": 1, "adafactor": 0}


def numbers_per_weight(config: TrainConfig) -> int:
    """Return how many numbers a run keeps for a weight: itself, its gradient, moments, perhaps an average."""
    return 2 + MOMENTS[config.optimiser] + (config.ema is not None)


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
    teacher = load_teacher(settings, device)
    start_model = load(of_run(recipe.start), device=device).train() if recipe.start is not None else None
    existing = next((m.tokenizer for m in (start_model, teacher) if m is not None), None)
    tokenizer = existing if existing is not None else make_tokenizer(recipe.tokenizer, corpus, folder)
    start = start_model.start_token if isinstance(start_model, Seq2Seq) else None
    check_row_length(settings, start_model)
    batches, valid = corpus.batches(tokenizer, start)
    try:
        model = new_model(settings, tokenizer, batches, device) if start_model is None else start_model
    except ConfigError as error:
        raise with_file_line(error, settings.origins) from None
    check_vocabulary(model, tokenizer, recipe.start)
    model.tokenizer = tokenizer
    purpose = distil(teacher) if teacher is not None else objective(recipe.objective)
    return PreparedRun(model, purpose, batches, valid, (*batches.notes, *(valid.notes if valid else ())))


def load_teacher(settings: ResolvedSettings, device: torch.device) -> Model | None:
    """Return the model to distil, if that is the objective."""
    if settings.recipe.objective != "distil":
        return None
    if settings.recipe.teacher is None:
        raise ConfigError("distillation needs a teacher", hint="name a trained model: --set teacher=FOLDER")
    teacher = load(of_run(settings.recipe.teacher), device=device)
    if teacher.tokenizer is None:
        raise InputError(f"{settings.recipe.teacher} has no tokenizer, which its student needs too")
    return teacher


def make_tokenizer(options: TokenizerOptions, corpus: TrainingData, folder: Path | None) -> Tokenizer:
    """Return a run's tokenizer: the one in its folder, an existing one, or one trained on the data."""
    saved = None if folder is None else folder / "tokenizer"
    if saved is not None and (saved / "tokenizer.json").is_file():
        return _existing(saved)
    if options.kind not in TRAINERS:
        tokenizer = _existing(Path(options.kind))
    else:
        encoding = corpus.settings.get("encoding", "utf-8")
        with corpus.vocabulary_files() as files:
            tokenizer = train_tokenizer(
                options.kind, files, options.vocab, special=options.special, sentinels=options.sentinels,
                lower=options.lower, encoding=encoding,
            )  # fmt: skip
    if saved is not None:
        saved.mkdir(parents=True, exist_ok=True)
        save_tokenizer(tokenizer, saved)
    return tokenizer


def _existing(folder: Path) -> Tokenizer:
    tokenizer = load_tokenizer(folder if folder.is_dir() else folder.parent, {}) if folder.exists() else None
    if tokenizer is None:
        kinds = ", ".join(TRAINERS)
        raise NotFound(
            f"tokenizer.kind = {str(folder)!r} is neither one of {kinds} nor a folder with a tokenizer"
        )
    return tokenizer


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
    settings: ResolvedSettings, tokenizer: Tokenizer, batches: Batches, device: torch.device
) -> Model:
    """Build the family's model in the recipe's size, for this vocabulary and these labels."""
    recipe = settings.recipe
    _, config = find_config(recipe.family)
    field_names, sizes = config.field_names(), dict(recipe.model)
    sizes.setdefault("vocab", len(tokenizer))
    if "source_vocab" in field_names:
        sizes.setdefault("source_vocab", sizes["vocab"])
    if "start_token" in field_names and "start" in batches.settings:
        sizes.setdefault("start_token", batches.settings["start"])
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
    copies = 1 if recipe.parallel == "fsdp" else numbers_per_weight(recipe.train)
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
    special = {name: value for name, value in ids.items() if value is not None}
    return special | (names if labels else {})


def check_vocabulary(model: Model, tokenizer: Tokenizer, start: str | None) -> None:
    """Raise ConfigError if the tokenizer has more tokens than the model has vectors."""
    for what, table in model.tables.items():
        if len(tokenizer) > table.vocab:
            which = f"the model in {start}" if start is not None else "model.vocab"
            raise ConfigError(
                f"the tokenizer has {len(tokenizer):,} tokens, {which} has {table.vocab:,} for its {what}",
                hint="use a tokenizer and a model that belong together",
            )


TASK_BUILDERS: dict[str, Callable[..., Batches]] = {
    "translate": data.parallel,
    "classify": data.classify,
    "regress": data.regress,
    "contrast": data.contrast,
    "tag": data.tag,
    "span": data.answer,
}
RUN_SETTINGS = ("holdout", "line_end")  # settings that are not options of the builders
MAX_VOCABULARY_CHARACTERS = 200_000_000  # more characters do not improve a vocabulary
HOLDOUT_STREAM = 0x401D  # separates the draw of held-out rows from that of batches


@dataclass(frozen=True)
class TrainingData:
    """The files of a run and how they are read."""

    objective: str
    files: Sequence[str]
    valid: Sequence[str]
    settings: Mapping[str, Any]  # length, batch, holdout, and options of the builder
    seed: int = 0

    @property
    def builder(self) -> Callable[..., Batches]:
        """The function that builds batches for the objective."""
        name = "masked" if self.objective == "distil" else self.objective
        builders = data.FROM_TEXT | TASK_BUILDERS
        return builders[check_choice("objective", name, builders, ConfigError)]

    @property
    def is_text(self) -> bool:
        """Whether the objective learns from running text."""
        return self.builder in data.FROM_TEXT.values()

    def options(self) -> dict[str, Any]:
        """Return the settings that the builder takes; raise ConfigError for an unknown one."""
        taken = {n for n, p in inspect.signature(self.builder).parameters.items() if p.kind is p.KEYWORD_ONLY}
        names = sorted(taken - {"seed", "labels", "start", "cache"} | set(RUN_SETTINGS))
        for name in self.settings:
            if name not in names:
                hint = nearest(name, names) or f"there are {', '.join(names)}"
                raise ConfigError(f"data.{name} is not a setting of {self.objective} data", hint=hint)
        return {
            n: tuple(v) if n == "columns" else v for n, v in self.settings.items() if n not in RUN_SETTINGS
        }

    def batches(self, tokenizer: Any, start: int | None = None) -> tuple[Batches, Batches | None]:
        """Return batches for training, and for validation from other files or a held-out part, or None."""
        options = self.options() | {"seed": self.seed}
        if "start" in inspect.signature(self.builder).parameters:
            options["start"] = start
        part = 0.0 if self.valid else float(self.settings["holdout"])
        if self.is_text:
            inner = {n: v for n, v in options.items() if n not in ("unit", "encoding")}
            build = lambda documents: self.builder(documents, tokenizer, **inner)
            documents = self.documents(self.files)
            if part:
                return self.split(documents, part, build)
            return build(documents), build(self.documents(self.valid)) if self.valid else None
        first = self.builder(self.source(self.files), tokenizer, **options)
        if self.valid:
            same = {"labels": first.labels} if first.labels else {}
            return first, self.builder(self.source(self.valid), tokenizer, **options, **same)
        return split_train_validation(first, part, self.seed) if part else (first, None)

    def split(
        self, documents: Documents, part: float, build: Callable[[Documents], Batches]
    ) -> tuple[Batches, Batches | None]:
        """Return batches of all but the end of a text, and of its end; of a text too short, all and None."""
        first, last = split_documents(documents, part)
        try:
            return build(first), build(last)
        except InputError:
            whole = build(documents)  # raises if something is wrong with the text itself
            note = (
                f"{documents.name} is too short to hold {part:.0%} out: all of it is trained on and nothing "
                "validated; --valid FILE validates on another"
            )
            return replace(whole, notes=(*whole.notes, note)), None

    def documents(self, files: Sequence[str]) -> Documents:
        """Open files as running text."""
        unit = self.settings.get("unit", "file")
        documents = open_documents([Path(f) for f in files], unit, self.settings.get("encoding", "utf-8"))
        mark = self.settings.get("line_end")
        return documents if mark is None else mark_line_ends(documents, mark)

    def source(self, files: Sequence[str]) -> Any:
        """Return the files of a task as its builder takes them."""
        return list(files) if len(files) > 1 else files[0]

    @contextmanager
    def vocabulary_files(self) -> Iterator[list[Path]]:
        """Give text files to train a tokenizer on: the data's own, or a temporary one with its columns."""
        paths = expand_paths([Path(f) for f in self.files])
        is_table = lambda p: stem_path(p).suffix.lower() == ".jsonl"
        small = sum(p.stat().st_size for p in paths) <= MAX_VOCABULARY_CHARACTERS
        if self.is_text and small and not any(map(is_table, paths)):
            yield paths
            return
        with tempfile.TemporaryDirectory(prefix="heed-text-") as folder:
            written = Path(folder) / "text.txt"
            with written.open("w", encoding="utf-8") as file:
                size = 0
                for text in self.texts():
                    size += file.write(text)
                    if size > MAX_VOCABULARY_CHARACTERS:
                        break
            yield [written]

    def texts(self) -> Iterator[str]:
        """Yield all text of the data in pieces, from any format."""
        s, encoding = self.settings, self.settings.get("encoding", "utf-8")
        if self.is_text:
            for document in self.documents(self.files):
                yield from document
                yield "\n"
        elif self.objective == "translate":
            names = tuple(s["columns"]) if "columns" in s else None
            sides = parallel_documents(self.source(self.files), names, encoding)
            yield from ("".join(document) + "\n" for side in sides for document in side)
        elif self.objective == "tag":
            for sentence in data.conll(self.source(self.files), s.get("word"), s.get("column"), encoding):
                yield " ".join(sentence.words) + "\n"
        elif self.objective == "span":
            for question in data.squad(self.source(self.files), encoding):
                yield from (question.question + "\n", question.context + "\n")
        else:
            pair = s.get("columns", ("sentence1", "sentence2"))
            columns = pair if self.objective == "contrast" else (s.get("text", "text"),)
            columns = [*columns, *([s["pair"]] if "pair" in s else [])]
            rows = Table.of(self.source(self.files), encoding)
            yield from (text + "\n" for _, values in rows.rows(*columns) for text in values)


def mark_line_ends(documents: Documents, mark: str) -> Documents:
    """Return the text with `mark` at the end of every line, empty ones too, as WikiText's <eos>."""
    read = lambda: ((f"{line} {mark}\n" for line in split_lines(document)) for document in documents)
    return Documents(read, documents.files, (*documents.settings, "line end", mark), documents.name)


def split_train_validation(batches: Batches, part: float, seed: int) -> tuple[Batches, Batches]:
    """Split rows at random: a `part` for validation, the others for training."""
    count = batches.row_count
    valid_rows = max(1, round(count * part))
    if valid_rows >= count:
        raise InputError(
            f"{count} rows are too few to hold out {part:.0%}",
            hint="give --valid FILE, or --set data.holdout=0",
        )
    drawn = seeded_generator(seed, HOLDOUT_STREAM).permutation(count).astype(np.int64)
    train, valid = np.sort(drawn[valid_rows:]), np.sort(drawn[:valid_rows])
    return _select_rows(batches, train, "first"), _select_rows(batches, valid, "last")


def _select_rows(batches: Batches, index: Indices, which: str) -> Batches:
    old = batches.order
    order: BucketedOrder | ShuffledOrder
    if isinstance(old, BucketedOrder):
        order = BucketedOrder(old.lengths[index], old.size, old.seed, old.tokens)
    else:
        assert isinstance(old, ShuffledOrder)
        order = ShuffledOrder(len(index), old.size, old.seed, old.shuffle)
    settings = {**batches.settings, "part": which, "rows": len(index)}
    make_batch = lambda rows, epochs: batches.make_batch(index[rows], epochs)
    return replace(batches, make_batch=make_batch, order=order, settings=settings)
