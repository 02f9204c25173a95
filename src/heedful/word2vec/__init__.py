"""word2vec (Mikolov et al. 2013): skip-gram and CBOW, negative sampling and hierarchical softmax.

hyperparameters, corpus, word_counts  settings; text, phrases and jobs; counts and tree
trainer → kernels or gpu              the loop, threads of the processor, an accelerator
vectors → vector_files, evaluation    using, saving and scoring vectors
definition                            the objectives and draws in PyTorch and Python, which the others equal
"""

from heedful.core.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
