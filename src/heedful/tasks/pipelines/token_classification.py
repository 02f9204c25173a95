"""token-classification: a label for every token, joined to entities in one of four ways.

    none       every token by itself
    simple     neighbouring tokens of one type
    first      a word has the label of its first token           ┐
    average    … the best label of its tokens' mean               ├ then neighbouring words of one type
    max        … the label of its surest token                   ┘

The config of a model that learnt labels of first tokens alone records it (label_all_tokens in config.json,
false in what heedful trains): its labels of other tokens mean nothing, so that "simple" joins whole words as
"first" does. The words are those of files of tagged words. In these "U.S." and "AL-AIN" are one word each,
and vocabularies take them apart at the punctuation.

A long text is read in windows that share `stride` tokens. A token is judged in the window where it stands
farther from the edge, and only then are tokens joined: an entity is never split by a window. A fine-tuned
model reads windows as long as the pieces that it learnt from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from heedful import data
from heedful.core.checks import check_choice
from heedful.core.errors import InputError
from heedful.data.batch_options import BatchOptions
from heedful.data.batches import Batches
from heedful.data.examples.tagging import Sentence, conll, encode_words, to_bio
from heedful.data.input_files import InputFile, Row, cell_text
from heedful.data.tokenization import TokenizerProtocol, find_template
from heedful.tasks.examples import (
    ROLES,
    ColumnFlags,
    Examples,
    UnusableRow,
    check_known,
    check_labels,
    count_values,
    infer_columns,
    parse_rows,
    split_learnable,
)
from heedful.tasks.metrics.generated import SPACELESS
from heedful.tasks.metrics.scores import tag_scores
from heedful.tasks.model_inputs import (
    BATCH_SIZE,
    TokenizedText,
    check_length,
    input_limit,
    map_inputs,
    smallest_limit,
    tokenize,
    tokenize_words,
    truncates,
    warn_truncated,
)
from heedful.tasks.task import TrainableTask, TrainingDefaults, row_keywords
from heedful.tasks.task_specification import TaskSpecification
from heedful.text import Tokenizer

T = TypeVar("T")

# (tokens of a word, labels) → the scores of the word
WORD_STRATEGIES: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda p: p[0],
    "average": lambda p: p.mean(0),
    "max": lambda p: p[int(p.amax(-1).argmax())],
}
STRATEGIES = ("none", "simple", *WORD_STRATEGIES)

# The words of running text as files of tagged words have them: punctuation inside a word belongs to it, and
# punctuation at its ends stands alone, but for the points of initials. So does 's. Characters of writing
# without spaces are in no word here.
LETTER = rf"[^\W{SPACELESS}]"
INITIALS = r"(?:[^\W\d_]\.)+(?!\w)"  # U.S., M.
CLITIC = r"['’](?:s|m|d|t|re|ve|ll)\b"
WORD = re.compile(
    rf"(?:{INITIALS}|{LETTER}+)(?:(?!{CLITIC})[^\w\s]+(?:{INITIALS}|{LETTER}+))*|{CLITIC}|[^\w\s]",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ScoredToken:
    """A token, or a word of several, with the probability of each label."""

    text: str
    scores: Tensor
    start: int
    end: int
    index: int
    continues: bool = False  # a word that began before


class TokenClassification(TrainableTask):
    """p = softmax(u) over the labels, at every token."""

    heads = ("tag",)
    needs = "a head that labels every token (tag)"
    form_options: ClassVar[Mapping[str, Any]] = {"aggregation_strategy": "first"}
    command, head, objective, metric = "tag", "tag", "tag", "f1"
    file_kinds, unit, label_unit = ("table", "conll"), "sentences", "tags"
    cuts_texts = False  # long sentences are learnt in pieces, and read in windows
    answer_columns = ("spans",)
    training = TrainingDefaults(lr=1e-4, lora_lr=1e-3, epochs=5, length=256)
    roles = ROLES["tag"]

    def predict(
        self,
        inputs: Any,
        *,
        aggregation_strategy: str | None = None,
        ignore_labels: Sequence[str] | None = None,
        stride: int | None = None,
        is_split_into_words: bool = False,
        delimiter: str | None = None,
        grouped_entities: bool = False,
        ignore_subwords: bool = False,
        truncation: bool | str = False,
        max_length: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return [{"entity", "score", "index", "word", "start", "end"}]; joined, "entity_group" and no index.

        `start` and `end` are characters of the text. `word` is a token as its vocabulary writes it. For
        joined tokens it is the text from `start` to `end`: whole words, unless published weights ask for
        "simple". A window has `max_length` tokens (None: as many as in training) and shares `stride` of them
        with the next one (None: a quarter). truncation=True reads the first window only. With
        `is_split_into_words` a text is a list of words, joined by `delimiter` (a space). `ignore_labels` None
        is "O" alone. grouped_entities=True is the older name of "simple", and of "first" together with
        `ignore_subwords`.
        """
        old = ("first" if ignore_subwords else "simple") if grouped_entities else "none"
        name = aggregation_strategy or old
        name = str(getattr(name, "value", name)).lower()  # transformers' own enumeration has values
        strategy = check_choice("aggregation_strategy", name, STRATEGIES)
        ignored = ("O",) if ignore_labels is None else ignore_labels
        between = " " if delimiter is None else delimiter
        learnt = TaskSpecification.of(self.model)
        length = learnt.max_length if max_length is None and learnt is not None else max_length
        limit = smallest_limit(length, input_limit(self.model, self.tokenizer))

        def tokenize_one(text: Any, number: int) -> tuple[TokenizedText, str]:
            if is_split_into_words:
                one, text = tokenize_words(self.tokenizer, text, between)
            else:
                one = tokenize(self.tokenizer, text)
            one = one.truncate(limit if truncates(truncation) else None)
            check_length(one, None, number)
            return one, text

        def windows(one: TokenizedText) -> list[TokenizedText]:
            return [one] if limit is None else one.windows(limit, limit // 4 if stride is None else stride)

        def predict_batch(texts: list[Any]) -> list[Any]:
            wholes = [tokenize_one(text, i) for i, text in enumerate(texts)]
            warn_truncated(dict(enumerate(one for one, _ in wholes)))
            parts = [windows(one) for one, _ in wholes]
            flat = [window for part in parts for window in part]
            logits = iter(self.forward(flat, batch_size=batch_size))
            rows = []
            for (one, text), part in zip(wholes, parts, strict=True):
                scores = merge_windows(one, part, [next(logits) for _ in part]).softmax(-1)
                tokens = scored_tokens(one, scores, text, self.tokenizer, self.learnt_words)
                rows.append(self.aggregate_entities(tokens, text, strategy, ignored))
            return rows

        if is_split_into_words and isinstance(inputs, list) and all(isinstance(w, str) for w in inputs):
            return predict_batch([inputs])
        return map_inputs(inputs, predict_batch, batch_size)

    @property
    def learnt_words(self) -> bool:
        """Whether the model learnt labels of words, by their first tokens alone."""
        return self.model.hf_config.get("label_all_tokens") is False

    def aggregate_entities(
        self, tokens: list[ScoredToken], text: str, strategy: str, ignore: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return the tokens, or the entities they make, without those whose label is to be ignored."""
        if strategy == "none":
            return [row for row in map(self.label_token, tokens) if row["entity"] not in ignore]
        if strategy == "simple" and self.learnt_words:
            strategy = "first"
        if strategy in WORD_STRATEGIES:
            tokens = merge_words(tokens, WORD_STRATEGIES[strategy])
        made = []
        for rows in group_neighbours(map(self.label_token, tokens), same_entity):
            name = rows[0]["entity"].split("-", 1)[-1]
            start, end = rows[0]["start"], rows[-1]["end"]
            if name not in ignore:  # spelt as the text spells it
                score = sum(row["score"] for row in rows) / len(rows)
                word = text[start:end].strip()
                made.append({"entity_group": name, "score": score, "word": word, "start": start, "end": end})
        return made

    def label_token(self, token: ScoredToken) -> dict[str, Any]:
        """Return a token with its most likely label."""
        best = int(token.scores.argmax())
        return {
            "entity": self.labels[best], "score": float(token.scores[best]), "index": token.index,
            "word": token.text, "start": token.start, "end": token.end,
        }  # fmt: skip

    @classmethod
    def read_examples(cls, source: InputFile, column_flags: ColumnFlags) -> Examples:
        """Return the `Sentence`s of a CoNLL file, or of a table with a list of words and one of tags."""
        if source.kind == "conll":
            numbers: dict[str, int] = {}
            for flag, keyword in (("--text", "word"), ("--label", "tag")):
                if (number := column_flags.get(flag)) is None:
                    continue
                if not number.lstrip("-").isdigit():
                    what = f"`{flag[2:]}={number}`: columns of {source.path} have no names"
                    raise InputError(what, hint="count them from 0, or from the end with -1")
                numbers[keyword] = int(number)
            sentences = list(conll(source.path, encoding=source.encoding, **numbers))
            if all(one.words == one.tags for one in sentences):
                raise InputError(
                    f"{source.path}: the tag of every word is the word itself",
                    hint="a line has a word and, after white space, its tag",
                )
            return Examples(sentences, [one.where for one in sentences])
        names = infer_columns(source, cls.command, cls.roles, column_flags)

        def parse_sentence(row: Row) -> Sentence:
            cells = (row.get(names[role]) for role in ("words", "tags"))
            words, tags = (
                list(map(str, cell)) if isinstance(cell, list) else cell_text(cell).split() for cell in cells
            )
            if not words or not tags:
                raise UnusableRow("without words or tags")
            if len(words) != len(tags):
                raise UnusableRow("whose words and tags differ in number")
            return Sentence(tuple(words), tuple(to_bio(tags)), row.where)

        rows = ((row.where, row) for row in source.rows)
        hint = "words and tags are lists, or texts with spaces"
        return replace(parse_rows(source.path, rows, parse_sentence, hint), columns=names)

    @classmethod
    def split_validation(cls, examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
        """Split at random; sentences with a tag that only they have train, or it could not be learnt."""
        few = "sentences are too few to hold some out: their tags"
        return (*split_learnable(examples, lambda one: one.tags, seed, few), "drawn at random")

    @classmethod
    def check_examples(cls, train: Examples, valid: Examples) -> None:
        names = count_values([tag for one in train.items for tag in one.tags])
        if len(names) < 2:
            only = f"every word has the tag {next(iter(names))!r}"
            raise InputError(f"{only}: there is nothing to distinguish", hint="is it the right column?")
        check_known("tag", [(tag, one.where) for one in valid.items for tag in one.tags], names)

    @classmethod
    def input_rows(cls, examples: Examples) -> list[tuple[Any, ...]]:
        return [(" ".join(one.words),) for one in examples.items]

    @classmethod
    def facts(cls, examples: Examples) -> dict[str, Any]:
        return {
            "words": sum(len(one.words) for one in examples.items),
            "labels": count_values([tag for one in examples.items for tag in one.tags]),
        }

    @classmethod
    def head_labels(cls, train: Examples) -> tuple[str, ...]:
        # O stands first, as in published taggers; then tags by type, B- before I-.
        names = {tag for one in train.items for tag in one.tags}
        return tuple(sorted(names, key=lambda n: (n != "O", n.partition("-")[2], n)))

    def batches(self, examples: Examples, options: BatchOptions) -> Batches:
        room = options.length - find_template(self.tokenizer).single_count
        pieces = [piece for one in examples.items for piece in split_sentence(one, self.tokenizer, room)]
        return data.tag(pieces, self.tokenizer, labels=self.labels, **row_keywords(options))

    def call_options(self, **settings: Any) -> dict[str, Any]:
        # Long texts are read in windows, of which nothing is cut.
        return {"aggregation_strategy": "first"} | super().call_options(**(settings | {"truncate": False}))

    def answer_cells(self, answer: Any) -> dict[str, Any]:
        return {"spans": answer}

    def answer_examples(self, examples: Examples, **settings: Any) -> list[Any]:
        check_labels(self.model, [(tag, one.where) for one in examples.items for tag in one.tags])
        every_token = {"aggregation_strategy": "none", "ignore_labels": ()}
        return super().answer_examples(examples, **(settings | every_token))

    def compare(self, examples: Examples, answers: Sequence[Any]) -> dict[str, Any]:
        """Score the label of the first token of each word; a word without its own token is O."""
        truth, guess = list[Sequence[str]](), list[Sequence[str]]()
        for one, rows in zip(examples.items, answers, strict=True):
            words = np.repeat(np.arange(len(one.words)), [len(word) + 1 for word in one.words])
            tokens = [row for row in rows if row["end"] > row["start"]]
            # A token belongs to the word of its last character: the space before may be part of it.
            labels = {int(words[row["end"] - 1]): row["entity"] for row in reversed(tokens)}
            truth.append(one.tags)
            guess.append([labels.get(word, "O") for word in range(len(one.words))])
        return tag_scores(truth, guess)


def split_sentence(one: Sentence, tokenizer: TokenizerProtocol, room: int) -> list[Sentence]:
    """Return a sentence in pieces of whole words, each of at most `room` tokens: every word is learnt."""
    if len(" ".join(one.words).encode()) <= room:  # a token is a byte at least
        return [one]
    ids, begun_words = encode_words(one.words, tokenizer)
    starts: list[int] = np.flatnonzero(begun_words >= 0).tolist()
    cuts, first = [0], 0
    for token, end in pairwise([*starts, len(ids)]):
        if end - first > room and begun_words[token] > cuts[-1]:
            cuts.append(int(begun_words[token]))
            first = token
    return [
        replace(one, words=one.words[a:b], tags=one.tags[a:b]) for a, b in pairwise([*cuts, len(one.words)])
    ]


def merge_windows(one: TokenizedText, parts: list[TokenizedText], logits: list[Tensor]) -> Tensor:
    """Return the logits (T, C) of a text from its windows: of what two share, each judges its own half."""
    text = one.token_range(0)
    out = torch.zeros(len(one), logits[0].shape[-1])
    ends = [part.window_start + len(part.token_range(0)) for part in parts]
    # Where one window leaves off and the next begins, counted in tokens of the text.
    middles = [(end + part.window_start) // 2 for end, part in zip(ends, parts[1:], strict=False)]
    seams = [0, *middles, len(text)]
    for part, u, (a, b) in zip(parts, logits, pairwise(seams), strict=True):
        shift = part.token_range(0).start - part.window_start
        out[text.start + a : text.start + b] = u[shift + a : shift + b]
    return out


def scored_tokens(
    one: TokenizedText, scores: Tensor, text: str, tokenizer: Tokenizer, learnt_words: bool = False
) -> list[ScoredToken]:
    """Return the tokens of a text with their scores, without special tokens.

    A vocabulary that marks pieces which continue a word (##ing) tells words apart; else a space before does.
    With `learnt_words` a token also continues the word of WORD that an earlier token begins.
    """
    prefix = getattr(tokenizer.backend.model, "continuing_subword_prefix", None)
    words = WORD.finditer(text) if learnt_words else ()
    begins = {at: word.start() for word in words for at in range(*word.span())}
    scored: list[ScoredToken] = []
    for i, (name, (start, end)) in enumerate(zip(tokenizer.tokens(one.ids), one.offsets, strict=True)):
        if one.special_tokens_mask[i]:
            continue
        if prefix:
            continues = name.startswith(prefix) and len(name) > len(prefix)
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        if one.ids[i] == tokenizer.unk:
            name, continues = text[start:end], False
        if (word := begins.get(end - 1)) is not None:
            continues = bool(scored) and scored[-1].end > word
        scored.append(ScoredToken(name, scores[i], start, end, i, continues))
    return scored


def merge_words(tokens: list[ScoredToken], pick: Callable[[Tensor], Tensor]) -> list[ScoredToken]:
    """Join the tokens of each word to one, scored by `pick`."""
    joined = []
    for group in group_neighbours(tokens, lambda before, token: token.continues):
        text, scores = "".join(t.text for t in group), pick(torch.stack([t.scores for t in group]))
        joined.append(ScoredToken(text, scores, group[0].start, group[-1].end, group[0].index))
    return joined


def group_neighbours(items: Iterable[T], joins: Callable[[T, T], bool]) -> list[list[T]]:
    """Return items in groups of neighbours, in which each one joins the one before it."""
    groups: list[list[T]] = []
    for item in items:
        if groups and joins(groups[-1][-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def same_entity(before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Return whether a row continues the entity of the one before: of its type, and not marked B-."""
    kind = lambda label: label[2:] if label.startswith(("B-", "I-")) else label
    return not row["entity"].startswith("B-") and kind(before["entity"]) == kind(row["entity"])
