"""All number exercises, in the order in which they are listed."""

from heedful.classroom.exercises import (
    numbers_forward,  # noqa: F401  each adds its own
    numbers_gradients,  # noqa: F401  each adds its own
)
from heedful.classroom.exercises.numbers import EXERCISES

__all__ = ["EXERCISES"]
