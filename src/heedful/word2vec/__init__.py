"""word2vec (Mikolov et al. 2013): skip-gram and CBOW, negative sampling and hierarchical softmax.

hyperparameters  corpus  word_counts                        settings, text and phrases, counts and tree
trainer → cpu (kernels) or gpu                             the loop, and what trains on a piece of text
vectors → formats, storage, evaluation                     using, saving and scoring vectors
definition  random_bits     the objectives in PyTorch and the draws in Python: what kernels and gpu equal
"""

from heedful.core.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
