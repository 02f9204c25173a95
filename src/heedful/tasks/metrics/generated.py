"""Metrics of generated text: answers, summaries, translations."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heedful.core.lazy import import_optional
from heedful.tasks.metrics.scores import central_interval, check_pairs, f1_of, interval

ARTICLES = re.compile(r"\b(a|an|the)\b")
SPACELESS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # kana and Chinese characters
WORD = re.compile(rf"[{SPACELESS}]|[^\W_{SPACELESS}]+")


def normalize_answer(text: str) -> str:
    """Return the text in lower case without punctuation, articles and extra spaces, as SQuAD compares it."""
    letters = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", letters).split())


def exact_match(truths: Sequence[str], guess: str) -> float:
    """Return 1 if the answer is one of the true ones, else 0; "" is true where there is none."""
    return float(any(normalize_answer(t) == normalize_answer(guess) for t in truths or ("",)))


def answer_f1(truths: Sequence[str], guess: str) -> float:
    """Return the best F1 of the words that the answer shares with a true one."""
    words, best = normalize_answer(guess).split(), 0.0
    for truth in truths or ("",):
        true = normalize_answer(truth).split()
        shared = (Counter(true) & Counter(words)).total()
        best = max(best, f1_of(shared, len(true), len(words)) if true and words else float(true == words))
    return best


def answer_scores(truths: Sequence[Sequence[str]], guesses: Sequence[str]) -> dict[str, Any]:
    """Return exact match and F1 of answers to questions in per cent, each after its 95 % interval."""
    check_pairs(truths, guesses, "texts")
    scores: dict[str, Any] = {}
    for name, score in (("exact_match", exact_match), ("f1", answer_f1)):
        value = sum(score(t, g) for t, g in zip(truths, guesses, strict=True)) / len(guesses)
        # No mean of numbers between 0 and 1 varies more than a proportion does.
        scores |= {f"{name}_95": [100 * end for end in interval(value, len(truths))], name: 100 * value}
    return scores | {"questions": len(truths)}


def transcriptions(truths: Sequence[str], guesses: Sequence[str]) -> dict[str, Any]:
    """Return how many texts were written without a mistake, after the 95 % interval, and how many characters
    were wrong: edits between both over the characters of the true ones. All in per cent.
    """
    check_pairs(truths, guesses, "texts")
    same = sum(t == g for t, g in zip(truths, guesses, strict=True)) / len(guesses)
    wrong = sum(edit_distance(t, g) for t, g in zip(truths, guesses, strict=True))
    return {
        "exact_match_95": [100 * end for end in interval(same, len(guesses))], "exact_match": 100 * same,
        "character_error": 100 * wrong / max(sum(map(len, truths)), 1),
    }  # fmt: skip


def edit_distance(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the fewest insertions, deletions and replacements that make one of the other (Levenshtein)."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return row[-1]


def words(text: str) -> list[str]:
    """Return lower-case words and numbers, which ROUGE counts; Chinese and Japanese characters one by one.

    Of English text these are the words of Google's rouge_score, which drops all letters but a to z.
    """
    return WORD.findall(text.lower())


def rouge_n(truth: Sequence[str], guess: Sequence[str], n: int) -> float:
    """F1 of the n-grams that two texts share   (Lin 2004 §2)"""
    grams = lambda w: Counter(tuple(w[i : i + n]) for i in range(len(w) - n + 1))
    a, b = grams(truth), grams(guess)
    return f1_of((a & b).total(), a.total(), b.total())


def rouge_l(truth: Sequence[str], guess: Sequence[str]) -> float:
    """F1 of the longest common subsequence   (Lin 2004 §3)"""
    row = [0] * (len(guess) + 1)
    for word in truth:
        corner = 0
        for j, other in enumerate(guess):
            above = row[j + 1]
            row[j + 1] = corner + 1 if word == other else max(above, row[j])
            corner = above
    return f1_of(row[-1], len(truth), len(guess))


def rouge(truths: Sequence[str], guesses: Sequence[str]) -> dict[str, float]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L, the mean F1 in per cent; words are not stemmed."""
    check_pairs(truths, guesses, "texts")
    pairs = [(words(t), words(g)) for t, g in zip(truths, guesses, strict=True)]
    kinds: dict[str, Callable[[list[str], list[str]], float]] = {
        "rouge1": lambda t, g: rouge_n(t, g, 1),
        "rouge2": lambda t, g: rouge_n(t, g, 2),
        "rougeL": rouge_l,
    }
    return {name: 100 * sum(score(t, g) for t, g in pairs) / len(pairs) for name, score in kinds.items()}


def bleu(truths: Sequence[str], guesses: Sequence[str], **options: Any) -> dict[str, Any]:
    """Return the BLEU of all texts by sacrebleu, with its signature   (Post 2018)"""
    check_pairs(truths, guesses, "texts")
    metric = bleu_metric(**options)
    score = metric.corpus_score(list(guesses), [list(truths)])
    return {"bleu": score.score, "signature": str(metric.get_signature())}


def bleu_interval(truths: Sequence[str], guesses: Sequence[str], samples: int = 1000) -> tuple[float, float]:
    """Return where 95 % of the BLEUs of texts drawn with replacement lie   (Koehn 2004)"""
    check_pairs(truths, guesses, "texts")
    metric, rng = bleu_metric(effective_order=True), np.random.default_rng(0)
    rows = [metric.sentence_score(g, [t]) for t, g in zip(truths, guesses, strict=True)]
    counts = np.array([[*row.counts, *row.totals, row.sys_len, row.ref_len] for row in rows])
    order = len(rows[0].counts)
    scores = []
    for _ in range(samples):
        sums = counts[rng.integers(len(rows), size=len(rows))].sum(0).tolist()
        right, total, (guessed, true) = sums[:order], sums[order : 2 * order], sums[2 * order :]
        score = metric.compute_bleu(right, total, guessed, true, smooth_method="exp")
        scores.append(float(score.score))
    return central_interval(scores)


def bleu_metric(**options: Any) -> Any:
    """Return sacrebleu's metric; raise MissingPackage if it is not installed."""
    return import_optional("sacrebleu.metrics", "BLEU").BLEU(**options)
