"""A trained model, measured on files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from heedful import data
from heedful.data.batch import IGNORE, Batch
from heedful.data.answer_spans import Question
from heedful.data.token_cache import tokenize_documents
from heedful.data.tokenization import find_template
from heedful.devices import resolve_device
from heedful.errors import ConfigError, InputError, nearest
from heedful.evaluate.entities import entity_f1, entity_f1_interval
from heedful.evaluate.generated import answers, bleu, rouge
from heedful.evaluate.perplexity import perplexity
from heedful.evaluate.scores import (
    accuracy,
    correlation_interval,
    interval,
    macro_f1,
    matthews,
    pearson,
    spearman,
)
from heedful.loading import load
from heedful.models.base import LM, Model
from heedful.runs.datasets import TrainingData
from heedful.train.checkpoint import of_run


@dataclass(frozen=True)
class Asked:
    """What is to be measured, and on what."""

    files: Sequence[str]
    batch: int = 16
    length: int | None = None
    stride: int | None = None
    limit: int | None = None  # batches, or tokens of a stream; None: all
    options: Mapping[str, Any] = field(default_factory=dict)  # of the builder of the data, and of generation
    quiet: bool = True  # whether nothing says how far it is, where that takes long

    @property
    def source(self) -> Any:
        """The files as the builders take them."""
        return list(self.files) if len(self.files) > 1 else self.files[0]


def trained(path: str, device: str = "auto") -> Model:
    """A model by its folder; of a run, its best checkpoint, else its last."""
    model = load(of_run(path), device=resolve_device(device))
    if model.tokenizer is None:
        raise InputError(f"{path} has no tokenizer: its text cannot be read")
    return model


def evaluate(model: Model, task: str, asked: Asked) -> dict[str, Any]:
    """The metrics of a task."""
    if task not in TASKS:
        raise ConfigError(
            f"no task is called {task!r}; {nearest(task, TASKS) or 'one of ' + ', '.join(TASKS)}"
        )
    return TASKS[task](model.eval(), asked)


def usual(model: Model) -> str:
    """The task a model was made for, by its head."""
    head = model.config.head
    if head == "none" and isinstance(model, LM) and model.pooling is not None:
        return "similarity"
    if head == "lm":
        return "perplexity" if isinstance(model, LM) else "translate"
    return {
        "classify": "regress" if model.config.labels == 1 else "classify",
        "tag": "tag",
        "span": "answer",
    }.get(head, "perplexity")


def stream_perplexity(model: Model, asked: Asked) -> dict[str, Any]:
    """Of a text as one stream; per token, and per character whatever the vocabulary."""
    reading = {"length": 1, "batch": 1, "holdout": 0.0} | dict(asked.options)
    documents = TrainingData("next_token", asked.files, (), reading).documents(asked.files)
    around = find_template(model.tokenizer, end=True)
    after = () if "line_end" in asked.options else around.after  # the last line has its end already
    tokens = tokenize_documents(documents, model.tokenizer, before=around.before, after=after)
    stream = tokens.flat[: asked.limit]
    if not isinstance(model, LM) or not model.causal or model.config.head != "lm":
        kind = f"this is a {model.family.name} with a {model.config.head!r} head"
        way = usual(model)
        way_out = "which none of its tasks measures" if way == "perplexity" else f"try --task {way}"
        raise InputError(f"perplexity is of models that predict the next token; {kind}, {way_out}")
    found = perplexity(model, stream, length=asked.length, stride=asked.stride, batch=asked.batch)
    told = {"perplexity": found.perplexity, "loss": found.loss, "tokens": found.tokens}
    if asked.limit is not None and asked.limit < len(tokens.flat):
        return told
    characters = sum(len(text) for document in documents for text in document)
    return told | {"characters": characters, "bits_per_character": found.per(characters)}


def _logits(model: Model, batches: data.Batches, limit: int | None) -> Iterator[tuple[Batch, Tensor]]:
    with torch.no_grad():
        for batch in islice(batches.once(), limit):
            there = batch.to(model.device)
            typed = {"types": there.types} if isinstance(model, LM) else {}
            yield batch, model(there.tokens, valid=there.valid, **typed).float().cpu()


def _names(model: Model) -> list[str]:
    if not model.hf_config.get("id2label"):
        raise InputError("config.json has no id2label: it is not known what the classes are called")
    return model.label_names


def _lengths(asked: Asked) -> dict[str, Any]:
    return dict(asked.options) | {"batch": asked.batch} | ({"length": asked.length} if asked.length else {})


def classes(model: Model, asked: Asked) -> dict[str, Any]:
    """Accuracy with its 95 % interval, macro F1, Matthews."""
    batches = data.classify(asked.source, model.tokenizer, labels=_names(model), **_lengths(asked))
    return class_scores(model, batches, asked.limit)


def class_scores(model: Model, batches: data.Batches, limit: int | None = None) -> dict[str, Any]:
    """Of one pass over batches with a label for every row."""
    truth: list[int] = []
    guess: list[int] = []
    for batch, logits in _logits(model, batches, limit):
        truth += batch.extra["label"].tolist()
        guess += logits.argmax(-1).tolist()
    return label_scores(truth, guess)


def label_scores(truth: Sequence[int], guess: Sequence[int]) -> dict[str, Any]:
    """Accuracy after its 95 % interval, macro F1 and Matthews of predicted labels."""
    right = accuracy(truth, guess)
    scores = {"macro_f1": macro_f1(truth, guess), "matthews": matthews(truth, guess), "rows": len(truth)}
    return {"accuracy_95": list(interval(right, len(truth))), "accuracy": right, **scores}


def numbers(model: Model, asked: Asked) -> dict[str, Any]:
    """Correlations with the true scores."""
    batches = data.regress(asked.source, model.tokenizer, **_lengths(asked))
    truth: list[float] = []
    guess: list[float] = []
    for batch, logits in _logits(model, batches, asked.limit):
        truth += batch.extra["score"].tolist()
        guess += logits.squeeze(-1).tolist()
    return correlation_scores(truth, guess)


def correlation_scores(truth: Sequence[float], guess: Sequence[float]) -> dict[str, Any]:
    """Spearman's correlation after its 95 % interval, and Pearson's; of equal numbers both are 0."""
    ranked, linear = (0.0 if math.isnan(r) else r for r in (spearman(truth, guess), pearson(truth, guess)))
    between = list(correlation_interval(ranked, len(truth)))
    return {"spearman_95": between, "spearman": ranked, "pearson": linear, "rows": len(truth)}


def closeness(model: Model, asked: Asked) -> dict[str, Any]:
    """How well the cosine of two sentences' vectors follows the true scores, as fine-tuning measures it."""
    from heedful.runs.finetune.inspecting import inspect
    from heedful.runs.finetune.labelled import Similarity
    from heedful.runs.finetune.tasks import Reading, reach

    task, options = Similarity(), dict(asked.options)
    task.check(model)
    given = {f"--{name}": options.pop(name, None) for name in ("text", "label", "pair")}
    named = {flag: None if column is None else str(column) for flag, column in given.items()}
    if len(asked.files) > 1:
        raise InputError(f"similarity is measured on one table of pairs; {len(asked.files)} files were given")
    counted = any(isinstance(column, int) for column in given.values())
    examples = task.read(inspect(asked.files[0], header=not counted, **options), named)
    if asked.limit is not None:
        examples = examples.some(range(min(len(examples), asked.limit * asked.batch)))
    task.prepare(examples, examples)
    length = min(asked.length or task.usual.length, reach(model))
    return task.score(model, examples, task.batches(examples, model, Reading(length, asked.batch, 0)), None)


def tags(model: Model, asked: Asked) -> dict[str, Any]:
    """F1 of whole entities after its 95 % interval, and accuracy by word."""
    batches = data.tag(asked.source, model.tokenizer, labels=_names(model), **_lengths(asked))
    return tag_scores(model, batches, asked.limit)


def tag_scores(model: Model, batches: data.Batches, limit: int | None = None) -> dict[str, Any]:
    """Of one pass over batches with a label for every word."""
    names = batches.labels
    truth: list[list[str]] = []
    guess: list[list[str]] = []
    for batch, logits in _logits(model, batches, limit):
        assert batch.labels is not None
        for labels, said in zip(batch.labels, logits.argmax(-1), strict=True):
            kept = labels != IGNORE
            truth.append([names[i] for i in labels[kept].tolist()])
            guess.append([names[i] for i in said[kept].tolist()])
    flat = lambda rows: [tag for row in rows for tag in row]
    found, between = entity_f1(truth, guess), list(entity_f1_interval(truth, guess))
    scores = {"f1_95": between, "f1": found.pop("f1")} | found
    return scores | {"accuracy": accuracy(flat(truth), flat(guess)), "sentences": len(truth)}


def questions(model: Model, asked: Asked) -> dict[str, Any]:
    """Exact match and F1 of the best span of every question; the first token stands for "no answer"."""
    all_asked = data.squad(asked.source)
    batches = data.answer(all_asked, model.tokenizer, **_lengths(asked))
    return answer_scores(model, batches, all_asked, asked.limit)


def answer_scores(
    model: Model, batches: data.Batches, all_asked: Sequence[Question], limit: int | None = None
) -> dict[str, Any]:
    """Of one pass over the windows of questions."""
    best: dict[int, tuple[float, str]] = {}
    for batch, logits in _logits(model, batches, limit):
        for i, example in enumerate(batch.extra["example"].tolist()):
            text, score = best_span(logits[i], batch.extra["offsets"][i], all_asked[example].context)
            if example not in best or score > best[example][0]:
                best[example] = (score, text)
    truths = [[text for text, _ in all_asked[e].answers] for e in best]
    found = answers(truths, [text for _, text in best.values()])
    # No mean of numbers between 0 and 1 varies more than a proportion does.
    between = lambda name: [100 * end for end in interval(found[name] / 100, len(best))]
    pairs = [{f"{name}_95": between(name), name: found[name]} for name in found]
    return {**pairs[0], **pairs[1], "questions": len(best)}


def best_span(logits: Tensor, offsets: Tensor, context: str, longest: int = 30) -> tuple[str, float]:
    """The likeliest span of the context, and by how much it beats "no answer"   (Devlin et al. 2019 §4.3)"""
    inside = offsets[:, 0] >= 0
    start, end = (logits[: len(inside), k].masked_fill(~inside, -1e9) for k in (0, 1))
    scores = start[:, None] + end[None, :]  # (T, T)
    far = torch.arange(len(start))
    scores = scores.masked_fill(
        (far[None, :] < far[:, None]) | (far[None, :] >= far[:, None] + longest), -1e9
    )
    flat = int(scores.argmax())
    first, last = divmod(flat, len(start))
    beats = float(scores.flatten()[flat] - logits[0].sum())
    return (context[int(offsets[first, 0]) : int(offsets[last, 1])] if beats > 0 else ""), beats


def translations(model: Model, asked: Asked) -> dict[str, Any]:
    """BLEU of what is written for each source text."""
    from heedful.runs.evaluate_written import written_scores

    return written_scores(model, asked, "translate", bleu)


def summaries(model: Model, asked: Asked) -> dict[str, Any]:
    """ROUGE of what is written for each long text."""
    from heedful.runs.evaluate_written import written_scores

    return written_scores(model, asked, "summarize", rouge)


TASKS: dict[str, Callable[[Model, Asked], dict[str, Any]]] = {
    "perplexity": stream_perplexity,
    "classify": classes,
    "regress": numbers,
    "similarity": closeness,
    "tag": tags,
    "answer": questions,
    "translate": translations,
    "summarize": summaries,
}
