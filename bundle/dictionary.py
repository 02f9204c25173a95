"""Words and what they are called elsewhere, from the English Wiktionary (CC BY-SA 3.0).

Beside Tatoeba's sentences, which show how words are used but know no invoice, stands a dictionary. A line of
`translation/wiktionary/en-XX.tsv.gz` is a word, its part of speech, what it means in English (or nothing) and
its translations, with genders in braces: `bakery`, `n`, `a shop …`, `Bäckerei {f}`.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from bundle import everyday_texts

ARTICLES = {
    "de": {"m": "der ", "f": "die ", "n": "das "},
    "fr": {"m": "le ", "f": "la "},
}
TRANSLATION = re.compile(r"([^\W\d_][\w'’ -]*?)(?: \{([mfn])\})?")
PARTS = {"n", "v", "adj", "adv", "num", "phrase", "interj", "prop"}
MOST = 2  # translations of one meaning


def entries(folder: Path, code: str) -> Iterator[list[str]]:
    """Word, part of speech, meaning, translations."""
    packed = (folder / f"translation/wiktionary/en-{code}.tsv.gz").read_bytes()
    return (line.split("\t") for line in gzip.decompress(packed).decode().splitlines())


def plain(text: str) -> str:
    """A text without case and punctuation, by which it is compared with the everyday lists."""
    return " ".join(re.findall(r"[\w'’-]+", text.lower()))


def pairs(folder: Path, code: str, known: set[str]) -> list[tuple[str, str]]:
    """Known words and their translations; nouns with the article that their gender asks for, too."""
    found: dict[tuple[str, str], None] = {}
    judged = {plain(text) for text in everyday_texts() if text.endswith((".", "!", "?"))}
    for word, part, _, translations in entries(folder, code):
        if part not in PARTS or plain(word) in judged or not known.issuperset(plain(word).split()):
            continue
        every = [TRANSLATION.fullmatch(one) for one in translations.split(", ")]
        for one in [match for match in every if match][:MOST]:
            other, gender = one[1], one[2]
            found[(f"to {word}" if part == "v" else word, other)] = None
            article = ARTICLES[code].get(gender or "") if part == "n" else None
            if article and code == "fr" and other[0].lower() in "aeiouyéèêàâîôûœh":
                article = None if other[0].lower() == "h" else "l'"
            if article:
                found[(f"the {word}", f"{article}{other}")] = None
    return list(found)


def meanings(folder: Path) -> list[str]:
    """What common words mean, as plain sentences: for a model that fills in words."""
    out, judged = dict[str, None](), everyday_texts()
    for word, part, meaning, _ in entries(folder, "de"):
        if part in ("n", "v") and meaning and word.islower() and len(meaning.split()) > 2:
            article = "an" if word[0] in "aeiou" else "a"
            start = f"{article.capitalize()} {word} is" if part == "n" else f"To {word} is"
            out[f"{start} {meaning[0].lower()}{meaning[1:]}."] = None
    return [text for text in out if text not in judged]
