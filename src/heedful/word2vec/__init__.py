"""word2vec (Mikolov et al. 2013): skip-gram and CBOW, negative sampling and hierarchical softmax.

settings → corpus → vocabulary, phrases, huffman → encoding → training (kernels | gpu) → vectors
vectors → formats, evaluation
definition   the four objectives in a few lines of PyTorch: the oracle of kernels and gpu
steps        one update with every number, as data
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.word2vec.corpus import Corpus
    from heedful.word2vec.evaluation import evaluate
    from heedful.word2vec.phrases import Phrases, find_phrases
    from heedful.word2vec.settings import Settings
    from heedful.word2vec.vectors import Ranking, Word2Vec

HOMES = {
    "Corpus": "corpus",
    "Phrases": "phrases",
    "Ranking": "vectors",
    "Settings": "settings",
    "Word2Vec": "vectors",
    "evaluate": "evaluation",
    "find_phrases": "phrases",
}

__all__ = ["Corpus", "Phrases", "Ranking", "Settings", "Word2Vec", "evaluate", "find_phrases"]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
