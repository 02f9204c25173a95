"""How good are the vectors: analogies by section and correlation with people's judgements, what is missing
counted.

Question files are those in use: `questions-words.txt` (": section", then four words a line) and two words and
a score per line (WordSim-353, SimLex-999, MEN, RW …), plain or .gz.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heedful.errors import InputError
from heedful.word2vec.corpus import expand, open_text

if TYPE_CHECKING:
    from heedful.word2vec.vectors import Word2Vec

FIRST = 30_000  # words that may answer an analogy: the most frequent, as in the authors' program
BATCH = 256


@dataclass(frozen=True)
class Section:
    """One section of analogies: `asked` had all four words among those allowed, `missing` had not."""

    name: str
    correct: int
    asked: int
    missing: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.asked if self.asked else 0.0


@dataclass(frozen=True)
class Similarity:
    """Spearman's ρ of cosine and judgement over the `asked` pairs; `missing` pairs had an unknown word."""

    name: str
    rho: float
    asked: int
    missing: int


def read_analogies(path: Path) -> dict[str, list[tuple[str, str, str, str]]]:
    """Sections in order, each a list of (a, b, c, d)."""
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    name = path.name
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            parts = line.split()
            if parts and parts[0].startswith(":"):
                name = " ".join(parts).lstrip(": ")
            elif len(parts) == 4:
                sections.setdefault(name, []).append((parts[0], parts[1], parts[2], parts[3]))
            elif parts:
                raise InputError(
                    f"{path} line {number}: expected ': section' or four words, got {line.strip()[:60]!r}"
                )
    return sections


def read_pairs(path: Path) -> list[tuple[str, str, float]]:
    """(word, word, judgement) of each line; a first line whose third column is no number is a heading."""
    pairs = []
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            parts = line.replace(",", " ").split()
            try:
                pairs.append((parts[0], parts[1], float(parts[2])))
            except (IndexError, ValueError):
                if number > 1 and parts:
                    raise InputError(
                        f"{path} line {number}: expected two words and a number, got {line.strip()[:60]!r}"
                    ) from None
    return pairs


class Lookup:
    """Rows by word regardless of case: the most frequent spelling wins, so that 'Athens' finds 'athens'."""

    def __init__(self, vectors: Word2Vec, first: int | None = None) -> None:
        self.rows: dict[str, int] = {}
        for row, word in enumerate(vectors.words[:first]):
            self.rows.setdefault(word.lower(), row)

    def find(self, words: Iterable[str]) -> list[int] | None:
        rows = [self.rows.get(word.lower(), -1) for word in words]
        return None if min(rows) < 0 else rows


def analogies(vectors: Word2Vec, path: str | Path, first: int = FIRST, method: str = "add") -> list[Section]:
    """Accuracy by section, then `semantic`, `syntactic` (sections named gram…) and `total`; the three asked
    words may not answer, and only the `first` most frequent words may.
    """
    lookup = Lookup(vectors, first)
    sections = []
    for name, questions in read_analogies(Path(path)).items():
        rows = [found for question in questions if (found := lookup.find(question)) is not None]
        correct = count_correct(vectors, np.array(rows, dtype=np.int64).reshape(-1, 4), first, method)
        sections.append(Section(name, correct, len(rows), len(questions) - len(rows)))
    gram = [s for s in sections if s.name.startswith("gram")]
    rest = [s for s in sections if not s.name.startswith("gram")]
    return sections + [pooled("semantic", rest), pooled("syntactic", gram), pooled("total", sections)]


def pooled(name: str, sections: list[Section]) -> Section:
    return Section(
        name,
        sum(s.correct for s in sections),
        sum(s.asked for s in sections),
        sum(s.missing for s in sections),
    )


def count_correct(vectors: Word2Vec, rows: np.ndarray, first: int, method: str) -> int:
    """In batches of one matrix product each; the definition is Word2Vec.analogy."""
    units = vectors.input[:first] / vectors.norms[:first, None]
    correct = 0
    for start in range(0, len(rows), BATCH):
        a, b, c, d = rows[start : start + BATCH].T
        if method == "add":
            scores = (units[b] - units[a] + units[c]) @ units.T
        else:
            near_a, near_b, near_c = ((1 + units[x] @ units.T) / 2 for x in (a, b, c))
            scores = near_b * near_c / (near_a + 1e-3)
        for asked in (a, b, c):
            scores[np.arange(len(asked)), asked] = -np.inf
        correct += int((scores.argmax(axis=1) == d).sum())
    return correct


def similarity(vectors: Word2Vec, path: str | Path) -> Similarity:
    """Spearman's ρ over the pairs whose words are both known."""
    path, lookup = Path(path), Lookup(vectors)
    pairs = read_pairs(path)
    found = [(lookup.find((a, b)), score) for a, b, score in pairs]
    asked = [(rows, score) for rows, score in found if rows is not None]
    cosines = [vectors.similarity(*rows) for rows, _ in asked]
    rho = spearman(np.array(cosines), np.array([score for _, score in asked]))
    return Similarity(path.name.split(".")[0], rho, len(asked), len(pairs) - len(asked))


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation of the ranks, equal values sharing their mean rank; NaN below two pairs."""
    if len(x) < 2:
        return float("nan")
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else float("nan")


def ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def evaluate(
    vectors: Word2Vec, source: str | Path, first: int = FIRST, method: str = "add"
) -> tuple[list[Section], list[Similarity]]:
    """Every question file of a folder, or one file: those named questions… are analogies, others pairs."""
    sections: list[Section] = []
    similarities: list[Similarity] = []
    for path in expand(Path(source)):
        if path.name.startswith("questions"):
            sections += analogies(vectors, path, first, method)
        elif ".tsv" in path.name or ".txt" in path.name or ".csv" in path.name:
            similarities.append(similarity(vectors, path))
    return sections, similarities
