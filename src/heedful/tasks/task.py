"""The base class of all tasks. Pipelines, `heed finetune` and `heed eval` are views of it.

pipeline    text ── predict ──▶ answer
finetune    file ── read_examples ──▶ Examples ── attach_head, batches, fit, score ──▶ checkpoint
eval        file ── read_examples ──▶ Examples ── score: predict, compare ──▶ scores
"""

from __future__ import annotations

import inspect
import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from heedful.core.checks import check_integer
from heedful.core.devices import resolve_device
from heedful.core.errors import InputError, nearest
from heedful.core.padding import pad_rows, valid_mask
from heedful.core.progress import report_progress
from heedful.data.batch_options import BatchOptions, TaskKeywords
from heedful.data.batches import Batches
from heedful.data.input_files import InputFile
from heedful.data.tokenization import pad_id
from heedful.models.base import LM, MediaLM, Model, Seq2Seq, evaluation_mode
from heedful.tasks.examples import (
    ColumnFlags,
    Examples,
    Role,
    UnusableRow,
    infer_columns,
    parse_table,
    split_randomly,
)
from heedful.tasks.model_inputs import (
    BATCH_SIZE,
    IGNORED_OPTIONS,
    TokenizedText,
    check_length,
    input_limit,
    rename_options,
    smallest_limit,
    tokenize,
    truncates,
    warn_truncated,
)
from heedful.tasks.task_specification import TaskSpecification
from heedful.text import Tokenizer
from heedful.train.checkpoint import of_run
from heedful.train.objectives import LossModule, Objective, mean_losses, objective
from heedful.weights.adapters import adapter_base
from heedful.weights.hub import resolve
from heedful.weights.loading import load, with_head


@dataclass(frozen=True, eq=False)
class Task:
    """A task done by one model: call it with text. `defaults` are options of every call.

    A task is a subclass with a method `predict(inputs, *, option=…)`, and says which models fit it.
    """

    task: str
    model: Model = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    heads: ClassVar[tuple[str, ...]] = ()  # the kinds of head that fit; none named: any
    kinds: ClassVar[tuple[type[Model], ...]] = (Model,)  # of models that fit
    reads: ClassVar[str] = "texts"  # or images, or sounds
    needs: ClassVar[str] = "a model"  # the same in words, for the error of one that does not
    fields: ClassVar[tuple[str, ...]] = ("text",)  # of a form, in the order that `predict` takes them
    form_options: ClassVar[Mapping[str, Any]] = {}  # with which a page shows the task

    def __post_init__(self) -> None:
        self._check_options(self.defaults)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return the predictions, in the shape of the inputs."""
        self._check_options(options)
        signature = inspect.signature(self.predict)
        takes = [n for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        by_position = takes[: len(inputs)]  # an argument wins over a default
        defaults = {k: v for k, v in rename_options(self.defaults).items() if k not in by_position}
        merged = {**defaults, **rename_options(options)}
        merged = {
            k: v for k, v in merged.items() if k not in IGNORED_OPTIONS and (k, v) != ("batch_size", None)
        }
        check_integer("batch_size", merged.get("batch_size", BATCH_SIZE))
        try:
            signature.bind(*inputs, **merged)
        except TypeError as error:
            raise InputError(
                f"{self.task} takes {', '.join(takes)}, several texts as a list: {error}"
            ) from None
        return self.predict(*inputs, **merged)

    def predict(self, *inputs: Any, **options: Any) -> Any:
        """Return the results of the task for its inputs."""
        raise NotImplementedError

    def tokenize(
        self,
        texts: Sequence[str | tuple[str, str]],
        *,
        truncation: bool | str = False,
        max_length: int | None = None,
    ) -> list[TokenizedText]:
        """Return every text or pair as tokens; one that is too long is an error, or truncated with a warning.

        `truncation` is True or says which text of a pair is cut; a `max_length` cuts too, as in transformers.
        Without one, a text is cut where the model can read no more, or where texts were cut in training.
        """
        limit, cut = input_limit(self.model, self.tokenizer), truncates(truncation)
        if max_length is not None and truncation != "do_not_truncate":
            cut, limit = True, min(max_length, limit or max_length)
        elif cut and (learnt := TaskSpecification.of(self.model)) is not None:  # as in training
            limit = smallest_limit(limit, learnt.max_length)
        strategy = truncation if isinstance(truncation, str) and cut else "longest_first"
        tokenized = []
        for i, text in enumerate(texts):
            first, second = text if isinstance(text, tuple) and len(text) == 2 else (text, None)
            one = tokenize(self.tokenizer, first, second).truncate(limit if cut else None, strategy)
            check_length(one, limit, i)
            tokenized.append(one)
        warn_truncated(dict(enumerate(tokenized)))
        return tokenized

    def forward(
        self,
        texts: Sequence[TokenizedText],
        function: Callable[..., Tensor] | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> list[Tensor]:
        """Return the model's output for every text, float32 on the CPU, as if each were read alone.

        `function` takes (tokens, valid=, types=) and gives (B, …); None: the model's logits. An output by
        token is as long as its batch: its first len(text) rows count.
        """
        check_integer("batch_size", batch_size)
        device, out = self.model.device, [torch.zeros(0)] * len(texts)
        # RoBERTa has one type of token, whatever its tokenizer says.
        types_table = self.model.embed.types if isinstance(self.model, LM) else None
        num_types = 0 if types_table is None else types_table.num_embeddings
        # Alike lengths together: less padding.
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        with torch.inference_mode():
            for at in range(0, len(order), batch_size):
                rows = [texts[i] for i in order[at : at + batch_size]]
                tokens = torch.from_numpy(pad_rows([row.ids for row in rows], pad_id(self.tokenizer)))
                types = torch.from_numpy(pad_rows([row.type_ids for row in rows]))
                valid = torch.from_numpy(valid_mask([len(row) for row in rows], tokens.shape[1]))
                inputs = {"valid": None if bool(valid.all()) else valid.to(device)}
                if 0 < int(types.max()) < num_types:
                    inputs["types"] = types.to(device)
                outputs = (function or self.model)(tokens.to(device), **inputs).float().cpu()
                for i, one in zip(order[at : at + batch_size], outputs, strict=True):
                    out[i] = one
                report_progress("texts", at + len(rows), len(order))
        return out

    @property
    def encode(self) -> Callable[..., Tensor]:
        """The function that gives the hidden states of a text; of an encoder-decoder its encoder's."""
        assert isinstance(self.model, (LM, Seq2Seq))
        return self.model.encode

    @classmethod
    def fits(cls, model: Model) -> bool:
        """Return whether a model can do this task."""
        media = "images" if model.image_processor is not None else "sounds" if model.processor else "texts"
        reads = cls.reads == media and (media != "texts" or not isinstance(model, MediaLM))
        return reads and isinstance(model, cls.kinds) and (not cls.heads or model.config.head in cls.heads)

    @property
    def labels(self) -> list[str]:
        """The names of the model's classes in order."""
        return self.model.label_names

    @property
    def equation(self) -> str:
        """How a prediction is computed, in one line."""
        return (inspect.getdoc(type(self)) or self.needs).splitlines()[0]

    def __repr__(self) -> str:
        return f"pipeline({self.task!r}, {self.model.family.name}, {self.model.config.head} head)"

    def _check_options(self, options: Mapping[str, Any]) -> None:
        parameters = inspect.signature(self.predict).parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return
        names = [name for name, p in parameters.items() if p.kind is not p.VAR_POSITIONAL]
        for name in rename_options(options):
            if name not in names and name not in IGNORED_OPTIONS:
                hint = nearest(name, names) or "it has " + ", ".join(names)
                raise InputError(f"{self.task} has no option {name!r}", hint=hint)


Pipeline = Task  # the name that transformers' users know


@dataclass(frozen=True)
class TrainingDefaults:
    """Settings of training that give good results without a flag."""

    lr: float
    lora_lr: float
    epochs: int
    length: int
    batch: int = 32
    steps: int = 200  # at least so many, so that a small file is read often enough
    max_epochs: int = 20
    many_labels_lr: float | None = None  # of a new head of many labels, which is far from settled


class TrainableTask(Task):
    """A task that a model can learn from a file, and be measured on.

    file ── read_examples, split_validation, check_examples ──▶ Examples ── facts, texts ──▶ what is reported
    model ── check_model, attach_head ──▶ model with a head ── batches, objective ──▶ what is learnt
    Examples ── call_inputs, call_options ──▶ predict ── compare ──▶ score

    The class methods need no model. The others are of a task bound to a model that has the head.
    """

    command: ClassVar[str]  # its name in `heed finetune` and `heed eval`
    file_kinds: ClassVar[tuple[str, ...]] = ("table",)
    roles: ClassVar[Mapping[str, Role]]  # of the columns of a table
    head: ClassVar[str]  # the head that is put on a model
    learners: ClassVar[tuple[type[Model], ...]] = (LM,)  # of models that can have it and learn
    trained_whole: ClassVar[tuple[str, ...]] = ("head.*",)  # parameters that learn next to an adapter
    training: ClassVar[TrainingDefaults]
    metric: ClassVar[str]  # the score that training stops on
    highest: ClassVar[bool] = True  # whether a high one is good
    by_loss: ClassVar[bool] = False  # whether training stops on the loss, because `predict` is slow
    unit: ClassVar[str] = "rows"  # what examples are called
    has_length: ClassVar[bool] = True  # whether there are texts, of which --length tokens are read
    cuts_texts: ClassVar[bool] = True  # whether long texts are cut; else they are read in windows
    label_unit: ClassVar[str] = "classes"  # what labels are called
    answer_columns: ClassVar[tuple[str, ...]] = ("score",)  # that `heed predict` adds to a table
    head_settings: ClassVar[Mapping[str, Any]] = {}  # of config.json, which say how its head is read
    objective: str | Objective  # the training objective: the name of one, or a function

    @classmethod
    def read_examples(cls, source: InputFile, column_flags: ColumnFlags) -> Examples:
        """Return the examples of a file: by default the rows of a table, parsed by `parse_cells`."""
        columns = infer_columns(source, cls.command, cls.roles, column_flags)
        return parse_table(source, columns, cls.parse_cells)

    @classmethod
    def parse_cells(cls, cells: Mapping[str, str]) -> tuple[str, ...]:
        """Return the cells of a row, given by role, as an example; raise UnusableRow for an empty one."""
        if empty := next((role for role, text in cells.items() if not text.strip()), None):
            raise UnusableRow(f"without a {empty}")
        return tuple(cells.values())

    @classmethod
    def split_validation(cls, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        """Return training and validation examples, and how they were split."""
        return (*split_randomly(examples, seed), "drawn at random")

    @classmethod
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        """Raise InputError if nothing can be learnt from both parts: unknown labels, one class only …"""

    @classmethod
    def texts(cls, examples: Examples) -> list[str]:
        """Return all text of every example, to measure its length: by default what is read of it."""
        return [" ".join(row) for row in cls.input_rows(examples)]

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        """Return facts about the examples of a file: labels and how often each occurs."""
        return {}

    @classmethod
    def check_model(cls, model: Model) -> None:
        """Raise InputError for a model that cannot learn this task."""
        name, hint = model.family.name, "take an encoder, such as all-minilm-l6-v2"
        if cls.head not in model.family.heads:
            raise InputError(f"a {name} model has no {cls.head!r} head, which {cls.command} needs", hint=hint)
        if not isinstance(model, cls.learners):
            raise InputError(f"{cls.command} needs a model with one stack of layers", hint=hint)
        if isinstance(model, MediaLM) and cls.reads == "texts":
            reads = f"a {name} model reads {model.embed.media} and no text"
            raise InputError(reads, hint="use `task=classify-images`")

    @classmethod
    def head_labels(cls, train: Examples) -> tuple[str, ...] | None:
        """Return the labels of a new head in order; None: it has none."""
        return None

    @classmethod
    def has_head(cls, model: Model, train: Examples) -> bool:
        """Return whether the model has a head for the labels of these examples."""
        labels = cls.head_labels(train)
        return model.config.head == cls.head and (labels is None or set(labels) == set(model.label_names))

    @classmethod
    def attach_head(cls, model: Model, train: Examples, seed: int) -> tuple[Model, str]:
        """Return the model with the head that the task needs, and a description of that head.

        The model's head stays if it is for the same labels. A new one takes the place of sentence vectors.
        """
        labels = cls.head_labels(train)
        size = "" if labels is None else f" of {len(labels)} {cls.label_unit}"
        if cls.has_head(model, train):
            return model, f"its own head{size}"
        made = with_head(model, cls.head, labels, seed=seed).to(model.device)
        made.pooling = None
        made.hf_config |= cls.head_settings
        return made, f"a new head{size}"

    @abstractmethod
    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        """Return the examples as batches to learn from."""

    @classmethod
    def input_rows(cls, examples: Examples) -> list[tuple[Any, ...]]:
        """Return what is read of every example: by default all cells but the last."""
        return [tuple(row[:-1]) for row in examples.items]

    @classmethod
    def call_inputs(cls, rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the arguments of a call that answers rows, given by what is read of each."""
        return ([row[0] if len(row) == 1 else " ".join(row) for row in rows],)

    def call_options(
        self, *, batch: int = BATCH_SIZE, length: int | None = None, truncate: bool = True,
        max_tokens: int | None = None, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the options of the call with which `heed eval` scores and `heed predict` predicts.

        The settings become those options of `predict` that it has. Its own options stay.
        """
        settings = {"batch_size": batch, "max_length": length, "truncation": truncate}
        takes = inspect.signature(self.predict).parameters
        given = {name: value for name, value in settings.items() if name in takes and value is not None}
        return given | options

    def answer_cells(self, answer: Any) -> dict[str, Any]:
        """Return an answer of `predict` as the cells of the `answer_columns`."""
        answer = answer[0] if isinstance(answer, list) else answer
        if not isinstance(answer, Mapping):
            return {self.answer_columns[0]: answer}
        return {name: answer[name] for name in self.answer_columns}

    def finish_training(self) -> None:
        """Change the trained model before it is saved, if its task needs that."""

    @abstractmethod
    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        """Return the scores of the answers that `predict` gave to the examples."""

    def score(self, examples: Examples, **settings: Any) -> dict[str, Any]:
        """Predict every example as the pipeline does, and compare the answers with the expected ones."""
        return self.compare(examples, self.answer_examples(examples, **settings))

    def answer_examples(self, examples: Examples, **settings: Any) -> list[Any]:
        """Return what `predict` answers to every example; `settings` are those of `call_options`."""
        inputs, options = self.call_inputs(self.input_rows(examples)), self.call_options(**settings)
        with evaluation_mode(self.model):
            return list(self(*inputs, **options))

    def loss_scores(self, batches: Batches) -> dict[str, Any]:
        """Return the mean loss of batches, and their perplexity if that is the metric."""
        with evaluation_mode(self.model):
            module = LossModule(self.model, objective(self.objective))
            loss = float(mean_losses(module, batches, self.model.device)["loss"])
        perplexity = {"perplexity": math.exp(min(loss, 700.0))} if self.metric == "perplexity" else {}
        return perplexity | {"loss": loss}


def row_keywords(options: BatchOptions) -> TaskKeywords:
    """Return the keywords of a builder whose rows are whole texts."""
    return {
        "length": options.length, "batch": options.batch, "seed": options.seed, "truncate": options.truncate,
    }  # fmt: skip


# Models by their names: the last ones used are kept, so that a second call does not read them again.


MAX_MODELS = 2  # one may score while another finds

Stamp = tuple[tuple[str, int, int], ...]  # name, time of the last change and size of each file

_models: dict[Path, tuple[Stamp, Model]] = {}  # the one used last stands last
_lock = threading.Lock()


def open_model(model: Model | str | Path) -> Model:
    """Return the model, or the one of that name: as it was kept if none of its files changed, else loaded.

    Whoever asks for the same name gets the same object; `heedful.load` makes one of your own.
    """
    if isinstance(model, Model):
        return model
    where = resolve(model).resolve()
    with _lock:
        stamp = file_stamp(where)
        cached = _models.pop(where, None)
        if cached is None or cached[0] != stamp:
            while len(_models) >= MAX_MODELS:
                _models.pop(next(iter(_models)))  # before another one takes its memory
            cached = stamp, load(where)
        _models[where] = cached
        return cached[1].eval()


def load_trained(path: str, device: str = "auto") -> Model:
    """Load a model by its folder; of a run its best checkpoint, else its last."""
    model = load(of_run(path), device=resolve_device(device))
    if model.tokenizer is None and not isinstance(model, MediaLM):
        raise InputError(f"{path} has no tokenizer: its text cannot be read")
    return model


def forget_models() -> None:
    """Let go of the models that are kept, and of their memory."""
    with _lock:
        _models.clear()


def file_stamp(where: Path) -> Stamp:
    """Return what changes with a model's files; those of the model that an adapter stands on count too."""
    files = sorted(p for p in where.rglob("*") if p.is_file()) if where.is_dir() else [where]
    stamps = [(str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in files]
    base = adapter_base(where) if where.is_dir() else None
    return (*stamps, *(file_stamp(resolve(base).resolve()) if base is not None else ()))
