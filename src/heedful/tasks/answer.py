"""question-answering: the span of a text that answers a question   (Devlin et al. 2019 §4.2)

p(i, j) = softmax(start)ᵢ · softmax(end)ⱼ over i ≤ j < i + max_answer_len, i and j in the context. The softmax
is over the context and the first token, which stands for "no answer". A long context is read in windows that
overlap by `doc_stride` tokens; the best spans of all of them are compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from heedful.errors import InputError
from heedful.tasks.common import BATCH, Pipeline, Truncated, run, spread, whole_number
from heedful.tasks.readings import Reading, room, windows
from heedful.text import Tokenizer


@dataclass(frozen=True)
class Asked:
    """A question and the text that may answer it."""

    question: str
    context: str


@dataclass(frozen=True)
class Rules:
    """What an answer may be, and how many are wanted."""

    top_k: int
    longest: int
    impossible: bool
    words: bool


class QuestionAnswering(Pipeline):
    """{"score", "start", "end", "answer"} with start and end counting characters of the context."""

    heads: ClassVar[tuple[str, ...]] = ("span",)
    needs: ClassVar[str] = "a model that marks the first and last token of an answer"

    def answer(
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
        batch_size: int = BATCH,
    ) -> Any:
        """The best answer of each question; with top_k above 1 a list of answers, the best first.

        `handle_impossible_answer` lets "" be an answer. `max_question_len` bounds the tokens of a question.
        `data` is another name of the questions; a list of one is answered like that one.
        """
        top_k = whole_number("top_k", 1 if top_k is None else top_k)
        longest = whole_number("max_answer_len", max_answer_len)
        whole_number("max_question_len", max_question_len)
        rules = Rules(top_k, longest, handle_impossible_answer, align_to_words)
        length = self._length(max_seq_len)
        stride = min(length // 2, 128) if doc_stride is None else doc_stride
        given = asked(inputs if data is None else (*inputs, data), question, context)

        def answers(rows: list[Any]) -> list[Any]:
            each = [as_asked(row) for row in rows]
            parts = [self._windows(one, length, stride, max_question_len) for one in each]
            logits = iter(
                run(self.model, self.tokenizer, [r for rs in parts for r in rs], batch_size=batch_size)
            )
            found = [
                best([(r, next(logits)) for r in rs], one.context, rules)
                for one, rs in zip(each, parts, strict=True)
            ]
            return [rows[0] if top_k == 1 else rows for rows in found]

        found = spread(given, answers, batch_size, (Asked, Mapping))
        return found[0] if isinstance(given, list) and len(given) == 1 else found

    def _length(self, asked_for: int | None) -> int:
        limit = room(self.model, self.tokenizer)
        if asked_for is None:
            return min(limit or 384, 384)
        if limit is not None and whole_number("max_seq_len", asked_for) > limit:
            raise InputError(f"max_seq_len={asked_for} is more than the {limit} tokens this model reads")
        return asked_for

    def _windows(self, one: Asked, length: int, stride: int, longest: int) -> list[Reading]:
        question = shortened(self.tokenizer, one.question.strip(), longest)
        return windows(self.tokenizer, question, one.context, length=length, stride=stride)


def asked(inputs: Sequence[Any], question: Any, context: Any) -> Any:
    """Whatever form the question came in, as one Asked or several: the forms transformers takes."""
    texts = [one for one in inputs if isinstance(one, str)]
    if inputs and not texts and question is None and context is None and any(map(_is_asked, inputs)):
        return inputs[0] if len(inputs) == 1 else list(inputs)
    if len(inputs) == 2 and question is None and context is None:
        question, context = inputs
    elif len(texts) == 1 and len(inputs) == 1 and (question is None) != (context is None):
        question, context = (texts[0], context) if question is None else (question, texts[0])
    elif len(inputs) == 1 and question is None and context is None:
        return inputs[0]
    elif inputs:
        raise InputError(f"question-answering takes a question and a context; got {len(inputs)} inputs")
    if question is None or context is None:
        missing = "question" if question is None else "context"
        raise InputError(f"{missing}= is missing; call it with question=… and context=…")
    for name, given in (("question", question), ("context", context)):
        if isinstance(given, Mapping) or not isinstance(given, Iterable):
            raise InputError(f"{name}= must be a text, or a list of texts; got {given!r:.60}")
    if isinstance(question, str) and isinstance(context, str):
        return Asked(question, context)
    questions = [question] if isinstance(question, str) else list(question)
    contexts = [context] * len(questions) if isinstance(context, str) else list(context)
    questions = questions * len(contexts) if isinstance(question, str) else questions
    if len(questions) != len(contexts):
        raise InputError(f"{len(questions)} questions and {len(contexts)} contexts do not go together")
    return [Asked(q, c) for q, c in zip(questions, contexts, strict=True)]


def _is_asked(one: Any) -> bool:
    return isinstance(one, (Asked, Mapping))


def as_asked(row: Any) -> Asked:
    """One clear line for a question or a context that is none."""
    if isinstance(row, Mapping):
        if missing := {"question", "context"} - set(row):
            raise InputError(
                f"a question is {{'question': …, 'context': …}}; {', '.join(missing)} is missing"
            )
        row = Asked(row["question"], row["context"])
    if not isinstance(row, Asked):
        raise InputError(f"a question is {{'question': …, 'context': …}}; got {row!r:.60}")
    for name, text in (("question", row.question), ("context", row.context)):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"the {name} must be a text that is not empty; got {text!r:.60}")
    return row


def shortened(tokenizer: Tokenizer, question: str, longest: int) -> str:
    """The question, cut to so many tokens; what was cut is reported."""
    spans = tokenizer.offsets(question, special=False)
    if len(spans) <= longest:
        return question
    cut = f"{len(spans) - longest:,} of {len(spans):,} tokens of the question"
    warnings.warn(Truncated(f"cut off: {cut}; raise max_question_len"), stacklevel=2)
    return question[: spans[longest - 1][1]] if longest > 0 else ""


def best(read: Iterable[tuple[Reading, Tensor]], context: str, rules: Rules) -> list[dict[str, Any]]:
    """The best answers over all windows of a context; a span in two of them counts once, where it is best."""
    found: dict[tuple[int, int], float] = {}
    nothing = 1.0
    for reading, logits in read:
        chances, null = spans(reading, logits, rules.longest)
        nothing = min(nothing, null)
        # Alignment to words makes several spans one, hence more than asked for.
        top = chances.flatten().topk(min(4 * rules.top_k, chances.numel()))
        for score, flat in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            i, j = divmod(flat, chances.shape[1])
            if score > 0:
                place = characters(reading, i, j, context, rules.words)
                found[place] = max(found.get(place, 0.0), score)
    rows = [(score, start, end) for (start, end), score in found.items()]
    if rules.impossible:
        rows.append((nothing, 0, 0))
    # Nothing of the context is a token: there is nothing to point at.
    rows = sorted(rows, key=lambda row: (-row[0], row[1:]))[: rules.top_k] or [(0.0, 0, 0)]
    return [{"score": s, "start": a, "end": b, "answer": context[a:b]} for s, a, b in rows]


def spans(reading: Reading, logits: Tensor, longest: int) -> tuple[Tensor, float]:
    """(T, T): the probability of every span, 0 for those that cannot be; and that of "no answer"."""
    inside = torch.tensor([side == 1 for side in reading.sides])
    kept = inside.clone()
    kept[0] = True
    logits = logits[: len(reading)].masked_fill(~kept[:, None], -torch.inf)
    start, end = logits.softmax(0).unbind(1)  # (T,) each
    null = float(start[0] * end[0]) if not inside[0] else 0.0
    start, end = start * inside, end * inside
    return torch.outer(start, end).triu().tril(longest - 1), null


def characters(reading: Reading, i: int, j: int, context: str, words: bool) -> tuple[int, int]:
    """Where tokens i … j stand in the context; `words` takes in the whole words they are part of."""
    if words:
        here = lambda k: 0 <= k < len(reading) and reading.sides[k] == 1
        while here(i - 1) and reading.words[i - 1] == reading.words[i]:
            i -= 1
        while here(j + 1) and reading.words[j + 1] == reading.words[j]:
            j += 1
    start, end = reading.spans[i][0], reading.spans[j][1]
    # Some tokenizers count the space before a word as part of it.
    while start < end and context[start].isspace():
        start += 1
    while end > start and context[end - 1].isspace():
        end -= 1
    return start, end
