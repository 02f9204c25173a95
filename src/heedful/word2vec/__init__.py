"""word2vec (Mikolov et al. 2013): skip-gram and CBOW, negative sampling and hierarchical softmax.

hyperparameters  corpus  phrases  word_counts  huffman     settings, text, counts, tree
trainer → cpu (kernels) or gpu                             the loop, and what trains on a piece of text
vectors → formats, storage, evaluation                     using, saving and scoring vectors
definition  random_bits     the objectives in PyTorch and the draws in Python: what kernels and gpu equal
steps                       one update with every number, as data
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.word2vec.corpus import Corpus
    from heedful.word2vec.evaluation import evaluate
    from heedful.word2vec.hyperparameters import Settings
    from heedful.word2vec.phrases import Phrases, find_phrases
    from heedful.word2vec.vectors import Ranking, Word2Vec

MODULES = {
    "Corpus": "corpus",
    "Phrases": "phrases",
    "Ranking": "vectors",
    "Settings": "hyperparameters",
    "Word2Vec": "vectors",
    "evaluate": "evaluation",
    "find_phrases": "phrases",
}

__all__ = ["Corpus", "Phrases", "Ranking", "Settings", "Word2Vec", "evaluate", "find_phrases"]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
