"""word2vec (Mikolov et al. 2013): skip-gram and CBOW, negative sampling and hierarchical softmax.

hyperparameters  corpus  phrases  word_counts  huffman     settings, text, counts, tree
trainer → cpu (kernels) or gpu                             the loop, and what trains on a piece of text
vectors → formats, storage, evaluation                     using, saving and scoring vectors
definition  random_bits     the objectives in PyTorch and the draws in Python: what kernels and gpu equal
steps                       one update with every number, as data
"""

from heedful.core.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
