"""question-answering: the span of a text that answers a question   (Devlin et al. 2019 §4.2)

p(i, j) = softmax(start)ᵢ · softmax(end)ⱼ over i ≤ j < i + max_answer_len, i and j in the context. The softmax
is over the context and the first token, which stands for "no answer". A long context is read in windows that
overlap by `doc_stride` tokens; the best spans of all of them are compared. "No answer" is as probable as in
the window where it is least so: a question is answered if one window answers it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from heedful import data
from heedful.core.checks import check_integer
from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.examples.answer_spans import Question, locate_answer
from heedful.data.input_files import InputFile, cell_text
from heedful.models.base import Model
from heedful.tasks.examples import (
    ROLES,
    ColumnFlags,
    Examples,
    UnusableRow,
    infer_columns,
    parse_rows,
    split_by_group,
    validation_count,
)
from heedful.tasks.metrics.generated import answer_scores
from heedful.tasks.model_inputs import (
    BATCH_SIZE,
    TokenizedText,
    Truncated,
    input_limit,
    map_inputs,
    tokenize,
    truncate_text,
)
from heedful.tasks.task import TrainableTask, TrainingDefaults, row_keywords
from heedful.tasks.task_specification import TaskSpecification

UNANSWERABLE = "unanswerable_questions"  # of config.json: whether some questions of training had no answer


class QuestionAnswering(TrainableTask):
    """{"score", "start", "end", "answer"} with start and end counting characters of the context."""

    heads: ClassVar[tuple[str, ...]] = ("span",)
    needs: ClassVar[str] = "a model that marks the first and last token of an answer"
    fields = ("question", "context")
    command, head, objective, metric = "answer", "span", "span", "f1"
    file_kinds, unit, cuts_texts = ("table", "squad"), "questions", False
    answer_columns = ("answer", "score", "start", "end")
    training = TrainingDefaults(lr=1e-4, lora_lr=1e-3, epochs=3, length=384, steps=300)
    roles = ROLES["answer"]

    def predict(
        self,
        *inputs: Any,
        question: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        data: Any = None,
        top_k: int | None = None,
        doc_stride: int | None = None,
        max_seq_len: int | None = None,
        max_question_len: int = 64,
        max_answer_len: int = 15,
        handle_impossible_answer: bool = False,
        align_to_words: bool = True,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return the best answer of each question; with top_k above 1 a list of answers, the best first.

        `handle_impossible_answer` lets "" be an answer. `max_question_len` bounds the tokens of a question.
        `data` is another name of the questions; a list of one is answered like that one.
        """
        top_k = check_integer("top_k", 1 if top_k is None else top_k)
        check_integer("max_question_len", max_question_len)
        check_integer("max_answer_len", max_answer_len)
        limit = input_limit(self.model, self.tokenizer)
        length = min(limit or 384, 384) if max_seq_len is None else check_integer("max_seq_len", max_seq_len)
        if limit is not None and length > limit:
            raise InputError(f"`max_seq_len={max_seq_len}` is more than the {limit} tokens this model reads")
        stride = min(length // 2, 128) if doc_stride is None else doc_stride
        questions = parse_questions(inputs if data is None else (*inputs, data), question, context)

        def windows(question: str, context: str) -> list[TokenizedText]:
            short, lost = truncate_text(self.tokenizer, question.strip(), max_question_len)
            if lost:
                whole = f"{lost + max_question_len:,} tokens of the question"
                warnings.warn(
                    Truncated(f"cut off: {lost:,} of {whole}; raise max_question_len"), stacklevel=2
                )
            return tokenize(self.tokenizer, short, context).windows(length, stride)

        def answers(rows: list[Any]) -> list[Any]:
            checked = [check_question(row) for row in rows]
            parts = [windows(*pair) for pair in checked]
            flat = [window for part in parts for window in part]
            logits = iter(self.forward(flat, batch_size=batch_size))
            results = [
                select_answers(
                    [(window, next(logits)) for window in part], context, top_k, max_answer_len,
                    handle_impossible_answer, align_to_words,
                )
                for (_, context), part in zip(checked, parts, strict=True)
            ]  # fmt: skip
            return [rows[0] if top_k == 1 else rows for rows in results]

        results = map_inputs(questions, answers, batch_size, Mapping)
        return results[0] if isinstance(questions, list) and len(questions) == 1 else results

    @classmethod
    def read_examples(cls, source: InputFile, column_flags: ColumnFlags) -> Examples:
        """Return `Question`s. `locations` are what is never split: the articles of SQuAD, or the texts."""
        columns: dict[str, str] = {}
        if source.kind == "squad":
            questions = data.squad(source.path, source.encoding)
        else:
            columns, questions = infer_columns(source, cls.command, cls.roles, column_flags), []
            for row in source.rows:
                context, question = (cell_text(row.get(columns[role])) for role in ("context", "question"))
                found = _as_list(row.get(columns["answer"]))
                answers = tuple(pair for one in found for pair in _answers(one, context))
                questions.append(Question(row.where, question, context, answers))

        def check_usable(one: Question) -> Question:
            for name, text in (("question", one.question), ("text", one.context)):
                if not text.strip():
                    raise UnusableRow(f"without a {name}")
            if one.answers and locate_answer(one) is None:
                raise UnusableRow("whose answer is not in the text")
            return one

        rows = ((one.id, one) for one in questions)
        hint = "a question has a text, and its answer stands there"
        examples = parse_rows(source.path, rows, check_usable, hint, cls.unit)
        groups = [one.article or one.context for one in examples.items]
        return replace(examples, locations=groups, columns=columns)

    @classmethod
    def split_validation(cls, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        # Questions of one text stay together: a model that learnt from some of them has read the text.
        contexts = [one.context for one in examples.items]
        units = {"articles": examples.locations} if _has_articles(examples) else {}
        for unit, groups in (units | {"contexts": contexts}).items():
            if (count := len(set(groups))) > 1:
                train, valid, held_out = split_by_group(examples, groups, seed)
                if groups is contexts or len(valid) <= 2 * validation_count(len(examples)):
                    return train, valid, f"{held_out} of {count} {unit}"
        return super().split_validation(examples, seed)

    @classmethod
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        if not any(one.answers for one in train.items):
            raise InputError("no question has an answer: there is nothing to learn")

    @classmethod
    def input_rows(cls, examples: Examples) -> list[tuple[Any, ...]]:
        return [(one.context, one.question) for one in examples.items]

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        articles = {"articles": len(set(examples.locations))} if _has_articles(examples) else {}
        none = sum(not one.answers for one in examples.items)
        contexts = {"contexts": len({one.context for one in examples.items})}
        return articles | contexts | ({"unanswerable": none} if none else {})

    @classmethod
    def attach_head(cls, model: Model, train: Examples, seed: int) -> tuple[Model, str]:
        made, head = super().attach_head(model, train, seed)
        made.hf_config[UNANSWERABLE] = any(not one.answers for one in train.items)
        return made, head

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        stride, question = _window_settings(options.length)
        return data.answer(
            list(examples.items), self.tokenizer, stride=stride, question=question, **row_keywords(options)
        )

    def call_options(
        self, *, batch: int = BATCH_SIZE, length: int | None = None, truncate: bool = True,
        max_tokens: int | None = None, stride: int | None = None, question: int | None = None,
        **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the windows of training as options of `predict`; "" may be an answer if it was in training.

        A window has `length` tokens, shares `stride` of them, and has at most `question` of a question.
        """
        if length is None and (learnt := TaskSpecification.of(self.model)) is not None:
            length = learnt.max_length
        stride_by_length, question_by_length = (None, None) if length is None else _window_settings(length)
        windows = {
            "max_seq_len": length, "doc_stride": stride or stride_by_length,
            "max_question_len": question or question_by_length, "batch_size": batch, "max_answer_len": 30,
            "handle_impossible_answer": bool(self.model.hf_config.get(UNANSWERABLE)),
        }  # fmt: skip
        return {name: value for name, value in windows.items() if value is not None} | options

    def answer_examples(self, examples: Examples, **settings: Any) -> list[Any]:
        if any(not one.answers for one in examples.items):
            settings = {"handle_impossible_answer": True} | settings
        return super().answer_examples(examples, **settings)

    @classmethod
    def call_inputs(cls, rows: Sequence[tuple[str, ...]]) -> tuple[Any, ...]:
        return (({"question": question, "context": context} for context, question in rows),)

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        truths = [[text for text, _ in one.answers] for one in examples.items]
        return answer_scores(truths, [answer["answer"] for answer in answers])


def _window_settings(length: int) -> tuple[int, int]:
    """Return the tokens that two windows of `length` share, and the most of a question."""
    return max(1, min(128, length // 3)), max(8, min(64, length // 4))


def _has_articles(examples: Examples) -> bool:
    """Return whether the questions are of a SQuAD file: a table has texts, and no articles."""
    return any(one.article for one in examples.items)


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _answers(value: Any, context: str) -> list[tuple[str, int]]:
    """Return answers with their first characters; an unknown one is that of the text's first occurrence.

    `value` is a text, {"text": …, "answer_start": …}, or a list in one of these.
    """
    starts: Sequence[Any] = ()
    if isinstance(value, dict):
        value, starts = value.get("text"), _as_list(value.get("answer_start"))
    texts = [text for text in map(cell_text, _as_list(value)) if text.strip()]
    return [
        (text, start if isinstance(start, int) else context.find(text))
        for text, start in zip(texts, [*starts, *[None] * len(texts)], strict=False)
    ]


def parse_questions(inputs: Sequence[Any], question: Any, context: Any) -> Any:
    """Return {"question", "context"}, or several, from any of the forms that transformers takes."""
    texts = [one for one in inputs if isinstance(one, str)]
    keywords = question is not None or context is not None
    if any(isinstance(one, Mapping) for one in inputs) and not texts and not keywords:
        return inputs[0] if len(inputs) == 1 else list(inputs)
    if len(inputs) == 2 and not keywords:
        question, context = inputs
    elif len(texts) == 1 and len(inputs) == 1 and (question is None) != (context is None):
        question, context = (texts[0], context) if question is None else (question, texts[0])
    elif len(inputs) == 1 and not keywords:
        return inputs[0]
    elif inputs:
        raise InputError(f"question-answering takes a question and a context; got {len(inputs)} inputs")
    if question is None or context is None:
        missing = "question" if question is None else "context"
        raise InputError(f"`{missing}=` is missing", hint="call it with `question=…` and `context=…`")
    for name, value in (("question", question), ("context", context)):
        if isinstance(value, Mapping) or not isinstance(value, Iterable):
            raise InputError(f"`{name}=` must be a text, or a list of texts; got {value!r:.60}")
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    questions = [question] if isinstance(question, str) else list(question)
    contexts = [context] * len(questions) if isinstance(context, str) else list(context)
    questions = questions * len(contexts) if isinstance(question, str) else questions
    if len(questions) != len(contexts):
        raise InputError(f"{len(questions)} questions and {len(contexts)} contexts do not go together")
    return [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]


def check_question(row: Any) -> tuple[str, str]:
    """Return a question and its context; raise InputError if either is not text or empty."""
    if not isinstance(row, Mapping):
        raise InputError(f"a question is {{'question': …, 'context': …}}; got {row!r:.60}")
    if missing := {"question", "context"} - set(row):
        raise InputError(
            f"{', '.join(sorted(missing))} is missing", hint="a question is {'question': …, 'context': …}"
        )
    for name in ("question", "context"):
        if not isinstance(row[name], str) or not row[name].strip():
            raise InputError(f"the {name} must be a text that is not empty; got {row[name]!r:.60}")
    return row["question"], row["context"]


def select_answers(
    windows: Iterable[tuple[TokenizedText, Tensor]], context: str, top_k: int, max_answer_len: int,
    handle_impossible_answer: bool, align_to_words: bool,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the best answers over all windows of a context, given with the logits (T, 2) of each.

    A span in two windows counts once, where it is best.
    """
    best: dict[tuple[int, int], float] = {}
    no_answer = 1.0
    for window, logits in windows:
        probabilities, null = span_probabilities(window, logits, max_answer_len)
        no_answer = min(no_answer, null)
        # Alignment to words makes several spans one, hence more than asked for.
        top = probabilities.flatten().topk(min(4 * top_k, probabilities.numel()))
        for score, flat in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            i, j = divmod(flat, probabilities.shape[1])
            if score > 0:
                span = span_characters(window, i, j, context, align_to_words)
                best[span] = max(best.get(span, 0.0), score)
    rows = [(score, start, end) for (start, end), score in best.items()]
    if handle_impossible_answer:
        rows.append((no_answer, 0, 0))
    # Nothing of the context is a token: there is nothing to point at.
    rows = sorted(rows, key=lambda row: (-row[0], row[1:]))[:top_k] or [(0.0, 0, 0)]
    return [{"score": s, "start": a, "end": b, "answer": context[a:b]} for s, a, b in rows]


def span_probabilities(window: TokenizedText, logits: Tensor, max_answer_len: int) -> tuple[Tensor, float]:
    """Return (T, T), the probability of every span, 0 for impossible ones; and that of "no answer"."""
    inside = torch.tensor([sequence == 1 for sequence in window.sequence_ids])
    allowed = inside.clone()
    allowed[0] = True
    logits = logits[: len(window)].masked_fill(~allowed[:, None], -torch.inf)
    start, end = logits.softmax(0).unbind(1)  # (T,) each
    null = float(start[0] * end[0]) if not inside[0] else 0.0
    start, end = start * inside, end * inside
    return torch.outer(start, end).triu().tril(max_answer_len - 1), null


def span_characters(
    window: TokenizedText, i: int, j: int, context: str, align_to_words: bool
) -> tuple[int, int]:
    """Return the characters of tokens i … j in the context; aligned, of the whole words they are part of."""
    if align_to_words:
        inside = lambda k: 0 <= k < len(window) and window.sequence_ids[k] == 1
        while inside(i - 1) and window.word_ids[i - 1] == window.word_ids[i]:
            i -= 1
        while inside(j + 1) and window.word_ids[j + 1] == window.word_ids[j]:
            j += 1
    start, end = window.offsets[i][0], window.offsets[j][1]
    # Some tokenizers count the space before a word as part of it.
    while start < end and context[start].isspace():
        start += 1
    while end > start and context[end - 1].isspace():
        end -= 1
    return start, end
