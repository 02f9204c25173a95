"""The code exercises of text: bpe_merge, beam_search."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from heedful.classroom.exercises import code_models as models
from heedful.classroom.exercises import mutations_text as mutations
from heedful.classroom.exercises.code_exercise import Case, CodeExercise
from heedful.text.bpe import Pair, merge_pair

Words = dict[tuple[str, ...], int]


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


Beam = tuple[list[int], float]


def beam_search(
    log_probs: Callable[[list[int]], Tensor], end: int, width: int, max_length: int, penalty: float = 1.0
) -> Beam:
    """Keep the `width` best beginnings at each step; decode/beam.py also has groups and coverage."""
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
        mutations.mutate_bpe_merge, mutations.MERGE_MISTAKES,
        "a tokenizer of 12 merges", models.place_bpe_merge, ("the pair", "the table of words"),
    ),
    CodeExercise(
        "beam_search", "find a likely sequence with a few candidates", beam_search, beam_cases,
        mutations.mutate_beam_search, mutations.BEAM_MISTAKES,
        models.TRANSLATOR, models.place_beam_search, ("the sequence", "the score"),
    ),
)  # fmt: skip
