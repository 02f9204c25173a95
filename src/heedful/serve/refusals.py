"""A request that is refused: a status, a word for programs, a message and a hint for people."""

from __future__ import annotations

from collections.abc import Mapping

from heedful.core.errors import HeedfulError


class RequestRefused(HeedfulError):
    """A request that gets no answer but this one; each server writes it in its own shape."""

    def __init__(
        self, status: int, code: str, message: str, hint: str | None = None, *,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, hint)
        self.status, self.code, self.headers = status, code, dict(headers or {})
