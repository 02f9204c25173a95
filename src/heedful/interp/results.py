"""What the functions here return can be written as JSON, all in one way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from torch import Tensor


class Result:
    """A frozen dataclass as plain values: its fields, and the properties that are named in `also`."""

    also: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        names = [*(field.name for field in fields(self)), *self.also]  # type: ignore[arg-type]
        return {name: to_plain(getattr(self, name)) for name in names}


def to_plain(value: Any) -> Any:
    """Return tensors and tuples as lists, results and mappings as dictionaries, all else as it is."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, Tensor):
        return value.detach().cpu().double().tolist()
    if isinstance(value, Mapping):
        return {key: to_plain(v) for key, v in value.items()}
    return [to_plain(v) for v in value] if isinstance(value, list | tuple) else value
