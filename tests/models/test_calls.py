"""What a model can be called with stands in its signature."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from heedful.models.base import LM, Looking, Reading, Seq2Seq


@pytest.mark.parametrize(("kind", "keywords"), [(LM, Reading), (Seq2Seq, Looking)])
def test_every_keyword_of_a_call_is_named(kind: type, keywords: type) -> None:
    named = inspect.signature(kind.forward).parameters  # type: ignore[attr-defined]
    assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in named.values())
    assert set(get_type_hints(keywords)) <= set(named)
