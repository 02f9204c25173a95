"""How good vectors are: analogies by section, and correlation with people's judgements of similarity.

Question files are those in use: `questions-words.txt` (": section", then four words a line) and two words and
a score per line (WordSim-353, SimLex-999, MEN, RW …), plain or compressed. Words outside the vocabulary are
counted as missing, never as wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heedful.core.checks import check_choice
from heedful.core.errors import ConfigError, InputError
from heedful.core.files import expand_paths, read_lines
from heedful.tasks.metrics.scores import spearman
from heedful.word2vec.vectors import ANALOGY_METHODS, Word2Vec

MAX_CANDIDATES = 30_000  # words that may answer an analogy: the most frequent, as in the authors' program
BATCH_QUESTIONS = 256


@dataclass(frozen=True)
class AnalogyResult:
    """One section of analogies: `asked` had all four words among the candidates, `missing` had not."""

    name: str
    correct: int
    asked: int
    missing: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.asked if self.asked else 0.0


@dataclass(frozen=True)
class SimilarityResult:
    """Spearman's ρ of cosine and judgement over the `asked` pairs; `missing` pairs had an unknown word."""

    name: str
    rho: float
    asked: int
    missing: int


def read_analogies(path: Path) -> dict[str, list[tuple[str, ...]]]:
    """Read the sections in order, each a list of four words (a, b, c, d)."""
    sections: dict[str, list[tuple[str, ...]]] = {}
    name = path.name
    for number, line in enumerate(read_lines(path), start=1):
        parts = line.split()
        if parts and parts[0].startswith(":"):
            name = " ".join(parts).lstrip(": ")
        elif len(parts) == 4:
            sections.setdefault(name, []).append(tuple(parts))
        elif parts:
            raise InputError(
                f"{path} line {number}: expected ': section' or four words, got {line.strip()[:60]!r}"
            )
    return sections


def read_judgements(path: Path) -> list[tuple[str, str, float]]:
    """Read (word, word, score) of each line; a first line whose third column is not a number is a heading."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        parts = line.replace(",", " ").split()
        try:
            pairs.append((parts[0], parts[1], float(parts[2])))
        except (IndexError, ValueError):
            if number > 1 and parts:
                raise InputError(
                    f"{path} line {number}: expected two words and a number, got {line.strip()[:60]!r}"
                ) from None
    return pairs


def _rows_by_lowercase(vectors: Word2Vec, first: int | None = None) -> dict[str, int]:
    """Return rows by lower-cased word, the most frequent spelling of each: 'Athens' finds 'athens'."""
    words = vectors.words[:first]
    return {word.lower(): row for row, word in zip(range(len(words))[::-1], reversed(words))}


def _find_rows(index: dict[str, int], words: Iterable[str]) -> list[int] | None:
    """Return the rows of all words, or None if one is unknown."""
    rows = [index.get(word.lower(), -1) for word in words]
    return None if min(rows) < 0 else rows


def score_analogies(
    vectors: Word2Vec, path: str | Path, first: int = MAX_CANDIDATES, method: str = "add"
) -> list[AnalogyResult]:
    """Return the accuracy by section, then `semantic`, `syntactic` (sections named gram…) and `total`.

    The three words of the question may not answer, and only the `first` most frequent words may.
    """
    check_choice("method", method, ANALOGY_METHODS, ConfigError)
    index = _rows_by_lowercase(vectors, first)
    sections = []
    for name, questions in read_analogies(Path(path)).items():
        rows = [four for question in questions if (four := _find_rows(index, question)) is not None]
        correct = _count_correct(vectors, np.array(rows, dtype=np.int64).reshape(-1, 4), first, method)
        sections.append(AnalogyResult(name, correct, len(rows), len(questions) - len(rows)))
    groups = {
        "semantic": [s for s in sections if not s.name.startswith("gram")],
        "syntactic": [s for s in sections if s.name.startswith("gram")],
        "total": sections,
    }
    sums = lambda group: (sum(getattr(s, field) for s in group) for field in ("correct", "asked", "missing"))
    return sections + [AnalogyResult(name, *sums(group)) for name, group in groups.items()]


def _count_correct(vectors: Word2Vec, rows: np.ndarray, first: int, method: str) -> int:
    """Answer in batches of one matrix product each; the definition is Word2Vec.analogy."""
    units = vectors.input[:first] / vectors.norms[:first, None]
    correct = 0
    for start in range(0, len(rows), BATCH_QUESTIONS):
        a, b, c, d = rows[start : start + BATCH_QUESTIONS].T
        if method == "add":
            scores = (units[b] - units[a] + units[c]) @ units.T
        else:
            near_a, near_b, near_c = ((1 + units[x] @ units.T) / 2 for x in (a, b, c))
            scores = near_b * near_c / (near_a + 1e-3)
        for word in (a, b, c):
            scores[np.arange(len(word)), word] = -np.inf
        correct += int((scores.argmax(axis=1) == d).sum())
    return correct


def score_similarity(vectors: Word2Vec, path: str | Path) -> SimilarityResult:
    """Return Spearman's ρ over the pairs whose words are both known."""
    path, index = Path(path), _rows_by_lowercase(vectors)
    pairs = read_judgements(path)
    scored = [(rows, score) for a, b, score in pairs if (rows := _find_rows(index, (a, b))) is not None]
    cosines = [vectors.similarity(*rows) for rows, _ in scored]
    rho = spearman(cosines, [score for _, score in scored]) if scored else float("nan")
    return SimilarityResult(path.name.split(".")[0], rho, len(scored), len(pairs) - len(scored))


def evaluate(
    vectors: Word2Vec, source: str | Path, first: int = MAX_CANDIDATES, method: str = "add"
) -> tuple[list[AnalogyResult], list[SimilarityResult]]:
    """Score one question file, or all of a folder: those named questions… are analogies, others pairs."""
    analogies: list[AnalogyResult] = []
    similarities: list[SimilarityResult] = []
    for path in expand_paths(source):
        if path.name.startswith("questions"):
            analogies += score_analogies(vectors, path, first, method)
        elif ".tsv" in path.name or ".txt" in path.name or ".csv" in path.name:
            similarities.append(score_similarity(vectors, path))
    if not analogies and not similarities:
        raise InputError(
            f"{source} has no question file",
            hint="name analogies questions-….txt, and pairs of words with a score .txt, .tsv or .csv",
        )
    return analogies, similarities
