"""Pairs for a race of translators: short ones to train on, and joined ones of every length to test on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heedful.core.errors import InputError, NotFound
from heedful.core.files import expand_paths, name_files, write_text
from heedful.data.readers import parallel_documents

Pairs = list[tuple[str, str]]
HELD_OUT = 0.1  # of the pairs, for validation and test


def read_pairs(files: Sequence[str]) -> Pairs:
    """Return the pairs of a table of two columns or of two files of as many lines, without empty ones."""
    sides = parallel_documents([str(path) for path in expand_paths(list(files))], None)
    texts = ([" ".join(document).strip() for document in side] for side in sides)
    return [pair for pair in zip(*texts, strict=True) if all(pair)]


def join_pairs(pairs: Sequence[tuple[str, str]], max_joined: int, seed: int) -> Pairs:
    """Return as many pairs, each of 1 to `max_joined` consecutive ones joined."""
    rng, joined = random.Random(seed), []
    for start in range(len(pairs)):
        some = pairs[start : start + rng.randint(1, max_joined)]
        joined.append((" ".join(s for s, _ in some), " ".join(t for _, t in some)))
    return joined


def split_pairs(pairs: Sequence[tuple[str, str]], seed: int) -> tuple[Pairs, Pairs]:
    """Return pairs to train on and unseen ones, both in a random order; no source stands on both sides.

    Files of pairs are often sorted by length, so that their end says nothing of their beginning, and have
    several translations of a source. The first of an unseen source is used.
    """
    shuffled = list(pairs)
    random.Random(seed).shuffle(shuffled)
    sources = list(dict.fromkeys(source for source, _ in shuffled))
    validation = set(sources[max(1, round(len(sources) * (1 - HELD_OUT))) :])
    unseen = {source: (source, target) for source, target in reversed(shuffled) if source in validation}
    return [pair for pair in shuffled if pair[0] not in validation], list(unseen.values())


@dataclass(frozen=True)
class TranslationData:
    """Training pairs of few words, and test pairs by the number of words of their source."""

    train: Pairs
    valid: Pairs
    test: dict[int, Pairs]  # by the most words of a bucket


def prepare_pairs(
    files: Sequence[str], *, count: int, max_joined: int, test_joined: int, train_words: int,
    buckets: Sequence[int], test_rows: int, seed: int,
) -> TranslationData:  # fmt: skip
    """Join consecutive pairs and split them; what is tested on is joined from sources that no model has seen.

    A training text joins up to `max_joined` pairs, a text to test on up to `test_joined`. Without files the
    pairs are numbers in English and German, which are bundled.
    """
    pairs = read_pairs(files) if files else number_pairs(count, seed)
    seen, unseen = split_pairs(pairs, seed)
    words = lambda text: len(text.split())
    train = [p for p in join_pairs(seen[:count], max_joined, seed) if words(p[0]) <= train_words]
    rest = [p for k in range(4) for p in join_pairs(unseen, test_joined, seed + 1 + k)]
    test: dict[int, Pairs] = {}
    for low, high in zip((0, *buckets), buckets, strict=False):
        inside = list(dict.fromkeys(p for p in rest if low < words(p[0]) <= high))
        if inside:
            test[high] = inside[:test_rows]
    valid = [p for p in unseen if words(p[0]) <= train_words]
    if not train or not valid or not test:
        raise InputError(
            f"{len(pairs):,} pairs are too few for training, validation and test",
            hint=f"give more, of at most {train_words} words",
        )
    return TranslationData(train, valid, test)


def write_pairs(pairs: Pairs, folder: Path, name: str) -> list[str]:
    """Write pairs as two files of as many lines; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.source", folder / f"{name}.target"]
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        write_text(path, "\n".join(side) + "\n")
    return [str(path) for path in paths]


# Texts that are bundled: English prose for language models, and numbers in two languages to translate.


TEXT_NAME = "the language reference that comes with Python (pydoc_data.topics)"
PAIRS_NAME = "numbers below a million, written in English and in German"

ENGLISH = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
ENGLISH_TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
GERMAN = (
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf",
    "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
)  # fmt: skip
GERMAN_TENS = (
    "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig",
)  # fmt: skip


def write_sample_text(path: Path) -> Path:
    """Write the language reference of the running Python as one file, topic after topic."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise NotFound(
            "this Python comes without its language reference, which is the text taken by default",
            hint="name a text file to train on",
        ) from None
    write_text(path, "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n")
    return path


def find_texts(files: Sequence[str], folder: Path) -> tuple[list[str], str]:
    """Return the files to train on and what a report calls them; without any, the text that is bundled.

    That one is written into the folder of the comparison, so that it stays the same when it is continued.
    """
    if files:
        paths = expand_paths(list(files))
        return [str(path) for path in paths], name_files(paths)
    path = folder / "text.txt"
    return [str(path if path.is_file() else write_sample_text(path))], TEXT_NAME


def english_number(value: int) -> str:
    """Return a number below a million in English words: 721 → "seven hundred and twenty one"."""
    if value >= 1000:
        rest = value % 1000
        joined = (
            "" if not rest else f" and {english_number(rest)}" if rest < 100 else f" {english_number(rest)}"
        )
        return f"{english_number(value // 1000)} thousand{joined}"
    if value >= 100:
        rest = value % 100
        return f"{ENGLISH[value // 100]} hundred" + (f" and {english_number(rest)}" if rest else "")
    if value < 20:
        return ENGLISH[value]
    return ENGLISH_TENS[value // 10 - 2] + (f" {ENGLISH[value % 10]}" if value % 10 else "")


def german_number(value: int, *, last: bool = True) -> str:
    """Return a number below a million in German, its parts as words: 21 → "ein und zwanzig".

    Units stand before tens, and a translation has to learn this. "eins" is written at the end alone.
    """
    if value >= 1000:
        rest = value % 1000
        return f"{german_number(value // 1000, last=False)} tausend" + (
            f" {german_number(rest)}" if rest else ""
        )
    if value >= 100:
        rest = value % 100
        head = f"{german_number(value // 100, last=False)} hundert"
        return head + (f" {german_number(rest, last=last)}" if rest else "")
    if value == 1 and not last:
        return "ein"
    if value < 20:
        return GERMAN[value]
    unit = f"{german_number(value % 10, last=False)} und " if value % 10 else ""
    return unit + GERMAN_TENS[value // 10 - 2]


def number_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return pairs of a number in English and in German, of one to six digits, drawn at random."""
    rng = random.Random(seed)
    values = [rng.randrange(10 ** rng.randint(1, 6)) for _ in range(count)]
    return [(english_number(value), german_number(value)) for value in values]
