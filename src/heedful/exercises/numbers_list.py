"""All number exercises, in the order in which they are listed."""

from heedful.exercises import numbers_forward, numbers_gradients  # noqa: F401  each adds its own
from heedful.exercises.numbers import EXERCISES

__all__ = ["EXERCISES"]
