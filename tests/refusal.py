"""Errors by their fields: the type, the values that the message names, the way out that the hint names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from heedful.core.errors import HeedfulError


@contextmanager
def refused(kind: type[HeedfulError], *values: object, hint: str | None = None) -> Iterator[None]:
    """Expect an error of this kind whose message names the values, and whose hint names what to do."""
    with pytest.raises(kind) as caught:
        yield
    assert [value for value in values if str(value) not in caught.value.message] == [], caught.value
    assert (hint or "") in (caught.value.hint or ""), caught.value
