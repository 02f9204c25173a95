"""Every error heedful raises on purpose.

    HeedfulError                    exit 1   anything below; its text is one line that says what to do
    ├── ConfigError                 exit 3   a config field or a config.json value that cannot be
    ├── InputError                  exit 3   tokens, text or files a model cannot take
    ├── NotFound                    exit 3   a name, a path or a hub id that leads nowhere
    ├── WeightsError                exit 3   a file of weights that does not fit
    │   ├── CorruptFile                      truncated, damaged, or not what its name says
    │   ├── MissingTensor                    the model needs it, the file has it not
    │   ├── UnexpectedTensor                 the file has it, the model does not know it
    │   └── WrongShape                       both have it, with other sizes
    └── MissingPackage              exit 1   an optional dependency is not installed

The text of an error names the value, the expectation and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeedfulError(Exception):
    """Base of all errors; `exit_code` is what the command line returns for it."""

    exit_code = 1


class ConfigError(HeedfulError, ValueError):
    """A configuration that cannot be built."""

    exit_code = 3


class InputError(HeedfulError, ValueError):
    """An input outside what the model or function can take."""

    exit_code = 3


class NotFound(HeedfulError, LookupError):
    """A name, path or id that leads nowhere."""

    exit_code = 3


class WeightsError(HeedfulError):
    """A file of weights that does not fit the model."""

    exit_code = 3


class CorruptFile(WeightsError):
    """A file that is truncated, damaged, or not what its name says."""


class MissingTensor(WeightsError):
    """A tensor the model needs and the file does not have."""


class UnexpectedTensor(WeightsError):
    """A tensor in the file that the model has no place for."""


class WrongShape(WeightsError):
    """A tensor whose sizes are not the model's."""


class MissingPackage(HeedfulError, ImportError):
    """An optional dependency that is not installed."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """The closest known names, ready for the end of an error message."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=count, cutoff=0.4)
    return f"did you mean {', '.join(repr(c) for c in close)}?" if close else ""
