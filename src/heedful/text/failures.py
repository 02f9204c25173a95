"""What the `tokenizers` library raises, as errors of ours.

It raises bare Exception; and a limit it runs into (of a regular expression, say) is a panic, which is no
Exception at all and would pass every handler up to the terminal.
"""

from __future__ import annotations

from heedful.errors import HeedfulError


def typed_failure(
    error: BaseException, kind: type[HeedfulError], message: str, hint: str | None = None
) -> BaseException:
    """Return `kind` with the library's reason behind `message`; anything else comes back as it is."""
    panicked = type(error).__name__ == "PanicException"
    own = isinstance(error, HeedfulError | OSError | MemoryError)
    if own or not (panicked or isinstance(error, Exception)):
        return error
    reason = " ".join(str(error).split()) or type(error).__name__
    return kind(f"{message} ({reason!r:.200})", hint=hint)
