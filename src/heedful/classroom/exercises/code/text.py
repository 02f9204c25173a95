"""The exercises bpe_merge and beam_search.

Each has the mistakes that grading can name, a function with any of them in it, the definition, which calls
the library's own part, and the inputs it is tried on.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from itertools import groupby, pairwise
from operator import itemgetter

import torch
from torch import Tensor

from heedful.classroom.exercises.code import models
from heedful.classroom.exercises.code.exercise import Case, CodeExercise, mistakes
from heedful.text.bpe import merge_pair

Names = frozenset[str]
Words = dict[tuple[str, ...], int]
Pair = tuple[str, str]

MERGE_MISTAKES = mistakes(
    first_pair="the first pair is merged instead of the most frequent one",
    least_frequent="the least frequent pair is merged instead of the most frequent one",
    counts_ignored="a word counts once, however often it occurs",
    counts_without_overlap="overlapping pairs are not counted: a a a has the pair (a, a) twice",
    counts_replaced="the count of a pair is replaced by that of the last word with it instead of added up",
    once_per_word="a pair counts once in a word, however often it stands there",
    largest_of_ties="of equally frequent pairs the largest is taken instead of the smallest",
    first_of_ties="of equally frequent pairs the one that was met first is taken instead of the smallest",
    last_of_ties="of equally frequent pairs the one that was met last is taken instead of the smallest",
    either_order="a pair is counted and merged in either order: (a, b) is not (b, a)",
    overlapping="overlapping pairs are all merged: a a a becomes aa aa, with a piece used twice",
    first_occurrence="only the first occurrence in a word is merged",
    right_to_left="pairs are merged from right to left: a a a becomes a aa instead of aa a",
    not_joined="the pieces of the pair are joined with a space between them",
    substring="the pair is replaced in the text of the word: pieces that only end or begin like it merge too",
    not_merged="the words are returned as they were",
    dropped="words without the pair are missing from what is returned",
    only_pairs="only neighbours at the start of a word are counted",
)


def choose_pair(m: Names, counts: Counter[Pair]) -> Pair:
    """Return the pair to merge with the mistakes `m`."""
    met = list(counts)
    if "first_pair" in m:
        return met[0]
    sign = 1 if "least_frequent" in m else -1
    best = min(sign * count for count in counts.values())
    ties = [pair for pair in met if sign * counts[pair] == best]
    if "first_of_ties" in m:
        return ties[0]
    if "last_of_ties" in m:
        return ties[-1]
    return max(ties) if "largest_of_ties" in m else min(ties)


def merge_in_word(m: Names, pieces: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    """Return the pieces with the pair merged, with the mistakes `m`."""
    joined = " ".join(pair) if "not_joined" in m else "".join(pair)
    if "substring" in m:
        return tuple(" ".join(pieces).replace(" ".join(pair), joined).split(" "))
    fits = lambda i: tuple(pieces[i : i + 2]) in ({pair, pair[::-1]} if "either_order" in m else {pair})
    starts = [i for i in range(len(pieces) - 1) if fits(i)]
    if "overlapping" in m:
        out = [joined if i in starts else p for i, p in enumerate(pieces)]
        return tuple(p for i, p in enumerate(out) if i in starts or i - 1 not in starts)
    taken: list[int] = []
    for i in reversed(starts) if "right_to_left" in m else starts:
        if i - 1 not in taken and i + 1 not in taken:
            taken.append(i)
    taken = taken[:1] if "first_occurrence" in m else taken
    text = lambda i: "".join(pieces[i : i + 2]) if "either_order" in m else joined
    return tuple(text(i) if i in taken else p for i, p in enumerate(pieces) if i - 1 not in taken)


def mutate_bpe_merge(m: Names, words: Words) -> tuple[Pair, Words]:
    """bpe_merge with the mistakes `m`."""
    counts: Counter[Pair] = Counter()
    for pieces, count in words.items():
        pairs = list(pairwise(pieces))[: 1 if "only_pairs" in m else None]
        pairs = [min(p, p[::-1]) for p in pairs] if "either_order" in m else pairs
        if "counts_without_overlap" in m:
            pairs = [p for p, run in groupby(pairs) for _ in range((len(list(run)) + 1) // 2)]
        for pair in dict.fromkeys(pairs) if "once_per_word" in m else pairs:
            before = 0 if "counts_replaced" in m else counts[pair]
            counts[pair] = before + (1 if "counts_ignored" in m else count)
    pair = choose_pair(m, counts)
    if "not_merged" in m:
        return pair, dict(words)
    merged = {pieces: merge_in_word(m, pieces, pair) for pieces in words}
    if "dropped" in m:
        merged = {old: new for old, new in merged.items() if old != new}
    return pair, {new: words[old] for old, new in merged.items()}


BEAM_MISTAKES = mistakes(
    greedy="only the best beginning is kept: a greedy search",
    no_penalty="the sum is not divided by length^penalty",
    google_penalty="the sum is divided by ((5 + length) / 6)^penalty instead of length^penalty",
    chosen_by_sum="the best is chosen by the sum, and only what is returned is divided by length^penalty",
    fixed_penalty="the sum is divided by the length, whatever the penalty is",
    times_penalty="the sum is multiplied by length^penalty instead of divided",
    length_without_end="the length does not count the end token",
    not_sorted="the first `width` continuations are kept instead of the best",
    worst_kept="the worst continuations are kept: the order is reversed",
    stops_at_first="the search stops at the first finished sequence",
    never_finishes="finished sequences stay in the beam and are continued after the end token",
    running_dropped="sequences still running after max_length steps are forgotten",
    last_only="the score is that of the last token alone instead of the sum",
    probabilities_added="probabilities are added instead of log-probabilities",
    one_per_beginning="each beginning keeps its best continuation instead of competing with all others",
    refilled="finished sequences take no place in the beam: `width` others go on",
    raw_sum_returned="the score that is returned is the sum, not divided by length^penalty",
    end_removed="the end token is missing from what is returned",
    one_step_short="one step too few is made",
    one_step_long="one step too many is made",
    worst_returned="the worst finished sequence is returned instead of the best",
    last_returned="the sequence that finished last is returned instead of the best",
)
Beam = tuple[list[int], float]


def keep_candidates(m: Names, candidates: list[list[Beam]], width: int) -> list[Beam]:
    """Return the continuations that are kept, best first; `candidates` has a list for each beginning."""
    if "one_per_beginning" in m and len(candidates) > 1:
        return [max(group, key=itemgetter(1)) for group in candidates]
    every = [beam for group in candidates for beam in group]
    if "not_sorted" in m:
        return every[:width]
    return sorted(every, key=itemgetter(1), reverse="worst_kept" not in m)


def mutate_beam_search(
    m: Names,
    log_probs: Callable[[list[int]], Tensor],
    end: int,
    width: int,
    max_length: int,
    penalty: float = 1.0,
) -> Beam:
    """beam_search with the mistakes `m`."""
    width = 1 if "greedy" in m else width
    count = lambda ids: max(1, len(ids) - ("length_without_end" in m and ids[-1] == end))
    size = lambda ids: (5 + count(ids)) / 6 if "google_penalty" in m else count(ids)
    power = 0.0 if "no_penalty" in m else -penalty if "times_penalty" in m else penalty
    power = 1.0 if "fixed_penalty" in m else power
    final = lambda beam: beam[1] / size(beam[0]) ** power
    beams: list[Beam] = [([], 0.0)]
    finished: list[Beam] = []
    for _ in range(max_length - ("one_step_short" in m) + ("one_step_long" in m)):
        candidates = []
        for ids, total in beams:
            logs = [float(x) for x in log_probs(ids)]
            new = [math.exp(x) for x in logs] if "probabilities_added" in m else logs
            before = 0.0 if "last_only" in m else total
            candidates.append([([*ids, token], before + x) for token, x in enumerate(new)])
        kept = keep_candidates(m, candidates, width)
        if "refilled" in m:
            ended = [b for b in kept[:width] if b[0][-1] == end]
            beams = [b for b in kept if b[0][-1] != end][:width]
        else:
            stays = "never_finishes" in m
            ended = [] if stays else [b for b in kept[:width] if b[0][-1] == end]
            beams = [b for b in kept[:width] if stays or b[0][-1] != end]
        finished += ended
        if not beams or ("stops_at_first" in m and finished):
            break
    if "running_dropped" not in m and not ("stops_at_first" in m and finished):
        finished += beams
    choose = min if "worst_returned" in m else max
    key = itemgetter(1) if "chosen_by_sum" in m else final
    best = finished[-1] if "last_returned" in m else choose(finished, key=key)
    ids = best[0][:-1] if "end_removed" in m and best[0][-1] == end else best[0]
    return ids, best[1] if "raw_sum_returned" in m else final(best)


def bpe_merge(words: Words) -> tuple[Pair, Words]:
    """Count pairs, then merge the most frequent as the library does (`text/bpe.py:merge_pair`)."""
    counts: Counter[Pair] = Counter()
    for pieces, count in words.items():
        for pair in pairwise(pieces):
            counts[pair] += count
    best = min(counts, key=lambda pair: (-counts[pair], pair))
    return best, {merge_pair(pieces, best): count for pieces, count in words.items()}


def merge_cases() -> list[Case]:
    split = lambda text: {tuple(word.split("-")): int(count) for word, count in map(str.split, text)}
    return [
        Case("four words", (split(["l-o-w 5", "l-o-w-e-r 2", "n-e-w-e-s-t 6", "w-i-d-e-s-t 3"]),)),
        Case("letters that repeat", (split(["x-a-a-a 4", "a-a-a-a-b 1", "b-x 2", "y-x-a 3"]),)),
        Case("equally frequent pairs", (split(["d-e-f 2", "b-c-g 2", "h-i-k 2", "k-m 1"]),)),
        Case(
            "pieces of several letters", (split(["re-s-t 1", "e-s-t 3", "e-st 1", "l-e-s-s 2", "s-t-y 1"]),)
        ),
        Case("a pair that stands twice in a word", (split(["b-a-n-a-n-a 2", "c-a-t 4", "t-a-n 1"]),)),
        Case("a pair and its mirror image", (split(["a-b-d 3", "b-a-c 2", "c-d-e 4", "b-a-f 1"]),)),
    ]


def beam_search(
    log_probs: Callable[[list[int]], Tensor], end: int, width: int, max_length: int, penalty: float = 1.0
) -> Beam:
    """Keep the `width` best beginnings at each step; decode/search.py also has groups and coverage."""
    beams: list[Beam] = [([], 0.0)]
    finished: list[Beam] = []
    for _ in range(max_length):
        longer = [
            ([*ids, token], total + log)
            for ids, total in beams
            for token, log in enumerate(log_probs(ids).tolist())
        ]
        best = sorted(longer, key=lambda beam: -beam[1])[:width]
        finished += [beam for beam in best if beam[0][-1] == end]
        beams = [beam for beam in best if beam[0][-1] != end]
        if not beams:
            break
    ids, total = max(finished + beams, key=lambda beam: beam[1] / len(beam[0]) ** penalty)
    return ids, total / len(ids) ** penalty


def toy_language(seed: int, tokens: int, ending: float) -> Callable[[list[int]], Tensor]:
    """Return log-probabilities that depend on everything before; `ending` raises those of token 0."""

    @functools.cache
    def row(ids: tuple[int, ...]) -> Tensor:
        number = functools.reduce(lambda total, token: total * 31 + token + 1, ids, seed)
        logits = torch.randn(tokens, generator=torch.Generator().manual_seed(number % (1 << 40))) * 1.5
        logits[0] += ending
        return logits.log_softmax(-1)

    return lambda ids: row(tuple(map(int, ids)))


def beam_cases() -> list[Case]:
    rows = [
        ("a width of two", 37, 5, 0.5, 2, 5, 1.0), ("a width of three, no penalty", 69, 5, 1.0, 3, 5, 0.0),
        ("a strong penalty", 45, 4, 1.5, 3, 6, 1.5), ("texts without an end", 32, 6, -6.0, 3, 4, 1.0),
        ("texts that end early", 47, 4, 2.0, 4, 6, 0.7), ("a width of one", 55, 5, 0.5, 1, 5, 1.0),
        ("another wide beam", 61, 5, 0.0, 4, 6, 1.0), ("a penalty below one", 51, 6, 0.0, 2, 6, 0.6),
    ]  # fmt: skip
    return [
        Case(about, (toy_language(seed, tokens, ending), 0, width, length, penalty))
        for about, seed, tokens, ending, width, length, penalty in rows
    ]


EXERCISES = (
    CodeExercise(
        "bpe_merge", "learn one merge of a tokenizer", bpe_merge, merge_cases,
        mutate_bpe_merge, MERGE_MISTAKES,
        "a tokenizer of 12 merges", models.place_bpe_merge, ("the pair", "the table of words"),
    ),
    CodeExercise(
        "beam_search", "find a likely sequence with a few candidates", beam_search, beam_cases,
        mutate_beam_search, BEAM_MISTAKES,
        models.TRANSLATOR, models.place_beam_search, ("the sequence", "the score"),
    ),
)  # fmt: skip
