"""tag: a label for every word. answer: the part of a text that answers a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heedful import data
from heedful.data.answer_spans import Question, locate_answer
from heedful.data.batches import Batches, seeded_generator
from heedful.data.tables import read_json_data
from heedful.data.tagging import Sentence, conll, to_bio
from heedful.errors import InputError, nearest
from heedful.models.base import Model
from heedful.runs.evaluate import answer_scores, tag_scores
from heedful.runs.finetune.column_roles import infer_columns
from heedful.runs.finetune.finetune_task import (
    SPLIT_SEED,
    BatchSettings,
    Defaults,
    Examples,
    FinetuneTask,
    count_values,
    validation_count,
    with_new_head,
)
from heedful.runs.finetune.input_files import InputFile, Row, left_out, text_of
from heedful.train.objectives import Objective

CONLL_HINT = "a line has a word and, after white space, its tag"


class Tag(FinetuneTask):
    """Token classification: a label for every word of a sentence."""

    name, pipeline, head, metric, what = "tag", "token-classification", "tag", "f1", "sentences"
    defaults = Defaults(lr=1e-4, lora_lr=1e-3, epochs=5, length=256)

    def __init__(self) -> None:
        self.labels: tuple[str, ...] = ()

    def read(self, source: InputFile, column_flags: dict[str, str | None]) -> Examples:
        if source.kind == "conll":
            numbers = {
                flag: _column(source, flag, name) for flag, name in column_flags.items() if name is not None
            }
            found = list(conll(source.path, numbers.get("--text"), numbers.get("--label"), source.encoding))
            if all(one.words == one.tags for one in found):
                raise InputError(f"{source.path}: the tag of every word is the word itself", hint=CONLL_HINT)
            return Examples(found, [one.where for one in found])
        columns = infer_columns(source, "tag", column_flags)
        good: list[Sentence] = []
        out: dict[str, list[str]] = {}
        for row in source.rows:
            words, tags = (_list(row, columns[role]) for role in ("words", "tags"))
            if not words or len(words) != len(tags):
                reason = (
                    "whose words and tags differ in number" if words and tags else "without words or tags"
                )
                out.setdefault(reason, []).append(row.where)
                continue
            good.append(Sentence(tuple(words), tuple(to_bio(tags)), row.where))
        if not good:
            reason = next(iter(out))
            want = "words and tags are lists, or texts with spaces"
            raise InputError(f"{source.path}: no row can be used: each is one {reason}", hint=want)
        notes = tuple(left_out(reason, where) for reason, where in out.items())
        return Examples(good, [one.where for one in good], columns, notes)

    def prepare(self, train: Examples, valid: Examples) -> None:
        names = count_values([tag for one in train.items for tag in one.tags])
        if len(names) < 2:
            only = f"every word has the tag {next(iter(names))!r}"
            raise InputError(f"{only}: there is nothing to tell apart", hint="is it the right column?")
        for one in valid.items:
            for tag in one.tags:
                if tag not in names:
                    hint = nearest(tag, names) or f"training has {', '.join(map(repr, list(names)[:12]))}"
                    raise InputError(
                        f"validation, {one.where}: tag {tag!r} does not occur in training", hint=hint
                    )
        # O first, as published taggers have it; then by type, B- before I-.
        self.labels = tuple(sorted(names, key=lambda n: (n != "O", n.partition("-")[2], n)))

    def split_validation(self, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        """Split at random; sentences with a tag that only they have train, or it could not be learnt."""
        train, valid, method = super().split_validation(examples, seed)
        known = {tag for one in train.items for tag in one.tags}
        odd = [i for i, one in enumerate(valid.items) if not set(one.tags) <= known]
        if odd:
            keep = [i for i in range(len(valid)) if i not in set(odd)]
            moved = valid.select(odd)
            train = Examples(
                [*train.items, *moved.items], [*train.locations, *moved.locations], train.columns
            )
            valid = valid.select(keep)
        if not len(valid):
            raise InputError(
                "the sentences are too few to hold some out: their tags differ too much",
                hint="give --valid FILE",
            )
        return train, valid, method

    def texts(self, examples: Examples) -> list[str]:
        return [" ".join(one.words) for one in examples.items]

    def facts(self, train: Examples, valid: Examples) -> dict[str, Any]:
        both = [one for part in (train, valid) for one in part.items]
        return {
            "words": sum(len(one.words) for one in both),
            "labels": count_values([t for one in both for t in one.tags]),
        }

    def attach_head(self, model: Model, seed: int) -> tuple[Model, str]:
        return with_new_head(model, "tag", self.labels, seed), f"a new head of {len(self.labels)} tags"

    def batches(self, examples: Examples, model: Model, batching: BatchSettings) -> Batches:
        return data.tag(
            list(examples.items), model.tokenizer, labels=self.labels, **batching.keywords,
        )  # fmt: skip

    @property
    def objective(self) -> str | Objective:
        return "tag"

    def score(self, model: Model, examples: Examples, batches: Batches, loss: float | None) -> dict[str, Any]:
        return tag_scores(model, batches)


def _column(source: InputFile, flag: str, name: str) -> int:
    if not name.lstrip("-").isdigit():
        what = f"{flag} {name}: columns of {source.path} have no names"
        raise InputError(what, hint="count them from 0, or from the end with -1")
    return int(name)


def _list(row: Row, column: str) -> list[str]:
    value = row.values.get(column)
    if isinstance(value, list):
        return [str(one) for one in value]
    return text_of(value).split()


class Answer(FinetuneTask):
    """Where in a text the answer to a question stands."""

    name, pipeline, head, metric, what = "answer", "question-answering", "span", "f1", "questions"
    cuts = False
    defaults = Defaults(lr=1e-4, lora_lr=1e-3, epochs=3, length=384, steps=300)

    def read(self, source: InputFile, column_flags: dict[str, str | None]) -> Examples:
        """`locations` are the articles, which are never torn apart; of a table, the contexts."""
        if source.kind == "squad":
            found, articles = list(data.squad(source.path, source.encoding)), _articles(source)
            columns: dict[str, str] = {}
        else:
            columns = infer_columns(source, "answer", column_flags)
            found = [_question(row, columns) for row in source.rows]
            articles = [one.context for one in found]
        keep: list[int] = []
        out: dict[str, list[str]] = {}
        for i, one in enumerate(found):
            if reason := _unusable(one):
                out.setdefault(reason, []).append(one.id)
            else:
                keep.append(i)
        if not keep:
            reason, where = max(out.items(), key=lambda item: len(item[1]))
            none = f"{source.path}: none of its {len(found):,} questions can be used"
            raise InputError(f"{none}: {len(where):,} are {reason}")
        notes = tuple(left_out(reason, where) for reason, where in out.items())
        return Examples([found[i] for i in keep], [articles[i] for i in keep], columns, notes)

    def split_validation(self, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        articles = list(dict.fromkeys(examples.locations))
        if len(articles) < 2:
            return super().split_validation(examples, seed)
        order = seeded_generator(seed, SPLIT_SEED).permutation(len(articles)).tolist()
        held: set[str] = set()
        size, counts = 0, count_values(examples.locations)
        for i in order[:-1]:
            if size and size + counts[articles[i]] > 2 * validation_count(len(examples)):
                continue
            held.add(articles[i])
            size += counts[articles[i]]
            if size >= validation_count(len(examples)):
                break
        parts: tuple[list[int], list[int]] = ([], [])
        for i, place in enumerate(examples.locations):
            parts[place in held].append(i)
        one = "1 of" if len(held) == 1 else f"{len(held)} of"
        return examples.select(parts[0]), examples.select(parts[1]), f"{one} {len(articles)} articles"

    def prepare(self, train: Examples, valid: Examples) -> None:
        if not any(one.answers for one in train.items):
            raise InputError("no question has an answer: there is nothing to learn")

    def texts(self, examples: Examples) -> list[str]:
        return [f"{one.question} {one.context}" for one in examples.items]

    def facts(self, train: Examples, valid: Examples) -> dict[str, Any]:
        both = [one for part in (train, valid) for one in part.items]
        articles = len({*train.locations, *valid.locations})
        none = sum(not one.answers for one in both)
        return {"articles": articles, "contexts": len({one.context for one in both})} | (
            {"unanswerable": none} if none else {}
        )

    def batches(self, examples: Examples, model: Model, batching: BatchSettings) -> Batches:
        stride = max(1, min(128, batching.length // 3))
        question = max(8, min(64, batching.length // 4))
        return data.answer(
            list(examples.items), model.tokenizer, stride=stride, question=question,
            **batching.keywords,
        )  # fmt: skip

    @property
    def objective(self) -> str | Objective:
        return "span"

    def score(self, model: Model, examples: Examples, batches: Batches, loss: float | None) -> dict[str, Any]:
        window = {name: batches.settings[name] for name in ("length", "stride", "question", "batch")}
        found = answer_scores(model, examples.items, **window)
        return {name: found[name] for name in ("f1_95", "f1", "exact_match_95", "exact_match", "questions")}


def _articles(source: InputFile) -> list[str]:
    """Return the article of every question, in the order of `squad`."""
    whole: dict[str, Any] = read_json_data(source.path, source.encoding)
    return [
        f"{number}:{article.get('title', '')}"
        for number, article in enumerate(whole["data"])
        for paragraph in article["paragraphs"]
        for _ in paragraph["qas"]
    ]


def _question(row: Row, columns: dict[str, str]) -> Question:
    """Return the question of a row: answers are texts, {"text": …, "answer_start": …}, or a list of such."""
    context, question = (text_of(row.values.get(columns[role])) for role in ("context", "question"))
    value = row.values.get(columns["answer"])
    found = [pair for one in _several(value) for pair in _answers(one, context)]
    return Question(row.where, question, context, tuple(found))


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _answers(value: Any, context: str) -> list[tuple[str, int]]:
    """Return answers with their first characters; an unknown one is that of the text's first occurrence."""
    starts: Sequence[Any] = ()
    if isinstance(value, dict):
        value, starts = value.get("text"), _several(value.get("answer_start"))
    texts = [text for text in map(text_of, _several(value)) if text.strip()]
    told = [*starts, *[None] * len(texts)][: len(texts)]
    return [
        (text, start if isinstance(start, int) else context.find(text))
        for text, start in zip(texts, told, strict=True)
    ]


def _unusable(one: Question) -> str:
    """Return what is wrong with a question, or ""."""
    if not one.question.strip():
        return "without a question"
    if not one.context.strip():
        return "without a text"
    return "whose answer is not in the text" if one.answers and locate_answer(one) is None else ""
