"""LabelNames: the classes of a task, and the number of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heedful.core.errors import InputError, nearest


class LabelNames:
    """The names of classes: those that were passed, or those that rows have, sorted in the end."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self.fixed = names is not None
        self.numbers = {str(name): i for i, name in enumerate(names or ())}

    def number(self, name: str, where: str) -> int:
        """Return the number of a label; one that training did not have is an error."""
        if name not in self.numbers:
            if self.fixed:
                known = ", ".join(map(repr, list(self.numbers)[:12]))
                hint = nearest(name, self.numbers) or f"known: {known}"
                raise InputError(f"{where}: label {name!r} was not seen in training", hint=hint)
            self.numbers[name] = len(self.numbers)
        return self.numbers[name]

    def sort(self, codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the labels with their final numbers, and the names in that order: as numbers if all are.

        Codes below 0 stay.
        """
        names = list(self.numbers)
        if self.fixed:
            return codes, tuple(names)
        ordered = sorted(names, key=float if all(map(is_numeral, names)) else str)
        places = np.array([ordered.index(name) for name in names], np.int64)
        labelled = codes >= 0
        return np.where(labelled, places[np.where(labelled, codes, 0)], codes), tuple(ordered)


def is_numeral(text: str) -> bool:
    """Return whether a text is a number; nan is none."""
    try:
        return float(text) == float(text)
    except ValueError:
        return False
