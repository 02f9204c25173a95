"""What is said of rotary positions where one table of angles does not tell all of it."""

from __future__ import annotations

import pytest

from heedful.interp.observe.mixing import describe_positions, main_part, mixers_of, state_note
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


@pytest.mark.parametrize(
    ("family", "kind", "formula"),
    [
        ("transformer", "sinusoidal",
         "p(t, 2i) = sin(t / {base:g}^(2i/D)), p(t, 2i+1) = cos(t / {base:g}^(2i/D))"),
        ("marian", "sinusoidal",
         "p(t, i) = sin(t / {base:g}^(2i/D)), p(t, i + D/2) = cos(t / {base:g}^(2i/D))"),
        ("xglm", "sinusoidal",
         "p(t, i) = sin((t + 2) / {base:g}^(2i/D)), p(t, i + D/2) = cos((t + 2) / {base:g}^(2i/D))"),
        ("bert", "learned", "p(t) = table[t]"), ("opt", "learned", "p(t) = table[t + 2]"),
        ("gptj", "rotary", "q_t → R_t q_t, k_s → R_s k_s; pair i turns by t · base^(−2i/4)"),
        ("umt5", "buckets", "b_h(i, j) = table[bucket(j − i), h]"),
        ("diffllama", "rotary", "q_t → R_t q_t, k_s → R_s k_s; pair i turns by t · base^(−2i/8)"),
    ],
)  # fmt: skip
def test_formulas_have_the_layout_and_the_first_position_of_the_model(
    family: str, kind: str, formula: str
) -> None:
    model = tiny(family)
    record = describe_positions(model, 8)
    base = getattr(main_part(model), "base", 0.0)  # XGLM's is a power of 10,000
    assert (record["type"], record["formula"]) == (kind, formula.format(base=base))


@pytest.mark.parametrize(
    ("family", "said"), [("xlnet", "distance"), ("transformer-xl", "distance"), ("rwkv", "fading")]
)
def test_what_knows_the_order_is_not_said_to_be_blind_to_it(family: str, said: str) -> None:
    assert said in describe_positions(tiny(family), 8)["note"]


def test_differential_attention_is_attention() -> None:
    assert {row["by"] for row in mixers_of(tiny("diffllama"))} == {"attention"}


@pytest.mark.parametrize(
    ("family", "said"), [("rwkv", "sums"), ("retnet", "matrix"), ("diffllama", "no state")]
)
def test_what_carries_a_state_says_so(family: str, said: str) -> None:
    assert f"carries {said}" in state_note(tiny(family)) or said in state_note(tiny(family))


def test_a_note_of_a_hybrid_is_a_sentence() -> None:
    assert describe_positions(tiny("qwen3next"), 8)["note"].startswith("order also comes from a convolution")
