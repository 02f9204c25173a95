"""Tasks by the names people know: `pipeline`, and what goes beyond it. __init__.pyi lists them."""

from heedful.core.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
