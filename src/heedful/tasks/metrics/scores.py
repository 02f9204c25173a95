"""Scores of answers against the truth: accuracy, F1, and correlations."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError


def check_pairs(truth: Sequence[object], guess: Sequence[object], unit: str = "answers") -> None:
    """Raise InputError unless there is an answer for each that is expected, and at least one."""
    if len(truth) != len(guess) or not truth:
        what = f"{len(truth)} {unit} are expected and {len(guess)} were given"
        raise InputError(what, hint="there is nothing to score" if not truth else None)


def accuracy(truth: Sequence[Hashable], guess: Sequence[Hashable]) -> float:
    """Return the share of right predictions."""
    check_pairs(truth, guess)
    return sum(t == g for t, g in zip(truth, guess, strict=True)) / len(truth)


def f1_of(right: int, references: int, predictions: int) -> float:
    """2 P R / (P + R): the harmonic mean of precision right/predictions and recall right/references."""
    return 2 * right / (references + predictions) if right else 0.0


def f1(truth: Sequence[Hashable], guess: Sequence[Hashable]) -> dict[Hashable, float]:
    """Return the F1 of every class that occurs in the truth or the guesses."""
    check_pairs(truth, guess)
    right = Counter(t for t, g in zip(truth, guess, strict=True) if t == g)
    references, predictions = Counter(truth), Counter(guess)
    classes = sorted(references | predictions, key=str)
    return {c: f1_of(right[c], references[c], predictions[c]) for c in classes}


def macro_f1(truth: Sequence[Hashable], guess: Sequence[Hashable]) -> float:
    """Return the mean of all classes' F1, rare ones counting as much as frequent ones."""
    each = f1(truth, guess)
    return sum(each.values()) / len(each)


def matthews(truth: Sequence[Hashable], guess: Sequence[Hashable]) -> float:
    """Return the correlation of two labellings, 0 for chance   (Matthews 1975; Gorodkin 2004)"""
    check_pairs(truth, guess)
    n, right = len(truth), sum(t == g for t, g in zip(truth, guess, strict=True))
    references, predictions = Counter(truth), Counter(guess)
    both = sum(references[c] * predictions[c] for c in references)
    variance = lambda counts: n * n - sum(v * v for v in counts.values())
    scale = math.sqrt(variance(references) * variance(predictions))
    return (right * n - both) / scale if scale else 0.0


def pearson(x: Sequence[float], y: Sequence[float]) -> float:
    """Σ (x − x̄)(y − ȳ) / √(Σ (x − x̄)² Σ (y − ȳ)²)"""
    check_pairs(x, y)
    dx, dy = (np.asarray(values, np.float64) - np.mean(values) for values in (x, y))
    scale = math.sqrt(float(dx @ dx) * float(dy @ dy))
    return float(dx @ dy) / scale if scale else math.nan


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 1; equal ones share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranked: list[float] = (counts.cumsum() - (counts - 1) / 2)[places].tolist()
    return ranked


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's correlation of the ranks   (Spearman 1904)"""
    return pearson(ranks(x), ranks(y))


def interval(share: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a proportion of `count` trials   (Wilson 1927)"""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return middle - half, middle + half


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), the share of a beta distribution below x, by Lentz's continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction of the other side converges faster
        return 1 - incomplete_beta(1 - x, b, a)
    front = a * math.log(x) + b * math.log1p(-x) - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b)
    c, d, value = 1.0, 1 / (1 - (a + b) * x / (a + 1)), 1 / (1 - (a + b) * x / (a + 1))
    for m in range(1, 300):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + step * d), 1 + step / c
            value *= c * d
    return math.exp(front) * value / a


def beta_quantile(share: float, a: float, b: float) -> float:
    """Return the x below which this share of a beta distribution lies, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if incomplete_beta(middle, a, b) < share else (low, middle)
    return (low + high) / 2


def t_quantile(freedom: float) -> float:
    """Return how many standard errors hold 95 % of Student's t: 1.96 for many degrees of freedom."""
    x = beta_quantile(0.05, freedom / 2, 0.5)
    return math.sqrt(freedom * (1 - x) / x)


def exact_interval(share: float, trials: float) -> tuple[float, float]:
    """Return the 95 % interval of a proportion of dependent predictions that count as `trials`.

    The exact interval of Clopper and Pearson (1934) for n = trials · (1.96/t)², t Student's for trials − 1
    degrees of freedom   (Korn and Graubard 1998). Few trials also tell little about their own spread.
    """
    n = trials * (1.96 / t_quantile(max(1.0, trials - 1))) ** 2
    right = share * n
    low = beta_quantile(0.025, right, n - right + 1) if right > 0 else 0.0
    high = beta_quantile(0.975, right + 1, n - right) if right < n else 1.0
    return low, high


def correlation_interval(correlation: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a correlation of `count` ranks: tanh(atanh r ± 1.96 √((1 + r²/2)/(n − 3)))

    (Fisher's transform with the variance of Bonett and Wright 2000.) A perfect one counts as 1 − 1/n.
    """
    if count <= 3:
        return -1.0, 1.0
    r = max(-1 + 1 / count, min(1 - 1 / count, correlation))
    half = 1.96 * math.sqrt((1 + r * r / 2) / (count - 3))
    low, high = (math.tanh(math.atanh(r) + sign * half) for sign in (-1, 1))
    return min(low, correlation), max(high, correlation)


def bootstrap_interval(
    statistic: Callable[[NDArray[np.intp]], float], count: int, *, draws: int = 1000
) -> tuple[float, float]:
    """Return where a statistic of `count` examples lies in 95 % of samples drawn from them   (Efron 1979)

    `statistic` gets the indices of one sample, drawn with replacement.
    """
    samples = np.random.default_rng(0).integers(count, size=(draws, count))
    return central_interval([statistic(sample) for sample in samples])


def central_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends between which 95 % of the values lie, as many below as above."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def class_scores(
    truth: Sequence[Hashable], guess: Sequence[Hashable], trials: float | None = None
) -> dict[str, Any]:
    """Return the accuracy after its 95 % interval, macro F1 and Matthews' correlation of predicted labels.

    `trials` is how many independent predictions they count as, if not as many as they are.
    """
    right = accuracy(truth, guess)
    scores = {"macro_f1": macro_f1(truth, guess), "matthews": matthews(truth, guess), "rows": len(truth)}
    between = interval(right, len(truth)) if trials is None else exact_interval(right, trials)
    return {"accuracy_95": list(between), "accuracy": right, **scores}


def correlation_scores(truth: Sequence[float], guess: Sequence[float]) -> dict[str, Any]:
    """Return Spearman's correlation after its 95 % interval, and Pearson's; both are 0 for equal numbers."""
    ranked, linear = (0.0 if math.isnan(r) else r for r in (spearman(truth, guess), pearson(truth, guess)))
    between = list(correlation_interval(ranked, len(truth)))
    return {"spearman_95": between, "spearman": ranked, "pearson": linear, "rows": len(truth)}


def regression_scores(truth: Sequence[float], guess: Sequence[float]) -> dict[str, Any]:
    """Return the root mean square error, the mean absolute error, and the correlations.

    RMSE = √(1/N Σ (ŷ − y)²),  MAE = 1/N Σ |ŷ − y|
    """
    errors = np.asarray(guess, dtype=np.float64) - np.asarray(truth, dtype=np.float64)
    sizes = {"rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors)))}
    return sizes | correlation_scores(truth, guess)


def resampled_scores(
    score: Callable[[NDArray[np.intp]], float], count: int, trials: float | None
) -> list[float]:
    """Return the 95 % interval of a score of `count` rows that count as `trials` independent ones.

    The bootstrap's interval, widened by √(count/trials) and, as in `exact_interval`, by t/1.96.
    """
    low, high = bootstrap_interval(score, count, draws=500)
    middle, wider = score(np.arange(count)), math.sqrt(count / (trials or count))
    wider *= 1.0 if trials is None else t_quantile(max(1.0, trials - 1)) / 1.96
    return [middle - (middle - low) * wider, middle + (high - middle) * wider]


def score_interval(
    score: Callable[[NDArray[np.intp]], float], count: int, trials: float | None, lowest: float = 0.0
) -> list[float]:
    """Return the interval of `resampled_scores` between `lowest` and 1, no narrower than a proportion's.

    A few rows without a mistake give samples without one, and still leave doubt.
    """
    low, high = resampled_scores(score, count, trials)
    share = min(1.0, max(0.0, score(np.arange(count))))
    least = interval(share, trials or count)
    return [max(lowest, min(low, least[0])), min(1.0, max(high, least[1]))]


def balanced_scores(
    truth: Sequence[Hashable], guess: Sequence[Hashable], trials: float | None = None
) -> dict[str, Any]:
    """Return macro F1 after its 95 % interval, the mean of the classes' recalls, and the other scores."""
    plain = class_scores(truth, guess, trials)
    pick = lambda values, sample: [values[i] for i in sample]
    macro = lambda sample: macro_f1(pick(truth, sample), pick(guess, sample))
    between = score_interval(macro, len(truth), trials)
    total, right = Counter(truth), Counter(t for t, g in zip(truth, guess, strict=True) if t == g)
    recall = sum(right[label] / count for label, count in total.items()) / len(total)
    first = {"macro_f1_95": between, "macro_f1": plain["macro_f1"], "balanced_accuracy": recall}
    return first | {name: value for name, value in plain.items() if name not in first}


def quadratic_kappa(truth: Sequence[int], guess: Sequence[int]) -> float:
    """κ = 1 − Σ (t − g)² / Σ_ij (t_i − g_j)² / N: 1 for agreement, 0 for chance   (Cohen 1968)"""
    check_pairs(truth, guess)
    t, g = np.asarray(truth, float), np.asarray(guess, float)
    chance = float(np.square(t[:, None] - g[None, :]).mean())
    return 1 - float(np.square(t - g).mean()) / chance if chance else 0.0


def ordinal_scores(truth: Sequence[int], guess: Sequence[int], trials: float | None = None) -> dict[str, Any]:
    """Return quadratic kappa of places in an order after its 95 % interval, the mean error in steps …"""
    t, g = np.asarray(truth), np.asarray(guess)
    kappa = lambda sample: quadratic_kappa(t[sample].tolist(), g[sample].tolist())
    between = score_interval(kappa, len(t), trials, lowest=-1.0)
    error = float(np.abs(t - g).mean())
    scores = {"kappa_95": between, "kappa": quadratic_kappa(truth, guess), "mean_error": error}
    return scores | class_scores(t.tolist(), g.tolist(), trials)


def multi_label_scores(
    truth: Sequence[set[str]], guess: Sequence[set[str]], labels: Sequence[str], trials: float | None = None
) -> dict[str, Any]:
    """Return micro F1 of sets of labels after its 95 % interval, macro F1, and how often all were right."""
    check_pairs(truth, guess)
    right, wanted, given = (
        np.array([[label in labels_of(t, g) for label in labels] for t, g in zip(truth, guess, strict=True)])
        for labels_of in (lambda t, g: t & g, lambda t, g: t, lambda t, g: g)
    )  # (N, C) each
    micro = lambda rows: f1_of(int(right[rows].sum()), int(wanted[rows].sum()), int(given[rows].sum()))
    each = [
        f1_of(int(right[:, c].sum()), int(wanted[:, c].sum()), int(given[:, c].sum()))
        for c in range(len(labels)) if wanted[:, c].any() or given[:, c].any()
    ]  # fmt: skip
    between = score_interval(micro, len(truth), trials)
    exact = sum(t == g for t, g in zip(truth, guess, strict=True)) / len(truth)
    macro = sum(each) / len(each) if each else 0.0
    return {
        "micro_f1_95": between, "micro_f1": micro(np.arange(len(truth))), "macro_f1": macro,
        "exact_match": exact, "rows": len(truth),
    }  # fmt: skip


# Scores of rankings: how high the relevant texts of a query stand.


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


# The F1 of entities in tagged sentences: an entity counts only if type, first and last word are right.
#
# (Tjong Kim Sang and De Meulder 2003.) Tags are O, or a letter and a type: I-PER goes on with a PER, B-PER
# begins one (IOB1, IOB2); S- is one alone and E- ends one (BIOES).


Entity = tuple[int, int, str]


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the first word, the word after the last, and the type of every entity of a sentence."""
    spans: list[Entity] = []
    start, kind = 0, ""
    for i, tag in enumerate([*tags, "O"]):
        letter, _, name = tag.partition("-")
        name = name or (letter if letter != "O" else "")
        continues = letter in ("I", "E") and name == kind and kind
        if kind and not continues:
            spans.append((start, i, kind))
            kind = ""
        if letter != "O" and not continues:
            start, kind = i, name
        if letter in ("E", "S") and kind:
            spans.append((start, i + 1, kind))
            kind = ""
    return spans


def entity_f1(truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 over all sentences, and the F1 of every type."""
    if len(truth) != len(guess):
        raise InputError(f"{len(truth)} sentences are expected and {len(guess)} were given")
    right: Counter[str] = Counter()
    references: Counter[str] = Counter()
    predictions: Counter[str] = Counter()
    for t, g in zip(truth, guess, strict=True):
        if len(t) != len(g):
            raise InputError(f"a sentence of {len(t)} words was given {len(g)} tags")
        true, predicted = set(entities(t)), set(entities(g))
        references.update(kind for _, _, kind in true)
        predictions.update(kind for _, _, kind in predicted)
        right.update(kind for _, _, kind in true & predicted)
    hits, expected, given = right.total(), references.total(), predictions.total()
    kinds = sorted(references | predictions)
    each = {f"f1_{kind}": f1_of(right[kind], references[kind], predictions[kind]) for kind in kinds}
    share = lambda whole: hits / whole if whole else 0.0
    return {"precision": share(given), "recall": share(expected), "f1": f1_of(hits, expected, given)} | each


def entity_f1_interval(truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Return the 95 % interval of the F1: over samples of the sentences, but no narrower than Wilson's.

    A few sentences without a mistake give samples without one; as many trials as entities still leave doubt.
    """
    pairs = [(set(entities(t)), set(entities(g))) for t, g in zip(truth, guess, strict=True)]
    counts = np.array([(len(true & predicted), len(true), len(predicted)) for true, predicted in pairs])
    right, references, predictions = counts.sum(0).tolist()
    trials = (references + predictions) / 2
    if not trials:
        return 0.0, 1.0
    drawn = bootstrap_interval(lambda sample: f1_of(*counts[sample].sum(0).tolist()), len(counts))
    wilson = interval(f1_of(right, references, predictions), trials)
    return min(drawn[0], wilson[0]), max(drawn[1], wilson[1])


def tag_scores(truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the F1 of whole entities after its 95 % interval, and the accuracy by word."""
    flat = lambda rows: [tag for row in rows for tag in row]
    result, between = entity_f1(truth, guess), list(entity_f1_interval(truth, guess))
    scores = {"f1_95": between, "f1": result.pop("f1")} | result
    return scores | {"accuracy": accuracy(flat(truth), flat(guess)), "sentences": len(truth)}
