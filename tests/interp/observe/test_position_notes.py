"""What is said of rotary positions where one table of angles does not tell all of it."""

from __future__ import annotations

import pytest

from heedful.interp.observe.mixing import describe_positions
from tests.properties.tiny import tiny


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("llama", ""),
        (
            "gemma3",
            "layer 0: base 10,000; layer 1: base 1,000,000; the angles shown are those of base 10,000",
        ),
        ("smollm3", "layer 1: no rotation"),
        ("gptj", "the first 4 of 8 entries of a head turn"),
    ],
)
def test_layers_that_turn_otherwise_are_named(family: str, said: str) -> None:
    note = describe_positions(tiny(family), 8)["note"]
    assert note.endswith(said) if said else note == ""
