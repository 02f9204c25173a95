"""token-classification: a label for every token, joined to entities in one of four ways.

    none       every token by itself
    simple     tokens of one kind that stand together
    first      a word has the label of its first token           ┐
    average    … the best label of its tokens' mean               ├ then words of one kind that stand together
    max        … the label of its surest token                   ┘

A long text is read in windows that share `stride` tokens. A token is judged in the window where it stands
farther from the edge, and only then are tokens joined: an entity is never split by a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from heedful.errors import InputError, nearest
from heedful.tasks.common import BATCH, Pipeline, check_room, cuts, labels, report, run, spread
from heedful.tasks.readings import Reading, read, reading, room, sliding
from heedful.text import Tokenizer

# (tokens of a word, labels) → the scores of the word
WORDS: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda p: p[0],
    "average": lambda p: p.mean(0),
    "max": lambda p: p[int(p.amax(-1).argmax())],
}
STRATEGIES = ("none", "simple", *WORDS)


@dataclass(frozen=True)
class Token:
    """A token, or a word of several, with the probability of each label."""

    text: str
    scores: Tensor
    start: int
    end: int
    index: int
    continues: bool = False  # a word that began before


class TokenClassification(Pipeline):
    """p = softmax(u) over the labels, at every token."""

    heads = ("tag",)
    needs = "a head that labels every token (tag)"

    def answer(
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
        batch_size: int = BATCH,
    ) -> Any:
        """[{"entity", "score", "index", "word", "start", "end"}]; joined, "entity_group" and no index.

        `start` and `end` are characters of the text; `word` is a token as its vocabulary has it, and joined
        what the text says from `start` to `end`: whole words, unless they are joined by "simple". `stride`
        None is a quarter of a window; truncation=True reads the beginning only. With `is_split_into_words` a
        text is a list of words, joined by `delimiter` (a space). `ignore_labels` None is "O" alone.
        grouped_entities=True is the older name of "simple", and of "first" together with `ignore_subwords`.
        """
        old = ("first" if ignore_subwords else "simple") if grouped_entities else "none"
        strategy = _strategy(aggregation_strategy or old)
        ignored = ("O",) if ignore_labels is None else ignore_labels
        between = " " if delimiter is None else delimiter

        def answers(texts: list[Any]) -> list[Any]:
            wholes = [self._read(t, is_split_into_words, between, i, truncation) for i, t in enumerate(texts)]
            report(dict(enumerate(r for r, _ in wholes)))
            parts = [self._windows(r, stride) for r, _ in wholes]
            flat = run(self.model, self.tokenizer, [w for ws in parts for w in ws], batch_size=batch_size)
            found, at = [], 0
            for (one, text), ws in zip(wholes, parts, strict=True):
                scores = stitched(one, ws, flat[at : at + len(ws)]).softmax(-1)
                at += len(ws)
                seen = tokens(one, scores, text, self.tokenizer)
                found.append(self.entities(seen, text, strategy, ignored))
            return found

        if is_split_into_words and isinstance(inputs, list) and all(isinstance(w, str) for w in inputs):
            return answers([inputs])
        return spread(inputs, answers, batch_size)

    def _read(self, text: Any, split: bool, delimiter: str, i: int, truncation: Any) -> tuple[Reading, str]:
        limit = room(self.model, self.tokenizer) if cuts(truncation) else None
        if not split:
            one = read(self.tokenizer, text, length=limit)
        else:
            one, text = _of_words(self.tokenizer, text, delimiter)
            if limit is not None and len(one) > limit:
                at, over = one.where(0), len(one) - limit
                one = one.take((0, at.stop - over), (at.stop, len(one)), cut=over)
        check_room(one, None, i)
        return one, text

    def _windows(self, one: Reading, stride: int | None) -> list[Reading]:
        limit = room(self.model, self.tokenizer)
        if limit is None:
            return [one]
        return sliding(one, limit, limit // 4 if stride is None else stride)

    def entities(
        self, found: list[Token], text: str, strategy: str, ignore: Sequence[str]
    ) -> list[dict[str, Any]]:
        """The tokens as they are, or joined, without those whose label is to be ignored."""
        names = labels(self.model)
        if strategy == "none":
            rows = [{**_row(t, names), "index": t.index} for t in found]
            order = ("entity", "score", "index", "word", "start", "end")
            return [{key: row[key] for key in order} for row in rows if row["entity"] not in ignore]
        if strategy in WORDS:
            found = words(found, WORDS[strategy])
        made = [_group(rows, text) for rows in grouped([_row(t, names) for t in found])]
        return [row for row in made if row["entity_group"] not in ignore]


def _strategy(name: Any) -> str:
    said = str(getattr(name, "value", name)).lower()  # transformers' own enumeration has values
    if said not in STRATEGIES:
        instead = nearest(said, STRATEGIES) or f"one of {', '.join(STRATEGIES)}"
        raise InputError(f"aggregation_strategy={name!r} is unknown; {instead}")
    return said


def _of_words(tokenizer: Tokenizer, given: Any, delimiter: str) -> tuple[Reading, str]:
    """The reading of words, its spans counted in the text they make, and that text."""
    if not isinstance(given, (list, tuple)) or not all(isinstance(word, str) for word in given):
        raise InputError(f"is_split_into_words=True takes lists of words; got {given!r:.60}")
    one = reading(tokenizer.backend.encode(list(given), is_pretokenized=True))
    starts = [0]
    for word in given:
        starts.append(starts[-1] + len(word) + len(delimiter))
    shift = [0 if w is None else starts[w] for w in one.words]
    spans = [(a + by, b + by) for (a, b), by in zip(one.spans, shift, strict=True)]
    moved = Reading(one.ids, one.types, spans, one.special, one.sides, one.words)
    return moved, delimiter.join(given)


def stitched(one: Reading, parts: list[Reading], logits: list[Tensor]) -> Tensor:
    """(T, C) of a whole text from its windows: of what two share, each judges the half inside it."""
    text = one.where(0)
    out = torch.zeros(len(one), logits[0].shape[-1])
    ends = [part.before + len(part.where(0)) for part in parts]
    # Where one window leaves off and the next begins, counted in tokens of the text.
    seams = [0, *((end + part.before) // 2 for end, part in zip(ends, parts[1:], strict=False)), len(text)]
    for part, u, (a, b) in zip(parts, logits, pairwise(seams), strict=True):
        shift = part.where(0).start - part.before
        out[text.start + a : text.start + b] = u[shift + a : shift + b]
    return out


def tokens(one: Reading, scores: Tensor, text: str, tokenizer: Tokenizer) -> list[Token]:
    """The tokens of a text with their scores, without what was put around it.

    A vocabulary that marks pieces which continue a word (##ing) tells words apart; else a space before does.
    """
    marked = bool(getattr(tokenizer.backend.model, "continuing_subword_prefix", None))
    found = []
    names = tokenizer.tokens(one.ids)
    for i, (name, (start, end), special) in enumerate(zip(names, one.spans, one.special, strict=True)):
        if special:
            continue
        written = text[start:end]
        if marked:
            continues = len(name) != len(written)
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        if one.ids[i] == tokenizer.unk:
            name, continues = written, False
        found.append(Token(name, scores[i], start, end, i, continues))
    return found


def words(found: list[Token], pick: Callable[[Tensor], Tensor]) -> list[Token]:
    """The tokens of each word as one, scored by `pick`."""
    groups: list[list[Token]] = []
    for token in found:
        if token.continues and groups:
            groups[-1].append(token)
        else:
            groups.append([token])
    return [
        Token(
            "".join(t.text for t in group),
            pick(torch.stack([t.scores for t in group])),
            group[0].start,
            group[-1].end,
            group[0].index,
        )
        for group in groups
    ]


def _row(token: Token, names: Sequence[str]) -> dict[str, Any]:
    best = int(token.scores.argmax())
    score = float(token.scores[best])
    return {"entity": names[best], "score": score, "word": token.text, "start": token.start, "end": token.end}


def _kind(label: str) -> str:
    """PER of B-PER and of I-PER; a label without either stands for itself."""
    return label[2:] if label.startswith(("B-", "I-")) else label


def grouped(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows of one kind that stand together; a B- begins anew."""
    groups: list[list[dict[str, Any]]] = []
    for row in rows:
        same = bool(groups) and _kind(groups[-1][-1]["entity"]) == _kind(row["entity"])
        if same and not row["entity"].startswith("B-"):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _group(rows: list[dict[str, Any]], text: str) -> dict[str, Any]:
    """Tokens or words of one kind as an entity, spelt as the text spells it."""
    score = sum(row["score"] for row in rows) / len(rows)
    start, end = rows[0]["start"], rows[-1]["end"]
    kind = rows[0]["entity"].split("-", 1)[-1]
    return {"entity_group": kind, "score": score, "word": text[start:end].strip(), "start": start, "end": end}
