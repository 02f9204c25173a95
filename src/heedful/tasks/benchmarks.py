"""Published evaluations of language models: the last word, the likelier ending, the grammatical sentence.

    lambada     Paperno et al. 2016: the last word of a passage, written greedily, exactly right
    hellaswag   Zellers et al. 2019: the most likely of four endings, by log p and by log p per byte
    blimp       Warstadt et al. 2020: the grammatical one of two sentences is the more probable

Rows may come from a generator; they are read in blocks, alike lengths together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from heedful.core.errors import InputError
from heedful.models.base import Model
from heedful.tasks.likelihood import (
    Continuations,
    TextScore,
    common_prefix_length,
    score_continuations,
    split_texts,
    text_ids,
)

BLOCK_ROWS = 512  # rows sorted by length together


def iterate_blocks(rows: Iterable[Mapping[str, Any]], *fields: str) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the rows in blocks; raise InputError for a row without one of the fields."""
    source, count = iter(rows), 0
    while block := list(islice(source, BLOCK_ROWS)):
        for i, row in enumerate(block):
            if missing := [name for name in fields if name not in row]:
                raise InputError(f"row {count + i} has no {missing[0]!r}", hint=f"it has {', '.join(row)}")
        yield block
        count += len(block)
    if not count:
        raise InputError("no rows to evaluate on")


def continuations_of(model: Model, prompt: str, endings: Sequence[str]) -> Continuations:
    """Return endings behind the prompt they share, each tokenised with it as one text."""
    whole = [text_ids(model, prompt + ending) for ending in endings]
    return split_texts(model, whole, common_prefix_length([text_ids(model, prompt), *whole], keep=0))


def lambada(model: Model, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Evaluate rows {"text"}: accuracy of the last word, all its tokens most likely; its perplexity."""
    scores: list[TextScore] = []
    for block in iterate_blocks(rows, "text"):
        groups = []
        for row in block:
            prompt, space, word = row["text"].rstrip().rpartition(" ")
            if not prompt:
                raise InputError(f"{row['text']!r:.60} has no last word to predict from others")
            groups.append(continuations_of(model, prompt, [space + word]))
        scores += [scored[0] for scored in score_continuations(model, groups)]
    nats = -math.fsum(s.total for s in scores) / len(scores)
    return {
        "accuracy": sum(all(s.likeliest) for s in scores) / len(scores),
        "perplexity": math.exp(nats) if nats < 700 else math.inf,
        "rows": len(scores),
    }


_argmax = lambda scores: max(range(len(scores)), key=lambda i: scores[i])  # the first of equals


def hellaswag(model: Model, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Evaluate rows {"ctx", "endings", "label"}: accuracy by the highest log p, and by log p per byte."""
    right = normal = count = 0
    for block in iterate_blocks(rows, "ctx", "endings", "label"):
        groups = [
            continuations_of(model, row["ctx"].strip(), [f" {e.strip()}" for e in row["endings"]])
            for row in block
        ]
        for row, scored in zip(block, score_continuations(model, groups), strict=True):
            sizes = [len(e.strip().encode()) for e in row["endings"]]
            right += _argmax([s.total for s in scored]) == int(row["label"])
            normal += _argmax([s.total / n for s, n in zip(scored, sizes, strict=True)]) == int(row["label"])
            count += 1
    return {"acc": right / count, "acc_norm": normal / count, "rows": count}


def blimp(
    model: Model, rows: Iterable[Mapping[str, Any]], first: Sequence[int] | None = None
) -> dict[str, Any]:
    """Evaluate rows {"good", "bad", "uid"}: how often the good sentence is more probable, by paradigm.

    Sentences follow the token that begins a text, or `first`. Two that are the same are not success.
    """
    by: dict[str, list[bool]] = defaultdict(list)
    fields: dict[str, set[str]] = defaultdict(set)
    for block in iterate_blocks(rows, "good", "bad", "uid"):
        pairs = [[text_ids(model, row[name]) for name in ("good", "bad")] for row in block]
        groups = [split_texts(model, pair, first=first) for pair in pairs]
        for row, (good, bad) in zip(block, score_continuations(model, groups), strict=True):
            by[row["uid"]].append(good.total > bad.total)
            fields[row.get("field", "all").replace("/", "_")].add(row["uid"])  # BLiMP spells one in two ways
    paradigms = {uid: sum(rights) / len(rights) for uid, rights in by.items()}
    mean = lambda uids: math.fsum(paradigms[uid] for uid in uids) / len(uids)
    return {
        "accuracy": mean(list(paradigms)),
        "fields": {field: mean(sorted(uids)) for field, uids in sorted(fields.items())},
        "paradigms": paradigms,
        "rows": sum(map(len, by.values())),
    }
