"""Scores of rankings: how high the relevant texts of a query stand."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from heedful.core.errors import InputError
from heedful.tasks.metrics.scores import bootstrap_interval

DEPTH = 10  # places that count


def ndcg(relevances: Sequence[float], depth: int = DEPTH) -> float:
    """DCG / DCG of the best order,   DCG = Σ_i (2^rel_i − 1) / log₂(i + 1)   (Burges et al. 2005)

    `relevances` stand in the order of the ranking.
    """
    gain = lambda order: sum((2**rel - 1) / math.log2(i + 2) for i, rel in enumerate(order[:depth]))
    best = gain(sorted(relevances, reverse=True))
    return gain(list(relevances)) / best if best else 0.0


def reciprocal_rank(relevances: Sequence[float], depth: int = DEPTH) -> float:
    """1 / the place of the first relevant text, 0 if it stands below `depth`"""
    return next((1 / i for i, rel in enumerate(relevances[:depth], 1) if rel > 0), 0.0)


def ranking_scores(
    queries: Sequence[Hashable], truth: Sequence[float], scores: Sequence[float]
) -> dict[str, Any]:
    """Return the mean nDCG@10 of queries after its 95 % interval, and the mean reciprocal rank.

    Row i is a text for queries[i]. Only queries with texts of different relevance are ranked. Equal scores
    stand in the worst order, so that a model that tells nothing apart gains nothing.
    """
    rows = defaultdict(list)
    for query, relevance, score in zip(queries, truth, scores, strict=True):
        rows[query].append((-score, relevance))
    ranked = [[rel for _, rel in sorted(row)] for row in rows.values() if len({rel for _, rel in row}) > 1]
    if not ranked:
        what = "no query has both a relevant text and another: there is nothing to rank"
        raise InputError(what, hint="give several texts for a query")
    gains = np.array([ndcg(row) for row in ranked])
    between = bootstrap_interval(lambda sample: float(gains[sample].mean()), len(gains))
    return {
        "ndcg_95": list(between), "ndcg": float(gains.mean()),
        "mrr": float(np.mean([reciprocal_rank(row) for row in ranked])),
        "queries": len(ranked), "rows": len(truth),
    }  # fmt: skip
