"""Texts that come along: English prose for language models, and numbers in two languages to translate."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from heedful.core.errors import NotFound
from heedful.core.files import expand_paths, name_files, write_text

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
    """Return the files to train on and what a report calls them; without any, the text that comes along.

    That one is written into the folder of the comparison, so that it stays the same when it is continued.
    """
    if files:
        found = expand_paths(list(files))
        return [str(path) for path in found], name_files(found)
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

    Units stand before tens, which is what a translation has to learn. "eins" is written at the end alone.
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
