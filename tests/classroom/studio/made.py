"""Small random models and the lines their tokenizers learn from, for the server's tests and the browser's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import heedful
from heedful.word2vec import Word2Vec

LINES = [
    "the cat sat on the mat .", "the dog sat on the log .", "a cat and a dog sat .",
    "king queen man woman car", "the quick brown fox jumps over the lazy dog .", "an apple and an orange .",
]  # fmt: skip


def made(family: str, tokenizer: Any, **sizes: Any) -> Any:
    """A random model whose predictions differ enough to be told apart."""
    torch.manual_seed(1)
    model = heedful.build(family, **{"vocab": len(tokenizer), "dim": 16, "layers": 2, **sizes}, seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    model.tokenizer = tokenizer
    return model


def save_vectors(folder: Path) -> None:
    """Random vectors of the lines' words, with counts and a second table."""
    draw = np.random.default_rng(0)
    words = sorted({word for line in LINES for word in line.split()})
    tables = [draw.normal(size=(len(words), 8)).astype(np.float32) for _ in range(2)]
    folder.mkdir()
    counts = draw.integers(1, 50, len(words))
    Word2Vec(words, tables[0], tables[1], counts).save(folder / "words.safetensors")
