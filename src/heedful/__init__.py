"""heedful: the Transformer family made real.

The public names and nothing else. They are loaded when first used (PEP 562), so that importing the package
costs nothing and `heed --help` never imports torch.
"""

from heedful.core.lazy import lazy_names

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy_names(__name__)
__all__ = sorted([*__all__, "__version__"])
