"""A small language with topics: words of a topic stand together, so that vectors have something to find."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

TOPICS = (
    "king queen crown throne palace prince",
    "bread butter cheese wine supper kitchen",
    "ship sea harbour sail captain storm",
    "horse saddle rider stable bridle hoof",
)
COMMON = "the a of and to in"


def sentences(count: int, seed: int = 0) -> list[list[str]]:
    draw = random.Random(seed)
    topics = [topic.split() for topic in TOPICS]
    return [
        [draw.choice(COMMON.split()) if draw.random() < 0.4 else draw.choice(topic) for _ in range(12)]
        for topic in draw.choices(topics, k=count)
    ]


@pytest.fixture(scope="session")
def corpus() -> list[list[str]]:
    return sentences(1500)


@pytest.fixture
def text(tmp_path: Path, corpus: list[list[str]]) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(map(" ".join, corpus)) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def wide_corpus() -> list[list[str]]:
    """Four hundred words, so that ten thousand updates fall on many rows as in real text."""
    draw = random.Random(1)
    return [[f"w{int(400 * draw.random() ** 2)}" for _ in range(12)] for _ in range(900)]
