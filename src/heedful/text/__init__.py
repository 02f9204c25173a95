"""Text to ids and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def load_tokenizer(folder: Path, published: dict[str, Any] | None = None) -> Any:
    """The tokenizer in a folder; None if it has none."""
    return None


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer beside the weights."""
