"""Tasks over HTTP: classes, entities, answers, summaries and translations, as the pipelines give them.

`/classify` has vLLM's fields and `/predict` those of text-embeddings-inference. For the other tasks there is
no address that clients agree on: they have `/v1/tag`, `/v1/answer`, `/v1/summarize` and `/v1/translate`.
"""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heedful.serve.openai_errors import invalid, too_long
from heedful.serve.openai_requests import RequestFields, check_characters
from heedful.serve.openai_responses import Job
from heedful.serve.openai_server import ServedModel, Server
from heedful.tasks.model_inputs import TokenizedText, Truncated, smallest_limit, tokenize
from heedful.tasks.pipelines.text_classification import SCORE_FUNCTIONS, TextClassification
from heedful.tasks.pipelines.token_classification import STRATEGIES
from heedful.tasks.registry import pipeline
from heedful.tasks.task_specification import TaskSpecification

MAX_CHARACTERS = 100_000  # of a text that is read in windows, which no context bounds
MAX_ANSWERS, MAX_BEAMS = 20, 16
TEXTS_AT_ONCE = 8  # of tasks that read or write more than one row for a text

TextOrPair = str | tuple[str, str]


@dataclass(frozen=True)
class PipelineCall:
    """A pipeline with its options, as the engine computes it: requests with equal options share a batch."""

    served: ServedModel
    task: str
    options: tuple[tuple[str, Any], ...]

    def __call__(self, rows: Sequence[Any]) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Truncated)  # the request asked for it
            bound = pipeline(self.task, self.served.model)
            return list(bound(iter(rows), batch_size=len(rows), **dict(self.options)))


# /classify and /predict: logits of whole texts or pairs.


def read_classify(server: Server, fields: RequestFields) -> Job:
    """Read vLLM's request: `input` is a text, {"text", "text_pair"}, or a list of either.

    If several labels may hold for a text, the answer also has `labels`, those that hold, the best first.
    """
    served = server.find(fields, "/classify")
    texts = [parse_text("input", one) for one in fields.entries("input")]
    cut = fields.integer("truncate_prompt_tokens", -1)
    rows = tokenize_texts(served, "input", texts, cut)
    task = classifier(served)
    raw = not (fields.boolean("use_activation", True) and fields.boolean("activation", True))
    score = SCORE_FUNCTIONS["none" if raw else task.default_function]

    def labels(logits: Tensor) -> dict[str, Any]:
        return {"labels": task.labels_that_hold(task.rank_labels(logits))} if task.label_kind.several else {}

    def render(logits: list[Tensor], usage: dict[str, int]) -> Any:
        entries = [
            {"index": i, "label": task.labels[int(one.argmax())], "probs": score(one).tolist(),
             "num_classes": len(one), **labels(one)}
            for i, one in enumerate(logits)
        ]  # fmt: skip
        return list_object("classify", served, entries, usage) | {"created": int(time.time())}

    return Job(rows=rows, compute=served.logits, tokens=sum(map(len, rows)), render=render)


def read_predict(server: Server, fields: RequestFields) -> Job:
    """Read text-embeddings-inference's request: a text, a pair [a, b], or a list of [a] and [a, b]."""
    served = server.find(fields, "/predict")
    value = fields.require("inputs")
    several = isinstance(value, list) and any(isinstance(one, list) for one in value)
    texts = [parse_text("inputs", one) for one in (fields.entries("inputs") if several else [value])]
    rows = tokenize_texts(served, "inputs", texts, -1 if fields.boolean("truncate") else None)
    task = classifier(served)
    function = "none" if fields.boolean("raw_scores") else task.default_function

    def render(logits: list[Tensor], usage: dict[str, int]) -> Any:
        answers = [task.rank_labels(one, function) for one in logits]
        return answers if several else answers[0]

    return Job(rows=rows, compute=served.logits, tokens=sum(map(len, rows)), render=render)


def classifier(served: ServedModel) -> TextClassification:
    task = pipeline("text-classification", served.model)
    assert isinstance(task, TextClassification)
    return task


def parse_text(name: str, value: Any) -> TextOrPair:
    """Return a text, or two of them from {"text", "text_pair"} or [a, b]."""
    parts = [value]
    if isinstance(value, dict):
        parts = [value.get("text"), *([] if value.get("text_pair") is None else [value["text_pair"]])]
    elif isinstance(value, list):
        parts = value
    if not 1 <= len(parts) <= 2 or not all(isinstance(part, str) and part.strip() for part in parts):
        shape = "a text, [text] or [text, text]" if name == "inputs" else 'a text or {"text", "text_pair"}'
        raise invalid(
            name, f"{name} must be {shape}, none of them empty, or a list of such; got {value!r:.60}"
        )
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def tokenize_texts(
    served: ServedModel, name: str, texts: Sequence[TextOrPair], cut: int | None
) -> list[TokenizedText]:
    """Return the tokens of texts and pairs; the model's specification says which of the two it takes.

    With `cut`, each keeps at most that many tokens, and never more than the context, which −1 stands for.
    """
    if (specification := TaskSpecification.of(served.model)) is not None:
        for number, text in enumerate(texts):
            specification.check_input(1 if isinstance(text, str) else 2, number)
    tokenizer = pipeline(served.task, served.model).tokenizer
    limit = smallest_limit(served.context, tokenizer.settings.get("model_max_length"))
    if cut is not None and cut >= 0:
        limit = smallest_limit(limit, cut)
    assert limit is not None
    short = served.check_length if cut is None else lambda text: tokenizer.beginning(text, limit)
    pairs = [tuple(map(short, (text,) if isinstance(text, str) else text)) for text in texts]
    rows = [tokenize(tokenizer, *pair).truncate(None if cut is None else limit) for pair in pairs]
    if (longest := max(map(len, rows))) > limit:
        raise too_long(limit, longest)
    return rows


# /v1/tag, /v1/answer, /v1/summarize and /v1/translate: pipelines by their names.


def read_tag(server: Server, fields: RequestFields) -> Job:
    """Read texts whose entities are wanted; `aggregation_strategy` says how tokens become spans."""
    served = server.find(fields, "/v1/tag")
    ignored = fields.get("ignore_labels")
    if ignored is not None and not (isinstance(ignored, list) and all(isinstance(n, str) for n in ignored)):
        raise invalid("ignore_labels", f"ignore_labels must be a list of labels; got {ignored!r:.60}")
    options = {
        "aggregation_strategy": fields.choice("aggregation_strategy", ("first", *STRATEGIES)),
        "ignore_labels": None if ignored is None else tuple(ignored),
        "stride": fields.integer("stride", 0),
    }
    texts = fields.texts("input", MAX_CHARACTERS)
    return pipeline_job(served, "token-classification", texts, texts, options, lambda r: {"entities": r})


def read_answer(server: Server, fields: RequestFields) -> Job:
    """Read a question and its context, or `input`, a list of such objects."""
    served = server.find(fields, "/v1/answer")
    if fields.get("input") is None:
        rows = [{name: fields.require(name) for name in ("question", "context")}]
    else:
        rows = fields.entries("input")
    for row in rows:
        if not isinstance(row, dict) or not all(
            isinstance(row.get(name), str) and row[name].strip() for name in ("question", "context")
        ):
            message = f'a question is {{"question": text, "context": text}}, neither empty; got {row!r:.60}'
            raise invalid("input", message)
        check_characters("context", row["context"], MAX_CHARACTERS)
        served.check_length(row["question"])
    options = {
        "top_k": fields.integer("top_k", 1, MAX_ANSWERS) or 1,
        "max_answer_len": fields.integer("max_answer_len", 1) or 15,
        "handle_impossible_answer": fields.boolean("handle_impossible_answer"),
    }
    texts = [f"{row['question']} {row['context']}" for row in rows]
    questions = [{name: row[name] for name in ("question", "context")} for row in rows]
    as_list = lambda result: {"answers": result if isinstance(result, list) else [result]}
    return pipeline_job(served, "question-answering", questions, texts, options, as_list)


def read_summarize(server: Server, fields: RequestFields) -> Job:
    """Read texts to summarize. What is drawn at random is left to /v1/completions."""
    served = server.find(fields, "/v1/summarize")
    return read_writing(server, served, fields, "summarization", "summary_text", {})


def read_translate(server: Server, fields: RequestFields) -> Job:
    """Read texts to translate, sentence by sentence; a model of several languages gets the language."""
    served = server.find(fields, "/v1/translate")
    languages = {
        option: fields.text(name)
        for name, option in (("source_language", "src_lang"), ("target_language", "tgt_lang"))
        if fields.get(name) is not None
    }
    return read_writing(server, served, fields, "translation", "translation_text", languages)


def read_writing(
    server: Server, served: ServedModel, fields: RequestFields, task: str, key: str, options: dict[str, Any]
) -> Job:
    """Read texts for a task that writes one for each, which its result has under `key`."""
    wanted = fields.integer("max_tokens", 1)
    options |= {
        "max_new_tokens": server.limits.tokens if wanted is None else server.limits.bound(wanted),
        "min_new_tokens": fields.integer("min_tokens", 0),
        "num_beams": fields.integer("num_beams", 1, MAX_BEAMS),
        "length_penalty": fields.number("length_penalty"),
        "repetition_penalty": fields.number("repetition_penalty", 0.01, 100),
        "no_repeat_ngram_size": fields.integer("no_repeat_ngram_size", 0),
        "truncation": fields.boolean("truncate"),
    }  # fmt: skip
    texts = fields.texts("input", MAX_CHARACTERS)
    return pipeline_job(served, task, texts, texts, options, lambda result: {"text": result[0][key]})


def pipeline_job(
    served: ServedModel, task: str, rows: Sequence[Any], texts: Sequence[str], options: dict[str, Any],
    entry: Callable[[Any], dict[str, Any]],
) -> Job:  # fmt: skip
    """Return rows for a pipeline; `entry` makes the fields of an answer, `texts` are what is counted."""
    tokenizer = pipeline(task, served.model).tokenizer
    tokens = sum(len(tokenizer.encode(text)) for text in texts)
    given = tuple((name, value) for name, value in options.items() if value is not None)

    def render(results: list[Any], usage: dict[str, int]) -> Any:
        entries = [{"index": i, **entry(result)} for i, result in enumerate(results)]
        written = sum(len(tokenizer.encode(e["text"], special=False)) for e in entries if "text" in e)
        usage = usage | {"completion_tokens": written, "total_tokens": tokens + written}
        return list_object(task, served, entries, usage)

    slow = task in ("summarization", "translation")
    return Job(
        rows=rows, compute=PipelineCall(served, task, given), rows_at_once=TEXTS_AT_ONCE, slow=slow,
        tokens=tokens, render=render,
    )  # fmt: skip


def list_object(
    kind: str, served: ServedModel, entries: list[dict[str, Any]], usage: dict[str, int]
) -> dict[str, Any]:
    """Return OpenAI's list, the shape of all answers with several entries."""
    id = f"{kind}-{secrets.token_hex(12)}"
    return {"id": id, "object": "list", "model": served.id, "data": entries, "usage": usage}
