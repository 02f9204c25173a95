"""Evaluate a trained model on files: `heed eval`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from heedful import data
from heedful.checks import check_choice
from heedful.data.answer_spans import Question, locate_answer
from heedful.data.batch import IGNORE, Batch
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
from heedful.models.base import LM, Model, evaluation_mode
from heedful.runs.datasets import TrainingData
from heedful.runs.requests import EvaluationRequest
from heedful.tasks.common import Truncated
from heedful.tasks.pipeline import pipeline
from heedful.train.checkpoint import of_run


def load_trained(path: str, device: str = "auto") -> Model:
    """Load a model by its folder; of a run its best checkpoint, else its last."""
    model = load(of_run(path), device=resolve_device(device))
    if model.tokenizer is None:
        raise InputError(f"{path} has no tokenizer: its text cannot be read")
    return model


def evaluate(model: Model, task: str, request: EvaluationRequest) -> dict[str, Any]:
    """Return the metrics of a task."""
    if task not in EVALUATIONS:
        hint = nearest(task, EVALUATIONS) or f"one of {', '.join(EVALUATIONS)}"
        raise ConfigError(f"no task is called {task!r}", hint=hint)
    return EVALUATIONS[task](model.eval(), request.with_columns(task))


def default_task(model: Model) -> str:
    """Return the task a model was made for, by its head."""
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


def evaluate_perplexity(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return the perplexity of a text as one stream, per token and per character."""
    reading = {"length": 1, "batch": 1, "holdout": 0.0} | dict(request.options)
    documents = TrainingData("next_token", request.files, (), reading).documents(request.files)
    around = find_template(model.tokenizer, end=True)
    after = () if "line_end" in request.options else around.after  # the last line has its end already
    tokens = tokenize_documents(documents, model.tokenizer, before=around.before, after=after)
    stream = tokens.flat[: request.limit]
    if not isinstance(model, LM) or not model.causal or model.config.head != "lm":
        kind = f"this is a {model.family.name} with a {model.config.head!r} head"
        way = default_task(model)
        way_out = "which none of its tasks measures" if way == "perplexity" else f"try --task {way}"
        raise InputError("perplexity is of models that predict the next token", hint=f"{kind}, {way_out}")
    found = perplexity(model, stream, length=request.length, stride=request.stride, batch=request.batch)
    scores = {"perplexity": found.perplexity, "loss": found.loss, "tokens": found.tokens}
    if request.limit is not None and request.limit < len(tokens.flat):
        return scores
    characters = sum(len(text) for document in documents for text in document)
    return scores | {"characters": characters, "bits_per_character": found.per(characters)}


def _logits(model: Model, batches: data.Batches, limit: int | None) -> Iterator[tuple[Batch, Tensor]]:
    with torch.no_grad():
        for batch in islice(batches.once(), limit):
            there = batch.to(model.device)
            typed = {"types": there.types} if isinstance(model, LM) else {}
            yield batch, model(there.tokens, valid=there.valid, **typed).float().cpu()


def _label_names(model: Model) -> list[str]:
    if not model.hf_config.get("id2label"):
        raise InputError("config.json has no id2label: the names of the classes are unknown")
    return model.label_names


def _batch_options(request: EvaluationRequest) -> dict[str, Any]:
    return (
        dict(request.options)
        | {"batch": request.batch}
        | ({"length": request.length} if request.length else {})
    )


def evaluate_classes(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return the accuracy with its 95 % interval, macro F1 and Matthews' correlation."""
    batches = data.classify(
        request.source, model.tokenizer, labels=_label_names(model), **_batch_options(request)
    )
    return class_scores(model, batches, request.limit)


def class_scores(model: Model, batches: data.Batches, limit: int | None = None) -> dict[str, Any]:
    """Return the metrics of one pass over batches with a label for every row."""
    truth: list[int] = []
    guess: list[int] = []
    for batch, logits in _logits(model, batches, limit):
        truth += batch.extra["label"].tolist()
        guess += logits.argmax(-1).tolist()
    return label_scores(truth, guess)


def label_scores(truth: Sequence[int], guess: Sequence[int], trials: float | None = None) -> dict[str, Any]:
    """Return the accuracy after its 95 % interval, macro F1 and Matthews' correlation of predicted labels.

    `trials` is how many independent predictions they count as, if not as many as they are.
    """
    right = accuracy(truth, guess)
    scores = {"macro_f1": macro_f1(truth, guess), "matthews": matthews(truth, guess), "rows": len(truth)}
    return {"accuracy_95": list(interval(right, trials or len(truth))), "accuracy": right, **scores}


def evaluate_regression(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return the correlations with the true scores."""
    batches = data.regress(request.source, model.tokenizer, **_batch_options(request))
    truth: list[float] = []
    guess: list[float] = []
    for batch, logits in _logits(model, batches, request.limit):
        truth += batch.extra["score"].tolist()
        guess += logits.squeeze(-1).tolist()
    return correlation_scores(truth, guess)


def correlation_scores(truth: Sequence[float], guess: Sequence[float]) -> dict[str, Any]:
    """Return Spearman's correlation after its 95 % interval, and Pearson's; both are 0 for equal numbers."""
    ranked, linear = (0.0 if math.isnan(r) else r for r in (spearman(truth, guess), pearson(truth, guess)))
    between = list(correlation_interval(ranked, len(truth)))
    return {"spearman_95": between, "spearman": ranked, "pearson": linear, "rows": len(truth)}


def evaluate_similarity(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return the correlation of two sentences' cosine with the true scores, as fine-tuning measures it."""
    from heedful.runs.finetune.finetune_task import BatchSettings, max_input_length
    from heedful.runs.finetune.input_files import inspect
    from heedful.runs.finetune.sequence_tasks import Similarity

    task, options = Similarity(), dict(request.options)
    task.check(model)
    given = {f"--{name}": options.pop(name, None) for name in ("text", "label", "pair")}
    named = {flag: None if column is None else str(column) for flag, column in given.items()}
    if len(request.files) > 1:
        raise InputError(
            "similarity is measured on one table of pairs", hint=f"{len(request.files)} files were given"
        )
    counted = any(isinstance(column, int) for column in given.values())
    examples = task.read(inspect(request.files[0], header=not counted, **options), named)
    if request.limit is not None:
        examples = examples.select(range(min(len(examples), request.limit * request.batch)))
    task.prepare(examples, examples)
    length = min(request.length or task.defaults.length, max_input_length(model))
    return task.score(
        model, examples, task.batches(examples, model, BatchSettings(length, request.batch, 0)), None
    )


def evaluate_tags(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return the F1 of whole entities after its 95 % interval, and the accuracy by word."""
    batches = data.tag(request.source, model.tokenizer, labels=_label_names(model), **_batch_options(request))
    return tag_scores(model, batches, request.limit)


def tag_scores(model: Model, batches: data.Batches, limit: int | None = None) -> dict[str, Any]:
    """Return the metrics of one pass over batches with a label for every word."""
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


def evaluate_answers(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return exact match and F1 of the answers to questions of SQuAD's format."""
    options = dict(request.options)
    questions = data.squad(request.source, encoding=options.pop("encoding", "utf-8"))
    questions = [one for one in questions if not one.answers or locate_answer(one) is not None]
    if request.limit is not None:
        questions = questions[: request.limit * request.batch]
    for name in {"seed", "truncate"} & set(options):  # they change batches for training, not answers
        options.pop(name)
    for name in options:
        check_choice("option", name, ("stride", "question", "encoding"), ConfigError)
    return answer_scores(model, questions, length=request.length, batch=request.batch, **options)


def answer_scores(
    model: Model, questions: Sequence[Question], *, batch: int, length: int | None = None,
    stride: int | None = None, question: int = 64,
) -> dict[str, Any]:  # fmt: skip
    """Return exact match and F1, each after its 95 % interval, of what `predict_answers` gives."""
    guesses = predict_answers(model, questions, length, stride, question, batch)
    truths = [[text for text, _ in one.answers] for one in questions]
    found = answers(truths, guesses)
    # No mean of numbers between 0 and 1 varies more than a proportion does.
    between = lambda name: [100 * end for end in interval(found[name] / 100, len(questions))]
    pairs = [{f"{name}_95": between(name), name: found[name]} for name in found]
    return {**pairs[0], **pairs[1], "questions": len(questions)}


def predict_answers(
    model: Model, questions: Sequence[Question], length: int | None, stride: int | None, question: int,
    batch: int,
) -> list[str]:  # fmt: skip
    """Return the answer of the question-answering pipeline to each question.

    "" is an answer only where some question has none. Windows have `length` tokens and share `stride` of
    them; `question` bounds the tokens of a question.
    """
    with evaluation_mode(model), warnings.catch_warnings():
        warnings.simplefilter("ignore", Truncated)  # of a long question; as in training
        reader = pipeline(
            "question-answering", model, max_seq_len=length, doc_stride=stride, max_question_len=question,
            handle_impossible_answer=any(not one.answers for one in questions), max_answer_len=30,
        )  # fmt: skip
        rows = ({"question": one.question, "context": one.context} for one in questions)
        return [found["answer"] for found in reader(rows, batch_size=batch)]


def translations(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return the BLEU of what is generated for each source text."""
    from heedful.runs.evaluate_written import generation_scores

    return generation_scores(model, request, "translate", bleu)


def summaries(model: Model, request: EvaluationRequest) -> dict[str, Any]:
    """Return the ROUGE of what is generated for each long text."""
    from heedful.runs.evaluate_written import generation_scores

    return generation_scores(model, request, "summarize", rouge)


EVALUATIONS: dict[str, Callable[[Model, EvaluationRequest], dict[str, Any]]] = {
    "perplexity": evaluate_perplexity,
    "classify": evaluate_classes,
    "regress": evaluate_regression,
    "similarity": evaluate_similarity,
    "tag": evaluate_tags,
    "answer": evaluate_answers,
    "translate": translations,
    "summarize": summaries,
}
