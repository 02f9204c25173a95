"""pipeline(task, model): a task by the name people know, done by a fitting model.

The table below is all there is to find one: the class that does the task, and the model taken when none is
given. Its module is imported when the task is asked for.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from heedful.core.checks import check_choice
from heedful.core.devices import resolve_device
from heedful.core.errors import ConfigError, InputError, NotFound, nearest
from heedful.models.base import LM, MediaLM, Model
from heedful.tasks.model_inputs import with_special_tokens
from heedful.tasks.task import Task, TrainableTask
from heedful.tasks.task_specification import TaskSpecification
from heedful.text import Tokenizer, load_tokenizer
from heedful.weights.hub import at_hand, resolve
from heedful.weights.loading import load

if TYPE_CHECKING:
    from heedful.tasks.label_kinds import LabelKind


@dataclass(frozen=True)
class TaskEntry:
    """The class of a task ("module:class"), the model taken if none is given, and the task's other names.

    A module whose name begins with a dot is one of heedful.tasks.pipelines.
    """

    where: str
    model: str
    aliases: tuple[str, ...] = ()

    def load(self) -> type[Task]:
        """Import the class."""
        module, _, name = self.where.partition(":")
        kind: type[Task] = getattr(importlib.import_module(module, "heedful.tasks.pipelines"), name)
        return kind


TASKS: dict[str, TaskEntry] = {
    "text-classification": TaskEntry(
        ".text_classification:TextClassification", "sentiment", ("sentiment-analysis",)
    ),
    "text-regression": TaskEntry(".number_tasks:TextRegression", ""),
    "zero-shot-classification": TaskEntry(".text_classification:ZeroShot", "all-minilm-l6-v2"),
    "token-classification": TaskEntry(".token_classification:TokenClassification", "entities", ("ner",)),
    "question-answering": TaskEntry(".question_answering:QuestionAnswering", "answers"),
    "fill-mask": TaskEntry(".encoders:FillMask", "fill-mask"),
    "next-sentence": TaskEntry(".encoders:NextSentence", "masked", ("next-sentence-prediction",)),
    "feature-extraction": TaskEntry(".encoders:FeatureExtraction", "all-minilm-l6-v2"),
    "sentence-similarity": TaskEntry(".number_tasks:SentenceSimilarity", "all-minilm-l6-v2"),
    "rerank": TaskEntry(".number_tasks:Rerank", "", ("text-ranking",)),
    "text-generation": TaskEntry(".text_generation:TextGeneration", "smollm2-135m-instruct"),
    "conversational": TaskEntry(".text_generation:Conversational", "smollm2-135m-instruct"),
    "text2text-generation": TaskEntry(".text2text:Text2Text", "smollm2-135m-instruct"),
    "summarization": TaskEntry(".text2text:Summarization", "summaries"),
    "translation": TaskEntry(".text2text:Translation", "translate-en-de"),
    "image-to-text": TaskEntry(".media_to_text:ImageToText", "digits"),
    "image-classification": TaskEntry(".image_classification:ImageClassification", ""),
    "zero-shot-image-classification": TaskEntry(".image_classification:ZeroShotImageClassification", ""),
    "automatic-speech-recognition": TaskEntry(".media_to_text:SpeechRecognition", "", ("asr",)),
}

TRANSLATORS = {"en_to_de": "translate-en-de", "en_to_fr": "translate-en-fr"}

# The task of a model by its head; that of a language model depends on what it reads.
TASK_BY_HEAD = {
    "classify": "text-classification",
    "tag": "token-classification",
    "span": "question-answering",
    "mlm": "fill-mask",
    "pretrain": "fill-mask",
    "next": "next-sentence",
    "contrast": "zero-shot-image-classification",
    "none": "feature-extraction",
}

# Arguments of transformers' pipeline that change nothing here.
IGNORED_ARGUMENTS = frozenset(
    {"framework", "revision", "trust_remote_code", "use_fast", "device_map", "token", "use_auth_token",
     "config", "feature_extractor", "image_processor", "processor", "binary_output"}
)  # fmt: skip


def pipeline(
    task: str | None = None,
    model: str | Path | Model | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    device: int | str | torch.device | None = None,
    **defaults: Any,
) -> Task:
    """Return a task that you call with text. Names and answers are those of Hugging Face's pipelines.

    >>> import heedful
    >>> classify = heedful.pipeline("sentiment-analysis")
    >>> classify("Cats are fickle creatures")[0]["label"]
    'NEGATIVE'
    >>> classify(["Great fun.", "A bore."], batch_size=2)[0]["label"]
    'POSITIVE'

    Args:
        task: The name of a task. If you give a model, it can be left out, because the model's head defines
            it.
        model: A bundled name, a folder, a hub id or a model. Most tasks have a default.
        tokenizer: A tokenizer in place of the model's.
        device: "cpu", "cuda", "cuda:1", or a number as in transformers.
        defaults: Options for every call, such as `top_k=2`. `dtype` is the type of the loaded weights.
    """
    merged = {**(defaults.get("model_kwargs") or {}), **defaults}
    dtype = merged.get("dtype", merged.get("torch_dtype"))
    loading = ("dtype", "torch_dtype", "model_kwargs")
    defaults = {
        name: value
        for name, value in defaults.items()
        if name not in IGNORED_ARGUMENTS and name not in loading
    }
    if task is None and model is None:
        raise InputError("name a task or a model", hint=f"the tasks are {', '.join(TASKS)}")
    specification = None if task is None else find_task(task)
    loaded = _load_model(task, model, specification, device, dtype)
    if specification is None or task is None:
        task = infer_task(loaded)
        specification = find_task(task)
    kind = specification.load()
    if not kind.fits(loaded):
        head = loaded.config.head
        try:
            good_for = f"good for {infer_task(loaded)}"
        except InputError:
            good_for = "good for no task here"
        has = f"{'no head' if head == 'none' else f'a {head!r} head'} ({good_for})"
        bundled = specification.model
        hint = f"the bundled {bundled!r} would do" if bundled else "give another `model=`"
        raise InputError(f"{task} needs {kind.needs}; this {loaded.family.name} has {has}", hint=hint)
    return kind(task, loaded, _find_tokenizer(tokenizer, loaded), defaults)


def find_task(task: str) -> TaskEntry:
    """Return the entry of a task by any of its names; translation_xx_to_yy names its languages."""
    if not isinstance(task, str):
        raise InputError(f"a task is named by a text, one of {', '.join(TASKS)}; got {task!r:.60}")
    if task in TASKS:
        return TASKS[task]
    for row in TASKS.values():
        if task in row.aliases:
            return row
    if pair := re.fullmatch(r"translation_(\w+_to_\w+)", task):
        return TaskEntry(TASKS["translation"].where, TRANSLATORS.get(pair[1], ""))
    names = task_names()
    raise NotFound(
        f"no task is called {task!r}",
        hint=f"{nearest(task.lower(), names, 1) or 'there are ' + ', '.join(names)}",
    )


def trainable_tasks() -> dict[str, type[TrainableTask]]:
    """Map the names of `heed finetune` and `heed eval` to the tasks that can be learnt."""
    kinds = [entry.load() for entry in TASKS.values()]
    return {kind.command: kind for kind in kinds if issubclass(kind, TrainableTask)}


def bind_task(kind: type[TrainableTask], model: Model, label_kind: LabelKind | None = None) -> TrainableTask:
    """Return the task bound to a model that has its head: its pipeline.

    `label_kind` is of classification; None: the kind that the model has learnt.
    """
    bound = pipeline(next(name for name, entry in TASKS.items() if entry.load() is kind), model)
    assert isinstance(bound, TrainableTask)
    return bound if label_kind is None else replace(bound, label_kind=label_kind)  # type: ignore[call-arg]


def infer_task(model: Model) -> str:
    """Return the task that a model was fine-tuned for, or else the one that its head tells."""
    if (specification := TaskSpecification.of(model)) is not None:
        return specification.task
    if isinstance(model, MediaLM) and model.config.head == "classify":
        return "image-classification"
    if isinstance(model, MediaLM):
        raise InputError(f"no task reads {model.embed.media} without writing", hint="call it: model(pixels)")
    if model.config.head == "lm":
        if isinstance(model, LM):
            return "summarization" if "task_prompt" in model.hf_config else "text-generation"
        if model.image_processor is not None:
            return "image-to-text"
        if model.sound_processor is not None:
            return "automatic-speech-recognition"
        return "translation" if "languages" in model.hf_config else "text2text-generation"
    if model.config.head not in TASK_BY_HEAD:
        raise InputError(
            f"a {model.config.head!r} head does not belong to a task", hint=f"name one of {', '.join(TASKS)}"
        )
    pooled = model.config.head == "none" and model.pooling is not None
    return "sentence-similarity" if pooled else TASK_BY_HEAD[model.config.head]


def _load_model(
    task: str | None, model: str | Path | Model | None, row: TaskEntry | None, device: Any, dtype: Any
) -> Model:
    if isinstance(model, Model):
        return (model if device is None else model.to(resolve_device(device, InputError))).eval()
    if model is not None and (not isinstance(model, (str, Path)) or not str(model).strip()):
        got = "an empty text" if isinstance(model, str) else f"a {type(model).__name__}"
        raise InputError(
            f"`model=` is {got}", hint="give a folder, the name of a model, a hub id or heedful's model"
        )
    if model is None:
        assert row is not None
        if not row.model:
            pairs = f"they do translation_{', translation_'.join(TRANSLATORS)}: give `model=`"
            kind = row.load()
            hint = pairs if kind.__name__ == "Translation" else f"give `model=`: {kind.needs}"
            raise InputError(f"no bundled model supports {task}", hint=hint)
    source = model
    if source is None:
        assert row is not None
        source = at_hand().get(row.model, row.model)  # and not a folder here that has its name
    if dtype is not None and not isinstance(dtype, torch.dtype):
        name = check_choice("dtype", str(dtype), ("float32", "float16", "bfloat16", "auto"), ConfigError)
        dtype = None if name == "auto" else getattr(torch, name)
    try:
        return load(source, device=resolve_device(device, InputError), dtype=dtype)
    except NotFound as error:
        if model is not None or row is None:
            raise
        missing = f"{task} takes {row.model!r} if no model is given: {error.marked_message}"
        raise NotFound(missing, hint="give `model=`") from None


def _find_tokenizer(source: str | Path | Tokenizer | None, model: Model) -> Any:
    if isinstance(source, (str, Path)):
        folder = resolve(source)
        source = load_tokenizer(folder)
        if source is None:
            raise NotFound(f"{folder} holds no tokenizer", hint="give the folder of a model that has one")
    tokenizer = model.tokenizer if source is None else source
    if tokenizer is None and isinstance(model, MediaLM):
        return None  # it reads no text
    if not isinstance(tokenizer, Tokenizer):
        got = "none" if tokenizer is None else f"a {type(tokenizer).__name__}"
        raise InputError(
            f"the tokenizer of this model is {got}",
            hint="give `tokenizer=` a heedful one, or a folder that has one",
        )
    return with_special_tokens(tokenizer) if isinstance(model, LM) and not model.causal else tokenizer


def task_names() -> Mapping[str, str]:
    """Map every name of a task to the model it takes if none is given."""
    names = {n: entry.model for name, entry in TASKS.items() for n in (name, *entry.aliases)}
    return names | {f"translation_{pair}": model for pair, model in TRANSLATORS.items()}
