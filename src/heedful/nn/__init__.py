"""The parts. A part is one equation; a model is a few parts, assembled (see heedful.models).

The same letter always means the same size:

    B  batch            H  heads                  F  hidden size of a feed-forward
    T  queries          G  key/value heads        V  vocabulary
    S  keys             K  size of a head         N  size of a state
    D  model            L  layers                 E  experts
"""

from heedful.core.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
